"""Holders: the consumers that messages are in flight with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapwing.broker.leases import Lease


PARKED: Final = ""  # the named holder of messages that were given back and wait for a claim
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
    def gone(self) -> bool:
        """Whether nothing keeps the holder: no name, no subscription, and nothing in flight."""
        return not (self.named or self.attached or self.in_flight)
