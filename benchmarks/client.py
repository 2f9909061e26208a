"""What consuming and finishing a message costs: ours beside pynsq, gnsq and ansq.

    python benchmarks/client.py [--messages 200000] [--size 200] [--only lapwing,pynsq]

One nsqd (ours) holds the backlog, in a channel for each library; each library consumes its channel in a process of
its own, with a handler that only counts, and finishes every message. What is printed is the CPU time of that process
per message, from the first message to the last FIN.
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MAX_IN_FLIGHT = 2500
RUNS = 3


class Clock:
    """CPU and wall time from the first message on."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.count = count
        self.cpu = self.wall = 0.0

    def start(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def report(self) -> None:
        """What the parent reads."""
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        print(json.dumps({"cpu": cpu / self.count * 1e6, "rate": self.count / wall}), flush=True)


def lapwing_coroutine(address: str, topic: str, channel: str, count: int) -> None:
    """Ours, with a coroutine handler on uvloop."""
    import uvloop

    from lapwing import Consumer

    async def consume() -> None:
        clock, done = Clock(count), asyncio.Event()

        async def handle(message: object) -> None:
            clock.left -= 1
            if not clock.left:
                done.set()

        clock.start()
        async with Consumer(topic, channel, handle, nsqd=address, max_in_flight=MAX_IN_FLIGHT):
            await done.wait()
        clock.report()

    uvloop.run(consume())


def through_app(address: str, topic: str, channel: str, count: int, kind: type) -> None:
    """Ours, with a coroutine handler of an App whose body is of this type."""
    import uvloop

    from lapwing import App

    app = App(address)
    clock, done = Clock(count), asyncio.Event()

    async def handle(body: object) -> None:
        clock.left -= 1
        if not clock.left:
            done.set()

    handle.__annotations__["body"] = kind
    app.consumer(topic, channel, max_in_flight=MAX_IN_FLIGHT)(handle)

    async def consume() -> None:
        clock.start()
        async with app:
            await done.wait()
        clock.report()

    uvloop.run(consume())


def app_bytes(address: str, topic: str, channel: str, count: int) -> None:
    """Ours, through an App, with the body as it is."""
    through_app(address, topic, channel, count, bytes)


def app_msgspec(address: str, topic: str, channel: str, count: int) -> None:
    """Ours, through an App, with a body that msgspec decodes."""
    import msgspec

    through_app(address, topic, channel, count, msgspec.defstruct("Order", [("id", int), ("note", str)]))


def lapwing_thread(address: str, topic: str, channel: str, count: int) -> None:
    """Ours, with a plain function in a thread: it may block."""
    import uvloop

    from lapwing import Consumer

    async def consume() -> None:
        clock, done = Clock(count), asyncio.Event()
        loop = asyncio.get_running_loop()

        def handle(message: object) -> None:
            clock.left -= 1
            if not clock.left:
                loop.call_soon_threadsafe(done.set)

        clock.start()
        async with Consumer(topic, channel, handle, nsqd=address, max_in_flight=MAX_IN_FLIGHT):
            await done.wait()
        clock.report()

    uvloop.run(consume())


def lapwing_iteration(address: str, topic: str, channel: str, count: int) -> None:
    """Ours, with `async for` on asyncio's own loop."""
    from lapwing import Consumer

    async def consume() -> None:
        clock = Clock(count)
        clock.start()
        async with Consumer(topic, channel, nsqd=address, max_in_flight=MAX_IN_FLIGHT) as consumer:
            async for message in consumer:
                message.finish()
                clock.left -= 1
                if not clock.left:
                    break
        clock.report()

    asyncio.run(consume())


def pynsq(address: str, topic: str, channel: str, count: int) -> None:
    """pynsq, on tornado."""
    import nsq
    import tornado.ioloop

    clock = Clock(count)

    def handle(message: object) -> bool:
        if clock.left == clock.count:
            clock.start()
        clock.left -= 1
        if not clock.left:
            loop = tornado.ioloop.IOLoop.current()
            loop.call_later(0.05, loop.stop)  # so that the last FIN leaves
        return True

    nsq.Reader(
        topic, channel, message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=MAX_IN_FLIGHT,
        output_buffer_size=65536,
    )  # fmt: skip
    tornado.ioloop.IOLoop.current().start()
    clock.report()


def gnsq(address: str, topic: str, channel: str, count: int) -> None:
    """gnsq, on gevent."""
    from gevent import monkey

    monkey.patch_all()
    import gevent
    from gnsq import Consumer

    clock = Clock(count)
    consumer = Consumer(topic, channel, [address], max_in_flight=MAX_IN_FLIGHT)

    @consumer.on_message.connect
    def handle(_: object, message: object) -> None:
        if clock.left == clock.count:
            clock.start()
        clock.left -= 1
        if not clock.left:
            gevent.spawn_later(0.05, consumer.close)

    consumer.start()
    clock.report()


def ansq(address: str, topic: str, channel: str, count: int) -> None:
    """ansq, on uvloop."""
    import uvloop
    from ansq import create_reader

    async def consume() -> None:
        clock = Clock(count)
        reader = await create_reader(topic=topic, channel=channel, nsqd_tcp_addresses=[address])
        for connection in reader.connections:  # its own setting is not implemented
            await connection.rdy(MAX_IN_FLIGHT)
        async for message in reader.messages():
            if clock.left == clock.count:
                clock.start()
            await message.fin()
            clock.left -= 1
            if not clock.left:
                break
        clock.report()
        await reader.close()

    uvloop.run(consume())


LIBRARIES = {
    "lapwing": lapwing_coroutine,
    "app-bytes": app_bytes,
    "app-msgspec": app_msgspec,
    "lapwing-thread": lapwing_thread,
    "lapwing-for": lapwing_iteration,
    "pynsq": pynsq,
    "gnsq": gnsq,
    "ansq": ansq,
}


@contextlib.contextmanager
def running_nsqd() -> Iterator[tuple[str, str]]:
    """Our nsqd on free ports: its TCP address and its HTTP address."""
    with tempfile.TemporaryDirectory(prefix="lapwing-bench-") as path:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
             f"--data-path={path}"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            found: dict[str, str] = {}
            while len(found) < 2:
                line = process.stderr.readline()
                if not line:
                    raise SystemExit("nsqd did not start")
                if match := re.search(r"(TCP|HTTP): listening on (\S+)", line):
                    found[match[1]] = match[2]
            yield found["TCP"], found["HTTP"]
        finally:
            process.terminate()
            process.communicate()


def http(address: str, path: str, body: bytes | None = None) -> bytes:
    """What the nsqd answers."""
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data=body), timeout=30) as answer:
        return answer.read()


