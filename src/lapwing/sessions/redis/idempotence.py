"""XADD IDMP: entries that producers have added before, so that a retry adds nothing.

The names lie beside the entries in the log, as the header `redis-once`: a window is read back after a restart.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Final

from lapwing.errors import CorruptChunk, OutOfRange
from lapwing.wire.resp.ids import EntryId

if TYPE_CHECKING:
    from lapwing.log.log import Extra
    from lapwing.sessions.redis.stream import Stream

DURATION: Final = 100  # s, unless XCFGSET changes it
MAX_SIZE: Final = 100  # ids of one producer
HEADER: Final = "redis-once"
_STEP: Final = 5_000  # entries that are read back at a time, newest first
_MAX_READ: Final = 100_000  # entries
_SECOND: Final = 1_000_000_000  # ns
_LONGEST_NAME: Final = 64  # bytes of a producer or an id that are kept as they are
_MAX_PRODUCERS: Final = 10_000  # of one stream; the one that was silent for longest is forgotten first


class IdempotenceWindow:
    """The ids that each producer has used lately, and the entries they belong to; of one stream."""

    __slots__ = ("_producers", "added", "duplicates", "duration", "max_size")

    def __init__(self, duration: int = DURATION, max_size: int = MAX_SIZE) -> None:
        self.duration = duration  # s
        self.max_size = max_size  # ids of one producer
        self.added = 0
        self.duplicates = 0
        self._producers: OrderedDict[bytes, OrderedDict[bytes, tuple[EntryId, int]]] = OrderedDict()

    @property
    def producers(self) -> int:
        """The number of producers that are remembered."""
        return len(self._producers)

    @property
    def remembered(self) -> int:
        """The number of ids that are remembered."""
        return sum(map(len, self._producers.values()))

    def configure(self, *, duration: int | None, max_size: int | None) -> None:
        """Change the limits; everything is forgotten."""
        self.duration = self.duration if duration is None else duration
        self.max_size = self.max_size if max_size is None else max_size
        self._producers.clear()

    def find(self, producer: bytes, name: bytes, *, now: int) -> EntryId | None:
        """Return the entry that a producer has added under an id; None if it has not, or long ago."""
        producer, name = _short(producer), _short(name)
        used = self._producers.get(producer)
        if used is None:
            return None
        oldest = now - self.duration * _SECOND
        while used and next(iter(used.values()))[1] < oldest:
            used.popitem(last=False)
        found = used.get(name)
        if found is None:
            return None
        self.duplicates += 1
        return found[0]

    def add(self, producer: bytes, name: bytes, entry: EntryId, *, now: int) -> None:
        """Remember the entry that a producer has added under an id."""
        self._keep(_short(producer), _short(name), entry, now)
        self.added += 1

    def read_back(self, stream: Stream, *, since: int, now: int) -> None:
        """Remember what producers have added from the sequence `since` on, as far as it is young enough.

        Of a busy stream these are the last 100,000 entries. Raises `ReadFailed`.
        """
        log, skew = stream.topic.store.whole_log, stream.topic.skew
        stop = log.end
        start = max(log.at_time(now + skew - self.duration * _SECOND), log.first, since, stop - _MAX_READ)
        found: list[list[Extra]] = []
        while stop > start:
            first = max(stop - _STEP, start)
            found.append([extra for extra in log.extras(first, stop) if HEADER in extra.headers])
            stop = first
        for extra in chain.from_iterable(reversed(found)):
            producer, _, name = extra.headers[HEADER].partition(" ")
            try:
                entry, added = stream.id_at(extra.sequence), log.timestamp(extra.sequence)
            except (OutOfRange, CorruptChunk):
                continue  # the entry is lost, so a retry has to add it
            self._keep(bytes.fromhex(producer), bytes.fromhex(name), entry, added - skew)

    def _keep(self, producer: bytes, name: bytes, entry: EntryId, now: int) -> None:
        used = self._producers.setdefault(producer, OrderedDict())
        self._producers.move_to_end(producer)
        used[name] = entry, now
        while len(used) > self.max_size:
            used.popitem(last=False)
        while len(self._producers) > _MAX_PRODUCERS:
            self._producers.popitem(last=False)

    def forget(self, producer: bytes, name: bytes) -> None:
        """Forget an id whose entry could not be written."""
        self._producers.get(_short(producer), OrderedDict()).pop(_short(name), None)


def _short(name: bytes) -> bytes:
    """Return the name, or what takes its place where it is long: windows take little memory, whatever clients send."""
    return name if len(name) <= _LONGEST_NAME else b"#" + hashlib.blake2b(name, digest_size=32).digest()


def header_of(producer: bytes, name: bytes) -> dict[str, str]:
    """Return the header that keeps who has added an entry, and under which id."""
    return {HEADER: f"{_short(producer).hex()} {_short(name).hex()}"}


def name_of(pairs: list[bytes]) -> bytes:
    """Return the id that IDMPAUTO makes of an entry: another one for other fields or values."""
    digest = hashlib.blake2b(digest_size=16)
    for word in pairs:
        digest.update(b"%d:" % len(word))
        digest.update(word)
    return digest.digest()
