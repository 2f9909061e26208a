"""A connection to an nsqd for an event loop of somebody else: it waits when it writes, and never when it reads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

from lapwing.client.address import Address
from lapwing.client.errors import ConnectionLost, PublishFailed, Refused, Unreachable
from lapwing.client.options import ClientOptions
from lapwing.errors import ProtocolError
from lapwing.wire.nsq.commands import MAGIC, Auth, Identify
from lapwing.wire.nsq.connection import ClientConnection, ErrorFrame, Frame, MessageRow, Messages, Response

log: Final = logging.getLogger("lapwing.celery")

_HEARTBEAT: Final = b"_heartbeat_"
_NOP: Final = b"NOP\n"
_READ_SIZE: Final = 1 << 16
_FRESH: Final = 0.05  # s after an answer in which a connection counts as alive
_OWED: Final = 50  # answers after which those that have arrived are read
_Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)  # nothing to create for a short wait
_WOULD_BLOCK: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def wait(sockets: Iterable[socket.socket | NsqSocket], seconds: float, event: int = selectors.EVENT_READ) -> bool:
    """Wait until one of these can be read, or written, and return whether one can; any number of files may be open."""
    with _Selector() as selector:
        for each in sockets:
            selector.register(each, event)
        return bool(selector.select(max(0.0, seconds)))


class NsqSocket:
    """One negotiated connection. Its methods may be called by several threads, but by no process that was forked."""

    def __init__(self, address: Address, options: ClientOptions, **identity: Any) -> None:
        self.address = address
        self.received_at = time.monotonic()
        self._options = options
        self._wire = ClientConnection()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._lost = ""
        self._owed = 0  # answers that nobody waits for
        self._tls = False
        try:
            self._socket = self._dialled()
        except OSError as error:
            raise Unreachable(str(address), error.strerror or str(error)) from error
        self._selector = _Selector()
        self._selector.register(self._socket.fileno(), selectors.EVENT_READ)
        try:
            self._negotiate(identity)
        except BaseException:
            self._socket.close()
            raise

    def _dialled(self) -> socket.socket:
        where = self.address
        if where.unix:
            found = socket.socket(socket.AF_UNIX)
            found.settimeout(self._options.dial_timeout)
            found.connect(where.host)
        else:
            found = socket.create_connection((where.host, where.port), self._options.dial_timeout)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def _negotiate(self, identity: dict[str, Any]) -> None:
        options = self._options
        self._socket.setblocking(False)
        self.send(MAGIC + Identify(json.dumps({**options.identity(), "reject": True, **identity}).encode()).encode())
        granted = json.loads(self._answer())
        if not granted.get("headers") or not granted.get("reject"):
            raise Refused(str(self.address), "a plain NSQ server lacks headers and dead letters: use lapwing's nsqd")
        if options.tls:
            if not granted.get("tls_v1"):
                raise Refused(str(self.address), "nsqd offers no TLS: give it --tls-cert and --tls-key")
            self._encrypt()
        if granted.get("auth_required"):
            if not options.auth_secret:
                raise Refused(str(self.address), "nsqd wants AUTH: give its secret as the password of the URL")
            self.send(Auth(options.auth_secret.encode()).encode())
            self._answer()

    def _encrypt(self) -> None:
        self._socket.settimeout(self._options.dial_timeout)
        context = self._options.tls_context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        except OSError as error:  # ssl.SSLError is one
            raise Refused(str(self.address), f"TLS handshake failed: {error}") from error
        self._socket.setblocking(False)
        self._tls = True
        self._answer()

    def _answer(self) -> bytes:
        try:
            return self.response(self._options.read_timeout)
        except PublishFailed as error:
            raise Refused(str(self.address), error.reason) from error

    # -- writing

    def send(self, data: bytes) -> None:
        """Write all of `data`. Raises `ConnectionLost`; in a process that was forked, nothing happens."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            view = memoryview(data)
            deadline = time.monotonic() + self._options.write_timeout
            while view and not self._lost:
                try:
                    view = view[self._socket.send(view) :]
                except _WOULD_BLOCK:
                    left = deadline - time.monotonic()
                    if left <= 0 or not wait([self._socket], left, selectors.EVENT_WRITE):
                        self._lost = "nsqd takes no bytes"
                except OSError as error:
                    self._lost = f"connection lost: {error.strerror or error}"
            if self._lost:
                raise ConnectionLost(str(self.address), self._lost)

    def post(self, data: bytes) -> None:
        """Write a command whose answer nobody waits for. A refusal is logged, and ends the connection."""
        self.send(data)
        self._owed += 1
        if self._owed >= _OWED:
            self.frames()

    def settle(self, timeout: float) -> None:
        """Wait for the answers that nobody waited for: who closes earlier may take back what nsqd has not read."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(ConnectionLost):
            while self._owed and os.getpid() == self._pid and (left := deadline - time.monotonic()) > 0:
                wait([self._socket], left)
                self.frames()

    def stay(self) -> None:
        """Answer heartbeats that may be waiting, for a process that does not get to read them."""
        self.send(_NOP)

    # -- reading

    def fileno(self) -> int:
        """Return the descriptor that an event loop watches."""
        return self._socket.fileno()

    def frames(self) -> list[Frame]:
        """Return what has arrived; heartbeats are answered. Raises `ConnectionLost` when there will be no more."""
        found: list[Frame] = []
        while received := self._received():
            try:
                found += self._wire.frames()
            except ProtocolError as error:
                self._lost = f"nsqd sent something that is not its protocol: {error.text or error.code}"
            if received < _READ_SIZE and not self._tls:
                break  # there was no more; of TLS there may be, as it is read by its records
        if any(type(frame) is Response and frame.payload == _HEARTBEAT for frame in found):
            self.send(_NOP)
            found = [frame for frame in found if not (type(frame) is Response and frame.payload == _HEARTBEAT)]
        if self._owed:
            answers, found = found[: self._owed], found[self._owed :]
            self._owed -= len(answers)
            for answer in answers:
                if type(answer) is ErrorFrame:
                    self._lost = f"nsqd refuses a message that was not confirmed: {_text(answer)}"
                    log.error("%s: %s", self.address, self._lost)
        if self._lost and not found:
            raise ConnectionLost(str(self.address), self._lost)
        return found

    def _received(self) -> int:
        """Read once, and return how many bytes there were."""
        if self._lost:
            return 0
        try:
            data = self._socket.recv(_READ_SIZE)
        except _WOULD_BLOCK:
            return 0
        except OSError as error:
            self._lost = f"connection lost: {error.strerror or error}"
            return 0
        if not data:
            self._lost = "nsqd closed the connection"
            return 0
        self.received_at = time.monotonic()
        self._wire.receive(data)
        return len(data)

    def response(self, timeout: float) -> bytes:
        """Wait for the answer to a command, and return it. Raises `PublishFailed` for an error, or `ConnectionLost`."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if left <= 0 and not self._lost:
                self._lost = f"no answer within {timeout:g} s"
            if not (self._lost or self._tls):
                self._selector.select(left)  # before the first look: an answer takes its time
            for frame in self.frames():
                if type(frame) is Response:
                    return frame.payload
                if type(frame) is ErrorFrame:
                    raise PublishFailed(str(self.address), _text(frame))
            if self._tls:
                wait([self._socket], left)

    @property
    def alive(self) -> bool:
        """Whether the connection can still be used by this process, as far as one can know without waiting."""
        if os.getpid() != self._pid:
            return False
        if time.monotonic() - self.received_at < _FRESH:
            return not self._lost
        try:
            self.frames()
        except ConnectionLost:
            return False
        return not self._lost

    def close(self) -> None:
        """Close it; a forked process closes its copy alone."""
        self._lost = self._lost or "closed by us"
        self._selector.close()
        self._socket.close()


def rows(frames: list[Frame], about: str) -> list[MessageRow]:
    """Return the messages among frames; refusals, which are of answers to messages that are gone, are logged."""
    found: list[MessageRow] = []
    for frame in frames:
        if type(frame) is Messages:
            found += frame.messages
        elif type(frame) is ErrorFrame:
            log.warning("[%s] nsqd refuses: %s", about, _text(frame))
    return found


def _text(frame: ErrorFrame) -> str:
    return frame.payload.decode("utf-8", "replace")
