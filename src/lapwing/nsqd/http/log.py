"""`/log/...`, `/channel/commit` and `/channel/commits`: read ranges of logs, and move channels by sequence.

Spark and the `lapwing` command use these. Plain NSQ clients do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
from array import array
from collections.abc import AsyncIterator, Callable, Container, Iterator
from itertools import islice
from typing import Any, Final

from lapwing import kernel, names
from lapwing.broker.broker import Broker
from lapwing.broker.channel.message_keys import MessageKeys, short
from lapwing.broker.settings.definitions import KEY_FROM
from lapwing.broker.topic.cold import ColdTopic
from lapwing.broker.topic.topic import Topic
from lapwing.errors import CorruptChunk, CursorConflict, LapwingError, OutOfRange, ReadFailed
from lapwing.log.log import TopicLog
from lapwing.log.segments.reader import InFile
from lapwing.net.server.answers import JSON, Answer, Refused, StreamedAnswer, compact, value
from lapwing.net.server.requests import Query, Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.http.document import body_fields, parse_json
from lapwing.nsqd.http.errors import refusal
from lapwing.nsqd.http.log_readers import LogReaders
from lapwing.nsqd.http.permissions import KNOWN, READ, USE_CHANNEL, require
from lapwing.nsqd.http.publishing import named
from lapwing.nsqd.http.read_budget import ReadBudget, ReadShare

FRAMES: Final = "application/vnd.lapwing.frames"
BLOCK: Final = struct.Struct("<4sIQII")  # kind, count, first sequence, bytes of frames, bytes of extras
MESSAGES: Final = b"LWB1"
BARE: Final = b"LWF1"  # messages without their positions
PLACED: Final = b"LWP1"  # not the messages but where they lie in a file of this machine
PLACE: Final = struct.Struct("<QII")  # offset, chunks, bytes of the path
CHECK: Final = struct.Struct("<II")  # length and crc of a chunk
QUARANTINED: Final = b"LWQ1"

MAX_BODY: Final = 1 << 20  # of many ranges or commits
MAX_ENTRIES: Final = 10_000  # the same
LONGEST_WAIT: Final = 30_000  # ms
MAX_MESSAGES: Final = 10_000  # of a JSON answer
MAX_BODIES: Final = 16 << 20  # of bodies in a JSON answer

_MAX_WHOLE: Final = 200  # topics beyond which offsets are sent in pieces
_STEP: Final = 20  # topics of a piece
_READ_BYTES: Final = 1 << 20  # at a time: what was checked is still in the processor's cache when it is sent
_BLOCK_BYTES: Final = 4 << 20

Parts = tuple[int, int, list[memoryview]]  # first, count, frames (none: quarantined)

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


class LogApi:
    def __init__(
        self,
        broker: Broker,
        now: Callable[[], int],
        schedule_flush: Callable[[], None],
        about: Callable[[], dict[str, Any]],
    ) -> None:
        """`about` returns the identity of the node: `node_id`, `broadcast_address` and `http_port`."""
        self._broker = broker
        self._readers = LogReaders(now)
        self._now = now
        self._schedule_flush = schedule_flush
        self._about = about
        self._waiting: set[asyncio.Future[None]] = set()  # of callers that wait for a log to grow
        self._budget = ReadBudget()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/log/offsets", self.offsets, logged=False, access=USE_CHANNEL),
            Route("GET", "/log/read", self.read, logged=False, access=READ),
            Route("POST", "/channel/commit", self.commit, logged=False, access=USE_CHANNEL),
            Route("POST", "/log/ranges", self.read_many, max_body=MAX_BODY, logged=False, access=KNOWN),
            Route("POST", "/channel/commits", self.commit_many, max_body=MAX_BODY, logged=False, access=KNOWN),
            *self._readers.routes(),
        ]

    # --- where logs begin and end ------------------------------------------------------------------------------

    def offsets(self, request: Request) -> Reply:
        """Return where the logs of topics begin and end; at once, or when one of them has grown."""
        query = request.query
        wait = min(_number(query, "wait_ms", 0), LONGEST_WAIT)
        if "after" not in query or wait <= 0:
            return self._offsets(query)
        after = _after(query["after"])
        if self._grown(after):
            return self._offsets(query)
        return self._offsets_later(query, after, wait / 1000)

    async def _offsets_later(self, query: Query, after: dict[str, int], seconds: float) -> Answer:
        loop = asyncio.get_running_loop()
        grown: asyncio.Future[None] = loop.create_future()

        def look(now: int) -> None:
            if self._grown(after):
                _wake(grown)

        self._waiting.add(grown)
        leave = self._broker.growth.follow(after, look)
        timer = loop.call_later(seconds, _wake, grown)
        try:
            await grown
        finally:
            timer.cancel()
            leave()
            self._waiting.discard(grown)
        return self._offsets(query)

    def wake(self) -> None:
        """Answer every waiting caller: nsqd stops."""
        for grown in self._waiting:
            _wake(grown)

    def _grown(self, after: dict[str, int]) -> bool:
        topics = self._broker.topics
        return any(name in topics and topics[name].log.end > sequence for name, sequence in after.items())

    def _offsets(self, query: Query) -> Answer:
        at = _number(query, "at", 0) if "at" in query else None
        times = query.get("times") not in ("false", "0")
        wanted = query.all("topic")
        topics = self._broker.topics
        found = [name for name in dict.fromkeys(wanted) if name in topics] if wanted else list(topics)
        if len(found) > _MAX_WHOLE:
            return StreamedAnswer(200, content_type=JSON, pieces=self._offsets_in_pieces(found, at, times))
        return value({**self._about(), "topics": self._all_facts(found, at, times)})

    def _all_facts(self, topics: list[str], at: int | None, times: bool) -> list[dict[str, Any]]:
        """Return what the log of each topic has; only to read times a topic has to be ready for use."""
        look = self._broker.find if times or at is not None else self._broker.topics.get
        found = (look(name) for name in topics)
        return [_facts(topic, at, times) for topic in found if topic is not None]

    async def _offsets_in_pieces(self, topics: list[str], at: int | None, times: bool) -> AsyncIterator[bytes]:
        """Yield the same answer for a few topics at a time, so that others get their turn."""
        separator = compact(self._about())[:-1] + b',"topics":['
        for start in range(0, len(topics), _STEP):
            some = self._all_facts(topics[start : start + _STEP], at, times)
            if some:
                yield separator + b",".join(map(compact, some))
                separator = b","
            await asyncio.sleep(0)
        yield b"]}" if separator == b"," else separator + b"]}"

    # --- ranges ------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Reply:
        """Return messages [from, to) as raw frames with their positions, or as JSON."""
        query = request.query
        topic = self._topic(request)
        log = topic.log
        _check_log(topic, query.get("log_id"))
        start = _number(query, "from", log.first)
        if start < 0:
            start = max(log.end + start, log.first)
        stop = min(_number(query, "to", log.end), log.end)
        if not log.first <= start <= log.end:
            raise Refused(416, "OUT_OF_RANGE", first=log.first, next=log.end)
        if (moment := _number(query, "time_from", -1)) >= 0:
            start = max(start, log.at_time(moment))
        if (moment := _number(query, "time_to", -1)) >= 0:
            stop = min(stop, log.at_time(moment))
        headers = query.get("headers") not in ("false", "0")
        form = query.get("format", "json")
        if form == "json":
            limit = min(_number(query, "limit", 100), MAX_MESSAGES)
            most = min(_number(query, "max_bytes", MAX_BODIES), MAX_BODIES)
            if "key" in query:  # looks at more messages than it returns
                wanted = _Wanted(query["key"].encode(), _key_from(query), limit)
                return self._json(topic, start, min(stop, start + MAX_MESSAGES), most, headers, wanted)
            return self._json(topic, start, min(stop, start + limit), most, headers)
        if form != "raw":
            raise Refused(400, "INVALID_ARG_FORMAT")
        if "limit" in query:
            stop = min(stop, start + _number(query, "limit", 0))
        positions = query.get("positions") not in ("false", "0")
        share = self._budget.take(_BLOCK_BYTES)
        if "max_bytes" in query:
            blocks = log.blocks(start, stop, min(_READ_BYTES, share.size))
            bounded = _joined(_bounded(blocks, _number(query, "max_bytes", 0)), share.size)
            pieces = _blocks(topic, bounded, share, headers=headers, positions=positions)
        else:
            files = request.caller.near and query.get("files") in ("true", "1")
            pieces = _range_blocks(topic, start, stop, share, headers=headers, positions=positions, files=files)
        return StreamedAnswer(200, content_type=FRAMES, pieces=pieces)

    async def _json(
        self, topic: Topic, start: int, stop: int, max_bytes: int, headers: bool, wanted: _Wanted | None = None
    ) -> Answer:
        share = self._budget.take(MAX_BODIES)
        try:
            with topic.keep():
                body = await _for_people(topic, start, stop, max_bytes, share.size, headers, wanted)
            share.shrink(len(body))
            return StreamedAnswer(200, content_type=JSON, pieces=_whole(body, share))
        except OutOfRange as error:  # retention was faster
            raise Refused(416, "OUT_OF_RANGE", first=topic.log.first, next=topic.log.end) from error

    def read_many(self, request: Request) -> Reply:
        """Return the messages of some ranges as raw blocks, one range after the other.

        The body is a JSON array of [topic, log id, from, to]. A range that cannot be read whole refuses them all.
        """
        query = request.query
        channel = query.get("channel", "")
        ranges: list[tuple[Topic, int, int]] = []
        for index, entry in enumerate(_entries(request)):
            match entry:
                case [str() as name, str() as log_id, int() as start, int() as stop]:
                    require(request, READ, name, channel)
                    ranges.append((self._checked(index, name, log_id, start, stop), start, stop))
                case _:
                    raise Refused(400, "INVALID_RANGE", index=index)
        headers = query.get("headers") not in ("false", "0")
        positions = query.get("positions") not in ("false", "0")
        files = request.caller.near and query.get("files") in ("true", "1")
        share = self._budget.take(_BLOCK_BYTES)

        async def pieces() -> AsyncIterator[bytes | memoryview]:
            for topic, start, stop in ranges:
                async for piece in _range_blocks(
                    topic, start, stop, share, headers=headers, positions=positions, files=files
                ):
                    yield piece

        return StreamedAnswer(200, content_type=FRAMES, pieces=pieces())

    def _checked(self, index: int, name: str, log_id: str, start: int, stop: int) -> Topic:
        topic = self._broker.find(name)
        if topic is None:
            raise Refused(404, "TOPIC_NOT_FOUND", index=index)
        _check_log(topic, log_id)
        if not topic.log.first <= start <= stop <= topic.log.end:
            raise Refused(416, "OUT_OF_RANGE", index=index, first=topic.log.first, next=topic.log.end)
        return topic

    # --- cursors -----------------------------------------------------------------------------------------------

    def commit(self, request: Request) -> Answer:
        """Move a channel's cursor: messages before `sequence` are finished, those from it on are delivered."""
        query = request.query
        topic = self._topic(request)
        name = named(request.head, "channel", "INVALID_ARG_CHANNEL")
        _check_log(topic, query.get("log_id"))
        request.argument("sequence")
        create, back = query.get("create") in ("true", "1"), query.get("back") in ("true", "1")
        cursor = self._move(topic, name, _number(query, "sequence", -1), create=create, back=back)
        self._schedule_flush()
        return value({"cursor": cursor})

    def commit_many(self, request: Request) -> Answer:
        """Move one channel of many topics; return which were not moved, and why.

        The body is a JSON array of [topic, log id, sequence].
        """
        query = request.query
        name = named(request.head, "channel", "INVALID_ARG_CHANNEL")
        create, back = query.get("create") in ("true", "1"), query.get("back") in ("true", "1")
        entries = _entries(request)
        for index, entry in enumerate(entries):
            match entry:
                case [str() as topic_name, str(), int()]:
                    require(request, USE_CHANNEL, topic_name, name)
                case _:
                    raise Refused(400, "INVALID_COMMIT", index=index)
        refused: list[dict[str, Any]] = []
        for topic_name, log_id, sequence in entries:
            topic = self._broker.find(topic_name)
            try:
                if topic is None:
                    raise Refused(404, "TOPIC_NOT_FOUND")
                _check_log(topic, log_id)
                self._move(topic, name, sequence, create=create, back=back)
            except LapwingError as error:
                why = refusal(error)
                if why is None:
                    raise
                refused.append({"topic": topic_name, "status": why.status, "message": why.code})
        self._schedule_flush()
        return value({"moved": len(entries) - len(refused), "refused": refused})

    def _move(self, topic: Topic, name: str, sequence: int, *, create: bool, back: bool) -> int:
        """Move a channel of the topic to `sequence`, and return where its cursor is then. Raises `Refused`."""
        log = topic.log
        if not log.first <= sequence <= log.end:
            raise Refused(416, "OUT_OF_RANGE", first=log.first, next=log.end)
        channel = topic.channels.get(name)
        if channel is None:
            if not create:
                raise Refused(404, "CHANNEL_NOT_FOUND")
            channel = topic.create_channel(name, now=self._now())
            back = True  # it has no past that could be lost
        try:
            channel.seek(sequence, back=back)
        except CursorConflict as error:
            raise Refused(409, "CURSOR_CONFLICT", cursor=channel.cursor) from error
        self._broker.checkpoint_topic(topic, now=self._now())
        return channel.cursor

    def _topic(self, request: Request) -> Topic:
        return self._broker.existing(named(request.head, "topic", "INVALID_ARG_TOPIC"))


