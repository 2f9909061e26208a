"""Frozen counts: the one thing that HTTP, statsd, metrics and the admin page read."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.channel.latency import percentiles
from lapwing.broker.channel.ledger import Holder
from lapwing.broker.client_stats import ClientStats
from lapwing.broker.failures.failures import FailureCounts
from lapwing.broker.topic.cold import ColdChannel, ColdTopic
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.keys import Keys
    from lapwing.broker.topic.topic import Topic


MOST_HOLDERS: Final = 1000  # named consumers of a channel that are shown


@dataclass(frozen=True, slots=True)
class Latency:
    """Times from publish to FIN: how many were seen, and (quantile, ns) of each percentile asked for, if any was."""

    count: int
    percentiles: tuple[tuple[float, int], ...] | None


@dataclass(frozen=True, slots=True)
class HolderStats:
    """One named consumer at one moment."""

    name: str
    in_flight_count: int
    idle: int  # ns since its last request
    oldest: int  # ns since the delivery that it has held for longest; 0 when it holds nothing
    active: bool | None = None  # whether it is the one that gets messages; None where all do


@dataclass(frozen=True, slots=True)
class BlockedKeys:
    """The keys of a channel whose messages wait for others of their key."""

    count: int
    waiting: int  # messages that wait for their key, and were never delivered
    oldest: str  # the key that is blocked for longest
    oldest_ns: int  # for how long


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel at one moment."""

    name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_count: int
    region_local_count: int
    global_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: tuple[ClientStats, ...] | None  # None when they were not asked for
    paused: bool
    latency: Latency
    cursor: int
    settings: dict[str, Any] = field(default_factory=dict)  # those that are not the defaults
    dropped_count: int = 0  # did not fit an ephemeral channel
    discarded_count: int = 0  # left out for a sampling consumer
    failures: FailureCounts = field(default_factory=FailureCounts)
    holders: tuple[HolderStats, ...] = ()  # consumers that have a name, whether or not they are connected
    blocked: BlockedKeys | None = None  # where it delivers by key
    active: str | None = None  # the consumer that gets messages, "" while it is nobody; None where all do


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic at one moment."""

    name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    latency: Latency
    log_bytes: int
    log_first: int
    log_next: int
    settings: dict[str, Any] = field(default_factory=dict)  # those that are not the defaults
    dropped_count: int = 0  # did not fit an ephemeral topic
    duplicates: int = 0  # had a message-id that was known, and were not stored
    forgotten_ids: int = 0  # ids that were forgotten before their time, as there were too many


def topic_stats(
    broker: Broker, *, now: int, topic: str | None = None, channel: str | None = None, clients: bool = True
) -> list[TopicStats] | None:
    """Return every topic by name, or those that the filters want; None when `topic` names none."""
    if topic:
        if topic not in broker.topics:
            return None
        chosen = [broker.topics[topic]]
    else:
        chosen = [broker.topics[name] for name in sorted(broker.topics)]
    if channel:
        chosen = [each for each in chosen if channel in each.channels]
    return [_topic(each, channel, broker, now, clients) for each in chosen]


def producers(broker: Broker) -> list[ClientStats]:
    """Return every client that has published anything."""
    return [client.stats() for client in broker.clients if client.has_published]


def oldest_age(channel: Channel, *, now: int) -> int:
    """ns since the oldest message that the channel has not finished was published; 0 when it has finished all."""
    oldest = channel.oldest()
    published = None if oldest is None else channel.published_at(oldest)
    return 0 if published is None else max(now + channel.topic.skew - published, 0)


def _topic(topic: Topic | ColdTopic, channel: str | None, broker: Broker, now: int, clients: bool) -> TopicStats:
    memory = broker.options.mem_queue_size
    names = [channel] if channel else sorted(topic.channels)
    quantiles = broker.options.e2e_processing_latency_percentiles
    samples: list[int] = []
    if isinstance(topic, ColdTopic):
        channels = tuple(_cold_channel(topic, topic.channels[name], broker, clients) for name in names)
    else:
        channels = tuple(_channel(topic.channels[name], broker, now, clients) for name in names)
        latencies = [each.latencies for each in topic.channels.values() if each.latencies]
        samples = [sample for each in latencies for sample in each.samples(now=now)]
    wanted = tuple(percentiles(samples, quantiles)) if quantiles and topic.channels else None
    return TopicStats(
        name=topic.name,
        channels=channels,
        depth=topic.depth,
        backend_depth=max(topic.depth - memory, 0),
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        latency=Latency(sum(each.latency.count for each in channels), wanted),
        log_bytes=topic.log.bytes,
        log_first=topic.log.first,
        log_next=topic.log.next,
        settings=broker.settings.given_to_topic(topic),
        dropped_count=topic.dropped_count,
        duplicates=topic.dedup.duplicates if topic.dedup is not None else 0,
        forgotten_ids=topic.dedup.forgotten if topic.dedup is not None else 0,
    )


def _cold_channel(topic: ColdTopic, channel: ColdChannel, broker: Broker, clients: bool) -> ChannelStats:
    quantiles = broker.options.e2e_processing_latency_percentiles
    elsewhere, region, zone = channel.delivered
    return ChannelStats(
        name=channel.name,
        depth=channel.depth,
        backend_depth=max(channel.depth - broker.options.mem_queue_size, 0),
        in_flight_count=0,
        deferred_count=0,
        message_count=channel.message_count,
        zone_local_count=zone,
        region_local_count=region,
        global_count=elsewhere,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=0,
        clients=() if clients else None,
        paused=channel.paused or broker.drained,
        latency=Latency(0, tuple(percentiles([], quantiles)) if quantiles else None),
        cursor=channel.cursor,
        settings=broker.settings.given_to_channel(topic, channel),
        discarded_count=channel.discarded_count,
        failures=replace(channel.counts),
    )


def _channel(channel: Channel, broker: Broker, now: int, clients: bool) -> ChannelStats:
    latency = Latency(0, None)
    if channel.latencies is not None:
        samples = channel.latencies.samples(now=now)
        latency = Latency(channel.latencies.count(now=now), tuple(percentiles(samples, channel.latencies.quantiles)))
    depth = channel.depth
    consumers = channel.subscriptions
    elsewhere, region, zone = channel.delivered
    choice = channel.limits.active if channel.limits is not None else None
    active = choice.current(channel) if choice is not None else None
    seen = [(each, each.client.stats()) for each in consumers if each.client is not None] if clients else []
    if choice is not None:
        seen = [(each, replace(client, active=each.holder is active)) for each, client in seen]
    return ChannelStats(
        name=channel.name,
        depth=depth,
        backend_depth=max(depth - broker.options.mem_queue_size, 0),
        in_flight_count=channel.in_flight_count,
        deferred_count=len(channel.ledger.deferred),
        message_count=channel.message_count,
        zone_local_count=zone,
        region_local_count=region,
        global_count=elsewhere,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(consumers),
        clients=tuple(client for _, client in seen) if clients else None,
        paused=channel.stands_still(now),
        latency=latency,
        cursor=channel.cursor,
        settings=broker.settings.given_to_channel(channel.topic, channel),
        dropped_count=channel.dropped_count,
        discarded_count=channel.discarded_count,
        failures=replace(channel.counts),
        holders=_holders(channel, active, now, single=choice is not None) if channel.ledger.named else (),
        blocked=None if channel.keys is None else _blocked(channel.keys, now),
        active=(active.name if active is not None else "") if choice is not None else None,
    )


def _blocked(keys: Keys, now: int) -> BlockedKeys:
    for key, since in keys.blocked.items():
        name = (key.name or b"").decode("utf-8", "replace")
        return BlockedKeys(len(keys.blocked), keys.passed.waiting, name, max(now - since, 0))
    return BlockedKeys(0, keys.passed.waiting, "", 0)


def _holders(channel: Channel, active: Holder | None, now: int, *, single: bool) -> tuple[HolderStats, ...]:
    """Return the named consumers, those that hold most first; not more than anybody reads."""
    named = [holder for holder in channel.ledger.named.values() if not holder.parked]
    named.sort(key=lambda holder: (-len(holder.in_flight), holder.name))
    return tuple(
        HolderStats(
            each.name, len(each.in_flight), max(now - each.seen, 0), _oldest(each, now),
            active=each is active if single else None,
        )
        for each in named[:MOST_HOLDERS]
    )


def _oldest(holder: Holder, now: int) -> int:
    """Return how long ago the first message that the holder has was delivered: they are in that order, or nearly."""
    lease = next(iter(holder.in_flight.values()), None)
    return 0 if lease is None else max(now - lease.delivered, 0)
