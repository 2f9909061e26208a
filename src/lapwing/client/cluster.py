"""Merge the answers of nsqds and nsqlookupds. Pure.

Input and output are JSON: the output has the objects of nsqadmin's API, keys in their documented order. A missing
number counts as 0, so that older and other nsqds can be shown too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

Json = dict[str, Any]
SUM: Final = "*"  # the "node" of a sum over all nodes
_LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd, as nsqlookupd or the node itself describes it."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    remote_address: str = ""
    remote_addresses: tuple[str, ...] | None = None  # "nsqlookupd/remote", one per nsqlookupd that knows it
    topics: tuple[tuple[str, bool], ...] = ()  # name, tombstoned
    zone: str = ""
    region: str = ""
    out_of_date: bool = False
    configured: str = ""  # the address given by the operator: asked instead of the broadcast one

    @property
    def name(self) -> str:
        """`broadcast_address:http_port`, its name in the UI and the API."""
        return join_address(self.broadcast_address, self.http_port)

    @property
    def tcp_name(self) -> str:
        """`broadcast_address:tcp_port`."""
        return join_address(self.broadcast_address, self.tcp_port)

    @property
    def contact(self) -> str:
        """The address of its HTTP API."""
        return self.configured or self.name

    def to_json(self) -> Json:
        """Return the node object of the API."""
        return {
            "remote_addresses": None if self.remote_addresses is None else list(self.remote_addresses),
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            **_unless_empty({"topology_zone": self.zone, "topology_region": self.region}),
            "topics": [{"topic": topic, "tombstoned": tombstoned} for topic, tombstoned in sorted(self.topics)],
            "out_of_date": self.out_of_date,
        }


def join_address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _unless_empty(pairs: Json) -> Json:
    return {key: value for key, value in pairs.items() if value}


# ---- nodes ----


def nodes_of_lookup(answers: Mapping[str, Json]) -> list[Node]:
    """Return the nodes of all `/nodes` or `/lookup` answers, one per broadcast address and TCP port, by host name."""
    seen: dict[str, Node] = {}
    for lookupd, answer in answers.items():
        for producer in answer.get("producers") or ():
            node = _node_of_producer(lookupd, producer)
            known = seen.get(node.tcp_name)
            seen[node.tcp_name] = node if known is None else _known_twice(known, node)
    return _mark_out_of_date(sorted(seen.values(), key=_by_hostname))


def _node_of_producer(lookupd: str, producer: Json) -> Node:
    topics = producer.get("topics") or []
    tombstones = producer.get("tombstones") or []
    remote = str(producer.get("remote_address", ""))
    return Node(
        hostname=str(producer.get("hostname", "")),
        broadcast_address=str(producer.get("broadcast_address", "")),
        tcp_port=int(producer.get("tcp_port", 0)),
        http_port=int(producer.get("http_port", 0)),
        version=str(producer.get("version", "")),
        remote_address=remote,
        remote_addresses=(f"{lookupd}/{remote}",),
        topics=tuple(
            (str(topic), index < len(tombstones) and bool(tombstones[index])) for index, topic in enumerate(topics)
        ),
        zone=str(producer.get("topology_zone", "")),
        region=str(producer.get("topology_region", "")),
    )


def _known_twice(first: Node, again: Node) -> Node:
    topics = dict(first.topics)
    for topic, tombstoned in again.topics:
        topics[topic] = topics.get(topic, False) or tombstoned
    return replace(
        first,
        topics=tuple(topics.items()),
        remote_addresses=(first.remote_addresses or ()) + (again.remote_addresses or ()),
    )


def node_of_info(configured: str, info: Json, stats: Json | None = None) -> Node:
    """Return a node as its `/info` describes it, with topics from `/stats`, at a configured address."""
    host, _, port = configured.rpartition(":")
    broadcast = str(info.get("broadcast_address", "")) or host.strip("[]")
    topics = () if stats is None else stats.get("topics") or ()
    return Node(
        hostname=str(info.get("hostname", "")),
        broadcast_address=broadcast,
        tcp_port=int(info.get("tcp_port", 0)),
        http_port=int(info.get("http_port", 0)) or int(port),
        version=str(info.get("version", "")),
        remote_address=join_address(broadcast, int(info.get("http_port", 0)) or int(port)),
        topics=tuple((str(topic["topic_name"]), False) for topic in topics),
        zone=str(info.get("topology_zone", "")),
        region=str(info.get("topology_region", "")),
        configured=configured,
    )


def _mark_out_of_date(nodes: list[Node]) -> list[Node]:
    newest = max((version_key(node.version) for node in nodes), default=(0, 0, 0, (0, ())))
    return [replace(node, out_of_date=version_key(node.version) < newest) for node in nodes]


_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")


def version_key(version: str) -> tuple[int, int, int, tuple[int, tuple[tuple[int, int, str], ...]]]:
    """Return a key that sorts as semantic versioning does; an unreadable version counts as 0.0.0."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 0, 0, 0, (1, ())
    before = match[4]
    if before is None:
        return int(match[1]), int(match[2]), int(match[3]), (1, ())
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in before.split("."))
    return int(match[1]), int(match[2]), int(match[3]), (0, parts)


