"""Random and damaged input for everything that reads bytes of others, until the time is up.

    python tests/kernel/fuzz_files.py --seconds 120                  two minutes for each target
    python tests/kernel/fuzz_files.py --seconds 600 --target twins   one target alone
    python tests/kernel/fuzz_files.py --replay FILE                  a failure once more

Valid input is made first and damaged then, so that most of it gets past the first check. A target runs in a process of
its own that notes each case before it is tried: a crash of the interpreter is found like any other failure. A failure
is written to a file and ends in exit code 1.
"""

import argparse
import faulthandler
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))  # for `feeding`

from feeding import cut, hear
from twins import BASE, DRESSES, NODE, ODD_DRESSES, TWINS, both, room

from lapwing import kernel
from lapwing.errors import LogError, ProtocolError
from lapwing.kernel import pure
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.side.sidelog import SideLog
from lapwing.wire.nsq import frames
from lapwing.wire.nsq.commands import MAGIC, Dpub, Fins, Identify, Mpub, Pub, Req, Sub, Touch, batch
from lapwing.wire.nsq.compression import CompressionError, DeflateCodec, SnappyCodec
from lapwing.wire.nsq.connection import BrokerConnection, ClientConnection, Limits, Messages

SHOWN = 20_000  # characters of a failing input that are written down; its seed gives all of it
EDGES = [0, 1, 4, 16, 20, 21, 29, 30, 33, 34, 255, 2**15, 2**16, 2**31 - 31, 2**31 - 30, 2**31 - 1, 2**31, 2**32 - 1]
HUGE = [2**32, 2**54, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1 << 80]
LIMITS = Limits(max_message=60, max_body=400, max_rdy=10, longest_line=120)

Run = Callable[[Random], Iterator[Any]]  # yields its input before it is used


# --- making and damaging -------------------------------------------------------------------------------------------


def number(random: Random) -> int:
    """A place, a count or a limit: mostly small, sometimes absurd."""
    kind = random.randrange(10)
    if kind < 6:
        return random.randrange(-2, 400)
    if kind < 8:
        return random.choice(EDGES)
    return random.choice([*EDGES, *HUGE]) * random.choice([1, 1, -1])


def body(random: Random, most: int = 60) -> bytes:
    return random.randbytes(random.choice([0, 1, random.randrange(most), random.randrange(most)]))


def damaged(random: Random, data: bytes) -> bytes:
    """The same with a few things wrong: bits, sizes, cuts, repeats, garbage."""
    out = bytearray(data)
    for _ in range(random.choice([0, 0, 1, 1, 1, 2, 3, 8])):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = random.choice(b"\x00\x01\x02\x1e\x22\x7f\x80\xff\n\r FIN")
        elif kind == 2:
            out[at : at + 4] = struct.pack(">I", random.choice(EDGES) & 0xFFFFFFFF)
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + random.randrange(1, 40)]
        elif kind == 5:
            begin = random.randrange(len(out) + 1)
            out[at:at] = out[begin : begin + random.randrange(1, 80)]
        else:
            out[at:at] = random.randbytes(random.randrange(1, 12))
    return bytes(out)


def dress(random: Random, data: bytes) -> Any:
    odd = random.randrange(12) == 0
    return random.choice(ODD_DRESSES if odd else DRESSES)(data)


def run_of_frames(random: Random) -> bytes:
    parts = []
    for _ in range(random.randrange(6)):
        kind = random.randrange(8)
        if kind == 0:
            parts.append(random.choice([frames.OK, frames.HEARTBEAT, frames.error(body(random))]))
        elif kind == 1:
            parts.append(pure.with_attempts(pure.frame_one(body(random), random.getrandbits(64), 1), number(random)))
        else:
            some = [body(random) for _ in range(random.randrange(5))]
            parts.append(pure.frame_bodies(some, random.getrandbits(64), random.getrandbits(63)))
    return b"".join(parts)


def batch_of(random: Random) -> bytes:
    return batch([body(random) or b"x" for _ in range(random.randrange(1, 7))])


def run_of_fins(random: Random) -> bytes:
    lines = []
    for _ in range(random.randrange(7)):
        kind = random.randrange(6)
        if kind == 0:
            lines.append(b"FIN %b\n" % random.randbytes(16))
        elif kind == 1:
            lines.append(b"FIN %016x\n" % random.getrandbits(64))
        else:
            lines.append(b"FIN %016x\n" % (BASE + random.randrange(8)))
    return b"".join(lines)


