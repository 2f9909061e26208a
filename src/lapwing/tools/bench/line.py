"""One raw connection to an nsqd: the handshake in blocking calls, then a bare non-blocking socket."""

import json
import os
import socket
import struct
from typing import Final

from lapwing.client.address import Address
from lapwing.errors import LapwingError
from lapwing.wire.nsq import commands, frames

_HEAD: Final = struct.Struct(">II")
_HEARTBEAT: Final = 60_000  # ms
_PATIENCE: Final = 10.0  # seconds for each step of the handshake


class BenchError(LapwingError):
    """The load cannot be run; the text has the address and what to do."""


class Wire:
    """A socket to a server; it never blocks once the load begins."""

    def __init__(self, address: Address, what: str = "nsqd", flag: str = "--nsqd-tcp-address") -> None:
        self.address = address
        self.sock = self._connect(what, flag)

    def _connect(self, what: str, flag: str) -> socket.socket:
        address = self.address
        try:
            if address.unix:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(_PATIENCE)
                sock.connect(address.host)
                return sock
            sock = socket.create_connection((address.host, address.port), _PATIENCE)
        except OSError as error:
            raise BenchError(f"no {what} at {address}: {error.strerror or error}; "
                             f"start one (`nsqd` or `lapwing up`), or name another with {flag}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def hung_up(self) -> BenchError:
        """Return the error for a closed connection."""
        return BenchError(f"{self.address} closed the connection under load; see its log")


class Line(Wire):
    """A connection after IDENTIFY and maybe SUB; heartbeats are off, or rare for consumers, which need them."""

    def __init__(
        self, address: Address, *, subscribe: tuple[str, str] | None = None, headers: bool = False
    ) -> None:
        super().__init__(address)
        identity = {"client_id": "lapwing-bench", "user_agent": "lapwing-bench", "feature_negotiation": True,
                    "heartbeat_interval": -1 if subscribe is None else _HEARTBEAT, "headers": headers}
        try:
            self.sock.sendall(commands.MAGIC + commands.Identify(json.dumps(identity).encode()).encode())
            self._authenticate(self._answer("IDENTIFY"))
            if subscribe is not None:
                self.sock.sendall(commands.Sub(*subscribe).encode())
                self._answer("SUB")
        except BenchError:
            self.close()
            raise
        self.sock.setblocking(False)

    def _authenticate(self, answer: bytes) -> None:
        """Send the secret of `LAPWING_AUTH_SECRET` if the server requires AUTH."""
        try:
            required = bool(json.loads(answer).get("auth_required"))
        except (ValueError, AttributeError):  # a bare OK
            required = False
        if required:
            secret = os.environ.get("LAPWING_AUTH_SECRET", "")
            if not secret:
                raise BenchError(f"{self.address} requires AUTH: set LAPWING_AUTH_SECRET")
            self.sock.sendall(commands.Auth(secret.encode()).encode())
            self._answer("AUTH")

    def _answer(self, step: str) -> bytes:
        """Return the payload that answers a step of the handshake."""
        size, kind = _HEAD.unpack(self._exactly(8, step))
        if not 4 <= size < 1 << 20:
            raise BenchError(f"{self.address} does not speak NSQ's protocol: is this its TCP port (default 4150)?")
        payload = self._exactly(size - 4, step)
        if kind == frames.ERROR:
            raise BenchError(f"{self.address} refused {step}: {payload.decode('utf-8', 'replace')}")
        return payload

    def _exactly(self, count: int, step: str) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.sock.recv(count - len(data))
            except OSError as error:
                raise BenchError(f"{self.address} did not answer {step}: {error}") from error
            if not more:
                raise BenchError(f"{self.address} closed the connection instead of answering {step}; see its log")
            data += more
        return data


def other_frame(line: Wire, data: bytes | bytearray | memoryview, at: int, stop: int) -> int:
    """Skip a frame that is not a message; return its end, or `at` if it is incomplete. Raises at an error frame."""
    if stop - at < 8:
        return at
    size, kind = _HEAD.unpack_from(data, at)
    if kind not in (frames.RESPONSE, frames.ERROR, frames.MESSAGE, frames.HEADED) or not 4 <= size < 1 << 30:
        raise BenchError(f"{line.address} sent no frame: {bytes(data[at : at + 16])!r}")
    if stop - at < 4 + size or kind in (frames.MESSAGE, frames.HEADED):
        return at
    if kind == frames.ERROR:
        payload = bytes(data[at + 8 : at + 4 + size])
        raise BenchError(f"{line.address} answered: {payload.decode('utf-8', 'replace')}")
    return int(at + 4 + size)
