"""Plain publishes, plain XADDs and FINs that are taken where bytes are received, for all doors.

The compiled intakes (`kernel._road`) append messages to the logs, write them and answer them. Here the rest of the node
learns of it: topics that have grown, failed writes, answers that wait for a sync, and FINs to be carried out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lapwing.errors import LapwingError, LogError
from lapwing.kernel._road import Finishes, NsqIntake, Round
from lapwing.log.segments.attributes import Rows

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.settings.options import Options
    from lapwing.net.sockets.polled import PolledTransport
    from lapwing.nsqd.turn import Turn
    from lapwing.wire.nsq.limits import Limits


class Intakes:
    """The intakes of one node, around each round of received bytes."""

    def __init__(self, turn: Turn, limits: Limits, *, waits: bool) -> None:
        """Set up the intakes; with `waits` publishes are answered when they are synced."""
        self.round = turn.broker.round = Round(turn.broker.growth.followed)
        self.nsq = NsqIntake(
            self.round, max_count=limits.max_count, max_size=limits.max_message, max_body=limits.max_body,
            max_defer=_longest_defer(turn.broker.options, limits), rows=Rows, waits=waits,
        )  # fmt: skip
        self.waits = waits
        self._turn = turn
        self._broker = turn.broker
        self._now = turn.clock.now
        self._begun = 0  # when this round did, ns
        self._finishes: WeakKeyDictionary[Channel, Finishes] = WeakKeyDictionary()

    def begin(self) -> None:
        self._turn.begin()
        self._begun = now = self._now()
        self.round.begin(now, self._broker.skew)

    def finishes(self, channel: Channel) -> Finishes:
        """Return the place for FINs of the messages of a channel."""
        found = self._finishes.get(channel)
        if found is None:
            found = self._finishes[channel] = Finishes()
        return found

    def taken(self) -> None:
        """Have the node learn what the intakes have taken and written in this round."""
        grown, failed = self.round.news()
        broker = self._broker
        for failure in failed:
            broker.fail(failure)
        if grown:
            now = self._now()
            for topic in grown:
                try:
                    topic.grew(now)
                except Exception as error:  # of this topic alone, whatever it is
                    broker.fail(_unexpected(error))
        waiting, failures, ran = self.nsq.news()
        transport: PolledTransport
        for transport, topic, word, messages, commands, first in waiting:
            try:
                slot = transport.peer.await_sync(topic, word, messages, commands)
                broker.work.sync(topic, [(slot, first)])
            except Exception as error:
                _end(transport, error)
        for transport, word, refusal in failures:
            try:
                expected = refusal if isinstance(refusal, LapwingError) else _unexpected(refusal)
                transport.peer.publish_failed(word, expected)
            except Exception as error:
                _end(transport, error)
        for finishes in ran:
            for block, transport in zip(*finishes.take(), strict=True):
                try:
                    transport.peer.finished(block, self._begun)
                except Exception as error:
                    _end(transport, error)


def _end(transport: PolledTransport, error: Exception) -> None:
    """End a connection for which something fails, and it alone, as for what a protocol receives."""
    context = {"message": "what was taken could not be carried out", "exception": error, "transport": transport}
    asyncio.get_running_loop().call_exception_handler(context)
    transport.abort()


def _longest_defer(options: Options, limits: Limits) -> int:
    """Return the longest delay, ns, that needs no look; -1 where there may be too many deferred messages."""
    return -1 if options.deferred_limit is not None else limits.max_defer or limits.max_req_timeout


def _unexpected(error: Exception) -> LogError:
    return LogError(f"{type(error).__name__}: {error}")
