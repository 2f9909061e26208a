"""The work of a round of the event loop: write logs, deliver, move dead letters; the rest waits for the next round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lapwing.broker.keeper import trimming
from lapwing.errors import LogError

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.receipt import Receipt
    from lapwing.broker.topic.topic import Topic

_MOVED_AT_ONCE: Final = 500  # dead letters that are moved before other clients have their turn


class TurnWork:
    """The topics that are to be written, the channels that are to deliver, and the receipts that wait for a sync.

    An error of one topic or channel is its own: the others are written and delivered all the same.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._dirty: list[Topic] = []
        self._ready: dict[Channel, None] = {}
        self._later: dict[Channel, None] = {}  # ready in the next round
        self.unsynced: list[tuple[Topic, Sequence[tuple[Receipt, int]]]] = []  # for reading only

    def __bool__(self) -> bool:
        """Return whether `run` has something to do."""
        return bool(self._dirty or self._ready or self._later or self._broker.mover.waiting)

    # --- noting ------------------------------------------------------------------------------------------------

    def write(self, topic: Topic) -> None:
        """Have a topic written at the end of this round."""
        self._dirty.append(topic)

    def deliver(self, channel: Channel) -> None:
        """Have a channel deliver at the end of this round, unless it has had its share of it."""
        if not self._later or channel not in self._later:
            self._ready[channel] = None

    def deliver_later(self, channel: Channel) -> None:
        """Have a channel deliver at the end of the next round: it has had its share of this one."""
        self._later[channel] = None

    def sync(self, topic: Topic, receipts: Sequence[tuple[Receipt, int]]) -> None:
        """Have receipts settled once the log and the journal of the topic are synced."""
        self.unsynced.append((topic, receipts))

    def take_unsynced(self) -> list[tuple[Topic, Sequence[tuple[Receipt, int]]]]:
        """Return the receipts that wait for a sync; the caller settles them."""
        unsynced, self.unsynced = self.unsynced, []
        return unsynced

    # --- doing -------------------------------------------------------------------------------------------------

    def run(self, now: int) -> None:
        """Write each log, hand messages to channels, and deliver.

        A message that is published while others are delivered, such as a dead letter, is written and delivered in the
        same round; where they are very many, others have their turn first.
        """
        if self._later:
            self._begin()
        mover, left = self._broker.mover, _MOVED_AT_ONCE
        while True:
            if self._dirty:
                self._write_topics(now)
            elif self._ready:
                self._deliver(now)
            elif left > 0 and mover.waiting:
                left -= mover.publish(now, most=left)
            else:
                break

    def _begin(self) -> None:
        """Have the channels deliver that the last round has left, another one first each time."""
        first, *others = self._later
        self._later = {}
        self._ready.update(dict.fromkeys([*others, first]))

    def _write_topics(self, now: int) -> None:
        broker = self._broker
        topics, self._dirty = self._dirty, []
        for topic in topics:
            try:
                topic.commit(now)
                if topic.ephemeral:
                    trimming.trim_large(topic, broker.options, now=now)
                else:
                    broker.keeper.note_written(topic)
            except LogError as error:
                broker.fail(error)
            except Exception as error:  # of this topic alone, whatever it is
                broker.fail(_unexpected(topic, error))

    def _deliver(self, now: int) -> None:
        broker = self._broker
        stalls = broker.read_stalls
        ready, self._ready = self._ready, {}
        for channel in ready:
            if channel.exiting:
                continue
            stalled = bool(stalls.stalled)
            if stalled and stalls.waits(channel, now):
                continue
            try:
                channel.deliver(now)
            except LogError as error:  # the disk cannot be read now: retried with a later checkpoint
                stalls.add(channel, error, now=now)
            except Exception as error:  # of this channel alone; retried likewise
                stalls.add(channel, _unexpected(channel, error), now=now)
            else:
                if stalled:
                    stalls.succeeded(channel, now=now)
            broker.keeper.note_changed(channel.topic)


def _unexpected(owner: Topic | Channel, error: Exception) -> LogError:
    """Return an error that nobody expected as one of a topic or channel, with the place where it was raised."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" in {place.tb_frame.f_code.co_qualname}" if place is not None else ""
    return LogError(f"{owner}: {type(error).__name__}{where}: {error}")
