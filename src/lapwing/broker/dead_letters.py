"""A dead letter: the message as it was, with headers that name where it comes from and why it was given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapwing.broker import times
from lapwing.errors import LogError

if TYPE_CHECKING:
    from lapwing.log.topiclog import TopicLog

CHANNEL: Final = "dead"  # the channel of a dead-letter topic that holds what nobody has dealt with
PREFIX: Final = "dead-"

ATTEMPTS: Final = "attempts"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"
REASONS: Final = (ATTEMPTS, REJECTED, EXPIRED, OVERFLOW)


@dataclass(slots=True)
class Cause:
    """The reason why a channel gives a message up."""

    reason: str
    error: str = ""  # the last that a consumer reported
    consumer: str = ""  # which held it last
    failures: int = 0
    deliveries: int = 0
    first_failed: int = 0  # Unix ns; 0: never
    deaths: int = 0  # how often it was given up in this channel before


@dataclass(frozen=True, slots=True)
class Origin:
    """The channel that gave a message up, and the log in which its sequence counts."""

    topic: str
    channel: str
    node: str
    log: str  # the identity of the topic's log


def headers_of(
    origin: Origin, sequence: int, message_id: str, cause: Cause, *, published: int, at: str, kept: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers of a dead letter; `kept` are those that the message had. `at` is the time as text."""
    headers = dict(kept)
    headers["dead-topic"] = origin.topic
    headers["dead-channel"] = origin.channel
    headers["dead-node"] = origin.node
    headers["dead-log"] = origin.log
    headers["dead-sequence"] = str(sequence)
    headers["dead-id"] = message_id
    headers["dead-reason"] = cause.reason
    if cause.error:
        headers["dead-error"] = cause.error
    headers["dead-failures"] = str(cause.failures)
    headers["dead-deliveries"] = str(cause.deliveries)
    headers["dead-published"] = times.show(published)
    if cause.first_failed:
        headers["dead-first-failed"] = times.show(cause.first_failed)
    headers["dead-at"] = at
    if cause.consumer:
        headers["dead-consumer"] = cause.consumer
    if cause.deaths:
        headers["dead-count"] = str(cause.deaths + 1)
    return headers


def is_dead_letter(headers: Mapping[str, str]) -> bool:
    """Return whether a message with these headers is a dead letter."""
    return "dead-id" in headers


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
    """Return the headers that the message had before it was given up."""
    return {name: text for name, text in headers.items() if not name.startswith(PREFIX)}

