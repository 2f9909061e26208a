"""Measure the time from publish to delivery at a steady rate."""

import select
import time
from array import array
from typing import Final

from lapwing import kernel
from lapwing.tools.bench.line import BenchError, Line, Wire
from lapwing.tools.bench.load import STALL, Consumer, Part, Tally
from lapwing.tools.bench.loads import LoadSettings, Target, Watch, measured
from lapwing.tools.bench.report import Result, percentiles
from lapwing.wire.nsq import commands

_STAMP: Final = 8  # bytes of a body with its due time
_READ: Final = 1 << 16


class _Stopwatch(Consumer):
    """A consumer that reads the due time from each body."""

    def __init__(self, line: Line, tally: Tally, *, ready: int, size: int) -> None:
        super().__init__(line, tally, ready=ready, size=size)
        self.latencies = array("q")

    def _arrived(self, start: int, stop: int, messages: int) -> None:
        now = time.perf_counter_ns()
        for _, _, _, body in kernel.decode_messages(self._buffer, start, stop)[0]:
            self.latencies.append(now - int.from_bytes(body[:_STAMP], "big"))
        super()._arrived(start, stop, messages)


def latency(target: Target, settings: LoadSettings) -> Result:
    """Publish `rate` messages a second, one PUB each, for `seconds`, and time each delivery.

    Times count from when a message was due, not from when it was sent: a stall, of the server or of the load
    generator, shows in every message that it delays.
    """
    target = target.seen()
    seconds = settings.seconds or 5.0
    total = int(settings.rate * seconds)
    size = max(settings.size, _STAMP)
    head = commands.Pub(settings.topic, bytes(size)).encode()[:-size]
    filling = bytes(size - _STAMP)
    publishing = Line(target.tcp)
    consuming = Line(target.tcp, subscribe=(settings.topic, settings.channel))
    tally = Tally()
    stopwatch = _Stopwatch(consuming, tally, ready=settings.ready, size=size)
    watch = Watch(target.pid)
    try:
        with watch:
            steadily(publishing, stopwatch, tally, head, filling, total, settings)
    finally:
        publishing.close()
        consuming.close()
    shown = {"rate": settings.rate, "rdy": settings.ready}
    return measured("latency", target, settings, watch, tally.received, shown,
                    percentiles(stopwatch.latencies, "due to delivered"))


def steadily(
    publishing: Wire, stopwatch: Part, tally: Tally, head: bytes, filling: bytes, total: int, settings: LoadSettings
) -> None:
    """Publish `total` messages at a steady rate, as `head`, due time and `filling`, until all are delivered."""
    gap = 1_000_000_000 / settings.rate
    stopwatch.begin()
    began = time.perf_counter_ns() + 10_000_000
    sent = 0
    unsent = b""
    reported = moved_at = time.monotonic()
    last = -1
    inputs = [publishing.sock, stopwatch.line.sock]
    while tally.received < total:
        now = time.perf_counter_ns()
        due = min(total, int((now - began) / gap) + 1) if now >= began else 0
        if due > sent:
            stamps = [began + int(number * gap) for number in range(sent, due)]
            unsent += b"".join([b"%b%b%b" % (head, stamp.to_bytes(_STAMP, "big"), filling) for stamp in stamps])
            sent = due
        unsent = _send(publishing, unsent)
        # select, not epoll: it waits for microseconds where epoll rounds up to milliseconds
        pause = 0.2 if sent == total else max(0.0, (began + sent * gap - time.perf_counter_ns()) / 1e9)
        outputs = [publishing.sock] if unsent else []
        if stopwatch.blocked:
            outputs.append(stopwatch.line.sock)
        readable, writable, _ = select.select(inputs, outputs, [], pause)
        if publishing.sock in readable and not publishing.sock.recv(_READ):
            raise publishing.hung_up()
        if stopwatch.line.sock in writable:
            stopwatch.writable()
        if stopwatch.line.sock in readable:
            stopwatch.readable()
        clock = time.monotonic()
        if clock - reported > 0.2:
            reported = clock
            settings.report("measuring", tally.received, total)
            if tally.received != last:
                last, moved_at = tally.received, clock
            elif clock - moved_at > STALL:
                raise BenchError(f"{publishing.address}: nothing was delivered for {STALL:.0f} s")


def _send(line: Wire, data: bytes) -> bytes:
    """Send and return the bytes that the socket did not take."""
    try:
        return data[line.sock.send(data) :] if data else data
    except BlockingIOError:
        return data
    except OSError as error:
        raise line.hung_up() from error
