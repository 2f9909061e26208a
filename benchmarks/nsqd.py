"""What our nsqd costs, part by part, with the limit we hold ourselves to beside each figure.

    python benchmarks/nsqd.py                    all parts
    python benchmarks/nsqd.py mpub consume       these
    python benchmarks/nsqd.py --quick            a tenth of the load

Each part starts an nsqd of its own on a temporary data path, with its default durability (`os`). CPU times are those
of the nsqd process; of several runs the cheapest counts, as everything else on the machine only adds to them.
"""

import argparse
import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers

from lapwing.client.address import parse
from lapwing.tools import processes
from lapwing.tools.bench import latency, loads, web
from lapwing.tools.bench.line import Line
from lapwing.tools.bench.report import Result
from lapwing.wire.nsq.commands import Hmpub

LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")
PROGRAM = Path(sys.executable).parent / "nsqd"


@dataclass
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    limit: float
    more: str = ""
    at_least: bool = False  # the limit is a floor, not a ceiling

    @property
    def held(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}"
        verdict = "ok" if self.held else "MISSED"
        return f"{self.what:<50} {self.value:>9.3f} {self.unit:<6} {bound:<12} {verdict:<7} {self.more}".rstrip()


class Nsqd:
    """A running nsqd."""

    def __init__(self, path: str, *flags: str) -> None:
        command = [str(PROGRAM), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={path}",
                   *flags]
        self.began = time.perf_counter()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  lives as long as the process
        self.process = subprocess.Popen(command, stderr=self._errors, stdout=subprocess.DEVNULL)
        self.tcp, self.http = self._addresses()

    def _addresses(self) -> tuple[str, str]:
        while True:
            found: dict[str, str] = dict(LISTENING.findall(self.said()))
            if len(found) == 2:
                return found["TCP"], found["HTTP"]
            if self.process.poll() is not None or time.perf_counter() - self.began > 60:
                raise SystemExit(f"nsqd did not start:\n{self.said()}")
            time.sleep(0.005)

    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    @property
    def target(self) -> loads.Target:
        return loads.Target(parse(self.tcp), self.http, self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._errors.close()


@contextlib.contextmanager
def nsqd(*flags: str) -> Iterator[Nsqd]:
    path = tempfile.mkdtemp(prefix="lapwing-bench-")
    try:
        running = Nsqd(path, *flags)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def cheapest(load: Callable[[loads.Target, loads.LoadSettings], Result], runs: int, **settings: Any) -> Result:
    """The run with the least server CPU per message."""
    results = []
    for _ in range(runs):
        with nsqd() as running:
            results.append(load(running.target, loads.LoadSettings("bench", **settings)))
    return min(results, key=lambda result: result.server_us or 0.0)


def shown(result: Result) -> str:
    return f"{result.rate:,.0f} messages/s; generator {result.own_us:.2f} us"


@dataclass
class Size:
    """How much of everything."""

    share: float
    runs: int

    def __call__(self, count: int) -> int:
        return max(1, int(count * self.share))


def mpub(size: Size) -> list[Figure]:
    awaited = cheapest(loads.publish, size.runs, count=size(3_000_000), window=1)
    ahead = cheapest(loads.publish, size.runs, count=size(3_000_000), window=4)
    return [Figure("MPUB 200, 2 connections", awaited.server_us or 0, "us", 0.6, shown(awaited)),
            Figure("the same, up to 4 unanswered", ahead.server_us or 0, "us", 0.6, shown(ahead))]


def consume(size: Size) -> list[Figure]:
    result = cheapest(loads.consume, size.runs, count=size(3_000_000))
    return [Figure("consume + FIN, RDY 2500, 2 consumers", result.server_us or 0, "us", 0.7, shown(result))]


def headers(size: Size) -> list[Figure]:
    """The same loads with headers on every message; at most twice as dear as without."""
    figures = []
    for what, load in (("HMPUB 200 with headers", loads.publish), ("consume + FIN with headers", loads.consume)):
        plain = cheapest(load, size.runs, count=size(1_000_000), window=1)
        with_headers = cheapest(load, size.runs, count=size(1_000_000), window=1, headers=HEADERS)
        ratio = (with_headers.server_us or 0) / (plain.server_us or 1)
        more = f"{with_headers.server_us:.2f} us over {plain.server_us:.2f} us; {shown(with_headers)}"
        figures.append(Figure(f"{what}, over plain", ratio, "times", 2, more))
    return figures


def ids(size: Size) -> list[Figure]:
    """Messages with an id each, to a topic that remembers them."""
    batch, count = 200, size(400_000) // 200
    body, used = os.urandom(200), []
    made = [
        Hmpub.of("ids", [(b'{"message-id":"%08x-%08x"}' % (number, each), body) for each in range(batch)]).encode()
        for number in range(count)
    ]
    for _ in range(size.runs):
        with nsqd() as running:
            for path, method, document in (("topic/create", "POST", b""), ("topic/settings", "PATCH", WINDOW)):
                request = urllib.request.Request(f"http://{running.http}/{path}?topic=ids", document, method=method)
                urllib.request.urlopen(request).close()
            line = Line(running.target.tcp, headers=True)
            line.sock.setblocking(True)
            before = processes.cpu_seconds(running.process.pid)
            for command in made:
                line.sock.sendall(command)
                answer = line.sock.recv(100)
                assert b"OK" in answer, answer
            used.append((processes.cpu_seconds(running.process.pid) - before) / count / batch * 1e6)
            line.close()
    return [Figure("HMPUB 200, an id each, in a dedup_window", min(used), "us", 3)]


def pub(size: Size) -> list[Figure]:
    result = cheapest(loads.publish, size.runs, count=size(200_000), batch=1, window=1, publishers=16)
    return [Figure("PUB one at a time, 16 connections", result.server_us or 0, "us", 18, shown(result))]


def fanout(size: Size) -> list[Figure]:
    result = cheapest(loads.fan_out, size.runs, count=size(500_000), channels=8, consumers=1, publishers=1)
    return [Figure("8 channels, each consumed: per delivered message", result.server_us or 0, "us", 0.7, shown(result))]


def http(size: Size) -> list[Figure]:
    result = cheapest(web.publish, size.runs, count=size(150_000), publishers=32)
    return [Figure("HTTP /pub, 32 connections", result.server_us or 0, "us", 18, shown(result))]


def delay(size: Size) -> list[Figure]:
    results = []
    for _ in range(size.runs):
        with nsqd() as running:
            results.append(latency.latency(running.target, loads.LoadSettings("bench", rate=10_000, seconds=5.0)))
    times = min((result.latency for result in results if result.latency), key=lambda times: times.p99)
    more = f"p99.9 {times.p999:.2f} ms, max {times.max:.2f} ms"
    return [Figure("publish to delivery at 10,000 msg/s: p50", times.p50, "ms", 0.5),
            Figure("publish to delivery at 10,000 msg/s: p99", times.p99, "ms", 3, more)]


def redis(size: Size) -> list[Figure]:
    ours = cheapest(loads.publish, size.runs, count=size(2_000_000))
    peer = peers.named("redis")(ours, loads.LoadSettings("bench", count=size(2_000_000)))
    ratio = (peer.server_us or 0) / (ours.server_us or 1)
    return [Figure("redis XADD -P 200, CPU per message over ours", ratio, "times", 4,
                   f"redis {peer.server_us:.2f} us, ours {ours.server_us:.2f} us", at_least=True)]


def answers_ping(running: Nsqd) -> float:
    """Seconds from the start of the process to an OK from /ping."""
    while True:
        try:
            with urllib.request.urlopen(f"http://{running.http}/ping", timeout=5) as answer:
                answer.read()
                return time.perf_counter() - running.began
        except OSError:
            time.sleep(0.005)


def start(size: Size) -> list[Figure]:
    times, used = [], []
    for _ in range(5):
        with nsqd() as running:
            times.append(answers_ping(running))
            used.append(processes.cpu_seconds(running.process.pid))
    return [Figure("start to /ping", min(times), "s", 0.4,
                   f"slowest of 5: {max(times):.3f} s; {min(used):.2f} s of CPU")]


def backlog(size: Size) -> list[Figure]:
    count = size(10_000_000)
    with nsqd() as running:
        target = running.target
        holder = Line(target.tcp, subscribe=("bench", "channel"))
        loads.publish(target, loads.LoadSettings("bench", count=10_000))
        before = processes.resident_bytes(running.process.pid)
        loads.publish(target, loads.LoadSettings("bench", count=count))
        grown = (processes.resident_bytes(running.process.pid) - before) / 1e6
        holder.close()
        return [Figure(f"memory of a backlog of {count:,}", grown, "MB", 150)]


def many_topics(size: Size) -> list[Figure]:
    count = size(10_000)
    path = tempfile.mkdtemp(prefix="lapwing-bench-")
    try:
        running = Nsqd(path)
        address = parse(running.http)
        calls = (web.post(address, f"/{what}") for number in range(count)
                 for what in (f"topic/create?topic=topic{number}", f"channel/create?topic=topic{number}&channel=c"))
        began = time.perf_counter()
        # one connection: a channel must not be asked for before its topic
        settings = loads.LoadSettings("bench")
        web.call_all(address, calls, connections=1, settings=settings, watch=loads.Watch(None), total=0)
        created = time.perf_counter() - began
        fresh = idle_share(running)
        running.stop()
        running = Nsqd(path)
        started = answers_ping(running)
        used = processes.cpu_seconds(running.process.pid)
        idle = idle_share(running)
        running.stop()
        return [Figure(f"{count:,} topics with a channel: idle CPU", max(fresh, idle) * 100, "%", 3,
                       f"created in {created:.1f} s"),
                Figure(f"{count:,} topics with a channel: start to /ping", started, "s", 10,
                       f"{used:.1f} s of CPU")]
    finally:
        shutil.rmtree(path, ignore_errors=True)


def idle_share(running: Nsqd) -> float:
    """CPU seconds per second while nobody asks for anything."""
    time.sleep(2)
    before, began = processes.cpu_seconds(running.process.pid), time.perf_counter()
    time.sleep(8)
    return (processes.cpu_seconds(running.process.pid) - before) / (time.perf_counter() - began)


def idle_connections(size: Size) -> list[Figure]:
    count = size(5_000)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < count + 100:
        count = hard - 100
    with nsqd() as running:
        lines = [Line(running.target.tcp) for _ in range(20)]
        before = processes.resident_bytes(running.process.pid)
        lines += [Line(running.target.tcp) for _ in range(count)]
        grown = (processes.resident_bytes(running.process.pid) - before) / count / 1000
        for line in lines:
            line.close()
        return [Figure(f"{count:,} idle connections: memory of each", grown, "KB", 20)]


HEADERS = b'{"key":"customer-12","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
WINDOW = b'{"dedup_window": "1h", "dedup_max": 1000000}'
PARTS: dict[str, Callable[[Size], list[Figure]]] = {
    "mpub": mpub, "consume": consume, "headers": headers, "ids": ids, "pub": pub, "fanout": fanout, "http": http,
    "latency": delay, "start": start,
    "backlog": backlog, "topics": many_topics, "connections": idle_connections, "redis": redis,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)} (default: all)")
    options.add_argument("--quick", action="store_true", help="a tenth of the load, once")
    options.add_argument("--runs", type=int, default=3, help="how often each load is run; the cheapest counts")
    chosen = options.parse_args()
    if unknown := [part for part in chosen.part if part not in PARTS]:
        options.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    size = Size(0.1, 1) if chosen.quick else Size(1.0, chosen.runs)
    print(f"nsqd, 200-byte messages, durability os, {os.cpu_count()} cores; CPU times are the server's, per message")
    missed = 0
    for part in chosen.part or PARTS:
        for figure in PARTS[part](size):
            print(figure, flush=True)
            missed += not figure.held
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
