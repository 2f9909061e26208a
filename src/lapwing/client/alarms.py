"""Alarms: what is wrong in a cluster, by pure rules over a view of it. Each has a sentence and an advice.

nsqadmin and `lapwing check` have the same rules and the same sentences. They differ in their limits, and in what they
know of the past: nsqadmin watches the cluster, a command looks at it once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from lapwing import names
from lapwing.client.cluster import DeadTopic, Json
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.format import count, duration, messages, messages_are, several
from lapwing.client.pipeline_status import problem, silent_for

Severity = Literal["error", "warning", "info"]
Kind = Literal["cluster", "nsqlookupd", "node", "topic", "channel", "dead letters", "pipeline"]
_ORDER: Final = {"error": 0, "warning": 1, "info": 2}
_NONE: Final[Mapping[str, DeadTopic]] = {}
_REMOTE_LAG: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Alarm:
    """One problem: its severity, its subject, what was seen, and what to do."""

    severity: Severity
    kind: Kind
    about: str  # the name of the subject; of a channel `topic/channel`
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values from which a figure is a warning, and an error; None: never."""

    warning: float | None = None
    error: float | None = None

    def severity(self, value: float) -> Severity | None:
        """Return what a value is; None if it is within the bounds."""
        if self.error is not None and value >= self.error:
            return "error"
        return "warning" if self.warning is not None and value >= self.warning else None


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """The limits beyond which a figure becomes an alarm."""

    lag: Bounds = Bounds()  # messages that a channel has not finished
    oldest: Bounds = Bounds()  # seconds the oldest of them may wait, whatever the reason
    buffered: Bounds = Bounds(warning=1)  # messages of a topic that has no channel
    held: Bounds = Bounds(warning=900.0)  # seconds a named consumer may hold a message
    age: float = 300.0  # seconds the oldest message may wait in a channel that is not paused
    depth: int = 100  # messages below which a growing channel is no alarm
    growing: float = 300.0  # seconds of growth
    settling: float = 30.0  # seconds that a channel is watched before it lacks a consumer
    keeping_up: float = 30.0  # seconds; a channel whose oldest message is younger keeps up, though it may grow
    stuck: float = 120.0  # seconds without a message finished
    blocked: float = 300.0  # seconds a key may be blocked


@dataclass(frozen=True, slots=True)
class Age:
    """The age of the oldest unfinished message; `at_least` if it is older than what was watched."""

    seconds: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"more than {duration(self.seconds)}" if self.at_least else duration(self.seconds)


class Past:
    """The known past of channels, `key` being topic and channel; one look knows only the ages that nsqds report."""

    def __init__(self, ages: Mapping[tuple[str, str], float]) -> None:
        self._ages = ages

    def age(self, channel: Json, now: float) -> Age | None:
        """Return the age of the oldest unfinished message; None if there is none, or nobody knows it."""
        seconds = self._ages.get((channel["topic_name"], channel["channel_name"]))
        return Age(seconds) if seconds else None

    def growth(self, key: tuple[str, str], now: float, *, over: float) -> float | None:
        """Return by how many messages a channel has grown in the last `over` seconds; None if that is not known."""
        return None

    def quiet(self, key: tuple[str, str], now: float, *, over: float) -> bool:
        """Return whether it is known that nothing left the channel in the last `over` seconds."""
        return False

    def moving(self, key: tuple[str, str], now: float, *, over: float) -> bool:
        """Return whether it is known that anything left the channel in the last `over` seconds."""
        return False

    def watched(self, key: tuple[str, str], now: float) -> float:
        """Return for how many seconds the channel has been watched."""
        return 0.0


