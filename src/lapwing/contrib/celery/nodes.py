"""The nsqds behind a broker URL: where they are, what is created there, and the connection that publishes."""

from __future__ import annotations

import http.client
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from lapwing.client.address import Address, parse
from lapwing.client.channel_settings import ChannelSettings, as_sent, same
from lapwing.client.errors import ConnectionLost, PublishFailed, Unreachable
from lapwing.client.options import ClientOptions
from lapwing.contrib.celery.sockets import NsqSocket
from lapwing.wire.nsq.commands import Hpub

log: Final = logging.getLogger("lapwing.celery")

UNROUTED: Final = "unrouted"  # the channel by which the topic of an exchange forgets what nobody is bound to
_LIMIT: Final = re.compile(r"out of range 0-(\d+)")
_MS: Final = 1_000_000


class CallFailed(Exception):
    """A request that an nsqd or nsqlookupd refused, with its status."""

    def __init__(self, where: str, status: int, text: str) -> None:
        super().__init__(f"{where}: {status} {text}")
        self.status = status


class DeferredTooLong(PublishFailed):
    """A publish was to be deferred for longer than nsqd allows."""


def call(where: str, method: str, path: str, body: Any = None, /, *, timeout: float = 5.0, **parameters: str) -> Any:
    """Return the answer of a daemon's HTTP API. Raises `Unreachable` or `CallFailed`."""
    host, _, port = where.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, f"{path}?{urlencode(parameters)}", sent)
        answer = connection.getresponse()
        data = answer.read()
    except OSError as error:
        text = f"{error.strerror or error}; is this nsqd's HTTP address? nsqd_http names another"
        raise Unreachable(where, text) from error
    except http.client.HTTPException as error:
        raise Unreachable(where, f"{error!r}: is it an HTTP address?") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise CallFailed(where, answer.status, data[:200].decode("utf-8", "replace"))
    return json.loads(data) if data and data != b"OK" else None


