"""A delivered message, and the three ways to answer for it."""

import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

Row = tuple[int, int, bytes, bytes]  # timestamp ns, attempts, id, body: as the kernel decodes it


class Requeue(Exception):
    """Raised by a handler: deliver the message again, after `delay` seconds (None: the default delay).

    With `backoff=False` the consumer does not slow down for it.
    """

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__("requeue" if delay is None else f"requeue after {delay} s")
        self.delay = delay
        self.backoff = backoff

    def __reduce__(self) -> tuple[object, ...]:
        return _requeue, (self.delay, self.backoff)


def _requeue(delay: float | None, backoff: bool) -> Requeue:
    return Requeue(delay, backoff=backoff)


class Desk(Protocol):
    """Where a message is answered for: the connection it came from, with its consumer behind it."""

    thread: int
    address: str
    topic: str

    def finish(self, message: "Message") -> None: ...
    def requeue(self, message: "Message", delay: float | None, backoff: bool) -> None: ...
    def touch(self, message: "Message") -> None: ...
    def deadline(self, message: "Message") -> float: ...
    def now(self) -> float: ...
    def call(self, what: Callable[..., None], *arguments: Any) -> None: ...


class Message:
    """One message, held by this consumer until it is answered for: finished, requeued, or its time runs out.

    `with message:` (or `async with`) finishes it at the end of the block and requeues it when an exception leaves the
    block. All methods may be called from any thread.
    """

    __slots__ = ("_desk", "_received", "_row")

    def __init__(self, row: Row, desk: Desk | None, received: float) -> None:
        self._row = row
        self._desk = desk  # None once answered
        self._received = received  # monotonic, s

    @property
    def body(self) -> bytes:
        """What was published."""
        return self._row[3]

    @property
    def id(self) -> bytes:
        """Sixteen hex digits, unique within its topic and nsqd."""
        return self._row[2]

    @property
    def attempts(self) -> int:
        """How often it has been delivered, this time included."""
        return self._row[1]

    @property
    def timestamp(self) -> int:
        """When it was published, in ns since 1970 by the clock of the nsqd."""
        return self._row[0]

    @property
    def topic(self) -> str:
        """Where it was published; empty once it is answered for."""
        return self._desk.topic if self._desk is not None else ""

    @property
    def address(self) -> str:
        """The nsqd it came from; empty once it is answered for."""
        return self._desk.address if self._desk is not None else ""

    @property
    def answered(self) -> bool:
        """Whether it has been finished or requeued, or its connection is gone: further answers change nothing."""
        return self._desk is None

    @property
    def time_left(self) -> float:
        """Seconds until nsqd gives it to somebody else; 0 when that has happened or it is answered for.

        While a consumer holds it, it is touched by itself; this runs down only at the end of what nsqd grants
        (`max_msg_timeout`), or when touching is off.
        """
        desk = self._desk
        return max(0.0, desk.deadline(self) - desk.now()) if desk is not None else 0.0

    @property
    def expired(self) -> bool:
        """Whether nsqd no longer waits for our answer."""
        return self.time_left <= 0.0

    def finish(self) -> None:
        """It is done; nsqd forgets it."""
        desk = self._desk
        if desk is None:
            return
        if threading.get_ident() != desk.thread:
            desk.call(self.finish)
            return
        self._desk = None
        desk.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Deliver it again after `delay` seconds: 0 is at once, None the default delay times the attempts."""
        desk = self._desk
        if desk is None:
            return
        if threading.get_ident() != desk.thread:
            desk.call(self._requeue, delay, backoff)
            return
        self._requeue(delay, backoff)

    def _requeue(self, delay: float | None, backoff: bool) -> None:
        desk = self._desk
        if desk is not None:
            self._desk = None
            desk.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Ask nsqd for a new full timeout; consumers do that by themselves unless told not to."""
        desk = self._desk
        if desk is None:
            return
        if threading.get_ident() != desk.thread:
            desk.call(self.touch)
            return
        desk.touch(self)

    def __enter__(self) -> "Message":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Requeue):
            self.requeue(error.delay, backoff=error.backoff)
        elif isinstance(error, Exception):
            self.requeue()
        else:  # cancelled or interrupted: nothing is wrong with the message
            self.requeue(0, backoff=False)

    async def __aenter__(self) -> "Message":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __reduce__(self) -> tuple[object, ...]:
        return _copy, (self._row, self.topic, self.address, self._received)

    def __repr__(self) -> str:
        shown = self.body[:40]
        more = "..." if len(self.body) > 40 else ""
        return f"<Message {self.id.decode('latin-1')} attempts={self.attempts} {shown!r}{more}>"


class Away:
    """The desk of a copy in a worker process: the message is answered for by what its handler returns or raises."""

    thread = -1  # nobody's: every answer goes through `call`

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        self.address = address

    def call(self, what: Callable[..., None], *arguments: Any) -> None:
        """Have a requeue leave the handler; it finishes by returning, and its consumer touches."""
        if arguments:
            delay, backoff = arguments
            raise Requeue(delay, backoff=backoff)

    def deadline(self, message: Message) -> float:
        """Its consumer knows, and keeps it alive."""
        return math.inf

    def now(self) -> float:
        return 0.0

    def finish(self, message: Message) -> None:
        """Returning does."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Raising does."""

    def touch(self, message: Message) -> None:
        """Its consumer does."""


def _copy(row: Row, topic: str, address: str, received: float) -> Message:
    return Message(row, Away(topic, address), received)
