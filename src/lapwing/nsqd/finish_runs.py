"""FINs of the consumers of one channel that arrive in the same round: one call, without a parser.

It concerns connections that send nothing but whole FINs. Everything else goes to the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from lapwing.net.polled import Finishes

if TYPE_CHECKING:
    from lapwing.broker.channel import Channel


class Finisher(Protocol):
    """A connection whose FINs were taken."""

    def finished(self, block: bytes, now: int) -> None:
        """Carry out a run of FINs, given as their lines."""


class FinishRuns:
    """The channels that connections consume."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._runs: WeakValueDictionary[Channel, _FinishRun] = WeakValueDictionary()

    def finishes(self, channel: Channel) -> Finishes:
        """Return the place for FINs of the messages of a channel."""
        run = self._runs.get(channel)
        if run is None:
            run = self._runs[channel] = _FinishRun(self._now)
        return run.finishes


class _FinishRun:
    """The FINs of one channel."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.finishes = Finishes(self._take)
        self._now = now

    def _take(self) -> None:
        """Carry out what this round has brought."""
        pieces, senders = self.finishes.take()
        now = self._now()
        for (transport, _, _), block in zip(senders, pieces, strict=True):
            finisher: Finisher = transport.get_protocol()  # type: ignore[assignment]  # `_digest` has put it there
            finisher.finished(block, now)
