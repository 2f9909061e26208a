"""nsq_to_http: send each message to HTTP endpoints."""

import random
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

from lapwing import names
from lapwing.client.message import Message, Requeue
from lapwing.names import NSQ_VERSION
from lapwing.net.client.asynchronous import HttpClient
from lapwing.net.client.message import HttpFailed
from lapwing.net.options import DURATION, Kind, option
from lapwing.tools.consuming import ConsumingOptions, consume
from lapwing.tools.hostpool import pool_of
from lapwing.tools.program import (
    Signals,
    check,
    check_addresses,
    client_options,
    log_to_stderr,
    run,
    write_line,
)
from lapwing.tools.status import Status

FLOAT: Final = Kind("float", float, float, str)


@dataclass(frozen=True, slots=True)
class NsqToHttpOptions(ConsumingOptions):
    """The flags of nsq_to_http."""

    channel: str = option("nsq_to_http", "consume through this channel")
    content_type: str = option("application/octet-stream", "send POST requests with this Content-Type")
    get: tuple[str, ...] = option((), "send a GET request to this address; %s is the message")
    header: tuple[str, ...] = option((), "add this header to every request: `Name: value`")
    http_client_connect_timeout: int = option("2s", "wait this long for an HTTP connection", kind=DURATION)
    http_client_request_timeout: int = option("20s", "wait this long for an HTTP answer", kind=DURATION)
    mode: str = option("hostpool", "choose by round-robin, hostpool or epsilon-greedy; else every address gets all")
    n: int = option(100, "publish with this many requests at a time")
    post: tuple[str, ...] = option((), "send a POST request to this address")
    sample: float = option(1.0, "publish this share of the messages: 0.0 to 1.0", kind=FLOAT)
    status_every: int = option(250, "log the state after this many requests; 0: never")
    topic: str = option("", "consume this topic")


def headers_of(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return names and values of `Name: value`. Raises `Failure`."""
    pairs = []
    for text in texts:
        name, _, value = text.partition(":")
        check(name.strip() and value.strip(), "--header value format should be 'key=value'")
        pairs.append((name.strip(), value.strip()))
    return pairs


def forward(options: NsqToHttpOptions, *, content_type_given: bool = False) -> int:
    """Send until a signal; return the exit status."""
    headers = headers_of(options.header)
    check(options.topic and options.channel, "--topic and --channel are required")
    check(names.valid(options.topic), "invalid topic name")
    check(names.valid(options.channel), "invalid channel name")
    check(not (content_type_given and not options.post), "--content-type only used with --post")
    check(options.content_type, "--content-type requires a value when used")
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address)
    check(options.get or options.post, "--get or --post required")
    check(not (options.get and options.post), "use --get or --post not both")
    for address in options.get:
        check(address.count("%s") == 1, "invalid GET address - must be a printf string")
    check(0.0 <= options.sample <= 1.0, "ERROR: --sample must be between 0.0 and 1.0")
    check(options.n > 0, "-n must be positive")
    log_to_stderr()
    return run(lambda signals: _forward(options, headers, signals))


class Sender:
    """Send a message to the addresses that the mode chooses."""

    def __init__(self, options: NsqToHttpOptions, client: HttpClient) -> None:
        self._options = options
        self._client = client
        self._addresses = list(dict.fromkeys(options.post or options.get))
        self._pool = pool_of(options.mode, self._addresses)
        self._status = Status(options.status_every, "aggregate", write_line)
        every = options.status_every if len(self._addresses) > 1 else 0
        self._each = {address: Status(every, address, write_line) for address in self._addresses}

    async def __call__(self, message: Message) -> None:
        if self._options.sample < 1.0 and random.random() > self._options.sample:
            return
        began = time.monotonic()
        if self._pool is None:
            for address in self._addresses:
                await self._send(address, message)
        else:
            address = self._pool.choose(time.monotonic())
            try:
                seconds = await self._send(address, message)
            except Requeue:
                self._pool.failed(address, time.monotonic())
                raise
            self._pool.succeeded(address, seconds, time.monotonic())
        self._status.done(time.monotonic() - began)

    async def _send(self, address: str, message: Message) -> float:
        began = time.monotonic()
        try:
            if self._options.post:
                answer = await self._client.request("POST", address, body=message.body)
                good = 200 <= answer.status < 300
            else:
                answer = await self._client.request("GET", address.replace("%s", quote_plus(message.body)))
                good = answer.status == 200
        except HttpFailed as error:
            raise self._failed(address, message, str(error)) from error
        if not good:
            raise self._failed(address, message, f"got status code {answer.status}")
        seconds = time.monotonic() - began
        self._each[address].done(seconds)
        return seconds

    def _failed(self, address: str, message: Message, reason: str) -> Requeue:
        write_line(f"ERROR: failed to send message {message.id} to {address}: {reason}")
        return Requeue()


def _all_headers(options: NsqToHttpOptions, given: list[tuple[str, str]]) -> dict[str, str]:
    """Return the operator's headers, and ours for the names that the operator did not give."""
    own = [("User-Agent", f"nsq_to_http v{NSQ_VERSION}")]
    if options.post:
        own.append(("Content-Type", options.content_type))
    chosen = {name.lower(): (name, value) for name, value in [*own, *given]}
    return dict(chosen.values())


async def _forward(options: NsqToHttpOptions, headers: list[tuple[str, str]], signals: Signals) -> int:
    settings = client_options(options.consumer_opt, tool="nsq_to_http", max_in_flight=options.max_in_flight)
    async with HttpClient(
        connect_timeout=options.http_client_connect_timeout / 1e9,
        request_timeout=options.http_client_request_timeout / 1e9,
        headers=_all_headers(options, headers),
        max_connections=options.n,
        follow_redirects=True,
    ) as client:
        consumer = options.consumer(options.topic, Sender(options, client), settings, concurrency=options.n)
        await consume([consumer], signals.stop)
    return 0