# --- the targets ---------------------------------------------------------------------------------------------------


def twins(random: Random) -> Iterator[Any]:
    """Both twins of the kernel: the same answers, the same errors."""
    name = random.choice(list(CALLS))
    arguments = CALLS[name](random)
    yield name, *[bytes(each) if isinstance(each, bytearray) else each for each in arguments]
    both(name, *arguments)


def _frames(random: Random) -> Any:
    return dress(random, damaged(random, run_of_frames(random)))


CALLS: dict[str, Callable[[Random], tuple[Any, ...]]] = {
    "frame_one": lambda random: (dress(random, body(random)), number(random), number(random)),
    "frame_bodies": lambda random: (
        [dress(random, body(random)) for _ in range(random.randrange(5))], number(random), number(random),
    ),
    "frame_mpub": lambda random: (
        dress(random, damaged(random, batch_of(random))), number(random), random.getrandbits(62), number(random),
        number(random),
    ),
    "mpub_run": lambda random: (
        dress(random, damaged(random, batch_of(random))), random.choice([4, 4, number(random)]), number(random),
        number(random),
    ),
    "fin_run": lambda random: (
        dress(random, damaged(random, run_of_fins(random))), random.choice([0, 0, 21, number(random)]),
    ),
    "fin_sequences": lambda random: (
        dress(random, damaged(random, run_of_fins(random))), random.choice([BASE, BASE, BASE, number(random)]),
    ),
    "take_frames": lambda random: (
        _frames(random), random.choice([0, 0, number(random)]), number(random), number(random), number(random),
    ),
    "fins_of": lambda random: (_frames(random), random.choice([0, 0, number(random)]), number(random)),
    "scan_frames": lambda random: (_frames(random), random.choice([0, 0, number(random)]), number(random)),
    "decode_columns": lambda random: (
        _frames(random), random.choice([0, 0, number(random)]), number(random), random.choice([0, 0, number(random)]),
        *room(random.randrange(12), random.randrange(2000)),
    ),
    "decode_messages": lambda random: (_frames(random), random.choice([0, 0, number(random)]), number(random)),
    "with_attempts": lambda random: (_frames(random), number(random)),
}  # fmt: skip


def conversation(random: Random) -> Iterator[Any]:
    """The broker's end of a connection: however a stream is cut, the same commands and the same answer."""
    some = [
        lambda: Pub("t", body(random) or b"x").encode(),
        lambda: Dpub("t", random.randrange(10) * 10**9, body(random) or b"x").encode(),
        lambda: Mpub("t", batch_of(random)).encode(),
        lambda: Identify(random.choice([b"{}", b'{"a":1}', body(random)])).encode(),
        lambda: Sub("t", "c").encode(),
        lambda: Fins(run_of_fins(random)).encode(),
        lambda: Req(b"0123456789abcdef", random.randrange(10**10)).encode(),
        lambda: Touch(b"0123456789abcdef").encode(),
        lambda: random.choice([b"RDY 5\n", b"RDY\n", b"CLS\n", b"NOP\n", b"NOP\r\n", b"AUTH\n", b"\n", b"GET / x\n"]),
    ]
    stream = b"".join(random.choice(some)() for _ in range(random.randrange(8)))
    stream = random.choice([MAGIC, MAGIC + b"SUB t c\n", b""]) + damaged(random, stream)
    places = [random.randrange(len(stream) + 1) for _ in range(random.randrange(8))]
    yield stream, places
    whole, pieces = BrokerConnection(LIMITS), BrokerConnection(LIMITS)
    assert hear([stream], connection=whole) == hear(cut(stream, places), connection=pieces)
    first, second = whole.eof(), pieces.eof()
    assert (first and first.payload) == (second and second.payload)


def answers(random: Random) -> Iterator[Any]:
    """The client's end of a connection, likewise."""
    stream = damaged(random, run_of_frames(random))
    places = [random.randrange(len(stream) + 1) for _ in range(random.randrange(8))]
    yield stream, places
    assert _answers([stream]) == _answers(cut(stream, places))


