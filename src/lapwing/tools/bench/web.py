"""HTTP load: kept-alive connections, one request at a time on each."""

import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final

from lapwing.client.address import Address
from lapwing.client.address import parse as parse_address
from lapwing.tools.bench.line import BenchError, Wire
from lapwing.tools.bench.load import Sender, receive, turn
from lapwing.tools.bench.loads import LoadSettings, Target, Watch, measured
from lapwing.tools.bench.report import Result, percentiles

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"


class Caller(Sender):
    """Send the next request when the last one is answered."""

    def __init__(self, line: Wire, requests: Iterator[bytes]) -> None:
        super().__init__(line)
        self.answered = 0
        self.done = False
        self.latencies = array("q")
        self._requests = requests
        self._data = b""
        self._known = b""  # an answer as it came last time: most of them are alike to the byte
        self._sent_at = 0

    def begin(self) -> None:
        """Send the first request."""
        self._next()

    def readable(self) -> None:
        """Take the answer, and send the next request."""
        self._data += receive(self.line)
        if self._data != self._known and not self._whole():
            return
        self._known, self._data = self._data, b""
        self.answered += 1
        self.latencies.append(time.perf_counter_ns() - self._sent_at)
        self._next()

    def _whole(self) -> bool:
        """Return whether the answer is complete. Raises for an answer that is not a success."""
        head, end, body = self._data.partition(_END)
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            status = head.partition(b"\r\n")[0].decode("latin-1")
            raise BenchError(f"{self.line.address} answered {status}: {body[:200]!r}")
        for field in head.lower().split(b"\r\n"):
            if field.startswith(_LENGTH):
                return len(body) >= int(field[len(_LENGTH) :])
        raise BenchError(f"{self.line.address} answered without a length: {head!r}")

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done = True
            return
        self._sent_at = time.perf_counter_ns()
        self._send(request)


def post(address: Address, path: str, body: bytes = b"") -> bytes:
    """Return the bytes of a POST."""
    return b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        path.encode(), str(address).encode(), len(body), body)


def call_all(address: Address, requests: Iterator[bytes], *, connections: int, settings: LoadSettings, watch: Watch,
             total: int) -> list[Caller]:
    """Run all requests over several connections."""
    callers: list[Caller] = []
    with ExitStack() as stack:
        for _ in range(connections):
            line = stack.enter_context(closing(Wire(address, "nsqd's HTTP", "--nsqd-http-address")))
            line.sock.setblocking(False)
            callers.append(Caller(line, requests))
        with watch:
            turn(callers, lambda: all(caller.done for caller in callers),
                 moved=lambda: sum(caller.answered for caller in callers),
                 report=lambda done: settings.report("calling", done, total))
    return callers


def publish(target: Target, settings: LoadSettings) -> Result:
    """Publish with POST /pub, one message per request."""
    target = target.seen()
    address = parse_address(target.http)
    request = post(address, f"/pub?topic={settings.topic}", b"x" * settings.size)
    watch = Watch(target.pid)
    callers = call_all(address, _requests(request, settings), connections=settings.publishers, settings=settings,
                       watch=watch, total=settings.count or 0)
    latencies = array("q")
    for caller in callers:
        latencies.extend(caller.latencies)
    return measured("http", target, settings, watch, len(latencies), {"connections": settings.publishers},
                    percentiles(latencies, "sent to OK"))


def _requests(request: bytes, settings: LoadSettings) -> Iterator[bytes]:
    if settings.count is not None:
        for _ in range(settings.count):
            yield request
        return
    deadline = time.monotonic() + (settings.seconds or 5.0)
    while time.monotonic() < deadline:
        yield request
