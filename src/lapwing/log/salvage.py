"""Frames found without an index: by their form, and by the ids that follow one another."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lapwing import kernel
from lapwing.log.disk import File
from lapwing.log.index import QUARANTINED, Chunk
from lapwing.log.segment import time_of

_PIECE: Final = 1 << 20
_MOST: Final = 1 << 32  # messages that one record has room for; a longer gap is seen by the names of the files alone
_TYPE: Final = b"\x00\x00\x00\x02"
_HEX: Final = frozenset(b"0123456789abcdef")

Say = Callable[[str, int, str], None]  # path, offset, what


@dataclass(slots=True)
class Stretch:
    """Bytes of a frames file that no sound record speaks of, and what is known of them."""

    file: File
    at: int
    stop: int
    expected: int  # the sequence that should begin at `at`
    base: int  # the node's share of an id
    newest: int = 0  # ns, the time of the newest message before
    until: int | None = None  # the sequence that follows the stretch, where that is known
    resync: bool = True  # go on behind damage; not behind a torn write, where nothing follows

    def chunks(self, say: Say) -> Iterator[Chunk]:
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
                    yield from self._emit(data, positions, sound - 1)
                    yield self._quarantine(place, sequence, say)
                    continue
            if sound:
                yield from self._emit(data, positions, sound)
                continue
            place, sequence = self._next_sound(self.at, self.expected) if self.resync else (0, 0)
            if not place:
                break
            yield self._quarantine(place, sequence, say)
        if self.until is not None and self.expected < self.until and self.until - self.expected < _MOST:
            yield self._quarantine(self.stop, self.until, say)

    def _piece(self) -> tuple[bytes, "array[int]"]:
        """The next piece of the stretch, with all of its first frame, and where its whole frames begin and end."""
        data = self.file.read(min(_PIECE, self.stop - self.at), self.at)
        first = 4 + int.from_bytes(data[:4], "big")
        if len(data) < first <= self.stop - self.at:
            data = self.file.read(first, self.at)
        return data, kernel.scan_frames(data, 0, len(data))[0]

    def _in_order(self, data: bytes, positions: "array[int]") -> int:
        """How many of the frames carry the ids that they should."""
        count = len(positions) - 1
        if self.until is not None:
            count = min(count, self.until - self.expected)
        first = self.base + self.expected
        for index in range(count):
            at = positions[index]
            if data[at + 18 : at + kernel.HEAD] != b"%016x" % (first + index):
                return index
        return count

    def _fits(self, at: int, sequence: int) -> bool:
        """Whether the frame of `sequence`, or the beginning of it, can lie at `at`."""
        if at == self.stop or sequence == self.until:
            return True
        head = self.file.read(min(kernel.HEAD, self.stop - at), at)
        return _TYPE.startswith(head[4:8]) and (b"%016x" % (self.base + sequence)).startswith(head[18:34])

    def _next_sound(self, at: int, expected: int) -> tuple[int, int]:
        """The next place behind `at` where a whole frame begins, and its sequence; (0, 0): none.

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

    def _emit(self, data: bytes, positions: "array[int]", count: int) -> Iterator[Chunk]:
        if count:
            frames = data[: positions[count]]
            self.newest = max(self.newest, *[time_of(data, at) for at in positions[:count]])
            yield Chunk(self.expected, self.at, self.newest, count, len(frames), kernel.crc32c(frames))
            self.at += len(frames)
            self.expected += count

    def _quarantine(self, place: int, sequence: int, say: Say) -> Chunk:
        length, count = place - self.at, sequence - self.expected
        say(self.file.path, self.at, f"quarantined {length} bytes, messages {self.expected} to {sequence - 1}")
        chunk = Chunk(self.expected, self.at, self.newest, count, length, 0, QUARANTINED)
        self.at, self.expected = place, sequence
        return chunk


def node_of(file: File) -> int | None:
    """The node in the id of a file's first frame; None when there is none."""
    text = file.read(kernel.HEAD, 0)[18:] if file.size() else b""
    return int(text, 16) >> 54 if len(text) == 16 and _HEX.issuperset(text) else None
