"""One connection of an HTTP client: its requests are carried out, and their answers leave in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from lapwing import durations
from lapwing.net.server.answers import INTERNAL_ERROR, Answer, Later, StreamedAnswer, plain
from lapwing.net.server.incoming import Incoming
from lapwing.net.server.requests import Caller, Head, Request
from lapwing.net.sockets.listen import far_end, is_near
from lapwing.net.sockets.tls import common_name

if TYPE_CHECKING:
    from lapwing.net.server.http import HttpServer

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_PIPELINED: Final = 128  # answers awaited on one connection before it is read no further
_LARGE: Final = 32768  # bytes of a piece that is not worth copying
_UNREAD: Final = 1 << 20  # bytes of answers that wait to be sent before no further request is carried out
_LINGER: Final = 2.0  # seconds in which a refused client may finish sending: a reset would discard its answer


class _Slot:
    """The place of one answer in a connection's order."""

    __slots__ = ("later", "raw", "request")

    def __init__(self, request: Request | None, later: Later | None, raw: bytes = b"") -> None:
        self.request = request
        self.later = later  # none yet: the request waits to be carried out
        self.raw = raw  # an interim answer, sent as it stands


class HttpConnection(asyncio.Protocol):
    """One client. Sync routes are answered within `data_received`, with one write for all of them."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._incoming = Incoming(server, self)
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._caller = Caller()
        self._output: list[bytes] = []
        self._unsent = 0  # bytes in there
        self._in_turn = False  # inside data_received: output is gathered
        self._slots: deque[_Slot] = deque()  # answers not yet sent, in order
        self._queue: deque[_Slot] = deque()  # what came after a request whose coroutine is not done
        self._task: asyncio.Task[None] | None = None  # that coroutine
        self._streaming: asyncio.Task[None] | None = None  # the long answer being sent, that of the first slot
        self._reading = True
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._stalled = False  # the client reads its answers too slowly
        self._stalled_since = 0.0
        self.ended = False  # nothing further is taken from this client
        self._closing = False  # the last answer is out
        self._closed = False  # the transport is closed
        self._linger = False  # bytes of a refused request may still be on their way
        self._eof = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client, or refuse it when there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        host, address = far_end(transport)
        self._caller = Caller(
            address,
            host,
            near=is_near(transport),
            tls=transport.get_extra_info("ssl_object") is not None,
            common_name=common_name(transport.get_extra_info("peercert")),
        )
        self._transport.set_write_buffer_limits(high=262144)
        if not self._server.joined(self, self._loop):
            self.ended = self._closing = self._linger = True
            self._put(plain("too many connections\n", 503).render(close=True))
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the client and its requests."""
        self._server.left(self)
        self.ended = self._closing = True
        self._slots.clear()
        self._queue.clear()
        self._incoming.part()
        self._can_write.set()
        for task in (self._task, self._streaming):
            if task is not None:
                task.cancel()

    def data_received(self, data: bytes) -> None:
        """Receive requests, whole or in pieces."""
        if self.ended:
            return
        self._in_turn = True
        self._incoming.take(data)
        self._in_turn = False
        if self._output or self._closing:
            self._flush()
        if self._queue:
            self._go_on()
            self._pause()
        elif len(self._slots) >= _PIPELINED:
            self._pause()

    def eof_received(self) -> bool:
        """Send what is left to answer: the client sends no more. TLS cannot be closed on one side only."""
        self._eof = True
        head = self._incoming.head
        if head is not None and not self.ended:
            self.ended = True
            request = Request(head, b"".join(self._incoming.body), self._caller, self._started())
            cut_off = head.route.cut_off
            try:
                answer = cut_off if isinstance(cut_off, Answer) else cut_off(request)
            except Exception as error:
                answer = self._server.failed(request.head, error)
            self._in_order(request, answer)
        self.finish()
        return not self._closing and not self._caller.tls

    def pause_writing(self) -> None:
        """Read no further requests and stream no further pieces: the client reads its answers too slowly."""
        self._can_write.clear()
        self._stalled = True
        self._stalled_since = self._server.now
        self._pause()

    def resume_writing(self) -> None:
        """Read requests again: the client has read its answers."""
        self._can_write.set()
        self._stalled = False
        self._go_on()
        self._resume()

    # requests to answers

    def _started(self) -> float:
        return 0.0 if self._server.log is None else time.perf_counter()

    def carry_out(self, head: Head, body: bytes) -> None:
        """Answer a whole request, or queue it behind a coroutine, a stream or unread answers."""
        request = Request(head, body, self._caller, self._started())
        if head.close:
            self.ended = True
        if self._queue or self._is_busy():
            self._queue.append(_Slot(request, None))
        else:
            self._start(request)

    def _start(self, request: Request) -> None:
        try:
            reply = request.head.route.respond(request)
        except Exception as error:
            reply = self._server.failed(request.head, error)
        if type(reply) is Answer and not self._slots:
            self._send(request, reply)
        elif isinstance(reply, Later):
            reply.on_complete = self._advance
            self._slots.append(_Slot(request, reply))
            if reply.answer is not None:
                self._send_ready()
        elif isinstance(reply, Answer):
            self._slots.append(_Slot(request, Later(reply)))
            self._send_ready()
        else:
            later = Later()
            self._slots.append(_Slot(request, later))
            self._task = self._loop.create_task(self._wait_for(request, reply, later))

    async def _wait_for(self, request: Request, reply: Awaitable[Answer], later: Later) -> None:
        try:
            answer = await reply
        except Exception as error:
            answer = self._server.failed(request.head, error)
        self._task = None
        later.complete(answer)
        self._advance()

    def _in_order(self, request: Request | None, answer: Answer, raw: bytes = b"") -> None:
        """Send `answer` (or just `raw`, without a request) when all before it are sent."""
        slot = _Slot(request, Later(answer), raw)
        (self._queue if self._queue else self._slots).append(slot)
        self._advance()

    def encourage(self) -> None:
        """Send `100 Continue`."""
        self._in_order(None, INTERNAL_ERROR, _CONTINUE)

    def refuse(self, answer: Answer, head: Head | None = None) -> None:
        """Answer at once and close: the rest of the request is not read."""
        self.ended = self._linger = True
        self._incoming.forget()
        if head is None:
            self._in_order(None, answer, answer.render(close=True))
        else:
            self._in_order(Request(head, b"", self._caller, self._started()), answer)

    def _advance(self) -> None:
        """Send what is complete, up to the first answer that is not; then carry out what waited."""
        self._send_ready()
        while self._queue and not self._is_busy():
            slot = self._queue.popleft()
            if slot.later is not None:
                self._slots.append(slot)
            elif slot.request is not None:
                self._start(slot.request)
            self._send_ready()
        if self.ended and not self._slots and not self._queue:
            self._closing = True
        if not self._in_turn:
            self._flush()
            if self._queue:
                self._go_on()
            if not self._reading:
                self._resume()

    def _is_busy(self) -> bool:
        """Return whether no further request is carried out: for the one at hand, or for answers that wait."""
        return self._task is not None or self._streaming is not None or self._unsent > _UNREAD or self._stalled

    def _go_on(self) -> None:
        """Carry out queued requests in the next turn, if nothing but the size of the answers held them back."""
        if self._queue and not self._is_busy():
            self._loop.call_soon(self._advance)

    def _send_ready(self) -> None:
        slots = self._slots
        while slots and self._streaming is None:
            slot = slots[0]
            answer = None if slot.later is None else slot.later.answer
            if answer is None:
                return
            if slot.request is None:
                slots.popleft()
                self._put(slot.raw)
            elif isinstance(answer, StreamedAnswer):
                self._streaming = self._loop.create_task(self._stream(slot.request, answer))
            else:
                slots.popleft()
                self._send(slot.request, answer)

    def _send(self, request: Request, answer: Answer) -> None:
        """Send the next answer; its slot is gone already."""
        head = request.head
        server = self._server
        server.served += 1
        if answer.close:
            self._end()
        if self.ended and not self._slots and not self._queue:
            self._closing = True
            data = answer.render(old=head.old, close=True, bodiless=head.method == "HEAD")
        elif head.method == "HEAD":
            data = answer.render(bodiless=True)
        else:
            data = answer.render()
        self._output.append(data)
        self._unsent += len(data)
        if server.log is not None and head.route.logged:
            self._log(request, answer)

    def _end(self) -> None:
        """Make the answer at hand the last one."""
        self.ended = True
        self._slots.clear()
        self._queue.clear()

    def _log(self, request: Request, answer: Answer) -> None:
        log = self._server.log
        if log is not None:
            elapsed = durations.show(int((time.perf_counter() - request.started) * 1e9))
            asked = f"{request.head.method} {request.head.target.decode('latin-1')}"
            log(f"{answer.status} {asked} ({request.caller.address}) {elapsed}")

    async def _stream(self, request: Request, answer: StreamedAnswer) -> None:
        old = request.head.old
        if answer.close:
            self._end()
        close = self.ended and len(self._slots) <= 1 and not self._queue
        self._flush()
        write = self._transport.write
        write(answer.head(old=old, close=close) + (b"\r\n" if old else b"Transfer-Encoding: chunked\r\n\r\n"))
        pieces = answer.pieces
        try:
            if pieces is not None and request.head.method != "HEAD":
                async for piece in pieces:
                    if len(piece) > _LARGE and not old:
                        # without a copy; `writelines` of asyncio in Python 3.12 and 3.13.0 never asks for a pause
                        for part in (b"%x\r\n" % len(piece), piece, b"\r\n"):
                            write(part)
                    elif piece:
                        write(piece if old else b"%x\r\n%b\r\n" % (len(piece), bytes(piece)))
                    await self._can_write.wait()
            if not old:
                write(b"0\r\n\r\n")
        except Exception as error:
            self._server.failed(request.head, error)
            self._transport.abort()
            return
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        self._server.served += 1
        if self._slots:
            self._slots.popleft()
        self._streaming = None
        if close:
            self._end()
        if request.head.route.logged:
            self._log(request, answer)
        self._advance()

    def _put(self, data: bytes) -> None:
        self._output.append(data)
        self._unsent += len(data)

    def _flush(self) -> None:
        if self._output:
            output, self._output = self._output, []
            self._unsent = 0
            if not self._transport.is_closing():
                self._transport.write(output[0] if len(output) == 1 else b"".join(output))
        if self._closing and not self._closed:
            self._closed = True
            if self._linger and not self._eof:
                with suppress(OSError, RuntimeError):  # the client may be gone already
                    if self._transport.can_write_eof():
                        self._transport.write_eof()
                self._loop.call_later(_LINGER, self._transport.close)
            else:
                self._transport.close()

    # limits of time

    def check_deadline(self, now: float) -> None:
        """Close the connection of a client that is too slow; called about once a second."""
        limits = self._server.limits
        incoming = self._incoming
        waited = now - incoming.since
        if not self._can_write.is_set():
            if now - self._stalled_since > limits.stall_seconds:
                self.abort()
        elif self.ended or self._slots or self._queue:
            return
        elif not incoming.partial:
            if waited > limits.idle_seconds:
                self.finish()
        elif waited > (limits.head_seconds if incoming.head is None else limits.body_seconds):
            self.refuse(plain("408 Request Timeout", 408))

    def finish(self) -> None:
        """Take no further request; close when the answers that are awaited have left."""
        self.ended = True
        self._advance()

    def abort(self) -> None:
        self._transport.abort()

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if (
            not self._reading
            and self._can_write.is_set()
            and not self._queue
            and len(self._slots) < _PIPELINED
            and not self._transport.is_closing()
        ):
            self._reading = True
            self._transport.resume_reading()