def alarms(
    view: ClusterView, past: Past, limits: AlarmLimits, dead: Mapping[str, DeadTopic] = _NONE, *, own: bool = False
) -> list[Alarm]:
    """Return all alarms, the worst first; `dead` are the dead-letter topics.

    With `own` those of lapwing's own topics too, which need no consumer and whose pipelines have alarms of their own.
    """
    found = [*_of_daemons(view), *_of_pipelines(view)]
    fed = view.pipeline_channels()
    for topic in view.topics.values():
        if names.own(topic["topic_name"]) and not own:
            continue
        found += _of_topic(topic, limits)
        letters = dead.get(topic["topic_name"])
        for channel in topic["channels"]:
            key = (topic["topic_name"], channel["channel_name"])
            found += _beyond_bounds(channel, key, view, past, limits, fed=key in fed)
            holds_letters = letters is not None and key[1] == names.DEAD
            if (holds_letters or names.dead_letters(*key)) and not channel["client_count"]:
                if letters is not None:  # None: the topic is so new that its letters were not asked for yet
                    found += _of_dead_letters(letters, past.age(channel, view.at), limits)
            else:
                found += _of_channel(channel, key, view.at, past, limits, fed=key in fed)
    return sorted(found, key=lambda alarm: (_ORDER[alarm.severity], alarm.about))


def unread(view: ClusterView, past: Past, limits: AlarmLimits) -> int:
    """Return how many messages wait in channels that nobody reads yet; 0 if there are fewer than are worth a word.

    Consumers and pipelines have some time to start, so this is no alarm.
    """
    found = 0
    for channel in view.users_channels():
        key = (channel["topic_name"], channel["channel_name"])
        if channel["paused"] or channel["client_count"] or names.dead_letters(*key):
            continue
        if not past.moving(key, view.at, over=limits.stuck):
            found += channel["depth"]
    return found if found >= limits.depth else 0


# ---- daemons ----


def _of_daemons(view: ClusterView) -> Iterator[Alarm]:
    if view.failure:
        advice = "Check that the daemons run and that this host can reach their HTTP ports."
        yield Alarm("error", "cluster", "cluster", f"Nobody answers: {view.failure}", advice)
    for address, error in view.lookupds:
        if error:
            text = f"nsqlookupd {address} does not answer: {error}"
            advice = "Consumers that ask it find no producers. Check the process and the network between."
            yield Alarm("error", "nsqlookupd", address, text, advice)
    if not view.nodes and any(not error for _, error in view.lookupds):
        advice = "Start nsqd with --lookupd-tcp-address=<nsqlookupd's TCP address>; if it runs, look at its log."
        yield Alarm("error", "cluster", "cluster", "No nsqd is known: nsqlookupd names none.", advice)
    for state in view.nodes:
        yield from _of_node(state, view.at)


def _of_node(state: NodeState, now: float) -> Iterator[Alarm]:
    name = state.node.name
    if state.gone_since:
        text = f"nsqd {name} left nsqlookupd {duration(now - state.gone_since)} ago"
        text += f"; before that it did not answer: {state.error}" if state.error else "."
        advice = "If nobody stopped it on purpose, look at its log: its messages stay on its disk until it is back."
        yield Alarm("error", "node", name, text, advice)
    elif state.error:
        text = f"nsqd {name} does not answer{_lasting(state, now)}: {state.error}"
        advice = "Its figures are missing from all sums. Check that the process runs and its HTTP port can be reached."
        yield Alarm("error", "node", name, text, advice)
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
        yield Alarm("error", "node", name, f"nsqd {name} is unhealthy: {state.health}", advice)
    elif state.remote_lag > _REMOTE_LAG:
        text = f"nsqd {name}: its remote log is {state.remote_lag:.0f} s behind."
        advice = "Publishers wait for that long. Look at the object store or database."
        yield Alarm("warning", "node", name, text, advice)
    if state.node.out_of_date:
        text = f"nsqd {name} runs version {state.node.version}, older than others."
        yield Alarm("info", "node", name, text, "Update it when convenient.")


def _lasting(state: NodeState, now: float) -> str:
    seconds = round(now - state.lost_since) if state.lost_since else 0
    return f" for {duration(seconds)}" if seconds >= 10 else ""


# ---- topics and channels ----


def _of_topic(topic: Json, limits: AlarmLimits) -> Iterator[Alarm]:
    name, depth = topic["topic_name"], topic["depth"]
    severity = None if topic["channels"] else limits.buffered.severity(depth)
    if severity is not None:
        advice = (
            "Create a channel or start a consumer: the first channel gets all of it. If nobody needs them, empty the "
            "topic."
        )
        yield Alarm(severity, "topic", name, f"Topic {name} has no channel: {messages_are(depth)} buffering.", advice)
    if topic["paused"]:
        waits = f", {messages(depth)} waiting" if depth else ""
        advice = "Its channels get nothing new until it is unpaused."
        yield Alarm("info", "topic", name, f"Topic {name} is paused{waits}.", advice)


