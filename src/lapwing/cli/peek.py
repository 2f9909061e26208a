"""lapwing peek: look into a topic's log."""

import json
import sys
import time
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Option, command
from lapwing.errors import ConfigError, LapwingError


@command(example="lapwing peek orders --since 1h --count 5 --json")
def app(
    topic: shared.Topic,
    count: Annotated[int, Option("--count", "-n", min=1, help="Show at most this many messages.")] = 10,
    sequence: Annotated[int | None, Option("--from", min=0, help="Begin at this sequence.")] = None,
    since: Annotated[str, Option(help="Begin at this time: 10m (ago), earliest, 2026-11-15T09:30:00.")] = "",
    key: Annotated[str, Option(help="Show only messages that have this key.")] = "",
    key_from: Annotated[str, Option(help="Where the key is: header:NAME, or json:/POINTER.")] = "header:key",
    bodies: Annotated[bool, Option("--bodies", help="Show only the bodies, as they are.")] = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """Show messages of a topic's log, the newest unless --from or --since is given. Nothing is consumed.

    A terminal gets a heading for each message (sequence, time, node, headers) and indented JSON; a pipe gets a line
    for each message. Entries of Redis clients are shown as a JSON object of their fields. With --key, up to 20,000
    messages of each node are searched.
    """
    from lapwing.client.format import parse_time
    from lapwing.tools.message_format import MessagePrinter
    from lapwing.tools.terminal import Terminal

    if sequence is not None and since:
        raise ConfigError("give --from or --since, not both")
    time_from = parse_time(since, now=time.time_ns()) if since else None
    messages = shared.asked(cluster, lambda client: _read(client, topic, count, sequence, time_from, key, key_from))
    if as_json:
        print(json.dumps([message.as_json(topic) for message in messages], indent=2, ensure_ascii=False))
        return
    terminal = sys.stdout.isatty()
    printer = MessagePrinter(topic, sys.stdout.buffer, Terminal.of(sys.stdout), is_terminal=terminal,
                             details=not bodies, pretty=terminal and not bodies, raw=bodies)  # fmt: skip
    for message in messages:
        printer.print(message)
    if not messages:
        shared.warn(f"topic {topic} has no messages {f'of the key {key} ' if key else ''}there")


async def _read(
    client: Any, topic: str, count: int, sequence: int | None, since: int | None, key: str, key_from: str
) -> Any:
    from lapwing import LogReader
    from lapwing.client.log_reader import NoTopic

    try:
        reader = LogReader(topic, cluster=client, notice=shared.warn)
        if key:
            return await reader.find(key, count, key_from=key_from, sequence=sequence, since=since)
        return await reader.read(count, sequence=sequence, since=since)
    except NoTopic as error:
        raise LapwingError(f"{error}; `lapwing topics` lists them") from error
