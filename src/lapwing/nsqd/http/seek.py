"""`/channel/seek`: move a channel's cursor, or show what that would do."""

from __future__ import annotations

from typing import Any, Final

from lapwing import names
from lapwing.broker.channel.channel import Channel
from lapwing.broker.operations import seek
from lapwing.errors import OutOfRange
from lapwing.net.server.answers import Answer, Refused, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.document import boolean, read_document
from lapwing.nsqd.http.permissions import CHANNEL_ADMIN, require
from lapwing.nsqd.turn import Turn

_KEYS: Final = ("topic", "channel", "to", "dry_run", "create")


class SeekApi:
    def __init__(self, turn: Turn) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush

    def routes(self) -> list[Route]:
        return [Route("POST", "/channel/seek", self.respond, max_body=4096, access=CHANNEL_ADMIN)]

    def respond(self, request: Request) -> Answer:
        """Move a channel's cursor; with `dry_run` only answer what would happen."""
        document = read_document(request, _KEYS, '{"to": "earliest"}')
        topic, name = document.get("topic"), document.get("channel")
        if not isinstance(topic, str) or not isinstance(name, str):
            raise Refused(400, "topic and channel: the names of a topic and its channel expected")
        require(request, CHANNEL_ADMIN, topic, name)
        if "to" not in document:
            raise Refused(400, seek.EXPECTED)
        dry = boolean(document, "dry_run")
        created = False
        now = self._now()
        try:
            if boolean(document, "create") and name not in self._broker.existing(topic).channels:
                if not names.valid(name):
                    raise Refused(400, "INVALID_ARG_CHANNEL")
                if dry:
                    raise Refused(400, "create: a channel that does not exist has nothing to preview")
                seek.target_in(self._broker.existing(topic), document["to"], now=now)  # before it is created
                self._broker.existing(topic).create_channel(name, now=now)
                created = True
            channel = self._broker.existing_channel(topic, name)
            found = self._move(channel, document["to"], dry=dry, now=now)
        except OutOfRange as error:
            log = self._broker.existing(topic).log
            raise Refused(416, str(error), first=log.first, next=log.end) from error
        return value(
            {
                "topic": topic,
                "channel": name,
                "dry_run": dry,
                "created": created,
                "cursor": found.cursor,
                "sequence": found.sequence,
                "again": found.again,
                "skipped": found.skipped,
            }
        )

    def _move(self, channel: Channel, to: Any, *, dry: bool, now: int) -> seek.SeekPlan:
        if dry:
            return seek.preview(channel, to, now=now)
        target = seek.target_of(channel, to, now=now)
        found = seek.seek_bookmark(channel, now=now) if to == "bookmark" else seek.seek(channel, target, now=now)
        self._broker.checkpoint_topic(channel.topic, now=now)
        self._schedule_flush()
        return found
