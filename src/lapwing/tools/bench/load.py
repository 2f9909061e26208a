"""Publishers and consumers on one epoll: whole batches per call, nothing per message."""

import select
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lapwing import kernel
from lapwing.tools.bench.line import BenchError, Line, Wire, other_frame
from lapwing.wire.nsq import commands, frames

STALL: Final = 30.0  # seconds without any progress before we give up
_READ: Final = 1 << 16
_ROOM: Final = 1 << 20
_OK: Final = len(frames.OK)
_NOP: Final = commands.Nop().encode()


class Part(Protocol):
    """One connection of a load."""

    @property
    def line(self) -> Wire: ...
    blocked: bool  # the socket took less than we have

    def begin(self) -> None: ...
    def readable(self) -> None: ...
    def writable(self) -> None: ...


class Sender:
    """A connection that sends bytes as far as its socket takes them, and the rest later."""

    def __init__(self, line: Wire) -> None:
        self.line = line
        self.blocked = False
        self._unsent = b""

    def writable(self) -> None:
        """Continue where the socket was full."""
        self._send(b"")

    def _send(self, data: bytes) -> None:
        data = self._unsent + data
        try:
            while data:
                data = data[self.line.sock.send(data) :]
        except BlockingIOError:
            self.blocked = True
        except OSError as error:
            raise self.line.hung_up() from error
        else:
            self.blocked = False
        self._unsent = data


class Budget:
    """The commands that all publishers together still have to send."""

    def __init__(self, total: int | None) -> None:
        self._left = total  # None: until closed
        self.granted = 0

    def take(self, wanted: int) -> int:
        """Return how many of the wanted commands may be sent."""
        if self._left is not None:
            wanted = min(wanted, self._left)
            self._left -= wanted
        self.granted += wanted
        return wanted

    def close(self) -> None:
        """Send nothing more."""
        self._left = 0

    @property
    def spent(self) -> bool:
        return self._left == 0


class Publisher:
    """Send one prepared command again and again, with at most `window` unanswered."""

    def __init__(self, line: Line, command: bytes, budget: Budget, *, window: int) -> None:
        self.line = line
        self.blocked = False
        self.acknowledged = 0
        self.latencies = array("q")  # ns from handing a command to the socket to its OK
        self._budget = budget
        self._window = window
        self._length = len(command)
        self._stream = memoryview(command * (window + 1))  # any place of the endless stream, and a window beyond it
        self._offset = 0
        self._pending = 0  # bytes that may be sent now
        self._outstanding: deque[int] = deque()
        self._oks = frames.OK * (window + 1)
        self._torn = b""

    def begin(self) -> None:
        """Fill the window."""
        self._top_up()

    @property
    def done(self) -> bool:
        return not self._outstanding and self._budget.spent

    def readable(self) -> None:
        """Count OKs, and send as many commands."""
        data = self._torn + receive(self.line)
        count, rest = divmod(len(data), _OK)
        if not self._oks.startswith(data):
            at = 0
            while at < len(data) and data[at : at + _OK] == frames.OK:
                at += _OK
            other_frame(self.line, data, at, len(data))
            raise BenchError(f"{self.line.address} answered {data[at : at + 40]!r} instead of OK")
        self._torn = data[len(data) - rest :] if rest else b""
        now = time.perf_counter_ns()
        outstanding, latencies = self._outstanding, self.latencies
        for _ in range(count):
            latencies.append(now - outstanding.popleft())
        self.acknowledged += count
        self._top_up()

    def writable(self) -> None:
        """Continue where the socket was full."""
        self._send()

    def _top_up(self) -> None:
        granted = self._budget.take(self._window - len(self._outstanding))
        if granted:
            now = time.perf_counter_ns()
            self._outstanding.extend([now] * granted)
            self._pending += granted * self._length
            if not self.blocked:
                self._send()

    def _send(self) -> None:
        try:
            while self._pending:
                sent = self.line.sock.send(self._stream[self._offset : self._offset + self._pending])
                self._pending -= sent
                self._offset = (self._offset + sent) % self._length
        except BlockingIOError:
            self.blocked = True
        except OSError as error:
            raise self.line.hung_up() from error
        else:
            self.blocked = False


