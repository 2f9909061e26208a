"""A dead letter: the message as it was, with headers that name where it comes from and why it was given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lapwing.errors import LogError

if TYPE_CHECKING:
    from lapwing.log.log import TopicLog

CHANNEL: Final = "dead"  # the channel of a dead-letter topic that holds what nobody has dealt with
PREFIX: Final = "dead-"
_OF_ENTRIES: Final = frozenset({"redis-id", "redis-once"})  # headers that belong to one entry of a stream
OWN: Final = (b'"dead-', b'"redis-')  # headers as JSON that only the broker sets begin with one of these

ATTEMPTS: Final = "attempts"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"
REASONS: Final = (ATTEMPTS, REJECTED, EXPIRED, OVERFLOW)


def is_served(log: TopicLog, sequence: int) -> bool:
    """Return whether a copy can be read.

    After a power loss the headers of a message may be there without the message, or with one that no checksum covers.
    """
    try:
        log.frame(sequence)
    except LogError:
        return False
    return True


def original(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a client has set: without those that only the broker sets."""
    return {
        name: text for name, text in headers.items() if not name.startswith(PREFIX) and name not in _OF_ENTRIES
    }

