"""The pages of `/stats`: JSON with NSQ's keys in NSQ's order, or text.

A page is put together piece by piece, so that ten thousand topics stop nobody. `some` is whether there are any topics;
None: the topic that was asked for is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from lapwing import durations
from lapwing.broker.client_stats import ClientStats
from lapwing.broker.stats import ChannelStats, HolderStats, Latency, TopicStats
from lapwing.net.server.answers import JSON, TEXT, compact
from lapwing.records import dataclass

_SECOND: Final = 1_000_000_000
_MICROSECONDS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))

# TLS 1.3's are missing in NSQ's table too: it shows their numbers
_CIPHERS: Final = {
    "TLS_AES_128_GCM_SHA256": "Unknown 4865",
    "TLS_AES_256_GCM_SHA384": "Unknown 4866",
    "TLS_CHACHA20_POLY1305_SHA256": "Unknown 4867",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one answer of `/stats` shows, but for the topics: of those there may be many."""

    version: str
    built: str  # with what
    health: str
    started: int  # Unix ns
    now: int  # Unix ns
    memory: Mapping[str, int] | None  # None: not asked for
    producers: Sequence[ClientStats]
    topic: str = ""  # the filter
    drain: Mapping[str, Any] | None = None  # how far a drain has come
    remote: Mapping[str, Any] | None = None  # figures of the remote log; None: there is none


# --- JSON ------------------------------------------------------------------------------------------------------


