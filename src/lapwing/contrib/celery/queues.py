"""Queues of Kombu as topics and channels, and its messages as they lie there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from lapwing import names
from lapwing.names import EPHEMERAL

CHANNEL: Final = "celery"  # of the topic of a queue
STEPS: Final = (0, 3, 6, 9)  # priorities, the first one first, as on Redis
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]")
ETA: Final = "lapwing-eta"  # the time of a task, for those who look at what waits
_DUE: Final = "lapwing-due"  # Unix time before which a message must not run, where nsqd defers no message for so long
_DELIVERIES: Final = "lapwing-deliveries"  # that it takes until then


def name(text: str, suffix: str = "", *, ephemeral: bool = False) -> str:
    """Return the topic or channel of a name of Kombu's, which may have any characters and any length."""
    room = names.LONGEST - len(EPHEMERAL) - len(suffix)
    plain = _OTHER.sub("-", text)
    if plain != text or len(plain) > room:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        plain = f"{plain[: room - 9]}-{digest}"
    return plain + suffix + (EPHEMERAL if ephemeral else "")


def exchange_topic(exchange: str) -> str:
    """Return the topic of an exchange, from which each bound queue has a channel."""
    return name(exchange, ".exchange")


@dataclass
class Queue:
    """A queue as it was declared."""

    name: str
    ephemeral: bool = False  # deleted with its last consumer
    steps: tuple[int, ...] = ()  # of priority; none: all messages are equal
    settings: dict[str, Any] = field(default_factory=dict)  # of its channels

    @classmethod
    def declared(
        cls, queue: str, steps: tuple[int, ...], *, auto_delete: bool = False, exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None, **_: Any,
    ) -> Queue:  # fmt: skip
        """Return the queue of a declaration, with RabbitMQ's arguments as settings."""
        given, settings = arguments or {}, {}
        if given.get("x-message-ttl"):
            settings["message_ttl"] = f"{given['x-message-ttl']}ms"
        if given.get("x-max-length"):
            settings |= {"max_depth": given["x-max-length"], "overflow": "drop-oldest"}
        if given.get("x-max-length-bytes"):
            settings |= {"max_bytes": given["x-max-length-bytes"], "overflow": "drop-oldest"}
        ephemeral = auto_delete or exclusive
        if given.get("x-max-priority"):
            steps = steps or STEPS
        elif ephemeral:
            steps = ()
        return cls(queue, ephemeral, steps, settings)

    @property
    def channel(self) -> str:
        """The channel of its own topics."""
        return CHANNEL + EPHEMERAL * self.ephemeral

    @property
    def bound_channel(self) -> str:
        """The channel that it has of the topic of an exchange."""
        return name(self.name, ephemeral=self.ephemeral)

    def topics(self) -> list[str]:
        """Return its own topics, that of the messages that come first first."""
        return [name(self.name, f".p{step}" if step else "", ephemeral=self.ephemeral) for step in self.steps or (0,)]

    def topic(self, priority: int) -> str:
        """Return the topic of messages of this priority."""
        return self.topics()[self.level(priority)]

    def level(self, priority: int) -> int:
        """Return the place of a priority among the steps."""
        return sum(step <= priority for step in self.steps[1:])


def due(message: Mapping[str, Any]) -> float | None:
    """Return the Unix time at which a task of Celery is to run, if it has one."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        when = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def without_eta(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that the broker defers: a worker that sees the time would hold it a second time."""
    headers = message["headers"]
    return {**message, "headers": {**headers, "eta": None, ETA: headers["eta"]}}


def deferred_again(message: dict[str, Any], when: float, deliveries: int) -> dict[str, Any]:
    """Return a message that is delivered several times until its time has come."""
    return {**message, "properties": {**message["properties"], _DUE: when, _DELIVERIES: deliveries}}


def left(message: Mapping[str, Any], now: float) -> float:
    """Return the seconds until a message that was delivered may run."""
    when = message["properties"].get(_DUE)
    return float(when) - now if when is not None else 0.0


def expired(message: Mapping[str, Any], timestamp: int, now: float) -> bool:
    """Return whether the time of a message that was published at `timestamp` (ns) is over."""
    lifetime = message["properties"].get("expiration")
    return lifetime is not None and now >= timestamp / 1e9 + float(lifetime) / 1000


def headers(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the message in lapwing, by which it is found and read there."""
    info = message["properties"]["delivery_info"]
    found = {"exchange": info.get("exchange"), "routing-key": info.get("routing_key")}
    task = message.get("headers") or {}
    if task.get("id") and task.get("task"):
        found |= {"task": task["task"], "message-id": message_id(task["id"], task.get("retries") or 0)}
    return {key: str(value)[:512] for key, value in found.items() if value}


def message_id(task_id: str, retries: int) -> str:
    """Return the message-id of a task; a retry has another one, or a topic with a dedup_window would drop it."""
    return f"{task_id}/{retries}" if retries else task_id


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message of Kombu; a body that is no text becomes base64."""
    return json.dumps(message).encode()


def encode_body(body: str | bytes) -> tuple[str, str]:
    """Return a body as text, and how it was encoded."""
    if isinstance(body, str):
        return body, "utf-8"
    try:
        return body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"


def decode(body: str | bytes, attempts: int, tag: str) -> dict[str, Any]:
    """Return a message as Kombu knows it. Raises `ValueError` for bytes that are none."""
    message = json.loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        raise ValueError("no message of Kombu")
    properties = message["properties"]
    properties["delivery_tag"] = tag
    info = properties.setdefault("delivery_info", {})
    info["redelivered"] = attempts > properties.get(_DELIVERIES, 1)
    return message
