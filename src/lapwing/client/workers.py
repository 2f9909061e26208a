"""Run handlers on the event loop, in threads, or in processes. A handler never delays a connection."""

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
from typing import Any, Final, Literal, get_args

from lapwing.client.message import ENDS, Hold, Message, Reject, Requeue, text_of
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

RunIn = Literal["auto", "loop", "threads", "processes"]
Handler = Callable[[Message], Any]

SLICE: Final = 0.005  # s that handlers may run before the event loop has its turn


class AnswerPolicy:
    """Answer messages by the outcome of their handlers."""

    def __init__(
        self, channel: str, *, max_attempts: int, auto_finish: bool, giving_up: Callable[[Message], Any] | None
    ) -> None:
        self._channel = channel
        self.max_attempts = max_attempts or 1 << 62
        self.auto_finish = auto_finish
        self._giving_up = giving_up
        self._informing: set[asyncio.Future[Any]] = set()

    def given_up(self, message: Message) -> bool:
        """Give a message up that was delivered too often, unless the broker does that; return whether it was."""
        source = message._source
        if message._row[1] <= self.max_attempts or source is None or source.limited:
            return False
        self.give_up(message)
        return True

    def give_up(self, message: Message) -> None:
        """Finish a message that was delivered too often, after `on_giving_up` has seen it."""
        log.warning(
            "[%s/%s] (%s) message %s attempted %d times, giving up",
            message.topic, self._channel, message.address, message.id, message.attempts,
        )  # fmt: skip
        if self._giving_up is None:
            message.finish()
            return
        try:
            result = self._giving_up(message)
        except Exception as error:
            self._not_informed(message, error)
            return
        if not inspect.isawaitable(result):
            message.finish()
            return
        informing = asyncio.ensure_future(result)
        self._informing.add(informing)
        informing.add_done_callback(functools.partial(self._informed, message))

    def _informed(self, message: Message, informing: "asyncio.Future[Any]") -> None:
        self._informing.discard(informing)
        if informing.cancelled():
            message.requeue(0, backoff=False)
        elif (error := informing.exception()) is not None:
            self._not_informed(message, error)
        else:
            message.finish()

    def _not_informed(self, message: Message, error: BaseException) -> None:
        log.error("on_giving_up failed for message %s", message.id, exc_info=error)
        message.requeue()

    def failed(self, message: Message, error: BaseException) -> None:
        """Answer a message whose handler raised."""
        where = (message.topic, self._channel, message.address)
        if isinstance(error, Reject):
            why = ": ".join(filter(None, (text_of(error), error.error if isinstance(error.error, str) else "")))
            log.warning("[%s/%s] (%s) rejected message %s: %s", *where, message.id, why)
        elif not isinstance(error, (Requeue, Hold)):
            log.error(
                "[%s/%s] (%s) handler failed for message %s: %s: %s",
                *where, message.id, type(error).__name__, text_of(error), exc_info=error,
            )  # fmt: skip
        answer(message, error)


