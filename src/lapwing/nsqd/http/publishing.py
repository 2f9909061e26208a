"""`/pub` and `/mpub`: publish over HTTP, answered when the log has the messages."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from lapwing import kernel, names
from lapwing.broker.broker import Broker
from lapwing.broker.topic import batch
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, LogError, PublishRefused
from lapwing.log.segments.attributes import encode_headers
from lapwing.net.logs import Log
from lapwing.net.server.answers import BODY_TOO_BIG, INTERNAL_ERROR, OK, Answer, Later, Refused, failure
from lapwing.net.server.requests import Head, Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.http.errors import refusal
from lapwing.nsqd.http.permissions import PUBLISH
from lapwing.nsqd.turn import Turn
from lapwing.wire.nsq.commands import bodies

if TYPE_CHECKING:
    from lapwing.nsqd.lookupd.peer import Peers

HEADERS: Final = b"x-lapwing-headers"  # a message's own, as a JSON object of strings
_LAWFUL_HEADERS: Final = (
    f"X-Lapwing-Headers: a JSON object of strings expected, at most {kernel.MAX_HEADERS} bytes, "
    "with names in lower case of at most 64 characters and a message-id of at most 128 bytes"
)
_SHARED_ID: Final = (
    "X-Lapwing-Headers: each message of the batch gets the message-id with its number, /1 and so on, "
    "which makes an id longer than 128 bytes or headers longer than 16384: give a shorter one"
)
_UNASKED_TYPES: Final = (b"", b"application/x-www-form-urlencoded", b"application/octet-stream")  # of any client

MSG_EMPTY: Final = failure(400, "MSG_EMPTY")
MSG_TOO_BIG: Final = failure(413, "MSG_TOO_BIG")
BAD_BODY: Final = failure(413, "BAD_BODY")
BAD_MESSAGE: Final = failure(413, "BAD_MESSAGE")

_INTEGER: Final = re.compile("([+-]?)0*([0-9]{1,19})")
_MILLISECOND: Final = 1_000_000  # ns


class Settled(Later):
    """An answer that is completed when the broker settles it."""

    __slots__ = ()

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer that it is done, or that it failed."""
        if error is None:
            self.complete(OK)
        else:
            refused = refusal(error)
            self.complete(INTERNAL_ERROR if refused is None else refused.answer())


