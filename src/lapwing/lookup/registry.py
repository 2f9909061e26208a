"""Producers by topic and channel, and their tombstones; it knows no sockets and reads no clock."""

from collections.abc import Iterator
from dataclasses import field
from typing import Final

from lapwing import names
from lapwing.errors import LapwingError
from lapwing.lookup.departed import DepartedNodes
from lapwing.net.server.answers import compact
from lapwing.records import dataclass
from lapwing.wire.nsq.lookup import PeerInfo

NEVER: Final = -6795364578871345152  # ns; what NSQ shows for a tombstone that was never set


class RegistryFull(LapwingError):
    """The registry holds as many registrations as --max-registrations allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"registry is full ({limit} registrations)")


class PeerFull(LapwingError):
    """One nsqd has as many registrations as the operator allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"too many registrations of one nsqd ({limit} allowed by --max-registrations-per-peer)")


@dataclass(slots=True, eq=False)
class Producer:
    """One connected nsqd. Two connections are two producers, even with the same addresses."""

    id: str  # `ip:port` of its end of the connection
    peer: PeerInfo
    last_update: int  # ns of its last IDENTIFY or PING
    topics: set[str] = field(default_factory=set)
    channels: set[tuple[str, str]] = field(default_factory=set)
    described: bytes = b""  # as JSON members, made once: a lookup is then a matter of joining

    def __post_init__(self) -> None:
        self.described = compact(self.description())[:-1]

    @property
    def node(self) -> str:
        """The name of the node in tombstones: broadcast address and HTTP port."""
        return f"{self.peer.broadcast_address}:{self.peer.http_port}"

    def description(self) -> dict[str, str | int]:
        """Return its description for clients, in NSQ's order."""
        return {
            "remote_address": self.id,
            "hostname": self.peer.hostname,
            "broadcast_address": self.peer.broadcast_address,
            "tcp_port": self.peer.tcp_port,
            "http_port": self.peer.http_port,
            "version": self.peer.version,
            "topology_zone": self.peer.topology_zone,
            "topology_region": self.peer.topology_region,
        }


