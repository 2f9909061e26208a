"""The HTTP routes of nsqd for topics, channels and statistics, and the list of all others."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from lapwing import kernel, names
from lapwing.broker import stats
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError
from lapwing.names import NSQ_VERSION
from lapwing.net.server.answers import Answer, Later, StreamedAnswer, nothing, plain, value
from lapwing.net.server.requests import Head, Request
from lapwing.net.server.routes import OPEN, Reply, Route, RouteAccess
from lapwing.nsqd.http import debug, permissions
from lapwing.nsqd.http.config import Config
from lapwing.nsqd.http.dead import DeadApi
from lapwing.nsqd.http.drain import DrainApi, drain_object
from lapwing.nsqd.http.node_info import NodeInfo
from lapwing.nsqd.http.pending import PendingApi
from lapwing.nsqd.http.pipelines import Pipelines
from lapwing.nsqd.http.publishing import Publishing, Settled, named
from lapwing.nsqd.http.schedules import SchedulesApi
from lapwing.nsqd.http.seek import SeekApi
from lapwing.nsqd.http.settings import SettingsApi
from lapwing.nsqd.http.statspage import JsonPage, Snapshot, TextPage
from lapwing.nsqd.stats import memory
from lapwing.nsqd.stats.metrics import FsyncTimes, Metrics, count_topics
from lapwing.nsqd.step_runner import StepRunner

if TYPE_CHECKING:
    from lapwing.nsqd.daemon import Daemon

BUILT: Final = f"python{'.'.join(map(str, sys.version_info[:3]))}-{'compiled' if kernel.COMPILED else 'pure'}"

_SECOND: Final = 1_000_000_000
_MAX_WHOLE: Final = 200  # topics beyond which others get their turn while they are counted

_HEALTHY: Final = plain("OK")
_DONE: Final = nothing()


class _Saved(Settled):
    """The answer to an order, completed when what it did is saved."""

    __slots__ = ()

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer that it is done, or that it failed."""
        if error is None:
            self.complete(_DONE)
        else:
            super().settle(sequence, error)


