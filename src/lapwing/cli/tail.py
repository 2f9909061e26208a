"""lapwing tail: follow a topic."""

import os
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Option, command
from lapwing.cli.sub import consume
from lapwing.errors import ConfigError


@command(example="lapwing tail orders --since 10m")
def app(
    topic: shared.Topic,
    since: Annotated[str, Option(help="Begin in the past: 10m, earliest, 2026-11-15T09:30:00.")] = "",
    last: Annotated[int, Option("--last", "-n", min=0, help="Begin with this many of the newest messages.")] = 0,
    follow: Annotated[
        bool, Option("--follow/--no-follow", help="Wait for new messages; otherwise end at the end of the log.")
    ] = True,
    count: Annotated[int, Option(min=0, help="End after this many messages; 0: never.")] = 0,
    details: Annotated[
        bool, Option("--details", help="Sequence, time and headers before each message; a terminal shows them anyway.")
    ] = False,
    bodies: Annotated[bool, Option("--bodies", help="Only the bodies, as they are; a pipe gets nothing else.")] = False,
    pretty: Annotated[bool, Option("--pretty", help="Indent bodies that are JSON.")] = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """Follow a topic by reading its log. Nothing is consumed and no channel is created.

    Entries of Redis clients are shown as a JSON object of their fields, unless --bodies is given.

    A plain NSQ server has no log to read; its messages are followed through an ephemeral channel.
    """
    from lapwing.client.format import parse_time
    from lapwing.client.log_reader import NoLog
    from lapwing.tools.message_format import MessagePrinter
    from lapwing.tools.terminal import Terminal

    if since and last:
        raise ConfigError("give --since or --last, not both")
    if details and bodies:
        raise ConfigError("give --details or --bodies, not both")
    start = {"since": parse_time(since, now=time.time_ns())} if since else {"last": last}
    terminal = sys.stdout.isatty()
    printer = MessagePrinter(topic, sys.stdout.buffer, Terminal.of(sys.stdout), is_terminal=terminal and not bodies,
                             as_json=as_json, details=details or (terminal and not bodies), pretty=pretty,
                             raw=bodies)  # fmt: skip
    try:
        shared.asked(cluster, lambda client: _tail(client, topic, start, follow, count, printer))
    except NoLog:
        if since or last or not follow:
            raise
        shared.warn("plain NSQ server: following through an ephemeral channel")
        nsqds = shared.asked(cluster, _nsqds)
        where = replace(shared.addresses(cluster), nsqd_tcp=nsqds)
        channel = f"tail{os.getpid()}#ephemeral"
        shared.log_client_warnings()
        shared.run(lambda: consume(topic, channel, count, 200, 0, where, as_json, raw=False))


async def _tail(client: Any, topic: str, start: dict[str, int], follow: bool, count: int, printer: Any) -> None:
    from lapwing import LogReader

    reader = LogReader(topic, cluster=client, notice=shared.warn)
    if not follow:
        for message in await reader.read(count or 1_000_000, **start):
            printer.print(message)
        sys.stdout.buffer.flush()
        return
    shown = 0
    async with aclosing(reader.follow(**start)) as stream:
        with shared.ends_with_reader():
            async for message in stream:
                printer.print(message)
                sys.stdout.buffer.flush()
                shown += 1
                if count and shown >= count:
                    return


async def _nsqds(client: Any) -> list[str]:
    return [node.tcp_name for node in (await client.nodes(topics=False)).value]
