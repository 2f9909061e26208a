"""A small fake cluster on the loopback: canned answers of nsqd and nsqlookupd that change as they are told to.

It stands for clusters of plain NSQ (`lapwing=False`: no log API), for nodes that fail, and for numbers that a real
daemon would take long to reach.
"""

import json
import threading
import time
from abc import abstractmethod
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lapwing.admin.samples import TOPIC as SAMPLES

V1 = "nsq; version=1.0"


def client(number: int = 1, **more: Any) -> dict[str, Any]:
    """A consumer as /stats shows it."""
    return {
        "client_id": f"worker-{number}",
        "hostname": f"worker-{number}.example",
        "version": "V2",
        "remote_address": f"10.0.0.{number}:5{number:04}",
        "state": 3,
        "ready_count": 200,
        "in_flight_count": 3,
        "message_count": 1200,
        "finish_count": 1190,
        "requeue_count": 7,
        "connect_ts": int(time.time()) - 3700,
        "sample_rate": 0,
        "deflate": False,
        "snappy": True,
        "user_agent": "go-nsq/1.1.0",
        "topology_zone": "",
        "topology_region": "",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
        **more,
    }


@dataclass
class Channel:
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    paused: bool = False
    clients: list[dict[str, Any]] = field(default_factory=list)
    percentiles: list[tuple[float, int]] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)  # lapwing: entries of `/channel/pending`

    def to_json(self, name: str, *, clients: bool) -> dict[str, Any]:
        return {
            "channel_name": name,
            "depth": self.depth,
            "backend_depth": self.backend_depth,
            "in_flight_count": self.in_flight,
            "deferred_count": self.deferred,
            "message_count": self.messages,
            "requeue_count": self.requeued,
            "timeout_count": self.timed_out,
            "client_count": len(self.clients),
            "clients": self.clients if clients else None,
            "paused": self.paused,
            "e2e_processing_latency": _latency(self.percentiles, self.messages),
            **self.more,
        }


@dataclass
class Topic:
    depth: int = 0
    backend_depth: int = 0
    messages: int = 0
    paused: bool = False
    channels: dict[str, Channel] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)  # lapwing: what can be read without consuming it
    letters: list[dict[str, Any]] = field(default_factory=list)  # lapwing: dead letters
    redrive: dict[str, Any] | None = None

    def to_json(self, name: str, *, channel: str = "", clients: bool) -> dict[str, Any]:
        shown = {key: each for key, each in sorted(self.channels.items()) if channel in ("", key)}
        return {
            "topic_name": name,
            "channels": [each.to_json(key, clients=clients) for key, each in shown.items()],
            "depth": self.depth,
            "backend_depth": self.backend_depth,
            "message_count": self.messages,
            "message_bytes": self.messages * 100,
            "paused": self.paused,
            "e2e_processing_latency": _latency(None, 0),
        }

    def publish(self, body: str, **more: Any) -> None:
        sequence = len(self.log)
        self.log.append(
            {
                "sequence": sequence,
                "id": f"{sequence:016x}",
                "timestamp": time.time_ns(),
                "attempts": 1,
                "body": body,
                **more,
            }
        )
        self.messages += 1


def _latency(percentiles: list[tuple[float, int]] | None, count: int) -> dict[str, Any]:
    if percentiles is None:
        return {"count": 0, "percentiles": None}
    return {"count": count, "percentiles": [{"quantile": quantile, "value": value} for quantile, value in percentiles]}