class JsonPage:
    """NSQ's keys in NSQ's order."""

    content_type = JSON

    def opening(self, snapshot: Snapshot, *, some: bool | None) -> bytes:
        """Return the part before the topics."""
        start = {"version": snapshot.version, "health": snapshot.health, "start_time": snapshot.started // _SECOND}
        return compact(start)[:-1] + b',"topics":' + (b"null" if some is None else b"[")

    def topics(self, snapshot: Snapshot, topics: Sequence[TopicStats], *, first: bool) -> bytes:
        """Elements of the list."""
        elements = b",".join(compact(topic_object(topic, snapshot.topic)) for topic in topics)
        return elements if first or not elements else b"," + elements

    def closing(self, snapshot: Snapshot, *, some: bool | None) -> bytes:
        """Return the part behind the topics."""
        producers = [client_object(client, topic=snapshot.topic) for client in snapshot.producers]
        end: dict[str, Any] = {} if snapshot.memory is None else {"memory": dict(snapshot.memory)}
        end["producers"] = producers if producers and some is not None else None
        if snapshot.drain is not None:
            end["drain"] = dict(snapshot.drain)
        if snapshot.remote is not None:
            end["remote"] = dict(snapshot.remote)
        return (b"," if some is None else b"],") + compact(end)[1:]


def topic_object(topic: TopicStats, chosen: str = "") -> dict[str, Any]:
    """Return one element of `topics`; `chosen` is the topic that was filtered for."""
    found: dict[str, Any] = {
        "topic_name": topic.name,
        "channels": [_channel_object(channel, chosen) for channel in topic.channels],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency_object(topic.latency),
    }
    if topic.duplicates or topic.forgotten_ids:
        found |= {"duplicates": topic.duplicates, "forgotten_ids": topic.forgotten_ids}
    return found | ({"settings": topic.settings} if topic.settings else {})


def _channel_object(channel: ChannelStats, chosen: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
    }
    localities = (
        ("zone_local_msg_count", channel.zone_local_count),
        ("region_local_msg_count", channel.region_local_count),
        ("global_msg_count", channel.global_count),
    )
    found.update((key, count) for key, count in localities if count)
    clients = channel.clients
    found |= {
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": channel.client_count,
        "clients": None if clients is None else [client_object(client, topic=chosen) for client in clients],
        "paused": channel.paused,
        "e2e_processing_latency": _latency_object(channel.latency),
    }
    found.update((key, count) for key, count in asdict(channel.failures).items() if count)
    if channel.holders:
        found["consumers"] = [_holder_object(holder) for holder in channel.holders]
    if channel.active is not None:
        found["active_consumer"] = channel.active
    if channel.blocked is not None:
        found["keys_blocked"] = channel.blocked.count
        found["waiting_for_key"] = channel.blocked.waiting
        if channel.blocked.count:
            seconds = round(channel.blocked.oldest_ns / 1e9, 3)
            found["oldest_blocked_key"] = {"key": channel.blocked.oldest, "seconds": seconds}
    return found | ({"settings": channel.settings} if channel.settings else {})


def _holder_object(holder: HolderStats) -> dict[str, Any]:
    return {
        "name": holder.name,
        "in_flight_count": holder.in_flight_count,
        "idle_seconds": round(holder.idle / 1e9, 3),
        "oldest_seconds": round(holder.oldest / 1e9, 3),
        **_activity(holder.active),
    }


def _activity(active: bool | None) -> dict[str, bool]:
    """Return nothing where the channel delivers to all consumers, as NSQ does."""
    return {} if active is None else {"active": active}


def _latency_object(latency: Latency) -> dict[str, Any]:
    percentiles = latency.percentiles
    return {
        "count": latency.count,
        "percentiles": None if percentiles is None else [{"quantile": q, "value": value} for q, value in percentiles],
    }


def client_object(client: ClientStats, *, topic: str = "") -> dict[str, Any]:
    """Return one element of `clients` or `producers`; of what it published, only to `topic` if one is given."""
    about = client.about
    found: dict[str, Any] = {
        "client_id": about.client_id,
        "hostname": about.hostname,
        "version": client.protocol,
        "remote_address": about.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": about.connected,
        "sample_rate": client.sample_rate,
        "deflate": about.deflate,
        "snappy": about.snappy,
        "user_agent": about.user_agent,
    }
    if about.authed:
        found["authed"] = True
    if about.auth_identity:
        found["auth_identity"] = about.auth_identity
    if about.auth_identity_url:
        found["auth_identity_url"] = about.auth_identity_url
    found["topology_zone"] = about.topology_zone
    found["topology_region"] = about.topology_region
    counts = published(client, topic)
    if counts:
        found["pub_counts"] = [{"topic": name, "count": count} for name, count in counts]
    return found | {
        "tls": about.tls,
        "tls_cipher_suite": _CIPHERS.get(about.tls_cipher, about.tls_cipher),
        "tls_version": about.tls_version,
        "tls_negotiated_protocol": about.tls_protocol,
        "tls_negotiated_protocol_is_mutual": about.tls,
        **_activity(client.active),
    }


def published(client: ClientStats, topic: str = "") -> list[tuple[str, int]]:
    """Return how many messages the client has published: to every topic by name, or to `topic` alone."""
    return [(name, count) for name, count in client.published if not topic or name == topic]


# --- text ------------------------------------------------------------------------------------------------------


class TextPage:
    """For people at a terminal."""

    content_type = TEXT

    def opening(self, snapshot: Snapshot, *, some: bool | None) -> bytes:
        """Return the part before the topics."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(snapshot.started // _SECOND))
        lines = [
            f"nsqd v{snapshot.version} (built w/{snapshot.built})",
            f"start_time {started}",
            f"uptime {durations.show(snapshot.now - snapshot.started)}",
            "",
            f"Health: {snapshot.health}",
        ]
        if snapshot.memory is not None:
            lines += ["", "Memory:", *(f"   {key:<25}\t{number}" for key, number in snapshot.memory.items())]
        if snapshot.remote is not None:
            lines += ["", "Remote log:", *(f"   {key:<25}\t{number}" for key, number in snapshot.remote.items())]
        lines += ["", "Topics:" if some else "Topics: None"]
        return _text(lines)

    def topics(self, snapshot: Snapshot, topics: Sequence[TopicStats], *, first: bool) -> bytes:
        """Return topics with their channels and consumers; an empty line between them."""
        lines: list[str] = []
        for topic in topics:
            if lines or not first:
                lines.append("")
            lines += _topic_lines(topic, snapshot)
        return _text(lines)

    def closing(self, snapshot: Snapshot, *, some: bool | None) -> bytes:
        """Return the producers."""
        producers = snapshot.producers if some is not None else ()
        lines = ["", "Producers:" if producers else "Producers: None"]
        return _text(lines + [f"   {_client_line(client, snapshot)}" for client in producers])


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _topic_lines(topic: TopicStats, snapshot: Snapshot) -> Iterable[str]:
    yield (
        f"{'*P ' if topic.paused else '   '}[{topic.name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} e2e%: {_latencies(topic.latency)}"
    )
    for channel in topic.channels:
        yield (
            f"{'   *P ' if channel.paused else '      '}[{channel.name:<25}] depth: {channel.depth:<5} "
            f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
            f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
            f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} e2e%: {_latencies(channel.latency)}"
        )
        for client in channel.clients or ():
            yield f"        {_client_line(client, snapshot)}"


def _client_line(client: ClientStats, snapshot: Snapshot) -> str:
    about = client.about
    port = about.remote_address.rpartition(":")[2]
    who = f"{client.protocol} {f'{about.hostname}:{port} {about.user_agent}':<21}"
    connected = durations.show(max(snapshot.now // _SECOND - about.connected, 0) * _SECOND)
    counts = published(client, snapshot.topic)
    if counts:
        topics = ",".join(f"{name}={count}" for name, count in counts)
        return f"[{who}] msgs: {sum(count for _, count in counts):<8} topics: {topics} connected: {connected}"
    return (
        f"[{who}] state: {client.state} inflt: {client.in_flight_count:<4} rdy: {client.ready_count:<4} "
        f"fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} "
        f"connected: {connected}"
    )


def _latencies(latency: Latency) -> str:
    return ", ".join(_short(value) for _, value in latency.percentiles or ())


def _short(nanoseconds: int) -> str:
    for size, unit in _MICROSECONDS:
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"
