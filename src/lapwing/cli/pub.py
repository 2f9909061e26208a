"""lapwing pub: publish."""

import json
import sys
from typing import Annotated

import typer

from lapwing.cli import shared
from lapwing.errors import ConfigError

app = shared.app()


@app.command(epilog="Example: lapwing pub orders '{\"order\": 1}'    or: cat orders.jsonl | lapwing pub orders")
def pub(
    topic: shared.Topic,
    bodies: Annotated[list[str] | None, typer.Argument(metavar="BODY", help="A message each; or stdin.")] = None,
    file: Annotated[str, typer.Option("--file", "-f", help="Publish the lines of this file.")] = "",
    whole: Annotated[bool, typer.Option("--whole", help="Stdin or the file is one message, not one a line.")] = False,
    defer: Annotated[str, typer.Option(help="Deliver only after so long: 30s, 5m.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="name=value; may be repeated.")] = None,
    tcp: shared.NsqdTcp = None,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until an unconfirmed message is an error.")] = 30,
    as_json: shared.Json = False,
) -> None:
    """Publish messages: arguments, or the lines of stdin or of a file. Ends when nsqd has confirmed all of them."""
    from lapwing.client.format import parse_span

    if bodies and file:
        raise ConfigError("give messages as arguments or with --file, not both")
    if bodies and whole:
        raise ConfigError("--whole is for stdin or --file: an argument is one message already")
    delay = parse_span(defer, "--defer") if defer else 0
    texts = [body.encode("utf-8", "surrogateescape") for body in bodies or ()]
    if whole:
        texts = [_all_of(file)]
    if not all(texts):
        raise ConfigError("an empty message, which nsqd does not take")
    if header:
        count = _with_headers(topic, texts, header, http, delay, whole=whole)
    else:
        direct, discovered = shared.chosen(tcp, lookupd, shared.NSQD_TCP)
        count = shared.run(lambda: _publish(topic, texts, file, direct, discovered, delay / 1e9, timeout))
    if as_json:
        print(json.dumps({"topic": topic, "published": count}))
    elif sys.stderr.isatty():
        typer.echo(f"{count:,} published", err=True)


def _all_of(file: str) -> bytes:
    if not file:
        return sys.stdin.buffer.read()
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error


async def _publish(
    topic: str, texts: list[bytes], file: str, direct: list[str], discovered: list[str], defer: float, timeout: float
) -> int:
    from lapwing import Producer
    from lapwing.tools.publishing import publish_lines

    async with Producer(direct, lookupd=discovered, user_agent="lapwing-pub", publish_timeout=timeout) as producer:
        if texts:
            await producer.publish_many(topic, texts, defer=defer or None)
            return len(texts)
        if not file:
            return await publish_lines(producer, topic, sys.stdin.buffer, defer=defer or None, tell=_tell)
        try:
            source = open(file, "rb")  # noqa: SIM115, ASYNC230  closed below; opening is all that may fail here
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror or error}") from error
        with source:
            return await publish_lines(producer, topic, source, defer=defer or None, tell=_tell)


def _tell(count: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{count:,} published ")


def _with_headers(
    topic: str, texts: list[bytes], pairs: list[str], http: list[str] | None, delay: int, *, whole: bool
) -> int:
    from lapwing.tools.publishing import publish_with_headers

    if not texts:
        raise ConfigError("--header needs the message as an argument, or --whole")
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {pair!r}: expected name=value")
        headers[name] = value
    address = (http or [shared.NSQD_HTTP])[0]
    return shared.run(
        lambda: publish_with_headers(address, topic, texts, headers, defer=delay // 1_000_000 or None))
