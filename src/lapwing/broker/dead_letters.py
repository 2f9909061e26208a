"""A dead letter: the message as it was, with headers that name where it comes from and why it was given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapwing.broker import times
from lapwing.errors import LogError
from lapwing.log.attributes import encode_headers

if TYPE_CHECKING:
    from lapwing.log.topiclog import TopicLog

CHANNEL: Final = "dead"  # the channel of a dead-letter topic that holds what nobody has dealt with
PREFIX: Final = "dead-"
_OF_ENTRIES: Final = frozenset({"redis-id", "redis-once"})  # headers that belong to one entry of a stream
OWN: Final = (b'"dead-', b'"redis-')  # headers as JSON that only the broker sets begin with one of these

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


class LetterHeaders:
    """The headers of the dead letters of one channel that are made at one time, as JSON.

    What letters share is encoded once, and numbers and times need no encoder: letters come by the thousand.
    """

    __slots__ = ("_shared",)

    def __init__(self, origin: Origin, *, at: int) -> None:
        """`at` is the time, Unix ns."""
        shared = {
            "dead-topic": origin.topic,
            "dead-channel": origin.channel,
            "dead-node": origin.node,
            "dead-log": origin.log,
            "dead-at": times.show(at),
        }
        self._shared = encode_headers(shared)[1:-1]

    def of_cause(self, cause: Cause) -> bytes:
        """Return the members that letters with the same cause share."""
        text = b'%b,"dead-reason":"%b","dead-failures":"%d","dead-deliveries":"%d"' % (
            self._shared, cause.reason.encode(), cause.failures, cause.deliveries,
        )  # fmt: skip
        if cause.first_failed:
            text += b',"dead-first-failed":"%b"' % times.show(cause.first_failed).encode()
        if cause.deaths:
            text += b',"dead-count":"%d"' % (cause.deaths + 1)
        named = {"dead-error": cause.error, "dead-consumer": cause.consumer}
        named = {name: value for name, value in named.items() if value}
        return b"%b,%b" % (text, encode_headers(named)[1:-1]) if named else text

    def encode(
        self, sequence: int, message_id: bytes, cause: bytes, *, published: bytes, kept: Mapping[str, str]
    ) -> bytes:
        """Return the headers of a letter; `cause` is of `of_cause`, and `kept` are those that the message had."""
        own = b'%b,"dead-sequence":"%d","dead-id":"%b","dead-published":"%b"' % (cause, sequence, message_id, published)
        if kept and (named := original(kept)):
            return b"{%b,%b}" % (encode_headers(named)[1:-1], own)
        return b"{%b}" % own


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
    """Return the headers that a client has set: without those that only the broker sets."""
    return {
        name: text for name, text in headers.items() if not name.startswith(PREFIX) and name not in _OF_ENTRIES
    }

