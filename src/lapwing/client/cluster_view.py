"""The cluster at one moment, and the rates between two moments."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lapwing import names
from lapwing.client import pipeline_status
from lapwing.client.cluster import Json, Node

_AGE: Final = re.compile(r'^lapwing_channel_oldest_message_age_seconds\{([^}]*)\} (\S+)', re.M)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class NodeState:
    """One nsqd: its description, and its last answer."""

    node: Node
    error: str = ""  # why it did not answer; empty: it did
    health: str = "OK"
    started: int = 0  # Unix seconds
    gone_since: float = 0.0  # Unix seconds; when nsqlookupd stopped naming it
    lost_since: float = 0.0  # Unix seconds; when it stopped answering. Its figures are then the last known
    topics: int = 0
    channels: int = 0
    clients: int = 0
    depth: int = 0  # in topics and channels
    messages: int = 0
    lapwing: bool = False  # has the log API: messages can be read without consuming them
    remote_lag: float = 0.0  # seconds that something has waited for the remote log, where there is one

    @classmethod
    def of(cls, node: Node, answer: Json, *, lapwing: bool) -> "NodeState":
        """Return the state of an nsqd that has answered `/stats`. Its counts leave out lapwing's own topics."""
        topics = [topic for topic in answer.get("topics") or () if not names.own(topic["topic_name"])]
        channels = [channel for topic in topics for channel in topic.get("channels") or ()]
        return cls(
            node,
            health=str(answer.get("health", "OK")),
            started=int(answer.get("start_time") or 0),
            topics=len(topics),
            channels=len(channels),
            clients=sum(channel.get("client_count", 0) for channel in channels),
            depth=sum(each.get("depth", 0) for each in (*topics, *channels)),
            messages=sum(topic.get("message_count", 0) for topic in topics),
            lapwing=lapwing,
            remote_lag=(answer.get("remote") or {}).get("lag_ms", 0) / 1000,
        )

    @property
    def reachable(self) -> bool:
        """Whether it answered the last time."""
        return not self.error and not self.gone_since


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The answers of all daemons at one moment, as one."""

    at: float = 0.0  # Unix seconds; 0: no daemon was asked yet
    taken: float = 0.0  # the same moment on the monotonic clock, seconds
    direct: bool = False  # the nsqds were named by the operator, not by nsqlookupd
    lookupds: tuple[tuple[str, str], ...] = ()  # address, and why it did not answer
    nodes: tuple[NodeState, ...] = ()
    topics: dict[str, Json] = field(default_factory=dict)  # objects of nsqadmin's API, by name
    idle_topics: tuple[str, ...] = ()  # topics that nsqlookupd knows and no nsqd has
    pipelines: tuple[Json, ...] | None = None  # None: no node knows any
    ages: dict[tuple[str, str], float] = field(default_factory=dict)  # oldest unfinished message, s, by topic, channel
    lost_topics: dict[str, tuple[Json, ...]] = field(default_factory=dict)  # last known, by nsqd that does not answer
    errors: tuple[str, ...] = ()  # the calls that failed, as texts
    failure: str = ""  # no daemon answered

    @property
    def trouble(self) -> list[str]:
        """The daemons that are missing from this view, as texts."""
        if not self.at:
            return ["no daemon has answered yet"]
        if self.failure:
            return [self.failure]
        words = [f"nsqlookupd {address} does not answer: {error}" for address, error in self.lookupds if error]
        for state in self.nodes:
            if state.gone_since:
                words.append(f"nsqd {state.node.name} has left nsqlookupd")
            elif state.error:
                words.append(f"nsqd {state.node.name} does not answer: {state.error}")
        return words

    @property
    def whole(self) -> bool:
        """Whether every nsqd answered: a topic that is not shown then does not exist."""
        return bool(self.at) and not self.failure and all(state.reachable for state in self.nodes)

    @property
    def reachable(self) -> list[NodeState]:
        """The nsqds that answered."""
        return [state for state in self.nodes if state.reachable]

    @property
    def lapwing(self) -> bool:
        """Whether any node can show its messages."""
        return any(state.lapwing for state in self.nodes)

    def away_topics(self) -> set[str]:
        """Topics of nsqds that do not answer, as far as nsqlookupd names them."""
        return {topic for state in self.nodes if not state.reachable for topic, _ in state.node.topics}

    def users(self) -> "ClusterView":
        """Return the same view without lapwing's own topics."""
        return replace(self, topics=self.users_topics())

    def users_topics(self) -> dict[str, Json]:
        """Return the topics without lapwing's own."""
        return {name: topic for name, topic in self.topics.items() if not names.own(name)}

    def users_channels(self) -> Iterator[Json]:
        """Yield the channels of the users' topics, summed over nodes, by topic and name."""
        for topic in self.users_topics().values():
            yield from topic["channels"]

    def channels(self, topic: str = "") -> Iterator[Json]:
        """Yield every channel, of one topic or of all, summed over nodes, by topic and name."""
        for name, found in self.topics.items():
            if topic in ("", name):
                yield from found["channels"]

    def channel(self, topic: str, channel: str) -> Json | None:
        """Return the channel of that name, summed over nodes."""
        return _channel(self.topics.get(topic), channel)

    def pipeline_channels(self) -> set[tuple[str, str]]:
        """(topic, channel) that a pipeline moves: Spark reads the log, so such a channel has no connected consumer.

        A pipeline that has ended or does not report does not count. One that starts does not know its topics until
        its first batch: it moves every channel of its name.
        """
        return {
            (topic, str(pipeline.get("channel", "")))
            for pipeline in self.pipelines or ()
            if pipeline.get("state") not in pipeline_status.ENDED
            and not pipeline_status.silent_for(pipeline, now=self.at)
            for topic in (self.topics if pipeline.get("batch_id", 0) < 0 else pipeline.get("topics") or ())
        }

    def moving(self, topic: str, channel: str) -> list[Json]:
        """Return the pipelines that move a channel, or moved it while they worked."""
        return [
            each
            for each in self.pipelines or ()
            if each.get("channel") == channel and topic in (each.get("topics") or ())
        ]

    def lost_parts(self, topic: str) -> list[Json]:
        """Return the topic as nsqds that do not answer last had it."""
        return [part for parts in self.lost_topics.values() for part in parts if part["topic_name"] == topic]

    def node(self, name: str) -> NodeState | None:
        """Return the node of that name."""
        return next((state for state in self.nodes if state.node.name == name), None)


