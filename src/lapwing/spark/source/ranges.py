"""Ranges of logs, read from the brokers block by block."""

import json
import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lapwing.errors import LapwingError
from lapwing.spark.brokers.http import BrokerAway, BrokerExchange, BrokerRefused, RetryPauses, target
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.losses import report
from lapwing.spark.source.offsets import LogRange, Loss

if TYPE_CHECKING:
    from lapwing.spark.source.blocks import RangeBlock

logger = logging.getLogger(__name__)

_LOG_DELETED: Final = ("TOPIC_NOT_FOUND", "LOG_ID_MISMATCH")


class RangeDeleted(Exception):
    """Messages of a range were deleted at the broker since it was planned; the archive has them."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self.start = start
        self.stop = stop


def stream(part: LogRange, options: SourceOptions) -> Iterator["RangeBlock"]:
    """Yield the blocks of a range, each message once; resume where a connection broke.

    Raises `BrokerAway` when the broker stays away, and `DataLoss` for messages that it no longer has or has
    quarantined, unless `losses` tolerates the loss.
    """
    from lapwing.spark.source.blocks import BadBlock, Elsewhere

    reached = part.start
    pauses = RetryPauses(options.access)
    files = options.local_files
    while reached < part.stop:
        try:
            for block in _attempt(part, reached, options, files=files):
                pauses.restart()
                if block.first != reached:
                    raise LapwingError(f"{part}: the broker sent {block.first} where {reached} was expected")
                reached += block.count
                if not block.quarantined:
                    yield block
                    continue
                lost = f"{part}: {block.count} messages from {block.first} on are damaged: {block.quarantined}"
                report([Loss(lost)], options)
            if reached < part.stop:
                raise BrokerAway(part.address, f"the answer ended at {reached}")
        except BrokerRefused as error:
            first = error.details.get("first")
            if options.archive is not None and isinstance(first, int) and first > reached:
                raise RangeDeleted(reached, min(first, part.stop)) from error
            report([Loss(f"{part}: from {reached} on: {error}", deleted=error.code in _LOG_DELETED)], options)
            reached = min(first, part.stop) if isinstance(first, int) and first > reached else part.stop
        except Elsewhere as error:
            logger.debug("%s: from %s on through the network: %s", part, reached, error)
            files = False
        except BrokerAway as error:
            pauses.wait(f"{part}: broken off at {reached}", error)
        except BadBlock as error:
            raise LapwingError(f"{part}: at {reached} the answer is not in the format of ranges: {error}") from error


def stream_all(parts: tuple[LogRange, ...], options: SourceOptions) -> Iterator[tuple[LogRange, "RangeBlock"]]:
    """Yield the blocks of several ranges: of all with one request as far as that goes, of the rest one by one."""
    from lapwing.spark.source.blocks import BadBlock, Elsewhere

    index, reached = 0, parts[0].start
    if len(parts) > 1:
        try:
            with closing(_attempt_all(parts, options)) as blocks:
                for block in blocks:
                    if block.first != reached or block.quarantined:
                        break
                    yield parts[index], block
                    reached += block.count
                    while reached >= parts[index].stop and index + 1 < len(parts):
                        index += 1
                        reached = parts[index].start
        except (BrokerAway, BrokerRefused, Elsewhere, BadBlock) as error:
            logger.debug("%s: from %s on by itself: %s", parts[index], reached, error)
    for part in (replace(parts[index], start=reached), *parts[index + 1 :]):
        for block in stream(part, options):
            yield part, block


def _attempt(part: LogRange, start: int, options: SourceOptions, *, files: bool) -> Iterator["RangeBlock"]:
    parameters = _form(options, files=files)
    parameters |= {"topic": part.topic, "from": start, "to": part.stop, "log_id": part.log_id, "format": "raw"}
    yield from _blocks(BrokerExchange(part.address, options.access, "GET", target("/log/read", parameters)))


def _form(options: SourceOptions, *, files: bool) -> dict[str, str | int | list[str]]:
    """Return the parameters for how messages are sent."""
    parameters: dict[str, str | int | list[str]] = {"headers": str(options.headers).lower(), "positions": "false"}
    if files:
        parameters["files"] = "true"
    if options.access.secret and options.channel:
        parameters["channel"] = options.channel  # a permission may be for this channel alone
    return parameters


def _blocks(exchange: BrokerExchange) -> Iterator["RangeBlock"]:
    from lapwing.spark.source.blocks import read_blocks

    try:
        yield from read_blocks(exchange.read, exchange.fill)
    finally:
        exchange.finish()


def _attempt_all(parts: tuple[LogRange, ...], options: SourceOptions) -> Generator["RangeBlock", None, None]:
    body = json.dumps([[part.topic, part.log_id, part.start, part.stop] for part in parts]).encode()
    path = target("/log/ranges", _form(options, files=options.local_files))
    yield from _blocks(BrokerExchange(parts[0].address, options.access, "POST", path, body))
