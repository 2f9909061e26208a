"""Write messages to a terminal, a file or a pipe."""

import json
from typing import Any

from lapwing.client.cluster import Json
from lapwing.client.format import local_time
from lapwing.client.log_reader import LogMessage


def line(message: LogMessage, topic: str, *, as_json: bool, details: bool, terminal: bool) -> bytes:
    """Return a message as one line; on a terminal, control characters are written out."""
    if as_json:
        return json.dumps(message.as_json(topic), ensure_ascii=False).encode() + b"\n"
    body = printable(message.body) if terminal else message.body
    if not details:
        return body + b"\n"
    headers = f"  {json.dumps(message.headers, ensure_ascii=False)}" if message.headers else ""
    return f"{message.sequence}  {local_time(message.timestamp)}{headers}  ".encode() + body + b"\n"


def printable(body: bytes) -> bytes:
    """Return the body with control characters written out."""
    text = body.decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
    return shown.encode("utf-8", "backslashreplace")


def delivered_json(message: Any) -> Json:
    """Return a delivered message (of the client library) as a JSON object."""
    name = message.id.decode("ascii", "replace")
    found = LogMessage(message.timestamp, message.address, -1, name, message.attempts, message.body, {})
    document = found.as_json(message.topic)
    del document["sequence"], document["headers"]
    return document
