"""The answers that `Admin` gives: a result for each node, and the things that nodes report."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

from lapwing.client.cluster import Json
from lapwing.client.http import CallFailed
from lapwing.errors import LapwingError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """The answer of one node, or the reason why it did not do what it was asked."""

    node: str
    answer: T | None
    error: str = ""
    failure: CallFailed | None = None  # the request that failed

    @property
    def done(self) -> bool:
        """Whether the node did it."""
        return not self.error


@dataclass(frozen=True, slots=True)
class Results(Generic[T]):
    """The result of each node, in order of the nodes."""

    nodes: tuple[NodeResult[T], ...]
    missing: tuple[str, ...] = ()  # why a daemon besides the nodes did not do its part, or may know further nodes

    def __iter__(self) -> Iterator[NodeResult[T]]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def complete(self) -> bool:
        """Whether every node did it, and no other node may exist."""
        return not self.missing and all(result.done for result in self.nodes)

    @property
    def answers(self) -> dict[str, T]:
        """The answers by node, of the nodes that did it."""
        return {result.node: result.answer for result in self.nodes if result.done and result.answer is not None}

    @property
    def errors(self) -> list[str]:
        """The reasons of the nodes that did not do it, each with its node."""
        return [f"{result.node}: {result.error}" for result in self.nodes if not result.done] + list(self.missing)


class NodesFailed(LapwingError):
    """Some nodes refused, or did not answer; the others did it. `results` has all of them.

    With `planned` it was only planned, and nothing was changed on any node.
    """

    def __init__(self, results: Results[Any], *, planned: bool = False) -> None:
        count = sum(result.done for result in results)
        done = f"{count} of {len(results)} nodes did it" if len(results) > 1 or results.missing else "it was not done"
        super().__init__(f"{'nothing was changed' if planned else done}; {'; '.join(results.errors)}")
        self.results = results
        self.planned = planned


async def settled(work: Awaitable[Results[T]]) -> Results[T]:
    """Return the results of all nodes, also where some did not do it. Raises `NodesFailed` if it was only planned."""
    try:
        return await work
    except NodesFailed as error:
        if error.planned:
            raise
        return error.results


class SeveralNodes(LapwingError):
    """A sequence was named, which means another message on each node."""

    def __init__(self, what: str, nodes: Sequence[str]) -> None:
        names = ", ".join(nodes)
        super().__init__(f"a sequence names a letter of one node, and several have {what}: choose one of {names}")
        self.nodes = tuple(nodes)


@dataclass(frozen=True, slots=True)
class _Report:
    """Something that a node reports; `document` is its JSON, with what the class does not name."""

    document: Any = field(repr=False, compare=False, kw_only=True)

    @classmethod
    def of(cls, document: Json) -> Self:
        """Return it from the JSON of a node."""
        found = {
            each.name: each.metadata["of"](document[each.name]) if "of" in each.metadata else document[each.name]
            for each in fields(cls)
            if each.name in document
        }
        return cls(**found, document=document)


def _several(kind: type[_Report]) -> dict[str, Any]:
    """Return the metadata of a field that has several reports of another kind."""
    return {"of": lambda documents: tuple(map(kind.of, documents))}


@dataclass(frozen=True, slots=True)
class Counts:
    """The messages that wait in a topic, or in a channel of it, on one node."""

    there: bool  # whether the node has it
    waiting: int = 0  # messages, deferred ones and those of the topic's channels included
    depth: int = 0  # of them, those that a topic has not handed to its channels
    in_flight: int = 0
    channels: int = 0  # of a topic
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel, summed over nodes."""

    topic: str
    name: str
    depth: int
    in_flight: int
    deferred: int
    requeued: int
    timed_out: int
    messages: int
    consumers: int
    paused: bool

    @classmethod
    def of(cls, channel: Json) -> Self:
        """Return it from an object of nsqadmin's API."""
        return cls(
            channel["topic_name"], channel["channel_name"], channel["depth"], channel["in_flight_count"],
            channel["deferred_count"], channel["requeue_count"], channel["timeout_count"], channel["message_count"],
            channel["client_count"], channel["paused"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic, summed over nodes."""

    name: str
    depth: int  # messages that are in no channel yet
    messages: int  # published since the start of the nodes
    paused: bool
    channels: tuple[ChannelStats, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, topic: Json) -> Self:
        """Return it from an object of nsqadmin's API."""
        channels = tuple(ChannelStats.of(channel) for channel in topic["channels"])
        nodes = tuple(node["node"] for node in topic["nodes"])
        return cls(topic["topic_name"], topic["depth"], topic["message_count"], topic["paused"], channels, nodes)


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """The topics of a cluster at one moment, and its nodes."""

    topics: dict[str, TopicStats]
    nodes: dict[str, str]  # by name, `host:port` of HTTP: empty, or why it did not answer
    errors: tuple[str, ...]  # of daemons that did not answer


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that holds, and where it comes from: `channel`, `policy:NAME`, `topic`, `flag` or `default`."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings(_Report):
    """The settings of a topic or channel, by name."""

    settings: Mapping[str, Setting]

    @classmethod
    def of(cls, document: Json) -> Self:
        """Return them from the JSON of a node."""
        found = {name: Setting(each["value"], each["from"]) for name, each in document["settings"].items()}
        return cls(found, document=document)


@dataclass(frozen=True, slots=True)
class Policy(_Report):
    """Settings for every topic or channel whose name matches."""

    name: str
    settings: Mapping[str, Any]
    topics: str = "*"
    channels: str = "*"
    priority: int = 0
    matching_topics: int = 0
    matching_channels: int = 0


@dataclass(frozen=True, slots=True)
class Schedule(_Report):
    """A schedule of a node. Times are RFC 3339; `published` and `missed` count since the node has started."""

    name: str
    topic: str
    state: str  # active, paused, failing or done
    next: Sequence[str]  # the next times
    last: str = ""  # the time that was published last
    at: str = ""
    every: str = ""
    cron: str = ""
    zone: str = "UTC"
    misfire: str = "once"
    headers: Mapping[str, str] = field(default_factory=dict)
    published: int = 0
    missed: int = 0
    problem: str = ""  # why it fails

    @property
    def when(self) -> str:
        """Its times as they were put: `every 5m`, `cron 0 9 * * * Europe/Berlin`, `at 2030-01-31T12:00:00Z`."""
        zone = f" {self.zone}" if self.zone != "UTC" else ""
        return f"every {self.every}" if self.every else f"cron {self.cron}{zone}" if self.cron else f"at {self.at}"


@dataclass(frozen=True, slots=True)
class Schedules(_Report):
    """The schedules of a node, by name."""

    schedules: tuple[Schedule, ...] = field(metadata=_several(Schedule))


@dataclass(frozen=True, slots=True)
class Policies(_Report):
    """The policies of a node, the one that wins first."""

    policies: tuple[Policy, ...] = field(metadata=_several(Policy))


@dataclass(frozen=True, slots=True)
class PendingMessage(_Report):
    """A message that is in flight, or waits to be delivered again; `document` has the body if it was asked for."""

    sequence: int
    id: str
    state: str  # in_flight, ready or deferred
    holder: str | None  # the consumer that has it
    idle: int | None  # ms since the consumer got it
    deadline: str | None  # RFC 3339; the end of its timeout or delay
    deliveries: int
    failures: int
    error: str | None
    size: int | None  # bytes of the body


@dataclass(frozen=True, slots=True)
class Pending(_Report):
    """Pending messages of a channel on one node, in the order of the log."""

    entries: tuple[PendingMessage, ...] = field(metadata=_several(PendingMessage))
    counts: Mapping[str, int]  # of the whole channel, by state
    next: int | None  # the sequence behind which the others begin


@dataclass(frozen=True, slots=True)
class Claimed(_Report):
    """The messages of one node that a claim took, or would take in a dry run."""

    claimed: int
    dry_run: bool = False
    ids: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # by id: why it was left alone
    more: bool = False  # whether others match, beyond the limit


@dataclass(frozen=True, slots=True)
class Cancelled(_Report):
    """The messages of one node that were cancelled by their `message-id`, or would be in a dry run."""

    cancelled: int  # messages: several may have the same id
    dry_run: bool
    message_ids: Sequence[str]
    refused: Mapping[str, str]  # by message-id: why nothing was cancelled


@dataclass(frozen=True, slots=True)
class DeadLetter(_Report):
    """A message that a channel gave up; `document` has the body if it was asked for."""

    sequence: int  # in the dead-letter topic
    id: str | None
    topic: str | None
    channel: str | None
    reason: str | None  # attempts, rejected, expired or overflow
    error: str | None
    failures: int | None
    deliveries: int | None
    count: int  # how often it was given up
    published: str | None  # RFC 3339, as the other times
    first_failed: str | None
    at: str | None
    consumer: str | None
    held: bool
    size: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeadLetters(_Report):
    """Dead letters of one node, the oldest first."""

    letters: tuple[DeadLetter, ...]
    next: int | None = None  # the sequence behind which the others begin


@dataclass(frozen=True, slots=True)
class DeadGroup(_Report):
    """Dead letters that are alike."""

    letters: int
    topic: str
    channel: str
    reason: str
    error: str
    first: str
    last: str
    sample: int  # the sequence of one of them


@dataclass(frozen=True, slots=True)
class DeadGroups(_Report):
    """The dead letters of one node, counted by channel, reason and error."""

    groups: tuple[DeadGroup, ...] = field(metadata=_several(DeadGroup))
    others: int  # letters with further errors


@dataclass(frozen=True, slots=True)
class Redrive(_Report):
    """A redrive or purge on one node: planned, running, or how it ended."""

    state: str  # planned (a dry run), running, done, cancelled or failed
    letters: int = 0  # planned: how many letters are meant
    sample: Sequence[DeadLetter] = ()  # planned: the first of them
    redriven: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)  # by reason
    left: int = 0  # messages of the topic that were not looked at yet
    to: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeadTopic(_Report):
    """A dead-letter topic of one node."""

    topic: str
    letters: int
    redrive: Redrive | None = field(metadata={"of": lambda task: task and Redrive.of(task)})


@dataclass(frozen=True, slots=True)
class DeadTopics(_Report):
    """The dead-letter topics of one node."""

    topics: tuple[DeadTopic, ...] = field(metadata=_several(DeadTopic))


@dataclass(frozen=True, slots=True)
class Seek(_Report):
    """The effect of a seek on one node, or the one that it would have."""

    cursor: int  # before
    sequence: int  # the new place
    again: int  # messages delivered again
    skipped: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Drain(_Report):
    """The progress of a drain of one node."""

    state: str  # none, draining or drained
    since: str = ""
    deadline: str = ""
    messages: int = 0
    topics: int = 0
