"""Many topics on one nsqd: memory, a good client's latency meanwhile, `/stats`, and a restart.

python benchmarks/topics.py [--topics 100000] [--channels 0] [--kill]

Each topic gets one message. A client of its own publishes to one topic all the time and waits for each OK: its p99 and
maximum show how long others wait while topics are created, while `/stats` is answered, and while nothing happens.
"""

import argparse
import asyncio
import json
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NSQD = Path(sys.executable).with_name("nsqd")
LISTENING = re.compile(rb"(TCP|HTTP): listening on \S+:(\d+)")


class Nsqd:
    """A running nsqd."""

    draining: asyncio.Task[None]

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, int], seconds: float) -> None:
        self.process = process
        self.tcp = ports["TCP"]
        self.http = ports["HTTP"]
        self.seconds = seconds  # until it listened

    @classmethod
    async def start(cls, data: str) -> "Nsqd":
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            str(NSQD), f"--data-path={data}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        ports: dict[str, int] = {}
        assert process.stderr is not None
        while len(ports) < 2:
            line = await process.stderr.readline()
            if not line:
                raise SystemExit("nsqd did not start")
            if match := LISTENING.search(line):
                ports[match[1].decode()] = int(match[2])
        nsqd = cls(process, ports, 0.0)
        nsqd.draining = asyncio.create_task(nsqd._drain())
        await nsqd.get("/ping")
        nsqd.seconds = time.perf_counter() - began
        return nsqd

    async def _drain(self) -> None:
        assert self.process.stderr is not None
        while await self.process.stderr.readline():
            pass

    async def get(self, target: str, method: str = "GET") -> bytes:
        """Return the body of an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http)
        writer.write(f"{method} {target} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        data = await reader.read()
        writer.close()
        return data.partition(b"\r\n\r\n")[2]

    def megabytes(self, kind: str = "VmRSS") -> float:
        """Return the memory it takes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{kind}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    async def end(self, number: signal.Signals) -> float:
        """End it; return the seconds that took."""
        began = time.perf_counter()
        self.process.send_signal(number)
        await self.process.wait()
        return time.perf_counter() - began


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"  V2")
    return reader, writer


class GoodClient:
    """Publishes every few milliseconds, and notes how long each OK takes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.times: list[float] = []

    async def run(self) -> None:
        reader, writer = await connected(self._port)
        command = b"PUB good\n" + struct.pack(">I", 100) + bytes(100)
        while True:
            began = time.perf_counter()
            writer.write(command)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                if frame[4:] == b"OK":
                    break
                writer.write(b"NOP\n")
            self.times.append(time.perf_counter() - began)
            await asyncio.sleep(0.002)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Print what others had to wait while something was done."""
        self.times.clear()
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        times = sorted(self.times) or [seconds]
        p99 = times[int(len(times) * 0.99)]
        others = f"others: p99 {p99 * 1e3:6.1f} ms, max {times[-1] * 1e3:6.1f} ms"
        print(f"{what:32} {seconds:8.1f} s   {others}", flush=True)


async def create(nsqd: Nsqd, topics: int, channels: int) -> None:
    """Publish one message to each topic, a hundred unanswered at a time."""
    reader, writer = await connected(nsqd.tcp)
    body = struct.pack(">I", 20) + bytes(20)
    for first in range(0, topics, 100):
        names = [f"topic_{number:06d}" for number in range(first, min(first + 100, topics))]
        writer.write(b"".join(b"PUB %s\n%s" % (name.encode(), body) for name in names))
        for _ in names:
            size = int.from_bytes(await reader.readexactly(4), "big")
            if (frame := await reader.readexactly(size)) != b"\0\0\0\0OK":
                writer.write(b"NOP\n")
                assert b"_heartbeat_" in frame, frame
                await reader.readexactly(10)
        for number in range(channels):
            for name in names:
                await nsqd.get(f"/channel/create?topic={name}&channel=c{number}", "POST")
    writer.close()


async def measure(arguments: argparse.Namespace, data: str) -> None:
    nsqd = await Nsqd.start(data)
    empty = nsqd.megabytes()
    print(f"start without topics: {nsqd.seconds:.2f} s, {empty:.0f} MB")
    good = GoodClient(nsqd.tcp)
    task = asyncio.create_task(good.run())
    await asyncio.sleep(1)
    with good.during(f"create {arguments.topics:,} topics"):
        await create(nsqd, arguments.topics, arguments.channels)
    await asyncio.sleep(3)
    print(f"memory: {nsqd.megabytes():.0f} MB, at most {nsqd.megabytes('VmHWM'):.0f} MB")
    with good.during("nothing for 10 s"):
        await asyncio.sleep(10)
    for target in ("/stats?format=json", "/stats", "/metrics"):
        with good.during(target):
            answer = await nsqd.get(target)
        if "json" in target:
            assert len(json.loads(answer)["topics"]) == arguments.topics + 1
    print(f"memory: {nsqd.megabytes():.0f} MB, at most {nsqd.megabytes('VmHWM'):.0f} MB")
    task.cancel()
    number = signal.SIGKILL if arguments.kill else signal.SIGTERM
    print(f"{number.name}: {await nsqd.end(number):.1f} s")
    nsqd = await Nsqd.start(data)
    print(f"restart: {nsqd.seconds:.1f} s, {nsqd.megabytes():.0f} MB")
    good = GoodClient(nsqd.tcp)
    task = asyncio.create_task(good.run())
    await asyncio.sleep(1)
    with good.during("after the restart: /stats"):
        answer = await nsqd.get("/stats?format=json")
    assert len(json.loads(answer)["topics"]) == arguments.topics + 1
    with good.during("nothing for 10 s"):
        await asyncio.sleep(10)
    print(f"memory: {nsqd.megabytes():.0f} MB")
    task.cancel()
    await nsqd.end(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--channels", type=int, default=0, help="channels of each topic")
    parser.add_argument("--kill", action="store_true", help="restart after kill -9 instead of a clean stop")
    parser.add_argument("--folder", default=None, help="folder for the data path; it is removed")
    arguments = parser.parse_args()
    data = tempfile.mkdtemp(dir=arguments.folder)
    try:
        asyncio.run(measure(arguments, data))
    finally:
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
