"""`/channel/reader`: which reader of the log moves a channel, so that two of them do not share one unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Final

from lapwing.net.server.answers import Answer, Refused, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.permissions import USE_CHANNEL
from lapwing.nsqd.http.publishing import named
from lapwing.records import dataclass

LIFETIME: Final = 6 * 1_000_000_000  # ns without a sign of life after which a reader is gone
MAX_READERS: Final = 1000
MAX_TOPICS: Final = 10_000  # of one reader
LONGEST_NAME: Final = 128
_SHOWN: Final = 10


@dataclass(slots=True)
class LogReader:
    """A process that reads topics through the log and moves their channel."""

    channel: str
    last_seen: int  # ns
    topics: set[str] = field(default_factory=set)


class LogReaders:
    """The readers that have shown a sign of life lately, by the name that each has given itself."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._readers: dict[str, LogReader] = {}

    def routes(self) -> list[Route]:
        return [Route("POST", "/channel/reader", self.claim, logged=False, access=USE_CHANNEL)]

    def claim(self, request: Request) -> Answer:
        """Take the channel of some topics for a reader, unless another has them; return who has.

        Without topics it is a sign of life for those taken before.
        """
        channel = named(request.head, "channel", "INVALID_ARG_CHANNEL")
        name = request.argument("reader")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise Refused(400, "INVALID_ARG_READER")
        now = self._now()
        self._forget(now)
        reader = self._readers.get(name)
        if reader is None:
            if len(self._readers) >= MAX_READERS:
                raise Refused(503, "TOO_MANY_READERS")
            reader = self._readers[name] = LogReader(channel, now)
        reader.last_seen = now
        if reader.channel != channel:
            reader.channel = channel
            reader.topics.clear()
        taken = []
        for topic in dict.fromkeys(request.query.all("topic")):
            other = self._holder(channel, topic, name)
            if other is not None:
                ago = (now - self._readers[other].last_seen) // 1_000_000
                taken.append({"topic": topic, "reader": other, "seen_ms_ago": ago})
            elif len(reader.topics) < MAX_TOPICS:
                reader.topics.add(topic)
        return value({"others": taken[:_SHOWN]})

    def _holder(self, channel: str, topic: str, but: str) -> str | None:
        for name, reader in self._readers.items():
            if name != but and reader.channel == channel and topic in reader.topics:
                return name
        return None

    def _forget(self, now: int) -> None:
        for name, reader in list(self._readers.items()):
            if now - reader.last_seen > LIFETIME:
                del self._readers[name]
