"""The part of a log that can rest: it takes little memory until its next use."""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

from lapwing.kernel import SPACE_CHECK
from lapwing.log import resting
from lapwing.log.disk import OpenFiles
from lapwing.log.options import LogOptions
from lapwing.log.segments.attributes import Rows
from lapwing.log.segments.log_writer import LogWriter
from lapwing.log.segments.segment import Segment
from lapwing.log.topiclog import Frames

OnCorrupt = Callable[[str, int, int, int], None]  # path, offset, first sequence, count

NONE_LOST: Final = range(0)
NO_MEMO: Final = (0, 0, b"")
RESTING: Final = frozenset({  # what a log does not have while it rests
    "_cold_rows", "_firsts", "_memo", "_pending_rows", "_recent_rows", "_reported", "_segments", "_sync",
    "_unwritten_rows", "_window", "identity", "notes", "unserved",
})  # fmt: skip


class RestingLog(LogWriter):
    """The segments of one topic, packed into a few bytes while nobody uses them."""

    __slots__ = ("_cold_rows", "_memo", "_packed", "_reported", "identity", "lost", "node", "on_corrupt", "unserved")

    in_use: ClassVar[Any]  # the class of a log that is used
    at_rest: ClassVar[Any]  # and of one that rests

    identity: str
    node: int
    lost: range
    on_corrupt: OnCorrupt
    _packed: bytes  # all that is known of the log while it rests

    def _begin_reading(self) -> None:
        """Begin with nothing known of what readers have met."""
        self.unserved: list[tuple[int, int]] = []  # runs that could not be served when they were read
        self._reported: set[tuple[str, int]] = set()
        self._memo: tuple[int, int, Frames] = NO_MEMO  # the block that a single frame was read from last
        self._cold_rows: list[tuple[Segment, int, Rows]] = []  # that were read last, and from which sequence on

    def rest(self) -> bool:
        """Take little memory until the next use; return False, and change nothing, where something is in the way.

        In the way are messages that are not written, a sync under way, reports that nobody has taken, and failures.
        """
        if self._packed:
            return True
        unwritten = self._lazy or self.fresh or self._unwritten_rows or self._reserved
        if unwritten or self.notes or self.unserved or self._reported:
            return False
        packed = resting.pack(self.identity, self._segments, self._sync)
        if packed is None:
            return False
        for segment in self._segments:
            segment.close()
        self.files.keep(self, 0)
        self._packed = packed
        for name in RESTING:
            delattr(self, name)
        self.fresh, self.noted = None, False
        self.__class__ = self.at_rest
        return True

    @property
    def resting_state(self) -> tuple[int, int, int, int, bytes] | None:
        """The node, the first sequence, the end, the end of rows and all else of a resting log of one segment."""
        if not self._packed or resting.has_several(self._packed) or self.lost:
            return None
        return self.node, self.first, self.end, self._rows_end, self._packed

    @classmethod
    def resume_resting(
        cls,
        state: tuple[int, int, int, int, bytes],
        options: LogOptions,
        files: OpenFiles,
        on_corrupt: OnCorrupt,
    ) -> Self:
        """Return the log whose `resting_state` this was, without a look at its files: nobody has touched them.

        The caller names its directory.
        """
        log = cls.__new__(cls)
        log.__class__ = cls.at_rest
        log.options, log.files, log.on_corrupt = options, files, on_corrupt
        log.node, log.first, log.end, log._rows_end, log._packed = state
        log.next = log.written = log.end
        log.fresh, log.noted = None, False
        log.lost, log._lazy, log._reserved = NONE_LOST, False, False
        log.since_check, log._noted_bytes = SPACE_CHECK, -1
        return log

    @property
    def rests(self) -> bool:
        """Whether the log takes little memory now."""
        return bool(self._packed)

    @property
    def has_one_segment(self) -> bool:
        """Whether nothing can be deleted, as only the segment is left that is written to."""
        return not resting.has_several(self._packed) if self._packed else len(self._segments) < 2

    def wake(self) -> None:
        """Return to use."""
        if type(self) is self.at_rest:
            self.__class__ = self.in_use
        packed, self._packed = self._packed, b""
        self.notes = []
        self.identity, segments, self._sync = resting.unpack(packed, self.directory, self.files, self.options)
        self._set_segments(segments)
        self._begin()
        self._begin_reading()

    @property
    def bytes(self) -> int:
        """Bytes of frames in all segments, and in memory waiting to be written."""
        return resting.bytes_of(self._packed) if self._packed else super().bytes

    @property
    def unsynced(self) -> bool:
        """Whether something flushed would not survive a power loss."""
        return resting.is_unsynced(self._packed) if self._packed else super().unsynced
