"""Every setting of nsqlookupd, typed and documented, with its default."""

import os
from dataclasses import dataclass
from typing import Final

from lapwing.net.options import DURATION, INTEGER, LEVEL, STRING, option

VERSION: Final = "1.3.0"  # of the NSQ whose behaviour this is; clients look at it


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an operator may decide. Times are ns. The last five are lapwing's own; the limits are off by default."""

    broadcast_address: str = option(
        lambda: os.uname().nodename, "address told to the nsqds that connect", kind=STRING, shown="the host name"
    )
    config: str = option("", "path to a TOML config file", key="")
    http_address: str = option("0.0.0.0:4161", "`host:port` to listen on for HTTP clients")
    inactive_producer_timeout: int = option("5m", "a producer silent for longer is left out of answers", kind=DURATION)
    log_level: int = option("info", "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqlookupd] ", "start of every log line")
    tcp_address: str = option("0.0.0.0:4160", "`host:port` to listen on for nsqds")
    tombstone_lifetime: int = option("45s", "how long a tombstone hides a producer", kind=DURATION)
    verbose: bool = option(False, "accepted, no effect", key="")
    version: bool = option(False, "print version string", key="")
    max_peers: int = option(0, "nsqds that may be connected at once; 0: any number", kind=INTEGER)
    max_http_connections: int = option(0, "HTTP clients that may be connected at once; 0: any number", kind=INTEGER)
    max_registrations: int = option(0, "topics and channels that may be registered; 0: any number", kind=INTEGER)
    peer_timeout: int = option("0s", "hang up on an nsqd that was silent for so long; 0s: never", kind=DURATION)
    departed_lifetime: int = option(
        "24h", "how long a disconnected nsqd is remembered in `/producers`, for readers of logs; 0s: not at all",
        kind=DURATION,
    )
