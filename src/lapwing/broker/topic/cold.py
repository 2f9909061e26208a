"""Topics and channels that nobody uses, as small values: a node may have a hundred thousand of them.

`Broker.find` and `Broker.topic` make a topic of one again. What is only listed or counted is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from lapwing.broker.failures.failures import FailureCounts
    from lapwing.broker.keeper.storage import ColdStore
    from lapwing.broker.topic.deleted import DeletedRuns
    from lapwing.broker.topic.skips import Bookmark, EmptiedRuns
    from lapwing.log.cold import ColdLog


class ColdChannel(NamedTuple):
    """A channel that has no consumers, and of whose messages none is pending."""

    name: str
    cursor: int
    depth: int
    paused: bool
    settings: dict[str, Any]
    bookmark: Bookmark | None
    notes: dict[str, bytes]
    counts: FailureCounts
    message_count: int
    requeue_count: int
    timeout_count: int
    discarded_count: int
    delivered: Sequence[int]


class Leftovers(NamedTuple):
    """The parts that few topics have."""

    deleted: DeletedRuns
    emptied: EmptiedRuns
    door_state: dict[str, Any]
    lost: range


class ColdTopic:
    """A topic that nobody uses. Whatever has no attribute here is done with a `Topic`: see `Broker.find`."""

    __slots__ = (
        "channels", "fanned_out", "leftovers", "message_bytes", "message_count", "name", "paused", "settings", "store",
    )  # fmt: skip

    ephemeral: ClassVar[bool] = False
    exiting: ClassVar[bool] = False
    dropped_count: ClassVar[int] = 0
    dedup: ClassVar[None] = None

    def __init__(
        self,
        name: str,
        store: ColdStore,
        *,
        fanned_out: int,
        paused: bool,
        settings: Mapping[str, Any],
        channels: Mapping[str, ColdChannel],
        message_count: int = 0,
        message_bytes: int = 0,
        leftovers: Leftovers | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.fanned_out = fanned_out
        self.paused = paused
        self.settings = settings
        self.channels = channels
        self.message_count = message_count
        self.message_bytes = message_bytes
        self.leftovers = leftovers

    @property
    def log(self) -> ColdLog:
        """The packed log."""
        return self.store.log

    @property
    def depth(self) -> int:
        """The number of messages that wait in the topic for a channel."""
        lost = len(self.leftovers.lost) if self.leftovers is not None else 0
        return self.log.end - self.fanned_out - lost


NO_CHANNELS: Final[Mapping[str, ColdChannel]] = MappingProxyType({})
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
