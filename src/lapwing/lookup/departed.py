"""nsqds whose connection has ended: remembered for a while, so that readers of logs do not pass over their messages."""

from collections.abc import Iterable
from typing import Final

from lapwing import names
from lapwing.records import dataclass

MAX_NODES: Final = 256
MAX_TOPICS: Final = 100_000  # of all nodes together


@dataclass(slots=True)
class DepartedNode:
    """One nsqd that is not connected any more."""

    description: dict[str, str | int]
    last_update: int  # ns of its last IDENTIFY or PING
    topics: set[str]


class DepartedNodes:
    """Departed nsqds by the address of their HTTP API; the oldest are dropped first when there are too many."""

    def __init__(self, *, lifetime: int) -> None:
        """`lifetime` in ns; 0 remembers nobody."""
        self._lifetime = lifetime
        self._nodes: dict[str, DepartedNode] = {}
        self._topics = 0

    def add(self, node: str, description: dict[str, str | int], topics: Iterable[str], *, last_update: int) -> None:
        """Remember a node and the topics that it had; ephemeral topics have nothing that could be read later."""
        kept = {topic for topic in topics if not names.ephemeral(topic)}
        if not kept or not self._lifetime:
            return
        if (before := self._nodes.get(node)) is not None:
            kept |= before.topics
        self.forget(node)
        self._nodes[node] = DepartedNode(description, last_update, kept)
        self._topics += len(kept)
        while len(self._nodes) > MAX_NODES or self._topics > MAX_TOPICS:
            self.forget(next(iter(self._nodes)))

    def returned(self, node: str, hostname: str, http_port: int, topic: str) -> None:
        """Drop a topic that a node has registered again, also under a new address of the same host and port."""
        for known, found in list(self._nodes.items()) if self._nodes else ():
            about = found.description
            if known == node or (about["hostname"], about["http_port"]) == (hostname, http_port):
                self._drop(known, topic)

    def _drop(self, node: str, topic: str) -> None:
        """Drop one topic of a node; a node without topics is dropped."""
        found = self._nodes[node]
        if topic in found.topics:
            found.topics.discard(topic)
            self._topics -= 1
            if not found.topics:
                del self._nodes[node]

    def forget(self, node: str) -> bool:
        """Drop a node that will not come back; return whether it was known."""
        found = self._nodes.pop(node, None)
        if found is None:
            return False
        self._topics -= len(found.topics)
        return True

    def forget_topic(self, topic: str) -> None:
        """Drop a topic that was deleted everywhere."""
        for node in list(self._nodes):
            self._drop(node, topic)

    def listed(self, topic: str | None = None, *, now: int) -> list[DepartedNode]:
        """Return the nodes that had the topic (None: any), the one with the oldest last PING first."""
        for node, found in list(self._nodes.items()):
            if found.last_update < now - self._lifetime:
                self.forget(node)
        chosen = [found for found in self._nodes.values() if topic is None or topic in found.topics]
        return sorted(chosen, key=lambda found: found.last_update)
