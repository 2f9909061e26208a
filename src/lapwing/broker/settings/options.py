"""Every setting of nsqd with its type, default and help: the one source of flags, config keys and docs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final, Literal

from lapwing import ids
from lapwing.log.log import LogOptions
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
    without_secrets,
    words,
)
from lapwing.records import dataclass

TOPOLOGY_AWARE: Final = "topology-aware-consumption"


def _hostname() -> str:
    return os.uname().nodename


def _one_of(*words: str) -> Kind:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)} expected")
        return str(value)

    return Kind("string", read, read)


TRANSPORT: Final = _one_of("auto", "epoll", "asyncio")
DURABILITY: Final = _one_of("memory", "os", "fsync", "replicated")
REMOTE: Final = Kind("string", str, STRING.from_file, without_secrets, without_secrets)
TAKE_OVER: Final = words("value", {"false": 0, "true": 1, "always": 2}, boolean=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of nsqd. Times are ns."""

    config: str = option("", "read settings from this TOML file; flags override them", key="")
    version: bool = option(False, "print the version and exit", key="")
    log_level: int = option("info", "log lines of this level and above: debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqd] ", "begin every log line with this text")
    verbose: bool = option(False, "accepted for compatibility, without effect", key="")
    node_id: int = option(
        lambda: ids.default_node(_hostname()),
        "put this number into message ids, 0 to 1023; every node needs its own",
        key="id",
        shown="a hash of the host name",
        kind=INTEGER,
    )
    worker_id: bool = option(False, "accepted for compatibility, without effect", key="")
    tcp_address: str = option("0.0.0.0:4150", "listen on this host:port or Unix socket path for TCP clients")
    http_address: str = option(
        "0.0.0.0:4151", "listen on this host:port or Unix socket path for HTTP clients; empty: do not"
    )
    https_address: str = option(
        "0.0.0.0:4152", "listen on this host:port for HTTPS clients, if there is a certificate; empty: do not"
    )
    redis_address: str = option("", "listen on this host:port or Unix socket path for Redis clients; empty: do not")
    redis_tls_address: str = option(
        "", "listen on this host:port for Redis clients with TLS, if there is a certificate; empty: do not"
    )
    redis_flush: bool = option(
        False, "let Redis clients delete every stream with FLUSHDB and FLUSHALL; false: refuse these commands"
    )
    redis_trim_unread: bool = option(
        False, "let MAXLEN and MINID of Redis clients delete entries that a group has not finished; false: keep them"
    )
    broadcast_address: str = option(
        _hostname,
        "register this address with nsqlookupd, for clients to connect to",
        shown="the host name",
        kind=STRING,
    )
    broadcast_tcp_port: int = option(0, "register this TCP port with nsqlookupd; 0: the one that is listened on")
    broadcast_http_port: int = option(0, "register this HTTP port with nsqlookupd; 0: the one that is listened on")
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        "register topics and channels with this nsqlookupd (TCP host:port)",
        flag="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
        kind=STRINGS,
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
    auth_http_request_method: str = option("get", "ask auth servers with this method: get or post")
    http_client_connect_timeout: int = option(
        "2s", "wait this long for a connection to an auth server or nsqlookupd (HTTP)", kind=DURATION
    )
    http_client_request_timeout: int = option(
        "5s", "wait this long for the answer of an auth server or nsqlookupd (HTTP)", kind=DURATION
    )
    topology_region: str = option("", "name the region of this server, for topology-aware consumption")
    topology_zone: str = option("", "name the zone of this server, for topology-aware consumption")
    enable_experiment: tuple[str, ...] = option(
        (), f"switch on an experimental feature: {TOPOLOGY_AWARE}", kind=STRINGS
    )

    data_path: str = option("", "store logs and metadata in this directory", shown="the current directory")
    durability: Literal["memory", "os", "fsync", "replicated"] = option(
        "os",
        "acknowledge a publish when it is in memory (like NSQ), written to its log (os), synced to disk (fsync), or in "
        "a remote log (replicated)",
        kind=DURABILITY,
    )
    remote: str = option(
        "",
        "keep the remote log of --durability=replicated here: s3://BUCKET/PREFIX, gs://, az://, file:///FOLDER or "
        "postgresql://HOST/DATABASE",
        kind=REMOTE,
    )
    remote_interval: int = option(
        "10ms", "write what no publisher waits for to the remote log at most this often", kind=DURATION
    )
    remote_batch_bytes: int = option(8388608, "write messages beyond this many bytes beside the record that has them")
    remote_checkpoint: int = option(
        67108864, "write a checkpoint of the remote log after this many bytes of records, or 10 minutes"
    )
    remote_lag: int = option(
        "30s", "answer a publish with an error when it is not in the remote log after this long", kind=DURATION
    )
    take_over: int = option(
        "false",
        "take the remote log over although its last owner did not release it; always: the same, for unit files",
        kind=TAKE_OVER,
    )
    mem_queue_size: int = option(
        10000, "keep at most this many messages in memory per ephemeral topic or channel, and with --durability=memory"
    )
    max_bytes_per_file: int = option(104857600, "start a new log segment when one has this many bytes")
    sync_every: int = option(2500, "accepted for compatibility: logs are synced every --sync-timeout")
    sync_timeout: int = option("2s", "sync a log to disk at most this long after it was written to", kind=DURATION)
    retention_bytes: int = option(0, "keep this many bytes of finished messages per topic for replay; 0: none")
    retention_age: int = option("0s", "keep finished messages for replay this long; 0s: not at all", kind=DURATION)
    retention_count: int = option(0, "keep this many finished messages per topic for replay; 0: none")
    min_free_bytes: int = option(
        67108864,
        "keep this much disk free: delete segments kept for replay first, then refuse publishes; 0: use all of it",
    )
    checkpoint_interval: int = option("250ms", "write finished messages to the journal this often", kind=DURATION)
    requeue_on_disconnect: bool = option(
        True, "requeue a consumer's messages when it disconnects; false: after their timeout, like NSQ", kind=BOOLEAN
    )

    queue_scan_worker_pool_max: int = option(4, "accepted for compatibility, without effect: deadlines are exact")
    queue_scan_selection_count: int = option(
        20, "work on this many channels with expired deadlines before anything else gets its turn"
    )

    msg_timeout: int = option(
        "1m", "requeue a message that a consumer has not finished within this time", kind=DURATION
    )
    max_msg_timeout: int = option("15m", "refuse longer message timeouts, and touches beyond this", kind=DURATION)
    max_msg_size: int = option(1048576, "refuse messages with more bytes")
    max_body_size: int = option(5242880, "refuse bodies of IDENTIFY, AUTH and MPUB with more bytes")
    max_req_timeout: int = option(
        "1h", "refuse to defer a publish for longer, and shorten longer delays of requeues to this", kind=DURATION
    )
    max_defer: int = option("0s", "refuse to defer a publish for longer; 0s: --max-req-timeout holds", kind=DURATION)
    max_heartbeat_interval: int = option("1m", "refuse longer heartbeat intervals", kind=DURATION)
    max_rdy_count: int = option(2500, "refuse a larger RDY")
    max_output_buffer_size: int = option(65536, "refuse larger output buffers, in bytes")
    max_output_buffer_timeout: int = option("30s", "refuse longer output buffer timeouts", kind=DURATION)
    min_output_buffer_timeout: int = option("25ms", "refuse shorter output buffer timeouts", kind=DURATION)
    output_buffer_timeout: int = option(
        "250ms", "answer clients that ask for no output buffer timeout with this one", kind=DURATION
    )
    max_channel_consumers: int = option(0, "accept at most this many consumers of a channel; 0: any number")
    tcp_transport: str = option(
        "auto", "serve TCP clients with epoll (Linux), asyncio, or auto: epoll where there is one", kind=TRANSPORT
    )
    max_connections: int = option(0, "accept at most this many TCP connections at a time; 0: any number")
    max_http_connections: int = option(10_000, "accept at most this many HTTP connections at a time; 0: any number")
    max_memory: int = option(
        0,
        "refuse publishes while nsqd holds more bytes of memory than this; 0: 80 % of the machine's or container's, "
        "-1: never refuse for that",
    )
    max_topics: int = option(0, "create at most this many topics; 0: any number")
    max_channels: int = option(0, "create at most this many channels of a topic; 0: any number")
    magic_timeout: int = option(
        "2m", "disconnect a client that sends nothing for this long after it has connected; 0: never", kind=DURATION
    )

    statsd_address: str = option("", "push figures to the statsd server at this UDP host:port; empty: do not")
    statsd_prefix: str = option("nsq.%s", "begin statsd keys with this text; %s is the broadcast address and HTTP port")
    statsd_interval: int = option("1m", "push to statsd this often", kind=DURATION)
    statsd_mem_stats: bool = option(True, "push memory figures to statsd too; false: leave them out")
    statsd_udp_packet_size: int = option(508, "send statsd datagrams of at most this many bytes")
    statsd_exclude_ephemeral: bool = option(
        False, "leave ephemeral topics and channels out of statsd; false: push them too"
    )

    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (), "track this percentile (0 < q <= 1) of the times from publish to FIN, repeatable or comma-separated",
        flag="e2e-processing-latency-percentile", key="e2e_processing_latency_percentiles", kind=FLOATS,
    )  # fmt: skip
    e2e_processing_latency_window_time: int = option("10m", "track percentiles over this long", kind=DURATION)

    tls_cert: str = option("", "use the certificate in this PEM file for TLS; empty: no TLS")
    tls_key: str = option("", "use the key in this PEM file for TLS")
    tls_client_auth_policy: str = option(
        "",
        "require client certificates that --tls-root-ca-file trusts: require or require-verify; empty: ask for none",
    )
    tls_root_ca_file: str = option("", "trust the certificate authorities in this PEM file; empty: those of the system")
    tls_required: int = option(
        "false",
        "require TLS of all clients (true), of all but HTTP clients (tcp-https), or of none (false)",
        kind=TLS_REQUIRED,
    )
    tls_min_version: int = option(
        "tls1.2", "refuse lower versions of TLS than this: tls1.0, tls1.1, tls1.2 or tls1.3", kind=TLS_VERSION
    )
    deflate: bool = option(True, "allow deflate compression; false: grant it to nobody")
    max_deflate_level: int = option(6, "grant clients at most this deflate level, 1 to 9")
    snappy: bool = option(True, "allow snappy compression; false: grant it to nobody")

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
        """The most messages that an MPUB may hold."""
        return (self.max_body_size - 4) // 5

    @property
    def answers_wait(self) -> bool:
        """Whether an answer waits until its message survives more than the process: a power loss, or the machine."""
        return self.durability in ("fsync", "replicated")

    @property
    def log_options(self) -> LogOptions:
        """The settings of logs."""
        found = LogOptions(
            durability="os" if self.durability == "replicated" else self.durability,
            segment_bytes=self.max_bytes_per_file,
            mem_queue_size=self.mem_queue_size,
            min_free_bytes=self.min_free_bytes // 2,
        )
        if self.durability == "replicated":  # what comes while a record is under way is not read back from the disk
            return replace(found, tail_bytes=4 * found.tail_bytes)
        return found
