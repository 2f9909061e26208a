"""The costs of failures, dead letters and deferred messages, with the limit we hold ourselves to beside each figure.

    python benchmarks/failure.py                        all parts
    python benchmarks/failure.py dead deferred          these
    python benchmarks/failure.py --quick                a tenth of the load
    python benchmarks/failure.py unused --beside NSQD   in turns with the nsqd of another checkout

CPU times are those of the nsqd process. Runs that are compared take turns, and the cheapest of each counts.
"""

import argparse
import json
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nsqd as bench
from lapwing.tools import processes
from lapwing.tools.bench import loads
from nsqd import Figure, Nsqd, Size

HEAD = 26  # bytes of a message before its body, behind the frame's head
SETTINGS = {"max_attempts": 5, "retry_first": "1s"}


def call(running: Nsqd, method: str, target: str, document: Any = None, body: bytes | None = None) -> Any:
    """Return the answer of nsqd to an HTTP request."""
    data = json.dumps(document).encode() if document is not None else body
    request = urllib.request.Request(f"http://{running.http}{target}", data=data, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in (b"{", b"[") else text


class Consumer:
    """A plain NSQ connection."""

    def __init__(self, running: Nsqd) -> None:
        host, _, port = running.tcp.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(b"  V2")
        self._buffer = b""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the frames of one read."""
        self._buffer += self.socket.recv(1 << 20)
        at = 0
        while len(self._buffer) - at >= 8:
            size, kind = struct.unpack_from(">II", self._buffer, at)
            if len(self._buffer) - at < size + 4:
                break
            yield kind, self._buffer[at + 8 : at + 4 + size]
            at += size + 4
        self._buffer = self._buffer[at:]


def create(running: Nsqd, **settings: object) -> None:
    call(running, "POST", "/topic/create?topic=t", body=b"")
    call(running, "POST", "/channel/create?topic=t&channel=c", body=b"")
    if settings:
        call(running, "PATCH", "/channel/settings?topic=t&channel=c", settings)


def dead(size: Size) -> list[Figure]:
    """Have a consumer fail once at every message of a channel that gives up at the first failure."""
    count, costs = size(100_000), []
    for _ in range(size.runs):
        with bench.nsqd() as running:
            create(running, max_attempts=1)
            for _ in range(count // 1000):
                call(running, "POST", "/mpub?topic=t", body=b"\n".join([b"x" * 200] * 1000))
            consumer = Consumer(running)
            before = processes.cpu_seconds(running.process.pid)
            consumer.socket.sendall(b"SUB t c\nRDY 2500\n")
            seen = 0
            while seen < count // 1000 * 1000:
                ids = [payload[10:HEAD] for kind, payload in consumer.frames() if kind == 2]
                seen += len(ids)
                consumer.socket.sendall(b"".join(b"REQ %b 0\n" % each for each in ids))
            while call(running, "GET", "/dead")["topics"][0]["letters"] < seen:
                time.sleep(0.05)
            costs.append((processes.cpu_seconds(running.process.pid) - before) / seen * 1e6)
    return [Figure(f"{count:,} messages delivered, failed and made dead letters", min(costs), "us", 10)]


def deferred(size: Size) -> list[Figure]:
    """Publish messages that wait for an hour, and see what they cost meanwhile."""
    count = size(1_000_000)
    with bench.nsqd() as running:
        create(running)
        producer = Consumer(running)
        before = processes.resident_bytes(running.process.pid)
        answered = sent = 0
        body = struct.pack(">I", 100) + b"x" * 100
        while answered < count:
            batch = min(500, count - sent)
            if batch and sent - answered < 5000:
                producer.socket.sendall((b"DPUB t 3500000\n" + body) * batch)
                sent += batch
            else:
                answered += sum(1 for kind, payload in producer.frames() if (kind, payload) == (0, b"OK"))
        time.sleep(2)  # for the checkpoint
        grown = (processes.resident_bytes(running.process.pid) - before) / 1e6
        idle = bench.idle_share(running)
    return [Figure(f"{count:,} deferred messages: memory", grown, "MB", 100 * count / 1e6),
            Figure(f"{count:,} deferred messages: CPU while they wait", idle * 100, "%", 3)]


def consumed(program: Path | None, size: Size, policy: dict[str, object] | None) -> float:
    """Return the CPU per message of consuming fresh messages, us."""
    bench.PROGRAM = program or bench.PROGRAM
    with bench.nsqd() as running:
        if policy is not None:
            call(running, "PUT", "/policies/all", {"topics": "*", "channels": "*", "settings": policy})
        result = loads.consume(running.target, loads.LoadSettings("bench", count=size(2_000_000)))
    return result.server_us or 0.0


def fresh(size: Size) -> list[Figure]:
    """Compare a channel with settings with one that has none."""
    plain, settled = [], []
    for _ in range(size.runs):
        plain.append(consumed(None, size, None))
        settled.append(consumed(None, size, SETTINGS))
    more = f"{min(settled):.3f} us with max_attempts and retry_first, {min(plain):.3f} us without"
    return [Figure("fresh messages of a channel with settings", min(settled) / min(plain), "times", 1.05, more)]


def unused(size: Size, beside: Path | None) -> list[Figure]:
    """Compare with another nsqd, without any settings."""
    if beside is None:
        return []
    ours, theirs, own = [], [], bench.PROGRAM
    for _ in range(size.runs):
        ours.append(consumed(own, size, None))
        theirs.append(consumed(beside, size, None))
    bench.PROGRAM = own
    more = f"{min(ours):.3f} us, beside {min(theirs):.3f} us"
    return [Figure("consuming without settings, beside another nsqd", min(ours) / min(theirs), "times", 1.05, more)]


PARTS: dict[str, Callable[[Size], list[Figure]]] = {"dead": dead, "fresh": fresh, "deferred": deferred}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", nargs="*", choices=[*PARTS, "unused", []], help="the parts (default: all)")
    options.add_argument("--quick", action="store_true", help="a tenth of the load, once")
    options.add_argument("--runs", type=int, default=3, help="how often each load is run; the cheapest counts")
    options.add_argument("--beside", type=Path, help="the nsqd program of another checkout, for `unused`")
    chosen = options.parse_args()
    size = Size(0.1, 1) if chosen.quick else Size(1.0, chosen.runs)
    parts = PARTS | {"unused": lambda size: unused(size, chosen.beside)}
    missed = 0
    for part in chosen.part or parts:
        for figure in parts[part](size):
            print(figure, flush=True)
            missed += not figure.held
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