def ages_in(metrics: str) -> Iterable[tuple[tuple[str, str], float]]:
    """Yield (topic, channel) and the age in seconds of its oldest unfinished message, out of Prometheus text."""
    for labels, value in _AGE.findall(metrics):
        named = dict(_LABEL.findall(labels))
        yield (named.get("topic", ""), named.get("channel", "")), float(value)


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, in and out."""

    arriving: float
    leaving: float


Rates = dict[tuple[str, str], Rate]


@dataclass(slots=True)
class CountRates:
    """The growth of counts a second, from one view to the next. Counts that the last view had not are forgotten."""

    _at: float = 0.0
    _seen: dict[str, tuple[float, int, float | None]] = field(default_factory=dict)  # when, count, rate
    _before: dict[str, tuple[float, int, float | None]] = field(default_factory=dict)

    def rate(self, key: str, count: int, at: float) -> float | None:
        """Return the growth a second since the last view, one second ago at least; None at the first."""
        if at - self._at >= 1.0:
            self._at, self._before, self._seen = at, self._seen, {}
        if key not in self._seen:
            before = self._before.get(key)
            rate = None if before is None else _per_second(before[1], count, at - before[0])
            self._seen[key] = at, count, rate
        return self._seen[key][2]


def rates_between(before: ClusterView | None, after: ClusterView) -> Rates:
    """Return rates by (topic, channel), those of a topic itself under channel "". One view alone gives none."""
    found: Rates = {}
    if before is None or after.taken <= before.taken:
        return found
    seconds = after.taken - before.taken
    for name, topic in after.topics.items():
        known = before.topics.get(name)
        leaving = 0.0
        for channel in topic["channels"]:
            past = _channel(known, channel["channel_name"])
            if past is not None:
                rate = Rate(
                    _per_second(past["message_count"], channel["message_count"], seconds),
                    _per_second(finished(past), finished(channel), seconds),
                )
                leaving += rate.leaving
                found[name, channel["channel_name"]] = rate
        if known is not None:
            found[name, ""] = Rate(_per_second(known["message_count"], topic["message_count"], seconds), leaving)
    return found


def finished(channel: Json) -> int:
    """Return how many messages a channel has finished."""
    waiting = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return max(0, int(channel["message_count"]) - int(waiting))


def _channel(topic: Json | None, name: str) -> Json | None:
    channels: list[Json] = topic["channels"] if topic is not None else []
    return next((channel for channel in channels if channel["channel_name"] == name), None)


def _per_second(before: Any, after: Any, seconds: float) -> float:
    # an nsqd that restarted counts from 0: the rate is then unknown, not negative
    return max(0.0, (float(after) - float(before)) / seconds)
