"""Alarms: pure rules over a view of the cluster and its history. Each alarm has a text and an advice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from lapwing import names
from lapwing.admin.dead_letters import DEAD_CHANNEL, DeadTopic
from lapwing.admin.history import Age, History
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.format import count, duration, messages, messages_are, several
from lapwing.client.pipeline_status import silent_for

Severity = Literal["error", "warning", "info"]
_ORDER: Final = {"error": 0, "warning": 1, "info": 2}
_NONE: Final[Mapping[str, DeadTopic]] = {}
_REMOTE_LAG: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Alarm:
    """One problem: its severity, its subject, what was seen, what to do, and the page that shows it."""

    severity: Severity
    about: str
    text: str
    advice: str
    link: str  # below the base path


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """The limits beyond which a figure becomes an alarm."""

    age: float = 300.0  # seconds the oldest message may wait
    depth: int = 100  # messages below which a growing channel is no alarm
    growing: float = 300.0  # seconds of growth
    settling: float = 30.0  # seconds that a channel is watched before it lacks a consumer
    keeping_up: float = 30.0  # seconds; a channel whose oldest message is younger keeps up, though it may grow
    stuck: float = 120.0  # seconds without a message finished
    held: float = 900.0  # seconds a named consumer may hold a message
    blocked: float = 300.0  # seconds a key may be blocked


def topic_link(topic: str, channel: str = "") -> str:
    """Return the path of the page of a topic or channel."""
    path = f"/topics/{quote(topic, safe='')}"
    return f"{path}/{quote(channel, safe='')}" if channel else path


def node_link(name: str) -> str:
    """Return the path of the page of a node."""
    return f"/nodes/{quote(name, safe='[]:')}"


def alarms(
    cluster_view: ClusterView, history: History, limits: AlarmLimits, dead: Mapping[str, DeadTopic] = _NONE
) -> list[Alarm]:
    """Return all alarms, the worst first; `dead` are the dead-letter topics."""
    found = [*_of_daemons(cluster_view), *_of_pipelines(cluster_view)]
    fed = cluster_view.pipeline_channels()
    for topic in cluster_view.topics.values():
        if names.own(topic["topic_name"]):
            continue  # lapwing's own topics need no consumer, and their pipelines have alarms of their own
        found += _of_topic(topic)
        letters = dead.get(topic["topic_name"])
        for channel in topic["channels"]:
            key = (topic["topic_name"], channel["channel_name"])
            holds_letters = letters is not None and key[1] == DEAD_CHANNEL
            if (holds_letters or names.dead_letters(*key)) and not channel["client_count"]:
                if letters is not None:  # None: the topic is so new that its letters were not asked for yet
                    found += _of_dead_letters(letters, history.age(channel, cluster_view.at), limits)
            else:
                found += _of_channel(channel, cluster_view, history, limits, fed)
    return sorted(found, key=lambda alarm: (_ORDER[alarm.severity], alarm.about))


def unread(cluster_view: ClusterView, history: History, limits: AlarmLimits) -> int:
    """Return how many messages wait in channels that nobody reads yet; 0 if there are fewer than are worth a word.

    Consumers and pipelines have some time to start, so this is no alarm.
    """
    found = 0
    for channel in cluster_view.users_channels():
        key = (channel["topic_name"], channel["channel_name"])
        if channel["paused"] or channel["client_count"] or names.dead_letters(*key):
            continue
        if not history.moving(key, cluster_view.at, over=limits.stuck):
            found += channel["depth"]
    return found if found >= limits.depth else 0


def _of_daemons(cluster_view: ClusterView) -> Iterator[Alarm]:
    if cluster_view.failure:
        yield Alarm(
            "error",
            "cluster",
            f"Nobody answers: {cluster_view.failure}",
            "Check that the daemons run and that this host can reach their HTTP ports.",
            "/nodes",
        )
    for address, error in cluster_view.lookupds:
        if error:
            yield Alarm(
                "error",
                address,
                f"nsqlookupd {address} does not answer: {error}",
                "Consumers that ask it find no producers. Check the process and the network between.",
                "/lookup",
            )
    if not cluster_view.nodes and any(not error for _, error in cluster_view.lookupds):
        yield Alarm(
            "error",
            "cluster",
            "No nsqd is known: nsqlookupd names none.",
            "Start nsqd with --lookupd-tcp-address=<nsqlookupd's TCP address>; if it runs, look at its log.",
            "/nodes",
        )
    for state in cluster_view.nodes:
        yield from _of_node(state, cluster_view.at)


def _of_node(state: NodeState, now: float) -> Iterator[Alarm]:
    name, link = state.node.name, node_link(state.node.name)
    if state.gone_since:
        text = f"nsqd {name} left nsqlookupd {duration(now - state.gone_since)} ago"
        text += f"; before that it did not answer: {state.error}" if state.error else "."
        advice = "If nobody stopped it on purpose, look at its log: its messages stay on its disk until it is back."
        yield Alarm("error", name, text, advice, link)
    elif state.error:
        text = f"nsqd {name} does not answer{_lasting(state, now)}: {state.error}"
        advice = "Its figures are missing from all sums. Check that the process runs and its HTTP port can be reached."
        yield Alarm("error", name, text, advice, link)
    elif state.health != "OK":
        advice = (
            "A write to its disk failed, so publishers get errors. Free space or repair the disk; "
            "it recovers by itself with the next good write."
        )
        if "taken over by" in state.health:
            advice = "Another process has its remote log, and this one ends. Its clients find the other at nsqlookupd."
        elif "remote log" in state.health:
            advice = (
                "Publishers get errors, consumers get what is replicated. Look at the object store or database, and at "
                "the network to it; it heals by itself."
            )
        yield Alarm("error", name, f"nsqd {name} is unhealthy: {state.health}", advice, link)
    elif state.remote_lag > _REMOTE_LAG:
        text = f"nsqd {name}: its remote log is {state.remote_lag:.0f} s behind."
        yield Alarm("warning", name, text, "Publishers wait for that long. Look at the object store or database.", link)
    if state.node.out_of_date:
        text = f"nsqd {name} runs version {state.node.version}, older than others."
        yield Alarm("info", name, text, "Update it when convenient.", link)


def _lasting(state: NodeState, now: float) -> str:
    seconds = round(now - state.lost_since) if state.lost_since else 0
    return f" for {duration(seconds)}" if seconds >= 10 else ""


def _of_topic(topic: Json) -> Iterator[Alarm]:
    if not (topic["depth"] or topic["paused"]):
        return
    name, link = topic["topic_name"], topic_link(topic["topic_name"])
    if not topic["channels"] and topic["depth"] > 0:
        yield Alarm(
            "warning",
            name,
            f"Topic {name} has no channel: {messages_are(topic['depth'])} buffering.",
            "Create a channel or start a consumer: the first channel gets all of it. "
            "If nobody needs them, empty the topic.",
            link,
        )
    if topic["paused"]:
        waits = f", {messages(topic['depth'])} waiting" if topic["depth"] else ""
        yield Alarm(
            "info", name, f"Topic {name} is paused{waits}.", "Its channels get nothing new until it is unpaused.", link
        )


def _of_channel(
    channel: Json, cluster_view: ClusterView, history: History, limits: AlarmLimits, fed: set[tuple[str, str]]
) -> Iterator[Alarm]:
    depth = channel["depth"]
    if not (depth or channel["in_flight_count"] or channel["paused"]):
        return  # most channels of a large cluster
    key = (channel["topic_name"], channel["channel_name"])
    name, link = "/".join(key), topic_link(*key)
    if channel["paused"]:
        waits = f", {messages(depth)} waiting" if depth else ""
        yield Alarm(
            "info", name, f"Channel {name} is paused{waits}.", "Its consumers get nothing until it is unpaused.", link
        )
        return
    yield from _of_consumers(channel, name, link, limits)
    yield from _of_keys(channel, name, link, limits)
    problem = _channel_problem(channel, key, cluster_view.at, history, limits, fed=key in fed)
    if problem is not None:
        yield Alarm("warning", name, *problem, link)


def _channel_problem(
    channel: Json, key: tuple[str, str], now: float, history: History, limits: AlarmLimits, *, fed: bool
) -> tuple[str, str] | None:
    """Return the worst problem of a channel, and an advice; `fed`: a pipeline moves it."""
    name, depth = "/".join(key), channel["depth"]
    clients = channel["client_count"] + sum(
        each["idle_seconds"] < limits.stuck for each in channel.get("consumers", ())
    )
    if depth > 0 and clients == 0 and not fed and not history.moving(key, now, over=limits.stuck):
        if history.watched(key, now) < limits.settling:
            return None  # consumers connect after a start of the cluster
        return (
            f"Channel {name} has no consumers: {messages_are(depth)} waiting.",
            "Start its consumers. If nobody needs the channel any more, delete it: it keeps its messages on disk.",
        )
    held = channel["in_flight_count"]
    if held > 0 and channel["client_count"] > 0 and history.quiet(key, now, over=limits.stuck):
        return (
            f"Consumers of {name} hold {messages(held)} and have finished none for {duration(limits.stuck)}.",
            "Look at its connections: a consumer may hang, or wait for something that is down.",
        )
    age = history.age(channel, now)
    growth = history.growth(key, now, over=limits.growing) if depth >= limits.depth else None
    if growth and age is not None and (age.at_least or age.seconds >= limits.keeping_up):
        return (
            f"Channel {name} grows: {count(growth)} more than {duration(limits.growing)} ago, "
            f"{messages(depth)} waiting.",
            "Consumers are slower than publishers. Add consumers, raise max-in-flight, or look for errors in them.",
        )
    if depth > 0 and age is not None and age.seconds >= limits.age:
        return (
            f"The oldest message of {name} has waited {spoken_age(age)}.",
            "Consumers do not keep up, or one message fails again and again. Look at requeues and time-outs.",
        )
    return None


def _of_consumers(channel: Json, name: str, link: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield an alarm for named consumers that hold messages for long: they keep them until another one claims them."""
    late = [each for each in channel.get("consumers", ()) if each["oldest_seconds"] >= limits.held]
    if late:
        worst = max(late, key=lambda each: each["oldest_seconds"])
        others = f", and {several(len(late) - 1, 'other consumer')}" if len(late) > 1 else ""
        yield Alarm(
            "warning",
            name,
            f"Consumer {worst['name']} of {name} holds {messages(worst['in_flight_count'])}, the oldest for "
            f"{duration(worst['oldest_seconds'])}{others}.",
            "If it does not come back, claim its messages (on the channel's page, or with XAUTOCLAIM), or delete it "
            "(XGROUP DELCONSUMER).",
            link,
        )