def _by_hostname(node: Node) -> tuple[str, str, int]:
    return node.hostname, node.broadcast_address, node.http_port


# ---- latency ----


def latency_of_node(raw: Json | None) -> Json:
    """Return the end-to-end latency of one node."""
    raw = raw or {}
    count = int(raw.get("count") or 0)
    points = raw.get("percentiles")
    if points is not None:
        points = [
            {
                "average": point["value"],
                "count": count,
                "max": point["value"],
                "min": point["value"],
                "quantile": point["quantile"],
                "value": point["value"],
            }
            for point in points
        ]
    return {"count": count, "percentiles": points, "topic": "", "channel": "", "host": ""}


def sum_latency(parts: Sequence[Json], *, topic: str, channel: str) -> Json:
    """Return several nodes' latencies as one: counts add up, the average is weighted, extremes are extremes."""
    count = sum([part["count"] for part in parts])
    if all(part["percentiles"] is None for part in parts):
        return {"count": count, "percentiles": None, "topic": topic, "channel": channel, "host": SUM}
    merged: dict[float, Json] = {}
    for part in parts:
        for point in part["percentiles"] or ():
            known = merged.get(point["quantile"])
            if known is None:
                merged[point["quantile"]] = {key: point[key] for key in ("average", "count", "max", "min", "quantile")}
                continue
            total = known["count"] + point["count"]
            weighted = known["average"] * known["count"] + point["average"] * point["count"]
            known["average"] = weighted / total if total else max(known["average"], point["average"])
            known["count"] = total
            known["max"] = max(known["max"], point["max"])
            known["min"] = min(known["min"], point["min"])
    points = sorted(merged.values(), key=lambda point: -float(point["quantile"]))
    return {"count": count, "percentiles": points, "topic": topic, "channel": channel, "host": SUM}


# ---- clients ----


def client_object(node: Node, raw: Json, *, now: float) -> Json:
    """Return one consumer of `node`; `now` is in Unix seconds."""
    connected_at = int(raw.get("connect_ts") or 0)
    return {
        "node": node.name,
        "remote_address": raw.get("remote_address", ""),
        "version": raw.get("version", ""),
        "client_id": raw.get("client_id", ""),
        "hostname": raw.get("hostname", ""),
        "user_agent": raw.get("user_agent", ""),
        "connect_ts": connected_at,
        "connected": max(0, int(now) - connected_at) * 1_000_000_000,
        "in_flight_count": raw.get("in_flight_count", 0),
        "ready_count": raw.get("ready_count", 0),
        "finish_count": raw.get("finish_count", 0),
        "requeue_count": raw.get("requeue_count", 0),
        "message_count": raw.get("message_count", 0),
        "sample_rate": raw.get("sample_rate", 0),
        "deflate": bool(raw.get("deflate")),
        "snappy": bool(raw.get("snappy")),
        "authed": bool(raw.get("authed")),
        "auth_identity": raw.get("auth_identity", ""),
        "auth_identity_url": raw.get("auth_identity_url", ""),
        **_unless_empty(
            {
                "node_topology_region": node.region,
                "node_topology_zone": node.zone,
                "topology_region": raw.get("topology_region", ""),
                "topology_zone": raw.get("topology_zone", ""),
            }
        ),
        "tls": bool(raw.get("tls")),
        "tls_cipher_suite": raw.get("tls_cipher_suite", ""),
        "tls_version": raw.get("tls_version", ""),
        "tls_negotiated_protocol": raw.get("tls_negotiated_protocol", ""),
        "tls_negotiated_protocol_is_mutual": bool(raw.get("tls_negotiated_protocol_is_mutual")),
        **({"active": bool(raw["active"])} if "active" in raw else {}),
    }


def locality(client: Json) -> str:
    """Return `zone` or `region` if client and nsqd share it, else an empty text."""
    if client.get("topology_region", "") != client.get("node_topology_region", ""):
        return ""
    if client.get("topology_zone") and client.get("topology_zone") == client.get("node_topology_zone"):
        return "zone"
    return "region" if client.get("topology_region") else ""


