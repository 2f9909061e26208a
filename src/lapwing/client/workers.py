"""Where handlers run: on the event loop, in threads, or in processes. None of them ever holds up a connection."""

import asyncio
import contextlib
import functools
import inspect
import logging
import multiprocessing
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, Literal, Protocol, get_args

from lapwing.client.message import Message, Requeue
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

Place = Literal["auto", "loop", "threads", "processes"]
Handler = Callable[[Message], Any]

SLICE: Final = 0.005  # s that handlers may run before the event loop gets its turn


class Workers(Protocol):
    """A set of workers and the messages that wait for them."""

    def take(self, batch: list[Message]) -> None: ...
    def start(self) -> None: ...
    def waiting(self) -> list[Message]: ...
    async def idle(self) -> None: ...
    async def stop(self) -> None: ...


class Judge:
    """Turns what became of a handler into the answer for its message."""

    def __init__(self, *, max_attempts: int, auto_finish: bool, giving_up: Callable[[Message], Any] | None) -> None:
        self.max_attempts = max_attempts or 1 << 62
        self.auto_finish = auto_finish
        self._giving_up = giving_up
        self._telling: set[asyncio.Future[Any]] = set()

    def give_up(self, message: Message) -> None:
        """Too many attempts: finish it unseen, and tell whoever wants to know."""
        log.warning(
            "[%s] (%s) message %s attempted %d times, giving up",
            message.topic, message.address, message.id.decode("latin-1"), message.attempts,
        )  # fmt: skip
        if self._giving_up is None:
            message.finish()
            return
        try:
            result = self._giving_up(message)
        except Exception as error:
            self._not_told(message, error)
            return
        if not inspect.isawaitable(result):
            message.finish()
            return
        telling = asyncio.ensure_future(result)
        self._telling.add(telling)
        telling.add_done_callback(functools.partial(self._told, message))

    def _told(self, message: Message, telling: "asyncio.Future[Any]") -> None:
        self._telling.discard(telling)
        if telling.cancelled():
            message.requeue(0, backoff=False)
        elif (error := telling.exception()) is not None:
            self._not_told(message, error)
        else:
            message.finish()

    def _not_told(self, message: Message, error: BaseException) -> None:
        log.error("on_giving_up failed for message %s", message.id.decode("latin-1"), exc_info=error)
        message.requeue()

    def failed(self, message: Message, error: BaseException) -> None:
        """The handler raised."""
        if isinstance(error, Requeue):
            message.requeue(error.delay, backoff=error.backoff)
        elif isinstance(error, asyncio.CancelledError):
            message.requeue(0, backoff=False)
        else:
            log.error(
                "[%s] (%s) handler failed for message %s: %s: %s",
                message.topic, message.address, message.id.decode("latin-1"), type(error).__name__, error,
                exc_info=error,
            )  # fmt: skip
            message.requeue()


