"""What a channel knows of one consumer: how much it wants, and what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing.broker.inflight import Lease

if TYPE_CHECKING:
    from lapwing.broker.session import Session

UNSENT: Final = 1 << 20  # bytes waiting for a slow socket beyond which nothing more is delivered


class Subscriber:
    """One consumer of one channel.

    RDY is a window, not a credit: a consumer may hold `ready` messages at a time for as long as it says nothing else.
    """

    __slots__ = (
        "closing",
        "finish_count",
        "hang_up",
        "in_flight",
        "lease",
        "locality",
        "message_count",
        "owner",
        "ready",
        "requeue_count",
        "sample_rate",
        "send",
        "timeout",
        "unsent",
    )

    def __init__(
        self,
        send: Callable[[bytes], None],
        hang_up: Callable[[], None],
        *,
        timeout: int,
        sample_rate: int = 0,
        locality: int = 0,
        owner: Session | None = None,
    ) -> None:
        self.send = send
        self.hang_up = hang_up
        self.timeout = timeout  # ns a message may stay with it
        self.sample_rate = sample_rate  # percent; 0 means all
        self.locality = locality  # 2 same zone as the server, 1 same region, 0 elsewhere
        self.owner = owner  # for those who ask who it is
        self.ready = 0
        self.in_flight: dict[int, Lease] = {}
        self.lease: Lease | None = None  # the newest, which what follows within moments joins
        self.unsent = 0  # bytes given to `send` that the socket has not taken yet
        self.closing = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def room(self) -> int:
        """How many more messages it may hold now."""
        return self.ready - len(self.in_flight) if self.unsent < UNSENT else 0
