"""Apply what a program names: settings of its channels, on each nsqd before it is consumed, and schedules."""

import base64
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

from lapwing import durations
from lapwing.client.address import Address, listed, parse
from lapwing.client.admin import Admin
from lapwing.client.admin_results import NodesFailed
from lapwing.client.cluster import Node
from lapwing.client.cluster_client import ClusterClient, UpstreamFailed
from lapwing.client.errors import ClientError, Refused, Unreachable
from lapwing.client.http import DaemonHttp
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

_IN_THE_CLIENT: Final = frozenset({"max_attempts", "retry_first", "retry_max"})  # where nsqd does not know them
_GIVEN: Final = frozenset({"default", "flag"})  # a value from there is nobody's choice for this channel


class ChannelSettings(TypedDict, total=False):
    """The settings of a channel that a consumer may name; times are seconds, or texts such as "1m30s"."""

    max_attempts: int
    retry_first: float | str
    retry_factor: float
    retry_max: float | str
    retry_jitter: float
    dead_topic: str
    msg_timeout: float | str
    hold: Literal["timeout", "connection"]
    active: Literal["all", "single"]
    order: Literal["none", "key"]
    fair: bool
    key_from: str
    key_weights: str
    max_in_flight_per_key: int
    rate: str
    burst: int
    message_ttl: float | str
    expired_to_dead: bool
    max_depth: int
    max_bytes: int
    overflow: Literal["reject", "drop-oldest", "dead"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule as a program declares it."""

    name: str
    topic: str
    body: bytes
    headers: dict[str, str]
    misfire: str
    every: str = ""
    cron: str = ""
    at: str = ""
    zone: str = "UTC"

    def document(self) -> dict[str, Any]:
        """Return it as nsqd takes it."""
        body = base64.b64encode(self.body).decode()
        times = {key: getattr(self, key) for key in ("every", "cron", "at") if getattr(self, key)}
        return {
            "topic": self.topic, "body_base64": body, "headers": self.headers, "misfire": self.misfire,
            "zone": self.zone, **times,
        }  # fmt: skip


_TIMES: Final = frozenset({"retry_first", "retry_max", "msg_timeout", "message_ttl"})


def as_sent(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as nsqd takes them. Raises `ConfigError` for one that is unknown or no time."""
    for name in settings:
        if name not in ChannelSettings.__annotations__:
            raise ConfigError(f"no setting of a channel is called {name}: {', '.join(ChannelSettings.__annotations__)}")
    found = {
        name: f"{value * 1000:.0f}ms" if name in _TIMES and isinstance(value, (int, float)) else value
        for name, value in settings.items()
    }
    for name in _TIMES & found.keys():
        try:
            durations.parse(found[name])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name} is {found[name]!r}, expected seconds or a text such as '1m30s'") from error
    return found


