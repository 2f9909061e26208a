"""lapwing topics: list topics."""

import json
from typing import Annotated, Any

import typer

from lapwing.cli import shared

app = shared.app()


@app.command(epilog="Example: lapwing topics --rates")
def topics(
    rates: Annotated[bool, typer.Option("--rates", help="Look for a second, and show rates too.")] = False,
    everything: shared.All = False,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """List every topic with what waits in it."""
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens

    before, picture = shared.asked(http, lookupd, lambda cluster: cluster.look_twice(apart=1.0 if rates else 0.0))
    picture = picture if everything else picture.users()
    found = rates_between(before, picture) if rates else None
    if as_json:
        print(json.dumps([_told(name, topic, found) for name, topic in picture.topics.items()], indent=2))
    else:
        screens.console().print(screens.topics_table(picture, found))
    for error in picture.errors:
        typer.echo(error, err=True)


def _told(name: str, topic: dict[str, Any], found: Any) -> dict[str, Any]:
    flow = (found or {}).get((name, ""))
    rates = {"in_per_second": flow and round(flow.arriving, 1), "out_per_second": flow and round(flow.leaving, 1)}
    return {"topic": name, "depth": topic["depth"], "messages": topic["message_count"], "paused": topic["paused"],
            "channels": [channel["channel_name"] for channel in topic["channels"]],
            "nodes": [node["node"] for node in topic["nodes"]], **(rates if found is not None else {})}
