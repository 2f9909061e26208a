"""The permissions that each kind of HTTP route of nsqd needs; docs/security.md has the table."""

from __future__ import annotations

from typing import Final

from lapwing.net.routes import RouteAccess

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
