"""The addresses of nsqadmin's pages."""

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from lapwing.client.alarms import Alarm


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The addresses of pages, below the base path."""

    base: str = ""

    def page(self, path: str, **asked: str) -> str:
        """Return any page, with those parameters that are not empty."""
        query = urlencode({name: value for name, value in asked.items() if value}, quote_via=quote, safe="")
        path = self.base + path if path != "/" else self.base or "/"
        return f"{path}?{query}" if query else path

    def topic(self, topic: str, channel: str = "") -> str:
        """Return the page of a topic or channel."""
        path = f"/topics/{quote(topic, safe='')}"
        return self.page(f"{path}/{quote(channel, safe='')}" if channel else path)

    def node(self, name: str) -> str:
        """Return the page of a node."""
        return self.page(f"/nodes/{quote(name, safe='[]:')}")

    def messages(self, topic: str) -> str:
        """Return the page with the messages of a topic."""
        return self.page("/messages", topic=topic)

    def settings(self, topic: str, channel: str = "") -> str:
        """Return the page with the settings of a topic or channel."""
        return self.page("/settings", topic=topic, channel=channel)

    def dead(self, topic: str) -> str:
        """Return the page with the letters of a dead-letter topic."""
        return self.page("/dead", topic=topic)

    def pipeline(self, name: str) -> str:
        """Return the page of pipelines, with this one chosen."""
        return self.page("/pipelines", name=name)

    def alarm(self, alarm: Alarm) -> str:
        """Return the page that shows what an alarm is about."""
        match alarm.kind:
            case "topic" | "channel":
                return self.topic(*alarm.about.split("/"))
            case "node":
                return self.node(alarm.about)
            case "dead letters":
                return self.dead(alarm.about)
            case "pipeline":
                return self.pipeline(alarm.about)
        return self.page("/lookup" if alarm.kind == "nsqlookupd" else "/nodes")