def _of_keys(channel: Json, name: str, link: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield an alarm for a key that is blocked for long: a message of it is not finished, and others wait for that."""
    keys = channel.get("keys") or {}
    oldest = keys.get("oldest")
    if oldest is not None and oldest["seconds"] >= limits.blocked:
        others = f", and {several(keys['blocked'] - 1, 'other key')}" if keys["blocked"] > 1 else ""
        yield Alarm(
            "warning",
            name,
            f"Key {oldest['key']} of {name} is blocked for {duration(oldest['seconds'])} on {oldest['node']}{others}; "
            f"{messages(keys['waiting'])} wait for their keys.",
            "One of its messages fails again and again, waits for a retry, or its consumer hangs: look at the pending "
            "messages. With max_attempts it would be given up.",
            link,
        )


def _of_dead_letters(topic: DeadTopic, age: Age | None, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield the alarms of a dead-letter topic, whose letters wait for somebody and need no consumer.

    Letters are a note, and a warning once nobody has dealt with the oldest for long (`age`).
    """
    link = f"/dead?topic={quote(topic.name, safe='')}"
    for node, task in topic.tasks.items():
        if task["state"] == "failed" or (task["state"] == "running" and task.get("error")):
            verb = "failed" if task["state"] == "failed" else "waits"
            yield Alarm(
                "warning",
                topic.name,
                f"The redrive of {topic.name} on {node} {verb}: {first_line(str(task.get('error') or 'no reason'))}",
                "Repair the cause. Letters that were not redriven are still dead letters.",
                link,
            )
    if topic.letters and not topic.running:
        verb = "waits" if topic.letters == 1 else "wait"
        yield Alarm(
            "warning" if age is not None and age.seconds >= limits.age else "info",
            topic.name,
            f"{several(topic.letters, 'dead letter')} {verb} in {topic.name}.",
            "Look at their errors and repair the cause, then redrive them, or purge what nobody needs.",
            link,
        )


def spoken_age(age: Age) -> str:
    """Return `5m 3s`, or `more than 5m 3s` if the message is older than the history."""
    return f"more than {duration(age.seconds)}" if age.at_least else duration(age.seconds)


# ---- pipelines ----


def _of_pipelines(cluster_view: ClusterView) -> Iterator[Alarm]:
    for pipeline in cluster_view.pipelines or ():
        name = str(pipeline.get("name", ""))
        link = f"/pipelines?name={quote(name, safe='')}"
        if pipeline.get("error") or pipeline.get("state") == "failed":
            reason = str(pipeline.get("error") or "it gave no reason")
            yield Alarm(
                "error",
                name,
                f"Pipeline {name} failed: {first_line(reason)}",
                "Read the error, repair the cause, start the query again: it continues from its checkpoint.",
                link,
            )
        elif silence := silent_for(pipeline, now=cluster_view.at):
            kept = [
                f"{topic}/{pipeline['channel']}"
                for topic in pipeline.get("topics") or ()
                if pipeline.get("channel") and cluster_view.channel(topic, pipeline["channel"]) is not None
            ]
            leaves = f" It leaves channel {', '.join(kept)} behind, which keeps messages on disk." if kept else ""
            yield Alarm(
                "warning",
                name,
                f"Pipeline {name} has not reported for {duration(silence)}.{leaves}",
                "Start the query again, or delete its channel if it is not coming back.",
                link,
            )


def first_line(text: str) -> str:
    """Return the first line of an error, cut to 200 characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"