class Registry:
    """Every topic and channel that was ever registered and not deleted, with the producers that have it now.

    A registration outlives its producers: a topic whose last nsqd went away is still known, with nobody to ask.
    """

    def __init__(
        self,
        *,
        inactive_after: int,
        tombstone_lifetime: int,
        max_registrations: int = 0,
        max_per_producer: int = 0,
        departed_lifetime: int = 0,
    ) -> None:
        """Times are ns; the limits count topics and channels, of all producers and of each; 0: any number."""
        self.departed = DepartedNodes(lifetime=departed_lifetime)
        self.inactive_after = inactive_after
        self.tombstone_lifetime = tombstone_lifetime
        self.max_registrations = max_registrations
        self.max_per_producer = max_per_producer
        self.producers: set[Producer] = set()
        self._topics: dict[str, dict[Producer, int]] = {}  # with the time of each one's tombstone
        self._channels: dict[str, dict[str, set[Producer]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many topics and channels are registered."""
        return self._count

    # commands of nsqds

    def join(self, id: str, peer: PeerInfo, *, now: int) -> Producer:
        """Add a producer, active from now on, and return it."""
        producer = Producer(id, peer, now)
        self.producers.add(producer)
        return producer

    def allow(self, duration: int) -> None:
        """Give every producer `duration` ns more before it counts as inactive."""
        for producer in self.producers:
            producer.last_update += duration

    def leave(self, producer: Producer) -> None:
        """Remove a producer whose connection is gone; its topics and channels stay registered."""
        self.departed.add(producer.node, producer.description(), producer.topics, last_update=producer.last_update)
        self.producers.discard(producer)
        for topic in producer.topics:
            self._topics[topic].pop(producer, None)
        for topic, channel in producer.channels:
            self._channels[topic][channel].discard(producer)
        producer.topics.clear()
        producer.channels.clear()

    def register(self, producer: Producer, topic: str, channel: str = "") -> None:
        """Note that the producer has `topic`, and `channel` of it if one is named. A tombstone stays.

        Raises `RegistryFull` or `PeerFull`, having done nothing.
        """
        held = len(producer.topics) + len(producer.channels)
        held += (topic not in producer.topics) + bool(channel and (topic, channel) not in producer.channels)
        if 0 < self.max_per_producer < held:
            raise PeerFull(self.max_per_producer)
        self.create(topic, channel)
        if channel:
            self._channels[topic][channel].add(producer)
            producer.channels.add((topic, channel))
        self._topics[topic].setdefault(producer, NEVER)
        producer.topics.add(topic)
        self.departed.returned(producer.node, producer.peer.hostname, producer.peer.http_port, topic)

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> None:
        """Remove the producer from a channel; without a channel, from the topic and all its channels.

        Ephemeral topics and channels are deleted with their last producer; the channels of such a topic are not.
        """
        if channel:
            self._take_off(producer, topic, channel)
            if names.ephemeral(channel) and not self._channels.get(topic, {}).get(channel):
                self.delete_channel(topic, channel)
            return
        for one in self._channels.get(topic, {}):
            self._take_off(producer, topic, one)
        having = self._topics.get(topic)
        if having is not None:
            having.pop(producer, None)
            producer.topics.discard(topic)
            if names.ephemeral(topic) and not having:
                del self._topics[topic]
                self._count -= 1

    def _take_off(self, producer: Producer, topic: str, channel: str) -> None:
        if (topic, channel) in producer.channels:
            producer.channels.discard((topic, channel))
            self._channels[topic][channel].discard(producer)

    # calls of operators

    def create(self, topic: str, channel: str = "") -> None:
        """Make topic and channel known, with nobody who has them. Raises `RegistryFull`, having done nothing."""
        channels = self._channels.get(topic, {})
        added = (topic not in self._topics) + bool(channel and channel not in channels)
        if added:
            if 0 < self.max_registrations < self._count + added:
                raise RegistryFull(self.max_registrations)
            self._count += added
            self._topics.setdefault(topic, {})
            if channel:
                self._channels.setdefault(topic, {}).setdefault(channel, set())

    def delete_topic(self, topic: str) -> None:
        """Forget the topic and its channels, whoever has them; unknown ones are no error."""
        self.departed.forget_topic(topic)
        having = self._topics.pop(topic, None)
        if having is not None:
            self._count -= 1
            for producer in having:
                producer.topics.discard(topic)
        for channel in list(self._channels.get(topic, {})):
            self.delete_channel(topic, channel)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget one channel; false if it was not known."""
        channels = self._channels.get(topic, {})
        having = channels.pop(channel, None)
        if having is None:
            return False
        self._count -= 1
        for producer in having:
            producer.channels.discard((topic, channel))
        if not channels:
            del self._channels[topic]
        return True

    def tombstone(self, topic: str, node: str, *, now: int) -> int:
        """Hide the producers of `topic` that call themselves `node`; how many there were."""
        having = self._topics.get(topic, {})
        found = [producer for producer in having if producer.node == node]
        for producer in found:
            having[producer] = now
        return len(found)

    # what anybody asks

    @property
    def topics(self) -> list[str]:
        """Every topic that is known."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return every registered channel of the topic."""
        return list(self._channels.get(topic, ()))

    def knows(self, topic: str) -> bool:
        """Return whether the topic is registered, even without a producer."""
        return topic in self._topics

    def lookup(self, topic: str, *, now: int) -> list[Producer]:
        """Return the producers of the topic that are active and not tombstoned."""
        seen = now - self.inactive_after
        buried = now - self.tombstone_lifetime
        having = self._topics.get(topic, {})
        return [producer for producer, at in having.items() if producer.last_update >= seen and at <= buried]

    def active(self, *, now: int) -> list[Producer]:
        """Return every active producer: one whose last PING is recent enough."""
        seen = now - self.inactive_after
        return [producer for producer in self.producers if producer.last_update >= seen]

    def tombstoned(self, producer: Producer, topic: str, *, now: int) -> bool:
        """Return whether the producer is hidden from lookups of the topic."""
        return self._topics.get(topic, {}).get(producer, NEVER) > now - self.tombstone_lifetime

    def places(self) -> Iterator[tuple[str, Producer, int]]:
        """Yield every registration's name with each of its producers, and when that was tombstoned (ns, or NEVER)."""
        for producer in self.producers:
            yield "client::", producer, NEVER
        for topic, having in self._topics.items():
            for producer, at in having.items():
                yield f"topic:{topic}:", producer, at
        for topic, channels in self._channels.items():
            for channel, members in channels.items():
                for producer in members:
                    yield f"channel:{topic}:{channel}", producer, NEVER
