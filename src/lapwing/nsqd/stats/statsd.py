"""Pushes counts to a statsd server: a few datagrams at a time, so that neither end sees a burst."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from lapwing import names
from lapwing.broker.broker import Broker
from lapwing.broker.settings.options import Options
from lapwing.broker.stats import Latency, TopicStats
from lapwing.net.logs import Log
from lapwing.net.sockets.listen import split
from lapwing.nsqd.stats import memory
from lapwing.nsqd.stats.metrics import count_topics

_SECOND: Final = 1_000_000_000

Sample = tuple[str, int, str]  # key without prefix, value, type


def prefix(options: Options) -> str:
    """Return the beginning of every key: `%s` is this host and its HTTP port; it ends in a dot."""
    host = f"{options.broadcast_address}:{options.broadcast_http_port}".replace(".", "_").replace(":", "_")
    filled = options.statsd_prefix.replace("%s", host)
    return filled if not filled or filled.endswith(".") else f"{filled}."


class Differences:
    """Counters as what was added since the last push."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def since(self, key: str, total: int) -> int:
        """Return what was added since the last push; a counter that fell, as after a deletion, counts from 0."""
        before = self._last.get(key, 0)
        self._next[key] = total
        return total - before if total >= before else total

    def turn(self) -> None:
        """End a push: counters that it did not mention are dropped."""
        self._last, self._next = self._next, {}


def topic_samples(topic: TopicStats, since: Differences, *, exclude_ephemeral: bool = False) -> Iterable[Sample]:
    """Yield the samples of a topic and its channels, in NSQ's order."""
    if exclude_ephemeral and names.ephemeral(topic.name):
        return
    start = f"topic.{topic.name}"
    for name, total in (("message_count", topic.message_count), ("message_bytes", topic.message_bytes)):
        yield f"{start}.{name}", since.since(f"{start}.{name}", total), "c"
    yield f"{start}.depth", topic.depth, "g"
    yield f"{start}.backend_depth", topic.backend_depth, "g"
    yield from _latency(start, topic.latency)
    for channel in topic.channels:
        if exclude_ephemeral and names.ephemeral(channel.name):
            continue
        start = f"topic.{topic.name}.channel.{channel.name}"
        key = f"{start}.message_count"
        yield key, since.since(key, channel.message_count), "c"
        yield f"{start}.depth", channel.depth, "g"
        yield f"{start}.backend_depth", channel.backend_depth, "g"
        yield f"{start}.in_flight_count", channel.in_flight_count, "g"
        yield f"{start}.deferred_count", channel.deferred_count, "g"
        for name, total in (("requeue_count", channel.requeue_count), ("timeout_count", channel.timeout_count)):
            yield f"{start}.{name}", since.since(f"{start}.{name}", total), "c"
        yield f"{start}.clients", channel.client_count, "g"
        yield from _latency(start, channel.latency)


def _latency(start: str, latency: Latency) -> Iterable[Sample]:
    for quantile, nanoseconds in latency.percentiles or ():
        yield f"{start}.e2e_processing_latency_{quantile * 100:.0f}", nanoseconds, "g"


def memory_samples(figures: dict[str, int], since: Differences) -> Iterable[Sample]:
    """Yield the samples of the process."""
    for name, number in figures.items():
        if name != "gc_total_runs":
            yield f"mem.{name}", number, "g"
    yield "mem.gc_runs", since.since("mem.gc_runs", figures["gc_total_runs"]), "c"


class Datagrams:
    """Lines packed into as few datagrams as hold them in order; one longer than `size` travels alone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._packed: list[bytes] = []
        self._current = bytearray()

    def add(self, lines: Iterable[bytes]) -> None:
        current = self._current
        for line in lines:
            if current and len(current) + len(line) > self._size:
                self._packed.append(bytes(current))
                current.clear()
            current += line

    def all(self) -> list[bytes]:
        return [*self._packed, bytes(self._current)] if self._current else self._packed


class Statsd:
    """The pushing, once every interval."""

    def __init__(self, broker: Broker, options: Options, now: Callable[[], int], log: Log) -> None:
        self._broker = broker
        self._options = options
        self._now = now
        self._log = log
        self._prefix = prefix(options).encode()
        self._interval = options.statsd_interval / _SECOND
        self._since = Differences()
        self._pauses = memory.GcPauses() if options.statsd_mem_stats else None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Push from one interval from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._pauses is not None:
            self._pauses.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._interval, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await self._push()
            except Exception as error:  # a name that is none is no OSError; whatever it is, the next push is tried
                self._log.error(f"statsd {self._options.statsd_address}: {error}")

    async def _push(self) -> None:
        """Count everything, then send it evenly until a second before the next push."""
        sock = await self._socket()
        with sock:
            packets = await self._packets()
            pause = max(self._interval - 1.0, 0.0) / max(len(packets), 1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            refused = 0
            for number, packet in enumerate(packets):
                await asyncio.sleep(max(began + number * pause - loop.time(), 0.0))
                try:
                    sock.send(packet)
                except OSError:  # a full buffer, or a server that is not there: this is statsd, the next push counts
                    refused += 1
            if refused:
                self._log.debug(f"statsd: {refused} of {len(packets)} datagrams not sent")

    async def _socket(self) -> socket.socket:
        """Open a socket for one push: the server's name is resolved each time, as its address may change."""
        place = split(self._options.statsd_address)
        if place is None:
            raise OSError("not an address of the form host:port")
        host, port = place
        found = await asyncio.get_running_loop().getaddrinfo(host or "localhost", port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        return sock

    async def _packets(self) -> list[bytes]:
        options, since = self._options, self._since
        packets = Datagrams(options.statsd_udp_packet_size)
        async for counted in count_topics(self._broker, self._now, sorted(self._broker.topics)):
            for topic in counted:
                samples = topic_samples(topic, since, exclude_ephemeral=options.statsd_exclude_ephemeral)
                packets.add(map(self._line, samples))
        if self._pauses is not None:
            packets.add(map(self._line, memory_samples(memory.figures(self._pauses), since)))
        since.turn()
        return packets.all()

    def _line(self, sample: Sample) -> bytes:
        key, number, kind = sample
        return self._prefix + f"{key}:{number}|{kind}\n".encode()