class Fake:
    """An HTTP server in a thread; `calls` are the requests that changed something but samples, as `path?query`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked = 0  # requests of all kinds
        self.headers: list[dict[str, str]] = []
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def up(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.serve(self)

            do_POST = do_GET

            def log_message(self, *arguments: object) -> None:
                """Quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def get_request(self) -> Any:
                got = super().get_request()
                self.connections.append(got[0])
                return got

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.connections = []
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Gone as a killed process is: nobody listens, and what was open is cut."""
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()
            for connection in server.connections:  # type: ignore[attr-defined]
                try:
                    connection.shutdown(2)
                except OSError:
                    continue

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        del self.headers[:-200]
        query = dict(reversed(parse_qsl(parts.query, keep_blank_values=True)))
        if handler.command == "POST" and query.get("topic") != SAMPLES:
            self.calls.append(handler.path)
        status, answer = self.answer(handler.command, parts.path, query, body)
        raw = b"" if answer is None else answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(raw)))
        handler.send_header("X-NSQ-Content-Type", V1)
        handler.end_headers()
        handler.wfile.write(raw)

    @abstractmethod
    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        """The status and the body of an answer."""


NOT_FOUND = (404, {"message": "NOT_FOUND"})


class FakeNsqd(Fake):
    """An nsqd with the topics it is given."""

    def __init__(
        self, hostname: str = "node-a", *, lapwing: bool = False, version: str = "1.3.0", zone: str = ""
    ) -> None:
        self.hostname = hostname
        self.lapwing = lapwing
        self.version = version
        self.zone = zone
        self.health = "OK"
        self.start_time = int(time.time()) - 7200
        self.topics: dict[str, Topic] = {}
        self.producers: list[dict[str, Any]] = []
        self.pipelines: list[dict[str, Any]] = []
        self.published: list[tuple[str, bytes, str, str]] = []
        self.tombstoned: set[str] = set()
        self.https_port = 0
        super().__init__()

    @property
    def name(self) -> str:
        return self.address

    def producer(self) -> dict[str, Any]:
        return {
            "remote_address": f"127.0.0.1:{self.port + 1}",
            "hostname": self.hostname,
            "broadcast_address": "127.0.0.1",
            "tcp_port": self.port + 10000 if self.port < 50000 else self.port - 10000,
            "http_port": self.port,
            "version": self.version,
            "topology_zone": self.zone,
            "topology_region": "",
        }

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        if self.https_port:
            return 403, {"message": "TLS_REQUIRED", "https_port": self.https_port}
        if path == "/ping":
            return (200, "OK") if self.health == "OK" else (500, self.health)
        if path == "/info":
            return 200, {key: value for key, value in self.producer().items() if key != "remote_address"} | {
                "start_time": self.start_time
            }
        if path == "/stats":
            return 200, self._stats(query)
        if method == "POST" and path == "/pub":
            self.published.append(
                (query["topic"], body, query.get("defer", ""), self.headers[-1].get("x-lapwing-headers", ""))
            )
            self.topics.setdefault(query["topic"], Topic()).publish(body.decode("utf-8", "replace"))
            return 200, "OK"
        if method == "POST" and path.startswith(("/topic/", "/channel/")):
            return self._change(path, query)
        if self.lapwing and path == "/channel/pending":
            return self._pending(query)
        if self.lapwing and path.startswith("/dead"):
            return self._dead(path, query)
        if self.lapwing:
            return self._log(path, query)
        return NOT_FOUND

    def _stats(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = {name: topic for name, topic in sorted(self.topics.items()) if query.get("topic", name) == name}
        channel = query.get("channel", "")
        clients = query.get("include_clients") not in ("false", "0")
        shown = [
            topic.to_json(name, channel=channel, clients=clients)
            for name, topic in wanted.items()
            if not channel or channel in topic.channels
        ]
        unknown = "topic" in query and not wanted
        return {
            "version": self.version,
            "health": self.health,
            "start_time": self.start_time,
            "topics": None if unknown else shown,
            "producers": self.producers if clients else None,
        }

    def _pending(self, query: dict[str, str]) -> tuple[int, Any]:
        topic = self.topics.get(query["topic"])
        channel = topic.channels.get(query["channel"]) if topic else None
        if channel is None:
            return 404, {"message": "CHANNEL_NOT_FOUND"}
        after, state = int(query.get("after", -1)), query.get("state")
        shown = [each for each in channel.pending if state in (None, each["state"]) and each["sequence"] > after]
        states = [each["state"] for each in channel.pending]
        counts = {name: states.count(name) for name in ("in_flight", "ready", "deferred")}
        return 200, {"counts": counts, "entries": shown[: int(query["limit"])], "next": None}

    def _dead(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        kept = {name: topic for name, topic in self.topics.items() if "dead" in topic.channels}
        if path == "/dead":
            found = [{"topic": n, "letters": len(t.letters), "redrive": t.redrive} for n, t in sorted(kept.items())]
            return 200, {"topics": found}
        letters = kept[query["topic"]].letters if query["topic"] in kept else []
        if path == "/dead/letters":
            wanted = json.loads(query.get("sequences", "null"))
            return 200, {
                "letters": [each for each in letters if wanted is None or each["sequence"] in wanted],
                "next": None,
            }
        groups: dict[tuple[str, ...], dict[str, Any]] = {}
        for each in letters:
            key = {name: each[name] for name in ("topic", "channel", "reason", "error")}
            group = groups.setdefault(tuple(key.values()), {**key, "letters": 0, "first": each["at"]})
            group["letters"] += 1
            group |= {"last": each["at"], "sample": group.get("sample", each["sequence"])}
        return 200, {"groups": list(groups.values()), "others": 0}

    def _change(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        _, kind, action = path.split("/")
        topic = self.topics.get(query["topic"])
        if topic is None and path != "/topic/create":
            return 404, {"message": "TOPIC_NOT_FOUND"}
        if kind == "topic":
            if action == "create":
                self.topics.setdefault(query["topic"], Topic())
            elif action == "delete":
                del self.topics[query["topic"]]
            else:
                _act(topic, action)
            return 200, None
        assert topic is not None
        if action == "create":
            topic.channels.setdefault(query["channel"], Channel())
        elif query["channel"] not in topic.channels:
            return 404, {"message": "CHANNEL_NOT_FOUND"}
        elif action == "delete":
            del topic.channels[query["channel"]]
        else:
            _act(topic.channels[query["channel"]], action)
        return 200, None

    def _log(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path == "/pipelines":
            return 200, {"pipelines": self.pipelines}
        if path == "/node":
            return 200, {
                "lapwing": "0.1.0",
                "memory_bytes": 48 << 20,
                "cpu_seconds": 12.5,
                "open_files": 41,
                "max_files": 1024,
                "data_path": f"/var/lib/{self.hostname}",
                "disk_free_bytes": 70 << 30,
                "disk_bytes": 100 << 30,
                "options": [
                    {"flag": "--data-path", "value": f"/var/lib/{self.hostname}", "default": False},
                    {"flag": "--durability", "value": "os", "default": True},
                    {"flag": "--msg-timeout", "value": "1m0s", "default": True},
                ],
            }
        if path == "/log/offsets":
            names = [query["topic"]] if "topic" in query else list(self.topics)
            at = int(query["at"]) if "at" in query else None
            shown = []
            for name in names:
                if name in self.topics:
                    log = self.topics[name].log
                    entry = {
                        "topic": name,
                        "log_id": "abcdef0123456789",
                        "first": 0,
                        "next": len(log),
                        "bytes": 100,
                        "first_timestamp": log[0]["timestamp"] if log else 0,
                        "last_timestamp": log[-1]["timestamp"] if log else 0,
                        "channels": [],
                    }
                    if at is not None:
                        entry["at"] = next((each["sequence"] for each in log if each["timestamp"] >= at), len(log))
                    shown.append(entry)
            return 200, {"node_id": 7, "broadcast_address": "127.0.0.1", "http_port": self.port, "topics": shown}
        if path == "/log/read":
            topic = self.topics.get(query["topic"])
            if topic is None:
                return 404, {"message": "TOPIC_NOT_FOUND"}
            begin, end = int(query.get("from", 0)), int(query.get("to") or 1 << 60)
            since = int(query.get("time_from", 0))
            kept = [each for each in topic.log if begin <= each["sequence"] < end and each["timestamp"] >= since]
            chosen = kept[: int(query.get("limit", 100))]
            resume = chosen[-1]["sequence"] + 1 if chosen else len(topic.log)
            about = {"log_id": "abcdef0123456789", "first": 0, "next": len(topic.log), "resume": resume}
            return 200, {**about, "messages": chosen}
        return NOT_FOUND


def _act(thing: Any, action: str) -> None:
    if action == "empty":
        thing.depth = thing.backend_depth = 0
    else:
        thing.paused = action == "pause"


class FakeLookupd(Fake):
    """An nsqlookupd that knows the given nsqds, as far as they are up, and topics of its own."""

    def __init__(self, *nsqds: FakeNsqd) -> None:
        self.nsqds = list(nsqds)
        self.registered: dict[str, set[str]] = {}
        self.slow = 0.0  # seconds to tell the channels of a topic
        self.lapwing = False  # answers for all topics at once
        self.notified: list[dict[str, Any]] = []  # what was posted to /notify
        super().__init__()

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        topic = query.get("topic", "")
        if path == "/notify":
            self.notified.append(json.loads(body))
            return 200, None
        if method == "POST":
            self._register(path, topic, query)
            return 200, None
        if path == "/topics":
            known = self._known()
            more = {"channels": {name: sorted(channels) for name, channels in known.items()}}
            return 200, {"topics": list(known)} | (more if self.lapwing and query.get("channels") == "true" else {})
        if path == "/channels":
            time.sleep(self.slow)
            return 200, {"channels": sorted(self._known().get(topic, ()))}
        if path == "/lookup":
            if topic not in self._known():
                return 404, {"message": "TOPIC_NOT_FOUND"}
            producers = [
                each.producer() for each in self.nsqds if topic in each.topics and topic not in each.tombstoned
            ]
            return 200, {"channels": sorted(self._known()[topic]), "producers": producers}
        if path == "/nodes":
            return 200, {
                "producers": [
                    {
                        **each.producer(),
                        "tombstones": [name in each.tombstoned for name in each.topics],
                        "topics": list(each.topics),
                    }
                    for each in self.nsqds
                ]
            }
        return NOT_FOUND

    def _known(self) -> dict[str, set[str]]:
        known = {name: set(channels) for name, channels in self.registered.items()}
        for nsqd in self.nsqds:
            for name, topic in nsqd.topics.items():
                known.setdefault(name, set()).update(topic.channels)
        return known

    def _register(self, path: str, topic: str, query: dict[str, str]) -> None:
        if path == "/topic/create":
            self.registered.setdefault(topic, set())
        elif path == "/channel/create":
            self.registered.setdefault(topic, set()).add(query["channel"])
        elif path == "/topic/delete":
            self.registered.pop(topic, None)
        elif path == "/channel/delete":
            self.registered.get(topic, set()).discard(query["channel"])
        elif path == "/topic/tombstone":
            for nsqd in self.nsqds:
                if nsqd.name == query["node"]:
                    nsqd.tombstoned.add(topic)
