"""The engine of a remote log, with a count of what it is asked: engines are paid for by the request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from lapwing.errors import RemoteFailed
from lapwing.log.remote.engines import Engine

_MINUTE: Final = 60_000_000_000  # ns
_HOUR: Final = 60  # minutes
_WAITS: Final = (0.05, 0.2, 0.5, 1.0)  # seconds between attempts

T = TypeVar("T")


class RequestCount:
    """The number of requests to engines, by any thread: in all, and in the last hour."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.requests = 0
        self.bytes = 0  # that were written
        self._minutes: deque[list[int]] = deque(maxlen=_HOUR)  # number of the minute, requests, bytes
        self._lock = threading.Lock()

    def add(self, size: int = 0) -> None:
        """Count a request."""
        with self._lock:
            minute = self._now() // _MINUTE
            if not self._minutes or self._minutes[-1][0] != minute:
                self._minutes.append([minute, 0, 0])
            last = self._minutes[-1]
            last[1] += 1
            last[2] += size
            self.requests += 1
            self.bytes += size

    def hour(self) -> tuple[int, int]:
        """Return how many requests there were in the last hour, and how many bytes were written."""
        with self._lock:
            since = self._now() // _MINUTE - _HOUR
            recent = [each for each in self._minutes if each[0] > since]
        return sum(each[1] for each in recent), sum(each[2] for each in recent)


class CountedEngine:
    """Another engine. What fails is tried again a few times: everything but `create` always, `create` if `patient`.

    To create an object once more does no harm, as whoever does it reads what is there. But a publisher waits for the
    creation of a record, and is to know soon that it fails.
    """

    def __init__(self, engine: Engine, count: RequestCount, *, patient: bool) -> None:
        self._engine = engine
        self._count = count
        self.patient = patient
        self.place = engine.place

    def _insist(self, call: Callable[[], T]) -> T:
        """Call a function until it does not fail, a few times. Raises `RemoteFailed`."""
        for wait in _WAITS:
            try:
                return call()
            except RemoteFailed:
                time.sleep(wait)
        return call()

    def create(self, name: str, *data: bytes) -> bool:
        """Create an object unless there is one of that name."""

        def create() -> bool:
            self._count.add(sum(map(len, data)))
            return self._engine.create(name, *data)

        return self._insist(create) if self.patient else create()

    def read(self, name: str) -> bytes | None:
        """Return an object; None when there is none."""

        def read() -> bytes | None:
            self._count.add()
            return self._engine.read(name)

        return self._insist(read)

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield the name and the bytes of each object whose name begins with `prefix/`."""

        def find() -> list[tuple[str, int]]:
            self._count.add()
            return list(self._engine.find(prefix, after))

        return iter(self._insist(find))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""

        def delete() -> None:
            self._count.add()
            self._engine.delete(names)

        self._insist(delete)

    def close(self) -> None:
        """Give connections back."""
        self._engine.close()
