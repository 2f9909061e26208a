"""The connections of nsqds: bytes between transports and sessions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from lapwing.lookup.metrics import LookupCounts
from lapwing.lookup.session import LookupSession
from lapwing.net.sockets.listen import far_end

_KEEPALIVE: Final = 15  # seconds; a host that died without closing is noticed within minutes
_HIGH_WATER: Final = 65536  # bytes of answers that a peer may leave unread before no further command of it is read
_SLICE: Final = 16384  # bytes of commands that are carried out before other peers get their turn


class PeerConnections:
    """All connected nsqds. `protocol` makes the next one's."""

    def __init__(
        self,
        session: Callable[[str], LookupSession],
        clock: Callable[[], int],
        counts: LookupCounts,
        *,
        limit: int = 0,
        timeout: int = 0,
    ) -> None:
        """`session` returns a session for a remote address; `limit` counts connections, `timeout` is ns; 0: none."""
        self.new_session = session
        self.clock = clock
        self.counts = counts
        self.limit = limit
        self.connected: set[PeerConnection] = set()
        self._timeout = timeout

    def protocol(self) -> PeerConnection:
        """Return a protocol for one more connection."""
        return PeerConnection(self)

    def drop_silent(self) -> None:
        """Disconnect peers that sent nothing for too long."""
        if self._timeout:
            oldest = self.clock() - self._timeout
            for peer in [peer for peer in self.connected if peer.received_at < oldest]:
                peer.abort()

    def allow(self, duration: int) -> None:
        """Give every peer `duration` ns more before it counts as silent."""
        for peer in self.connected:
            peer.received_at += duration

    def close(self) -> None:
        """Disconnect every peer."""
        for peer in list(self.connected):
            peer.abort()


class PeerConnection(asyncio.Protocol):
    """The asyncio side of one peer. What comes faster than it is carried out waits here, or outside, unread."""

    __slots__ = ("_answers_unread", "_peers", "_session", "_transport", "_waiting", "received_at")

    def __init__(self, peers: PeerConnections) -> None:
        self._peers = peers
        self._waiting = b""  # what was received and is not carried out yet
        self._answers_unread = False  # too many of them
        self._session: LookupSession
        self._transport: asyncio.Transport
        self.received_at = 0  # ns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the peer, unless there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._session = self._peers.new_session(far_end(transport)[1])
        counts = self._peers.counts
        if 0 < self._peers.limit <= len(self._peers.connected):
            counts.refused += 1
            self._session.over = True
            self._transport.abort()
            return
        counts.peers_total += 1
        self._peers.connected.add(self)
        counts.peers = len(self._peers.connected)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.received_at = self._peers.clock()
        connection = transport.get_extra_info("socket")
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE)

    def data_received(self, data: bytes) -> None:
        """Answer every whole command, a slice of them per turn of the loop: an nsqd may register 100,000 topics."""
        self.received_at = self._peers.clock()
        if self._waiting or len(data) > _SLICE:
            if not self._waiting:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._carry_on)
            self._waiting += data
        else:
            self._carry_out(data)

    def _carry_on(self) -> None:
        """Carry out the next slice of what waits, and read on when that was all."""
        if self._answers_unread or not self._waiting:
            return
        data, self._waiting = self._waiting[:_SLICE], self._waiting[_SLICE:]
        self._carry_out(data)
        if self._session.over:
            self._waiting = b""
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._carry_on)
        elif not self._answers_unread and not self._transport.is_closing():
            self._transport.resume_reading()

    def _carry_out(self, data: bytes) -> None:
        session = self._session
        before = session.answered
        answer = session.receive(data, now=self.received_at)
        self._peers.counts.answers += session.answered - before
        if answer:
            self._transport.write(answer)
        if session.over:
            self._transport.close()

    def eof_received(self) -> None:
        """Answer an unfinished command, and close."""
        answer = self._session.eof()
        if answer:
            self._transport.write(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the peer and its producer."""
        self._waiting = b""
        self._session.close()
        self._peers.connected.discard(self)
        self._peers.counts.peers = len(self._peers.connected)

    def pause_writing(self) -> None:
        """Stop reading: the peer sends commands faster than it reads answers."""
        self._answers_unread = True
        if not self._waiting:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Carry out and read commands again."""
        self._answers_unread = False
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._carry_on)
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Disconnect at once."""
        self._transport.abort()
