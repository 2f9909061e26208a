"""What the log costs: CPU time per message, and memory, as ratios where a machine's speed would hide the point.

    python benchmarks/log.py                        both twins of the kernel, and a log of 10 million messages (2.4 GB)
    python benchmarks/log.py --messages 1000000     a smaller one
"""

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from lapwing import kernel
from lapwing.log.log import DiskLog, LogOptions, RetentionLimits

NODE = 7
OPTIONS = LogOptions(boot=1)  # as nsqd opens them where the system has a boot id
BODY = 200
BATCH = 200
MPUB = struct.pack(">i", BATCH) + (struct.pack(">i", BODY) + b"x" * BODY) * BATCH
SLICE = 2500

LIMITS = {
    "append": (0.15, "us CPU per message, framing and write included"),
    "append, pure": (1.5, "us CPU per message, framing and write included"),
    "open": (2.0, "s to open"),
    "heap": (64.0, "MB of heap to open"),
}


def cpu(work: Callable[[], None]) -> float:
    """CPU seconds, user and system, that `work` takes."""
    before = time.process_time()
    work()
    return time.process_time() - before


def append(directory: Path, rounds: int) -> dict[str, float]:
    """CPU per message: framing, appending and flushing batches; the best of several rounds, as others use the machine.

    Old segments are let go of in between, as under retention, so that the disk is no part of the figure.
    """
    log = DiskLog(directory / "append", NODE, options=OPTIONS)
    batches = 400
    best = system = float("inf")
    for _ in range(rounds):

        def work() -> None:
            for number in range(batches):
                frames, count = kernel.frame_mpub(MPUB, (NODE << 54) + log.next, number, 10_000, 10_000)
                log.append(frames, count, now=number)
                log.flush()

        before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
        taken = cpu(work)
        if taken < best:
            best, system = taken, resource.getrusage(resource.RUSAGE_SELF).ru_stime - before
        log.release(log.end, now=0, limits=RetentionLimits())
    log.destroy()
    per_message = 1e6 / batches / BATCH
    return {"append": best * per_message, "of it in the system": system * per_message}


def plain_write(directory: Path, rounds: int) -> float:
    """CPU per message of nothing but the same bytes written to a file: what no log can go below."""
    frames = kernel.frame_mpub(MPUB, 0, 0, 10_000, 10_000)[0]
    batches = 400
    best = float("inf")
    for number in range(rounds):
        path = directory / f"plain{number}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

        def work(fd: int = fd) -> None:
            for place in range(batches):
                os.pwrite(fd, frames, place * len(frames))

        best = min(best, cpu(work))
        os.close(fd)
        path.unlink()
    return best * 1e6 / batches / BATCH


def fill(directory: Path, messages: int) -> None:
    """A log of that many messages, in the batches that a busy publisher makes."""
    log = DiskLog(directory / "large", NODE, options=OPTIONS)
    while log.next < messages:
        frames, count = kernel.frame_mpub(MPUB, (NODE << 54) + log.next, log.next, 10_000, 10_000)
        log.append(frames, count, now=log.next)
        log.flush()
    log.close()


