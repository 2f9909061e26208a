"""Every setting of nsqlookupd, typed and documented, with its default."""

import os

from lapwing.net.options import DURATION, INTEGER, LEVEL, STRING, STRINGS, option
from lapwing.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """The settings of nsqlookupd. Times are ns. The last seven are lapwing's own."""

    broadcast_address: str = option(
        lambda: os.uname().nodename, "send this address to the nsqds that connect", kind=STRING, shown="the host name"
    )
    config: str = option("", "read settings from this TOML file", key="")
    http_address: str = option("0.0.0.0:4161", "listen on this `host:port` for HTTP clients")
    inactive_producer_timeout: int = option(
        "5m", "leave nsqds out of answers that sent nothing for this long", kind=DURATION
    )
    log_level: int = option("info", "log lines of this level and above: debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqlookupd] ", "begin every log line with this text")
    tcp_address: str = option("0.0.0.0:4160", "listen on this `host:port` for nsqds")
    tombstone_lifetime: int = option("45s", "hide a tombstoned nsqd from lookups for this long", kind=DURATION)
    verbose: bool = option(False, "accepted for compatibility, without effect", key="")
    version: bool = option(False, "print the version and exit", key="")
    allowed_hosts: tuple[str, ...] = option(
        (), "answer browsers that call nsqlookupd by this host name; none: only by its own names and addresses",
        flag="allowed-host", key="allowed_hosts", kind=STRINGS,
    )  # fmt: skip
    max_peers: int = option(0, "accept at most this many nsqds at a time; 0: any number", kind=INTEGER)
    max_http_connections: int = option(
        10_000, "accept at most this many HTTP connections at a time; 0: any number", kind=INTEGER
    )
    max_registrations: int = option(
        2_000_000, "register at most this many topics and channels together; 0: any number", kind=INTEGER
    )
    max_registrations_per_peer: int = option(
        500_000, "let one nsqd register at most this many topics and channels; 0: any number", kind=INTEGER
    )
    peer_timeout: int = option("0s", "disconnect an nsqd that sent nothing for this long; 0s: never", kind=DURATION)
    departed_lifetime: int = option(
        "24h", "keep a disconnected nsqd in `/producers` for this long, for readers of logs; 0s: not at all",
        kind=DURATION,
    )
