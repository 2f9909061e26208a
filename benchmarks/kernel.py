"""What the byte loops cost: CPU time per message of each, in both twins, beside the limits they must keep.

    python benchmarks/kernel.py             the table
    python benchmarks/kernel.py --check     and exit code 1 when a limit is not kept

CPU time of the process, user and system; the best of several rounds, as others use the machine.
"""

import argparse
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from lapwing import kernel
from lapwing.log.log import DiskLog, RetentionLimits

NODE = 7
BASE = NODE << 54
BODY = 200
BATCH = 200
BATCHES = 200  # a round
MPUB = struct.pack(">i", BATCH) + (struct.pack(">i", BODY) + b"x" * BODY) * BATCH
BODIES = [b"x" * BODY] * BATCH
FRAMES = kernel.frame_bodies(BODIES, BASE, 1)
COLUMNS = [bytearray(16 * BATCH), bytearray(8 * BATCH), bytearray(4 * BATCH + 4), bytearray(BODY * BATCH)]
FINS = b"".join(b"FIN %016x\n" % (BASE + sequence) for sequence in range(BATCH))

HEADERS = b'{"key":"customer-12","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
ITEM = struct.pack(">iI", 4 + len(HEADERS) + BODY, len(HEADERS)) + HEADERS + b"x" * BODY
HMPUB = struct.pack(">i", BATCH) + ITEM * BATCH
ROWS = kernel.frame_headed(HMPUB, BASE, 1, 10_000, 10_000, 16384)[1]

XADDS = (b"*5\r\n$4\r\nXADD\r\n$6\r\norders\r\n$1\r\n*\r\n$4\r\ndata\r\n$%d\r\n%b\r\n" % (BODY, b"x" * BODY)) * BATCH
ACKS = [b"0-%d" % sequence for sequence in range(BATCH)]
TIMES = array("q", [0] * BATCH)
XACK_HEAD = b"$4\r\nXACK\r\n$1\r\ns\r\n$1\r\ng\r\n"
XACK = b"*%d\r\n%b" % (BATCH + 3, XACK_HEAD) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in ACKS)

COMPILED, PURE = "compiled", "pure"
LIMITS = {  # us CPU per message
    "framing a batch into the log": {COMPILED: 0.15, PURE: 1.5},
    "reading a run of FINs": {COMPILED: 0.12},
}


def best(work: Callable[[], None], rounds: int, between: Callable[[], None] = lambda: None) -> float:
    """us CPU per message of `work`, which deals with one batch."""
    least = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        for _ in range(BATCHES):
            work()
        least = min(least, time.process_time() - before)
        between()
    return least * 1e6 / BATCHES / BATCH


def into_the_log(rounds: int) -> float:
    """Framing, appending and flushing (durability os); old segments go in between, as under retention."""
    directory = Path(tempfile.mkdtemp(prefix="lapwing-bench-"))
    log = DiskLog(directory / "topic", NODE)

    def work() -> None:
        frames, count = kernel.frame_mpub(MPUB, BASE + log.next, 1, 10_000, 10_000)
        log.append(frames, count, now=1)
        log.flush()

    try:
        return best(work, rounds, lambda: log.release(log.end, now=0, limits=RetentionLimits()) and None)
    finally:
        log.destroy()
        shutil.rmtree(directory)


def measure(rounds: int) -> dict[str, float]:
    """Every figure of the twin that this process has."""
    size = len(FRAMES)
    return {
        "framing a batch into the log": into_the_log(rounds),
        "framing a batch (MPUB)": best(lambda: kernel.frame_mpub(MPUB, BASE, 1, 10_000, 10_000) and None, rounds),
        "checking a batch (MPUB)": best(lambda: kernel.mpub_run(MPUB, 4, 10_000, 10_000) and None, rounds),
        "framing a batch with headers": best(
            lambda: kernel.frame_headed(HMPUB, BASE, 1, 10_000, 10_000, 16384) and None, rounds
        ),
        "frames with headers": best(lambda: kernel.with_headers(FRAMES, ROWS) and None, rounds),
        "finding rows of headers": best(lambda: kernel.row_places(ROWS) and None, rounds),
        "framing bodies": best(lambda: kernel.frame_bodies(BODIES, BASE, 1) and None, rounds),
        "finding a run of FINs": best(lambda: kernel.fin_run(FINS, 0) and None, rounds),
        "reading a run of FINs": best(lambda: kernel.fin_sequences(FINS, BASE) and None, rounds),
        "scanning frames": best(lambda: kernel.scan_frames(FRAMES, 0, size) and None, rounds),
        "taking a slice": best(lambda: kernel.take_frames(FRAMES, 0, size, BATCH, size) and None, rounds),
        "decoding into columns": best(lambda: kernel.decode_columns(FRAMES, 0, size, 0, *COLUMNS) and None, rounds),
        "decoding into messages": best(lambda: kernel.decode_messages(FRAMES, 0, size) and None, rounds),
        "answering with FINs": best(lambda: kernel.fins_of(FRAMES, 0, size) and None, rounds),
        "finding a run of XADDs": best(lambda: kernel.xadd_run(XADDS, 0, 10_000) and None, rounds),
        "framing a run of XADDs": best(lambda: kernel.frame_xadds(XADDS, BASE, 1, b"data") and None, rounds),
        "answering with entries": best(lambda: kernel.entry_replies(FRAMES, 0, size, 0, b"data") and None, rounds),
        "answering with ids": best(lambda: kernel.id_replies(0, 0, BATCH) and None, rounds),
        "knowing the ids of an XACK": best(lambda: kernel.known_sequences(ACKS, 0, 0, TIMES) and None, rounds),
        "knowing the ids of a repeated XACK": best(
            lambda: kernel.acked_sequences(XACK, XACK_HEAD, 0, TIMES) and None, rounds
        ),
        "checksum (CRC-32C)": best(lambda: kernel.crc32c(FRAMES) and None, rounds),
    }


def of_twin(twin: str, rounds: int) -> dict[str, float]:
    """The figures of one twin, from a process that was started with it."""
    environment = {name: value for name, value in os.environ.items() if name != "LAPWING_PURE"}
    if twin == PURE:
        environment["LAPWING_PURE"] = "1"
    command = [sys.executable, __file__, "--measure", "--rounds", str(rounds)]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--check", action="store_true", help="exit with 1 when a limit is not kept")
    options.add_argument("--rounds", type=int, default=15, help="of which the best counts")
    options.add_argument("--measure", action="store_true", help="print the figures of one twin as JSON, nothing else")
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.rounds)))
        return
    twins = [COMPILED, PURE] if importlib.util.find_spec("lapwing.kernel._speed") else [PURE]
    figures = {twin: of_twin(twin, chosen.rounds if twin == COMPILED else -(-chosen.rounds // 3)) for twin in twins}
    print(f"us CPU per message; {BODY}-byte messages in batches of {BATCH}\n")
    print(f"{'':32}" + "".join(f"{twin:>10}{'at most':>10}" for twin in twins))
    missed = []
    for name in figures[PURE]:
        line = f"{name:32}"
        for twin in twins:
            limit = LIMITS.get(name, {}).get(twin)
            figure = figures[twin][name]
            line += f"{figure:10.3f}{'' if limit is None else f'{limit:g}':>10}"
            if limit is not None and figure > limit:
                missed.append(f"{name}, {twin}: {figure:.3f} us, at most {limit:g} allowed")
        print(line)
    print("\n" + ("\n".join(missed) if missed else "every limit is kept"))
    if chosen.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