class SettingsKeeper:
    """Creates channels and applies their settings, at each connection: nsqd may come back without its data.

    A value that an operator has set for the channel, or by a policy, stays and is reported, unless `overwrite`.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        nsqd: str | Iterable[str],
        nsqd_http: str | Iterable[str],
        lookupd: str | Iterable[str],
        overwrite: bool,
    ) -> None:
        self._options = options
        self._overwrite = overwrite
        self._lookupds = listed(lookupd)
        self._nsqds = listed(nsqd)
        given, named = [str(parse(text)) for text in listed(nsqd)], listed(nsqd_http)
        if named and len(named) != len(given):
            raise ConfigError(f"nsqd_http has {len(named)} addresses for {len(given)} of nsqd: give one for each")
        self._http_of = dict(zip(given, named, strict=False))
        self._http: DaemonHttp | None = None
        self._nodes: dict[tuple[str, int], Node] = {}  # that nsqlookupd named

    async def apply(self, address: Address, topic: str, channel: str, settings: dict[str, Any]) -> None:
        """Apply settings on the nsqd at this TCP address. Raises `Unreachable` or `Refused`."""
        if not settings:
            return
        admin = self._admin()
        node = await self._node(address)
        where = node.contact
        try:
            await self._apply(admin.at([node]), where, topic, channel, settings)
        except NodesFailed as error:
            (result,) = error.results
            failure = result.failure
            if failure is not None and failure.unsupported:
                log.warning(
                    "[%s/%s] (%s) this server keeps no settings of channels: %s", topic, channel, where,
                    "; ".join(f"{name} {'holds in the client' if name in _IN_THE_CLIENT else 'has no effect'}"
                              for name in settings),
                )  # fmt: skip
            elif failure is not None and failure.status:
                raise Refused(where, f"settings of {topic}/{channel}: {result.error}") from error
            else:
                text = f"{failure or result.error}; is this nsqd's HTTP address? nsqd_http= names another"
                raise Unreachable(where, text) from error

    async def put(self, schedules: Iterable[Scheduled]) -> None:
        """Put schedules on the cluster. Raises `ClientError`, or `UpstreamFailed` if nsqlookupd does not answer."""
        for each in schedules:
            admin = self._admin()
            if not self._lookupds:
                admin = admin.at([await self._node(parse(text)) for text in self._nsqds])
            try:
                results = await admin.put_schedule(
                    each.name, each.topic, each.body, headers=each.headers, misfire=each.misfire, every=each.every,
                    cron=each.cron, at=each.at, zone=each.zone,
                )  # fmt: skip
            except NodesFailed as error:
                raise ClientError(f"schedule {each.name}: {error}") from error
            for node, schedule in results.answers.items():
                log.info("[schedule %s] (%s) %s, next %s", each.name, node, schedule.when, *schedule.next[:1] or "-")

    def _admin(self) -> Admin:
        if self._http is None:
            tls = self._options.tls_context() if self._options.tls else None
            self._http = DaemonHttp(tls=tls, auth_secret=self._options.auth_secret or "")
        return Admin(lookupd=self._lookupds, http=self._http)

    async def _apply(self, admin: Admin, where: str, topic: str, channel: str, settings: dict[str, Any]) -> None:
        await admin.create(topic, channel)
        (present,) = (await admin.settings(topic, channel)).answers.values()
        new: dict[str, Any] = {}
        for name, wanted in settings.items():
            value, source = present.settings[name].value, present.settings[name].source
            if same(name, value, wanted):
                continue
            if source in _GIVEN or self._overwrite:
                new[name] = wanted
                continue
            log.warning(
                "[%s/%s] (%s) %s is %s (set by: %s), and this program asks for %s: left as it is; "
                "overwrite_settings=True or `lapwing settings %s/%s %s=%s` changes it",
                topic, channel, where, name, value, source, wanted, topic, channel, name, wanted,
            )  # fmt: skip
        if new:
            await admin.change_settings(topic, channel, **new)
            log.info("[%s/%s] (%s) set %s", topic, channel, where, ", ".join(f"{n}={v}" for n, v in new.items()))

    async def _node(self, address: Address) -> Node:
        """Return an nsqd with its HTTP address: as given, as nsqlookupd has it, or the next port, as usual."""
        if str(address) in self._http_of:
            return _at(address, self._http_of[str(address)])
        if self._lookupds:
            assert self._http is not None
            try:
                found = (await ClusterClient(self._http, lookupds=self._lookupds).nodes()).value
                self._nodes.update({(node.broadcast_address, node.tcp_port): node for node in found})
            except UpstreamFailed as error:
                log.warning("%s; settings go to the HTTP address that %s had, or to its next port", error, address)
            if (address.host, address.port) in self._nodes:
                return self._nodes[address.host, address.port]
        if address.unix:
            raise Refused(str(address), "settings of channels need nsqd's HTTP address: nsqd_http=")
        return _at(address, f"{address.host}:{address.port + 1}")

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()


def same(name: str, value: Any, wanted: Any) -> bool:
    """Return whether the value of a setting is the wanted one, which may be written otherwise."""
    if name in _TIMES:
        return durations.parse(value) == durations.parse(wanted)
    return json.dumps(value) == json.dumps(wanted) or (isinstance(wanted, (int, float)) and value == wanted)


def _at(address: Address, http: str) -> Node:
    return Node(address.host, address.host, address.port, 0, "", configured=http)