def lag(channel: Json) -> int:
    """Return the number of messages that a channel has not finished."""
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def _beyond_bounds(
    channel: Json, key: tuple[str, str], view: ClusterView, past: Past, limits: AlarmLimits, *, fed: bool
) -> Iterator[Alarm]:
    """Yield the alarms for figures that somebody has set bounds for, whatever the reason."""
    name, behind = "/".join(key), lag(channel)
    if (severity := limits.lag.severity(behind)) is not None:
        reason = ""
        if channel["paused"]:
            reason = ", and it is paused"
        elif names.dead_letters(*key):
            reason = ": dead letters that nobody has dealt with"
        elif not channel["client_count"] and not channel.get("consumers") and not fed:
            reason = ", and it has no consumer"
        advice = "Start or add consumers, raise max-in-flight, or look for errors in them."
        yield Alarm(severity, "channel", name, f"Channel {name} is {messages(behind)} behind{reason}.", advice)
    age = past.age(channel, view.at) if limits.oldest != Bounds() else None
    if age is not None and (severity := limits.oldest.severity(age.seconds)) is not None:
        yield _waiting_too_long(severity, name, age)
    yield from _of_consumers(channel, name, limits)


def _waiting_too_long(severity: Severity, name: str, age: Age) -> Alarm:
    advice = "Consumers do not keep up, or one message fails again and again. Look at requeues and time-outs."
    return Alarm(severity, "channel", name, f"The oldest message of {name} has waited {age}.", advice)


def _of_channel(
    channel: Json, key: tuple[str, str], now: float, past: Past, limits: AlarmLimits, *, fed: bool
) -> Iterator[Alarm]:
    """Yield what is wrong with a channel; `fed`: a pipeline moves it."""
    depth = channel["depth"]
    if not (depth or channel["in_flight_count"] or channel["paused"]):
        return  # most channels of a large cluster
    name = "/".join(key)
    if channel["paused"]:
        waits = f", {messages(depth)} waiting" if depth else ""
        advice = "Its consumers get nothing until it is unpaused."
        yield Alarm("info", "channel", name, f"Channel {name} is paused{waits}.", advice)
        return
    yield from _of_keys(channel, name, limits)
    worst = _worst_of_channel(channel, key, now, past, limits, fed=fed)
    if worst is not None:
        yield worst


def _worst_of_channel(
    channel: Json, key: tuple[str, str], now: float, past: Past, limits: AlarmLimits, *, fed: bool
) -> Alarm | None:
    """Return the worst problem that the past of a channel shows."""
    name, depth = "/".join(key), channel["depth"]
    clients = channel["client_count"] + sum(
        each.get("idle_seconds", 0.0) < limits.stuck for each in channel.get("consumers", ())
    )
    if depth > 0 and clients == 0 and not fed and not past.moving(key, now, over=limits.stuck):
        if past.watched(key, now) < limits.settling:
            return None  # consumers connect after a start of the cluster
        text = f"Channel {name} has no consumers: {messages_are(depth)} waiting."
        advice = "Start its consumers. If nobody needs the channel any more, delete it: it keeps its messages on disk."
        return Alarm("warning", "channel", name, text, advice)
    held = channel["in_flight_count"]
    if held > 0 and channel["client_count"] > 0 and past.quiet(key, now, over=limits.stuck):
        text = f"Consumers of {name} hold {messages(held)} and have finished none for {duration(limits.stuck)}."
        advice = "Look at its connections: a consumer may hang, or wait for something that is down."
        return Alarm("warning", "channel", name, text, advice)
    age = past.age(channel, now)
    growth = past.growth(key, now, over=limits.growing) if depth >= limits.depth else None
    if growth and age is not None and (age.at_least or age.seconds >= limits.keeping_up):
        ago = duration(limits.growing)
        text = f"Channel {name} grows: {count(growth)} more than {ago} ago, {messages(depth)} waiting."
        advice = "Consumers are slower than publishers. Add consumers, raise max-in-flight, or look for errors in them."
        return Alarm("warning", "channel", name, text, advice)
    if depth > 0 and age is not None and age.seconds >= limits.age:
        return _waiting_too_long("warning", name, age)
    return None


