"""The transport of Kombu: which nsqds there are, and how Celery's event loop waits for their messages."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from kombu.transport import virtual

import lapwing
from lapwing.client.errors import ConnectionLost, PublishFailed, Unreachable
from lapwing.client.options import ClientOptions, ClientSettings
from lapwing.contrib.celery import channels, sockets
from lapwing.contrib.celery.feeds import Feed
from lapwing.contrib.celery.nodes import CallFailed, Nodes, settings_of
from lapwing.contrib.celery.queues import Queue
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.celery")

_SETTINGS: Final = {"hold": "connection", "max_attempts": 5}  # of queues, unless broker_transport_options has others
_LOOK: Final = 10.0  # s between looks at silent connections and for new nsqds


class Transport(virtual.Transport):
    """lapwing://host:4150, or lapwing+lookupd://host:4161 for all nsqds that an nsqlookupd knows."""

    Channel = channels.Channel
    default_port = 4150
    polling_interval = None
    driver_type = "lapwing"
    driver_name = "lapwing"
    connection_errors = (*virtual.Transport.connection_errors, OSError, Unreachable, ConnectionLost)
    channel_errors = (*virtual.Transport.channel_errors, PublishFailed, CallFailed)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    alive: ClassVar[weakref.WeakSet[Transport]] = weakref.WeakSet()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        settings, rest = settings_of(client.transport_options)
        self.settings = {**_SETTINGS, **settings}
        self.steps = tuple(rest.pop("priority_steps", ()))
        where, lookupd, secret = _address(client)
        nsqd_http, confirm = rest.pop("nsqd_http", ""), rest.pop("confirm_publish", True)
        known = {name: value for name, value in rest.items() if name in ClientSettings.__annotations__}
        if client.ssl:
            known["tls"] = True
        if secret:
            known["auth_secret"] = secret
        self.options = ClientOptions().but(**known)
        self.nodes = Nodes(where, self.options, nsqd_http=nsqd_http, lookupd=lookupd, confirm=confirm)
        if not confirm:
            weakref.finalize(self, self.nodes.close)  # at the end of the program, too: see `NsqSocket.settle`
        self.queues: dict[str, Queue] = {}
        self.new: set[str] = set()  # queues that were declared, and perhaps not created
        self._watched: dict[Feed, channels.Channel] = {}
        self._hub: Any = None
        self._timers: dict[channels.Channel, Any] = {}
        self._looked_at = time.monotonic()
        self.alive.add(self)

    def driver_version(self) -> str:
        """Return the version of lapwing."""
        return lapwing.__version__

    def establish_connection(self) -> Any:
        """Connect to an nsqd. Raises `Unreachable`."""
        self.nodes.refresh()
        self.nodes.publisher()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close all connections."""
        super().close_connection(connection)
        self.nodes.close()

    # -- waiting for messages

    def watch(self, feed: Feed, channel: channels.Channel) -> None:
        """Have the channel called when its feed has something."""
        self._watched[feed] = channel
        if self._hub is not None:
            self._hub.add_reader(feed.socket.fileno(), channel.pump, feed)

    def unwatch(self, feed: Feed) -> None:
        """Forget a feed."""
        if self._watched.pop(feed, None) is not None and self._hub is not None:
            self._hub.remove(feed.socket.fileno())

    def remind(self, channel: channels.Channel, wait: float | None) -> None:
        """Have the channel called after so many seconds, and not at another time; a loop of our own looks itself."""
        channel.again_at = None if wait is None else time.monotonic() + wait
        if self._hub is None:
            return
        timer = self._timers.pop(channel, None)
        if timer is not None:
            timer.cancel()
        if wait is not None:
            self._timers[channel] = self._hub.call_later(wait, channel.pump)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's event loop wait for messages."""
        self._hub = loop
        for feed, channel in self._watched.items():
            loop.add_reader(feed.socket.fileno(), channel.pump, feed)
            self.remind(channel, 0.0)
        loop.call_repeatedly(_LOOK, self.look)

    def wait(self, seconds: float) -> None:
        """Wait until a feed has something, but no longer than this."""
        sockets.wait([feed.socket for feed in self._watched], seconds)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver messages. Raises `TimeoutError` if none comes in time."""
        now = time.monotonic()
        deadline = math.inf if timeout is None else now + timeout
        delivered_at = math.inf
        while True:
            used = list(dict.fromkeys(self._watched.values()))
            if sum(channel.pump() for channel in used):
                delivered_at = min(delivered_at, time.monotonic())
            again_at = min((channel.again_at for channel in used if channel.again_at is not None), default=math.inf)
            now = time.monotonic()
            if now >= delivered_at and (again_at == math.inf or now > delivered_at + channels.GET):
                return
            if now >= deadline:
                raise TimeoutError("timed out")
            if now >= self._looked_at + _LOOK:
                self.look()
            self.wait(min(deadline, again_at, self._looked_at + _LOOK) - now)

    def stay(self) -> None:
        """Answer heartbeats for an event loop that is busy with a task; from any thread."""
        for feed in list(self._watched):
            with contextlib.suppress(ConnectionLost):  # the loop will see it
                feed.socket.stay()

    def look(self) -> None:
        """Look for connections that are silent for too long, and for new nsqds. Raises `ConnectionLost`."""
        self._looked_at = time.monotonic()
        for channel in list(dict.fromkeys(self._watched.values())):
            channel.pump()
        for feed in self._watched:
            if time.monotonic() - feed.socket.received_at > self.options.read_timeout:
                raise ConnectionLost(str(feed.node.address), "no bytes, not even a heartbeat")
        try:
            new = self.nodes.refresh()
        except Unreachable as error:
            log.warning("%s; the nsqds that are connected stay", error)
            return
        for channel in list(dict.fromkeys(self._watched.values())):
            channel.extend(new)


def _address(client: Any) -> tuple[str, bool, str | None]:
    """Return the address of a URL, whether it is of an nsqlookupd, and its password."""
    if "://" in (client.hostname or ""):
        url = urlsplit(client.hostname)
        if url.scheme != "lookupd":
            raise ConfigError(f"{client.hostname}: expected lapwing://host:4150 or lapwing+lookupd://host:4161")
        return f"{url.hostname}:{url.port or 4161}", True, url.password and unquote(url.password)
    return f"{client.hostname or '127.0.0.1'}:{client.port or 4150}", False, client.password