def fill(tcp: str, address: str, channels: list[str], count: int, size: int) -> None:
    """The same backlog for every channel: they are there before the first message."""
    from lapwing.client.sync import SyncProducer

    http(address, "/topic/create?topic=bench", b"")
    for channel in channels:
        http(address, f"/channel/create?topic=bench&channel={channel}", b"")
    with SyncProducer(tcp) as producer:
        head = b'{"id":1,"note":"'
        batch = [head + b"x" * (size - len(head) - 2) + b'"}'] * 1000
        for _ in range(count // 1000):
            producer.publish_many("bench", batch)


def left_over(address: str, channel: str) -> int:
    """Messages of a channel that are not finished."""
    stats = json.loads(http(address, f"/stats?format=json&topic=bench&channel={channel}"))
    one = stats["topics"][0]["channels"][0]
    return int(one["depth"] + one["in_flight_count"] + one["deferred_count"])


def main() -> None:
    """Fill, measure, print."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--messages", type=int, default=200_000)
    flags.add_argument("--size", type=int, default=200)
    flags.add_argument("--only", default=",".join(LIBRARIES))
    flags.add_argument("--worker", help=argparse.SUPPRESS)
    flags.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = flags.parse_args()
    if given.worker:
        address, channel = given.rest
        LIBRARIES[given.worker](address, "bench", channel, given.messages)
        return
    chosen = given.only.split(",")
    count = given.messages // 1000 * 1000
    channels = {name: [f"{name}-{run}" for run in range(RUNS)] for name in chosen}
    print(f"{count} messages of {given.size} bytes, max_in_flight {MAX_IN_FLIGHT}, best of {RUNS}; CPU of the client")
    best: dict[str, float] = {}
    with running_nsqd() as (tcp, address):
        fill(tcp, address, [channel for some in channels.values() for channel in some], count, given.size)
        print(f"{'library':16}{'us CPU/message':>16}{'messages/s':>14}{'times ours':>12}{'unfinished':>12}")
        results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for run in range(RUNS):  # in turns, so that a busy moment meets all of them
            for name in chosen:
                channel = channels[name][run]
                command = [sys.executable, __file__, "--worker", name, "--messages", str(count), tcp, channel]
                done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
                if done.returncode or not done.stdout:
                    print(f"{name:16}failed: {done.stderr.strip().splitlines()[-1:]}")
                else:
                    results[name].append(json.loads(done.stdout.splitlines()[-1]))
        for name, some in results.items():
            if not some:
                continue
            result = min(some, key=lambda one: one["cpu"])
            best[name] = result["cpu"]
            times = f"{result['cpu'] / best['lapwing']:.2f}" if "lapwing" in best else "-"
            left = sum(left_over(address, channel) for channel in channels[name])
            print(f"{name:16}{result['cpu']:16.2f}{result['rate']:14.0f}{times:>12}{left:12}", flush=True)


if __name__ == "__main__":
    main()
