"""Listening: on TCP, on a Unix socket, and with TLS on either."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Final

from lapwing.net.sockets.polled import PolledConnections
from lapwing.records import dataclass

_BACKLOG: Final = 1024
_LOOPBACK: Final = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
_ALL_INTERFACES: Final = ("", "0.0.0.0", "::")
_HANDSHAKE: Final = 5.0  # seconds for a client to show that it speaks TLS, and again to finish its handshake
_NOT_TLS: Final = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"Client sent an HTTP request to an HTTPS server.\n"
)

Factory = Callable[[], asyncio.BaseProtocol]


class CannotListen(OSError):
    """An address that cannot be listened on; the text names it and the reason."""


def split(address: str) -> tuple[str, int] | None:
    """Return host and port of `host:port` (`[v6]:port`, empty host for all interfaces); None if it is a socket path."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return None if ":" in host else (host, int(port))


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets where an IPv6 address needs them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def far_end(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Return the host at the other end and its `host:port`; on a Unix socket nothing and `@`.

    An IPv4 client is shown as such, also where one socket listens for both families.
    """
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return "", "@"
    host = str(name[0])
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    return host, join(host, name[1])


def is_near(transport: asyncio.BaseTransport) -> bool:
    """Return whether the other end is on this machine.

    A client that connects to an address of its own machine comes from that address; for the other loopback addresses,
    such as a host's own name often is, from the first one.
    """
    there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(there, tuple):
        return True  # a Unix socket
    return there[0] in _LOOPBACK or (isinstance(here, tuple) and there[0] == here[0])


@dataclass(slots=True)
class Listener:
    """A bound address. `close` stops accepting connections and removes the socket file; open connections stay."""

    sockets: list[socket.socket]
    address: str  # `host:port` as it is bound, or the path of a Unix socket
    port: int  # -1 for a Unix socket
    _polled: PolledConnections | None = None
    _servers: list[asyncio.AbstractServer] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _handshakes: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can connect."""
        parts = split(self.address)
        return parts is None or parts[0] == "::1" or parts[0].startswith("127.")

    async def serve(self, factory: Factory, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections from now on; each gets a protocol from `factory`."""
        loop = asyncio.get_running_loop()
        for listening in self.sockets:
            if tls is not None:
                self._tasks.append(loop.create_task(self._accept_tls(listening, factory, tls)))
            elif self.port < 0:
                self._servers.append(await loop.create_unix_server(factory, sock=listening, backlog=_BACKLOG))
            else:
                self._servers.append(await loop.create_server(factory, sock=listening, backlog=_BACKLOG))

    def serve_polled(self, connections: PolledConnections, factory: Callable[[], asyncio.Protocol]) -> None:
        """Take connections from now on, into one epoll set."""
        self._polled = connections
        for listening in self.sockets:
            connections.accept(listening, factory)

    async def _accept_tls(self, listening: socket.socket, factory: Factory, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError:
                if listening.fileno() < 0:
                    return
                await asyncio.sleep(0.1)  # out of file descriptors, most likely: others may free some
                continue
            if len(self._handshakes) >= _BACKLOG:
                client.close()
                continue
            task = loop.create_task(_begin_tls(loop, client, factory, tls))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def close(self) -> None:
        for task in (*self._tasks, *self._handshakes):
            task.cancel()
        if self._polled is not None:
            self._polled.stop_accepting()
        for server in self._servers:
            server.close()
        for listening in self.sockets:
            listening.close()
        if self.port < 0:
            with suppress(FileNotFoundError):
                os.unlink(self.address)


async def _begin_tls(
    loop: asyncio.AbstractEventLoop, client: socket.socket, factory: Factory, tls: ssl.SSLContext
) -> None:
    """Start TLS with a client; answer one that sends plain HTTP in plain text."""
    try:
        client.setblocking(False)
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(_HANDSHAKE):
            await _readable(loop, client)
        first = client.recv(1, socket.MSG_PEEK)
        if first.isalpha():  # a method; TLS begins with 0x16
            client.send(_NOT_TLS)
            client.shutdown(socket.SHUT_WR)
            client.recv(65536)
            client.close()
        elif not first:
            client.close()
        else:
            await loop.connect_accepted_socket(
                factory, client, ssl=tls, ssl_handshake_timeout=_HANDSHAKE, ssl_shutdown_timeout=1.0
            )
    except (OSError, TimeoutError):  # a failed handshake is an OSError too
        client.close()
    except asyncio.CancelledError:
        client.close()
        raise


async def _readable(loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(client.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(client.fileno())


def bind(address: str) -> Listener:
    """Return a listener bound to `address`, not yet served; raise `CannotListen`.

    Bound first and served later, so that a daemon knows all its ports before it registers them.
    """
    parts = split(address)
    if parts is None and ":" in address and "/" not in address:
        raise CannotListen(errno.EINVAL, f"listen ({address}) failed - no such port")
    try:
        if parts is None:
            return Listener([_open(socket.AF_UNIX, address)], address, -1)
        listening = _bind_tcp(*parts)
        host, port = listening.getsockname()[:2]
        return Listener([listening], join(host, port), port)
    except OSError as error:
        stale = parts is None and error.errno == errno.EADDRINUSE
        hint = "; if nobody listens there any more, remove the file" if stale else ""
        raise CannotListen(error.errno, f"listen ({address}) failed - {_reason(error)}{hint}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _bind_tcp(host: str, port: int) -> socket.socket:
    if host in _ALL_INTERFACES:
        # One socket for both families, as Go opens; IPv4 alone where there is no IPv6.
        if socket.has_dualstack_ipv6():
            try:
                return _open(socket.AF_INET6, ("::", port), dual=True)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
        return _open(socket.AF_INET, ("0.0.0.0", port))
    name = host.encode() if host.isascii() else host  # of a text, Python loads its tables of foreign scripts first
    found = socket.getaddrinfo(name, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    # The first address only: a name with two of them, and port 0, would mean two ports.
    chosen = min(found, key=lambda info: info[0] != socket.AF_INET)
    return _open(chosen[0], chosen[4])


def _open(family: int, name: str | tuple[str | int, ...] | tuple[int, bytes], *, dual: bool = False) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        listening.bind(name)  # the file of a Unix socket gets mode 0777 less the umask
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
