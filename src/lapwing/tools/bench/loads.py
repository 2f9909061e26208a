"""The loads, each a function from settings to a result."""

import gc
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from lapwing.client.address import Address
from lapwing.tools import processes
from lapwing.tools.bench import server
from lapwing.tools.bench.line import BenchError, Line
from lapwing.tools.bench.load import Budget, Consumer, Part, Publisher, Tally, turn
from lapwing.tools.bench.report import Percentiles, Result, percentiles
from lapwing.wire.nsq import commands

Report = Callable[[str, int, int | None], None]  # what is being done, how many so far, of how many


@dataclass(frozen=True, slots=True)
class Target:
    """The server under load."""

    tcp: Address
    http: str = ""  # host:port; empty: no questions over HTTP
    pid: int | None = None

    def seen(self) -> "Target":
        """Return the target with its process id, if that can be found."""
        if self.pid is None and not self.tcp.unix:
            return replace(self, pid=server.listening_pid(self.tcp.host, self.tcp.port))
        return self


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The size of a load."""

    topic: str
    channel: str = "bench"
    size: int = 200  # bytes of a body
    count: int | None = 1_000_000  # messages; None: as many as fit into `seconds`
    seconds: float | None = None
    batch: int = 200  # messages of an MPUB; 1: PUB
    window: int = 4  # commands unanswered on a connection
    publishers: int = 2
    consumers: int = 2  # of each channel
    channels: int = 1
    ready: int = 2500
    headers: bytes = b""  # of each message, as JSON; none: plain publishes and consumers
    rate: int = 10_000  # messages/s, where latency is measured
    report: Report = field(default=lambda what, done, total: None, compare=False)

    @property
    def commands(self) -> int | None:
        """Return how many publish commands carry `count` messages."""
        return None if self.count is None else math.ceil(self.count / self.batch)


def fresh_topic() -> str:
    """Return a new topic name."""
    return f"lapwing_bench_{os.getpid()}_{time.time_ns() // 1_000_000}"


def publish_command(topic: str, size: int, batch: int, headers: bytes = b"") -> bytes:
    """Return the bytes that publish a batch of messages of this size."""
    body = os.urandom(size)
    if headers:
        return commands.Hmpub.of(topic, [(headers, body)] * batch).encode()
    return commands.Pub(topic, body).encode() if batch == 1 else commands.Mpub.of(topic, [body] * batch).encode()


class Watch:
    """Wall and CPU time, of this process and of the server, inside a `with` block."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.seconds = self.own_cpu = 0.0
        self.server_cpu: float | None = None

    def _server(self) -> float | None:
        with suppress(OSError):
            return None if self._pid is None else processes.cpu_seconds(self._pid)
        return None

    def __enter__(self) -> "Watch":
        gc.collect()
        gc.disable()
        self._before = self._server()
        self._own, self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.own_cpu = time.process_time() - self._own
        after = self._server()
        self.server_cpu = None if self._before is None or after is None else after - self._before
        gc.enable()


@contextmanager
def _lines(
    address: Address, count: int, subscriptions: Sequence[tuple[str, str] | None] = (None,), *, headers: bool = False
) -> Iterator[list[Line]]:
    wanted = [each for each in subscriptions for _ in range(count)]
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Line(address, subscribe=each, headers=headers))) for each in wanted]


def _subscriptions(settings: LoadSettings) -> list[tuple[str, str]]:
    if settings.channels == 1:
        return [(settings.topic, settings.channel)]
    return [(settings.topic, f"{settings.channel}{number}") for number in range(settings.channels)]


def _deadline(settings: LoadSettings) -> float | None:
    return None if settings.seconds is None else time.monotonic() + settings.seconds