def ends_task(error: BaseException) -> bool:
    """Return whether an exception of a handler ends this task or the program, and is no failure of the message."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError)  # else something that the handler waited for was cancelled
    return isinstance(error, ENDS) and not (cancelled and task is not None and not task.cancelling())


def answer(message: Message, error: BaseException | None) -> None:
    """Answer a message as its handler ended: whatever it raised, besides `Requeue` and the like, is a failure."""
    if isinstance(error, ENDS):
        message.fail(error)
    else:
        message.answer(error)


class LoopWorkers:
    """Workers that are tasks of the event loop; a handler that does not wait costs no task switch."""

    def __init__(self, handler: Handler, answers: AnswerPolicy, *, concurrency: int) -> None:
        self._handler = handler
        self._answers = answers
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
        """Return the messages that no handler has begun, and forget them."""
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    async def idle(self) -> None:
        """Return when every handler is done and no message waits, or all workers have ended."""
        while (self._busy or self._waiting) and not all(task.done() for task in self._tasks):
            self._calm = asyncio.get_running_loop().create_future()
            await self._calm

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` is one of the workers."""
        return task in self._tasks

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        waiting, handler, answers = self._waiting, self._handler, self._answers
        max_attempts, auto_finish, clock = answers.max_attempts, answers.auto_finish, time.monotonic
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
            source = message._source
            if source is None:
                continue  # its connection is gone; nsqd delivers the message again
            if message._row[1] > max_attempts and not source.limited:
                answers.give_up(message)
                continue
            self._busy += 1
            try:
                result = handler(message)
                if result is not None and inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if ends_task(error):
                    message.release()
                    raise
                answers.failed(message, error)
            else:
                if auto_finish and message._source is not None:
                    message._source = None
                    source.finish(message)
            finally:
                self._busy -= 1
            if clock() > slice_end:
                await asyncio.sleep(0)  # let heartbeats, new messages and FINs pass
                slice_end = clock() + SLICE


class ThreadWorkers:
    """Threads that each take the next message, for handlers that block."""

    def __init__(self, handler: Handler, answers: AnswerPolicy, *, concurrency: int) -> None:
        self._handler = handler
        self._answers = answers
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
        """Return the messages that no handler has begun, and forget them."""
        rest: list[Message] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._queue.get_nowait()
                if message is not None:
                    rest.append(message)
        self._pending -= len(rest)
        return rest

    async def idle(self) -> None:
        """Return when every handler is done and no message waits."""
        while self._pending:
            self._calm = self._loop.create_future()
            await self._calm

    async def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        get, handler, done = self._queue.get, self._handler, self._done
        max_attempts = self._answers.max_attempts
        while (message := get()) is not None:
            outcome: BaseException | None = None
            source = message._source
            if source is not None and (message._row[1] <= max_attempts or source.limited):
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
                except RuntimeError:  # the loop was closed: no answer can be sent
                    return

    def _settle(self) -> None:
        self._scheduled = False  # before looking: later additions schedule again
        done, answers = self._done, self._answers
        while done:
            message, error = done.popleft()
            self._pending -= 1
            source = message._source
            if source is None:
                continue
            if error is not None:
                answers.failed(message, error)
            elif message._row[1] > answers.max_attempts and not source.limited:
                answers.give_up(message)
            elif answers.auto_finish:
                message.finish()
        if not self._pending and self._calm is not None and not self._calm.done():
            self._calm.set_result(None)


async def _awaited(result: Awaitable[Any]) -> None:
    await result


class InProcesses:
    """Run a handler in a pool of processes, with a copy of the message.

    Returning finishes the message; an exception answers it as it does elsewhere. A process that dies costs its messages
    one attempt each, and a new pool is started.
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
        except (SystemExit, KeyboardInterrupt) as error:  # of the worker process, and no reason to end this one
            raise ChildProcessError(f"the handler ended with {type(error).__name__}: {error}") from error
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


def where_to_run(handler: Handler, run: RunIn) -> RunIn:
    """Return where `handler` runs: by default coroutine functions on the loop, others, which may block, in threads.

    Raises `ConfigError` for a handler that cannot be called, or an unknown `run`.
    """
    if not callable(handler):
        raise ConfigError(f"handler is {handler!r}, expected a function or coroutine function of a message")
    if run not in get_args(RunIn):
        raise ConfigError(f"run is {run!r}, expected one of {', '.join(get_args(RunIn))}")
    own = inspect.unwrap(handler)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (own, type(own).__call__)):
        name = getattr(own, "__qualname__", repr(own))
        raise ConfigError(f"{name} is a generator: its body would never run; a handler does not yield")
    waits = inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(type(own).__call__)
    if waits and run == "processes":
        raise ConfigError("run is 'processes', where no event loop runs a coroutine function: a plain one is needed")
    if run != "auto":
        return run
    return "loop" if waits else "threads"
