"""lapwing channels: list channels."""

import json
import sys
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, UsageError, command
from lapwing.errors import LapwingError


@command(example="lapwing channels orders --rates")
def app(
    topic: Annotated[str, Argument(help="Only channels of this topic.", complete=shared.known_topics)] = "",
    rates: Annotated[bool, Option("--rates", help="Ask twice, a second apart, and show rates too.")] = False,
    everything: shared.All = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """List channels: messages that wait, are in flight or deferred, the age of the oldest, and the consumers.

    Named consumers (of Redis clients) follow with what each of them holds, and for how long.
    """
    from lapwing.client.cluster_view import rates_between
    from lapwing.tools import screens
    from lapwing.tools.terminal import Terminal

    if "/" in topic:
        raise UsageError(f"{topic} is a channel: give the topic, {topic.partition('/')[0]}")
    before, view = shared.asked(
        cluster, lambda client: client.look_twice(apart=1.0 if rates else 0.0, ages=True, pipelines=True)
    )
    if topic and topic not in view.topics:
        raise LapwingError(f"no topic {topic!r}; there are: {', '.join(view.users().topics) or 'none'}")
    view = view if everything or topic else view.users()
    found = rates_between(before, view) if rates else None
    if as_json:
        print(json.dumps([_document(channel, view, found) for channel in view.channels(topic)], indent=2))
    else:
        terminal = Terminal.of(sys.stdout)
        print("\n".join(screens.channels_table(view, found, terminal, topic=topic, with_topic=not topic)))
        if any("consumers" in channel for channel in view.channels(topic)):
            print("\n".join(["", *screens.consumers_table(view, terminal, topic=topic)]))
        for line in screens.unknown_ages(view):
            shared.warn(line)
    for error in view.errors:
        shared.warn(error)


def _document(channel: dict[str, Any], view: Any, found: Any) -> dict[str, Any]:
    key = (channel["topic_name"], channel["channel_name"])
    rate = (found or {}).get(key)
    rates = {"in_per_second": rate and round(rate.arriving, 1), "out_per_second": rate and round(rate.leaving, 1)}
    return {
        "topic": key[0],
        "channel": key[1],
        "depth": channel["depth"],
        "in_flight": channel["in_flight_count"],
        "deferred": channel["deferred_count"],
        "requeued": channel["requeue_count"],
        "timed_out": channel["timeout_count"],
        "messages": channel["message_count"],
        "oldest_seconds": view.ages.get(key),
        "clients": channel["client_count"],
        **{key: channel[key] for key in ("consumers", "active_consumers") if key in channel},
        "moved_by_pipeline": key in view.pipeline_channels(),
        "paused": channel["paused"],
        **(rates if found is not None else {}),
    }
