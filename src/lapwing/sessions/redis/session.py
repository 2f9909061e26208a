"""One conversation with a Redis client: one command, one handler, one reply, in order.

A handler is a function of the session, the words and the time; it returns the reply, or raises `ErrorReply`. Replies
are gathered in `replies` and leave at the end of the turn, after the log write that they depend on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapwing.errors import LapwingError, LogError, ProtocolError
from lapwing.sessions.redis import authorization as redis_authorization
from lapwing.sessions.redis import handlers as redis_handlers
from lapwing.sessions.redis.client_state import ClientState
from lapwing.sessions.redis.repeated import RepeatedRequests
from lapwing.sessions.redis.replies import SMALL, AddedSlot, Reply, Silence, Streamed, write_failed
from lapwing.sessions.replies import Slot
from lapwing.wire.resp import commands, errors, replies
from lapwing.wire.resp.commands import CommandSpec
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.requests import Request, XaddRun, split_run

_LONGEST_QUEUE: Final = 16  # times --max-body-size: what one client may queue since MULTI
_ALL_QUEUES: Final = 4 * _LONGEST_QUEUE  # times --max-body-size: what all clients may
_REPEATED: Final = frozenset({"xreadgroup", "xack"})
_NEVER_QUEUED: Final = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})  # not queued by MULTI


class RedisSession(ClientState):
    """A connection that carries out the requests of its client, one after the other."""

    def handle(self, request: Request, *, now: int) -> None:
        self.peer.active = now
        if type(request) is list:
            self._command(request, now)
        elif type(request) is XaddRun:
            if not self.add_run(request, now=now):
                for words in split_run(request.block):
                    self._command(words, now)
        else:
            self.context.counts.commands += 1
            self._answer(replies.error(errors.TOO_LONG))

    def add_run(self, run: XaddRun, *, now: int) -> bool:
        """Add the entries of a run in one call; return False if that is not possible, and nothing was done.

        The stream must be there, and nothing about it, the connection or the client may be special.
        """
        if self.queue is not None or self.silent or self.silent_next or self.authenticate is not None:
            return False
        stream = self.context.find(run.key, self.database)
        if stream is None:
            return False
        slot = AddedSlot(self.replies)
        try:
            added = stream.add_run(run.block, slot, now=now)
        except LapwingError:
            return False  # each command gets its own error
        if added is None:
            return False
        slot.expect(*added)
        self.replies.reserve(slot)
        if not self.database:
            self.context.let_in(run.key, stream)
        peer = self.peer
        peer.active, peer.command = now, "xadd"
        self.context.counts.commands += run.count
        return True

    def _command(self, words: list[bytes], now: int) -> None:
        self.context.counts.commands += 1
        try:
            spec = commands.find(words)
            if self.authenticate is not None:
                self._check_permission(spec, words)
            if self.queue is not None and spec.name not in _NEVER_QUEUED:
                self._enqueue(spec, words)
                self._answer(replies.QUEUED)
                return
        except ErrorReply as error:
            self.queue_failed = True
            self._answer(self.failed(error))
            return
        self.peer.command = spec.name
        self.sink = Silence() if self.silent or self.silent_next else self.replies
        self._answer(self.carry_out(spec, words, now))
        if spec.name in _REPEATED and self.plain:
            self._note(spec, words)

    def _note(self, spec: CommandSpec, words: list[bytes]) -> None:
        """Remember a command that consumers send again and again."""
        repeated = self.peer.repeated
        if repeated is None:
            repeated = self.peer.repeated = RepeatedRequests(self)
        if spec.name == "xack":
            repeated.note_ack(words)
        else:
            repeated.note_read(words)

    def _check_permission(self, spec: CommandSpec, words: list[bytes]) -> None:
        if self.grants is not None:
            redis_authorization.check(self.grants, spec, words, self.database)
        elif "no_auth" not in spec.flags:
            raise ErrorReply(errors.NO_AUTH)

    def carry_out(self, spec: CommandSpec, words: list[bytes], now: int) -> Reply:
        try:
            if self.in_transaction and self.grants is not None:  # a SELECT before it may have changed what it means
                redis_authorization.check(self.grants, spec, words, self.database)
            return redis_handlers.HANDLERS[spec.name](self, words, now)
        except LapwingError as error:
            return self.failed(error)

    def failed(self, error: LapwingError) -> bytes:
        self.context.counts.errors += 1
        if isinstance(error, ErrorReply):
            return replies.error(error)
        return replies.error(write_failed(error) if isinstance(error, LogError) else f"ERR {error}")

    def _enqueue(self, spec: CommandSpec, words: list[bytes]) -> None:
        assert self.queue is not None
        size = sum(map(len, words)) + 64 * len(words)
        most = self.broker.options.max_body_size
        if self.queue_size + size > _LONGEST_QUEUE * most:
            raise ErrorReply("ERR the transaction is too long: send its commands in several ones")
        if self.context.queued + size > _ALL_QUEUES * most:
            raise ErrorReply("ERR the transactions of all clients are too long: try again later")
        self.queue_size += size
        self.context.queued += size
        self.queue.append((spec, words))

    def _answer(self, reply: Reply) -> None:
        if self.silent or self.silent_next:
            self.silent_next = max(self.silent_next - 1, 0)
            return
        if type(reply) is bytes:
            self.replies.add(reply)
        elif isinstance(reply, Slot):
            if reply.answer is None:
                self.replies.reserve(reply)
            else:
                self.replies.add(reply.answer)
        elif isinstance(reply, Streamed):
            self._stream(reply)

    def _stream(self, reply: Streamed) -> None:
        """Send a reply that turns out to be small at once, another one as the socket takes it."""
        parts: list[bytes] = []
        size = 0
        for piece in reply.pieces:
            parts.append(piece)
            size += len(piece)
            if size > SMALL:
                self.streaming = Streamed(_again(b"".join(parts), reply))
                return
        self.replies.add(b"".join(parts))

    def next_piece(self) -> bytes | None:
        """Return more of a big reply once the replies before it are sent; None if there is no more now."""
        if self.streaming is None or self.replies.waiting:
            return None
        piece = next(self.streaming.pieces, None)
        if piece is None:
            self.streaming = None
            self._on_free()
        return piece

    def refuse(self, error: ProtocolError) -> None:
        """Answer an error that ends the conversation."""
        self.replies.add(replies.error(str(error)))
        self.doomed = True


def _again(first: bytes, rest: Streamed) -> Iterator[bytes]:
    yield first
    yield from rest.pieces
