"""The permissions that each kind of HTTP route of nsqd needs; docs/security.md has the table."""

from __future__ import annotations

from typing import Final

from lapwing.net.routes import Access

ANY: Final = ("publish", "subscribe", "admin")

PUBLISH: Final = Access(("publish",), "topic")
CREATE_TOPIC: Final = Access(("publish", "admin"), "topic")  # PUB creates topics too
TOPIC_ADMIN: Final = Access(("admin",), "topic")
READ: Final = Access(("subscribe",), "channel")
USE_CHANNEL: Final = Access(("subscribe", "admin"), "channel")  # SUB creates channels, FIN moves them on
CHANNEL_ADMIN: Final = Access(("admin",), "channel")
STATS: Final = Access(ANY, "channel")
METRICS: Final = Access(ANY)
KNOWN: Final = Access(ANY, "any")
