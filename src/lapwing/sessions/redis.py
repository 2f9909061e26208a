"""One conversation with a Redis client: one command, one handler, one reply, in order.

A handler is a function of the session, the words and the time; it returns the reply, or raises `ErrorReply`. Replies
are gathered in `replies` and leave at the end of the turn, after the log write that they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapwing.errors import LapwingError, LogError, ProtocolError
from lapwing.sessions import redis_authorization, redis_handlers
from lapwing.sessions.redis_context import Grants, RedisContext
from lapwing.sessions.redis_replies import SMALL, AddedSlot, Reply, Silence, Streamed, Transaction, write_failed
from lapwing.sessions.replies import Replies, Slot, nothing
from lapwing.wire.resp import commands, errors, replies
from lapwing.wire.resp.commands import CommandSpec
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.requests import Oversized, Request, XaddRun, split_run

if TYPE_CHECKING:
    from lapwing.broker.channel import Channel

_LONGEST_QUEUE: Final = 16  # times --max-body-size: what one client may queue since MULTI
_ALL_QUEUES: Final = 4 * _LONGEST_QUEUE  # times --max-body-size: what all clients may
_FREQUENT: Final = {
    spelling: commands.COMMANDS[name] for name in (b"xreadgroup", b"xack") for spelling in (name, name.upper())
}  # that `carry_out_alone` takes: they create neither topics nor channels
_AT_ONCE: Final = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})  # not queued by MULTI


@dataclass(slots=True)
class Peer:
    """The other end of a connection."""

    address: str = ""
    local_address: str = ""
    name: bytes = b""
    library: bytes = b""
    library_version: bytes = b""
    connected: int = 0  # ns
    active: int = 0  # ns
    command: str = ""


@dataclass(slots=True)
class Wait:
    """A command that waits: for entries, for a time, or for an authorisation."""

    slot: Slot
    command: str
    deadline: int | None = None  # ns
    on_timeout: bytes = b""  # the reply then
    attempt: Callable[[int], bytes | None] = lambda now: None  # the reply, if there is one now
    cancel: Callable[[], None] = lambda: None
    look_at: int | None = None  # ns when `attempt` may succeed although nothing was added
    channels: Sequence[Channel] = ()  # whose pending entries it could claim


class RedisSession:
    """The broker's side of one connection.

    `on_ready` is called when there is something to send that no command of this turn asked for, `on_free` when a
    command that waited is answered and the next one can be handled, `hang_up` closes the connection.
    """

    def __init__(
        self,
        context: RedisContext,
        *,
        on_ready: Callable[[], None],
        on_free: Callable[[], None],
        hang_up: Callable[[], None],
        authenticate: Callable[[bytes], None] | None = None,
    ) -> None:
        self.context = context
        self.broker = context.broker
        self.replies = Replies(on_ready)
        self.peer = Peer()
        self.protocol = 2
        self.database = 0
        self.doomed = False  # the connection ends when the replies are sent
        self.authenticate = authenticate  # None: no client needs to
        self.grants: Grants | None = None
        self.user = "default"
        self.granted: Callable[[], bytes] = lambda: replies.OK  # the reply to AUTH or HELLO once it is permitted
        self.wait: Wait | None = None
        self.streaming: Streamed | None = None
        self.silent = False  # CLIENT REPLY OFF
        self.silent_next = 0  # commands that CLIENT REPLY SKIP leaves without a reply
        self.queue: list[tuple[CommandSpec, list[bytes]]] | None = None  # since MULTI
        self.queue_failed = False
        self.queue_size = 0
        self.watched: dict[tuple[int, bytes], object] = {}
        self.in_transaction = False
        self.sink: Replies = self.replies  # where slots of the command at hand report to
        self.hang_up = hang_up
        self._on_free = on_free
        self.id = context.join(self)

    @property
    def authenticated(self) -> bool:
        """Whether the client may send commands."""
        return self.authenticate is None or self.grants is not None

    @property
    def busy(self) -> bool:
        """Whether the next command has to wait."""
        return self.wait is not None or self.streaming is not None

    # --- commands --------------------------------------------------------------------------------------------------

    def handle(self, request: Request, *, now: int) -> None:
        """Carry out one request."""
        self.peer.active = now
        if self.context.gathered:
            self.context.publish_gathered(now)
        if type(request) is XaddRun:
            if not self.add_run(request, now=now):
                self.carry_out_each(request.block, now)
        elif isinstance(request, Oversized):
            self.context.counts.commands += 1
            self._answer(replies.error(errors.TOO_LONG))
        else:
            self._command(request, now)  # type: ignore[arg-type]  # mypy does not narrow by `type() is`

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
        peer = self.peer
        peer.active, peer.command = now, "xadd"
        self.context.counts.commands += run.count
        return True

    @property
    def plain(self) -> bool:
        """Whether plain XADDs of the client need no look at the state of its connection."""
        special = self.queue is not None or self.silent or self.silent_next or self.authenticate is not None
        return not (special or self.doomed or self.database or self.busy)

    def carry_out_alone(self, words: list[bytes], *, now: int) -> bool:
        """Carry out a frequent command of a `plain` client; return False for another one, and nothing was done."""
        spec = _FREQUENT.get(words[0])
        if spec is None or not spec.takes(len(words)):
            return False
        context, peer = self.context, self.peer
        if context.gathered:
            context.publish_gathered(now)
        context.counts.commands += 1
        peer.active, peer.command = now, spec.name
        self.sink = self.replies
        self._answer(self.carry_out(spec, words, now))
        return True

    def carry_out_each(self, block: bytes, now: int) -> None:
        """Carry out each command of a run of XADDs for itself."""
        for words in split_run(block):
            self._command(words, now)

    def _command(self, words: list[bytes], now: int) -> None:
        self.context.counts.commands += 1
        try:
            spec = commands.find(words)
            if not self.authenticated and "no_auth" not in spec.flags:
                raise ErrorReply(errors.NO_AUTH)
            if self.grants is not None:
                redis_authorization.check(self.grants, spec, words, self.database)
            if self.queue is not None and spec.name not in _AT_ONCE:
                self._enqueue(spec, words)
                self._answer(replies.QUEUED)
                return
        except ErrorReply as error:
            self.queue_failed = True
            self._refuse(error)
            return
        self.peer.command = spec.name
        silence = self.silent or self.silent_next > 0
        self.sink = Silence() if silence else self.replies
        self._answer(self.carry_out(spec, words, now))

    def carry_out(self, spec: CommandSpec, words: list[bytes], now: int) -> Reply:
        """Return the reply to one command, an error line included."""
        try:
            return redis_handlers.HANDLERS[spec.name](self, words, now)
        except ErrorReply as error:
            self.context.counts.errors += 1
            return replies.error(error)
        except LogError as error:
            self.context.counts.errors += 1
            return replies.error(write_failed(error))
        except LapwingError as error:
            self.context.counts.errors += 1
            return replies.error(f"ERR {error}")

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

    def _refuse(self, error: ErrorReply) -> None:
        self.context.counts.errors += 1
        self._answer(replies.error(error))

    def _answer(self, reply: Reply) -> None:
        if self.silent or self.silent_next:
            self.silent_next = max(self.silent_next - 1, 0)
            return
        if isinstance(reply, bytes):
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

    # --- transactions ----------------------------------------------------------------------------------------------

    def execute(self, now: int) -> Reply:
        """Carry out what was queued since MULTI; return an array of the replies."""
        queue, self.queue = self.queue or [], None
        self._release_queue()
        slot = Slot(self.sink)
        transaction = Transaction(slot)
        outer, self.sink = self.sink, transaction
        self.in_transaction = True
        try:
            for spec, words in queue:
                self.peer.command = spec.name
                transaction.take(self.carry_out(spec, words, now))
        finally:
            self.in_transaction = False
            self.sink = outer
        transaction.close()
        return slot

    def discard(self) -> None:
        """Forget MULTI and WATCH."""
        self.queue = None
        self.queue_failed = False
        self._release_queue()
        self.watched.clear()

    def _release_queue(self) -> None:
        self.context.queued -= self.queue_size
        self.queue_size = 0

    # --- waiting ---------------------------------------------------------------------------------------------------

    def begin_wait(self, wait: Wait) -> Slot:
        """Have the command at hand answered later; nothing behind it is handled until then."""
        self.wait = wait
        return wait.slot

    def try_again(self, now: int) -> bool:
        """Answer the command that waits if that is possible now; return whether it was."""
        wait = self.wait
        if wait is None:
            return False
        reply = wait.attempt(now)
        if reply is None:
            return False
        self.end_wait(reply)
        return True

    def end_wait(self, reply: bytes) -> None:
        """Answer the command that waits."""
        wait, self.wait = self.wait, None
        assert wait is not None
        wait.cancel()
        wait.slot.fill(reply)
        self._on_free()

    def pass_time(self, now: int) -> None:
        """Answer the command that waits if its time is over, or if time has brought what it waits for."""
        wait = self.wait
        if wait is None:
            return
        if wait.deadline is not None and wait.deadline <= now:
            self.end_wait(wait.on_timeout)
        elif wait.look_at is not None and wait.look_at <= now:
            self.try_again(now)

    @property
    def next_due(self) -> int | None:
        """The time at which `pass_time` has something to do."""
        wait = self.wait
        if wait is None:
            return None
        times = [time for time in (wait.deadline, wait.look_at) if time is not None]
        return min(times, default=None)

    # --- the end ---------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Release everything that the connection had: it is gone."""
        self.doomed = True
        if self.wait is not None:
            self.wait.cancel()
            self.wait = None
        self.streaming = None
        self.discard()
        self.replies.close()
        self.context.leave(self)
        self._on_free = self.hang_up = nothing  # break the reference cycles with the connection
        self.authenticate = None


def _again(first: bytes, rest: Streamed) -> Iterator[bytes]:
    yield first
    yield from rest.pieces