class Http:
    """All routes of one nsqd."""

    def __init__(self, node: Daemon, times: FsyncTimes) -> None:
        self._node = node
        self._broker = node.broker
        self._now = node.clock.now
        self._schedule_flush = node.turn.schedule_flush
        self._pauses = memory.GcPauses()
        self._publishing = Publishing(node.broker, node.turn, node.log, node.peers)
        self.redrives = StepRunner("redrive", node.broker.redrives, node.turn, node.log)
        self.schedules = StepRunner("schedules", node.broker.schedules, node.turn, node.log)
        node.broker.schedules.on_change = self.schedules.wake
        pipelines = Pipelines(node.clock.now)
        self._others = [
            *self._publishing.routes(),
            *Metrics(
                node.broker, node.clock.now, times, self._pauses, pipelines, node.remote_figures, started=node.started
            ).routes(),
            *Config(node.options, node.log, node.peers).routes(),
            *NodeInfo(node.options, node.options.data_path or ".", node.remote_figures).routes(),
            *pipelines.routes(),
            *SettingsApi(node.turn).routes(),
            *SchedulesApi(node.turn).routes(),
            *SeekApi(node.turn).routes(),
            *DrainApi(node.turn, node.log).routes(),
            *PendingApi(node.turn).routes(),
            *DeadApi(node.turn, self.redrives.wake).routes(),
            *debug.routes(),
        ]

    def routes(self) -> list[Route]:
        """Return the routes of this module and of the modules that it builds."""
        orders: list[tuple[str, Callable[[Request], Reply], RouteAccess]] = [
            ("/topic/create", self.create_topic, permissions.CREATE_TOPIC),
            ("/topic/delete", self.delete_topic, permissions.TOPIC_ADMIN),
            ("/topic/empty", self.empty_topic, permissions.TOPIC_ADMIN),
            ("/topic/pause", lambda request: self._pause_topic(request, True), permissions.TOPIC_ADMIN),
            ("/topic/unpause", lambda request: self._pause_topic(request, False), permissions.TOPIC_ADMIN),
            ("/channel/create", self.create_channel, permissions.USE_CHANNEL),
            ("/channel/delete", self.delete_channel, permissions.CHANNEL_ADMIN),
            ("/channel/empty", self.empty_channel, permissions.CHANNEL_ADMIN),
            ("/channel/pause", lambda request: self._pause_channel(request, True), permissions.CHANNEL_ADMIN),
            ("/channel/unpause", lambda request: self._pause_channel(request, False), permissions.CHANNEL_ADMIN),
        ]
        for_stats = OPEN if self._node.options.stats_without_auth else permissions.STATS
        return [
            Route("GET", "/ping", self.ping, access=OPEN),
            Route("GET", "/info", self.info, access=OPEN),
            Route("GET", "/stats", self.stats, access=for_stats),
            *(Route("POST", path, respond, access=access) for path, respond, access in orders),
            *self._others,
        ]

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def _health(self) -> str:
        problem = self._broker.health
        return "OK" if problem is None else f"NOK - {problem}"

    def ping(self, request: Request) -> Answer:
        """Answer OK, or NOK with the reason: memory, a failed write or read, topics that cannot be opened."""
        return _HEALTHY if self._broker.health is None else plain(self._health, 500)

    def info(self, request: Request) -> Answer:
        """Return the identity of the node and the limits of clients."""
        node, options = self._node, self._node.options
        return value(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": os.uname().nodename,
                "http_port": node.http.port if node.http else -1,
                "tcp_port": node.tcp.port if node.tcp else -1,
                "start_time": node.started // _SECOND,
                "max_heartbeat_interval": options.max_heartbeat_interval,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
        )

    def stats(self, request: Request) -> Answer:
        """Return statistics of topics, channels and clients; as a stream if there are many topics."""
        query = request.query
        page = JsonPage() if query.get("format") == "json" else TextPage()
        chosen, channel = query.get("topic", ""), query.get("channel", "")
        clients = query.get("include_clients") not in ("false", "0")
        snapshot = Snapshot(
            version=NSQ_VERSION,
            built=BUILT,
            health=self._health,
            started=self._node.started,
            now=self._now(),
            memory=memory.figures(self._pauses) if query.get("include_mem") not in ("false", "0") else None,
            producers=stats.producers(self._broker) if clients else (),
            topic=chosen,
            drain=drain_object(self._broker, self._now()),
            remote=self._node.remote_figures(),
        )
        if not chosen and len(self._broker.topics) > _MAX_WHOLE:
            pieces = self._pieces(page, snapshot, channel, clients)
            return StreamedAnswer(200, content_type=page.content_type, pieces=pieces)
        topics = stats.topic_stats(self._broker, now=snapshot.now, topic=chosen, channel=channel, clients=clients)
        some = None if topics is None else bool(topics)
        body = (
            page.opening(snapshot, some=some)
            + page.topics(snapshot, topics or (), first=True)
            + page.closing(snapshot, some=some)
        )
        return Answer(200, body, page.content_type)

    async def _pieces(
        self, page: JsonPage | TextPage, snapshot: Snapshot, channel: str, clients: bool
    ) -> AsyncIterator[bytes]:
        """Yield the same page for a few topics at a time, so that others get their turn."""
        wanted = [name for name, topic in self._broker.topics.items() if not channel or channel in topic.channels]
        yield page.opening(snapshot, some=bool(wanted))
        first = True
        counted = count_topics(self._broker, lambda: snapshot.now, sorted(wanted), channel=channel, clients=clients)
        async for topics in counted:
            if topics:
                yield page.topics(snapshot, topics, first=first)
                first = False
        yield page.closing(snapshot, some=bool(wanted))

    # --- topics ------------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Reply:
        """Create a topic unless it exists."""
        known = request.query.get("topic", "") in self._broker.topics
        topic = self._publishing.topic(request.head)
        if known:
            return _DONE
        return self._publishing.when_settled(topic.name, Later(_DONE))

    def delete_topic(self, request: Request) -> Answer:
        """Delete a topic with its channels and messages."""
        name = request.argument("topic")
        # saved: after a kill before the next checkpoint the topic would be restored from the catalog
        return self._order(lambda: self._broker.delete_topic(name), saved=not names.ephemeral(name))

    def empty_topic(self, request: Request) -> Reply:
        """Drop the messages that wait in a topic."""
        topic = self._broker.existing(named(request.head, "topic", "INVALID_TOPIC"))
        topic.empty()
        return self._when_saved(topic)

    def _pause_topic(self, request: Request, paused: bool) -> Answer:
        name = request.argument("topic")
        return self._order(lambda: self._broker.pause_topic(name, paused, now=self._now()), saved=True)

    # --- channels ----------------------------------------------------------------------------------------------

    def create_channel(self, request: Request) -> Reply:
        """Create a channel of an existing topic, unless it exists."""
        name, channel = _channel(request.head)
        topic = self._broker.existing(name)
        topic.create_channel(channel, now=self._now(), sync=False)
        return self._when_saved(topic)

    def delete_channel(self, request: Request) -> Answer:
        """Delete a channel with its messages."""
        topic, channel = _channel(request.head)
        lasting = not names.ephemeral(topic) and not names.ephemeral(channel)
        return self._order(lambda: self._broker.delete_channel(topic, channel), saved=lasting)

    def empty_channel(self, request: Request) -> Reply:
        """Drop the messages of a channel: ready, deferred and in flight."""
        topic, channel = _channel(request.head)
        return self._when_saved(self._broker.empty_channel(topic, channel, now=self._now()))

    def _pause_channel(self, request: Request, paused: bool) -> Answer:
        topic, channel = _channel(request.head)
        return self._order(lambda: self._broker.pause_channel(topic, channel, paused), saved=True)

    def _when_saved(self, topic: Topic) -> Reply:
        """Answer when the state of the topic is saved, with `fsync` synced; the error if the disk refuses."""
        later = _Saved()
        self._broker.save_topic(topic, later)
        self._schedule_flush()
        return later

    def _order(self, carry_out: Callable[[], object], *, saved: bool = False) -> Answer:
        """Call the broker; with `saved`, write the catalog before the answer leaves."""
        carry_out()
        if saved:
            self._broker.keeper.save_catalog()
        self._schedule_flush()
        return _DONE


def _channel(head: Head) -> tuple[str, str]:
    """Return the topic and channel that a request names; raise `Refused`."""
    return named(head, "topic", "INVALID_ARG_TOPIC"), named(head, "channel", "INVALID_ARG_CHANNEL")
