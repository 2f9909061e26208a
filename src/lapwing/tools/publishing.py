"""Publish messages from files, pipes and the command line."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import BinaryIO, Final

from lapwing import Producer
from lapwing.tools.to_nsq import Input, Splitter

_READ: Final = 1 << 18
_AHEAD: Final = 20_000  # unconfirmed messages


async def lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file or pipe as they come, without their ends, many at a time; skip empty lines."""
    splitter = Splitter(b"\n")
    async for data in Input(source.fileno(), _READ).chunks():
        yield _without_return(splitter.feed(data))
    yield _without_return(splitter.end())


def _without_return(lines: list[bytes]) -> list[bytes]:
    return [line for line in (each.removesuffix(b"\r") for each in lines) if line]


async def publish_lines(
    producer: Producer,
    topic: str,
    source: BinaryIO,
    *,
    headers: Mapping[str, str] | None = None,
    defer: float | None,
    report: Callable[[int], None],
) -> int:
    """Publish each line and return how many were confirmed. Raises `ClientError` at the first that is not."""
    confirmed = 0
    under_way: set[asyncio.Future[None]] = set()
    async for batch in lines(source):
        sent = [producer.submit(topic, body, headers=headers, defer=defer) for body in batch]
        for future in sent:
            future.add_done_callback(_seen)
        under_way.update(sent)
        while len(under_way) > _AHEAD:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            confirmed += _confirmed(done)
            report(confirmed)
        done = {future for future in under_way if future.done()}
        under_way -= done
        confirmed += _confirmed(done)
        report(confirmed)
    if under_way:
        confirmed += _confirmed((await asyncio.wait(under_way))[0])
    return confirmed


def _seen(future: "asyncio.Future[None]") -> None:
    """Mark a failure as seen: only the first one is reported."""
    if not future.cancelled():
        future.exception()


def _confirmed(futures: set[asyncio.Future[None]]) -> int:
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        raise failures[0]
    return len(futures)
