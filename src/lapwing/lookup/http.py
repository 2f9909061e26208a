"""The HTTP routes of nsqlookupd."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from lapwing import names
from lapwing.lookup import profiles
from lapwing.lookup.metrics import LookupCounts, exposition
from lapwing.lookup.registry import NEVER, Producer, Registry, RegistryFull
from lapwing.names import NSQ_VERSION
from lapwing.net.server import answers
from lapwing.net.server.answers import Answer, Refused
from lapwing.net.server.prometheus import CONTENT_TYPE
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route

_DONE: Final = answers.nothing()
_SLICE: Final = 5_000  # topics of one answer that are written before others have their turn


class LookupRoutes:
    """The routes over one registry; `clock` gives the time in Unix ns."""

    def __init__(
        self, registry: Registry, clock: Callable[[], int], counts: LookupCounts, served: Callable[[], int]
    ) -> None:
        """`served` gives the number of requests answered."""
        self._registry = registry
        self._clock = clock
        self._counts = counts
        self._served = served

    def routes(self) -> list[Route]:
        """Return every route of nsqlookupd."""
        return [
            Route("GET", "/ping", lambda _: answers.plain("OK")),
            Route("GET", "/info", lambda _: answers.value({"version": NSQ_VERSION})),
            Route("GET", "/topics", self._topics),
            Route("GET", "/channels", self._channels),
            Route("GET", "/lookup", self._lookup),
            Route("GET", "/nodes", self._nodes),
            Route("GET", "/producers", self._producers),
            Route("GET", "/debug", self._debug),
            Route("GET", "/metrics", self._metrics),
            Route("POST", "/producer/forget", self._forget),
            Route("POST", "/topic/create", self._create_topic),
            Route("POST", "/topic/delete", self._delete_topic),
            Route("POST", "/topic/tombstone", self._tombstone),
            Route("POST", "/channel/create", self._create_channel),
            Route("POST", "/channel/delete", self._delete_channel),
            *profiles.routes(),
        ]

    def _topics(self, request: Request) -> Answer | Awaitable[Answer]:
        """Return every topic. `?channels=true` adds the channels of each: one request instead of one per topic."""
        topics = self._registry.topics
        channels = request.head.raw_query == b"channels=true"  # NSQ ignores the query of this path
        if len(topics) > _SLICE:
            return self._many_topics(topics, channels)
        if not channels:
            return answers.value({"topics": topics})
        return answers.value(
            {"topics": topics, "channels": {topic: self._registry.channels(topic) for topic in topics}}
        )

    async def _many_topics(self, topics: list[str], channels: bool) -> Answer:
        """Return the same in slices: half a million topics with their channels take seconds."""
        listed, having = [], []
        for start in range(0, len(topics), _SLICE):
            some = topics[start : start + _SLICE]
            listed.append(answers.compact(some)[1:-1])
            if channels:
                having.append(answers.compact({topic: self._registry.channels(topic) for topic in some})[1:-1])
            await asyncio.sleep(0)
        more = b',"channels":{%b}' % b",".join(having) if channels else b""
        return Answer(200, b'{"topics":[%b]%b}' % (b",".join(listed), more), answers.JSON)

    def _channels(self, request: Request) -> Answer:
        return answers.value({"channels": self._registry.channels(request.argument("topic"))})

    def _lookup(self, request: Request) -> Answer:
        topic = request.argument("topic")
        self._counts.lookups += 1
        if not self._registry.knows(topic):
            raise Refused(404, "TOPIC_NOT_FOUND")
        found = self._registry.lookup(topic, now=self._clock())
        producers = b",".join([producer.described + b"}" for producer in found])
        channels = answers.compact(self._registry.channels(topic))
        return Answer(200, b'{"channels":%b,"producers":[%b]}' % (channels, producers), answers.JSON)

    def _nodes(self, request: Request) -> Answer | Awaitable[Answer]:
        now = self._clock()
        active = self._registry.active(now=now)
        if sum(len(producer.topics) for producer in active) > _SLICE:
            return self._nodes_of_many_topics(active, now)
        return _nodes((one, *self._topics_of(one, list(one.topics), now)) for one in active)

    def _topics_of(self, producer: Producer, topics: list[str], now: int) -> tuple[bytes, bytes]:
        """Return the tombstones of some topics of a producer, and the topics, as JSON without brackets."""
        tombstones = [self._registry.tombstoned(producer, topic, now=now) for topic in topics]
        return answers.compact(tombstones)[1:-1], answers.compact(topics)[1:-1]

    async def _nodes_of_many_topics(self, active: list[Producer], now: int) -> Answer:
        """Return the same in slices."""
        nodes = []
        for producer in active:
            topics = list(producer.topics)
            tombstones, listed = [], []
            for start in range(0, len(topics), _SLICE):
                buried, some = self._topics_of(producer, topics[start : start + _SLICE], now)
                tombstones.append(buried)
                listed.append(some)
                await asyncio.sleep(0)
            nodes.append((producer, b",".join(tombstones), b",".join(listed)))
        return _nodes(nodes)

    def _producers(self, request: Request) -> Answer:
        """Return every producer, silent and departed ones too, and the time since its last PING.

        With `topic`, those that have it. Departed producers are known since `started_ms_ago`.
        """
        now = self._clock()
        topic = request.query.get("topic")
        active = set(self._registry.active(now=now))
        listed = [one for one in self._registry.producers if topic is None or topic in one.topics]
        listed.sort(key=lambda producer: producer.last_update)
        departed = [
            {
                **one.description,
                "last_update": one.last_update,
                "heard_ms_ago": (now - one.last_update) // 1_000_000,
                "topics": sorted(one.topics),
            }
            for one in self._registry.departed.listed(topic, now=now)
        ]
        return answers.value({
            "producers": [self._shown(one, one in active, now) for one in listed],
            "departed": departed,
            "started_ms_ago": max(0, now // 1_000_000 - round(self._counts.started * 1000)),
        })

    def _forget(self, request: Request) -> Answer:
        if not self._registry.departed.forget(request.argument("node")):
            raise Refused(404, "NODE_NOT_FOUND")
        return _DONE

    def _shown(self, producer: Producer, active: bool, now: int) -> dict[str, Any]:
        return {
            **producer.description(),
            "active": active,
            "last_update": producer.last_update,
            "heard_ms_ago": (now - producer.last_update) // 1_000_000,
            "topics": sorted(producer.topics),
            "tombstoned": sorted(
                topic for topic in producer.topics if self._registry.tombstoned(producer, topic, now=now)
            ),
        }

    def _debug(self, request: Request) -> Answer:
        found: dict[str, list[dict[str, Any]]] = {}
        for name, producer, tombstoned_at in self._registry.places():
            peer = producer.peer
            found.setdefault(name, []).append(
                {
                    "broadcast_address": peer.broadcast_address,
                    "hostname": peer.hostname,
                    "http_port": peer.http_port,
                    "id": producer.id,
                    "last_update": producer.last_update,
                    "tcp_port": peer.tcp_port,
                    "tombstoned": tombstoned_at != NEVER,
                    "tombstoned_at": tombstoned_at,
                    "topology_region": peer.topology_region,
                    "topology_zone": peer.topology_zone,
                    "version": peer.version,
                }
            )
        return answers.value(found)

    def _metrics(self, request: Request) -> Answer:
        self._counts.requests = self._served()
        text = exposition(self._registry, self._counts, now=self._clock())
        return Answer(200, text.encode(), CONTENT_TYPE, nsq=False)

    def _create_topic(self, request: Request) -> Answer:
        self._create(_name(request, "topic"))
        return _DONE

    def _create_channel(self, request: Request) -> Answer:
        self._create(_name(request, "topic"), _name(request, "channel"))
        return _DONE

    def _create(self, topic: str, channel: str = "") -> None:
        try:
            self._registry.create(topic, channel)
        except RegistryFull as error:
            raise Refused(503, "TOO_MANY_REGISTRATIONS") from error

    def _delete_topic(self, request: Request) -> Answer:
        self._registry.delete_topic(request.argument("topic"))
        return _DONE

    def _delete_channel(self, request: Request) -> Answer:
        if not self._registry.delete_channel(_name(request, "topic"), _name(request, "channel")):
            raise Refused(404, "CHANNEL_NOT_FOUND")
        return _DONE

    def _tombstone(self, request: Request) -> Answer:
        self._registry.tombstone(request.argument("topic"), request.argument("node"), now=self._clock())
        return _DONE


def _nodes(found: Iterable[tuple[Producer, bytes, bytes]]) -> Answer:
    """Return the answer about producers, their tombstones and topics."""
    nodes = [b'%b,"tombstones":[%b],"topics":[%b]}' % (one.described, *lists) for one, *lists in found]
    return Answer(200, b'{"producers":[%b]}' % b",".join(nodes), answers.JSON)


def _name(request: Request, what: str) -> str:
    """Return the topic or channel that the query names; raise `Refused` if the name is not valid."""
    name = request.argument(what)
    if not names.valid(name):
        raise Refused(400, f"INVALID_ARG_{what.upper()}")
    return name
