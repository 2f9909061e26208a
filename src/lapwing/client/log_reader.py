"""Read the logs of a topic over HTTP without consuming anything: look into them, search them, follow them."""

import asyncio
import base64
import heapq
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from lapwing.client.address import listed
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import Asked, CallFailed, DaemonHttp
from lapwing.errors import ConfigError, LapwingError
from lapwing.wire.resp.bodies import fields_of

log: Final = logging.getLogger("lapwing.client")

_WAIT: Final = 15.0  # s that nsqd may wait for a log to grow
_PAGE: Final = 1000  # messages of one answer
_PAGE_BYTES: Final = 4 << 20
_PAUSE: Final = 1.0  # s before a node that did not answer is asked again
_AHEAD: Final = 10_000  # messages that `follow` reads ahead of its caller
SEARCHED_AT_MOST: Final = 20_000  # messages of a log that one search looks through
SEARCHED_BYTES: Final = 64 << 20  # bytes of a log that one search reads
_SHOWN_BYTES: Final = 16 << 20  # bytes of a log that one look reads


class NoLog(LapwingError):
    """The nsqd keeps no log that can be read: it is a plain NSQ server."""


class NoTopic(LapwingError):
    """No node has the topic."""


@dataclass(frozen=True, slots=True, order=True)
class LogMessage:
    """One message of a log. Messages sort by time."""

    timestamp: int  # ns
    node: str
    sequence: int
    id: str
    attempts: int
    body: bytes
    headers: dict[str, str] = field(compare=False)

    def as_json(self, topic: str) -> Json:
        """Return the message as a JSON object; a body that is not UTF-8 is in `body_base64`.

        An entry that a Redis client added with several fields has them in `fields`, too.
        """
        document: Json = {"topic": topic, "node": self.node, "sequence": self.sequence, "id": self.id,
                          "timestamp": self.timestamp, "attempts": self.attempts}  # fmt: skip
        try:
            document["body"] = self.body.decode()
        except UnicodeDecodeError:
            document["body"] = None
            document["body_base64"] = base64.b64encode(self.body).decode()
        fields = fields_of(self.body)
        if fields:
            document["fields"] = fields
        document["headers"] = self.headers
        return document


@dataclass(frozen=True, slots=True)
class LogRange:
    """The log of a topic on one node: it holds the sequences [first, next)."""

    node: Node
    log_id: str
    first: int
    next: int
    first_timestamp: int  # ns; 0: the log is empty
    last_timestamp: int
    bytes: int
    at: int | None = None  # the first sequence at or after the time that was asked for


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some messages of a log, and where the next page begins."""

    messages: list[LogMessage]
    log_id: str
    next: int  # end of the log
    resume: int  # sequence of the next page


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Messages of several logs in one order, how much was searched for them, and where to continue.

    `edges` has a sequence by node name: the next slice begins there, or ends before it if it goes backwards.
    """

    messages: list[LogMessage]
    edges: dict[str, int]
    searched: int  # messages
    reached: int  # ns; time of the last message that was searched, 0: none
    complete: bool  # the logs have no further message in this direction


@dataclass(frozen=True, slots=True)
class KeyOf:
    """A key, and where messages have it: `key_from` is as the setting of a channel."""

    key: str
    key_from: str = "header:key"


