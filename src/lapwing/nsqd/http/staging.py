"""`/stage...`: publish a batch of a sink exactly once, however often it is committed."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from lapwing import kernel, names
from lapwing.broker.broker import Broker
from lapwing.broker.operations.staging import Commit, NotStaged, Staging
from lapwing.broker.topic import batch
from lapwing.errors import BrokerError, LapwingError, LogError, PublishRefused
from lapwing.log.segments.attributes import encode_headers
from lapwing.log.staged import KEY, Part, StagedFiles
from lapwing.net.logs import Log
from lapwing.net.server.answers import Answer, Refused, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.document import parse_json
from lapwing.nsqd.http.permissions import KNOWN, PUBLISH, require
from lapwing.nsqd.http.publishing import named
from lapwing.nsqd.sync import Syncer
from lapwing.nsqd.turn import Turn

if TYPE_CHECKING:
    from lapwing.log.disk import Disk
    from lapwing.nsqd.replicator import Replicator

T = TypeVar("T")

_LENGTH: Final = struct.Struct(">I")
_MILLISECOND: Final = 1_000_000  # ns
_EXTRA_ROOM: Final = 4 << 20  # bytes that headers may take beside the messages of a part
_SWEEP_SECONDS: Final = 600.0
_MAX_NUMBER: Final = 2**62


class Staged:
    """The routes of staged batches, and their background work."""

    def __init__(self, broker: Broker, turn: Turn, syncer: Syncer | Replicator, log: Log, disk: Disk) -> None:
        options = broker.options
        self._broker = broker
        self._options = options
        self._turn = turn
        self._syncer = syncer
        self._log = log
        data_path = os.path.abspath(options.data_path or ".")
        self._staging = Staging(broker, StagedFiles(data_path, sync=options.durability == "fsync", disk=disk))
        self._data_path = data_path
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="staging")
        # gone with the last who holds or awaits one: every batch write is a sink of its own
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sweeping: asyncio.Task[Any] | None = None

    def routes(self) -> list[Route]:
        most = self._options.max_body_size + _EXTRA_ROOM
        return [
            Route("POST", "/stage", self.stage, max_body=most, logged=False, access=PUBLISH),
            Route("POST", "/stage/commit", self.commit, max_body=16 << 20, access=KNOWN),
            Route("POST", "/stage/abort", self.abort, max_body=16 << 20, access=KNOWN),
            Route("GET", "/stage/status", self.status, access=KNOWN),
        ]

    def recover(self) -> None:
        """Finish batches that a crash has interrupted, before anybody else can publish."""
        for note in self._staging.recover(now=self._turn.clock.now):
            self._log.warn(note)

    def start(self) -> None:
        """Start to drop stale parts from time to time."""
        self._sweeping = self._keep(self._sweep_for_ever())

    async def stop(self) -> None:
        """Finish the batches under way, and stop."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)

    # --- routes ------------------------------------------------------------------------------------------------

    async def stage(self, request: Request) -> Answer:
        """Keep a part of a batch until the batch is committed; the same part again takes the place of the first."""
        query = request.query
        sink = named(request.head, "sink", "INVALID_ARG_SINK")
        topic = named(request.head, "topic", "INVALID_ARG_TOPIC")
        batch, number = _number(query.get("batch"), "BATCH"), _number(query.get("part"), "PART")
        key = _key(query.get("key"))
        if _checked(lambda: self._staging.settled(sink, batch)):
            return value({"staged": False})
        part = self._part(topic, request.body)
        self._check_space(len(request.body))
        await self._in_thread(self._staging.files.put, sink, batch, key, number, part)
        error = await self._syncer.settled()
        if error is not None:
            raise error
        return value({"staged": True, "count": part.count})

    async def commit(self, request: Request) -> Answer:
        """Publish a batch that was staged; once more is the same as once."""
        order = _order(request)
        keys = [_counted(entry) for entry in order["keys"]]
        await self._check_topics(request, order["sink"], order["batch"], [key for key, _ in keys])
        # a task of its own: the batch is published even if the client does not wait for the end
        task = self._keep(self._commit(order["sink"], order["batch"], keys))
        return await asyncio.shield(task)

    async def abort(self, request: Request) -> Answer:
        """Drop parts that will not be committed."""
        order = _order(request)
        keys = [_key(key) for key in order["keys"]]
        await self._check_topics(request, order["sink"], order["batch"], keys)
        return value({"dropped": _checked(lambda: self._staging.abort(order["sink"], order["batch"], keys))})

    def status(self, request: Request) -> Answer:
        """Return the last batch of a sink that is published or about to be, and the staged ones."""
        sink = named(request.head, "sink", "INVALID_ARG_SINK")
        staged = [batch for batch, _ in _checked(lambda: self._staging.files.batches(sink))]
        published = _checked(lambda: self._staging.begun(sink))
        return value({"sink": sink, "published": published, "staged": staged})

    async def _check_topics(self, request: Request, sink: str, batch: int, keys: list[str]) -> None:
        """Raise `Refused` unless the caller may publish to every topic that the parts of these keys are for."""
        if request.permissions is None:
            return
        loop = asyncio.get_running_loop()
        try:
            topics = await loop.run_in_executor(self._threads, self._staging.files.topics, sink, batch, keys)
        except (LogError, OSError) as error:
            raise Refused(503, "STAGING_FAILED", reason=str(error)) from error
        for topic in topics:
            require(request, PUBLISH, topic)

    # --- publishing --------------------------------------------------------------------------------------------

    async def _commit(self, sink: str, batch: int, keys: list[tuple[str, int]]) -> Answer:
        async with self._locks.setdefault(sink, asyncio.Lock()):
            try:
                commit = self._staging.commit(sink, batch, keys)
                if commit is None:
                    return value({"published": 0, "already": True})
                await self._carry_on(commit)
            except NotStaged as error:
                raise Refused(409, "NOT_STAGED", reason=str(error)) from error
            except BrokerError:
                raise
            except (LogError, OSError) as error:
                self._broker.fail(error)
                raise Refused(503, "COMMIT_FAILED", reason=str(error)) from error
            except LapwingError as error:
                raise Refused(503, "COMMIT_FAILED", reason=str(error)) from error
            return value({"published": commit.published, "already": False})

    async def _carry_on(self, commit: Commit) -> None:
        while not commit.done:
            sync = commit.prepare(now=self._turn.clock.now())
            if sync is not None:
                await self._in_thread(sync)
            commit.publish()
            self._turn.schedule_flush()
            await asyncio.sleep(0)  # others get their turn
        if self._options.answers_wait:
            for topic in commit.topics.values():
                error = await self._syncer.sync(topic)
                if error is not None:
                    raise error
        commit.finish()

    async def _sweep_for_ever(self) -> None:
        while True:
            for note in self._staging.sweep(now=self._turn.clock.now()):
                self._log.warn(note)
            for commit in self._staging.interrupted:
                async with self._locks.setdefault(commit.sink, asyncio.Lock()):
                    try:
                        await self._carry_on(commit)
                    except (LapwingError, OSError) as error:
                        what = f"sink {commit.sink}: batch {commit.batch}"
                        self._log.error(f"{what} cannot be published, next try in 10 minutes: {error}")
            await asyncio.sleep(_SWEEP_SECONDS)

    # --- what comes in -----------------------------------------------------------------------------------------

    def _part(self, topic: str, body: bytes) -> Part:
        """Parse a part: length and JSON of the extras, then the body of an MPUB."""
        if len(body) < _LENGTH.size:
            raise Refused(400, "BAD_BODY")
        (length,) = _LENGTH.unpack_from(body)
        text, batch = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
        part = Part(topic, 0, [], batch)
        try:
            self._staging.check(part)
        except PublishRefused as error:
            big = error.code == kernel.TOO_BIG
            details = {"index": error.index, "size": error.value, "limit": self._options.max_msg_size}
            raise Refused(413 if big else 400, "MSG_TOO_BIG" if big else "BAD_BODY", **details) from error
        if text:
            part.extras = self._extras(text, part.count)
        return part

    def _extras(self, text: bytes, count: int) -> list[tuple[int, int, dict[str, str]]]:
        """Deferrals and headers, given as `[[index, ms, {headers}], ...]` in order; raises `Refused`."""
        try:
            rows = json.loads(text)
            extras = [(index, defer * _MILLISECOND, headers) for index, defer, headers in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(400, "INVALID_EXTRAS") from error
        before = -1
        for index, defer, headers in extras:
            if type(index) is not int or not before < index < count or type(defer) is not int:
                raise Refused(400, "INVALID_EXTRAS")
            before = index
            if not 0 <= defer <= self._options.longest_defer:
                raise Refused(400, "INVALID_DEFER", index=index)
            if not isinstance(headers, dict) or not _are_lawful(headers):
                raise Refused(400, "INVALID_HEADERS", index=index)
        return [(index, defer, batch.of_client(headers)) for index, defer, headers in extras]

    def _check_space(self, size: int) -> None:
        """Raise `Refused` if the part would take disk space that is to stay free."""
        if self._options.min_free_bytes:
            facts = os.statvfs(self._data_path)
            if facts.f_bavail * facts.f_frsize - size < self._options.min_free_bytes:
                raise Refused(503, "DISK_FULL")

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except OSError as error:
            self._broker.fail(error)
            raise Refused(503, "WRITE_FAILED", reason=str(error)) from error

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may be gone, and then nobody else looks at it


def _are_lawful(headers: dict[str, Any]) -> bool:
    """Return whether headers are what every other publish may have."""
    text = encode_headers(headers)
    return len(text) <= kernel.MAX_HEADERS and kernel.count_headers(text) >= 0


def _checked(ask: Callable[[], T]) -> T:
    """Return the result of `ask`; raise `Refused` if the staging area is damaged or cannot be read."""
    try:
        return ask()
    except (LogError, OSError) as error:
        raise Refused(503, "STAGING_FAILED", reason=str(error)) from error


def _number(text: str | None, name: str) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or int(text) > _MAX_NUMBER:
        raise Refused(400, f"INVALID_ARG_{name}")
    return int(text)


def _key(text: object) -> str:
    if not isinstance(text, str) or KEY.fullmatch(text) is None:
        raise Refused(400, "INVALID_ARG_KEY")
    return text


def _counted(entry: object) -> tuple[str, int]:
    if not isinstance(entry, list) or len(entry) != 2 or type(entry[1]) is not int or not 0 <= entry[1] <= 1_000_000:
        raise Refused(400, "INVALID_ARG_KEYS")
    return _key(entry[0]), entry[1]


def _order(request: Request) -> dict[str, Any]:
    """Parse the body of `commit` and `abort`: sink, batch and keys; raise `Refused`."""
    order = parse_json(request.body, "INVALID_REQUEST")
    if not isinstance(order, dict) or not isinstance(order.get("keys"), list):
        raise Refused(400, "INVALID_REQUEST")
    if not isinstance(order.get("sink"), str) or not names.valid(order["sink"]):
        raise Refused(400, "INVALID_ARG_SINK")
    batch = order.get("batch")
    if type(batch) is not int or not 0 <= batch <= _MAX_NUMBER:
        raise Refused(400, "INVALID_ARG_BATCH")
    return order