def _answers(pieces: list[bytes]) -> tuple[list[Any], str | None]:
    connection = ClientConnection(max_frame=1 << 20)
    said: list[Any] = []
    try:
        for piece in pieces:
            connection.receive(piece)
            for frame in connection.frames():
                said += frame.messages if isinstance(frame, Messages) else [frame]
    except ProtocolError as error:
        return said, str(error)
    return said, None


def compression(random: Random) -> Iterator[Any]:
    """Snappy and deflate: what was encoded comes back; what is broken is said to be, however it is cut."""
    make = random.choice([SnappyCodec, DeflateCodec])
    codec = make()
    repeats = random.choices([0, 1, 5, 200, 20_000], k=random.randrange(4))
    sent = [random.randbytes(4) * repeat + body(random) for repeat in repeats]
    stream = b"".join(codec.encode(data) for data in sent)
    broken = damaged(random, stream)
    places = [random.randrange(len(broken) + 1) for _ in range(random.randrange(8))]
    yield make.__name__, broken, places
    whole = _decoded(make(), [broken])
    assert whole == _decoded(make(), cut(broken, places))
    assert broken != stream or whole == b"".join(sent)


def _decoded(codec: SnappyCodec | DeflateCodec, pieces: list[bytes]) -> bytes | None:
    try:
        return b"".join(codec.decode(piece) for piece in pieces)
    except CompressionError:
        return None


def recovery(random: Random) -> Iterator[Any]:
    """A log, journal and side log whose files were damaged: opened again, nothing is served that was not published.

    One thing is damaged at a time: frames that lost the record with their checksum are believed by their shape alone.
    """
    directory = Path(tempfile.mkdtemp(prefix="lapwing-fuzz-", dir=_shared_memory()))
    try:
        options = LogOptions(segment_bytes=random.choice([300, 2000, 100_000]))
        bodies = _fill(random, directory / "t", options)
        for path, data in _damage(random, directory / "t"):
            yield path.name, data
            path.write_bytes(data)
        _check(directory / "t", options, bodies)
    finally:
        shutil.rmtree(directory)


def _fill(random: Random, directory: Path, options: LogOptions) -> list[bytes]:
    log = DiskLog(directory, NODE, options=options)
    journal, side = Journal(directory), SideLog(directory, "c")
    bodies: list[bytes] = []
    for now in range(random.randrange(1, 8)):
        some = [b"%d-" % len(bodies) + body(random, 150) for _ in range(random.randrange(1, 6))]
        packed = kernel.frame_bodies(some, BASE + log.next, now)
        log.append(packed, len(some), now=now)
        log.flush()
        side.put(len(bodies), packed[: len(some[0]) + kernel.HEAD])
        side.flush()
        bodies += some
        journal.fanned_out(len(bodies))
        journal.progress("c", len(bodies), [(0, random.randrange(1, 9))], {0: 3})
        journal.deferred("c", [(1, now, 2)], [random.randrange(5)])
        journal.flush()
    for each in (side, journal, log):
        each.close()
    return bodies


def _damage(random: Random, directory: Path) -> list[tuple[Path, bytes]]:
    wanted = random.choice([".log", ".idx", "journal", "side"])
    some = [path for path in directory.rglob("*") if path.is_file() and wanted in str(path.relative_to(directory))]
    chosen = random.sample(sorted(some), min(len(some), random.randrange(1, 3)))
    harm = _harmed if wanted == ".log" else damaged
    return [(path, harm(random, path.read_bytes())) for path in chosen]


def _harmed(random: Random, data: bytes) -> bytes:
    """Frames torn, with garbage behind them, or with bytes that are others now."""
    kind = random.randrange(3)
    if kind == 0:
        return data[: random.randrange(len(data) + 1)]
    if kind == 1:
        return data + random.randbytes(random.randrange(100))
    out = bytearray(data)
    for _ in range(random.randrange(1, 5)):
        out[random.randrange(len(out))] ^= random.randrange(1, 256)
    return bytes(out)


