"""The state of one connection of a Redis client: who it is, its replies, its transaction, and what it waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lapwing.errors import LapwingError
from lapwing.records import dataclass
from lapwing.sessions.redis.replies import Reply, Streamed, Transaction
from lapwing.sessions.replies import Replies, Slot, nothing
from lapwing.wire.resp import errors, replies
from lapwing.wire.resp.commands import CommandSpec

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.sessions.redis.context import Grants, RedisContext
    from lapwing.sessions.redis.repeated import RepeatedRequests


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
    repeated: RepeatedRequests | None = None  # answers requests that are like earlier ones

    def note_library(self, text: bytes, *, version: bool) -> None:
        """Note the name of the client's library, or its version."""
        if version:
            self.library_version = text
        else:
            self.library = text


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


class ClientState(ABC):
    """The broker's side of one connection, as the functions that carry out commands see it.

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

    @property
    def plain(self) -> bool:
        """Whether plain XADDs of the client need no look at the state of its connection."""
        special = self.queue is not None or self.silent or self.silent_next or self.authenticate is not None
        return not (special or self.doomed or self.database or self.busy)

    @abstractmethod
    def carry_out(self, spec: CommandSpec, words: list[bytes], now: int) -> Reply:
        """Return the reply to one command, an error line included."""

    @abstractmethod
    def failed(self, error: LapwingError) -> bytes:
        """Return the error line for a command that failed."""

    # --- what a client sets about its connection -------------------------------------------------------------------

    def introduce(self, name: bytes | None, *, protocol: int | None = None) -> None:
        """Note the name of the client, and the protocol that it wants from now on."""
        if name is not None:
            self.peer.name = name
        if protocol is not None:
            self.protocol = protocol

    def select(self, database: int) -> None:
        """Have keys be those of this database."""
        self.database = database

    def ask(self, secret: bytes, then: Callable[[], bytes]) -> None:
        """Have the door ask what the client may do; `then` returns the reply once that is granted."""
        assert self.authenticate is not None
        self.granted = then
        self.authenticate(secret)

    def grant(self, grants: Grants, identity: str) -> None:
        """Answer the AUTH or HELLO that waits: the client may do what was granted."""
        self.grants, self.user = grants, identity or "default"
        self.end_wait(self.granted())

    def deny(self) -> None:
        """Answer the AUTH or HELLO that waits: the password is wrong."""
        self.end_wait(replies.error(errors.WRONG_PASS))

    def mute(self, silent: bool) -> None:
        """Send no replies from now on, or send them again."""
        self.silent = silent

    def skip_replies(self, count: int) -> None:
        """Send no replies to so many commands, the one at hand included."""
        if not self.silent:
            self.silent_next = count

    def quit(self) -> None:
        """End the connection when the replies are sent."""
        self.doomed = True

    def reset(self) -> None:
        """Have the connection be as a new one."""
        self.discard()
        self.protocol, self.database = 2, 0
        self.silent, self.silent_next = False, 0
        self.peer.name = b""
        self.grants, self.user = None, "default"

    # --- transactions ----------------------------------------------------------------------------------------------

    def begin_queue(self) -> None:
        """Queue the commands from now on, until EXEC or DISCARD."""
        self.queue, self.queue_failed = [], False

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
        try:
            reply = wait.attempt(now)
        except LapwingError as error:
            reply = self.failed(error)
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
        self.authenticate = self.peer.repeated = None
