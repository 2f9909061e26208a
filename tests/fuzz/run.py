"""Mutate the inputs of the corpus and decode them, on the compiled kernel, the pure one, or one with sanitizers.

    python tests/fuzz/run.py --seconds 60                          a minute for each decoder
    python tests/fuzz/run.py --inputs 10000000 --decoder resp      so many inputs of one
    python tests/fuzz/run.py --sanitize ...                        the compiled modules under ASan and UBSan
    python tests/fuzz/run.py --pure ...                            the pure kernel
    python tests/fuzz/run.py --replay FILE                         an input once more

A decoder runs in a process of its own. An input that takes a second of CPU time, or memory beyond the cap, ends the
process like a crash does: its number gives the input, which is written to a file. Exits with 1 if there is one. An
input that has found a defect belongs into the corpus: a line of hex in `corpus/<decoder>.txt`.
"""

import argparse
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutation import CORPUS, Mutation, load_corpus

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SANITIZED = ROOT / "build" / "sanitized"
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
CAP = 256 << 20  # bytes of memory beyond those that the process began with
SECOND = 1.0  # of CPU time, for so many inputs together:
ROUND = 64


def work(decoder: str, begin: int, inputs: int, seconds: float, note: str, sanitized: bool) -> int:
    """Decode mutated inputs, and note the number of each first; return 1 at the first that fails."""
    from decoders import DECODERS

    decode, corpus = DECODERS[decoder], load_corpus(decoder)
    mutation, noted_form = Mutation(corpus, ROUND), struct.Struct("<QQ")
    until = time.monotonic() + seconds if seconds else float("inf")
    number, end = begin, begin + inputs if inputs else sys.maxsize
    for each in corpus:
        decode(each)
    if not sanitized:
        resource.setrlimit(resource.RLIMIT_DATA, (_memory() + CAP, -1))
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    with open(note, "r+b") as file, mmap.mmap(file.fileno(), 16) as noted:
        while number < end and time.monotonic() < until:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECOND)
            for data in mutation.inputs(number):
                noted_form.pack_into(noted, 0, number, number - begin + 1)
                decode(data)
                number += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return 0


def _memory() -> int:
    """Return the bytes of data that this process has."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[5])


def build_sanitized() -> dict[str, str]:
    """Build the package with sanitizers, as far as it has changed; return the environment that uses it."""
    command = [sys.executable, "setup.py", "-q", "build", f"--build-lib={SANITIZED}", f"--build-temp={SANITIZED}-temp"]
    environment = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": "-fsanitize=address,undefined"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    return {
        "LD_PRELOAD": library.strip(),
        "PYTHONPATH": str(SANITIZED),
        "PYTHONMALLOC": "malloc",
        "FUZZ_COMPILED_ALONE": "1",  # that it agrees with the pure kernel is checked without sanitizers
        "ASAN_OPTIONS": f"detect_leaks=0:max_allocation_size_mb={CAP >> 20}:quarantine_size_mb=16:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def watch(decoder: str, chosen: argparse.Namespace, environment: dict[str, str]) -> bool:
    """Run a decoder in a process of its own; return whether all went well."""
    with tempfile.NamedTemporaryFile() as note:
        note.write(bytes(16))
        note.flush()
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, __file__, "--work", note.name, "--decoder", decoder, "--seed", str(chosen.seed),
             "--inputs", str(chosen.inputs), "--seconds", str(chosen.seconds),
             *(["--sanitize"] if chosen.sanitize else [])],
            env={**os.environ, **environment}, check=False, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        number, count = struct.unpack("<QQ", Path(note.name).read_bytes())
    took = time.monotonic() - began
    how = "ASan and UBSan" if chosen.sanitize else "the pure kernel" if chosen.pure else "the compiled kernel"
    if not done.returncode:
        print(f"{decoder:14}{count:>12,} inputs in {took:.0f} s on {how}: nothing found", flush=True)
        return True
    chosen.failures.mkdir(parents=True, exist_ok=True)
    path = chosen.failures / f"{decoder}-{number}.json"
    why = "took a second of CPU time" if done.returncode == -signal.SIGVTALRM else f"ended with {done.returncode}"
    data = Mutation(load_corpus(decoder)).inputs(number)[0].hex()
    found = {"decoder": decoder, "number": number, "input": data, "error": done.stderr[-8000:]}
    path.write_text(json.dumps(found, indent=2))
    print(f"{decoder:14}input {count:,} FAILED on {how}, {why}: {path}\n{done.stderr[-2000:]}", flush=True)
    return False


def replay(path: Path) -> int:
    """Decode the input of a failure once more."""
    from decoders import DECODERS

    found = json.loads(path.read_text())
    try:
        DECODERS[found["decoder"]](bytes.fromhex(found["input"]))
    except Exception:
        traceback.print_exc()
        return 1
    print("passes now")
    return 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--decoder", help="only this one, or these, with commas between")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="decoders at the same time")
    options.add_argument("--inputs", type=int, default=0, metavar="N", help="end after so many inputs of each decoder")
    options.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds of each decoder")
    options.add_argument("--seed", type=int, help="number of the first input (default: from the clock)")
    options.add_argument("--sanitize", action="store_true", help="build the compiled modules with ASan and UBSan")
    options.add_argument("--pure", action="store_true", help="use the pure kernel")
    options.add_argument("--failures", type=Path, default=ROOT / "build" / "fuzz", help="folder for inputs that fail")
    options.add_argument("--replay", type=Path, metavar="FILE", help="decode the input of a failure once more")
    options.add_argument("--work", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    sys.path.insert(0, str(HERE))
    if chosen.seed is None:
        chosen.seed = time.time_ns() & 0xFFFFFFFFFFFF
    if chosen.work:
        return work(chosen.decoder, chosen.seed, chosen.inputs, chosen.seconds, chosen.work, chosen.sanitize)
    if chosen.replay:
        return replay(chosen.replay)
    if not chosen.inputs and not chosen.seconds:
        chosen.seconds = 60.0
    environment = build_sanitized() if chosen.sanitize else {"LAPWING_PURE": "1"} if chosen.pure else {}
    names = chosen.decoder.split(",") if chosen.decoder else sorted(path.stem for path in CORPUS.glob("*.txt"))
    print(f"seed {chosen.seed}", flush=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        fine = list(pool.map(lambda name: watch(name, chosen, environment), names))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
