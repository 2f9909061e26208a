"""lapwing channels: list channels."""

import json
from typing import Annotated, Any

import typer

from lapwing.cli import shared
from lapwing.errors import LapwingError

app = shared.app()


@app.command(epilog="Example: lapwing channels orders --rates")
def channels(
    topic: Annotated[str, typer.Argument(help="Only those of this topic.")] = "",
    rates: Annotated[bool, typer.Option("--rates", help="Look for a second, and show rates too.")] = False,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """List channels: what waits, what is in flight or deferred, how old the oldest is, and who consumes."""
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens

    before, picture = shared.asked(
        http, lookupd, lambda cluster: cluster.look_twice(apart=1.0 if rates else 0.0, ages=True))
    if topic and topic not in picture.topics:
        raise LapwingError(f"no topic {topic!r}; there are: {', '.join(picture.topics) or 'none'}")
    found = rates_between(before, picture) if rates else None
    if as_json:
        print(json.dumps([_told(channel, picture, found) for channel in picture.channels(topic)], indent=2))
    else:
        screens.console().print(screens.channels_table(picture, found, topic=topic, with_topic=not topic))
    for error in picture.errors:
        typer.echo(error, err=True)


def _told(channel: dict[str, Any], picture: Any, found: Any) -> dict[str, Any]:
    key = (channel["topic_name"], channel["channel_name"])
    flow = (found or {}).get(key)
    rates = {"in_per_second": flow and round(flow.arriving, 1), "out_per_second": flow and round(flow.leaving, 1)}
    return {"topic": key[0], "channel": key[1], "depth": channel["depth"], "in_flight": channel["in_flight_count"],
            "deferred": channel["deferred_count"], "requeued": channel["requeue_count"],
            "timed_out": channel["timeout_count"], "messages": channel["message_count"],
            "oldest_seconds": picture.ages.get(key), "clients": channel["client_count"], "paused": channel["paused"],
            **(rates if found is not None else {})}
