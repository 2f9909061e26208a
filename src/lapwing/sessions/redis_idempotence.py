"""XADD IDMP: entries that producers have added before, so that a retry adds nothing."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from lapwing.wire.resp.ids import EntryId

_SECOND: Final = 1_000_000_000  # ns
_LONGEST_NAME: Final = 64  # bytes of a producer or an id that are kept as they are
_MOST_PRODUCERS: Final = 10_000  # of one stream; the one that was silent for longest is forgotten first


class IdempotenceWindow:
    """The ids that each producer has used lately, and the entries they belong to; of one stream."""

    __slots__ = ("_producers", "added", "duplicates", "duration", "max_size")

    def __init__(self) -> None:
        self.duration = 100  # s
        self.max_size = 100  # ids of one producer
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
        producer, name = _short(producer), _short(name)
        used = self._producers.setdefault(producer, OrderedDict())
        self._producers.move_to_end(producer)
        used[name] = entry, now
        self.added += 1
        while len(used) > self.max_size:
            used.popitem(last=False)
        while len(self._producers) > _MOST_PRODUCERS:
            self._producers.popitem(last=False)

    def forget(self, producer: bytes, name: bytes) -> None:
        """Forget an id whose entry could not be written."""
        self._producers.get(_short(producer), OrderedDict()).pop(_short(name), None)


def _short(name: bytes) -> bytes:
    """Return the name, or what takes its place where it is long: windows take little memory, whatever clients send."""
    return name if len(name) <= _LONGEST_NAME else b"#" + hashlib.blake2b(name, digest_size=32).digest()


def name_of(pairs: list[bytes]) -> bytes:
    """Return the id that IDMPAUTO makes of an entry: another one for other fields or values."""
    digest = hashlib.blake2b(digest_size=16)
    for word in pairs:
        digest.update(b"%d:" % len(word))
        digest.update(word)
    return digest.digest()