def _entries(request: Request) -> list[Any]:
    found = parse_json(request.body, "INVALID_BODY")
    if not isinstance(found, list) or len(found) > MAX_ENTRIES:
        raise Refused(400, "INVALID_BODY")
    return found


def _range_blocks(
    topic: Topic, start: int, stop: int, share: ReadShare, *, headers: bool, positions: bool, files: bool
) -> AsyncIterator[bytes | memoryview]:
    """Return the blocks of messages [start, stop); with `files` where they lie on this machine, as far as possible."""
    log = topic.log
    found: Iterator[InFile | Parts]
    if files:
        found = _in_files(log, start, stop)
    else:
        found = _joined(log.blocks(start, stop, min(_READ_BYTES, share.size)), share.size)
    return _blocks(topic, found, share, headers=headers, positions=positions)


def _check_log(topic: Topic, expected: str | None) -> None:
    if expected and expected != topic.log.identity:
        raise Refused(409, "LOG_ID_MISMATCH", log_id=topic.log.identity)


def _facts(topic: Topic | ColdTopic, at: int | None, times: bool) -> dict[str, Any]:
    log = topic.log
    facts: dict[str, Any] = {
        "topic": topic.name,
        "log_id": log.identity,
        "first": log.first,
        "next": log.end,
        "bytes": log.bytes,
        "channels": [
            {"channel": channel.name, "cursor": channel.cursor, "depth": channel.depth}
            for channel in topic.channels.values()
        ],
    }
    if isinstance(topic, ColdTopic):
        return facts
    if times:
        facts["first_timestamp"] = _time(topic, log.first)
        facts["last_timestamp"] = _time(topic, log.end - 1)
    if at is not None:
        facts["at"] = topic.log.at_time(at)
    return facts