def _publish(
    target: Target, settings: LoadSettings, watch: Watch, what: str, others: Sequence[Part] = ()
) -> tuple[int, "array[int]"]:
    budget = Budget(settings.commands)
    command = publish_command(settings.topic, settings.size, settings.batch, settings.headers)
    with _lines(target.tcp, settings.publishers, headers=bool(settings.headers)) as lines:
        publishers = [Publisher(line, command, budget, window=settings.window) for line in lines]

        def acknowledged() -> int:
            return sum(publisher.acknowledged for publisher in publishers) * settings.batch

        with watch:
            turn(
                [*others, *publishers],
                lambda: budget.spent and all(publisher.done for publisher in publishers),
                moved=acknowledged, deadline=_deadline(settings), on_deadline=budget.close,
                report=lambda done: settings.report(what, done, settings.count),
            )
        latencies = array("q")
        for publisher in publishers:
            latencies.extend(publisher.latencies)
        return acknowledged(), latencies


def publish(target: Target, settings: LoadSettings) -> Result:
    """Publish as fast as the server acknowledges."""
    target = target.seen()
    watch = Watch(target.pid)
    messages, latencies = _publish(target, settings, watch, "publishing")
    shown = {"connections": settings.publishers, "batch": settings.batch, "window": settings.window}
    return measured("pub", target, settings, watch, messages, shown, percentiles(latencies, "sent to OK"))


def consume(target: Target, settings: LoadSettings) -> Result:
    """Fill a channel, then consume and finish all of it; only the second part is measured."""
    target = target.seen()
    if settings.count is None:
        raise BenchError("consuming needs to know how many messages to put there first: give --count")
    headers = bool(settings.headers)
    with _lines(target.tcp, settings.consumers, _subscriptions(settings), headers=headers) as lines:
        tally = Tally()
        consumers = [Consumer(line, tally, ready=0, size=settings.size) for line in lines]
        published, _ = _publish(target, settings, Watch(None), "filling", consumers)
        wanted = published * settings.channels
        for consumer in consumers:
            consumer.ready = settings.ready
        watch = Watch(target.pid)
        with watch:
            turn(consumers, lambda: tally.received >= wanted, moved=lambda: tally.received,
                 report=lambda done: settings.report("consuming", done, wanted))
    shown = {"consumers": len(consumers), "rdy": settings.ready}
    return measured("sub", target, settings, watch, tally.received, shown, None)


def publish_and_consume(target: Target, settings: LoadSettings, name: str = "pubsub") -> Result:
    """Publish and consume at the same time, until everything published has reached every channel."""
    target = target.seen()
    budget, tally = Budget(settings.commands), Tally()
    command = publish_command(settings.topic, settings.size, settings.batch)
    total = None if settings.commands is None else settings.commands * settings.batch * settings.channels
    with (
        _lines(target.tcp, settings.consumers, _subscriptions(settings)) as consuming,
        _lines(target.tcp, settings.publishers) as publishing,
    ):
        parts: list[Part] = []
        parts += [Consumer(line, tally, ready=settings.ready, size=settings.size) for line in consuming]
        publishers = [Publisher(line, command, budget, window=settings.window) for line in publishing]
        parts += publishers
        watch = Watch(target.pid)

        def done() -> bool:
            return (budget.spent and tally.received >= budget.granted * settings.batch * settings.channels
                    and all(publisher.done for publisher in publishers))

        with watch:
            turn(parts, done, moved=lambda: tally.received, deadline=_deadline(settings), on_deadline=budget.close,
                 report=lambda count: settings.report("publishing and consuming", count, total))
    shown = {"connections": settings.publishers, "batch": settings.batch, "window": settings.window,
             "channels": settings.channels, "consumers": len(consuming), "rdy": settings.ready}
    return measured(name, target, settings, watch, tally.received, shown, None)


def fan_out(target: Target, settings: LoadSettings) -> Result:
    """Publish to a topic with several consumed channels; counted per delivered message, publishing included."""
    return publish_and_consume(target, settings, "fanout")


def measured(
    name: str, target: Target, settings: LoadSettings, watch: Watch, messages: int, shown: dict[str, int],
    latency: Percentiles | None,
) -> Result:
    """Return the result of a load."""
    return Result(
        load=name, server=str(target.tcp), messages=messages, size=settings.size, seconds=watch.seconds,
        own_cpu=watch.own_cpu, server_cpu=watch.server_cpu, server_pid=target.pid, settings=shown, latency=latency,
        durability=server.durability(target.http) if target.http else None,
    )
