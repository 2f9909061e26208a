"""to_nsq: publish standard input, message by message."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

from lapwing import names
from lapwing.client.producer import Producer
from lapwing.net.options import option
from lapwing.tools.program import (
    CLIENT_OPTIONS,
    Signals,
    check,
    client_options,
    first_of,
    log_to_stderr,
    run,
    write_line,
)

STDIN: Final = 0
CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ToNsqOptions:
    """The flags of to_nsq."""

    delimiter: str = option("\n", "split standard input at this character", shown='"\\n"')
    nsqd_tcp_address: tuple[str, ...] = option((), "publish to this nsqd (TCP address)")
    producer_opt: tuple[str, ...] = option((), "set an option of the producer: `name,value`", kind=CLIENT_OPTIONS)
    rate: int = option(0, "publish at most this many messages a second; 0: no limit")
    topic: str = option("", "publish to this topic")


class Splitter:
    """Split a stream at a delimiter; drop empty messages; the last needs no delimiter."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._parts: list[bytes] = []  # of the message that is not yet complete

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes."""
        first, *rest = data.split(self._delimiter)
        self._parts.append(first)
        if not rest:
            return []
        whole = [b"".join(self._parts), *rest[:-1]]
        self._parts = [rest[-1]]
        return [message for message in whole if message]

    def end(self) -> list[bytes]:
        """Return the rest at the end of input."""
        last = b"".join(self._parts)
        self._parts = []
        return [last] if last else []


class Throttle:
    """Limit messages per second; at most one second's worth is saved up."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._saved = 1.0
        self._since = now

    def take(self, now: float) -> float:
        """Return the seconds that the next message has to wait, and count it as sent."""
        self._saved = min(float(self._rate), self._saved + (now - self._since) * self._rate) - 1.0
        self._since = now
        return max(0.0, -self._saved / self._rate)


class Input:
    """Standard input or a file, read in a daemon thread, as a read cannot be cancelled."""

    def __init__(self, descriptor: int = STDIN, size: int = CHUNK) -> None:
        self._descriptor = descriptor
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(4)  # chunks read ahead
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        while True:
            self._room.acquire()
            try:
                chunk: bytes | OSError = os.read(self._descriptor, self._size)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # the program has ended meanwhile
                return
            if not chunk or isinstance(chunk, OSError):
                return

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield input until it ends."""
        while chunk := await self._chunks.get():
            if isinstance(chunk, OSError):
                raise chunk
            self._room.release()
            yield chunk


def publish_stdin(options: ToNsqOptions) -> int:
    """Publish until the end of input or a signal; return the exit status."""
    check(options.topic, "--topic required")
    check(names.valid(options.topic), f"--topic {options.topic!r} is not a topic name")
    delimiter = os.fsencode(options.delimiter)
    check(len(delimiter) == 1, "--delimiter must be a single byte")
    check(options.nsqd_tcp_address, "--nsqd-tcp-address required")
    check(options.rate >= 0, "--rate must not be negative")
    log_to_stderr()
    return run(lambda signals: _publish_stdin(options, delimiter, signals))


async def _publish_stdin(options: ToNsqOptions, delimiter: bytes, signals: Signals) -> int:
    settings = client_options(options.producer_opt, tool="to_nsq")
    producers = [Producer(address, options=settings) for address in dict.fromkeys(options.nsqd_tcp_address)]
    try:
        await first_of(signals.stop.wait(), _copy(options, Splitter(delimiter), producers))
    finally:
        await asyncio.gather(*(producer.stop(timeout=5.0) for producer in producers), return_exceptions=True)
    return 0


async def _copy(options: ToNsqOptions, splitter: Splitter, producers: list[Producer]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(producer.start() for producer in producers))
    if options.rate:
        write_line(f"Throttling messages rate to max:{options.rate}/second")
    throttle = Throttle(options.rate, loop.time()) if options.rate else None

    async def publish(messages: list[bytes]) -> None:
        # sent in order, confirmed together: messages before a refused one are published
        futures = [producer.submit(options.topic, message) for message in messages for producer in producers]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def publish_paced(messages: list[bytes]) -> None:
        if throttle is None:
            for batch in _batches(messages):
                await publish(batch)
            return
        for message in messages:
            await asyncio.sleep(throttle.take(loop.time()))
            await publish([message])

    async for chunk in Input().chunks():
        await publish_paced(splitter.feed(chunk))
    await publish_paced(splitter.end())


def _batches(messages: list[bytes], size: int = 1000) -> Iterator[list[bytes]]:
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
