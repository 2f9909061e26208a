"""The client without `await`, for scripts and for programs without an event loop.

Each object runs the asyncio client in a thread of its own; all methods may be called from any thread.
"""

import asyncio
import atexit
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from lapwing.client.bodies import Body
from lapwing.client.consumer import Consumer, ConsumerStats
from lapwing.client.errors import ClientError
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions, ClientSettings
from lapwing.client.producer import Producer
from lapwing.client.workers import Handler, RunIn
from lapwing.errors import ConfigError
from lapwing.net.event_loop import new_event_loop

P = ParamSpec("P")
T = TypeVar("T")

log: Final = logging.getLogger("lapwing.client")

GRACE: Final = 5.0  # s that unconfirmed publishes have when the program ends without `close`

_threads: set["LoopThread"] = set()  # that run
_ended = False


def _end_threads() -> None:
    """Close what the program left open, and join every thread, so that none runs while the interpreter finalizes.

    The event loop's callbacks would then ask for an interpreter that is gone, which ends the process with SIGSEGV.
    """
    global _ended
    _ended = True
    for thread in list(_threads):
        try:
            thread.stop(GRACE)
        except (Exception, KeyboardInterrupt) as error:
            log.warning("%s was left open and did not close cleanly: %s", thread.name, error)
        thread.join()


# an exit function, and not a hook of `threading`, which would run before the program's own threads and exit functions
# have published their last; functions run in the reverse order of their registration, so this one runs after those
# that were registered since the import
atexit.register(_end_threads)


class LoopThread:
    """An event loop in a thread, which ends before the interpreter does. `finish(seconds)` is run at its end."""

    def __init__(self, name: str, finish: Callable[[float | None], Coroutine[Any, Any, None]]) -> None:
        if _ended:
            raise ClientError("the program is ending: create clients before its exit functions run")
        self.name = name
        self._finish = finish
        self._stopping = threading.Lock()
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` on the loop and return its result."""
        future = self.submit(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run `work` on the loop."""
        if not self.alive:
            work.close()
            raise ClientError("closed, or created before a fork, which does not copy threads: create a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def alive(self) -> bool:
        """Whether it can be called: not after `stop`, nor in a forked process."""
        return self._thread.is_alive()

    def stop(self, seconds: float | None = None) -> None:
        """Run `finish`, and end the thread. Twice is harmless."""
        if not self.alive:  # in a forked process somebody may hold the lock for ever
            _threads.discard(self)
            return
        with self._stopping:
            try:
                if self.alive:
                    self.call(self._finish(seconds))
            finally:
                self.join()

    def join(self) -> None:
        """End the thread, however long its last callback takes."""
        while self.alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            try:
                self._thread.join()
            except KeyboardInterrupt:
                log.warning("%s: a callback has not returned; the program ends when it does", self.name)
        _threads.discard(self)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a blocking client that runs one of its asynchronous client."""

    def call(self: "BlockingClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._client, *args, **kwargs))

    update_wrapper(call, method)
    return call


class BlockingClient:
    """A client that runs in a thread of its own."""

    def __init__(
        self,
        name: str,
        client: Any,
        finish: Callable[[float | None], Coroutine[Any, Any, None]],
        *,
        start: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._client = client
        self._thread = LoopThread(name, finish)
        if start is not None:
            try:
                self._thread.call(start())
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Finish what is under way, close the client, and end the thread. Twice is harmless."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncProducer(BlockingClient):
    """`Producer` for code that blocks; `close` waits for unconfirmed publishes.

        with SyncProducer("127.0.0.1:4150") as producer:
            producer.publish("orders", b"...")
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        route_by_key: bool = False,
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        producer = Producer(nsqd, lookupd=lookupd, route_by_key=route_by_key, options=options, **settings)
        super().__init__("lapwing-producer", producer, producer.stop, start=producer.start)

    publish = blocking(Producer.publish)
    publish_many = blocking(Producer.publish_many)
    request = blocking(Producer.request)
    reply = blocking(Producer.reply)

    def submit(
        self,
        topic: str,
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> "Future[None]":
        """Publish without waiting; the future is done when nsqd has confirmed.

        Publishes leave in the order of the calls, and many together as one batch. `close` waits for them.
        """
        return self._thread.submit(self._client.publish(topic, body, headers=headers, defer=defer, timeout=timeout))

    @property
    def connections(self) -> list[str]:
        """The nsqds that it is connected to."""
        found: list[str] = self._client.connections
        return found


class SyncConsumer(BlockingClient):
    """`Consumer` for code that blocks: with a handler, or iterate, or `get` and `take` with a deadline.

        with SyncConsumer("orders", "billing", handle, nsqd="127.0.0.1:4150", concurrency=10) as consumer:
            consumer.wait()                        # handlers run in threads; until close() or Ctrl-C

        with SyncConsumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
            for message in consumer:
                with message:
                    ...
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        concurrency: int = 1,
        run: RunIn = "auto",
        auto_finish: bool = True,
        on_giving_up: Callable[[Message], Any] | None = None,
        address_filter: Callable[[str], bool] | None = None,
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self._handler = handler
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._closed = False
        self._ended = threading.Event()
        self._consumer = Consumer(
            topic,
            channel,
            handler if handler is not None else self._pass_on,
            nsqd=nsqd,
            lookupd=lookupd,
            concurrency=concurrency,
            run=run if handler is not None else "loop",
            auto_finish=auto_finish and handler is not None,
            on_giving_up=on_giving_up,
            address_filter=address_filter,
            options=options,
            **settings,
        )
        super().__init__("lapwing-consumer", self._consumer, self._finish, start=self._consumer.start)

    def _pass_on(self, message: Message) -> None:
        if self._closed:
            message.release()
        else:
            self._queue.put(message)

    def get(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if there is none within `timeout` seconds or the consumer is closed."""
        if self._handler is not None:
            raise ConfigError("this consumer has a handler: its messages cannot be taken too")
        while not self._closed:
            try:
                message = self._queue.get(timeout=timeout)
            except queue.Empty:
                return None
            if message is None:
                self._queue.put(None)  # for the next reader
            elif not message.answered:
                return message
        return None

    def take(self, count: int, timeout: float) -> list[Message]:
        """Return up to `count` messages that are there; wait for the first at most `timeout` seconds."""
        batch: list[Message] = []
        while (not batch or len(batch) < count) and (message := self.get(0 if batch else timeout)) is not None:
            batch.append(message)
        return batch

    def __iter__(self) -> Iterator[Message]:
        while (message := self.get()) is not None:
            yield message

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer is closed, at most so many seconds; return whether it is."""
        return self._ended.wait(timeout)

    @property
    def connections(self) -> list[str]:
        """The nsqds that it is subscribed to."""
        return self._consumer.connections

    @property
    def stats(self) -> ConsumerStats:
        """Counts so far."""
        return self._consumer.stats

    def close(self) -> None:
        """Send CLS, let handlers finish, release unanswered messages, close. Twice is harmless."""
        self._closed = True
        self._queue.put(None)
        try:
            self._thread.stop()
        finally:
            self._ended.set()

    async def _finish(self, seconds: float | None) -> None:
        """Release what was not answered, and stop. `Consumer.stop` has deadlines of its own."""
        self._closed = True
        if self._handler is None:
            for subscription in list(self._consumer._subscriptions):
                subscription.give_back()
        await self._consumer.stop()
