"""An application: several consumers and a producer in one process, declared by decorators."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, Unpack, cast

from lapwing import durations
from lapwing.client.address import Address, listed
from lapwing.client.bodies import Body
from lapwing.client.bodies import encode as encode_body
from lapwing.client.channel_settings import ChannelSettings, Scheduled, SettingsKeeper, as_sent
from lapwing.client.consumer import Consumer
from lapwing.client.errors import ClientError
from lapwing.client.handlers import BoundInProcess, bind
from lapwing.client.headers import CONTENT_TYPE
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions, ClientSettings, check_name
from lapwing.client.producer import Producer
from lapwing.client.workers import Handler, RunIn, where_to_run
from lapwing.errors import ConfigError
from lapwing.net.event_loop import new_event_loop

log: Final = logging.getLogger("lapwing.app")

_NSQD: Final = "127.0.0.1:4150"
_LONGEST: Final = 3600.0  # s, that a plain NSQ server may be asked to wait

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B", bound=Body | Message)


@dataclass(frozen=True, slots=True)
class Declared:
    """A consumer as its decorator declares it."""

    topic: str
    channel: str
    handler: Handler  # of a message
    concurrency: int
    run: RunIn
    options: ClientOptions
    settings: dict[str, Any]  # of the channel
    on_giving_up: Callable[[Message], Any] | None


class _AppConsumer(Consumer):
    """A consumer that applies the settings of its channel on each nsqd before it subscribes there."""

    def __init__(self, declared: Declared, keeper: SettingsKeeper, nsqd: Iterable[str], lookupd: Iterable[str]) -> None:
        super().__init__(
            declared.topic,
            declared.channel,
            declared.handler,
            nsqd=nsqd,
            lookupd=lookupd,
            concurrency=declared.concurrency,
            run=declared.run,
            on_giving_up=declared.on_giving_up,
            options=declared.options,
        )
        self._settings = declared.settings
        self._keeper = keeper

    async def _subscribe(self, address: Address) -> Awaitable[str]:
        await self._keeper.apply(address, self.topic, self.channel, self._settings)
        return await super()._subscribe(address)


def _published(
    method: Callable[Concatenate[Producer, P], Coroutine[Any, Any, None]],
) -> "Callable[Concatenate[App, P], Coroutine[Any, Any, None]]":
    """Return the method of `App` that is one of its producer."""

    def call(self: "App", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, None]:
        return method(self.producer, *args, **kwargs)

    return functools.update_wrapper(call, method)


class App:
    """Consumers and a producer, started and stopped together.

        app = App("127.0.0.1:4150")                              # or lookupd="127.0.0.1:4161"

        @app.consumer("orders", "billing", concurrency=10, max_attempts=5, retry_first="1s")
        async def bill(order: Order, message: Message) -> None:
            ...                                                  # returning finishes, an exception fails

    `lapwing run shop:app` runs it, as do `app.run()` and `async with app:`; `FastAPI(lifespan=app.lifespan)` runs it
    beside a web service. `setup` is an async context manager around all of it, for a pool of database connections or
    the like. Without addresses they are those of the environment, LAPWING_NSQD_TCP with LAPWING_NSQD_HTTP, or
    LAPWING_LOOKUPD_HTTP, else 127.0.0.1:4150. `nsqd_http` are the HTTP addresses of `nsqd`, where these are not the
    next ports. All other keywords are `ClientOptions` of every consumer and the producer.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        nsqd_http: str | Iterable[str] = (),
        setup: "Callable[[App], AbstractAsyncContextManager[Any]] | None" = None,
        overwrite_settings: bool = False,
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.options = (options or ClientOptions()).but(**settings)
        if not nsqd and not lookupd:
            lookupd = os.environ.get("LAPWING_LOOKUPD_HTTP", "")
            nsqd = os.environ.get("LAPWING_NSQD_TCP", "" if lookupd else _NSQD)
            nsqd_http = nsqd_http or (os.environ.get("LAPWING_NSQD_HTTP", "") if nsqd else "")
        self._nsqd, self._lookupd = listed(nsqd), listed(lookupd)
        Producer(self._nsqd, lookupd=self._lookupd, options=self.options)  # refuses bad addresses now
        self._keeper = SettingsKeeper(
            self.options, nsqd=self._nsqd, nsqd_http=nsqd_http, lookupd=self._lookupd, overwrite=overwrite_settings
        )
        self._setup = setup
        self.declared: list[Declared] = []
        self.scheduled: list[Scheduled] = []
        self.consumers: list[Consumer] = []  # that run
        self._producer: Producer | None = None
        self._running: AsyncExitStack | None = None
        self._exit: asyncio.Event | None = None

    # -- declaring

    def consumer(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int = 1,
        max_in_flight: int | None = None,
        run: RunIn = "auto",
        on_giving_up: Callable[[Message], Any] | None = None,
        **settings: Unpack[ChannelSettings],
    ) -> Callable[[Callable[Concatenate[B, P], R]], Callable[Concatenate[B, P], R]]:
        """Return a decorator that has a function handle the messages of a channel; the function itself is unchanged.

        Its first parameter is the body, decoded into what it is annotated with: `bytes`, `str`, `dict`, a dataclass,
        TypedDict, msgspec Struct or pydantic model. A body that does not decode is rejected. Others may be `message`,
        `producer` and `app`.

        `settings` are those of the channel (`max_attempts`, `retry_first` and so on), applied when it is consumed.
        """
        if self._producer is not None:
            raise ClientError(f"{topic}/{channel}: the app runs already, and its consumers have begun")
        check_name("topic", topic)
        check_name("channel", channel)
        if any((each.topic, each.channel) == (topic, channel) for each in self.declared):
            raise ConfigError(f"{topic}/{channel} has a handler already: use `concurrency` for more at a time")
        most = self.options.max_in_flight if max_in_flight is None else max_in_flight
        options = self.options.but(max_in_flight=max(most, concurrency))
        sent = as_sent(settings)
        options = options.but(**_in_the_client(sent))

        def declare(handler: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[B, P], R]:
            place = where_to_run(cast(Callable[..., Any], handler), run)
            bound = BoundInProcess(handler, self) if place == "processes" else bind(handler, self)
            self.declared.append(
                Declared(topic, channel, bound, concurrency, place, options, sent, on_giving_up)
            )
            return handler

        return declare

    def schedule(
        self,
        when: str,
        *,
        topic: str = "",
        name: str = "",
        body: Body = b"{}",
        zone: str = "UTC",
        misfire: Literal["once", "skip", "all"] = "once",
        run: RunIn = "auto",
        on_giving_up: Callable[[Message], Any] | None = None,
        **settings: Unpack[ChannelSettings],
    ) -> Callable[[Callable[Concatenate[B, P], R]], Callable[Concatenate[B, P], R]]:
        """Return a decorator that has a function run at times, each time in one of all processes that run the app.

        `when` is `every 5m`, `at 2030-01-31T12:00:00Z`, or a cron expression (`30 8 * * MON-FRI`) in the time `zone`.
        The broker publishes `body` to the topic at each time, and the function handles that as a consumer's does, with
        retries and dead letters as `settings` have them. Schedule, topic and channel are called as the function is,
        with `-` for `_`, unless `name` and `topic` are given. The schedule stays when the app stops.
        """
        times = _times(when, zone)

        def declare(handler: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[B, P], R]:
            own = name or getattr(handler, "__name__", "").replace("_", "-")
            check_name("schedule", own)
            if any(each.topic == (topic or own) for each in self.scheduled):
                raise ConfigError(f"topic {topic or own} has a schedule already: its channels get all messages of both")
            data, kind = encode_body(body)
            self.consumer(topic or own, own, run=run, on_giving_up=on_giving_up, **settings)(handler)
            headers = {CONTENT_TYPE: kind} if kind else {}
            self.scheduled.append(Scheduled(own, topic or own, data, headers, misfire, **times))
            return handler

        return declare

    # -- publishing

    @property
    def producer(self) -> Producer:
        """The producer of the app while it runs."""
        if self._producer is None:
            raise ClientError("the app does not run: use `async with app:`, `app.run()` or `lapwing run`")
        return self._producer

    publish = _published(Producer.publish)
    publish_many = _published(Producer.publish_many)

    # -- running

    async def start(self) -> None:
        """Start all consumers. Raises `Unreachable` when none of the given nsqds can be reached."""
        async with self._started(Producer(self._nsqd, lookupd=self._lookupd, options=self.options)) as running:
            running.push_async_callback(self._keeper.close)
            running.push_async_callback(self._stop_consumers)
            await self._keeper.put(self.scheduled)
            for declared in self.declared:
                self.consumers.append(_AppConsumer(declared, self._keeper, self._nsqd, self._lookupd))
            await asyncio.gather(*(consumer.start() for consumer in self.consumers))
        for consumer in self.consumers:
            where = ", ".join(consumer.connections) or "no nsqd yet"
            log.info("consuming %s/%s from %s", consumer.topic, consumer.channel, where)

    @contextlib.asynccontextmanager
    async def _started(self, producer: Producer) -> AsyncIterator[AsyncExitStack]:
        """Set the app up with this producer; what the block raises undoes it."""
        if self._running is not None:
            raise ClientError("the app runs already")
        async with AsyncExitStack() as running:
            self._loop = asyncio.get_running_loop()
            self._producer, self._exit = producer, asyncio.Event()
            running.callback(self._forget)
            if self._setup is not None:
                await running.enter_async_context(self._setup(self))
            running.push_async_callback(producer.stop)
            yield running
            self._running = running.pop_all()

    def _forget(self) -> None:
        self._producer = self._running = self._exit = None

    async def _stop_consumers(self) -> None:
        consumers, self.consumers = self.consumers, []
        await asyncio.gather(*(consumer.stop() for consumer in consumers))

    async def stop(self) -> None:
        """Stop the consumers, whose handlers finish first, then the producer. Twice is harmless."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    def exit(self) -> None:
        """Have `run` return; a handler may call it, in any thread."""
        exit_wanted = self._exit
        if exit_wanted is not None:
            self._loop.call_soon_threadsafe(exit_wanted.set)

    async def __aenter__(self) -> "App":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @contextlib.asynccontextmanager
    async def lifespan(self, web: Any = None) -> AsyncIterator[None]:
        """Run beside a web service: `FastAPI(lifespan=app.lifespan)`, and the same with Starlette."""
        async with self:
            yield

    def run(self) -> None:
        """Run until SIGTERM, Ctrl-C or `exit()`; handlers finish first, and a second signal cancels them.

        Only the main thread gets signals: in another one `exit()` ends it.

        Log lines go to stderr unless the program has set up logging.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._run())
        except asyncio.CancelledError:
            raise SystemExit(1) from None  # the second signal

    async def _run(self) -> None:
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None
        main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM) if main else ()
        ended = False

        def end(number: signal.Signals) -> None:
            nonlocal ended
            if ended:
                log.warning("%s again: handlers are cancelled", number.name)
                this.cancel()
                return
            log.info("%s: stopping, handlers finish first", number.name)
            ended = True
            starting.cancel()
            self.exit()

        starting = asyncio.create_task(self.start())
        for number in signals:
            loop.add_signal_handler(number, end, number)
        try:
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.result()
                assert self._exit is not None
                await self._exit.wait()
        finally:
            await self.stop()
            for number in signals:
                loop.remove_signal_handler(number)
        log.info("stopped")


def _times(when: str, zone: str) -> dict[str, str]:
    """Return the times of a schedule as `Admin` takes them. Raises `ConfigError`."""
    kind, _, rest = when.strip().partition(" ")
    if kind == "at":
        return {"at": rest}
    if kind == "every":
        try:
            durations.parse(rest)
        except ValueError as error:
            raise ConfigError(f"schedule {when!r}: {error}") from error
        return {"every": rest}
    if len(when.split()) not in (5, 6):
        raise ConfigError(f"schedule {when!r}: expected 'every 5m', 'at 2030-01-31T12:00:00Z' or a cron expression")
    return {"cron": when, "zone": zone}


def _in_the_client(settings: Mapping[str, Any]) -> ClientSettings:
    """Return the options that stand in for a channel's settings on a server that keeps none."""
    options: ClientSettings = {}
    if "max_attempts" in settings:
        options["max_attempts"] = settings["max_attempts"]
    if "retry_first" in settings:
        options["default_requeue_delay"] = min(durations.parse(settings["retry_first"]) / 1e9, _LONGEST)
    if "retry_max" in settings:
        options["max_requeue_delay"] = min(durations.parse(settings["retry_max"]) / 1e9, _LONGEST)
    return options
