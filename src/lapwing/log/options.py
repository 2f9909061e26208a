"""Settings of a log: durability, sizes, and what all logs together may hold open."""

from typing import Final, Literal

from lapwing import kernel
from lapwing.records import dataclass

Durability = Literal["memory", "os", "fsync"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20

CHUNK_BYTES: Final = kernel.CHUNK_BYTES  # a chunk longer than this is split, unless it is one message
BLOCK_BYTES: Final = 256 * KIB  # what one cold read aims at


def boot_number(boot_id: str) -> int:
    """Return the number that names a run of the machine in index records; 0 when it has no id."""
    return kernel.crc32c(boot_id.encode()) or 1 if boot_id else 0


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The settings of a topic's log; the defaults are those of the broker."""

    durability: Durability = "os"
    segment_bytes: int = 100 * MIB  # a write that would pass it starts a new segment
    merge_bytes: int = 16 * KIB  # small batches share a chunk, and so a checksum, up to this length; 0: never
    mem_queue_size: int = 10_000  # messages kept unwritten with durability "memory"
    tail_bytes: int = 256 * KIB  # of the newest chunks, kept in memory so that delivery at the tail reads no file
    boot: int = 0  # names this run of the machine; 0: not known, and every index record is written before its frames
    min_free_bytes: int = 0  # below it appends are refused, so that what is there stays usable; 0: never
