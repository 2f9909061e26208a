"""The common parts of the nsq_* programs: checks, log lines, signals, exit codes."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar

from lapwing import __version__
from lapwing.client.options import ClientOptions, parse_option
from lapwing.errors import ConfigError, LapwingError
from lapwing.names import NSQ_VERSION
from lapwing.net.event_loop import new_event_loop
from lapwing.net.options import Kind

_STAMP: Final = "%Y/%m/%d %H:%M:%S"  # begins each line on stderr
_SHORT: Final = {logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}


class Failure(LapwingError):
    """An error that ends the program: one line on stderr, exit code 1."""


def _client_option(text: str) -> tuple[str, ...]:
    try:
        name, value = parse_option(text)
        ClientOptions().but(**{name: value})
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return (text,)


CLIENT_OPTIONS: Final = Kind(
    "option", _client_option, lambda value: tuple(value), ",".join, list, repeatable=True
)  # `name,value`; a bad one is a bad flag


def client_options(texts: Iterable[str], *, tool: str, **fixed: Any) -> ClientOptions:
    """Return the options of a consumer or producer: those of the tool, then those of the operator."""
    settings: dict[str, Any] = {"user_agent": f"{tool}/{NSQ_VERSION} lapwing/{__version__}", **fixed}
    settings.update(parse_option(text) for text in texts)
    try:
        return ClientOptions().but(**settings)
    except ConfigError as error:
        raise Failure(str(error)) from error


def write_line(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{time.strftime(_STAMP)} {text}\n")
    sys.stderr.flush()


class _Lines(logging.Formatter):
    """Log lines of the client library: `2026/11/15 06:46:22 INF    1 [topic/channel] (host:port) text`."""

    def format(self, record: logging.LogRecord) -> str:
        level = _SHORT.get(record.levelno, record.levelname[:3])
        text = record.getMessage()
        return f"{time.strftime(_STAMP, time.localtime(record.created))} {level} {1:4d} {text}"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write the log of the client library to stderr."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_Lines())
    client = logging.getLogger("lapwing.client")
    client.handlers = [lines]
    client.setLevel(level)
    client.propagate = False


def check(holds: object, text: str) -> None:
    """Raise `Failure` with `text` unless the condition holds."""
    if not holds:
        raise Failure(text)


def check_addresses(nsqds: Iterable[str], lookupds: Iterable[str], *, nsqd_flag: str = "--nsqd-tcp-address") -> None:
    """Raise `Failure` unless exactly one kind of address is given."""
    check([*nsqds, *lookupds], f"{nsqd_flag} or --lookupd-http-address required")
    check(not ([*nsqds] and [*lookupds]), f"use {nsqd_flag} or --lookupd-http-address not both")


class Signals:
    """Signals of the operator, from now on: SIGINT and SIGTERM end, SIGHUP begins new files."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hangup = asyncio.Event()
        self.hangup_stops = True  # a closed terminal ends a tool; one with files rotates them instead
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _hung_up(self) -> None:
        (self.stop if self.hangup_stops else self.hangup).set()


def run(work: Callable[[Signals], Awaitable[int]]) -> int:
    """Run a tool until it is done or a signal ends it; return the exit status."""

    async def with_signals() -> int:
        return await work(Signals())

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(with_signals())
    except KeyboardInterrupt:
        return 0


async def first_of(*works: Awaitable[Any]) -> None:
    """Wait for the first of `works`, cancel the others, and raise the error of one that failed."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                if not task.done():
                    await task
    for task in done:
        task.result()


AnyOptions = TypeVar("AnyOptions")


def end(tool: str, options: AnyOptions, work: Callable[[AnyOptions], int]) -> NoReturn:
    """Run `work`, or print the version, and end the program. An error is one line, and exit status 1."""
    if getattr(options, "version", False):
        print(f"{tool} v{NSQ_VERSION}")
        sys.exit(0)
    try:
        sys.exit(work(options))
    except (LapwingError, OSError) as error:
        write_line(str(error))
        sys.exit(1)
