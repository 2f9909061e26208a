"""nsqlookupd: build the registry and its two listeners from options; start and stop them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from typing import Final

from lapwing.lookup.http import LookupRoutes
from lapwing.lookup.metrics import LookupCounts
from lapwing.lookup.options import LookupOptions
from lapwing.lookup.registry import Registry
from lapwing.lookup.session import LookupSession
from lapwing.lookup.tcp import PeerConnections
from lapwing.names import NSQ_VERSION
from lapwing.net.logs import Level, Log
from lapwing.net.server.browsers import BrowserGuard
from lapwing.net.server.http import HttpLimits, HttpServer
from lapwing.net.server.routes import Router
from lapwing.net.sockets.listen import CannotListen, Listener, bind, split
from lapwing.wire.nsq import lookup
from lapwing.wire.nsq.lookup import PeerInfo

_SWEEP: Final = 1_000_000_000  # ns between two looks at who is silent


class LookupDaemon:
    """One nsqlookupd on the running event loop."""

    def __init__(self, options: LookupOptions, log: Log) -> None:
        self._options = options
        self._log = log
        # Unix time that no correction of the clock can throw: a jump must not make every producer inactive.
        self._offset = time.time_ns() - time.monotonic_ns()
        self.counts = LookupCounts(started=time.time())
        self.registry = Registry(
            inactive_after=options.inactive_producer_timeout,
            tombstone_lifetime=options.tombstone_lifetime,
            max_registrations=options.max_registrations,
            max_per_producer=options.max_registrations_per_peer,
            departed_lifetime=options.departed_lifetime,
        )
        self._welcome = b""
        self._peers = PeerConnections(
            self._session, self.now, self.counts, limit=options.max_peers, timeout=options.peer_timeout
        )
        self._http = HttpServer(
            BrowserGuard(
                Router(LookupRoutes(self.registry, self.now, self.counts, lambda: self._http.served).routes()),
                names=(os.uname().nodename, options.broadcast_address, *options.allowed_hosts),
                program="nsqlookupd",
            ),
            limits=HttpLimits(connections=options.max_http_connections),
            log=log.info if log.enabled(Level.INFO) else None,
            broken=self._broken,
        )
        self._listeners: list[Listener] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._swept = 0  # ns

    def now(self) -> int:
        """Return Unix time in ns."""
        return time.monotonic_ns() + self._offset

    def _session(self, remote: str) -> LookupSession:
        log = self._log.info if self._log.enabled(Level.INFO) else _silent
        log(f"TCP: new client({remote})")
        return LookupSession(self.registry, self._welcome, remote, log)

    def _broken(self, where: str, error: BaseException) -> None:
        self._log.error(f"HTTP: {where} failed - {''.join(traceback.format_exception(error))}")

    async def start(self) -> None:
        """Listen for nsqds and for HTTP clients; raise `CannotListen`."""
        for address in (self._options.tcp_address, self._options.http_address):
            if split(address) is None:
                raise CannotListen(0, f"listen ({address}) failed - not a host:port")
        tcp = bind(self._options.tcp_address)
        self._listeners.append(tcp)
        http = bind(self._options.http_address)
        self._listeners.append(http)
        own = PeerInfo(
            broadcast_address=self._options.broadcast_address,
            hostname=os.uname().nodename,
            http_port=http.port,
            tcp_port=tcp.port,
            version=NSQ_VERSION,
        )
        self._welcome = lookup.answer(own.welcome())
        await tcp.serve(self._peers.protocol)
        self._log.info(f"TCP: listening on {tcp.address}")
        await http.serve(self._http.protocol)
        self._log.info(f"HTTP: listening on {http.address}")
        self._swept = self.now()
        self._sweep()

    def _sweep(self) -> None:
        """Disconnect silent nsqds, once a second. Time in which this process hung does not count for them."""
        now = self.now()
        hung = now - self._swept - _SWEEP
        if hung > _SWEEP:
            self._peers.allow(hung)
            self.registry.allow(hung)
        self._swept = now
        self._peers.drop_silent()
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP / 1e9, self._sweep)

    async def stop(self) -> None:
        """Close both listeners and every connection at once."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for listener in self._listeners:
            listener.close()
        self._peers.close()
        await self._http.shutdown(0)


def _silent(text: str) -> None:
    """Log nothing."""


async def run(options: LookupOptions, log: Log) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    daemon = LookupDaemon(options, log)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    try:
        await daemon.start()
    except CannotListen as error:
        log.fatal(f"failed to start nsqlookupd - {error.strerror}")
        await daemon.stop()
        return 1
    await ending.wait()
    await daemon.stop()
    log.info("NSQLOOKUPD: bye")
    log.drain()
    return 0
