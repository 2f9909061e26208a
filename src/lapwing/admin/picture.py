"""One moment of the cluster, as the poller saw it and the pages show it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lapwing import names
from lapwing.client.cluster import Json, Node


@dataclass(frozen=True, slots=True)
class NodeState:
    """One nsqd: what is known of it, and how it answered."""

    node: Node
    error: str = ""  # why it could not be asked; empty: it answered
    health: str = "OK"
    started: int = 0  # Unix seconds
    gone_since: float = 0.0  # Unix seconds; discovery no longer names it
    topics: int = 0
    channels: int = 0
    clients: int = 0
    depth: int = 0  # in topics and channels
    messages: int = 0
    lapwing: bool = False  # has the log API: messages can be read without consuming them

    @property
    def reachable(self) -> bool:
        """Whether it answered the last time."""
        return not self.error and not self.gone_since


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it at once; every page is drawn from one of these."""

    at: float = 0.0  # Unix seconds
    direct: bool = False
    lookupds: tuple[tuple[str, str], ...] = ()  # address, why it could not be asked
    nodes: tuple[NodeState, ...] = ()
    topics: dict[str, Json] = field(default_factory=dict)
    idle_topics: tuple[str, ...] = ()  # nsqlookupd knows them, no node has them
    pipelines: tuple[Json, ...] | None = None  # None: no node keeps any account of them
    failure: str = ""  # nobody could be asked

    @property
    def trouble(self) -> list[str]:
        """In words, what could not be asked: what is shown is without it."""
        if not self.at:
            return ["nobody has answered yet"]
        if self.failure:
            return [self.failure]
        words = [f"nsqlookupd {address} does not answer" for address, error in self.lookupds if error]
        words += [f"nsqd {state.node.name} does not answer" for state in self.nodes if state.error]
        words += [f"nsqd {state.node.name} has left" for state in self.nodes if state.gone_since]
        return words

    @property
    def whole(self) -> bool:
        """Whether every nsqd answered: only then is what is not shown not there."""
        return bool(self.at) and not self.failure and all(state.reachable for state in self.nodes)

    def away_topics(self) -> set[str]:
        """Topics of nsqds that do not answer, as far as discovery names them."""
        return {topic for state in self.nodes if not state.reachable for topic, _ in state.node.topics}

    @property
    def lapwing(self) -> bool:
        """Whether any node can show its messages."""
        return any(state.lapwing for state in self.nodes)

    def users_topics(self) -> dict[str, Json]:
        """The topics without lapwing's own."""
        return {name: topic for name, topic in self.topics.items() if not names.own(name)}

    def users_channels(self) -> Iterator[Json]:
        """The channels of these, summed over nodes, by topic and name."""
        for topic in self.users_topics().values():
            yield from topic["channels"]

    def channels(self) -> Iterator[Json]:
        """Every channel, summed over nodes, by topic and name."""
        for topic in self.topics.values():
            yield from topic["channels"]

    def channel(self, topic: str, channel: str) -> Json | None:
        """That channel, summed over nodes."""
        known = self.topics.get(topic)
        channels: list[Json] = known["channels"] if known is not None else []
        return next((found for found in channels if found["channel_name"] == channel), None)

    def node(self, name: str) -> NodeState | None:
        """The node of that name."""
        return next((state for state in self.nodes if state.node.name == name), None)
