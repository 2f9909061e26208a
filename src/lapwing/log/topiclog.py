"""A log, as its topic sees it, wherever it lies."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from lapwing.log.segments.attributes import Extra, RowText
from lapwing.log.segments.reader import InFile, Reader
from lapwing.log.segments.retention import RetentionLimits

if TYPE_CHECKING:
    from lapwing.kernel import Tail

Frames = bytes  # back to back, as consumers get them; a name of its own, as logs have an attribute `bytes`


class TopicLog(Protocol):
    """A log, as its topic sees it, on disk or in memory.

    `append` takes, `flush` makes it count: until then nobody can read it, and a failed flush forgets it. What is
    written here is for memory, which has no files, and nothing to sync.
    """

    identity: str  # 16 hex digits; a log that is created again has another one
    node: int  # the node in the ids of its messages
    first: int  # the first sequence still held
    next: int  # the sequence that the next append gets
    end: int  # what is below it can be read
    lost: range  # sequences that a crash took, found when the log was opened; they are never given out again
    unserved: list[tuple[int, int]]  # runs that could not be served when they were read

    @property
    def tail(self) -> "Tail | None":
        """The end of the log where intakes may append; None where it has none."""
        return None

    @property
    def pending(self) -> bool:
        """Whether something was appended and not yet flushed."""

    @property
    def bytes(self) -> int:
        """Bytes of frames held."""

    @property
    def unsynced(self) -> bool:
        """Whether something flushed would not survive a power loss."""
        return False

    def append(
        self, frames: Frames, count: int, *, now: int, extras: Sequence[Extra] = (), rows: RowText = b""
    ) -> int:
        """Take a batch of frames that carry the ids from `next` on; the first sequence."""

    def flush(self) -> None:
        """Make everything appended count; raises `WriteFailed` and forgets it all when the disk refuses."""

    def take_back(self) -> None:
        """Forget what was appended and not flushed, after a flush that raised anything else."""

    def write_index(self) -> None:
        """Write the index records of all frames that are flushed. Raises `WriteFailed`, and can be called again."""
        return

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that makes what is flushed survive a power loss, for any thread; None: nothing to do."""
        return None

    def finish_sync(self, error: OSError | None) -> None:
        """Note how the call ended."""
        return

    def sync_again(self, sequence: int) -> None:
        """Have the next sync cover everything from `sequence` on, also what an earlier process wrote."""
        return

    def reader(self, sequence: int) -> Reader:
        """Return a reader at `sequence`."""

    def frame(self, sequence: int) -> Frames:
        """Return one frame; raises `OutOfRange` or `CorruptChunk`."""

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames (empty: quarantined)."""

    def in_file(self, start: int, stop: int, max_bytes: int) -> InFile | None:
        """Return where messages from `start` on lie in a file, whole chunks; None when they have to be asked for."""
        return None

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return the extras of the messages [start, stop), in order."""

    def rows(self, start: int, stop: int) -> RowText:
        """Return the same as text, as `kernel.with_headers` takes it. Raises `ReadFailed`."""

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes of frames lie from `sequence` on: exact between chunks."""

    def at_time(self, timestamp: int) -> int:
        """Return the first sequence at or after a time; `end` when there is none."""

    def timestamp(self, sequence: int) -> int:
        """Return when a message was published."""

    def segment_start(self, sequence: int) -> int:
        """Return the first sequence of the segment that holds `sequence`, or would."""

    def release(self, sequence: int, *, now: int, limits: RetentionLimits) -> list[str]:
        """Delete what is below `sequence` and not wanted by `limits`; return the names of what was deleted."""

    def close(self) -> None:
        """Write what is unwritten and give everything back."""

    def destroy(self) -> None:
        """Remove all trace of the log."""
