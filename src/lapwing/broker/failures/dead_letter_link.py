"""The link of a channel to its dead letters: where it agrees with their topic, and which came back from there."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.operations.redrive_task import RedriveTask


@dataclass(slots=True)
class DeadLetterMark:
    """Up to where the copies in a dead-letter topic are known to be finished in their channel."""

    topic: str
    log: str  # the identity of its log
    next: int


@dataclass(slots=True)
class DeadLetterLink:
    """The dead letters of one channel; most channels have none, and no such object."""

    mark: DeadLetterMark | None = None
    unsettled: list[tuple[str, int]] = field(default_factory=list)  # batches not written yet: log and first sequence
    returned: dict[str, list[int]] = field(default_factory=dict)  # letters that came back, and may not be finished
    redrive: RedriveTask | None = None  # of the channel of a dead-letter topic: the task under way, or the last one
    quiet_until: int = 0  # ns; earliest time of the next log line about dropped messages
