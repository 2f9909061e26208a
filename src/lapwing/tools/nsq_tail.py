"""nsq_tail: print the messages of topics."""

import asyncio
import os
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from lapwing import names
from lapwing.client.message import Message, Requeue
from lapwing.net.options import option
from lapwing.tools.consuming import ConsumingOptions, consume
from lapwing.tools.program import Signals, check, check_addresses, client_options, log_to_stderr, run

STDOUT: Final = 1
_LATER: Final = 1.0  # seconds until others get what we did not print: at once would bring it back to us, time and again


@dataclass(frozen=True, slots=True)
class NsqTailOptions(ConsumingOptions):
    """The flags of nsq_tail."""

    channel: str = option("", "consume through this channel", shown="tail<6 digits>#ephemeral")
    n: int = option(0, "end after this many messages; 0: run until stopped")
    print_topic: bool = option(False, "print topic name where message was received")
    topic: tuple[str, ...] = option((), "consume this topic")


class Screen:
    """Standard output, shared by all consumers; a message is one write."""

    def __init__(self, limit: int, print_topic: bool, end: Callable[[], object]) -> None:
        self.error: OSError | None = None  # why nothing more can be printed
        self._limit = limit
        self._print_topic = print_topic
        self._end = end
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}
        self._ended = False

    def show(self, topic: str, message: Message) -> None:
        """Print a message, or requeue it if enough are printed."""
        prefix = f"{topic} | ".encode() if self._print_topic else b""
        with self._lock:
            if self._ended:
                raise Requeue(_LATER, backoff=False)
            try:
                _write_all(b"%b%b\n" % (prefix, message.body))
            except OSError as error:
                self._ended, self.error = True, error
                self._end()
                raise Requeue(_LATER, backoff=False) from error
            count = self._shown[topic] = self._shown.get(topic, 0) + 1
            if self._limit and count >= self._limit:
                self._ended = True
                self._end()


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(STDOUT, data) :]


def tail(options: NsqTailOptions) -> int:
    """Print messages until `-n` or a signal; return the exit status."""
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address)
    check(options.topic, "--topic required")
    check(all(names.valid(topic) for topic in options.topic), "invalid topic name")
    channel = options.channel or f"tail{random.randrange(10**6):06d}{names.EPHEMERAL}"
    check(names.valid(channel), "invalid channel name")
    log_to_stderr()
    return run(lambda signals: _tail(replace(options, channel=channel), signals))


async def _tail(options: NsqTailOptions, signals: Signals) -> int:
    loop = asyncio.get_running_loop()
    in_flight = min(options.max_in_flight, options.n) if options.n > 0 else options.max_in_flight
    settings = client_options(options.consumer_opt, tool="nsq_tail", max_in_flight=in_flight)
    end = partial(loop.call_soon_threadsafe, signals.stop.set)
    screen = Screen(max(0, options.n), options.print_topic, end)
    consumers = [
        # in threads, as a blocked stdout must not cost the connection
        options.consumer(topic, partial(screen.show, topic), settings, run="threads")
        for topic in dict.fromkeys(options.topic)
    ]
    await consume(consumers, signals.stop)
    if screen.error is not None:
        sys.stderr.write(f"failed to write to stdout: {screen.error.strerror}\n")
        return 1
    return 0
