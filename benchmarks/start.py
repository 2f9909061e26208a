"""Measure the CPU of the daemons from their start to their first answer, and how long they take to stop.

    python benchmarks/start.py [--runs 15] [--bin FOLDER]

Starts nsqd, nsqlookupd and nsqadmin in turns, asks each for `/ping` as soon as it listens, and stops it. The CPU is
that of all its threads, from the kernel's own account, so other work on the machine matters little. Programs of
another installation, in `--bin`, are measured in the same turns. Modules have to be compiled: with
PYTHONDONTWRITEBYTECODE and without `__pycache__` a start takes about three times as much.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PROGRAMS = {
    "nsqd": ("--tcp-address=127.0.0.1:0",),
    "nsqlookupd": ("--tcp-address=127.0.0.1:0",),
    "nsqadmin": ("--lookupd-http-address=127.0.0.1:1",),
}


def spent(pid: int) -> float:
    """Return the seconds of CPU that all threads of a process have taken."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure(program: Path, *flags: str) -> tuple[float, float, float]:
    """Return the CPU until the first answer, and the time and the CPU of the stop, all in seconds."""
    with tempfile.TemporaryDirectory(prefix="lapwing-start-") as folder:
        command = [str(program), "--http-address=127.0.0.1:0", *flags]
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            listening = (re.search(r"HTTP: listening on (\S+)", line) for line in process.stderr)
            address = next(match[1] for match in listening if match)
            urllib.request.urlopen(f"http://{address}/ping", timeout=60).read()
            started = spent(process.pid)
            began = time.monotonic()
            process.terminate()
            _, _, usage = os.wait4(process.pid, 0)
            stopped = time.monotonic() - began
            process.returncode = 0
            return started, stopped, max(0.0, usage.ru_utime + usage.ru_stime - started)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--bin", type=Path, help="measure the programs in this folder as well")
    arguments = parser.parse_args()
    folders = [Path(sys.executable).parent, *([arguments.bin] if arguments.bin else [])]
    print(f"{'program':45} {'CPU to /ping':>13} {'stop':>8} {'CPU of stop':>12}")
    for name, flags in PROGRAMS.items():
        runs: dict[Path, list[tuple[float, float, float]]] = {folder: [] for folder in folders}
        for _ in range(arguments.runs):
            for folder, measured in runs.items():
                measured.append(measure(folder / name, *flags))
        for folder, measured in runs.items():
            start, stop, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{folder / name!s:45} {start:11.3f} s {stop:6.3f} s {cpu:10.3f} s")


if __name__ == "__main__":
    main()
