"""lapwing tail: follow a topic."""

import asyncio
import os
import sys
import time
from contextlib import aclosing
from typing import Annotated, Any

import typer

from lapwing.cli import shared
from lapwing.errors import ConfigError

app = shared.app()


@app.command(epilog="Example: lapwing tail orders --since 10m")
def tail(
    topic: shared.Topic,
    since: Annotated[str, typer.Option(help="Begin in the past: 10m, earliest, 2026-11-15T09:30:00.")] = "",
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many of the newest messages.")] = 0,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for what is published next.")] = True,
    count: Annotated[int, typer.Option(min=0, help="End after so many messages; 0: never.")] = 0,
    facts: Annotated[bool, typer.Option("--facts", help="Sequence, time and headers before each message.")] = False,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """Follow a topic by reading its log: nothing is consumed, no channel is made, nobody notices.

    A plain NSQ server has no log to read; its messages are followed through a channel that vanishes with us.
    """
    from lapwing.client.format import parse_time
    from lapwing.client.log_reader import NoLog

    if since and last:
        raise ConfigError("give --since or --last, not both")
    start = {"since": parse_time(since, now=time.time_ns())} if since else {"last": last}
    try:
        shared.asked(http, lookupd, lambda cluster: _tail(cluster, topic, start, follow, count, facts, as_json))
    except NoLog:
        if since or last or not follow:
            raise
        typer.echo("plain NSQ server: following through an ephemeral channel", err=True)
        shared.asked(http, lookupd, lambda cluster: _through_channel(cluster, topic, count, as_json))


async def _tail(
    cluster: Any, topic: str, start: dict[str, int], follow: bool, count: int, facts: bool, as_json: bool
) -> None:
    from lapwing import LogReader
    from lapwing.tools.message_format import line

    reader = LogReader(topic, cluster=cluster, notice=shared.warn)
    terminal, out = sys.stdout.isatty(), sys.stdout.buffer
    if not follow:
        for message in await reader.read(count or 1_000_000, **start):
            out.write(line(message, topic, as_json=as_json, details=facts, terminal=terminal))
        out.flush()
        return
    shown = 0
    async with aclosing(reader.follow(**start)) as stream:
        async for message in stream:
            out.write(line(message, topic, as_json=as_json, details=facts, terminal=terminal))
            out.flush()
            shown += 1
            if count and shown >= count:
                return


async def _through_channel(cluster: Any, topic: str, count: int, as_json: bool) -> None:
    import json

    from lapwing import Consumer
    from lapwing.tools.message_format import delivered_json, printable

    shared.tell_of_trouble()
    addresses = [node.tcp_name for node in (await cluster.nodes(topics=False)).value]
    channel = f"tail{os.getpid()}#ephemeral"
    shown = 0
    async with Consumer(topic, channel, nsqd=addresses, max_in_flight=200, max_attempts=0) as consumer:
        async for message in consumer:
            with message:
                line = json.dumps(delivered_json(message)).encode() if as_json else message.body
                sys.stdout.buffer.write((printable(line) if sys.stdout.isatty() and not as_json else line) + b"\n")
                sys.stdout.buffer.flush()
            shown += 1
            if count and shown >= count:
                return
            await asyncio.sleep(0)