def open_large(directory: Path) -> dict[str, float]:
    """Seconds and heap to open the large log."""
    begin = time.perf_counter()
    DiskLog(directory / "large", NODE, options=OPTIONS).close()
    seconds = time.perf_counter() - begin
    tracemalloc.start()
    log = DiskLog(directory / "large", NODE, options=OPTIONS)
    assert log.frame(log.end // 2)
    heap = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    log.close()
    return {"open": seconds, "heap": heap}


def slices(directory: Path) -> dict[str, float]:
    """CPU of a slice of 2,500 messages anywhere, of reading everything, and the heap that either needs."""
    log = DiskLog(directory / "large", NODE, options=OPTIONS)
    places = [random.Random(1).randrange(log.end - SLICE) for _ in range(300)]

    def jump() -> None:
        for place in places:
            reader, left = log.reader(place), SLICE
            while left:
                _, count = reader.take(place + SLICE, left, 1 << 20)
                left -= count

    def everything() -> None:
        reader = log.reader(0)
        while reader.take(log.end, SLICE, 1 << 20)[1]:
            pass

    jump()
    figures = {"slice": cpu(jump) / len(places) * 1e6}
    tracemalloc.start()
    jump()
    figures["slice heap"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    figures["scan"] = cpu(everything) / log.end * 1e6
    log.close()
    return figures


def tail(directory: Path) -> float:
    """CPU per message of ten channels that read at the tail what was just flushed."""
    log = DiskLog(directory / "tail", NODE, options=OPTIONS)
    frames = kernel.frame_mpub(MPUB, NODE << 54, 0, 10_000, 10_000)[0]
    readers = [log.reader(0) for _ in range(10)]
    spent = 0.0
    for number in range(300):
        log.append(frames, BATCH, now=number)
        log.flush()

        def work() -> None:
            for reader in readers:
                reader.take(log.end, 1000, 1 << 20)

        spent += cpu(work)
    log.destroy()
    return spent / 300 / BATCH / len(readers) * 1e6


def many_topics(directory: Path, count: int) -> float:
    """Seconds to open that many logs, each with a few messages."""
    frames, number = kernel.frame_mpub(MPUB, NODE << 54, 0, 10_000, 10_000)
    for topic in range(count):
        log = DiskLog(directory / "many" / str(topic), NODE)
        log.append(frames, number, now=1)
        log.flush()
        log.close()
    begin = time.perf_counter()
    logs = [DiskLog(directory / "many" / str(topic), NODE) for topic in range(count)]
    assert all(log.end == BATCH for log in logs)
    return time.perf_counter() - begin


def single(directory: Path) -> dict[str, float]:
    """CPU of publishes of one message each, flushed one by one; and of reading them back."""
    log = DiskLog(directory / "single", NODE, options=OPTIONS)
    count = 20_000

    def write() -> None:
        for number in range(count):
            log.append(kernel.frame_one(b"x" * BODY, (NODE << 54) + log.next, number), 1, now=number)
            log.flush()

    def read() -> None:
        reader = log.reader(0)
        while reader.take(log.end, SLICE, 1 << 20)[1]:
            pass

    figures = {"single": cpu(write) / count * 1e6, "single read": cpu(read) / count * 1e6}
    log.destroy()
    return figures


def pure_append() -> float:
    """The append figure of the pure twin, from a process that was asked for it."""
    command = [sys.executable, __file__, "--append-only"]
    environment = os.environ | {"LAPWING_PURE": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures["append"]


def main() -> None:
    """Measure and print; exit code 1 when a limit is not kept."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--messages", type=int, default=10_000_000, help="size of the large log")
    options.add_argument("--topics", type=int, default=2_000, help="how many small logs to open")
    options.add_argument("--directory", help="where to put the logs (default: the system's temporary directory)")
    options.add_argument("--append-only", action="store_true", help="print the append figures as JSON, nothing else")
    chosen = options.parse_args()
    directory = Path(tempfile.mkdtemp(dir=chosen.directory))
    try:
        if chosen.append_only:
            print(json.dumps(append(directory, 5)))
            return
        figures = append(directory, 12)
        plain = plain_write(directory, 12)
        figures["append, pure"] = pure_append()
        print(f"kernel: {'compiled' if kernel.COMPILED else 'pure'}; {BODY}-byte messages in batches of {BATCH}\n")
        show("append", figures)
        print(f"        of it in the system: {figures['of it in the system']:.3f}; the bare write of the same bytes "
              f"costs {plain:.3f}, so the log is {figures['append'] / plain:.2f} times that")
        show("append, pure", figures)
        print(f"        take at the tail: {tail(directory):.4f} us CPU per message and channel")
        figures |= single(directory)
        print(f"        one message a flush: {figures['single']:.1f} us CPU; reading such a log back: "
              f"{figures['single read']:.3f} us CPU per message")
        fill(directory, chosen.messages)
        figures |= open_large(directory)
        print(f"\na log of {chosen.messages:,} messages, {size_of(directory / 'large') / 1e9:.2f} GB on disk")
        show("open", figures)
        show("heap", figures)
        figures |= slices(directory)
        print(f"        a slice of {SLICE:,} messages anywhere: {figures['slice']:.0f} us CPU, verified; "
              f"peak heap {figures['slice heap']:.2f} MB")
        print(f"        reading all of it, verified: {figures['scan']:.3f} us CPU per message")
        print(f"\n{chosen.topics:,} topics open in {many_topics(directory, chosen.topics):.2f} s")
    finally:
        shutil.rmtree(directory)
    if any(figures[name] > limit for name, (limit, _) in LIMITS.items()):
        sys.exit(1)


def show(name: str, figures: dict[str, float]) -> None:
    """One figure beside its limit."""
    limit, unit = LIMITS[name]
    verdict = "ok" if figures[name] <= limit else "OVER THE LIMIT"
    print(f"{name + ':':14}{figures[name]:8.3f} {unit} (at most {limit:g}: {verdict})")


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory."""
    return sum(path.stat().st_size for path in directory.iterdir())


if __name__ == "__main__":
    main()
