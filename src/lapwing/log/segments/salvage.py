"""Frames found without an index: by their form, and by the ids that follow one another."""

from array import array
from collections.abc import Callable, Iterator
from typing import Final

from lapwing import kernel
from lapwing.log.disk import File
from lapwing.log.segments.index import QUARANTINED, UNVERIFIED, Chunk, claim, with_crc
from lapwing.log.segments.segment import time_of
from lapwing.records import dataclass

_PIECE: Final = 1 << 20
_MOST: Final = 1 << 32  # messages that one record has room for; a longer gap is seen by the names of the files alone
_TYPE: Final = b"\x00\x00\x00\x02"
_HEX: Final = frozenset(b"0123456789abcdef")

_SET_ASIDE: Final = (
    "were written before the machine was last started, and no checksum covers them: set aside "
    "(lapwing log repair --unverified serves them)"
)

Note = Callable[[str, int, str], None]  # path, offset, what


@dataclass(slots=True)
class Stretch:
    """Bytes of a frames file that no sound record covers, and what is known of them."""

    file: File
    at: int
    stop: int
    expected: int  # the sequence that should begin at `at`
    base: int  # the node's share of an id
    newest: int = 0  # ns, the time of the newest message before
    until: int | None = None  # the sequence that follows the stretch, where that is known
    resync: bool = True  # look for frames behind damage; not behind a torn write, where nothing follows
    trusted: bool = True  # whether frames are served by their form, without a checksum
    boot: int = 0  # for the records of what is found

    def chunks(self, note: Note) -> Iterator[Chunk]:
        """Chunks of the frames that are whole; damaged places between them, and before `until`, as quarantined ones.

        Afterwards `at` is where the last of them ends.
        """
        while self.at < self.stop and self.expected != self.until:
            data, positions = self._piece()
            sound = self._in_order(data, positions)
            after = self.at + positions[sound]
            if sound and not self._fits(after, self.expected + sound) and self.resync:
                # the length of the last one leads nowhere: it is damaged if its own successor lies somewhere else
                suspect = self.at + positions[sound - 1]
                place, sequence = self._next_sound(suspect, self.expected + sound - 1)
                if place and (place < after or sequence == self.expected + sound):
                    yield from self._emit(data, positions, sound - 1, note)
                    yield self._quarantine(place, sequence, note)
                    continue
            if sound:
                yield from self._emit(data, positions, sound, note)
                continue
            if not self.resync or (not self.trusted and self._is_torn()):
                break
            place, sequence = self._next_sound(self.at, self.expected)
            if not place:
                break
            yield self._quarantine(place, sequence, note)
        if self.until is not None and self.expected < self.until and self.until - self.expected < _MOST:
            yield self._quarantine(self.stop, self.until, note)

    def verified(self, record: bytes) -> Chunk | None:
        """Return the chunk at the head of the stretch if a damaged record verifies it, and move behind it.

        Either the record has the checksum of these frames, or with that put right it matches its own.
        """
        claimed = claim(record)
        if claimed.flags & UNVERIFIED:
            return None
        for stop in (claimed.stop, self.stop):  # its length may be what is damaged
            if not self.at < stop <= self.stop:
                continue
            data = self.file.read(stop - self.at, self.at)
            positions, _ = kernel.scan_frames(data, 0, len(data))
            count = len(positions) - 1
            if not count or positions[-1] != len(data) or self._in_order(data, positions) != count:
                continue
            crc = kernel.crc32c(data)
            if crc == claimed.crc or with_crc(record, crc) is not None:
                self.newest = max(self.newest, *[time_of(data, at) for at in positions[:count]])
                chunk = Chunk(self.expected, self.at, self.newest, count, len(data), crc)
                self.at, self.expected = stop, self.expected + count
                return chunk
        return None

    def _piece(self) -> tuple[bytes, "array[int]"]:
        """Return the next piece of the stretch with its whole first frame, and where whole frames begin and end."""
        data = self.file.read(min(_PIECE, self.stop - self.at), self.at)
        first = 4 + int.from_bytes(data[:4], "big")
        if len(data) < first <= self.stop - self.at:
            data = self.file.read(first, self.at)
        return data, kernel.scan_frames(data, 0, len(data))[0]

    def _in_order(self, data: bytes, positions: "array[int]") -> int:
        """Return how many of the frames carry the ids that they should."""
        count = len(positions) - 1
        if self.until is not None:
            count = min(count, self.until - self.expected)
        first = self.base + self.expected
        for index in range(count):
            at = positions[index]
            if data[at + 18 : at + kernel.HEAD] != b"%016x" % (first + index):
                return index
        return count

    def _is_torn(self) -> bool:
        """Return whether the frame that should be here is, up to the end of the stretch: what follows is its body."""
        head = self.file.read(min(kernel.HEAD, self.stop - self.at), self.at)
        beyond = 4 + int.from_bytes(head[:4], "big") > self.stop - self.at
        return self.until is None and beyond and len(head) == kernel.HEAD and self._fits(self.at, self.expected)

    def _fits(self, at: int, sequence: int) -> bool:
        """Return whether the frame of `sequence`, or the beginning of it, can lie at `at`."""
        if at == self.stop or sequence == self.until:
            return True
        head = self.file.read(min(kernel.HEAD, self.stop - at), at)
        return _TYPE.startswith(head[4:8]) and (b"%016x" % (self.base + sequence)).startswith(head[18:34])

    def _next_sound(self, at: int, expected: int) -> tuple[int, int]:
        """Return the next place behind `at` where a whole frame begins, and its sequence; (0, 0): none.

        A frame inside a message's body could look the same, so the sequence must be one that the bytes skipped can
        account for: no lost frame was shorter than its head.
        """
        begin = at + 1
        while self.stop - begin >= kernel.HEAD:
            data = self.file.read(min(_PIECE, self.stop - begin), begin)
            found = data.find(_TYPE, 4)
            while found >= 0 and found + 30 <= len(data):
                place = begin + found - 4
                text = data[found + 14 : found + 30]
                sequence = int(text, 16) - self.base if _HEX.issuperset(text) else -1
                size = int.from_bytes(data[found - 4 : found], "big")
                believable = 1 <= sequence - expected <= (place - at) // kernel.HEAD + 1
                if self.until is not None and sequence >= self.until:
                    believable = False
                if believable and 30 <= size <= self.stop - place - 4:
                    return place, sequence
                found = data.find(_TYPE, found + 1)
            begin += max(len(data) - kernel.HEAD, 1)
        return 0, 0

    def _emit(self, data: bytes, positions: "array[int]", count: int, note: Note) -> Iterator[Chunk]:
        if count:
            frames = data[: positions[count]]
            self.newest = max(self.newest, *[time_of(data, at) for at in positions[:count]])
            crc = kernel.crc32c(frames)
            chunk = Chunk(self.expected, self.at, self.newest, count, len(frames), crc, boot=self.boot)
            if not self.trusted:
                chunk.flags = QUARANTINED | UNVERIFIED
                note(self.file.path, self.at, f"messages {chunk.first} to {chunk.end - 1} {_SET_ASIDE}")
            yield chunk
            self.at += len(frames)
            self.expected += count

    def _quarantine(self, place: int, sequence: int, note: Note) -> Chunk:
        length, count = place - self.at, sequence - self.expected
        note(self.file.path, self.at, f"quarantined {length} bytes, messages {self.expected} to {sequence - 1}")
        chunk = Chunk(self.expected, self.at, self.newest, count, length, 0, QUARANTINED, boot=self.boot)
        self.at, self.expected = place, sequence
        return chunk


def node_of(file: File) -> int | None:
    """Return the node in the id of a file's first frame; None when there is none."""
    text = file.read(kernel.HEAD, 0)[18:] if file.size() else b""
    return int(text, 16) >> 54 if len(text) == 16 and _HEX.issuperset(text) else None
