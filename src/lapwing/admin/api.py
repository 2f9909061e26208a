"""The JSON API: NSQ's routes and some of lapwing's own. Each route parses, calls one function, and answers."""

import json
import logging
from typing import Any, Final

from lapwing import names
from lapwing.admin.access import inside, parse_networks
from lapwing.admin.actions import ACTS, Forbidden, warning_of
from lapwing.admin.asgi import BodyTooBig, Respond, WebRequest, WebRoute, json_body
from lapwing.admin.graphite import GraphiteFailed
from lapwing.admin.metrics import exposition
from lapwing.admin.samples import EVERY, SPANS, fields_of
from lapwing.admin.services import Services
from lapwing.client.cluster_client import Found, NoSuchNode, NothingThere, UpstreamFailed
from lapwing.net.server.answers import Answer, failure, plain, text, value
from lapwing.net.server.prometheus import CONTENT_TYPE

log = logging.getLogger("nsqadmin")

_FAILURES: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (Forbidden, 403, "FORBIDDEN"),
    (NoSuchNode, 404, "NODE_NOT_FOUND"),
    (NothingThere, 404, "CHANNEL_NOT_FOUND"),
    (GraphiteFailed, 500, "INTERNAL_ERROR"),
    (BodyTooBig, 413, "BODY_TOO_BIG"),
)


class Invalid(Exception):
    """The request is invalid; the text is the answer's message."""


def translated(respond: Respond) -> Respond:
    """Return the route with domain errors turned into answers; no other place does that."""

    async def answer(request: WebRequest) -> Answer:
        try:
            return await respond(request)
        except UpstreamFailed as error:
            return failure(502, f"UPSTREAM_ERROR: {error}")
        except Invalid as error:
            return failure(400, str(error))
        except tuple(kind for kind, _, _ in _FAILURES) as error:
            status, code = next((status, code) for kind, status, code in _FAILURES if isinstance(error, kind))
            return failure(status, code)

    return answer


