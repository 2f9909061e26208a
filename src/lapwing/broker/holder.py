"""Holders: the consumers that messages are in flight with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.errors import NotInFlight, NotOwner

if TYPE_CHECKING:
    from lapwing.broker.leases import Lease

PARKED: Final = "\N{EMPTY SET} given back"  # the named holder of messages that wait for a claim; no client can name it
FATAL: Final = 2**63 - 1  # deliveries of a parked message that nobody is to get without a claim; no more are counted


class Holder:
    """A consumer that holds messages of one channel.

    An anonymous holder belongs to one connection and ends with it. A named holder outlives connections and restarts:
    its messages stay with it until they are finished, given back or claimed.
    """

    __slots__ = (
        "active", "attached", "delivered_count", "finished_count", "in_flight", "lease", "name", "named",
        "requeued_count", "seen",
    )  # fmt: skip

    def __init__(self, name: str = "", *, named: bool = False) -> None:
        self.name = name  # as shown to people; unique among named holders only
        self.named = named
        self.in_flight: dict[int, Lease] = {}  # sequence to lease
        self.lease: Lease | None = None  # the newest, which deliveries of the same moment join
        self.seen = 0  # time of its last request, ns; kept by the sessions of a named holder
        self.active = 0  # time at which it last got a message, ns
        self.attached = 0  # subscriptions that deliver to it
        self.delivered_count = 0
        self.finished_count = 0
        self.requeued_count = 0

    @property
    def parked(self) -> bool:
        """Whether it is nobody, and its messages wait for a claim."""
        return self.named and self.name == PARKED

    @property
    def gone(self) -> bool:
        """Whether nothing keeps the holder: no name, no subscription, and nothing in flight."""
        return not (self.named or self.attached or self.in_flight)


class Holders(dict[Holder, None]):
    """The holders of one channel, in the order in which they came."""

    __slots__ = ("mover", "named")

    def __init__(self) -> None:
        self.named: dict[str, Holder] = {}
        self.mover: Holder | None = None  # of messages on their way to the dead-letter topic; it has no deadline

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""
        return sum(len(holder.in_flight) for holder in self)

    @property
    def with_consumers(self) -> int:
        """The number of messages that consumers hold: those in flight, except for dead letters on their way."""
        return self.in_flight_count - (len(self.mover.in_flight) if self.mover is not None else 0)

    def of(self, sequence: int) -> Holder | None:
        """Return the holder of a message."""
        for holder in self:
            if sequence in holder.in_flight:
                return holder
        return None

    def check(self, sequence: int, holder: Holder) -> None:
        """Raise `NotOwner` or `NotInFlight` unless `holder` holds the message."""
        if sequence not in holder.in_flight:
            raise NotOwner if self.of(sequence) else NotInFlight

    def attach(self, holder: Holder) -> None:
        """Add a holder, or a further subscription of one."""
        holder.attached += 1
        self[holder] = None

    def detach(self, holder: Holder) -> None:
        """Note that a subscription of the holder has ended."""
        holder.attached -= 1
        if not holder.attached:
            holder.lease = None  # nothing joins it any more
        self.drop_if_gone(holder)

    def drop_if_gone(self, holder: Holder) -> None:
        """Drop a holder that nothing keeps."""
        if holder.gone:
            self.pop(holder, None)

    def by_name(self, name: str) -> Holder:
        """Return the holder of that name, created if there is none. It lives until `Pending.drop_holder`."""
        holder = self.named.get(name)
        if holder is None:
            holder = self.named[name] = Holder(name, named=True)
            self[holder] = None
        return holder
