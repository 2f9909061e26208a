"""The permissions that each kind of HTTP route of nsqd needs; docs/reference/security.md has the table.

They are apart from the guard that asks the auth servers, which most nodes never load.
"""

from __future__ import annotations

from typing import Final

from lapwing.net.server.answers import Refused
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import RouteAccess

ANY: Final = ("publish", "subscribe", "admin")

PUBLISH: Final = RouteAccess(("publish",), "topic")
CREATE_TOPIC: Final = RouteAccess(("publish", "admin"), "topic")  # PUB creates topics too
TOPIC_ADMIN: Final = RouteAccess(("admin",), "topic")
READ: Final = RouteAccess(("subscribe",), "channel")
USE_CHANNEL: Final = RouteAccess(("subscribe", "admin"), "channel")  # SUB creates channels, FIN moves them on
CHANNEL_ADMIN: Final = RouteAccess(("admin",), "channel")
STATS: Final = RouteAccess(ANY, "channel")
METRICS: Final = RouteAccess(ANY)
KNOWN: Final = RouteAccess(ANY, "any")


def require(request: Request, access: RouteAccess, topic: str, channel: str = "") -> None:
    """Raise `Refused` unless the caller has one of the permissions for a topic that the query does not name."""
    found = request.permissions
    if found is not None and not any(found.allows(permission, topic, channel) for permission in access.permissions):
        raise unauthorized(access, topic, channel)


def unauthorized(access: RouteAccess, topic: str, channel: str) -> Refused:
    """Return the refusal of a caller without any of the permissions."""
    return Refused(403, "UNAUTHORIZED", permission=" or ".join(access.permissions), topic=topic, channel=channel)