def _check(directory: Path, options: LogOptions, bodies: list[bytes]) -> None:
    published = list(bodies)
    for again in range(2):
        try:
            log = DiskLog(directory, NODE, options=options)
        except LogError:
            return  # said, not guessed
        for first, count, block in log.blocks(log.first, log.end, 4096):
            messages, _ = kernel.decode_messages(block, 0, len(block))
            for sequence, (_, _, identity, served) in enumerate(messages, first):
                assert int(identity, 16) == BASE + sequence
                assert served == bodies[sequence], f"{sequence} was not published so, but is served"
            assert not block or len(messages) == count
        Journal(directory).load()
        side = SideLog(directory, "c")
        for sequence in side.sequences():
            try:
                frame = side.frame(sequence)
            except LogError:
                continue
            assert frame[kernel.HEAD :] == published[sequence]
        side.close()
        if not again:
            del bodies[log.next :]
            bodies += [b""] * (log.next - len(bodies)) + [b"after"]
            log.append(kernel.frame_one(b"after", BASE + log.next, 99), 1, now=99)
            log.flush()
            assert log.frame(log.end - 1).endswith(b"after")
        log.close()


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


TARGETS: dict[str, Run] = {
    "twins": twins,
    "conversation": conversation,
    "answers": answers,
    "compression": compression,
    "recovery": recovery,
}


# --- running -------------------------------------------------------------------------------------------------------


def case(target: str, seed: int) -> tuple[list[str], str | None]:
    """Run one case: what went in, and what went wrong."""
    inputs: list[Any] = []
    try:
        inputs.extend(TARGETS[target](Random(seed)))
    except Exception:
        return [repr(each) for each in inputs], traceback.format_exc()
    return [], None


def work(target: str, begin: int, seconds: float, note: str) -> int:
    """Run cases until the time is up, noting each in the file `note` first; exit code 1 at the first that fails."""
    faulthandler.enable()
    until = time.monotonic() + seconds
    seed = begin
    with open(note, "r+b") as file, mmap.mmap(file.fileno(), 16) as noted:
        while time.monotonic() < until:
            struct.pack_into("<QQ", noted, 0, seed, seed - begin + 1)
            if case(target, seed)[1] is not None:
                return 1
            seed += 1
    return 0


def watch(target: str, begin: int, seconds: float, failures: Path) -> bool:
    """Run a target in a process of its own; whether all went well."""
    with tempfile.NamedTemporaryFile() as note:
        note.write(bytes(16))
        note.flush()
        command = [sys.executable, __file__, "--work", note.name, "--target", target]
        done = subprocess.run([*command, "--seed", str(begin), "--seconds", str(seconds)], check=False)
        seed, count = struct.unpack("<QQ", Path(note.name).read_bytes())
    if not done.returncode:
        print(f"{target:14}{count:>10,} cases in {seconds:g} s: nothing found", flush=True)
        return True
    inputs, error = case(target, seed) if done.returncode == 1 else ([], f"the process ended with {done.returncode}")
    failures.mkdir(parents=True, exist_ok=True)
    path = failures / f"{target}-{seed}.json"
    text = [each[:SHOWN] for each in inputs]
    path.write_text(json.dumps({"target": target, "seed": seed, "input": text, "error": error}, indent=2))
    print(f"{target:14}case {count:,} FAILED: {path}\n{error}", flush=True)
    return False


def main() -> None:
    """Fuzz each target, or replay one failure."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=60, help="time for each target")
    options.add_argument("--target", choices=TARGETS, help="only this one")
    options.add_argument("--seed", type=int, help="where to begin (default: from the clock)")
    options.add_argument("--failures", type=Path, default=Path(tempfile.gettempdir()) / "lapwing-fuzz")
    options.add_argument("--replay", type=Path, metavar="FILE", help="run a failure once more")
    options.add_argument("--work", metavar="FILE", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    begin = time.time_ns() & 0xFFFFFFFFFFFF if chosen.seed is None else chosen.seed
    if chosen.work:
        sys.exit(work(chosen.target, begin, chosen.seconds, chosen.work))
    if chosen.replay:
        failed = json.loads(chosen.replay.read_text())
        inputs, error = case(failed["target"], failed["seed"])
        print(*inputs, error or "passes now", sep="\n")
        sys.exit(error is not None)
    print(f"twins: {', '.join(twin.__name__ for twin in TWINS)}; seed {begin}", flush=True)
    targets = [chosen.target] if chosen.target else list(TARGETS)
    fine = [watch(target, begin, chosen.seconds, chosen.failures) for target in targets]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
