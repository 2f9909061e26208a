"""A delivered message and the answers to it: finish, fail, release, reject, touch."""

import asyncio
import math
import re
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from lapwing.client import headers as message_headers
from lapwing.wire.nsq.connection import MessageRow
from lapwing.wire.resp.bodies import pairs_of

Row = MessageRow  # timestamp ns, attempts, id, body, and headers if there are some: as the kernel decodes it

_FRAME: Final = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')
_LONGEST_ERROR: Final = 4096  # characters; the broker keeps 4 KiB


# ends a task or the program, and is no failure of a message
ENDS: Final = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class Requeue(Exception):
    """Raised by a handler: the message failed; deliver it again after `delay` seconds (None: the default delay).

    With `backoff=False` the consumer does not slow down for it. `error` is what went wrong, for people.
    """

    def __init__(self, delay: float | None = None, *, backoff: bool = True, error: str = "") -> None:
        super().__init__("requeue" if delay is None else f"requeue after {delay} s")
        self.delay = _delay(delay)
        self.backoff = backoff
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Requeue, backoff=self.backoff, error=self.error), (self.delay,)


class Hold(Exception):
    """Raised by a handler: not now; deliver the message again after `seconds`. It does not count as a failure."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(f"hold for {seconds} s")
        self.seconds = _seconds(seconds)

    def __reduce__(self) -> tuple[object, ...]:
        return Hold, (self.seconds,)


class Reject(Exception):
    """Raised by a handler: never deliver the message again. It becomes a dead letter where the channel keeps them."""

    def __init__(self, reason: str, error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        return Reject, (self.reason, self.error)


class MessageSource(Protocol):
    """The connection that a message came from; answers go there."""

    thread: int
    address: str
    topic: str
    limited: bool  # the broker gives messages up after too many failures

    def finish(self, message: "Message") -> None: ...
    def fail(self, message: "Message", delay: float | None, backoff: bool, error: str) -> None: ...
    def release(self, message: "Message", delay: float) -> None: ...
    def reject(self, message: "Message", reason: str, error: str) -> None: ...
    def touch(self, message: "Message") -> None: ...
    def deadline(self, message: "Message") -> float: ...
    def now(self) -> float: ...
    def call(self, what: Callable[..., None], *arguments: Any) -> None: ...


class Message:
    """One message, in flight with this consumer until it is answered or its time runs out.

    `with message:` (or `async with`) finishes it at the end of the block and fails it when an exception leaves the
    block. The first answer counts, later ones do nothing. All methods may be called from any thread.
    """

    __slots__ = ("_error", "_origin", "_received", "_row", "_source")

    def __init__(self, row: Row, source: MessageSource | None, received: float) -> None:
        self._row = row
        self._origin = source
        self._source = source  # None once answered
        self._received = received  # monotonic, s

    @property
    def body(self) -> bytes:
        """The bytes that were published."""
        return self._row[3]

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """The fields and values of an entry that a Redis client added; empty if the body is a plain one."""
        return pairs_of(self._row[3])

    @property
    def id(self) -> str:
        """Sixteen hex digits, unique within its topic and nsqd."""
        return self._row[2].decode("latin-1")

    @property
    def attempts(self) -> int:
        """Number of deliveries, this one included."""
        return self._row[1]

    @property
    def timestamp(self) -> int:
        """Time of publishing, in ns since 1970 by the clock of the nsqd."""
        return self._row[0]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were published with it; none on a plain NSQ server."""
        row = self._row
        return message_headers.decode(row[4]) if len(row) > 4 else {}

    @property
    def topic(self) -> str:
        """The topic."""
        return self._origin.topic if self._origin is not None else ""

    @property
    def address(self) -> str:
        """The nsqd that delivered it."""
        return self._origin.address if self._origin is not None else ""

    @property
    def answered(self) -> bool:
        """Whether it has been answered, or its connection is gone: further answers do nothing."""
        return self._source is None

    @property
    def time_left(self) -> float:
        """Seconds until nsqd delivers it to another consumer; 0 once that has happened or it is answered.

        A consumer touches its messages by itself; so this falls only at the end of what nsqd grants
        (`max_msg_timeout`), or when touching is off.
        """
        source = self._source
        return max(0.0, source.deadline(self) - source.now()) if source is not None else 0.0

    @property
    def expired(self) -> bool:
        """Whether nsqd no longer waits for an answer."""
        return self.time_left <= 0.0

    @property
    def error(self) -> str:
        """The error, for people: sent with `fail` and `reject` unless they are given a text of their own."""
        return getattr(self, "_error", "")

    @error.setter
    def error(self, text: str) -> None:
        self._error = text

    def finish(self) -> None:
        """Finish it: it is done and is not delivered again."""
        source = self._source
        if source is None:
            return
        if threading.get_ident() != source.thread:
            source.call(self.finish)
            return
        self._source = None
        source.finish(self)

    def fail(
        self, error: str | BaseException = "", *, delay: float | None = None, backoff: bool = True
    ) -> None:
        """Report a failure; it is delivered again after `delay` seconds, or becomes a dead letter after too many.

        None is the delay of the channel's retry settings, or `default_requeue_delay` times the attempts where the
        channel has none. With `backoff=False` the consumer does not slow down.
        """
        self._fail(_delay(delay), backoff, _text(error) or _text(self.error))

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Deliver it again after `delay` seconds; the same as `fail` without an error."""
        self._fail(_delay(delay), backoff, _text(self.error))

    def release(self, delay: float = 0.0) -> None:
        """Give it back through no fault of its own: it is delivered again, and no failure is counted."""
        seconds = _seconds(delay)
        self._answer(lambda source: source.release(self, seconds))

    def reject(self, reason: str, error: str | BaseException = "") -> None:
        """Give it up for good: it becomes a dead letter at once, or is finished where there are no dead letters."""
        why, text = _text(reason), _text(error) or _text(self.error)
        self._answer(lambda source: source.reject(self, why, text))

    def touch(self) -> None:
        """Ask nsqd for a new full timeout; a consumer does that by itself unless `auto_touch` is off."""
        source = self._source
        if source is None:
            return
        if threading.get_ident() != source.thread:
            source.call(self.touch)
            return
        source.touch(self)

    def answer(self, error: BaseException | None) -> None:
        """Answer as the end of a handler means: no error finishes, `Requeue`, `Hold` and `Reject` do as they are named.

        Any other exception fails the message; what ends a task or the program releases it.
        """
        if error is None:
            self.finish()
        elif isinstance(error, Requeue):
            self._fail(error.delay, error.backoff, _text(error.error) or _text(self.error))
        elif isinstance(error, Hold):
            self.release(error.seconds)
        elif isinstance(error, Reject):
            self.reject(error.reason, error.error)
        elif isinstance(error, ENDS):
            self.release()
        else:
            self.fail(error)

    def _fail(self, delay: float | None, backoff: bool, error: str) -> None:
        self._answer(lambda source: source.fail(self, delay, backoff, error))

    def _answer(self, send: Callable[[MessageSource], None]) -> None:
        source = self._source
        if source is not None and threading.get_ident() != source.thread:
            source.call(self._answer_here, send)
        else:
            self._answer_here(send)

    def _answer_here(self, send: Callable[[MessageSource], None]) -> None:
        source, self._source = self._source, None
        if source is not None:
            send(source)

    def __enter__(self) -> "Message":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.answer(error)

    async def __aenter__(self) -> "Message":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.answer(error)

    def __reduce__(self) -> tuple[object, ...]:
        return Message, (self._row, DetachedSource(self.topic, self.address), self._received)

    def __repr__(self) -> str:
        shown = self.body[:40]
        more = "..." if len(self.body) > 40 else ""
        return f"<Message {self.id} attempts={self.attempts} {shown!r}{more}>"


class DetachedSource:
    """The source of a copy in a worker process: an answer leaves the handler as an exception."""

    thread = -1  # no thread: every answer goes through `call`
    limited = True  # the consumer counts attempts

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        self.address = address

    def call(self, what: Callable[..., None], *arguments: Any) -> None:
        """Raise the answer. Finishing and touching, which have no arguments, are left to the consumer."""
        if arguments:
            what(*arguments)

    def deadline(self, message: Message) -> float:
        """Return nothing: the consumer knows the deadline and touches the message."""
        return math.inf

    def now(self) -> float:
        return 0.0

    def finish(self, message: Message) -> None:
        """Returning from the handler finishes."""

    def fail(self, message: Message, delay: float | None, backoff: bool, error: str) -> None:
        raise Requeue(delay, backoff=backoff, error=error)

    def release(self, message: Message, delay: float) -> None:
        raise Hold(delay)

    def reject(self, message: Message, reason: str, error: str) -> None:
        raise Reject(reason, error)

    def touch(self, message: Message) -> None:
        """Do nothing: the consumer touches."""


def _seconds(value: float) -> float:
    """Return a number of seconds. Raises `ValueError` or `TypeError` for what is none."""
    if not math.isfinite(value):
        raise ValueError(f"a delay of {value} seconds: a finite number expected")
    return value


def _delay(value: float | None) -> float | None:
    return None if value is None else _seconds(value)


def _text(value: object) -> str:
    """Return a reason or an error as text, also when it is an exception or something else."""
    if isinstance(value, str):
        return value
    return describe(value) if isinstance(value, BaseException) else str(value)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, nothing if it has none: an `__str__` that fails must stop no worker."""
    try:
        return str(error)
    except Exception:
        return ""


def describe(error: BaseException) -> str:
    """Return type, text and place of an exception: `ValueError: no such card (shop.py:42 in bill)`."""
    said = text_of(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = ""
    if error.__cause__ is not None and type(error.__cause__).__name__ == "_RemoteTraceback":  # of a worker process
        found = _FRAME.findall(str(error.__cause__))
        frames = traceback.StackSummary()
        if found:
            place = f" ({found[-1][0].rpartition('/')[2]}:{found[-1][1]} in {found[-1][2]})"
    if frames:
        last = frames[-1]
        place = f" ({last.filename.rpartition('/')[2]}:{last.lineno} in {last.name})"
    return text[: _LONGEST_ERROR - len(place)] + place
