"""lapwing top: watch the cluster."""

import asyncio
import json
import sys
import time
from typing import Annotated, Any

import typer

from lapwing.cli import shared

app = shared.app()


@app.command(epilog="Example: lapwing top --lookupd-http-address 127.0.0.1:4161")
def top(
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between looks.")] = 1.0,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="End after so many looks; 0: never.")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Topics and channels shown at most.")] = 20,
    everything: shared.All = False,
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """Watch topics, channels and pipelines live, the busiest first; Ctrl-C ends. Without a terminal: a line a look."""
    shared.asked(http, lookupd, lambda cluster: _watch(cluster, interval, count, rows, everything, as_json))


async def _watch(cluster: Any, interval: float, count: int, rows: int, everything: bool, as_json: bool) -> None:
    from rich.live import Live

    from lapwing.client.cluster_client import UpstreamFailed
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens

    async def look() -> Any:
        picture = await cluster.look(ages=True, pipelines=True)
        return picture if everything else picture.users()

    before = await look()
    if not before.reachable:
        raise UpstreamFailed("", before.errors or ["nsqlookupd knows no nsqd"])
    console = screens.console()
    live = Live(console=console, auto_refresh=False, screen=True) if screens.redraws(console) and not as_json else None
    looks = 0
    if live is not None:
        live.start()
        live.update(screens.whole_picture(before, {}, rows=rows), refresh=True)
    try:
        while not count or looks < count:
            await asyncio.sleep(interval)
            picture = await look()
            rates = rates_between(before, picture)
            if live is not None:
                live.update(screens.whole_picture(picture, rates, rows=rows), refresh=True)
            elif as_json:
                print(json.dumps(_told(picture, rates)), flush=True)
            else:
                print(f"{time.strftime('%H:%M:%S')} {screens.one_line(picture, rates)}", flush=True)
            before = picture
            looks += 1
    finally:
        if live is not None:
            live.stop()
        sys.stdout.flush()


def _told(picture: Any, rates: Any) -> dict[str, Any]:
    return {
        "at": round(time.time(), 3),
        "topics": {name: {"messages": topic["message_count"], "depth": topic["depth"],
                          "in_per_second": _rounded(rates, (name, ""), "arriving"),
                          "out_per_second": _rounded(rates, (name, ""), "leaving")}
                   for name, topic in picture.topics.items()},
        "channels": [{"topic": channel["topic_name"], "channel": channel["channel_name"], "depth": channel["depth"],
                      "in_flight": channel["in_flight_count"], "deferred": channel["deferred_count"],
                      "oldest_seconds": picture.ages.get((channel["topic_name"], channel["channel_name"]))}
                     for channel in picture.channels()],
        "pipelines": picture.pipelines,
        "errors": list(picture.errors),
    }


def _rounded(rates: Any, key: tuple[str, str], which: str) -> float | None:
    return round(getattr(rates[key], which), 1) if key in rates else None
