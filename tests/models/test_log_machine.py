"""Random histories of a log, crashes and full disks included, against a plain list."""

import contextlib
import errno
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from example_counts import examples
from lapwing import kernel
from lapwing.errors import CorruptChunk, OutOfRange, WriteFailed
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.log import DiskLog, Extra, LogOptions, Reader, RetentionLimits
from lapwing.log.segments.index import RECORD

NODE = 5
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


class Crash(BaseException):
    """The power switch of the process."""


class WhimsicalDisk(Disk):
    """Does `budget` more changes, then one in part; then ends the process, or is full: refuses to write any more."""

    def __init__(self) -> None:
        self.budget: int | None = None
        self.part = 0
        self.crash = False

    def _spent(self) -> bool:
        if self.budget is None:
            return False
        self.budget -= 1
        return self.budget < 0

    def _perhaps_crash(self) -> None:
        if self.crash and self._spent():
            raise Crash

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        if self._spent():
            grows = max(0, offset + len(data) - os.fstat(fd).st_size)
            if self.crash or grows:  # what is there already can be written over on a full disk
                written = 0 if len(data) <= RECORD and not grows else self.part  # a record over another: as a whole
                os.pwrite(fd, bytes(data)[:written], offset)
                if self.crash:
                    raise Crash
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, length: int) -> None:  # type: ignore[override]
        self._perhaps_crash()
        os.ftruncate(fd, length)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._perhaps_crash()
        os.unlink(path)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._perhaps_crash()
        os.replace(source, target)


