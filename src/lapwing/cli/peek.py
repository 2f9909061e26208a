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
    from lapwing.tools.reading import Start, line
    from lapwing.tools.time_format import moment

    if sequence is not None and since:
        raise ConfigError("give --from or --since, not both")
    if sequence is not None:
        start = Start(sequence=sequence)
    elif since:
        start = Start(time=moment(since, now=time.time_ns()))
    else:
        start = Start(last=count)
    entries = shared.asked(http, lookupd, lambda cluster: _peek(cluster, topic, start, count))
    if as_json:
        print(json.dumps([entry.as_json(topic) for entry in entries], indent=2, ensure_ascii=False))
        return
    for entry in entries:
        sys.stdout.buffer.write(line(entry, topic, as_json=False, facts=not bodies, terminal=sys.stdout.isatty()))
    if not entries:
        typer.echo(f"no messages of {topic} there", err=True)


async def _peek(cluster: Any, topic: str, start: Any, count: int) -> Any:
    from lapwing.tools.reading import LogReader

    def say(text: str) -> None:
        typer.echo(text, err=True)

    return await LogReader(cluster.http, await cluster.some_nodes(say), topic, say).peek(start, count)
