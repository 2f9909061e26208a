"""`/dead`: list dead letters, group them, return them to their channels, and purge them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from lapwing.broker.channel.channel import Channel
from lapwing.broker.failures import dead_filter, dead_letter_view, dead_letters
from lapwing.broker.failures.dead_filter import DeadFilter
from lapwing.broker.failures.dead_letter_view import DeadLetter
from lapwing.broker.operations import redrive_task
from lapwing.broker.settings import definitions as settings
from lapwing.broker.topic.cold import ColdChannel
from lapwing.errors import NoSuchChannel, SettingRefused
from lapwing.net.server.answers import JSON, Answer, Refused, StreamedAnswer, compact, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.http.document import (
    body_fields,
    boolean,
    member,
    parse_json,
    read_document,
    whole_number,
    whole_parameter,
)
from lapwing.nsqd.http.pending import MAX_BODIES, MAX_ENTRIES
from lapwing.nsqd.http.permissions import KNOWN, PUBLISH, READ, TOPIC_ADMIN, require
from lapwing.nsqd.http.publishing import named
from lapwing.nsqd.turn import Turn

_STEP: Final = 200  # letters that are read before others get their turn
_MAX_GROUPS: Final = 1000
_SAMPLE: Final = 10
_LONGEST_ERROR: Final = 200  # characters of an error by which letters are grouped
_FILTER: Final = tuple(key for key in dead_filter.KEYS if key != "topic")
_KEYS: Final = ("topic", "filter", "rate", "limit", "to", "dry_run", "body", "body_base64")
_EXAMPLE: Final = '{"filter": {"reason": "attempts"}, "rate": "100/s"}'


class DeadApi:
    def __init__(self, turn: Turn, wake: Callable[[], None]) -> None:
        """`wake` has the tasks worked off."""
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._wake = wake

    def routes(self) -> list[Route]:
        largest = 2 * self._broker.options.max_msg_size + (64 << 10)  # a body as base64, and what stands beside it
        return [
            Route("GET", "/dead", self.topics, access=KNOWN),
            Route("GET", "/dead/letters", self.letters, access=READ),
            Route("GET", "/dead/groups", self.groups, access=READ),
            Route("GET", "/dead/redrive", self.show, access=READ),
            Route("POST", "/dead/redrive", self.redrive, max_body=largest, access=TOPIC_ADMIN),
            Route("POST", "/dead/cancel", self.cancel, access=TOPIC_ADMIN),
            Route("POST", "/dead/purge", self.purge, access=TOPIC_ADMIN),
        ]

    # --- looking -----------------------------------------------------------------------------------------------

    def topics(self, request: Request) -> Answer:
        """List the dead-letter topics that the caller may read or change, with how many letters wait in each."""
        found = []
        for name in sorted(self._broker.topics):
            channel = self._broker.topics[name].channels.get(dead_letters.CHANNEL)
            if channel is not None and _may_see(request, name):
                link = None if isinstance(channel, ColdChannel) else channel.dead
                task = link.redrive.document() if link is not None and link.redrive is not None else None
                found.append({"topic": name, "letters": dead_letter_view.counted(channel), "redrive": task})
        return value({"topics": found})

    def letters(self, request: Request) -> Reply:
        """List the letters of a topic that nobody has dealt with, a page at a time."""
        channel, query = self._channel(named(request.head, "topic", "INVALID_ARG_TOPIC")), request.query
        wanted = self._query_filter(request)
        limit = min(whole_parameter(query, "limit", 100), MAX_ENTRIES)
        pieces = self._letters(
            channel,
            wanted,
            after=whole_parameter(query, "after", -1),
            limit=limit,
            bodies=query.get("body") not in ("false", "0"),
        )
        return StreamedAnswer(200, content_type=JSON, pieces=pieces)

    async def _letters(
        self, channel: Channel, wanted: DeadFilter, *, after: int, limit: int, bodies: bool
    ) -> AsyncIterator[bytes]:
        about = compact({"topic": channel.topic.name, "waiting": dead_letter_view.counted(channel)})
        yield about[:-1] + b',"letters":['
        shown = size = 0
        following: int | None = None
        async for letter in self._all(channel, wanted, after):
            if shown == limit or size > MAX_BODIES:
                break
            yield (b"," if shown else b"") + compact(letter_object(letter, bodies))
            shown += 1
            size += len(letter.body) if bodies else 0
            following = letter.sequence
        else:
            following = None
        yield b'],"next":%b}' % compact(following)

    async def groups(self, request: Request) -> Answer:
        """Count the letters of a topic by channel, reason and error."""
        channel = self._channel(named(request.head, "topic", "INVALID_ARG_TOPIC"))
        wanted = self._query_filter(request)
        found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        others = 0
        async for letter in self._all(channel, wanted):
            get = letter.headers.get
            error = get("dead-error", "").partition("\n")[0][:_LONGEST_ERROR]
            key = get("dead-topic", ""), get("dead-channel", ""), get("dead-reason", ""), error
            group = found.get(key)
            if group is None:
                if len(found) >= _MAX_GROUPS:
                    others += 1
                    continue
                at = get("dead-at", "")
                group = found[key] = {"letters": 0, "first": at, "sample": letter.sequence}
            group["letters"] += 1
            group["last"] = get("dead-at", "")
        groups = [
            {"topic": topic, "channel": name, "reason": reason, "error": error, **group}
            for (topic, name, reason, error), group in found.items()
        ]
        groups.sort(key=lambda group: -group["letters"])
        return value({"topic": channel.topic.name, "groups": groups, "others": others})

    async def _all(self, channel: Channel, wanted: DeadFilter, after: int = -1) -> AsyncIterator[DeadLetter]:
        runs = list(dead_letter_view.waiting_runs(channel))
        while True:
            found, after, _ = dead_letter_view.letters(channel, runs, after=after, most=_STEP, wanted=wanted)
            for letter in found:
                yield letter
            if after < 0:
                return
            await asyncio.sleep(0)  # others get their turn

    # --- dealing with them -------------------------------------------------------------------------------------

    def show(self, request: Request) -> Answer:
        """Show the redrive of a topic: the one that runs, or the last one."""
        link = self._channel(named(request.head, "topic", "INVALID_ARG_TOPIC")).dead
        if link is None or link.redrive is None:
            raise Refused(404, "REDRIVE_NOT_FOUND")
        return value(link.redrive.document())

    async def redrive(self, request: Request) -> Answer:
        """Return letters to the channels that gave them up, or publish them again."""
        return await self._begin(request, None)

    async def purge(self, request: Request) -> Answer:
        """Drop letters for good."""
        return await self._begin(request, redrive_task.NOWHERE)

    async def _begin(self, request: Request, to: str | None) -> Answer:
        document = read_document(request, _KEYS, _EXAMPLE)
        channel = self._named_channel(request, document)
        wanted = dead_filter.parse(member(document, "filter", dict, {}), now=self._now() + self._broker.skew)
        rate = settings.read(settings.CHANNEL, "channel", "rate", document.get("rate", ""))
        limit = whole_number(document, "limit", 0)
        if to is None:
            to = document.get("to", redrive_task.CHANNEL)
            if to not in (redrive_task.CHANNEL, redrive_task.TOPIC):
                raise Refused(400, 'to: "channel" (the one that gave the message up) or "topic" (all of them) expected')
        edited = _edited(document)
        if edited is not None and len(wanted.sequences) != 1:
            raise Refused(400, 'body: name the one letter whose body it replaces, as {"filter": {"sequences": [n]}}')
        if edited is not None and not 0 < len(edited) <= self._broker.options.max_msg_size:
            raise Refused(400, f"body: 1 to {self._broker.options.max_msg_size} bytes expected")
        if request.permissions is not None and (edited is not None or to == redrive_task.TOPIC):
            async for letter in self._all(channel, wanted):  # it is a publish, to where the letters come from
                require(request, PUBLISH, letter.headers.get("dead-topic", ""))
        if boolean(document, "dry_run"):
            return await self._preview(channel, wanted, to, limit)
        task = self._broker.redrives.start(
            channel.topic,
            to=to,
            wanted=wanted,
            rate=settings.RATE.from_file(rate),
            limit=limit,
            edited=edited,
            now=self._now(),
        )
        self._wake()
        self._schedule_flush()
        return value(task.document())

    async def _preview(self, channel: Channel, wanted: DeadFilter, to: str, limit: int) -> Answer:
        count = 0
        sample: list[dict[str, Any]] = []
        async for letter in self._all(channel, wanted):
            if limit and count >= limit:
                break
            count += 1
            if len(sample) < _SAMPLE:
                sample.append(letter_object(letter, True))
        return value({"topic": channel.topic.name, "dry_run": True, "to": to, "letters": count, "sample": sample})

    def cancel(self, request: Request) -> Answer:
        """End a redrive where it is: what it has not dealt with stays a dead letter."""
        document = read_document(request, ("topic",), '{"topic": "orders.billing.dead"}')
        task = self._broker.redrives.cancel(self._named_channel(request, document).topic, now=self._now())
        if task is None:
            raise Refused(404, "REDRIVE_NOT_FOUND")
        return value(task.document())

    # --- what they share ---------------------------------------------------------------------------------------

    def _named_channel(self, request: Request, document: Mapping[str, Any]) -> Channel:
        topic = document.get("topic")
        if not isinstance(topic, str):
            raise Refused(400, "topic: the name of a dead-letter topic expected")
        require(request, TOPIC_ADMIN, topic)
        return self._channel(topic)

    def _channel(self, topic: str) -> Channel:
        try:
            return self._broker.existing_channel(topic, dead_letters.CHANNEL)
        except NoSuchChannel as error:
            text = f"topic {topic} keeps no dead letters: it has no channel {dead_letters.CHANNEL}"
            raise SettingRefused(text) from error

    def _query_filter(self, request: Request) -> DeadFilter:
        query = request.query
        document: dict[str, Any] = {key: query[key] for key in _FILTER if query.get(key)}
        if query.get("source"):
            document["topic"] = query["source"]
        for key in ("fields", "sequences"):
            if key in document:
                document[key] = parse_json(document[key], f"{key}: JSON expected")
        return dead_filter.parse(document, now=self._now() + self._broker.skew)


def _may_see(request: Request, topic: str) -> bool:
    """Return whether the caller may read the letters of a topic, or change the topic."""
    found = request.permissions
    return found is None or found.allows("subscribe", topic, dead_letters.CHANNEL) or found.allows("admin", topic, "")


def letter_object(letter: DeadLetter, bodies: bool) -> dict[str, Any]:
    """Return a dead letter as JSON."""
    get = letter.headers.get
    found: dict[str, Any] = {
        "sequence": letter.sequence,
        "id": get("dead-id"),
        "topic": get("dead-topic"),
        "channel": get("dead-channel"),
        "node": get("dead-node"),
        "reason": get("dead-reason"),
        "error": get("dead-error"),
        "failures": _number(get("dead-failures")),
        "deliveries": _number(get("dead-deliveries")),
        "count": _number(get("dead-count")) or 1,
        "published": get("dead-published"),
        "first_failed": get("dead-first-failed"),
        "at": get("dead-at"),
        "consumer": get("dead-consumer"),
        "held": letter.held,
        "size": len(letter.body),
        "headers": dead_letters.original(letter.headers),
    }
    return found | (body_fields(letter.body) if bodies else {})


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _edited(document: Mapping[str, Any]) -> bytes | None:
    """Return the body that replaces that of a letter; None when it stays."""
    text, encoded = document.get("body"), document.get("body_base64")
    if text is None and encoded is None:
        return None
    if isinstance(text, str) and encoded is None:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise Refused(400, "body: text expected: half of a surrogate pair is no character") from error
    if isinstance(encoded, str) and text is None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(400, "body_base64: base64 expected") from error
    raise Refused(400, "body or body_base64: one string expected")
