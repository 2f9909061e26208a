"""lapwing top: watch the cluster."""

import asyncio
import json
import sys
import time
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Option, command


@command(example="lapwing top --lookupd-http-address 127.0.0.1:4161")
def app(
    interval: Annotated[float, Option(min=0.2, duration=True, help="Time between looks.")] = 1.0,
    count: Annotated[int, Option("--count", "-n", min=0, help="End after this many updates; 0: never.")] = 0,
    rows: Annotated[int, Option(min=1, help="Topics and channels shown at most.")] = 20,
    everything: shared.All = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """Watch topics, channels and pipelines live, the busiest first, until Ctrl-C. Without a terminal: a line a look."""
    shared.asked(cluster, lambda client: _watch(client, interval, count, rows, everything, as_json))


async def _watch(client: Any, interval: float, count: int, rows: int, everything: bool, as_json: bool) -> None:
    from contextlib import ExitStack

    from lapwing.client.cluster_client import UpstreamFailed
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens
    from lapwing.tools.terminal import Screen, Terminal

    async def look() -> Any:
        view = await client.look(ages=True, pipelines=True)
        return view if everything else view.users()

    before = await look()
    if not before.reachable:
        raise UpstreamFailed("", before.errors or ["nsqlookupd knows no nsqd"])
    with ExitStack() as stack:
        screen: Screen | None = None

        def draw(view: Any, rates: Any) -> None:
            assert screen is not None
            terminal = Terminal.of(sys.stdout)
            screen.draw(screens.whole_view(view, rates, terminal, rows=rows, height=terminal.height))

        if Terminal.of(sys.stdout).redraws and not as_json:
            screen = stack.enter_context(Screen(sys.stdout, whole=True))
            draw(before, {})
        looks = 0
        while not count or looks < count:
            await asyncio.sleep(interval)
            view = await look()
            rates = rates_between(before, view)
            if screen is not None:
                draw(view, rates)
            elif as_json:
                print(json.dumps(_document(view, rates)), flush=True)
            else:
                print(f"{time.strftime('%H:%M:%S')} {screens.one_line(view, rates)}", flush=True)
            before = view
            looks += 1


def _document(view: Any, rates: Any) -> dict[str, Any]:
    return {
        "at": round(time.time(), 3),
        "topics": {
            name: {
                "messages": topic["message_count"],
                "depth": topic["depth"],
                "in_per_second": _rounded(rates, (name, ""), "arriving"),
                "out_per_second": _rounded(rates, (name, ""), "leaving"),
            }
            for name, topic in view.topics.items()
        },
        "channels": [
            {
                "topic": channel["topic_name"],
                "channel": channel["channel_name"],
                "depth": channel["depth"],
                "in_flight": channel["in_flight_count"],
                "deferred": channel["deferred_count"],
                "oldest_seconds": view.ages.get((channel["topic_name"], channel["channel_name"])),
            }
            for channel in view.channels()
        ],
        "pipelines": list(view.pipelines or ()),
        "errors": list(view.errors),
    }


def _rounded(rates: Any, key: tuple[str, str], which: str) -> float | None:
    return round(getattr(rates[key], which), 1) if key in rates else None
