"""A writer that is killed at any moment has lost nothing that it acknowledged."""

import mmap
import os
import random
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapwing import kernel
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, Extra, LogOptions, RetentionLimits

ROUNDS = int(os.environ.get("LAPWING_CRASH_ROUNDS", "60"))
NODE = 3
OPTIONS = LogOptions(segment_bytes=400_000, boot=7)
PUBLISH = 64  # more messages than one has


def body(sequence: int) -> bytes:
    """What the message of that sequence says, long or short, so that the reader needs no list of what was sent."""
    length = 100_000 if sequence % 97 == 0 else sequence * 7919 % 600
    return b"%d:" % sequence + bytes([sequence % 251]) * length


def extra(sequence: int) -> Extra | None:
    """Every fifth message carries something beside its body."""
    return Extra(sequence, sequence * 10, {"of": str(sequence)}) if sequence % 5 == 0 else None


class Slate:
    """A few numbers that survive the writer, as they are in memory shared with it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    def acknowledge(self, end: int, cursor: int) -> None:
        self._memory[:16] = struct.pack("<QQ", end, cursor)

    @property
    def acknowledged(self) -> tuple[int, int]:
        end, cursor = struct.unpack("<QQ", self._memory[:16])
        return end, cursor


def write_until_killed(directory: Path, slate: Slate, beat: int, seed: int) -> None:
    """Open the log as a starting broker does, and publish; one byte to `beat` for each flush that succeeded."""
    choose = random.Random(seed)
    log = DiskLog(directory, NODE, options=OPTIONS)
    journal = Journal(directory)
    journal.load()
    while True:
        for _ in range(choose.choice((1, 1, 2, 5))):
            first, count = log.next, choose.choice((1, 1, 3, 40))
            frames = kernel.frame_bodies(
                [body(sequence) for sequence in range(first, first + count)],
                (NODE << 54) + first,
                first * PUBLISH + count,
            )
            extras = [found for sequence in range(first, first + count) if (found := extra(sequence))]
            log.append(frames, count, now=first, extras=extras)
        log.flush()
        if choose.random() < 0.1:
            log.write_index()
        journal.progress("c", log.end, [(log.end - 1, log.end)], {log.end - 1: 2})
        journal.flush()
        slate.acknowledge(log.end, log.end)
        os.write(beat, b".")


def killed_writer(directory: Path, slate: Slate, choose: random.Random) -> None:
    """Fork a writer, let it make some flushes, and kill it in the middle of another."""
    heard, beat = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            os.close(heard)
            write_until_killed(directory, slate, beat, choose.randrange(1 << 30))
        finally:
            os._exit(1)  # only an error gets here: the parent sees that no signal ended it
    os.close(beat)
    for _ in range(choose.randrange(1, 12)):
        os.read(heard, 1)
    for _ in range(choose.randrange(2000)):
        pass  # a moment of random length: the writer is somewhere in its next flush
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
    os.close(heard)
    assert os.WIFSIGNALED(status), "the writer failed by itself"


def served(log: DiskLog, start: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Sequence, id and body of every message from `start` on."""
    for first, count, frames in log.blocks(start, log.end, 1 << 20):
        messages, _ = kernel.decode_messages(frames, 0, len(frames))
        assert len(messages) == count
        for sequence, (_, _, identity, content) in enumerate(messages, first):
            yield sequence, identity, content


@pytest.mark.slow
def test_no_kill_loses_an_acknowledged_message(tmp_path: Path) -> None:
    directory = tmp_path / "topic"
    choose = random.Random(20)
    slate = Slate()
    identity = DiskLog(directory, NODE, options=OPTIONS).identity
    mended = 0
    checked = 0
    for _ in range(ROUNDS):
        killed_writer(directory, slate, choose)
        acknowledged, cursor = slate.acknowledged

        log = DiskLog(directory, NODE, options=OPTIONS)

        assert log.identity == identity
        assert log.end >= acknowledged
        count = 0
        for sequence, found_id, content in served(log, checked):
            assert found_id == b"%016x" % ((NODE << 54) + sequence)
            assert content == body(sequence)
            count += 1
        assert count == log.end - checked
        if log.end > log.first:
            begun, published = divmod(log.timestamp(log.end - 1), PUBLISH)
            assert begun + published == log.end, "a part of a publish"
        expected = [found for sequence in range(checked, log.end) if (found := extra(sequence))]
        assert log.extras(checked, log.end) == expected
        state = Journal(directory).load()
        assert cursor <= state.channels["c"].cursor <= log.end if cursor else True
        mended += bool(log.notes)
        checked = log.end
        log.release(log.end - 2000, now=0, limits=RetentionLimits())
        checked = max(checked - 500, log.first)  # some of the old ones are looked at again
        log.close()
    assert slate.acknowledged[0] > ROUNDS
    assert mended > 0, "no writer was ever hit in the middle of a flush: the test tests nothing"
