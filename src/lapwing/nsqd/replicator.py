"""The remote log of a node: records of all that happens, and answers that wait for them.

One record at a time is under way, in a thread of its own. These are the steps of one, and their order is what keeps
acknowledged messages:

    1. capture    in one step of the event loop: every message on the disk that no record has, and everything that was
                  written beside the logs (`log/remote/changes`). What a kill at this moment would leave is the state
                  that the record leads to; nothing is left to a later record that belongs to this one.
    2. append     in the thread: the record is created under the next number. An answer that does not come is no
                  failure: the same record is sent again until it is known that it is there, or that another process has
                  the number. Nothing else is captured before that.
    3. settle     in the event loop, and only when the record is known to exist: the watermarks go up, so that messages
                  can be seen; the receipts that were there at the capture are settled, so that OKs leave; the channels
                  get the messages.

A process whose number somebody else has was replaced: it settles its receipts with an error, and ends. Its successor
has claimed the log with that number, so it has read every record that was settled here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.topic.receipt import CallReceipt
from lapwing.errors import Fenced, LapwingError, NotReplicated, RemoteError
from lapwing.log.remote.changes import Changes, fresh
from lapwing.log.remote.mirror import Plan, write_plan
from lapwing.log.remote.record import CheckpointMade, FileWritten, LogTrimmed, Messages, Part, Record, Stored
from lapwing.log.replicated import ReplicatedLog
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic.receipt import Receipt
    from lapwing.broker.topic.topic import Topic
    from lapwing.log.remote.engines import Engine
    from lapwing.log.remote.owner import Owned
    from lapwing.log.remote.remote_log import CheckpointWriter
    from lapwing.net.logs import Log
    from lapwing.nsqd.remote_engine import RequestCount

_BLOCK: Final = 1 << 20  # bytes of messages that are read at a time
_LARGE_FILE: Final = 1 << 20  # bytes of a small file that has an object of its own
_PROBE: Final = 5.0  # seconds without a record after which to look for another owner
_LONGEST_WAIT: Final = 5.0  # seconds between two attempts
_CHECKPOINT_AGE: Final = 600.0  # seconds
_CHECKPOINT_RETRY: Final = 10.0
_STOP: Final = 10.0  # seconds that a stop gives an engine which does not answer
_AUDIT: Final = ("audit", "audit.1")  # files that checkpoints have, and records do not


@dataclass(slots=True)
class _Batch:
    """The content of one record."""

    parts: list[Part]
    ends: list[tuple[Topic, ReplicatedLog, int]]  # where each log ended
    waiting: list[_Waiting]
    since: float  # the loop's time of the oldest thing in it
    record: Record | None = None
    appended: bool = False
    plan: bool = False  # whether a checkpoint is to cover this record
    made: _Made | None = None  # the checkpoint that it makes count


@dataclass(slots=True)
class _Made:
    """A checkpoint that is written, but does not count yet."""

    writer: CheckpointWriter
    part: CheckpointMade
    stored: list[Stored]
    unused: list[str]
    first: bool  # of this process


@dataclass(slots=True)
class _Waiting:
    """Receipts, and since when they wait (the loop's time)."""

    since: float
    receipts: list[tuple[Receipt, int]] = field(default_factory=list)


class Replicator:
    """Writes records, and settles the receipts that wait for them.

    `observe` gets the seconds each record took. `on_fenced` is called once, when this node was replaced.
    """

    def __init__(
        self,
        broker: Broker,
        owned: Owned,
        changes: Changes,
        count: RequestCount,
        open_engine: Callable[[], Engine],
        *,
        schedule_flush: Callable[[], None],
        observe: Callable[[float], None],
        now: Callable[[], int],
        log: Log,
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        options = broker.options
        self._broker = broker
        self._owned = owned
        self._remote = owned.remote
        self._mirror = owned.mirror  # of the thread that appends
        self._changes = changes
        self._count = count
        self._open_engine = open_engine
        self._schedule_flush = schedule_flush
        self._observe = observe
        self._now = now
        self._log = log
        self._on_fenced = on_fenced
        self._interval = options.remote_interval / 1e9
        self._lag = options.remote_lag / 1e9
        self._batch_bytes = options.remote_batch_bytes
        self._checkpoint_bytes = options.remote_checkpoint
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="remote")
        self._checkpoints = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._wake = asyncio.Event()
        self._receipts: list[_Waiting] = []  # that no batch has yet
        self._behind: dict[Topic, float] = {}  # topics whose logs may have more than the records, and since when
        self._batch: _Batch | None = None  # under way
        self._running: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._give_up = 0.0  # the loop's time when a stop ends without the engine
        self._next = 0.0  # the loop's time before which no record is written that nobody waits for
        self._firsts: dict[str, int] = {}  # where each log begins, as the records have it, by identity
        self._audit: dict[str, int] = {}  # when audit files were changed that a checkpoint has, ns
        self._checkpointing = False
        self._checkpoint_at = self._loop.time() + _CHECKPOINT_AGE
        self._wanted = False  # a checkpoint
        self._made: _Made | None = None
        self._first = True  # whether this process has made no checkpoint
        self._bytes_since = 0  # of records, since the last checkpoint
        self._noted_since: float | None = None  # when changes were first seen that no batch has
        self.fenced: Fenced | None = None
        self.problem: str | None = None  # why the last attempt failed, until one succeeds
        self.place = owned.remote.engine.place
        self.epoch = owned.remote.epoch
        self.index = owned.remote.index
        self.checkpoints = 0

    def start(self) -> None:
        """Begin to write records."""
        self._running = self._loop.create_task(self._run())
        self._probing = self._loop.create_task(self._probe())

    # --- the interface that `nsqd/sync.Syncer` has ---------------------------------------------------------------

    def kick(self) -> None:
        """Write a record as soon as the one under way is done: receipts wait for it."""
        self._collect()
        self._wake.set()

    async def sync(self, topic: Topic) -> LapwingError | None:
        """Return when a record has everything up to now; return the error, if there was one."""
        return await self.settled()

    async def settled(self) -> LapwingError | None:
        """Return when a record has everything up to now; return the error, if there was one."""
        done: asyncio.Future[LapwingError | None] = self._loop.create_future()

        def settle(sequence: int, error: LapwingError | None) -> None:
            if not done.done():
                done.set_result(error)

        self._receipts.append(_Waiting(self._loop.time(), [(CallReceipt(settle), 0)]))
        self._wake.set()
        return await done

    async def sync_all(self) -> None:
        """Sync nothing: after a power loss the remote log counts, not the disk."""

    async def stop(self) -> None:
        """Write what there is, if the engine takes it soon."""
        self._stopping = True
        self._give_up = self._loop.time() + _STOP
        self.note_changes()
        self.kick()
        if self._probing is not None:
            self._probing.cancel()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=2 * _STOP)
        if self._tasks:  # a checkpoint that does not end now counts for nothing, and does no harm
            await asyncio.wait(self._tasks, timeout=_STOP)

    async def release(self) -> None:
        """Write what the end of the broker has left, and release the remote log; afterwards nothing is appended."""
        problem = self.problem or (str(self.fenced) if self.fenced is not None else None)
        if problem is None and self._batch is not None:
            problem = "no answer"
        if problem is None:
            try:
                async with asyncio.timeout(_STOP):
                    await self._release()
            except (LapwingError, OSError, TimeoutError) as error:
                problem = str(error) or "no answer"
        if problem is not None:
            self._log.warn(f"{self.place} is not released: {problem}; on another machine start with --take-over")
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._checkpoints.shutdown(wait=False, cancel_futures=True)

    async def _release(self) -> None:
        for topic in self._broker.topics_in_use():
            self._behind.setdefault(topic, 0.0)
        batch = self._capture(closed=True)

        def write() -> None:
            if batch.parts:
                self._append(batch)
            self._remote.release(now=self._now())
            self._owned.close_cleanly(self._remote.nonce)  # the data path holds what the record has that releases

        await self._loop.run_in_executor(self._thread, write)

    # --- what is to be written ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take over the receipts that wait, with the time: so it is known how long."""
        work = self._broker.work
        if not work.unsynced:
            return
        time = self._loop.time()
        receipts: list[tuple[Receipt, int]] = []
        for topic, some in work.take_unsynced():
            self._behind.setdefault(topic, time)
            receipts.extend(some)
        self._receipts.append(_Waiting(time, receipts))

    def note_changes(self) -> None:
        """Have changes written that nobody waits for, such as finished messages; called before each checkpoint.

        Topics that were written to are looked at again, so that no message is left beyond the watermark whatever became
        of its publisher.
        """
        time = self._loop.time()
        for topic in self._broker.keeper.unindexed:
            if isinstance(topic.log, ReplicatedLog) and topic.log.behind:
                self._behind.setdefault(topic, time)
        if self._changes and self._noted_since is None:
            self._noted_since = time
        if self._changes or self._behind:
            self._wake.set()
        self._refuse_late(time)

    @property
    def _has_work(self) -> bool:
        return bool(self._receipts or self._behind or self._changes or self._made is not None)

    def _capture(self, *, closed: bool = False) -> _Batch:
        """Return all that no record has: the whole of it, at one moment. Raises `LogError`, and nothing is lost.

        With `closed` the broker is closed, and its topics are only read.
        """
        self._collect()
        parts: list[Part] = []
        ends: list[tuple[Topic, ReplicatedLog, int]] = []
        for topic in self._behind:
            log = topic.log
            if isinstance(log, ReplicatedLog) and log.behind and (closed or not topic.exiting):
                parts += fresh(topic.name, log, _BLOCK)
                ends.append((topic, log, log.disk_end))
        times = [each.since for each in self._receipts] + [*self._behind.values()]
        times += [] if self._noted_since is None else [self._noted_since]
        since = min(times, default=self._loop.time())
        # from here on nothing fails: what is taken is in the batch
        parts[:0] = self._changes.take()  # a log has begun before it has messages
        batch = _Batch(parts, ends, self._receipts, since)
        self._receipts, self._behind, self._noted_since = [], {}, None
        if self._wanted:
            self._wanted, batch.plan = False, True
            parts += self._trimmed()
            parts += self._audit_files()
        if self._made is not None:
            batch.made, self._made = self._made, None
            parts.append(batch.made.part)
        return batch

    def _trimmed(self) -> Iterable[Part]:
        """Yield where logs begin that have lost segments since the last checkpoint."""
        known, self._firsts = self._firsts, {}
        for name, topic in self._broker.topics.items():
            log = topic.log
            if self._changes.logs.get(name) == log.identity:
                if log.first > known.get(log.identity, 0):
                    yield LogTrimmed(name, log.identity, log.first)
                self._firsts[log.identity] = log.first

    def _audit_files(self) -> Iterable[Part]:
        for name in _AUDIT:
            path = os.path.join(self._owned.place.path, name)
            with contextlib.suppress(OSError):  # there is none, or it was renamed just now
                changed = os.stat(path).st_mtime_ns
                if self._audit.get(name) != changed:
                    with open(path, "rb") as file:
                        yield FileWritten(name, file.read())
                    self._audit[name] = changed

    # --- writing it --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Write records. Anything unexpected ends the process: an answer might be wrong."""
        try:
            await self._write_records()
        except Exception as error:
            self._log.fatal(f"the remote log cannot be written to: {type(error).__name__}: {error}")
            self._log.drain()
            os._exit(1)

    async def _write_records(self) -> None:
        while self.fenced is None:
            await self._wake.wait()
            self._wake.clear()
            while self._has_work:
                too_soon = self._next - self._loop.time()
                if not self._receipts and not self._behind and too_soon > 0 and not self._stopping:
                    self._loop.call_later(too_soon, self._wake.set)
                    break
                try:
                    batch = self._capture()
                except Exception as error:  # such as a disk that cannot be read: it is tried again
                    self._fail(error)
                    self._loop.call_later(1.0, self._wake.set)
                    break
                if not batch.parts:  # what the receipts wait for is in a record already
                    self._settle(batch)
                    continue
                if not await self._write(batch):
                    return
                self._begin_checkpoint_if_due()
            if self._stopping:
                return

    async def _write(self, batch: _Batch) -> bool:
        """Append a batch, however many attempts that takes, and settle it; return False if that was not possible."""
        self._batch = batch
        wait = 0.05
        failures = 0
        while True:
            began = self._loop.time()
            try:
                await self._loop.run_in_executor(self._thread, self._append, batch)
            except Fenced as error:
                self._end(error)
                return False
            except Exception as error:
                if batch.appended:
                    raise  # the record is there, and what follows went wrong
                failures += 1
                if failures > 1:  # one may be by chance
                    self._fail(error)
                if self._stopping and self._loop.time() > self._give_up:
                    self._fail(error)
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            self._batch = None
            self._observe(self._loop.time() - began)
            self._next = self._loop.time() + self._interval
            self._settle(batch)
            self._heal()
            return True

    def _append(self, batch: _Batch) -> None:
        """Append the record of a batch, in the thread; after an error it is called again. Raises `RemoteError`."""
        if batch.record is None:
            batch.parts = self._with_slices(batch.parts)
            batch.record = self._remote.record(batch.parts, now=self._now())
        if not batch.appended:
            self._remote.append(batch.record)
            batch.appended = True
        self._mirror.appended(batch.record, self._remote)
        if batch.made is not None:
            self._mirror.moved(batch.made.stored)
        if batch.plan:
            plan, writer = self._mirror.plan(), self._remote.checkpoint_writer(self._open_engine())
            self._loop.call_soon_threadsafe(self._begin_checkpoint, plan, writer)

    def _with_slices(self, parts: list[Part]) -> list[Part]:
        """Write what is too much for a record as slices, which it names: so all of it is there, or nothing."""
        if sum(map(_size, parts)) <= self._batch_bytes:
            return parts
        found: list[Part] = []
        run: list[Messages] = []

        def end_run() -> None:
            if run:
                found.append(self._remote.store(run, now=self._now()))
                run.clear()

        for part in parts:
            if isinstance(part, Messages):
                if run and (run[0].log_id != part.log_id or sum(map(_size, run)) + _size(part) > self._batch_bytes):
                    end_run()
                run.append(part)
                continue
            end_run()
            if isinstance(part, FileWritten) and len(part.content) > _LARGE_FILE:
                found.append(self._remote.store_file(part, now=self._now()))
            else:
                found.append(part)
        end_run()
        return found

    def _settle(self, batch: _Batch) -> None:
        """Acknowledge a batch, whose record exists: first it can be seen, then the answers leave."""
        self.index = self._remote.index
        self._bytes_since += sum(map(_size, batch.parts))
        for topic, log, end in batch.ends:
            if not topic.exiting:
                log.raise_end(end)
        for each in batch.waiting:
            self._settle_all(each.receipts, None)
        now = self._now()
        for topic, _, _ in batch.ends:
            try:
                topic.show(now)
            except Exception as error:  # of this topic alone, whatever it is
                self._broker.fail(error)
        if batch.made is not None:
            self._count_checkpoint(batch.made)
        self._schedule_flush()

    def _settle_all(self, receipts: Iterable[tuple[Receipt, int]], error: LapwingError | None) -> None:
        for receipt, sequence in receipts:
            try:
                receipt.settle(sequence, error)
            except Exception as raised:  # of this client alone
                self._loop.call_exception_handler({"message": "a publish could not be answered", "exception": raised})

    # --- the engine is away ------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        text = str(error) if isinstance(error, LapwingError) else f"{type(error).__name__}: {error}"
        if self.problem is None:
            self._log.error(f"the remote log takes nothing: {text}; publishes are refused until it does")
        self.problem = text
        self._broker.set_remote_problem(f"the remote log takes nothing: {text}")

    def _heal(self) -> None:
        if self.problem is not None:
            self._log.info(f"the remote log {self.place} takes records again; publishes are taken")
            self.problem = None
            self._broker.set_remote_problem(None)

    def _refuse_late(self, time: float) -> None:
        """Answer the publishers that have waited too long. What they have published may still become visible.

        What the broker itself publishes waits on: a dead letter that may be there must not be made again.
        """
        late: list[tuple[Receipt, int]] = []
        for each in [*self._receipts, *(self._batch.waiting if self._batch is not None else ())]:
            if time - each.since > self._lag:
                own = [receipt for receipt in each.receipts if isinstance(receipt[0], CallReceipt)]
                late += [receipt for receipt in each.receipts if not isinstance(receipt[0], CallReceipt)]
                each.receipts = own
        if not late:
            return
        problem = self.problem or f"{self.place} has not answered for {self._lag:g} s"
        self._broker.set_remote_problem(f"the remote log takes nothing: {problem}")
        self.problem = problem
        error = NotReplicated(f"{problem}; it is not known whether the messages are kept")
        self._settle_all(late, error)
        self._schedule_flush()

    # --- another owner -----------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Look for another owner whenever nothing was to be appended for a while."""
        while self.fenced is None:
            index = self.index
            await asyncio.sleep(_PROBE)
            if self.index != index or self._batch is not None or self._stopping:
                continue
            try:
                await self._loop.run_in_executor(self._thread, self._remote.probe)
            except Fenced as error:
                self._end(error)
            except RemoteError as error:
                self._log.debug(f"{self.place} does not answer: {error}")

    def _end(self, error: Fenced) -> None:
        """Acknowledge nothing any more: another process has the log."""
        self.fenced = error
        self._collect()
        self._broker.set_remote_problem(str(error))
        batch, self._batch = self._batch, None
        waiting, self._receipts = [*(batch.waiting if batch is not None else ()), *self._receipts], []
        for each in waiting:
            self._settle_all(each.receipts, NotReplicated(str(error)))
        self._on_fenced(error)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _begin_checkpoint_if_due(self) -> None:
        """Have the next record begin a checkpoint, if there is enough for one."""
        time = self._loop.time()
        if self._checkpointing or self._stopping or not self._bytes_since:
            return
        if self._bytes_since >= self._checkpoint_bytes or time >= self._checkpoint_at:
            self._checkpointing = self._wanted = True
            self._wake.set()

    def _begin_checkpoint(self, plan: Plan, writer: CheckpointWriter) -> None:
        task = self._loop.create_task(self._checkpoint(plan, writer, self._bytes_since))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoint(self, plan: Plan, writer: CheckpointWriter, covered: int) -> None:
        """Write a checkpoint beside the records; the next one makes it count."""
        written: list[Stored] = []

        def write() -> CheckpointMade:
            parts, stored = write_plan(plan, writer, now=self._now())
            written.extend(stored)
            return writer.write(parts, now=self._now())

        try:
            part = await self._loop.run_in_executor(self._checkpoints, write)
        except Exception as error:
            self._log.warn(f"{self.place}: no checkpoint could be made: {error}; it is tried again")
            unused = [*plan.unused, *(each.name for each in written)]
            await self._loop.run_in_executor(self._thread, self._mirror.unused.extend, unused)
            self._loop.call_later(_CHECKPOINT_RETRY, self._end_checkpoint)
            writer.engine.close()
            return
        self._bytes_since -= covered
        self._checkpoint_at = self._loop.time() + _CHECKPOINT_AGE
        self._made = _Made(writer, part, written, plan.unused, self._first)
        self._wake.set()

    def _count_checkpoint(self, made: _Made) -> None:
        """Note that a checkpoint counts; what it replaces is deleted."""
        self.checkpoints += 1
        self._first = False

        async def delete() -> None:
            def work() -> None:
                made.writer.delete_replaced(older_by=1 if made.first else None, unused=made.unused)

            try:
                await self._loop.run_in_executor(self._checkpoints, work)
            except Exception as error:  # the next checkpoint deletes the records; slices stay
                self._log.warn(f"{self.place}: what checkpoint {made.writer.index} replaces was not deleted: {error}")
            made.writer.engine.close()
            self._end_checkpoint()

        task = self._loop.create_task(delete())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end_checkpoint(self) -> None:
        self._checkpointing = False

    # --- figures -----------------------------------------------------------------------------------------------

    @property
    def lag(self) -> float:
        """Seconds that the oldest change has waited for its record."""
        times = [each.since for each in self._receipts] + [*self._behind.values()]
        if self._batch is not None:
            times.append(self._batch.since)
        return self._loop.time() - min(times) if times else 0.0

    def figures(self) -> dict[str, Any]:
        """Return what `/stats` shows."""
        requests, size = self._count.hour()
        return {
            "place": self.place,
            "node": self._remote.node,
            "epoch": self.epoch,
            "index": self.index,
            "lag_ms": round(self.lag * 1000),
            "problem": self.problem,
            "fenced": str(self.fenced) if self.fenced is not None else None,
            "requests_last_hour": requests,
            "bytes_last_hour": size,
            "requests": self._count.requests,
            "bytes": self._count.bytes,
            "checkpoints": self.checkpoints,
            "bytes_since_checkpoint": self._bytes_since,
        }


def _size(part: Part) -> int:
    """Return about how many bytes a part takes in a record."""
    if isinstance(part, Messages):
        return len(part.frames) + len(part.rows)
    if isinstance(part, FileWritten):
        return len(part.content)
    return 200
