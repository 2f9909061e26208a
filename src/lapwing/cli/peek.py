"""lapwing peek: look into a topic's log."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from lapwing.cli import shared
from lapwing.errors import ConfigError

app = shared.app()


@app.command(epilog="Example: lapwing peek orders --since 1h --count 5 --json")
def peek(
    topic: shared.Topic,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many messages.")] = 10,
    sequence: Annotated[int | None, typer.Option("--from", min=0, help="Begin at this sequence.")] = None,
    since: Annotated[str, typer.Option(help="Begin at this time: 10m (ago), earliest, 2026-11-15T09:30:00.")] = "",
    bodies: Annotated[bool, typer.Option("--bodies", help="Only the bodies.")] = False,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """Show messages that lie in a topic's log, the newest unless told otherwise. Nothing is consumed."""
    from lapwing.client.format import parse_time
    from lapwing.tools.message_format import line

    if sequence is not None and since:
        raise ConfigError("give --from or --since, not both")
    time_from = parse_time(since, now=time.time_ns()) if since else None
    messages = shared.asked(http, lookupd, lambda cluster: _read(cluster, topic, count, sequence, time_from))
    if as_json:
        print(json.dumps([message.as_json(topic) for message in messages], indent=2, ensure_ascii=False))
        return
    for message in messages:
        sys.stdout.buffer.write(line(message, topic, as_json=False, details=not bodies, terminal=sys.stdout.isatty()))
    if not messages:
        typer.echo(f"no messages of {topic} there", err=True)


async def _read(cluster: Any, topic: str, count: int, sequence: int | None, since: int | None) -> Any:
    from lapwing import LogReader

    return await LogReader(topic, cluster=cluster, notice=shared.warn).read(count, sequence=sequence, since=since)