class Node:
    """One nsqd."""

    def __init__(self, address: Address, http_address: str, options: ClientOptions, *, confirm: bool = True) -> None:
        self.address = address
        self._http = http_address
        self._options = options
        self._confirm = confirm
        self._publisher: NsqSocket | None = None
        self.longest = math.inf  # s that nsqd defers a publish, as far as it is known
        self._created: set[tuple[str, str]] = set()

    # -- administration

    def call(self, method: str, path: str, body: Any = None, /, **parameters: str) -> Any:
        """Return the answer of nsqd's HTTP API."""
        return call(self._http, method, path, body, timeout=self._options.dial_timeout, **parameters)

    def create(self, topic: str, channel: str, settings: Mapping[str, Any]) -> None:
        """Create a channel with these settings, once. A setting that an operator has made otherwise stays."""
        if (topic, channel) in self._created:
            return
        self.call("POST", "/topic/create", topic=topic)
        self.call("POST", "/channel/create", topic=topic, channel=channel)
        if settings:
            self._set(topic, channel, settings)
        self._created.add((topic, channel))

    def create_exchange(self, topic: str) -> None:
        """Create the topic of an exchange, which keeps nothing for queues that are not there yet."""
        self.create(topic, UNROUTED, {"max_depth": 1, "overflow": "drop-oldest"})

    def _set(self, topic: str, channel: str, settings: Mapping[str, Any]) -> None:
        present = self.call("GET", "/channel/settings", topic=topic, channel=channel)["settings"]
        new = {}
        for name in settings.keys() & present.keys():
            value, wanted = present[name]["value"], settings[name]
            if same(name, value, wanted):
                continue
            if present[name]["from"] in ("default", "flag"):
                new[name] = wanted
                continue
            log.warning(
                "[%s/%s] %s is %s, as it was set before, and this program asks for %s: left as it is; "
                "`lapwing settings %s/%s %s=%s` changes it",
                topic, channel, name, value, wanted, topic, channel, name, wanted,
            )  # fmt: skip
        if new:
            self.call("PATCH", "/channel/settings", new, topic=topic, channel=channel)

    def forget(self, topic: str) -> None:
        """Delete a topic, if it is there."""
        self._created = {each for each in self._created if each[0] != topic}
        self._delete("/topic/delete", topic=topic)

    def unbind(self, topic: str, channel: str) -> None:
        """Delete a channel, if it is there."""
        self._created.discard((topic, channel))
        self._delete("/channel/delete", topic=topic, channel=channel)

    def _delete(self, path: str, **parameters: str) -> None:
        try:
            self.call("POST", path, **parameters)
        except CallFailed as error:
            if error.status != 404:
                raise

    def topics(self, *names: str) -> list[dict[str, Any]]:
        """Return the stats of those of these topics that are there; of all topics if none is named."""
        found = [self.call("GET", "/stats", format="json", topic=name) for name in names or ("",)]
        return [topic for stats in found for topic in stats["topics"] or ()]

    # -- publishing

    def connect(self) -> NsqSocket:
        """Return the connection that publishes. Raises `Unreachable`."""
        if self._publisher is None or not self._publisher.alive:
            self.close()
            self._publisher = NsqSocket(self.address, self._options, heartbeat_interval=-1)
        return self._publisher

    def publish(self, topic: str, headers: Mapping[str, str], body: bytes, wait: float) -> None:
        """Publish a message that is delivered after `wait` seconds. Raises `DeferredTooLong` beyond nsqd's limit."""
        publisher = self.connect()
        delay = math.ceil(wait * 1000)
        command = Hpub.of(topic, json.dumps(headers).encode(), body, delay=delay * _MS).encode()
        if not (self._confirm or delay):
            publisher.post(command)
            return
        publisher.send(command)
        try:
            publisher.response(self._options.publish_timeout)
        except PublishFailed as error:
            self.close()  # nsqd hangs up behind a refusal
            limit = _LIMIT.search(error.reason)
            if limit is None or int(limit[1]) >= delay:
                raise
            self.longest = int(limit[1]) / 1000
            raise DeferredTooLong(str(self.address), error.reason) from error
        except ConnectionLost:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection that publishes."""
        if self._publisher is not None:
            self._publisher.settle(self._options.publish_timeout)
            self._publisher.close()
            self._publisher = None


class Nodes:
    """The nsqds of a broker URL: the one that it names, or those that an nsqlookupd knows."""

    def __init__(
        self, where: str, options: ClientOptions, *, nsqd_http: str = "", lookupd: bool = False, confirm: bool = True
    ) -> None:
        self._where = where
        self._options = options
        self._confirm = confirm
        self._lookupd = lookupd
        self._nodes: list[Node] = []
        self._next = 0
        if not lookupd:
            address = parse(where)
            self._nodes = [self._node(address, nsqd_http or f"{address.host}:{address.port + 1}")]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def _node(self, address: Address, http_address: str) -> Node:
        return Node(address, http_address, self._options, confirm=self._confirm)

    def refresh(self) -> list[Node]:
        """Ask nsqlookupd, and return the nodes that are new and answer. Raises `Unreachable` if none does."""
        if not self._lookupd:
            return []
        try:
            answer = call(self._where, "GET", "/nodes", timeout=self._options.dial_timeout)
        except CallFailed as error:
            raise Unreachable(self._where, str(error)) from error
        known, new = {str(node.address) for node in self._nodes}, []
        for found in answer["producers"]:
            host = found["broadcast_address"]
            node = self._node(Address(host, found["tcp_port"]), f"{host}:{found['http_port']}")
            if str(node.address) in known:
                continue
            try:
                node.connect()
            except Unreachable as error:
                log.warning("%s; it is left out until it answers", error)
            else:
                new.append(node)
        self._nodes += new
        if not self._nodes:
            raise Unreachable(self._where, "this nsqlookupd knows no nsqd that answers")
        return new

    def publisher(self) -> Node:
        """Return a node that publishes: the same as before while it is alive. Raises `Unreachable`."""
        if not self._nodes:
            self.refresh()
        last: Unreachable | None = None
        for _ in range(len(self._nodes)):
            node = self._nodes[self._next % len(self._nodes)]
            try:
                node.connect()
            except Unreachable as error:
                last = error
                self._next += 1
            else:
                return node
        raise last or Unreachable(self._where, "no nsqd")

    def close(self) -> None:
        """Close all connections that publish."""
        for node in self._nodes:
            node.close()


def settings_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `broker_transport_options` into settings of channels and all others. Raises `ConfigError`."""
    settings = {name: value for name, value in options.items() if name in ChannelSettings.__annotations__}
    return as_sent(settings), {name: value for name, value in options.items() if name not in settings}