class Tally:
    """Messages received by all consumers together."""

    def __init__(self) -> None:
        self.received = 0


class Consumer(Sender):
    """Receive, count and finish messages, a buffer at a time."""

    def __init__(self, line: Line, tally: Tally, *, ready: int, size: int) -> None:
        super().__init__(line)
        self.ready = ready
        self._tally = tally
        self._buffer = bytearray(max(_ROOM, 4 * size))
        self._view = memoryview(self._buffer)
        self._filled = 0

    def begin(self) -> None:
        """Send RDY."""
        self._send(commands.Rdy(self.ready).encode())

    def readable(self) -> None:
        """Finish every complete message."""
        try:
            count = self.line.sock.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            raise self.line.hung_up() from error
        if not count:
            raise self.line.hung_up()
        stop = self._filled + count
        at = 0
        answers = []
        while at < stop:
            fins, messages, end = kernel.fins_of(self._buffer, at, stop)
            if messages:
                self._arrived(at, end, messages)
                answers.append(fins)
            else:
                end = other_frame(self.line, self._buffer, at, stop)
                if end == at:
                    break
                answers.append(_NOP)  # nsqd sends nothing unasked but heartbeats
            at = end
        self._filled = stop - at
        if self._filled and at:
            self._view[: self._filled] = bytes(self._view[at:stop])
        elif self._filled == len(self._buffer):
            raise BenchError(f"{self.line.address} sent a message larger than {len(self._buffer)} bytes")
        if answers:
            self._send(answers[0] if len(answers) == 1 else b"".join(answers))

    def _arrived(self, start: int, stop: int, messages: int) -> None:
        self._tally.received += messages


def receive(line: Wire) -> bytes:
    """Return the received bytes, maybe none. Raises at the end of the connection."""
    try:
        data = line.sock.recv(_READ)
    except BlockingIOError:
        return b""
    except OSError as error:
        raise line.hung_up() from error
    if not data:
        raise line.hung_up()
    return data


def turn(
    parts: Sequence[Part],
    done: Callable[[], bool],
    *,
    moved: Callable[[], int],
    deadline: float | None = None,
    on_deadline: Callable[[], None] = lambda: None,
    report: Callable[[int], None] | None = None,
) -> None:
    """Run every part until `done`; `moved` returns the progress, which `report` gets now and then.

    At `deadline` (of `time.monotonic`) `on_deadline` is called once. Raises `BenchError` when there is no progress.
    """
    if not hasattr(select, "epoll"):
        raise BenchError("lapwing bench needs epoll, which only Linux has")
    with select.epoll() as poll:
        by_number = {part.line.sock.fileno(): part for part in parts}
        waiting_to_write: set[int] = set()
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        for number, part in by_number.items():
            part.begin()
            if part.blocked:
                waiting_to_write.add(number)
                poll.modify(number, select.EPOLLIN | select.EPOLLOUT)
        last = -1
        stalled_since = reported = time.monotonic()
        while not done():
            for number, events in poll.poll(0.25):
                part = by_number[number]
                if events & select.EPOLLOUT:
                    part.writable()
                if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    part.readable()
                if part.blocked != (number in waiting_to_write):
                    waiting_to_write ^= {number}
                    poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if part.blocked else 0))
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                deadline = None
                on_deadline()
            if now - reported > 0.2:
                reported = now
                count = moved()
                if report is not None:
                    report(count)
                if count != last:
                    last, stalled_since = count, now
                elif now - stalled_since > STALL:
                    addresses = ", ".join(sorted({str(part.line.address) for part in parts}))
                    raise BenchError(f"{addresses}: nothing moved for {STALL:.0f} s after {count:,} messages")
