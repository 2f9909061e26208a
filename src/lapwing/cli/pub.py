"""lapwing pub: publish."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, command
from lapwing.cli.contexts import Context
from lapwing.errors import ConfigError, LapwingError


@command(example="lapwing pub orders '{\"order\": 1}'    or: cat orders.jsonl | lapwing pub orders")
def app(
    topic: shared.Topic,
    bodies: Annotated[
        list[str] | None, Argument(metavar="BODY", help="A message each; without any, the lines of stdin.")
    ] = None,
    file: Annotated[str, Option("--file", "-f", help="Publish the lines of this file.")] = "",
    whole: Annotated[
        bool, Option("--whole", help="Publish stdin or the file as one message instead of one per line.")
    ] = False,
    defer: Annotated[str, Option(help="Deliver only after this time: 30s, 5m.")] = "",
    header: Annotated[
        list[str] | None, Option("--header", "-H", metavar="NAME=VALUE", help="A header of the messages.")
    ] = None,
    cluster: shared.PublishFlags = shared.PublishFlags(),  # noqa: B008  frozen
    timeout: Annotated[
        float, Option(min=0.1, duration=True, help="Time after which an unconfirmed message is an error.")
    ] = 30,
    as_json: shared.Json = False,
) -> None:
    """Publish messages: arguments, or the lines of stdin or of a file. Ends when nsqd has confirmed all of them."""
    from lapwing.client.errors import PublishFailed
    from lapwing.client.format import parse_span
    from lapwing.durations import show

    if bodies and file:
        raise ConfigError("give messages as arguments or with --file, not both")
    if bodies and whole:
        raise ConfigError("--whole is for stdin or --file: an argument is one message already")
    delay = parse_span(defer, "--defer") if defer else 0
    texts = [body.encode("utf-8", "surrogateescape") for body in bodies or ()]
    if whole:
        with _source(file) as source:
            texts = [source.read()]
    if not all(texts):
        raise ConfigError("the message is empty, which nsqd refuses")
    where, headers = shared.addresses(cluster), parse_headers(header or [])
    try:
        count = shared.run(lambda: _publish(topic, texts, headers, file, where, delay / 1e9, timeout))
    except PublishFailed as error:
        if not delay or "timeout" not in error.reason:
            raise
        raise LapwingError(
            f"--defer {defer} is longer than {error.address} allows: start nsqd with --max-defer={show(delay)}, "
            f"a plain NSQ server with --max-req-timeout={show(delay)} ({error.reason})"
        ) from error
    if as_json:
        print(json.dumps({"topic": topic, "published": count}))
    elif sys.stderr.isatty():
        shared.warn(f"{count:,} published")


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    """Open the file, or standard input without one. Raises `ConfigError`."""
    if not file:
        yield sys.stdin.buffer
        return
    try:
        source = open(file, "rb")  # noqa: SIM115  closed below; opening is all that may fail here
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    with source:
        yield source


async def _publish(
    topic: str, texts: list[bytes], headers: dict[str, str], file: str, where: Context, defer: float, timeout: float
) -> int:
    from lapwing import Producer
    from lapwing.tools.publishing import publish_lines

    nsqds, lookupds = shared.tcp_addresses(where)
    async with Producer(
        nsqds, lookupd=lookupds, user_agent="lapwing-pub", publish_timeout=timeout, **shared.client_options(where)
    ) as producer:
        if texts:
            await producer.publish_many(topic, texts, headers=headers, defer=defer or None)
            return len(texts)
        with _source(file) as lines:
            return await publish_lines(producer, topic, lines, headers=headers, defer=defer or None, report=_report)


def _report(count: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{count:,} published ")


def parse_headers(pairs: list[str]) -> dict[str, str]:
    """Return the headers that `NAME=VALUE` pairs name. Raises `ConfigError`."""
    from lapwing.client.headers import encode

    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {pair!r}: expected NAME=VALUE")
        headers[name] = value
    try:
        encode(headers)
    except ValueError as error:
        raise ConfigError(f"--header: {error}") from error
    return headers
