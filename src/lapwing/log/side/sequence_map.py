"""A mapping from sequences to rows of numbers that takes few bytes for each.

A dict of a million messages takes over 100 MB. Here most of them lie in sorted arrays, and few in a dict.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import Final

Row = tuple[int, ...]

_FRESH: Final = 4096  # rows in the dict before they are sorted into an array
_LARGE: Final = 1 << 15  # rows of arrays that are not merged any more


class _Block:
    """Rows in rising order of their sequence; a removed one stays until half of them are."""

    __slots__ = ("alive", "columns", "count", "sequences")

    def __init__(self, sequences: "array[int]", columns: "list[array[int]]") -> None:
        self.sequences = sequences
        self.columns = columns
        self.alive = bytearray(b"\1") * len(sequences)
        self.count = len(sequences)

    def find(self, sequence: int) -> int:
        """Return the place of a sequence, -1 when it is not here."""
        sequences = self.sequences
        if not sequences or not sequences[0] <= sequence <= sequences[-1]:
            return -1
        at = bisect_left(sequences, sequence)
        return at if sequences[at] == sequence and self.alive[at] else -1

    def extend(self, sequences: "array[int]", columns: "list[array[int]]") -> None:
        self.sequences += sequences
        for mine, more in zip(self.columns, columns, strict=True):
            mine += more
        self.alive += b"\1" * len(sequences)
        self.count += len(sequences)

    def remove(self, at: int) -> None:
        self.alive[at] = 0
        self.count -= 1
        if self.count < len(self.sequences) // 2:
            self.sequences = array("q", compress(self.sequences, self.alive))
            self.columns = [array("q", compress(column, self.alive)) for column in self.columns]
            self.alive = bytearray(b"\1") * self.count


class SequenceMap:
    """Rows of `columns` numbers by sequence."""

    __slots__ = ("_blocks", "_columns", "_fresh")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._blocks: list[_Block] = []
        self._fresh: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._fresh) + sum(block.count for block in self._blocks)

    def __bool__(self) -> bool:
        return bool(self._fresh) or bool(self._blocks)

    def __contains__(self, sequence: object) -> bool:
        if sequence in self._fresh:
            return True
        return isinstance(sequence, int) and any(block.find(sequence) >= 0 for block in self._blocks)

    def __iter__(self) -> Iterator[int]:
        """Yield the sequences, in no order."""
        return chain(*(compress(block.sequences, block.alive) for block in self._blocks), self._fresh)

    def get(self, sequence: int) -> Row | None:
        row = self._fresh.get(sequence)
        if row is not None:
            return row
        for block in self._blocks:
            at = block.find(sequence)
            if at >= 0:
                return tuple([column[at] for column in block.columns])
        return None

    def set(self, sequence: int, *row: int) -> None:
        for block in self._blocks:
            at = block.find(sequence)
            if at >= 0:
                for column, value in zip(block.columns, row, strict=True):
                    column[at] = value
                return
        self._fresh[sequence] = row
        if len(self._fresh) > _FRESH:
            self._settle()

    def pop(self, sequence: int) -> Row | None:
        """Remove a sequence; return its row."""
        row = self._fresh.pop(sequence, None)
        if row is not None:
            return row
        for number, block in enumerate(self._blocks):
            at = block.find(sequence)
            if at >= 0:
                row = tuple([column[at] for column in block.columns])
                block.remove(at)
                if not block.count:
                    del self._blocks[number]
                return row
        return None

    def clear(self) -> None:
        self._blocks.clear()
        self._fresh.clear()

    def between(self, start: int, stop: int, most: int) -> list[int]:
        """Return the first `most` sequences of [start, stop), rising."""
        found = [sequence for sequence in self._fresh if start <= sequence < stop]
        for block in self._blocks:
            at = bisect_left(block.sequences, start)
            end = bisect_left(block.sequences, stop)
            while at < end and most > 0:
                part = list(compress(block.sequences[at : at + most], block.alive[at : at + most]))
                found += [sequence for sequence in part if sequence < stop]
                at += most
                if len(part) >= most:
                    break
        return sorted(found)[:most]

    def lowest(self, start: int = 0) -> int | None:
        """Return the lowest sequence from `start` on."""
        lows = [sequence for sequence in self._fresh if sequence >= start]
        for block in self._blocks:
            at = block.alive.find(1, bisect_left(block.sequences, start))
            if at >= 0:
                lows.append(block.sequences[at])
        return min(lows, default=None)

    # --- the arrays --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Sort the newest rows into the arrays."""
        if not self._fresh:
            return
        sequences = array("q", sorted(self._fresh))
        rows = [self._fresh[sequence] for sequence in sequences]
        self._fresh.clear()
        self._append(sequences, _columns(rows, self._columns))

    def _append(self, sequences: "array[int]", columns: "list[array[int]]") -> None:
        blocks = self._blocks
        if blocks and blocks[-1].sequences[-1] < sequences[0]:
            blocks[-1].extend(sequences, columns)
            return
        blocks.append(_Block(sequences, columns))
        while len(blocks) > 1 and len(blocks[-2].sequences) + len(blocks[-1].sequences) <= _LARGE:
            newer, older = blocks.pop(), blocks.pop()
            rows = [
                *compress(zip(older.sequences, *older.columns, strict=True), older.alive),
                *compress(zip(newer.sequences, *newer.columns, strict=True), newer.alive),
            ]
            rows.sort()
            first, *others = _columns(rows, len(columns) + 1)
            blocks.append(_Block(first, others))


def _columns(rows: Sequence[Row], count: int) -> "list[array[int]]":
    return [array("q", [row[column] for row in rows]) for column in range(count)]
