"""Every setting of nsqd, typed and documented, with its default: the one source of flags, config keys and docs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from lapwing import ids
from lapwing.log.log import LogOptions
from lapwing.log.options import Durability
from lapwing.net.options import (
    ADDRESSES,
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGER,
    LEVEL,
    STRING,
    STRINGS,
    TLS_REQUIRED,
    TLS_VERSION,
    Kind,
    option,
)

VERSION: Final = "1.3.0"  # of the NSQ whose behaviour this is; clients look at it

TOPOLOGY_AWARE: Final = "topology-aware-consumption"


def _hostname() -> str:
    return os.uname().nodename


def _durability(text: object) -> Durability:
    if text not in ("memory", "os", "fsync"):
        raise ValueError("one of memory, os, fsync expected")
    return text


def _transport(text: object) -> str:
    if text not in ("auto", "epoll", "asyncio"):
        raise ValueError("one of auto, epoll, asyncio expected")
    return str(text)


TRANSPORT: Final = Kind("string", _transport, _transport)
DURABILITY: Final = Kind("string", _durability, _durability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an operator may decide. Times are ns."""

    config: str = option("", "path to a TOML config file", key="")
    version: bool = option(False, "print version string", key="")
    log_level: int = option("info", "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqd] ", "start of every log line")
    verbose: bool = option(False, "accepted, no effect", key="")
    node_id: int = option(
        lambda: ids.default_node(_hostname()),
        "unique part of message ids, 0 to 1023",
        key="id",
        shown="a hash of the host name",
        kind=INTEGER,
    )
    worker_id: bool = option(False, "accepted, no effect", key="")
    tcp_address: str = option("0.0.0.0:4150", "host:port or path of a Unix socket to listen on for TCP clients")
    http_address: str = option("0.0.0.0:4151", "address (host:port) or path of a Unix socket for HTTP; empty: none")
    https_address: str = option("0.0.0.0:4152", "address (host:port) for HTTPS, with a certificate; empty: none")
    redis_address: str = option("", "address (host:port) or path of a Unix socket for Redis clients; empty: none")
    redis_tls_address: str = option("", "address (host:port) for Redis over TLS, with a certificate; empty: none")
    redis_flush: bool = option(
        False, "let Redis clients delete every stream with FLUSHDB and FLUSHALL; false: refuse these commands"
    )
    redis_trim_unread: bool = option(
        False, "let MAXLEN and MINID of Redis clients delete entries that a group has not finished; false: keep them"
    )
    broadcast_address: str = option(
        _hostname, "address that is registered with nsqlookupd", shown="the host name", kind=STRING
    )
    broadcast_tcp_port: int = option(0, "TCP port that is registered with nsqlookupd; 0: the real one")
    broadcast_http_port: int = option(0, "HTTP port that is registered with nsqlookupd; 0: the real one")
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqlookupd TCP address", flag="lookupd-tcp-address", key="nsqlookupd_tcp_addresses", kind=STRINGS
    )
    auth_http_addresses: tuple[str, ...] = option(
        (), "ask this auth server (host:port or URL) what a client may do, over TCP and HTTP; none: allow everything",
        flag="auth-http-address", key="auth_http_addresses", kind=ADDRESSES,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = option(
        (), "answer browsers that call nsqd by this host name; none: only by its own names and addresses",
        flag="allowed-host", key="allowed_hosts", kind=STRINGS,
    )  # fmt: skip
    stats_without_auth: bool = option(
        False, "serve /stats and /metrics without a secret although --auth-http-address is set; false: ask for one"
    )
    auth_http_request_method: str = option("get", "how auth servers are asked, get or post")
    http_client_connect_timeout: int = option("2s", "connect timeout of outgoing HTTP", kind=DURATION)
    http_client_request_timeout: int = option("5s", "overall timeout of outgoing HTTP", kind=DURATION)
    topology_region: str = option("", "this server's region, for topology-aware consumption")
    topology_zone: str = option("", "this server's zone, for topology-aware consumption")
    enable_experiment: tuple[str, ...] = option((), f"experimental feature: {TOPOLOGY_AWARE}", kind=STRINGS)

    data_path: str = option("", "where logs and metadata live", shown="the current directory")
    durability: Durability = option(  # noqa: RUF009 - a Literal makes ruff take it for a call like any other
        "os", "when a publish is acknowledged: memory (as NSQ), os (written to the log), fsync", kind=DURABILITY
    )
    mem_queue_size: int = option(10000, "messages kept in memory: of ephemeral topics, and with --durability=memory")
    max_bytes_per_file: int = option(104857600, "size at which a log segment is closed and the next one begun")
    sync_every: int = option(2500, "accepted for compatibility; what is written is synced every --sync-timeout")
    sync_timeout: int = option("2s", "longest time between two fsyncs of a log that was written to", kind=DURATION)
    retention_bytes: int = option(0, "bytes per topic to keep for replay although every channel is done with them")
    retention_age: int = option("0s", "time to keep messages for replay although every channel is done", kind=DURATION)
    retention_count: int = option(0, "newest messages per topic to keep for replay although every channel is done")
    min_free_bytes: int = option(
        67108864, "disk space to keep free: kept-for-replay segments go first, then publishes are refused; 0: no guard"
    )
    checkpoint_interval: int = option("250ms", "how often finished messages are written to the journal", kind=DURATION)
    requeue_on_disconnect: bool = option(
        True, "what a consumer held is ready again as it disconnects; false: at its timeout, as NSQ does", kind=BOOLEAN
    )

    queue_scan_worker_pool_max: int = option(4, "accepted for compatibility; deadlines are kept in one exact agenda")
    queue_scan_selection_count: int = option(20, "channels whose deadlines are looked at before others get their turn")

    msg_timeout: int = option("1m", "how long a consumer has for a message", kind=DURATION)
    max_msg_timeout: int = option("15m", "longest timeout that a client may ask for, touches included", kind=DURATION)
    max_msg_size: int = option(1048576, "largest message body, in bytes")
    max_body_size: int = option(5242880, "largest IDENTIFY, AUTH or MPUB body, in bytes")
    max_req_timeout: int = option("1h", "longest delay of a requeue", kind=DURATION)
    max_defer: int = option("0s", "longest delay of a deferred publish; 0: that of --max-req-timeout", kind=DURATION)
    max_heartbeat_interval: int = option("1m", "longest heartbeat interval that a client may ask for", kind=DURATION)
    max_rdy_count: int = option(2500, "largest RDY")
    max_output_buffer_size: int = option(65536, "largest output buffer that a client may ask for, in bytes")
    max_output_buffer_timeout: int = option("30s", "longest output buffer timeout a client may ask for", kind=DURATION)
    min_output_buffer_timeout: int = option("25ms", "shortest output buffer timeout of a client", kind=DURATION)
    output_buffer_timeout: int = option("250ms", "output buffer timeout that clients are told", kind=DURATION)
    max_channel_consumers: int = option(0, "most consumers of one channel; 0: no limit")
    tcp_transport: str = option(
        "auto", "how TCP clients are served: epoll (Linux), asyncio, or auto (epoll where there is one)", kind=TRANSPORT
    )
    max_connections: int = option(0, "accept at most this many TCP connections at a time; 0: any number")
    max_http_connections: int = option(10_000, "accept at most this many HTTP connections at a time; 0: any number")
    max_memory: int = option(
        0, "refuse publishes while nsqd holds more bytes of memory than this; 0: 80 % of the machine's or container's, "
        "-1: never refuse for that",
    )
    max_topics: int = option(0, "most topics; 0: no limit")
    max_channels: int = option(0, "most channels of one topic; 0: no limit")
    magic_timeout: int = option("2m", "how long a new connection may stay silent; 0: no limit", kind=DURATION)

    statsd_address: str = option("", "UDP host:port of a statsd server; empty: none")
    statsd_prefix: str = option("nsq.%s", "prefix of statsd keys; %s is the broadcast address and HTTP port")
    statsd_interval: int = option("1m", "time between two pushes to statsd", kind=DURATION)
    statsd_mem_stats: bool = option(True, "push memory figures to statsd too")
    statsd_udp_packet_size: int = option(508, "largest statsd datagram, in bytes")
    statsd_exclude_ephemeral: bool = option(False, "leave ephemeral topics and channels out of statsd")

    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (), "percentile (0 < q <= 1) of publish-to-FIN times to track, repeatable or comma-separated",
        flag="e2e-processing-latency-percentile", key="e2e_processing_latency_percentiles", kind=FLOATS,
    )  # fmt: skip
    e2e_processing_latency_window_time: int = option("10m", "window for those percentiles", kind=DURATION)

    tls_cert: str = option("", "path to the certificate (PEM)")
    tls_key: str = option("", "path to its key (PEM)")
    tls_client_auth_policy: str = option("", "client certificates: require, or require-verify (by --tls-root-ca-file)")
    tls_root_ca_file: str = option("", "path to the certificate authorities (PEM)")
    tls_required: int = option("false", "require TLS: true, false, or tcp-https (not of HTTP)", kind=TLS_REQUIRED)
    tls_min_version: int = option("tls1.2", "lowest TLS version: tls1.0, tls1.1, tls1.2 or tls1.3", kind=TLS_VERSION)
    deflate: bool = option(True, "allow deflate compression")
    max_deflate_level: int = option(6, "highest deflate level that a client may ask for, 1 to 9")
    snappy: bool = option(True, "allow snappy compression")

    deferred_limit: int | None = None  # not a setting: --mem-queue-size where it was given, see differences.md

    @property
    def topology_aware(self) -> bool:
        """Whether consumers nearby come first."""
        return TOPOLOGY_AWARE in self.enable_experiment

    @property
    def longest_defer(self) -> int:
        """Longest delay of a deferred publish, ns."""
        return self.max_defer or self.max_req_timeout

    @property
    def max_batch_count(self) -> int:
        """How many messages an MPUB may hold."""
        return (self.max_body_size - 4) // 5

    @property
    def log_options(self) -> LogOptions:
        """How logs are kept."""
        return LogOptions(
            durability=self.durability,
            segment_bytes=self.max_bytes_per_file,
            mem_queue_size=self.mem_queue_size,
            min_free_bytes=self.min_free_bytes // 2,
        )