class LogMachine(RuleBasedStateMachine):
    """`kept` is the model: every message that was acknowledged, by sequence; `pending` what was only appended."""

    @initialize(
        durability=st.sampled_from(["os", "fsync", "memory"]),
        segment_bytes=st.sampled_from([60, 300, 5000]),
        tail_bytes=st.sampled_from([0, 100, 10_000]),
        merge_bytes=st.sampled_from([0, 200, 16384]),
        descriptors=st.sampled_from([1, 3, 100]),
        boot=st.sampled_from([0, 5]),
    )
    def begin(
        self, durability: Any, segment_bytes: int, tail_bytes: int, merge_bytes: int, descriptors: int, boot: int
    ) -> None:
        self.root = tempfile.mkdtemp()
        self.descriptors = descriptors
        self.options = LogOptions(
            durability=durability,
            segment_bytes=segment_bytes,
            tail_bytes=tail_bytes,
            merge_bytes=merge_bytes,
            mem_queue_size=5,
            boot=boot,
        )
        self.kept: list[tuple[bytes, int]] = []  # body, time
        self.carried: list[Extra] = []
        self.first = 0
        self.time = 0
        self.identity = ""
        self.gone: set[int] = set()  # sequences whose messages were in memory in a crash
        self.open()

    def open(self) -> None:
        self.disk = WhimsicalDisk()
        files = OpenFiles(self.disk, limit=self.descriptors, cache_bytes=1000)
        self.log = DiskLog(
            os.path.join(self.root, "topic"), NODE, options=self.options, files=files, on_corrupt=self.corrupt
        )
        assert self.identity in ("", self.log.identity)
        self.identity = self.log.identity
        self.pending: list[tuple[bytes, int]] = []
        self.pending_extras: list[Extra] = []
        self.readers: list[Reader] = []

    def corrupt(self, path: str, offset: int, first: int, count: int) -> None:
        assert self.gone.issuperset(range(first, first + count)), f"{path}: {count} messages at {offset} said corrupt"

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    # --- writing -----------------------------------------------------------------------------------------------

    @rule(bodies=BODIES, with_extra=st.booleans())
    def append(self, bodies: list[bytes], with_extra: bool) -> None:
        self.time += 10
        sequence = len(self.kept) + len(self.pending)
        extras = [Extra(sequence + len(bodies) - 1, self.time, {"n": str(sequence)})] if with_extra else []
        frames = kernel.frame_bodies(bodies, (NODE << 54) + self.log.next, self.time)

        assert self.log.append(frames, len(bodies), now=self.time, extras=extras) == sequence
        self.pending += [(body, self.time) for body in bodies]
        self.pending_extras += extras

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.accept(len(self.pending))

    @rule(budget=st.integers(0, 4), part=st.integers(0, 60))
    def flush_on_a_full_disk(self, budget: int, part: int) -> None:
        self.disk.budget, self.disk.part, self.disk.crash = budget, part, False
        try:
            self.log.flush()
        except WriteFailed:
            self.accept(0)
        else:
            self.accept(len(self.pending))
        self.disk.budget = None

    def accept(self, count: int) -> None:
        self.kept += self.pending[:count]
        self.carried += [extra for extra in self.pending_extras if extra.sequence < len(self.kept)]
        self.pending, self.pending_extras = [], []

    @rule()
    def sync(self) -> None:
        call = self.log.begin_sync()
        if call is not None:
            call()
            self.log.finish_sync(None)
            assert not self.log.unsynced

    # --- ends --------------------------------------------------------------------------------------------------

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.accept(len(self.pending))
        self.open()
        assert self.log.notes == []

    @rule()
    def write_index(self) -> None:
        self.log.write_index()

    @precondition(lambda self: self.options.durability != "memory")
    @rule(budget=st.integers(0, 5), part=st.integers(0, 300))
    def crash_in_writing_the_index_and_reopen(self, budget: int, part: int) -> None:
        self.flush()
        self.disk.budget, self.disk.part, self.disk.crash = budget, part, True
        with contextlib.suppress(Crash):
            self.log.write_index()
        self.open()
        assert self.log.next == len(self.kept)

    @precondition(lambda self: self.options.durability != "memory")
    @rule(budget=st.integers(0, 5), part=st.integers(0, 300))
    def crash_in_a_flush_and_reopen(self, budget: int, part: int) -> None:
        self.disk.budget, self.disk.part, self.disk.crash = budget, part, True
        acknowledged = True
        try:
            self.log.flush()
        except Crash:
            acknowledged = False
        pending, extras = self.pending, self.pending_extras
        self.open()
        survived = self.log.next - len(self.kept)
        assert survived == len(pending) if acknowledged else 0 <= survived <= len(pending)
        self.pending, self.pending_extras = pending, extras
        self.accept(survived)

    @precondition(lambda self: self.options.durability == "memory")
    @rule()
    def crash_with_messages_in_memory(self) -> None:
        """What was written stays; what was in memory is lost, and nothing ever comes in its place."""
        self.open()
        lost = self.log.lost
        assert self.log.next >= len(self.kept)
        assert len(lost) in (0, 5)
        assert not lost or lost.stop == self.log.next
        assert lost or self.log.next == len(self.kept)
        self.first = self.log.first
        self.carried = [extra for extra in self.carried if extra.sequence not in lost]
        self.kept += [(b"", 0)] * (self.log.next - len(self.kept))
        self.gone.update(lost)

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, frames: bytes, first: int) -> None:
        messages, _ = kernel.decode_messages(frames, 0, len(frames))
        for sequence, (time, attempts, identity, body) in enumerate(messages, first):
            assert (body, time) == self.kept[sequence]
            assert sequence not in self.gone
            assert (attempts, identity) == (1, b"%016x" % ((NODE << 54) + sequence))

    @rule(data=st.data())
    def read_a_range(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.first, len(self.kept)))
        stop = data.draw(st.integers(start, len(self.kept) + 5))
        at = start
        for first, count, frames in self.log.blocks(start, stop, data.draw(st.integers(1, 500))):
            assert first == at
            assert frames or self.gone.issuperset(range(first, first + count))
            self.read(frames, first)
            at += count
        assert at == min(stop, len(self.kept))

    @rule(data=st.data())
    def begin_to_read(self, data: st.DataObject) -> None:
        self.readers.append(self.log.reader(data.draw(st.integers(self.first, len(self.kept)))))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), most=st.integers(1, 20), size=st.integers(1, 600))
    def read_on(self, data: st.DataObject, most: int, size: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        at = reader.sequence
        if at < self.first:
            reader.seek(self.first)
            at = self.first
        frames, count = reader.take(len(self.kept), most, size)
        assert (count > 0) == (at < len(self.kept))
        assert count <= most or not frames
        assert count <= 1 or len(frames) <= size
        assert reader.sequence == at + count
        self.read(frames, at)

    @rule(data=st.data())
    def look_at_one(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, len(self.kept) + 2))
        if sequence in self.gone and self.first <= sequence:
            with pytest.raises(CorruptChunk):
                self.log.frame(sequence)
        elif self.first <= sequence < len(self.kept):
            self.read(self.log.frame(sequence), sequence)
            assert self.log.timestamp(sequence) == self.kept[sequence][1]
        else:
            with pytest.raises(OutOfRange):
                self.log.frame(sequence)

    @rule(data=st.data())
    def look_at_extras(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.first, len(self.kept)))
        stop = data.draw(st.integers(start, len(self.kept) + 3))
        assert self.log.extras(start, stop) == [extra for extra in self.carried if start <= extra.sequence < stop]

    @rule(data=st.data())
    def search_a_time(self, data: st.DataObject) -> None:
        wanted = data.draw(st.integers(0, self.time + 11))
        expected = next(
            (
                sequence
                for sequence in range(self.first, len(self.kept))
                if self.kept[sequence][1] >= wanted and sequence not in self.gone
            ),
            len(self.kept),
        )
        assert self.log.at_time(wanted) == expected

    # --- letting go --------------------------------------------------------------------------------------------

    @rule(data=st.data(), age=st.sampled_from([0, 20]), size=st.sampled_from([0, 200]))
    def release(self, data: st.DataObject, age: int, size: int) -> None:
        needed = data.draw(st.integers(self.first, len(self.kept)))
        self.log.release(needed, now=self.time, limits=RetentionLimits(bytes=size, age=age))
        assert self.log.first <= max(needed, self.first)
        self.first = self.log.first

    @invariant()
    def numbers_agree(self) -> None:
        if hasattr(self, "log"):
            assert self.log.first == self.first
            assert self.log.end == len(self.kept)
            assert self.log.next == len(self.kept) + len(self.pending)
            assert self.log.pending == bool(self.pending)
            assert len(self.log.files) <= self.descriptors


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