class LoopWorkers:
    """Workers that are tasks of the event loop; a handler that does not wait costs no task switch."""

    def __init__(self, handler: Handler, judge: Judge, *, concurrency: int) -> None:
        self._handler = handler
        self._judge = judge
        self._concurrency = concurrency
        self._waiting: deque[Message] = deque()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._busy = 0
        self._calm: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def take(self, batch: list[Message]) -> None:
        self._waiting.extend(batch)
        sleepers = self._sleepers
        for _ in range(min(len(sleepers), len(batch))):
            sleeper = sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._work(), name=f"lapwing-worker-{number}") for number in range(self._concurrency)
        ]

    def waiting(self) -> list[Message]:
        """Take back what no handler has begun."""
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    async def idle(self) -> None:
        """Return when every handler is done and nothing waits, or nobody is left to do it."""
        while (self._busy or self._waiting) and not all(task.done() for task in self._tasks):
            self._calm = asyncio.get_running_loop().create_future()
            await self._calm

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether `task` is one of the workers."""
        return task in self._tasks

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        worker = asyncio.current_task()
        assert worker is not None
        waiting, handler, judge = self._waiting, self._handler, self._judge
        max_attempts, auto_finish, clock = judge.max_attempts, judge.auto_finish, time.monotonic
        slice_end = clock() + SLICE
        while True:
            if not waiting:
                if self._calm is not None and not self._busy and not self._calm.done():
                    self._calm.set_result(None)
                sleeper = loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                slice_end = clock() + SLICE
                continue
            message = waiting.popleft()
            desk = message._desk
            if desk is None:
                continue  # its connection is gone, nsqd delivers it again
            if message._row[1] > max_attempts:
                judge.give_up(message)
                continue
            self._busy += 1
            try:
                result = handler(message)
                if result is not None and inspect.isawaitable(result):
                    await result
            except asyncio.CancelledError as error:
                judge.failed(message, error)
                if worker.cancelling():
                    raise
                # otherwise only something that the handler waited for was cancelled
            except BaseException as error:
                judge.failed(message, error)
                if not isinstance(error, Exception):
                    raise
            else:
                if auto_finish and message._desk is not None:
                    message._desk = None
                    desk.finish(message)
            finally:
                self._busy -= 1
            if clock() > slice_end:
                await asyncio.sleep(0)  # heartbeats, new messages and our own FINs want their turn
                slice_end = clock() + SLICE


class ThreadWorkers:
    """Threads that each take the next message; for handlers that block. Nothing is handed over per message but it."""

    def __init__(self, handler: Handler, judge: Judge, *, concurrency: int) -> None:
        self._handler = handler
        self._judge = judge
        self._concurrency = concurrency
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._done: deque[tuple[Message, BaseException | None]] = deque()
        self._scheduled = False
        self._pending = 0
        self._calm: asyncio.Future[None] | None = None
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()

    def take(self, batch: list[Message]) -> None:
        self._pending += len(batch)
        put = self._queue.put
        for message in batch:
            put(message)

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._work, name=f"lapwing-worker-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def waiting(self) -> list[Message]:
        """Take back what no handler has begun."""
        rest: list[Message] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._queue.get_nowait()
                if message is not None:
                    rest.append(message)
        self._pending -= len(rest)
        return rest

    async def idle(self) -> None:
        """Return when every handler is done and nothing waits."""
        while self._pending:
            self._calm = self._loop.create_future()
            await self._calm

    async def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        get, handler, done = self._queue.get, self._handler, self._done
        max_attempts = self._judge.max_attempts
        while (message := get()) is not None:
            outcome: BaseException | None = None
            if message._desk is not None and message._row[1] <= max_attempts:
                try:
                    result = handler(message)
                    if result is not None and inspect.isawaitable(result):  # as of `lambda message: work(message)`
                        asyncio.run_coroutine_threadsafe(_awaited(result), self._loop).result()
                except BaseException as error:
                    outcome = error
            done.append((message, outcome))
            if not self._scheduled:
                self._scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:  # the loop was closed under us: nobody is left to answer to
                    return

    def _settle(self) -> None:
        self._scheduled = False  # before looking: what is added after the look is told again
        done, judge = self._done, self._judge
        while done:
            message, error = done.popleft()
            self._pending -= 1
            if message._desk is None:
                continue
            if error is not None:
                judge.failed(message, error)
            elif message._row[1] > judge.max_attempts:
                judge.give_up(message)
            elif judge.auto_finish:
                message.finish()
        if not self._pending and self._calm is not None and not self._calm.done():
            self._calm.set_result(None)


async def _awaited(result: Awaitable[Any]) -> None:
    await result


class InProcesses:
    """Wraps a handler so that it runs in a pool of processes; it gets the message without its desk.

    What it returns finishes the message, what it raises (`Requeue` too) requeues it. A process that dies costs the
    messages it had one attempt each; the pool is made anew.
    """

    def __init__(self, handler: Handler, *, concurrency: int) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._pool: ProcessPoolExecutor | None = None

    async def __call__(self, message: Message) -> None:
        if self._pool is None:
            # spawned, not forked: a fork would inherit the event loop and its sockets
            self._pool = ProcessPoolExecutor(self._concurrency, multiprocessing.get_context("spawn"))
        pool = self._pool
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._handler, message)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = None
                pool.shutdown(wait=False, cancel_futures=True)
            raise

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def place_of(handler: Handler, place: Place) -> Place:
    """Where `handler` runs by default: coroutine functions on the loop, plain ones, which may block, in threads.

    Raises `ConfigError` for what is no handler, or no place.
    """
    if not callable(handler):
        raise ConfigError(f"handler is {handler!r}, expected a function or coroutine function of a message")
    if place not in get_args(Place):
        raise ConfigError(f"run is {place!r}, expected one of {', '.join(get_args(Place))}")
    waits = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    if waits and place == "processes":
        raise ConfigError("run is 'processes', where no event loop runs a coroutine function: a plain one is needed")
    if place != "auto":
        return place
    return "loop" if waits else "threads"


