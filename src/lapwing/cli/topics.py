"""lapwing topics: list topics."""

import json
import sys
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Option, command


@command(example="lapwing topics --rates")
def app(
    rates: Annotated[bool, Option("--rates", help="Ask twice, a second apart, and show rates too.")] = False,
    everything: shared.All = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """List topics: messages that wait in them and in their channels, and messages in all."""
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens
    from lapwing.tools.terminal import Terminal

    before, view = shared.asked(cluster, lambda client: client.look_twice(apart=1.0 if rates else 0.0))
    view = view if everything else view.users()
    found = rates_between(before, view) if rates else None
    if as_json:
        print(json.dumps([_document(name, topic, found) for name, topic in view.topics.items()], indent=2))
    else:
        print("\n".join(screens.topics_table(view, found, Terminal.of(sys.stdout))))
    for error in view.errors:
        shared.warn(error)


def _document(name: str, topic: dict[str, Any], found: Any) -> dict[str, Any]:
    from lapwing.tools.screens import waiting

    rate = (found or {}).get((name, ""))
    rates = {"in_per_second": rate and round(rate.arriving, 1), "out_per_second": rate and round(rate.leaving, 1)}
    return {
        "topic": name,
        "waiting": waiting(topic),
        "depth": topic["depth"],
        "messages": topic["message_count"],
        "paused": topic["paused"],
        "channels": [channel["channel_name"] for channel in topic["channels"]],
        "nodes": [node["node"] for node in topic["nodes"]],
        **(rates if found is not None else {}),
    }