def _of_consumers(channel: Json, name: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield an alarm for named consumers that hold messages for long: they keep them until another one claims them."""
    late = [each for each in channel.get("consumers", ()) if limits.held.severity(each["oldest_seconds"]) is not None]
    if late:
        worst = max(late, key=lambda each: each["oldest_seconds"])
        others = f", and {several(len(late) - 1, 'other consumer')}" if len(late) > 1 else ""
        yield Alarm(
            limits.held.severity(worst["oldest_seconds"]) or "warning",
            "channel",
            name,
            f"Consumer {worst['name']} of {name} holds {messages(worst['in_flight_count'])}, the oldest for "
            f"{duration(worst['oldest_seconds'])}{others}.",
            "If it does not come back, claim its messages (on the channel's page, or with XAUTOCLAIM), or delete it "
            "(XGROUP DELCONSUMER).",
        )


def _of_keys(channel: Json, name: str, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield an alarm for a key that is blocked for long: a message of it is not finished, and others wait for that."""
    keys = channel.get("keys") or {}
    oldest = keys.get("oldest")
    if oldest is not None and oldest["seconds"] >= limits.blocked:
        others = f", and {several(keys['blocked'] - 1, 'other key')}" if keys["blocked"] > 1 else ""
        yield Alarm(
            "warning",
            "channel",
            name,
            f"Key {oldest['key']} of {name} is blocked for {duration(oldest['seconds'])} on {oldest['node']}{others}; "
            f"{messages(keys['waiting'])} wait for their keys.",
            "One of its messages fails again and again, waits for a retry, or its consumer hangs: look at the pending "
            "messages. With max_attempts it would be given up.",
        )


def _of_dead_letters(topic: DeadTopic, age: Age | None, limits: AlarmLimits) -> Iterator[Alarm]:
    """Yield the alarms of a dead-letter topic, whose letters wait for somebody and need no consumer.

    Letters are a note, and a warning once nobody has dealt with the oldest for long (`age`).
    """
    for node, task in topic.tasks.items():
        if task["state"] == "failed" or (task["state"] == "running" and task.get("error")):
            verb = "failed" if task["state"] == "failed" else "waits"
            reason = first_line(str(task.get("error") or "no reason"))
            text = f"The redrive of {topic.name} on {node} {verb}: {reason}"
            advice = "Repair the cause. Letters that were not redriven are still dead letters."
            yield Alarm("warning", "dead letters", topic.name, text, advice)
    if topic.letters and not topic.running:
        verb = "waits" if topic.letters == 1 else "wait"
        yield Alarm(
            "warning" if age is not None and age.seconds >= limits.age else "info",
            "dead letters",
            topic.name,
            f"{several(topic.letters, 'dead letter')} {verb} in {topic.name}.",
            "Look at their errors and repair the cause, then redrive them, or purge what nobody needs.",
        )


# ---- pipelines ----


def _of_pipelines(view: ClusterView) -> Iterator[Alarm]:
    for pipeline in view.pipelines or ():
        name = str(pipeline.get("name", ""))
        if pipeline.get("error") or pipeline.get("state") == "failed":
            reason = first_line(str(pipeline.get("error") or "it gave no reason"))
            advice = "Read the error, repair the cause, start the query again: it continues from its checkpoint."
            yield Alarm("error", "pipeline", name, f"Pipeline {name} failed: {reason}", advice)
        elif silence := silent_for(pipeline, now=view.at):
            kept = [
                f"{topic}/{pipeline['channel']}"
                for topic in pipeline.get("topics") or ()
                if pipeline.get("channel") and view.channel(topic, pipeline["channel"]) is not None
            ]
            leaves = f" It leaves channel {', '.join(kept)} behind, which keeps messages on disk." if kept else ""
            text = f"Pipeline {name} has not reported for {duration(silence)}.{leaves}"
            advice = "Start the query again, or delete its channel if it is not coming back."
            yield Alarm("error", "pipeline", name, text, advice)
        elif trouble := problem(pipeline, now=view.at):
            advice = "It continues by itself when they are back. Check that they run and can be reached."
            yield Alarm("warning", "pipeline", name, f"Pipeline {name} {trouble}", advice)


def first_line(text: str) -> str:
    """Return the first line of an error, cut to 200 characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"