class Api:
    """The routes below `/api`, and `/ping`, `/config`, `/render`."""

    def __init__(self, admin: Services) -> None:
        self._admin = admin
        cidr = admin.options.allow_config_from_cidr
        self._config_from = parse_networks([cidr]) if cidr else None  # None: from everywhere

    def routes(self) -> list[WebRoute]:
        """Return all routes."""
        table: list[tuple[str, str, Respond]] = [
            ("GET", "/ping", self.ping),
            ("GET", "/api/topics", self.topics),
            ("POST", "/api/topics", self.create),
            ("GET", "/api/topics/<topic>", self.topic),
            ("POST", "/api/topics/<topic>", self.act),
            ("DELETE", "/api/topics/<topic>", self.delete),
            ("GET", "/api/topics/<topic>/<channel>", self.channel),
            ("POST", "/api/topics/<topic>/<channel>", self.act),
            ("DELETE", "/api/topics/<topic>/<channel>", self.delete),
            ("GET", "/api/nodes", self.nodes),
            ("GET", "/api/nodes/<node>", self.node),
            ("DELETE", "/api/nodes/<node>", self.tombstone),
            ("GET", "/api/counter", self.counter),
            ("GET", "/api/graphite", self.rate),
            ("GET", "/api/alarms", self.alarms),
            ("GET", "/metrics", self.metrics),
            ("GET", "/api/history/<topic>", self.past),
            ("GET", "/api/history/<topic>/<channel>", self.past),
            ("GET", "/config/<option>", self.read_config),
            ("PUT", "/config/<option>", self.write_config),
        ]
        if self._admin.graphite.proxying:
            table.append(("GET", "/render", self.render))
        return [WebRoute(method, path, translated(respond)) for method, path, respond in table]

    # ---- reading ----

    async def ping(self, request: WebRequest) -> Answer:
        return plain("OK")

    async def topics(self, request: WebRequest) -> Answer:
        inactive, client = request.query.get("inactive") == "true", self._admin.cluster_client
        found: Found[Any] = await client.inactive_topics() if inactive else await client.topics()
        return value({"topics": found.value, "message": found.message})

    async def topic(self, request: WebRequest) -> Answer:
        found = await self._admin.cluster_client.topic(request.names["topic"])
        return value({**found.value, "message": found.message})

    async def channel(self, request: WebRequest) -> Answer:
        found = await self._admin.cluster_client.channel(request.names["topic"], request.names["channel"])
        return value({**found.value, "message": found.message})

    async def nodes(self, request: WebRequest) -> Answer:
        found = await self._admin.cluster_client.nodes()
        return value({"nodes": [node.to_json() for node in found.value], "message": found.message})

    async def node(self, request: WebRequest) -> Answer:
        found = await self._admin.cluster_client.node(request.names["node"])
        return value({**found.value, "message": found.message})

    async def counter(self, request: WebRequest) -> Answer:
        found = await self._admin.cluster_client.counter()
        return value({"stats": found.value, "message": found.message})

    async def alarms(self, request: WebRequest) -> Answer:
        """Answer with the alarms of the overview, for scripts (not in NSQ)."""
        await self._admin.poller.fresh()
        shown = [
            {"severity": alarm.severity, "about": alarm.about, "text": alarm.text, "advice": alarm.advice}
            for alarm in self._admin.poller.alarms
        ]
        return value({"alarms": shown, "message": ""})

    async def metrics(self, request: WebRequest) -> Answer:
        """Answer with the metrics of pipelines, alarms and daemons (not in NSQ)."""
        cluster_view = await self._admin.poller.fresh()
        shown = exposition(cluster_view, self._admin.poller.alarms, now=self._admin.cluster_client.clock())
        return Answer(200, shown.encode(), CONTENT_TYPE, nsq=False)

    async def past(self, request: WebRequest) -> Answer:
        """Answer with the samples of a topic or channel, as the charts of days show them (not in NSQ)."""
        span = SPANS.get(request.query.get("range", "6h"))
        if span is None:
            raise Invalid("INVALID_ARG_RANGE")
        topic, channel = request.names["topic"], request.names.get("channel", "")
        samples, since = self._admin.recorder.samples, self._admin.cluster_client.clock() - span
        figures = {name: samples.points((topic, channel), name, since=since) for name in fields_of((topic, channel))}
        times = [at for at, _ in figures["in"]]
        points = [
            {"at": int(at), **{name: column[index][1] for name, column in figures.items()}}
            for index, at in enumerate(times)
        ]
        return value({"topic": topic, "channel": channel, "step": EVERY, "points": points, "message": ""})

    async def rate(self, request: WebRequest) -> Answer:
        if request.query.get("metric") != "rate":
            raise Invalid("INVALID_ARG_METRIC")
        if not (target := request.query.get("target")):
            raise Invalid("INVALID_ARG_TARGET")
        return value({"rate": await self._admin.graphite.rate(target)})

    async def render(self, request: WebRequest) -> Answer:
        status, content_type, body = await self._admin.graphite.render(request.raw_query, client=request.visitor.peer)
        return Answer(status, body, content_type, nsq=False)

    # ---- changing ----

    async def create(self, request: WebRequest) -> Answer:
        asked = await self._asked(request, words="decoder")
        topic, channel = _text(asked, "topic"), _text(asked, "channel")
        if not names.valid(topic):
            raise Invalid("INVALID_TOPIC")
        if channel and not names.valid(channel):
            raise Invalid("INVALID_CHANNEL")
        results = await self._admin.actions.create(
            request.visitor, topic, channel, node=_text(asked, "node"), url=request.url
        )
        return self._done(warning_of(results))

    async def act(self, request: WebRequest) -> Answer:
        asked = await self._asked(request, words="decoder")
        action = _text(asked, "action")
        if action not in ACTS:
            raise Invalid("INVALID_ACTION")
        results = await self._admin.actions.act(
            request.visitor,
            action,
            request.names["topic"],
            request.names.get("channel", ""),
            node=_text(asked, "node"),
            url=request.url,
        )
        return self._done(warning_of(results))

    async def delete(self, request: WebRequest) -> Answer:
        self._may_change(request)
        results = await self._admin.actions.delete(
            request.visitor, request.names["topic"], request.names.get("channel", ""), url=request.url
        )
        return self._done(warning_of(results))

    async def tombstone(self, request: WebRequest) -> Answer:
        asked = await self._asked(request, words="INVALID_BODY")
        topic = _text(asked, "topic")
        if not names.valid(topic):
            raise Invalid("INVALID_TOPIC")
        results = await self._admin.actions.tombstone(request.visitor, topic, request.names["node"], url=request.url)
        return self._done(warning_of(results))

    def _may_change(self, request: WebRequest) -> None:
        if not request.visitor.may_change:  # before the body is read
            raise Forbidden

    async def _asked(self, request: WebRequest, *, words: str) -> dict[str, Any]:
        self._may_change(request)
        try:
            return json_body(await request.body())
        except ValueError as error:
            raise Invalid(str(error) if words == "decoder" else words) from error

    def _done(self, message: str) -> Answer:
        self._admin.poller.soon()
        return value({"message": message})

    # ---- /config ----

    def _config_allowed(self, request: WebRequest) -> None:
        if self._config_from is not None and not inside(self._config_from, request.visitor.peer):
            raise Forbidden

    async def read_config(self, request: WebRequest) -> Answer:
        self._config_allowed(request)
        try:
            return _shown(self._admin.running_options.get(request.names["option"]))
        except KeyError as error:
            raise Invalid("INVALID_OPTION") from error

    async def write_config(self, request: WebRequest) -> Answer:
        self._config_allowed(request)
        try:
            body = await request.body()
        except BodyTooBig:
            body = b""
        if not body:
            return failure(413, "INVALID_VALUE")
        key, text = request.names["option"], body.decode("utf-8", "replace")
        try:
            self._admin.actions.set_option(request.visitor, key, text, self._admin.running_options.put)
            return _shown(self._admin.running_options.get(key))
        except KeyError as error:
            raise Invalid("INVALID_OPTION") from error
        except ValueError as error:
            raise Invalid("INVALID_VALUE") from error


def _shown(setting: Any) -> Answer:
    return text(setting) if isinstance(setting, str) else value(setting)


def _text(asked: dict[str, Any], key: str) -> str:
    """Return the text of a key; empty if it is null or missing. Raises `Invalid` for another type."""
    found = asked.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise Invalid(f"{key}: expected text, not {json.dumps(found)[:100]}")
    return found