class Publishing:
    def __init__(self, broker: Broker, turn: Turn, log: Log, announcer: Peers | None = None) -> None:
        self._broker = broker
        self._options = broker.options
        self._now = turn.clock.now
        self._schedule_flush = turn.schedule_flush
        self._log = log
        self._announcer = announcer
        self._longest_defer = broker.options.longest_defer // _MILLISECOND

    def routes(self) -> list[Route]:
        options = self._options
        return [
            Route(
                "POST", "/pub", self.pub,
                max_body=options.max_msg_size, too_big=MSG_TOO_BIG, cut_off=INTERNAL_ERROR, logged=False,
                access=PUBLISH,
            ),
            Route(
                "POST", "/mpub", self.mpub,
                max_body=options.max_body_size, too_big=BODY_TOO_BIG, overrun=self._overrun, cut_off=_cut_off,
                logged=False, access=PUBLISH,
            ),
        ]  # fmt: skip

    def pub(self, request: Request) -> Reply:
        """Publish the body as one message."""
        body = request.body
        if not body:
            return MSG_EMPTY
        head = request.head
        query = head.query
        raw_headers = head.header(HEADERS)
        headers = None if raw_headers is None else message_headers(raw_headers, head.header(b"content-type"))
        topic = self._broker.find(query.get("topic", ""))
        made = topic is None
        if topic is None:
            topic = self.topic(head)
        defer = 0
        if "defer" in query:
            defer = self._defer(query["defer"])
        later = Settled()
        now = self._now()
        topic.append(batch.single(topic, body, now=now, defer=defer, headers=headers), later, now=now)
        self._schedule_flush()
        return self.when_settled(topic.name, later) if made else later

    def mpub(self, request: Request) -> Reply:
        """Publish each line of the body, or each message of a binary one; all or none."""
        head, body = request.head, request.body
        raw_headers = head.header(HEADERS)
        headers = None if raw_headers is None else message_headers(raw_headers, head.header(b"content-type"))
        made = head.query.get("topic", "") not in self._broker.topics
        topic = self.topic(head)
        later = Settled()
        try:
            if self._binary(head):
                self._publish_binary(topic, body, later, headers)
            else:
                bodies = [line for line in body.split(b"\n") if line]
                if bodies and max(map(len, bodies)) > self._options.max_msg_size:
                    return MSG_TOO_BIG
                if bodies:
                    now = self._now()
                    topic.append(batch.sharing(topic, bodies, headers, now=now), later, now=now)
                else:
                    later.complete(OK)
        except PublishRefused as error:
            if error.code in (kernel.BAD_HEADERS, kernel.HEADERS_TOO_BIG):  # with the number behind a shared id
                raise Refused(400, "INVALID_HEADERS", reason=_SHARED_ID) from error
            whole = error.code == kernel.BAD_COUNT or (error.code == kernel.SHORT and error.index < 0)
            return BAD_BODY if whole else BAD_MESSAGE
        self._schedule_flush()
        return self.when_settled(topic.name, later) if made else later

    def _publish_binary(self, topic: Topic, body: bytes, later: Settled, headers: dict[str, str] | None) -> None:
        now = self._now()
        try:
            if headers is None:
                topic.append(batch.multiple(topic, body, now=now), later, now=now)
                return
            self._check(body)
        except PublishRefused as error:
            if error.code != kernel.SURPLUS:
                raise
            body = body[: error.value]  # bytes behind the last message are ignored, as in NSQ
        if headers is None:
            topic.append(batch.multiple(topic, body, now=now), later, now=now)
        else:
            topic.append(batch.sharing(topic, bodies(body), headers, now=now), later, now=now)

    def _check(self, body: bytes) -> None:
        kernel.frame_mpub(body, 0, 0, self._options.max_batch_count, self._options.max_msg_size)

    def _binary(self, head: Head) -> bool:
        """Return whether the body is binary: any value but `false` and `0` means yes, even an empty one."""
        word = head.query.get("binary")
        if word is None or word in ("false", "0"):
            return False
        if word not in ("true", "1"):
            self._log.warn(f"deprecated value '{word}' used for /mpub binary param")
        return True

    def topic(self, head: Head) -> Topic:
        """Return the topic that a request names, created if there is none. Raises `Refused` or a `LapwingError`."""
        name = named(head, "topic", "INVALID_TOPIC")
        found = self._broker.find(name)
        if found is not None:
            return found
        try:
            found = self._broker.topic(name)
        except (LogError, OSError) as error:
            if name not in self._broker.unopened:  # which health names anyway, and no write will heal
                self._broker.fail(error)
            raise
        self._schedule_flush()
        return found

    def when_settled(self, topic: str, later: Later) -> Later:
        """Return the same answer, but not before consumers can find the new topic, or a second has passed."""
        settling = self._announcer.settling(topic) if self._announcer is not None else None
        if settling is None or settling.done():
            return later
        outer = Later()

        def complete(_: object = None) -> None:
            if later.answer is not None and settling.done():
                outer.complete(later.answer)

        later.on_complete = complete
        settling.add_done_callback(complete)
        return outer

    def _defer(self, text: str) -> int:
        """Return `text`, in ms, as ns; raise `Refused`."""
        match = _INTEGER.fullmatch(text)
        if match is None or not 0 <= int(match[1] + match[2]) <= self._longest_defer:
            raise Refused(400, "INVALID_DEFER")
        return int(match[2]) * _MILLISECOND

    def _overrun(self, head: Head) -> Answer:
        """Answer a chunked body that turns out too long; the topic is created all the same, as in NSQ."""
        self.topic(head)
        return BODY_TOO_BIG


def named(head: Head, parameter: str, refusal: str) -> str:
    """Return the valid name in a parameter of the query; raise `Refused`."""
    name = head.query.get(parameter)
    if name is None:
        raise Refused(400, f"MISSING_ARG_{parameter.upper()}")
    if not names.valid(name):
        raise Refused(400, refusal)
    return name


def message_headers(raw: bytes, content_type: bytes | None) -> dict[str, str]:
    """Parse the headers of a message; raise `Refused`. The type of the body becomes one of them."""
    if len(raw) > kernel.MAX_HEADERS or kernel.count_headers(raw) < 0:
        raise Refused(400, "INVALID_HEADERS", reason=_LAWFUL_HEADERS)
    found: dict[str, str] = json.loads(raw)
    if content_type is not None and content_type.partition(b";")[0].strip().lower() not in _UNASKED_TYPES:
        found.setdefault("content-type", content_type.decode("latin-1"))
        if len(encode_headers(found)) > kernel.MAX_HEADERS:
            raise Refused(400, "INVALID_HEADERS", reason=f"{_LAWFUL_HEADERS}; with Content-Type it is longer")
    return found


def _cut_off(request: Request) -> Answer:
    if request.query.get("binary") in (None, "false", "0"):
        return INTERNAL_ERROR
    return BAD_BODY if len(request.body) < 4 else BAD_MESSAGE
