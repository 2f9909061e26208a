"""What `--durability=replicated` costs beside `fsync`: CPU of nsqd per message, in turns, with MPUBs of 200 messages.

    python benchmarks/replicated.py                          one and four MPUBs unanswered on each of two connections
    python benchmarks/replicated.py --nsqd OTHER/.venv/bin/nsqd    two versions in turns
    python benchmarks/replicated.py --restore 5000000        a start elsewhere, with so many messages in the remote log

The remote log is in a folder. CPU is that of the whole process with its threads, in user and system; of several turns
the cheapest counts, as everything else on the machine only adds to them.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lapwing.client.address import parse
from lapwing.tools import processes
from lapwing.tools.bench import loads

HERE = Path(sys.executable).parent / "nsqd"
LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")
GOAL = 1.3  # times the CPU of fsync
GOAL_START = 5.0  # seconds


@contextmanager
def running(program: Path, *flags: str) -> Iterator[tuple[loads.Target, float]]:
    """Start an nsqd; yield it, and the seconds until it listened."""
    began = time.perf_counter()
    command = [str(program), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found: dict[str, str] = {}
        lines = []
        while len(found) < 2:
            lines.append(process.stderr.readline())
            if not lines[-1]:
                raise SystemExit("".join(lines))
            found.update(LISTENING.findall(lines[-1]))
        yield loads.Target(parse(found["TCP"]), found["HTTP"], process.pid), time.perf_counter() - began
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    """Yield a data path, and the folder of a remote log."""
    whole = Path(tempfile.mkdtemp(prefix="lapwing-bench-"))
    try:
        (whole / "remote").mkdir()
        yield whole / "data", whole / "remote"
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def publish(program: Path, durability: str, window: int, count: int) -> tuple[float, float]:
    """Return the microseconds of CPU per message, and messages per second."""
    with folders() as (data, remote):
        flags = [f"--data-path={data}", f"--durability={durability}"]
        data.mkdir()
        if durability == "replicated":
            flags.append(f"--remote=file://{remote}")
        with running(program, *flags) as (target, _):
            settings = loads.LoadSettings("bench", count=count, window=window)
            result = loads.publish(target, settings)
            before = processes.cpu_seconds(target.pid or 0)
            result = loads.publish(target, settings)
            used = processes.cpu_seconds(target.pid or 0) - before
        return used / count * 1e6, result.rate


def measure(programs: list[Path], window: int, count: int, turns: int) -> None:
    """Print a row for each version and durability."""
    best: dict[tuple[Path, str], tuple[float, float]] = {}
    for _ in range(turns):
        for program in programs:
            for durability in ("fsync", "replicated"):
                used = publish(program, durability, window, count)
                best[program, durability] = min(best.get((program, durability), used), used)
    for program in programs:
        local, local_rate = best[program, "fsync"]
        away, away_rate = best[program, "replicated"]
        print(
            f"MPUB 200, 2 connections, {window} unanswered: {away:.3f} us over {local:.3f} us of fsync, "
            f"{away / local:.2f} times (goal {GOAL}); {away_rate:,.0f} and {local_rate:,.0f} messages/s  {program}"
        )


def restore(program: Path, count: int) -> None:
    """Print how long a start elsewhere takes."""
    with folders() as (data, remote):
        flags = ["--durability=replicated", f"--remote=file://{remote}", "--take-over"]
        data.mkdir()
        with running(program, f"--data-path={data}", *flags) as (target, _):
            loads.publish(target, loads.LoadSettings("bench", count=count))
        elsewhere = data.with_name("elsewhere")
        with running(program, f"--data-path={elsewhere}", *flags) as (target, seconds):
            used = processes.cpu_seconds(target.pid or 0)
        print(
            f"a start elsewhere with {count:,} messages: {seconds:.2f} s (goal {GOAL_START:g}), {used:.2f} s of CPU  "
            f"{program}"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nsqd", type=Path, action="append", default=[], help="another version, in turns with this")
    options.add_argument("--count", type=int, default=1_000_000, help="messages of a turn")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--restore", type=int, metavar="MESSAGES", help="measure a start elsewhere instead")
    chosen = options.parse_args()
    programs = [HERE, *chosen.nsqd]
    if chosen.restore:
        for program in programs:
            restore(program, chosen.restore)
        return
    for window in (1, 4):
        measure(programs, window, chosen.count, chosen.turns)


if __name__ == "__main__":
    main()