def _time(topic: Topic, sequence: int) -> int | None:
    """Return when a message was published; None when there is none or it cannot be read."""
    try:
        return topic.log.timestamp(sequence)
    except (OutOfRange, CorruptChunk, ReadFailed):
        return None


async def _whole(body: bytes, share: ReadShare) -> AsyncIterator[bytes]:
    """Yield the body; `share` lives as long as this does."""
    yield body


async def _blocks(
    topic: Topic, ranges: Iterator[InFile | Parts], share: ReadShare, *, headers: bool, positions: bool
) -> AsyncIterator[bytes | memoryview]:
    """Yield the bytes of each block; `share` lives as long as this does, and the topic stays in use."""
    with topic.keep():
        for found in ranges:
            if isinstance(found, InFile):
                yield _placed(found, _extras(topic, found.first, found.first + found.count) if headers else b"")
                await asyncio.sleep(0)  # it fills no socket's buffer, and so would never wait and let others in
                continue
            first, count, parts = found
            if not parts:
                reason = b"quarantined: different from their checksum, or in memory alone when the broker was killed"
                yield BLOCK.pack(QUARANTINED, count, first, 0, len(reason)) + reason
                continue
            size = sum(map(len, parts))
            extras = _extras(topic, first, first + count) if headers else b""
            if positions:
                yield BLOCK.pack(MESSAGES, count, first, size, len(extras)) + _positions(parts).tobytes()
            else:
                yield BLOCK.pack(BARE, count, first, size, len(extras))
            for part in parts:
                yield part  # as it was read: no copy is made on the way to the socket
            yield extras