@dataclass(slots=True)
class _Scan:
    """The part of one log that was read for a slice."""

    found: LogRange
    edge: int  # the next sequence to read, or the end of what was not read when going backwards
    messages: list[LogMessage] = field(default_factory=list)  # in the order of reading
    searched: int = 0
    bytes: int = 0
    reached: int = 0  # ns

    @property
    def step(self) -> int:
        """Messages to read at once, so that an answer stays small."""
        held = self.found.next - self.found.first
        average = max(1, self.found.bytes // held) if held else 1
        return max(1, min(_PAGE, _PAGE_BYTES // 2 // average))

    def ends_at(self, edge: int, *, backwards: bool) -> bool:
        """Return whether the log has no message beyond `edge`."""
        return edge <= self.found.first if backwards else edge >= self.found.next


@dataclass(frozen=True, slots=True)
class Start:
    """The place where reading begins: at a sequence, at a time, or `last` messages before the end."""

    sequence: int | None = None
    time: int | None = None  # Unix ns
    last: int | None = None

    def in_log(self, found: LogRange) -> int:
        """Return the sequence in this log, which may no longer, or not yet, be in it."""
        if self.sequence is not None:
            return self.sequence
        if self.time is not None:
            return found.next if found.at is None else found.at
        return max(found.first, found.next - (self.last or 0))


class TopicLogs:
    """The log API of nsqds, for one topic. Every call raises `CallFailed` if the node does not answer or refuses."""

    def __init__(self, http: DaemonHttp, topic: str) -> None:
        self._http = http
        self.topic = topic

    async def range_of(self, node: Node, *, at: int | None = None) -> LogRange | None:
        """Return the log on `node`, None if it has none; `at` is a time in ns to look up. Raises `NoLog`."""
        params = {"topic": self.topic} | ({"at": str(at)} if at is not None else {})
        try:
            answer = await self._http.get(node.contact, "/log/offsets", params)
        except CallFailed as error:
            if error.status == 404:
                raise NoLog(
                    f"{node.contact} keeps no log that can be read: it is a plain NSQ server; `lapwing sub` and "
                    "nsq_tail consume from it"
                ) from error
            raise
        return self._range(node, answer)

    async def ranges(self, nodes: Iterable[Node], *, at: int | None = None) -> list[LogRange]:
        """Return the log on each of the nodes that has one and answers."""
        params = {"topic": self.topic} | ({"at": str(at)} if at is not None else {})
        by_contact = {node.contact: node for node in nodes}
        asked: Asked[Any] = await self._http.ask_all(
            by_contact, lambda contact: self._http.get(contact, "/log/offsets", params)
        )
        found = (self._range(by_contact[contact], answer) for contact, answer in asked.answers.items())
        return [each for each in found if each is not None]

    async def grown(self, node: Node, after: int) -> LogRange | None:
        """Wait until the log has grown past `after`, or for a while; return the log as `range_of` does."""
        params = {"topic": self.topic, "after": f"{self.topic}:{after}", "wait_ms": str(int(_WAIT * 1000))}
        return self._range(node, await self._http.get(node.contact, "/log/offsets", params, timeout=_WAIT + 5))

    async def page(
        self,
        node: Node,
        begin: int,
        end: int | None = None,
        *,
        limit: int = _PAGE,
        max_bytes: int = _PAGE_BYTES,
        log_id: str = "",
        headers: bool = True,
        key: KeyOf | None = None,
    ) -> LogPage:
        """Return messages of [begin, end), at most `limit`. A range that the log no longer holds begins where it does.

        With `log_id` the call fails with status 409 if the log is another one than before. With `key`, only messages
        that have it.
        """
        params = {"topic": self.topic, "from": str(max(0, begin)), "format": "json", "limit": str(limit),
                  "max_bytes": str(max_bytes)}  # fmt: skip
        if end is not None:
            params["to"] = str(end)
        if log_id:
            params["log_id"] = log_id
        if not headers:
            params["headers"] = "false"
        if key is not None:
            params |= {"key": key.key, "key_from": key.key_from}
        try:
            answer = await self._http.get(node.contact, "/log/read", params)
        except CallFailed as error:
            first = error.answer.get("first") if isinstance(error.answer, dict) else None
            if error.status != 416 or not isinstance(first, int) or not begin < first < (end or first + 1):
                raise
            answer = await self._http.get(node.contact, "/log/read", {**params, "from": str(first)})
        return _page(node, answer, begin)

    async def page_since(
        self, node: Node, time: int, *, limit: int = _PAGE, max_bytes: int = _PAGE_BYTES, headers: bool = True
    ) -> LogPage:
        """Return messages published at or after `time` (ns)."""
        params = {"topic": self.topic, "time_from": str(time), "format": "json", "limit": str(limit),
                  "max_bytes": str(max_bytes), "headers": "true" if headers else "false"}  # fmt: skip
        return _page(node, await self._http.get(node.contact, "/log/read", params), 0)

    async def newest(
        self,
        logs: Sequence[LogRange],
        *,
        limit: int,
        before: Mapping[str, int] | None = None,
        text: str = "",
        key: KeyOf | None = None,
    ) -> LogSlice:
        """Return the newest messages of all the logs together, newest first; `before` has upper ends by node name.

        With `text`, only messages that contain it in body, headers or id; with `key`, only those that have it. A search
        ends after `SEARCHED_AT_MOST` messages or `SEARCHED_BYTES` of each log.
        """
        ends = before or {}
        scans = [_Scan(found, min(ends.get(found.node.name, found.next), found.next)) for found in logs]
        return await self._slice(scans, text, limit, key, backwards=True)

    async def oldest(
        self,
        logs: Sequence[LogRange],
        *,
        limit: int,
        begins: Mapping[str, int] | None = None,
        text: str = "",
        key: KeyOf | None = None,
    ) -> LogSlice:
        """Return the first messages from `begins` (by node name) or from the beginning, oldest first.

        `text` and `key` are as for `newest`.
        """
        starts = begins or {}
        scans = [_Scan(found, max(starts.get(found.node.name, found.first), found.first)) for found in logs]
        return await self._slice(scans, text, limit, key, backwards=False)

    async def _slice(
        self, scans: list[_Scan], text: str, limit: int, key: KeyOf | None, *, backwards: bool
    ) -> LogSlice:
        """Read every log from its edge on, and return its messages with those of the others in one order."""
        await asyncio.gather(*(self._scan(scan, text, limit, key, backwards=backwards) for scan in scans))
        nearest, furthest = (max, min) if backwards else (min, max)
        open_ends = [
            scan.reached for scan in scans if scan.reached and not scan.ends_at(scan.edge, backwards=backwards)
        ]
        order = sorted((each for scan in scans for each in scan.messages), reverse=backwards)
        shown = order
        if open_ends:  # messages of one log must not pass those that another log was not searched for yet
            bound = nearest(open_ends)
            shown = [each for each in order if nearest(each.timestamp, bound) == each.timestamp]
        shown = shown[:limit]
        edges = {}
        for scan in scans:
            left = [each.sequence for each in order[len(shown) :] if each.node == scan.found.node.name]
            edges[scan.found.node.name] = nearest([scan.edge, *(sequence + backwards for sequence in left)])
        complete = all(scan.ends_at(edges[scan.found.node.name], backwards=backwards) for scan in scans)
        reached = furthest([scan.reached for scan in scans if scan.reached], default=0)
        return LogSlice(shown, edges, sum(scan.searched for scan in scans), reached, complete)

    async def _scan(self, scan: _Scan, text: str, limit: int, key: KeyOf | None, *, backwards: bool) -> None:
        """Read a log from `scan.edge` on until `limit` messages fit, the log ends, or enough was read."""
        found, wanted = scan.found, text.lower()
        searching = bool(text) or key is not None
        most_bytes = SEARCHED_BYTES if searching else _SHOWN_BYTES
        while len(scan.messages) < limit and scan.searched < SEARCHED_AT_MOST and scan.bytes < most_bytes:
            step = scan.step if searching else min(scan.step, limit - len(scan.messages))
            at = scan.edge
            low, high = (max(found.first, at - step), at) if backwards else (at, min(found.next, at + step))
            if low >= high:
                return
            block = await self._block(found.node, low, high, key)
            scan.edge = low if backwards else high
            scan.searched += high - low
            scan.bytes += sum(len(message.body) for message in block)
            if block:
                scan.reached = block[0].timestamp if backwards else block[-1].timestamp
            fits = [message for message in block if not text or contains(message, wanted)]
            scan.messages += reversed(fits) if backwards else fits

    async def _block(self, node: Node, low: int, high: int, key: KeyOf | None) -> list[LogMessage]:
        """Return all messages of [low, high), of a key or of all, in as many answers as it takes."""
        messages: list[LogMessage] = []
        while low < high:
            page = await self.page(node, low, high, key=key)
            messages += page.messages
            low = max(page.resume, low + 1)
        return messages

    def _range(self, node: Node, answer: Json) -> LogRange | None:
        for found in answer.get("topics") or ():
            if found.get("topic") == self.topic:
                return LogRange(
                    node,
                    str(found.get("log_id", "")),
                    int(found["first"]),
                    int(found["next"]),
                    int(found.get("first_timestamp") or 0),
                    int(found.get("last_timestamp") or 0),
                    int(found.get("bytes") or 0),
                    found.get("at"),
                )
        return None


def contains(message: LogMessage, text: str) -> bool:
    """Return whether body, headers or id contain `text`, which is in lower case."""
    headers = " ".join(f"{key}: {value}" for key, value in message.headers.items())
    return text in message.body.decode("utf-8", "replace").lower() or text in headers.lower() or text in message.id


def _page(node: Node, answer: Json, begin: int) -> LogPage:
    messages = [_message(node, each) for each in answer.get("messages") or ()]
    end = int(answer["next"])
    resume = int(answer.get("resume", begin + len(messages)))
    if resume <= begin < end and not messages:
        resume = begin + 1  # nothing there can be read: never stand still
    return LogPage(messages, str(answer.get("log_id", "")), end, resume)


def _message(node: Node, message: Json) -> LogMessage:
    body = message["body"]
    content = base64.b64decode(message["body_base64"]) if body is None else body.encode()
    return LogMessage(int(message["timestamp"]), node.name, int(message["sequence"]), str(message["id"]),
                      int(message["attempts"]), content, dict(message.get("headers") or {}))  # fmt: skip


class LogReader:
    """Read the logs of one topic, on all nodes, without a channel and without consuming anything.

    Give `nsqd_http` (`host:port` of nsqds' HTTP, 4151 by default) or `lookupd` (nsqlookupds, 4161 by default).
    `notice` gets a sentence whenever a node is away or a log is shorter than asked for.

        async with LogReader("orders", nsqd_http="127.0.0.1:4151") as reader:
            for message in await reader.read(last=10):
                print(message.sequence, message.body)
            async for message in reader.follow(since=yesterday):
                ...
    """

    def __init__(
        self,
        topic: str,
        *,
        nsqd_http: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        auth_secret: str = "",
        tls: ssl.SSLContext | None = None,
        cluster: ClusterClient | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self.topic = topic
        self._own: DaemonHttp | None = None
        if cluster is None:
            nsqds, lookupds = listed(nsqd_http), listed(lookupd)
            if bool(nsqds) == bool(lookupds):
                raise ConfigError("give nsqd_http or lookupd, and not both")
            self._own = DaemonHttp(auth_secret=auth_secret, tls=tls)
            cluster = ClusterClient(self._own, nsqds=nsqds, lookupds=lookupds)
        self._cluster = cluster
        self._logs = TopicLogs(cluster.http, topic)
        self._notice = notice or (lambda text: log.warning("%s", text))

    async def __aenter__(self) -> "LogReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._own is not None:
            await self._own.aclose()

    async def ranges(self) -> list[LogRange]:
        """Return where the log begins and ends on each node that has it. Raises `UpstreamFailed`."""
        return await self._logs.ranges(await self._nodes())

    async def read(
        self,
        limit: int = 100,
        *,
        sequence: int | None = None,
        since: datetime | int | None = None,
        last: int | None = None,
    ) -> list[LogMessage]:
        """Return at most `limit` messages of all nodes by time: from a sequence or a time on, or the last ones.

        `since` is a time, or Unix ns. Raises `NoTopic`, `NoLog`, `CallFailed`, `UpstreamFailed`.
        """
        start = _start(sequence, since, limit if sequence is None and since is None and last is None else last)
        nodes = await self._nodes()
        pages = await asyncio.gather(*(self._read(node, start, limit) for node in nodes))
        if all(page is None for page in pages):
            raise NoTopic(f"no topic {self.topic!r} on {', '.join(node.contact for node in nodes)}")
        messages = sorted(message for page in pages for message in page or ())
        if start.last is not None:
            return messages[-min(limit, start.last) :] if start.last else []
        return heapq.nsmallest(limit, messages)

    async def find(
        self,
        key: str,
        limit: int = 100,
        *,
        key_from: str = "header:key",
        sequence: int | None = None,
        since: datetime | int | None = None,
    ) -> list[LogMessage]:
        """Return at most `limit` messages that have a key, by time: from a sequence or a time on, or the last ones.

        `key_from` is as for a channel: `header:<name>` or `json:/pointer`. 20,000 messages of each log are searched; a
        notice is given where there are more. Raises as `read` does.
        """
        start = _start(sequence, since, limit if sequence is None and since is None else None)
        nodes = await self._nodes()
        found = [await self._logs.range_of(node, at=start.time) for node in nodes]
        ranges = [each for each in found if each is not None]
        if not ranges:
            raise NoTopic(f"no topic {self.topic!r} on {', '.join(node.contact for node in nodes)}")
        wanted = KeyOf(key, key_from)
        if start.last is not None:
            slice_ = await self._logs.newest(ranges, limit=limit, key=wanted)
        else:
            begins = {each.node.name: self._inside(each, start.in_log(each)) for each in ranges}
            slice_ = await self._logs.oldest(ranges, limit=limit, begins=begins, key=wanted)
        if len(slice_.messages) < limit and not slice_.complete:
            searched = f"{slice_.searched:,} messages of {self.topic} were searched"
            self._notice(f"{searched}; begin at another place for others")
        return slice_.messages[::-1] if start.last is not None else slice_.messages

    async def follow(
        self, *, sequence: int | None = None, since: datetime | int | None = None, last: int | None = None
    ) -> AsyncGenerator[LogMessage, None]:
        """Yield every message from a place on, or from now on, of all nodes, as it is published, until closed.

        A node that is away is asked again until it is back. Raises `NoLog` for a plain NSQ server.
        """
        start = _start(sequence, since, last)
        queue: asyncio.Queue[LogMessage | BaseException] = asyncio.Queue(maxsize=_AHEAD)
        tasks = [asyncio.create_task(self._follow(node, start, queue)) for node in await self._nodes()]
        try:
            while True:
                message = await queue.get()
                if isinstance(message, BaseException):
                    raise message
                yield message
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _nodes(self) -> list[Node]:
        found = await self._cluster.nodes(topics=False)
        for error in found.errors:
            self._notice(error)
        if not found.value:
            raise NoTopic("nsqlookupd knows no nsqd")
        return found.value

    async def _read(self, node: Node, start: Start, limit: int) -> list[LogMessage] | None:
        found = await self._logs.range_of(node, at=start.time)
        if found is None:
            return None
        at = self._inside(found, start.in_log(found))
        messages: list[LogMessage] = []
        while len(messages) < limit and at < found.next:
            page = await self._logs.page(node, at, limit=min(_PAGE, limit - len(messages)))
            self._note_gap(node, at, page)
            messages += page.messages
            at = page.resume
        return messages

    def _note_gap(self, node: Node, at: int, page: LogPage) -> None:
        first = page.messages[0].sequence if page.messages else page.resume
        if first > at:
            self._notice(f"{node.contact}: {first - at:,} messages of {self.topic} from {at:,} on are gone")

    def _inside(self, found: LogRange, sequence: int) -> int:
        """Return the sequence, or the nearest one that the log has; a notice is shown if they differ."""
        where = f"{found.node.contact}: the log of {self.topic}"
        if sequence < found.first:
            self._notice(f"{where} begins at {found.first:,}; older messages are gone")
        elif sequence > found.next:
            self._notice(f"{where} ends at {found.next:,}")
        return min(max(sequence, found.first), found.next)

    async def _follow(self, node: Node, start: Start, queue: "asyncio.Queue[LogMessage | BaseException]") -> None:
        at: int | None = None
        log_id = ""
        away = missing = False
        while True:
            try:
                if at is None:
                    found = await self._logs.range_of(node, at=start.time)
                else:
                    found = await self._logs.grown(node, at)
                if away:
                    self._notice(f"{node.contact} is back")
                    away = False
                if found is None:
                    if not missing:
                        self._notice(f"{node.contact} has no topic {self.topic} yet: waiting for it")
                    missing, start, at = True, Start(sequence=0), None
                    await asyncio.sleep(_PAUSE)
                    continue
                if at is None or found.log_id != log_id:
                    at = self._inside(found, start.in_log(found) if at is None else found.first)
                    log_id, missing = found.log_id, False
                at = min(at, found.next)  # a log in memory is shorter after a crash
                while at < found.next:
                    page = await self._logs.page(node, at)
                    self._note_gap(node, at, page)
                    for message in page.messages:
                        await queue.put(message)
                    at = page.resume
            except CallFailed as error:
                if not away:
                    self._notice(f"{error}; trying again")
                    away = True
                await asyncio.sleep(_PAUSE)
            except LapwingError as error:
                await queue.put(error)
                return


def _start(sequence: int | None, since: datetime | int | None, last: int | None) -> Start:
    if sum(each is not None for each in (sequence, since, last)) > 1:
        raise ConfigError("give one of sequence, since and last")
    time = int(since.timestamp() * 1e9) if isinstance(since, datetime) else since
    return Start(sequence, time, last)
