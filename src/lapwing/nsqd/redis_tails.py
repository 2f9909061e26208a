"""Plain XADDs to one stream that are written, and answered, where they are received."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from lapwing.net.polled import Additions, PolledTransport, XaddTail
from lapwing.nsqd.log_tails import LogTails, TailRun

if TYPE_CHECKING:
    from lapwing.nsqd.redis import RedisConnection
    from lapwing.sessions.redis_stream import Stream


class XaddRuns:
    """The streams that clients add entries to."""

    def __init__(self, max_entry: int, now: Callable[[], int], tails: LogTails) -> None:
        self._max_entry = max_entry
        self._now = now
        self._tails = tails
        self._runs: WeakValueDictionary[bytes, _XaddRun] = WeakValueDictionary()

    def note(self, transport: PolledTransport, key: bytes, stream: Stream) -> None:
        """Note that a client has added entries by itself, and may do so again."""
        run = self._runs.get(key)
        if run is None or run.stream is not stream:
            run = self._runs[key] = _XaddRun(key, stream, self._max_entry, self._now)
        transport.publishes = run.additions
        self._tails.note(run)


class _XaddRun(TailRun):
    """The entries of one stream."""

    tail: XaddTail

    def __init__(self, key: bytes, stream: Stream, max_entry: int, now: Callable[[], int]) -> None:
        self.additions = Additions()
        self.stream = stream
        super().__init__(stream.topic, XaddTail(self.additions, key, max_entry), now)

    def aim(self) -> bool:
        """Point the tail at the end of the stream; return False if entries need a look."""
        stream = self.stream
        if not stream.takes_runs or not super().aim():
            return False
        self.tail.aim_entries(stream.log.next, stream.stamp(self._now()), stream.field)
        return True

    def settle(self) -> bool:
        """Have the stream know what was added."""
        self.stream.note_stamp(self.tail.newest)
        return super().settle()

    def _answered(self, messages: dict[PolledTransport, int], now: int) -> None:
        for transport, number in messages.items():
            cast("RedisConnection", transport.get_protocol()).count_added(number, now)
