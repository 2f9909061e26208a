"""The texts of INFO and CLIENT LIST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.sessions.redis.context import VERSION, RedisContext
from lapwing.wire.resp import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapwing.sessions.redis.client_state import ClientState

_SECOND: Final = 1_000_000_000  # ns
_EVERYTHING: Final = frozenset({"all", "default", "everything"})


def info(context: RedisContext, sections: list[str], *, now: int) -> str:
    """Return the sections that were asked for, all of them without a name; an unknown one is empty."""
    wanted = set(sections)
    everything = not wanted or bool(wanted & _EVERYTHING)
    parts = []
    for name, lines in _SECTIONS.items():
        if everything or name in wanted:
            pairs = lines(context, now)
            parts.append(f"# {name.capitalize()}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in pairs))
    return "\r\n".join(parts)


def client_line(session: ClientState, *, now: int) -> str:
    """Return the line of CLIENT LIST for one connection."""
    peer = session.peer
    flags = "b" if session.wait is not None else "x" if session.queue is not None else "N"
    fields = {
        "id": session.id,
        "addr": peer.address,
        "laddr": peer.local_address,
        "fd": 0,
        "name": peer.name.decode("latin-1"),
        "age": max(now - peer.connected, 0) // _SECOND,
        "idle": max(now - peer.active, 0) // _SECOND,
        "flags": flags,
        "db": session.database,
        "sub": 0,
        "psub": 0,
        "ssub": 0,
        "multi": -1 if session.queue is None else len(session.queue),
        "watch": len(session.watched),
        "qbuf": 0,
        "qbuf-free": 0,
        "argv-mem": 0,
        "multi-mem": session.queue_size,
        "rbs": 0,
        "rbp": 0,
        "obl": 0,
        "oll": session.replies.waiting,
        "omem": 0,
        "tot-mem": 0,
        "events": "r",
        "cmd": peer.command or "NULL",
        "user": session.user,
        "redir": -1,
        "resp": session.protocol,
        "lib-name": peer.library.decode("latin-1"),
        "lib-ver": peer.library_version.decode("latin-1"),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()) + "\n"


_Pairs = list[tuple[str, object]]


def _server(context: RedisContext, now: int) -> _Pairs:
    facts = context.facts()
    uptime = max(now - facts.started, 0) // _SECOND
    return [
        ("redis_version", VERSION),
        ("server_name", "lapwing"),
        ("redis_mode", "standalone"),
        ("os", facts.system),
        ("arch_bits", 64),
        ("multiplexing_api", "asyncio"),
        ("process_id", facts.process_id),
        ("tcp_port", facts.port),
        ("server_time_usec", (now + context.broker.skew) // 1000),
        ("uptime_in_seconds", uptime),
        ("uptime_in_days", uptime // 86400),
    ]


def _clients(context: RedisContext, now: int) -> _Pairs:
    waiting = sum(session.wait is not None for session in context.sessions.values())
    return [
        ("connected_clients", len(context.sessions)),
        ("cluster_connections", 0),
        ("maxclients", context.broker.options.max_connections or 10000),
        ("blocked_clients", waiting),
        ("nsq_clients", len(context.broker.clients)),
    ]


def _memory(context: RedisContext, now: int) -> _Pairs:
    memory = context.facts().memory
    return [
        ("used_memory", memory),
        ("used_memory_human", f"{memory / (1 << 20):.2f}M"),
        ("used_memory_rss", memory),
        ("maxmemory", 0),
        ("maxmemory_human", "0B"),
        ("maxmemory_policy", "noeviction"),
        ("mem_fragmentation_ratio", "1.00"),
    ]


def _persistence(context: RedisContext, now: int) -> _Pairs:
    broker = context.broker
    healthy = "ok" if broker.health is None else "err"
    return [
        ("loading", 0),
        ("async_loading", 0),
        ("rdb_changes_since_last_save", 0),
        ("rdb_bgsave_in_progress", 0),
        ("rdb_last_bgsave_status", "ok"),
        ("aof_enabled", int(broker.options.answers_wait)),
        ("aof_rewrite_in_progress", 0),
        ("aof_last_bgrewrite_status", "ok"),
        ("aof_last_write_status", healthy),
        ("durability", broker.options.durability),
        ("log_bytes", sum(topic.log.bytes for topic in broker.topics.values())),
    ]


def _stats(context: RedisContext, now: int) -> _Pairs:
    counts = context.counts
    return [
        ("total_connections_received", counts.connections),
        ("total_commands_processed", counts.commands),
        ("rejected_connections", counts.rejected),
        ("total_error_replies", counts.errors),
        ("expired_keys", 0),
        ("evicted_keys", 0),
        ("pubsub_channels", 0),
        ("messages_published", sum(topic.message_count for topic in context.broker.topics.values())),
    ]


_REPLICATION: Final[_Pairs] = [
    ("role", "master"),
    ("connected_slaves", 0),
    ("master_failover_state", "no-failover"),
    ("master_replid", "0" * 40),
    ("master_repl_offset", 0),
]


def _cpu(context: RedisContext, now: int) -> _Pairs:
    facts = context.facts()
    return [("used_cpu_sys", f"{facts.cpu_system:.6f}"), ("used_cpu_user", f"{facts.cpu_user:.6f}")]


def _keyspace(context: RedisContext, now: int) -> _Pairs:
    counts = {database: sum(1 for _ in context.streams(database)) for database in range(keys.DATABASES)}
    return [(f"db{each}", f"keys={count},expires=0,avg_ttl=0,subexpiry=0") for each, count in counts.items() if count]


_SECTIONS: Final[dict[str, Callable[[RedisContext, int], _Pairs]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": lambda context, now: _REPLICATION,
    "cpu": _cpu,
    "modules": lambda context, now: [],
    "cluster": lambda context, now: [("cluster_enabled", 0)],
    "keyspace": _keyspace,
}
