"""The state that all connections of one broker share."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from lapwing.broker.broker import Broker
from lapwing.broker.settings.options import Options
from lapwing.net.logs import Log
from lapwing.nsqd.turn import Turn
from lapwing.records import dataclass
from lapwing.wire.nsq import identify
from lapwing.wire.nsq.limits import Limits

if TYPE_CHECKING:
    from lapwing.nsqd.doors.auth import Authenticator
    from lapwing.nsqd.doors.connection import Connection
    from lapwing.nsqd.doors.intakes import Intakes
    from lapwing.nsqd.lookupd.peer import Peers


@dataclass(slots=True)
class ListenerContext:
    """The parts of the daemon that a connection needs."""

    broker: Broker
    turn: Turn
    options: Options
    limits: Limits
    terms: identify.Terms
    log: Log
    tls: ssl.SSLContext | None
    auth: Authenticator | None
    connections: set[Connection]  # of all doors
    announcer: Peers | None = None
    intakes: Intakes | None = None  # where connections are in an epoll set

    def locality(self, settings: identify.ClientSettings) -> int:
        """Return how near a client is: 2 in our zone, 1 in our region, 0 elsewhere, or where that does not matter."""
        options = self.options
        if not options.topology_aware:
            return 0
        if settings.topology_zone and settings.topology_zone == options.topology_zone:
            return 2
        return 1 if settings.topology_region and settings.topology_region == options.topology_region else 0
