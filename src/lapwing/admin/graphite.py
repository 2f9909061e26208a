"""Ask Graphite for a rate, and fetch its graphs."""

import json
import math
import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit, urlunsplit

from lapwing.errors import ConfigError, LapwingError
from lapwing.net.client.asynchronous import HttpClient
from lapwing.net.client.message import HttpFailed


class GraphiteFailed(LapwingError):
    """Graphite did not answer with a number."""


@dataclass(frozen=True, slots=True)
class Graphite:
    """One Graphite server, if one is configured."""

    url: str = ""
    proxying: bool = False
    interval: float = 60.0  # seconds between nsqd's statsd pushes
    prefix: str = "nsq.%s"
    counter_format: str = "stats.counters.%s.count"
    gauge_format: str = "stats.gauges.%s"

    def check(self) -> None:
        """Raise `ConfigError` for a URL that is none."""
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise ConfigError(f"failed to parse --graphite-url='{self.url}' - {error}") from error
        if self.proxying and not known:
            raise ConfigError(f"failed to parse --graphite-url='{self.url}' - expected http://host:port")
        if self.url and self.interval <= 0:
            raise ConfigError("--statsd-interval must be longer than 0s, as graphs are drawn by it")

    def link(self, name: str, *, counter: bool, base: str) -> str:
        """Return the URL of a large graph of a statsd name (`topic.t.depth`), summed over all nodes."""
        key = (self.counter_format if counter else self.gauge_format).replace(
            "%s", f"{self.prefix.replace('%s', '*').rstrip('.')}.{name}"
        )
        target = f'summarize(sumSeries({key}),"{int(self.interval)}sec","avg")'
        if counter:
            target = f"scale({target},{1 / self.interval:.10g})"
        asked = {
            "target": target,
            "from": "-2h",
            "until": "-1min",
            "width": "800",
            "height": "450",
            "bgcolor": "ff000000",
            "fgcolor": "999999",
            "yMin": "0",
            "lineMode": "connected",
            "drawNullAsZero": "false",
            "colorList": "red" if name.endswith(("depth", "deferred_count")) else "blue",
        }
        return f"{base if self.proxying else self.url.rstrip('/')}/render?{urlencode(asked)}"

    async def rate(self, target: str) -> str:
        """Return the messages per second of a `message_count` target with two decimals, or `N/A`."""
        interval = int(self.interval)
        query = urlencode(
            {"target": target, "from": f"-{2 * interval}sec", "until": f"-{interval}sec", "format": "json"}
        )
        _, _, body = await self.render(query, client="127.0.0.1")
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise GraphiteFailed("not JSON") from error
        try:
            per_second = float(answer[0]["datapoints"][0][0]) / self.interval
        except (LookupError, TypeError, ValueError) as error:
            raise GraphiteFailed("no data point") from error
        return "N/A" if per_second < 0 or math.isnan(per_second) else f"{per_second:.2f}"

    async def render(self, raw_query: str, *, client: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of Graphite's own `/render`."""
        parts = urlsplit(self.url)
        url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + "/render", raw_query, ""))
        async with HttpClient(connect_timeout=20.0, request_timeout=20.0) as http:
            try:
                answer = await http.request("GET", url, headers={"X-Forwarded-For": client})
            except HttpFailed as error:
                raise GraphiteFailed(str(error)) from error
        return answer.status, answer.headers.get("content-type", "application/octet-stream"), answer.body


def statsd_name(name: str) -> str:
    """Return the name of a topic or channel as Graphite writes it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "", name.replace(" ", "_").replace("/", "-"))
