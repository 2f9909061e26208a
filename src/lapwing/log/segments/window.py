"""The newest blocks of a log, in memory, found by sequence."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from lapwing import kernel


class Window(kernel.Blocks):
    """The newest of them: [start, end)."""

    __slots__ = ()

    @property
    def start(self) -> int:
        """The first sequence held; `end` when nothing is."""
        return self.firsts[0] if self.firsts else self.end

    def block(self, sequence: int, limit: int) -> tuple[int, int, bytes]:
        """Frames from a block boundary at or before `sequence` (which must be held) on: first, end, frames.

        Small neighbours are joined up to `limit` bytes, so that a reader behind by many small publishes catches up in
        few steps.
        """
        firsts, blocks = self.firsts, self.blocks
        at = len(firsts) - 1
        if firsts[at] <= sequence:
            return firsts[at], self.end, blocks[at]
        at = bisect_right(firsts, sequence) - 1
        size = len(blocks[at])
        stop = at + 1
        while stop < len(blocks) and size + len(blocks[stop]) <= limit:
            size += len(blocks[stop])
            stop += 1
        end = firsts[stop] if stop < len(firsts) else self.end
        return firsts[at], end, blocks[at] if stop == at + 1 else b"".join(blocks[at:stop])

    def boundary(self, sequence: int) -> int:
        """Return the last place between two blocks that is at or before `sequence`; `start` when there is none."""
        if sequence >= self.end or not self.firsts:
            return self.end
        return self.firsts[max(bisect_right(self.firsts, sequence) - 1, 0)]

    def since(self, sequence: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield each block that begins at `sequence` or later: first, count, frames."""
        at = bisect_right(self.firsts, sequence - 1)
        ends = [*self.firsts[at + 1 :], self.end]
        for first, end, frames in zip(self.firsts[at:], ends, self.blocks[at:], strict=False):
            yield first, end - first, frames

    def shrink(self, limit: int, keep_from: int) -> None:
        """Drop the oldest blocks while more than `limit` bytes are held and they end at or below `keep_from`."""
        gone = 0
        firsts = self.firsts
        while self.bytes > limit and gone < len(firsts):
            end = firsts[gone + 1] if gone + 1 < len(firsts) else self.end
            if end > keep_from:
                break
            self.bytes -= len(self.blocks[gone])
            gone += 1
        if gone:
            del firsts[:gone]
            del self.blocks[:gone]

    def cut(self, end: int) -> None:
        """Drop what begins at `end` or later."""
        at = bisect_left(self.firsts, end)
        del self.firsts[at:], self.blocks[at:]
        self.bytes = sum(map(len, self.blocks))
        self.end = end

    def clear(self, start: int) -> None:
        """Hold nothing; the next block begins at `start`."""
        self.firsts.clear()
        self.blocks.clear()
        self.bytes = 0
        self.end = start