def _in_files(log: TopicLog, start: int, stop: int) -> Iterator[InFile | Parts]:
    """Yield where messages are in the log's files, for a reader on this machine; else the messages themselves."""
    while start < min(stop, log.end):
        found = log.in_file(start, stop, _BLOCK_BYTES)
        if found is not None:
            start += found.count
            yield found
            continue
        first, count, frames = next(log.blocks(start, stop, _READ_BYTES))
        start = first + count
        yield first, count, [frames] if frames else []


def _placed(found: InFile, extras: bytes) -> bytes:
    path = os.fsencode(os.path.abspath(found.path))
    size = sum(length for length, _ in found.chunks)
    head = BLOCK.pack(PLACED, found.count, found.first, size, len(extras))
    checks = [CHECK.pack(*check) for check in found.chunks]
    return b"".join([head, PLACE.pack(found.offset, len(checks), len(path)), path, *checks, extras])


def _bounded(pieces: Iterator[tuple[int, int, memoryview]], most: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the first pieces, up to `most` bytes of frames, but at least one message."""
    begun = False
    for first, count, frames in pieces:
        if len(frames) > most:
            count, after = kernel.take_frames(frames, 0, len(frames), count, most)
            if after <= most or not begun:
                yield first, count, frames[:after]
            return
        yield first, count, frames
        begun = True
        most -= len(frames)


def _joined(pieces: Iterator[tuple[int, int, memoryview]], most: int) -> Iterator[Parts]:
    """Join neighbours to blocks of at most `most` bytes; a range without parts is quarantined.

    Every block costs its reader a turn through Python and Arrow.
    """
    start = total = size = 0
    parts: list[memoryview] = []
    for first, count, frames in pieces:
        if parts and (not frames or size + len(frames) > most):
            yield start, total, parts
            total, size, parts = 0, 0, []
        if not frames:
            yield first, count, []
            continue
        if not parts:
            start = first
        parts.append(frames)
        total += count
        size += len(frames)
    if parts:
        yield start, total, parts


def _positions(parts: list[memoryview]) -> array[int]:
    """Return where each frame begins, and where the last one ends."""
    found = array("i", [0])
    for part in parts:
        places, _ = kernel.scan_frames(part, 0, len(part))
        base = found.pop()
        found.extend([base + place for place in places] if base else places)
    return found


def _extras(topic: Topic, start: int, stop: int) -> bytes:
    found = [[extra.sequence, extra.headers] for extra in topic.log.extras(start, stop) if extra.headers]
    return json.dumps(found, separators=(",", ":")).encode() if found else b""


class _Wanted:
    """Up to `limit` messages that have a key."""

    def __init__(self, key: bytes, key_from: str, limit: int) -> None:
        self.key, self.limit = short(key), limit
        self._names = MessageKeys(key_from)

    def places(self, log: TopicLog, first: int, frames: bytes) -> Container[int]:
        """Return the places of those among the messages from `first` on. Raises `ReadFailed`."""
        positions, _ = kernel.scan_frames(frames, 0, len(frames))
        rows = log.rows(first, first + len(positions) - 1) if self._names.from_headers else b""
        names = self._names.of_frames(frames, positions, first, rows)
        return {place for place, name in enumerate(names) if name == self.key}


def _key_from(query: Query) -> str:
    try:
        return str(KEY_FROM.from_file(query.get("key_from", "header:key")))
    except ValueError as error:
        raise Refused(400, "INVALID_ARG_KEY_FROM") from error


async def _for_people(
    topic: Topic, start: int, stop: int, max_bytes: int, max_written: int, with_headers: bool, wanted: _Wanted | None
) -> bytes:
    """Return messages as JSON, made one block of the log at a time, so that others get their turn.

    `max_bytes` bounds the bodies, `max_written` the answer, which escapes may make far longer.
    """
    log = topic.log
    messages: list[bytes] = []
    headers = {extra.sequence: extra.headers for extra in log.extras(start, stop)} if with_headers else {}
    size = written = 0
    reached = start
    for first, count, frames in log.blocks(start, stop, _READ_BYTES):
        if reached > start:
            await asyncio.sleep(0)  # others get their turn
        reached = first + count
        decoded, _ = kernel.decode_messages(frames, 0, len(frames))
        places = wanted.places(log, first, bytes(frames)) if wanted is not None else range(count)
        for sequence, (timestamp, attempts, message_id, body) in enumerate(decoded, first):
            if sequence - first not in places:
                continue
            if wanted is not None and len(messages) >= wanted.limit:
                reached = sequence
                break
            if messages and (size + len(body) > max_bytes or written > max_written):
                reached = sequence
                break
            size += len(body)
            message = {
                "sequence": sequence,
                "id": message_id.decode(),
                "timestamp": timestamp,
                "attempts": attempts,
                **body_fields(body),
                "headers": headers.get(sequence, {}),
            }
            messages.append(compact(message))
            written += len(messages[-1])
        if reached < first + count:
            break
    about = compact({"log_id": log.identity, "first": log.first, "next": log.end, "resume": reached})
    return b'%b,"messages":[%b]}' % (about[:-1], b",".join(messages))


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name)
    if text is None or text == "":
        return default
    if _NUMBER.fullmatch(text) is None:
        raise Refused(400, f"INVALID_ARG_{name.upper()}")
    return int(text)


def _after(text: str) -> dict[str, int]:
    """Parse the sequences that the caller knows, by topic: `T:5,S:7`."""
    known = {}
    for entry in islice(text.split(","), 10_000):
        name, _, sequence = entry.rpartition(":")
        if not names.valid(name) or _NUMBER.fullmatch(sequence) is None:
            raise Refused(400, "INVALID_ARG_AFTER")
        known[name] = int(sequence)
    return known


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
