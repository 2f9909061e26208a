"""The costs of delivery by key, and how fair it is, with the limit we hold ourselves to beside each figure.

    python benchmarks/keys.py                     all parts
    python benchmarks/keys.py ratio fair memory   these
    python benchmarks/keys.py --quick             a tenth of the load

CPU times are those of the nsqd process. Runs that are compared take turns, and the cheapest of each counts. Waits are
counted in deliveries, not in seconds, so the speed of the machine does not matter.
"""

import argparse
import json
import random
import struct
import sys
import time
from collections.abc import Sequence

from failure import Consumer, call, create

import nsqd as bench
from lapwing.tools import processes
from nsqd import Figure, Nsqd, Size

BATCH = 500
READY = 1000


class Producer(Consumer):
    """A connection that publishes messages with keys."""

    def __init__(self, running: Nsqd) -> None:
        super().__init__(running)
        identity = json.dumps({"headers": True, "feature_negotiation": True}).encode()
        self.socket.sendall(b"IDENTIFY\n" + struct.pack(">I", len(identity)) + identity)
        self.wait(1)

    def wait(self, answers: int) -> None:
        """Wait for answers of nsqd."""
        while answers > 0:
            answers -= sum(1 for kind, payload in self.frames() if payload != b"_heartbeat_")

    def publish(self, keys: Sequence[str], size: int) -> None:
        """Publish a message for each key, in batches."""
        for at in range(0, len(keys), BATCH):
            parts = []
            for number, key in enumerate(keys[at : at + BATCH], at):
                headers = b'{"key":"%b"}' % key.encode()
                body = (b"%b %d " % (key.encode(), number)).ljust(size, b"x")
                parts.append(struct.pack(">iI", 4 + len(headers) + len(body), len(headers)) + headers + body)
            batch = struct.pack(">i", len(parts)) + b"".join(parts)
            self.socket.sendall(b"HMPUB t\n" + struct.pack(">i", len(batch)) + batch)
            self.wait(1)


def consumed(consumer: Consumer, count: int, ready: int = READY) -> list[bytes]:
    """Consume so many messages, each finished at once; return their bodies."""
    consumer.socket.sendall(b"SUB t c\nRDY %d\n" % ready)
    bodies: list[bytes] = []
    while len(bodies) < count:
        messages = [payload for kind, payload in consumer.frames() if kind == 2]
        if messages:
            bodies += [payload[26:] for payload in messages]
            consumer.socket.sendall(b"".join([b"FIN %b\n" % payload[10:26] for payload in messages]))
    return bodies


def cost(count: int, keys: int, settings: dict[str, object]) -> tuple[float, float]:
    """Return the CPU per message of publishing, and of delivering and finishing, us."""
    chosen = random.Random(1)
    with bench.nsqd() as running:
        create(running, **settings)
        names = [f"customer-{chosen.randrange(keys)}" for _ in range(count)]
        begin = processes.cpu_seconds(running.process.pid)
        Producer(running).publish(names, 200)
        published = processes.cpu_seconds(running.process.pid)
        consumed(Consumer(running), count)
        end = processes.cpu_seconds(running.process.pid)
    return (published - begin) / count * 1e6, (end - published) / count * 1e6


def ratio(size: Size) -> list[Figure]:
    """Compare channels that deliver by key with one that does not; all have the same messages."""
    count = size(500_000)
    kinds: dict[str, dict[str, object]] = {
        "plain": {}, "order=key": {"order": "key"}, "fair": {"fair": True},
        "order=key, json": {"order": "key", "key_from": "json:/id"},
    }  # fmt: skip
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(size.runs):
        for name, settings in kinds.items():
            costs[name].append(cost(count, 10_000, settings))
    plain = min(publish + consume for publish, consume in costs["plain"])
    figures = []
    for name in list(kinds)[1:]:
        mine = min(publish + consume for publish, consume in costs[name])
        alone = f"deliver and finish {min(each[1] for each in costs[name]):.2f} us, "
        more = f"{alone}plain {min(each[1] for each in costs['plain']):.2f}; with publishing {mine:.2f}, {plain:.2f}"
        limit = 2.5 if name == "order=key" else 10
        figures.append(Figure(f"{name}, 10,000 keys: CPU of a message's life", mine / plain, "times", limit, more))
    return figures


def p99(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) * 99 // 100 - 1]


def delivered(flood: int, settings: dict[str, object]) -> list[int]:
    """Have one tenant flood the topic and 50 others send 10 each, 100 in flight; return the waits of the others."""
    with bench.nsqd() as running:
        create(running, **settings)
        producer = Producer(running)
        if flood:
            producer.publish(["large"] * flood, 200)
        producer.publish([f"small-{number % 50}" for number in range(500)], 200)
        order = consumed(Consumer(running), flood + 500, ready=100)
    return [at for at, body in enumerate(order) if body.startswith(b"small")]


def fair(size: Size) -> list[Figure]:
    """Compare how long small tenants wait beside a large one with how long they wait alone."""
    flood = size(100_000)
    alone, beside, plain = delivered(0, {"fair": True}), delivered(flood, {"fair": True}), delivered(flood, {})
    more = f"alone {p99(alone)} deliveries, beside {flood:,} of another {p99(beside)}, plain channel {p99(plain):,}"
    return [Figure("p99 wait of 50 small tenants beside a large one, by their wait alone", p99(beside) / p99(alone),
                   "times", 2, more)]


def memory(size: Size) -> list[Figure]:
    """Have messages of few and of many keys wait for their keys; see what they take, and what they cost meanwhile."""
    figures = []
    count = size(1_000_000)
    for keys in (1, 1000):
        with bench.nsqd() as running:
            create(running, order="key")
            consumer, producer = Consumer(running), Producer(running)
            consumer.socket.sendall(b"SUB t c\nRDY 2500\n")
            time.sleep(0.2)
            producer.publish([f"key-{number}" for number in range(keys)], 100)
            time.sleep(0.5)
            before = processes.resident_bytes(running.process.pid)
            producer.publish([f"key-{number % keys}" for number in range(count)], 100)
            time.sleep(3)  # for the checkpoint
            grown = (processes.resident_bytes(running.process.pid) - before) / 1e6
            channel = call(running, "GET", "/stats?format=json&topic=t")["topics"][0]["channels"][0]
            assert channel["waiting_for_key"] == count, channel
            idle = bench.idle_share(running)
        figures.append(Figure(f"{count:,} messages blocked by {keys:,} keys: memory", grown, "MB", 100 * count / 1e6))
        figures.append(Figure(f"{count:,} messages blocked by {keys:,} keys: CPU while they wait", idle * 100, "%", 3))
    return figures


PARTS = {"ratio": ratio, "fair": fair, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description="measure delivery by key")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--runs", type=int, default=3, help="runs of each that are compared")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    size = Size(0.1, 1) if options.quick else Size(1.0, options.runs)
    missed = False
    for name in options.parts or PARTS:
        for figure in PARTS[name](size):
            print(figure, flush=True)
            missed |= not figure.held
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