def _client_order(client: Json) -> tuple[str, int, str, str, str]:
    rank = {"zone": 0, "region": 1}.get(locality(client), 2)
    return (
        client["node"],
        rank,
        client.get("topology_region", ""),
        client.get("topology_zone", ""),
        client["remote_address"],
    )


# ---- channels and topics ----


def channel_of_node(node: Node, topic: str, raw: Json, *, now: float) -> Json:
    """Return a channel of one nsqd."""
    depth = raw.get("depth", 0)
    backend = raw.get("backend_depth", 0)
    local = [raw.get(key) or 0 for key in _LOCALITIES]
    clients = raw.get("clients")
    channel: Json = {
        "node": node.name,
        "hostname": node.hostname,
        "topic_name": topic,
        "channel_name": raw["channel_name"],
        "depth": depth,
        "memory_depth": depth - backend,
        "backend_depth": backend,
        "in_flight_count": raw.get("in_flight_count", 0),
        "deferred_count": raw.get("deferred_count", 0),
        "requeue_count": raw.get("requeue_count", 0),
        "timeout_count": raw.get("timeout_count", 0),
        "message_count": raw.get("message_count", 0),
    }
    if any(local):
        channel["delivery_msg_count"] = sum(local)
        channel.update((key, value) for key, value in zip(_LOCALITIES, local, strict=True) if value)
    # nsqd counts a Redis client while its read waits: count one that has read lately too, so that the figure is steady
    reading = sum([consumer.get("idle_seconds", 0.0) < _ACTIVE for consumer in raw.get("consumers") or ()])
    channel["client_count"] = max(raw.get("client_count", len(clients or ())), reading)
    channel["nodes"] = None
    channel["clients"] = None if clients is None else [client_object(node, client, now=now) for client in clients]
    if raw.get("consumers"):
        channel["consumers"] = [{"node": node.name, **consumer} for consumer in raw["consumers"]]
    if "active_consumer" in raw:
        channel["active_consumers"] = [raw["active_consumer"]] if raw["active_consumer"] else []
    if "keys_blocked" in raw:
        oldest = raw.get("oldest_blocked_key")
        channel["keys"] = {
            "blocked": raw["keys_blocked"],
            "waiting": raw.get("waiting_for_key", 0),
            "oldest": None if oldest is None else {"node": node.name, **oldest},
        }
    channel["paused"] = bool(raw.get("paused"))
    channel["e2e_processing_latency"] = latency_of_node(raw.get("e2e_processing_latency"))
    return channel


_ACTIVE: Final = 60.0  # s since a named consumer's last command
_CHANNEL_SUMS: Final = (
    "depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count",
    "message_count",
)  # fmt: skip
_TOPIC_SUMS: Final = ("depth", "memory_depth", "backend_depth", "message_count", "delivery_msg_count")


def sum_channel(topic: str, name: str, parts: Sequence[Json]) -> Json:
    """Return the same channel of several nsqds as one, with the parts in `nodes`."""
    if len(parts) == 1:  # most channels of a large cluster are on one node
        channel: Json = {**parts[0], "node": SUM, "hostname": ""}
    else:
        channel = {"node": SUM, "hostname": "", "topic_name": topic, "channel_name": name}
        for key in _CHANNEL_SUMS:
            channel[key] = sum([part[key] for part in parts])
        for key in ("delivery_msg_count", *_LOCALITIES):
            if total := sum([part.get(key, 0) for part in parts]):
                channel[key] = total
        channel["client_count"] = sum([part["client_count"] for part in parts])
    channel["nodes"] = list(parts)
    lists = [part["clients"] for part in parts if part["clients"] is not None]
    channel["clients"] = (
        sorted((client for clients in lists for client in clients), key=_client_order) if lists else None
    )
    consumers = [consumer for part in parts for consumer in part.get("consumers", ())]
    if consumers:
        channel["consumers"] = consumers
    if any("active_consumers" in part for part in parts):  # one on each node
        channel["active_consumers"] = [name for part in parts for name in part.get("active_consumers", ())]
    if keys := [part["keys"] for part in parts if "keys" in part]:
        oldest = [each["oldest"] for each in keys if each["oldest"] is not None]
        channel["keys"] = {
            "blocked": sum([each["blocked"] for each in keys]),
            "waiting": sum([each["waiting"] for each in keys]),
            "oldest": max(oldest, key=lambda each: float(each["seconds"]), default=None),
        }
    channel["paused"] = any(part["paused"] for part in parts)
    channel["e2e_processing_latency"] = sum_latency(
        [part["e2e_processing_latency"] for part in parts], topic=topic, channel=name
    )
    return channel


