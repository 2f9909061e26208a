"""Subscriptions: how much a holder wants of a channel, and where its messages go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.ledger import Holder

if TYPE_CHECKING:
    from lapwing.broker.client_stats import Client

UNSENT: Final = 1 << 20  # bytes waiting for a slow socket beyond which nothing more is delivered

# reasons why a subscription gets nothing for now, whatever it asks for; a bit each
RESERVED: Final = 1  # kept free for a message that is delivered alone, or busy with it
STANDBY: Final = 2  # another consumer of the channel is the active one


class Subscription:
    """A holder's demand at one outlet. `Window` and `Credit` are the two kinds of demand."""

    __slots__ = (
        "_send", "client", "default_timeout", "hang_up", "headers", "heartbeats", "holder", "locality",
        "sample_rate", "size", "timeout", "unsent", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        holder: Holder,
        send: Callable[[bytes], None],
        hang_up: Callable[[], None],
        *,
        timeout: int | None,
        sample_rate: int = 0,
        headers: bool = False,
        locality: int = 0,
        client: Client | None = None,
        default_timeout: bool = False,
        heartbeats: bool = False,
    ) -> None:
        self.holder = holder
        self.timeout = timeout  # ns that a message may stay with the holder; None: for ever
        self.sample_rate = sample_rate  # percent; 0 means all
        self.headers = headers  # messages come in frames with their headers
        self.locality = locality  # 2 same zone as the server, 1 same region, 0 elsewhere
        self.client = client  # for statistics
        self.default_timeout = default_timeout  # the timeout is that of the channel, and changes with it
        self.heartbeats = heartbeats  # the connection ends when the consumer answers none
        self.withheld = 0  # why it gets nothing for now
        self.size = 0  # of a window: how many messages may be in flight at a time
        self.unsent = 0  # of a window: bytes given that the socket has not taken yet
        self._send = send
        self.hang_up = hang_up  # ends the connection: the channel is deleted

    @property
    def room(self) -> int:
        """The number of messages that may be delivered now."""
        raise NotImplementedError

    @property
    def wants(self) -> bool:
        """Whether it asks for messages, though there may be no room for another just now."""
        raise NotImplementedError

    def withhold(self, reason: int, *, on: bool = True) -> None:
        """Give it nothing for this reason, or no longer withhold anything for it."""
        self.withheld = self.withheld | reason if on else self.withheld & ~reason

    def give(self, frames: bytes, count: int) -> None:
        """Send the frames of `count` messages that are in flight with the holder now."""
        raise NotImplementedError


class Window(Subscription):
    """A demand that renews itself: the holder may have `size` messages in flight at a time (RDY)."""

    __slots__ = ()

    @property
    def room(self) -> int:
        """The number of messages that may be delivered now: none while the socket is slow."""
        return self.size - len(self.holder.in_flight) if self.unsent < UNSENT and not self.withheld else 0

    @property
    def wants(self) -> bool:
        """Whether it asks for messages: its RDY is not 0."""
        return self.size > 0

    def give(self, frames: bytes, count: int) -> None:
        """Send frames."""
        self.unsent += len(frames)
        self._send(frames)


class Credit(Subscription):
    """A demand that is used up: `left` more messages in all (COUNT). Such readers are served oldest first."""

    __slots__ = ("left",)

    def __init__(
        self,
        holder: Holder,
        send: Callable[[bytes], None],
        hang_up: Callable[[], None],
        *,
        count: int,
        timeout: int | None = None,
    ) -> None:
        super().__init__(holder, send, hang_up, timeout=timeout)
        self.left = count

    @property
    def room(self) -> int:
        """The number of messages that may be delivered."""
        return 0 if self.withheld else self.left

    @property
    def wants(self) -> bool:
        """Whether it asks for messages."""
        return self.left > 0

    def give(self, frames: bytes, count: int) -> None:
        """Send frames, and use up as much of the credit."""
        self.left -= count
        self._send(frames)