def topic_of_node(node: Node, raw: Json, *, now: float) -> Json:
    """Return a topic of one nsqd."""
    name = raw["topic_name"]
    depth = raw.get("depth", 0)
    backend = raw.get("backend_depth", 0)
    return {
        "node": node.name,
        "hostname": node.hostname,
        "topic_name": name,
        "depth": depth,
        "memory_depth": depth - backend,
        "backend_depth": backend,
        "message_count": raw.get("message_count", 0),
        "delivery_msg_count": 0,
        "nodes": None,
        "channels": [channel_of_node(node, name, channel, now=now) for channel in raw.get("channels") or ()],
        "paused": bool(raw.get("paused")),
        "e2e_processing_latency": latency_of_node(raw.get("e2e_processing_latency")),
    }


def sum_topic(name: str, parts: Sequence[Json]) -> Json:
    """Return a topic of several nsqds as one, with the parts in `nodes` and each channel summed."""
    by_channel: dict[str, list[Json]] = {}
    for part in parts:
        for channel in part["channels"]:
            by_channel.setdefault(channel["channel_name"], []).append(channel)
    return {
        "node": SUM,
        "hostname": "",
        "topic_name": name,
        **{key: sum([part[key] for part in parts]) for key in _TOPIC_SUMS},
        "nodes": list(parts),
        "channels": [sum_channel(name, channel, by_channel[channel]) for channel in sorted(by_channel)],
        "paused": any(part["paused"] for part in parts),
        "e2e_processing_latency": sum_latency(
            [part["e2e_processing_latency"] for part in parts], topic=name, channel=""
        ),
    }


def topics_of_stats(stats: Iterable[tuple[Node, Json]], *, now: float) -> dict[str, Json]:
    """Return every topic of the `/stats` answers, summed over nodes, in order of names."""
    parts: dict[str, list[Json]] = {}
    for node, answer in sorted(stats, key=lambda pair: _by_hostname(pair[0])):
        for raw in answer.get("topics") or ():
            parts.setdefault(raw["topic_name"], []).append(topic_of_node(node, raw, now=now))
    return {name: sum_topic(name, parts[name]) for name in sorted(parts)}


def node_report(node: Node, answer: Json, *, now: float) -> Json:
    """Return the topics of one node, and its numbers of messages and clients."""
    topics = [topic_of_node(node, raw, now=now) for raw in answer.get("topics") or ()]
    return {
        "node": node.name,
        "topics": topics,
        "total_messages": sum(topic["message_count"] for topic in topics),
        "total_clients": sum(channel["client_count"] for topic in topics for channel in topic["channels"]),
    }


def counter_of_stats(stats: Iterable[tuple[Node, Json]]) -> Json:
    """Return the message count of every channel on every node, keyed `topic:channel:node`, by topic and channel."""
    counts = [
        {
            "node": node.name,
            "topic_name": topic["topic_name"],
            "channel_name": channel["channel_name"],
            "message_count": channel.get("message_count", 0),
        }
        for node, answer in sorted(stats, key=lambda pair: _by_hostname(pair[0]))
        for topic in answer.get("topics") or ()
        for channel in topic.get("channels") or ()
    ]
    counts.sort(key=itemgetter("topic_name"))
    return {f"{one['topic_name']}:{one['channel_name']}:{one['node']}": one for one in counts}


# ---- dead letters ----


@dataclass(frozen=True, slots=True)
class DeadTopic:
    """A dead-letter topic over all nodes that have it."""

    name: str
    letters: int
    by_node: dict[str, int]
    tasks: dict[str, Json]  # the last redrive of each node that had one

    @property
    def running(self) -> dict[str, Json]:
        """The redrives that are not finished."""
        return {node: task for node, task in self.tasks.items() if task["state"] == "running"}


def dead_topics(answers: Mapping[str, Json]) -> dict[str, DeadTopic]:
    """Join the `/dead` answers of nodes, by topic."""
    counts: dict[str, dict[str, int]] = {}
    tasks: dict[str, dict[str, Json]] = {}
    for node, answer in answers.items():
        for each in answer.get("topics") or ():
            counts.setdefault(each["topic"], {})[node] = each["letters"]
            if each.get("redrive"):
                tasks.setdefault(each["topic"], {})[node] = each["redrive"]
    return {
        name: DeadTopic(name, sum(by_node.values()), by_node, tasks.get(name, {}))
        for name, by_node in sorted(counts.items())
    }
