"""The list of messages and the view of one, from messages of a log or of nsqd's HTTP API: pure."""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from lapwing import kernel
from lapwing.admin.pages.table_rows import Columns, Label, TableColumn
from lapwing.client.cluster import Json
from lapwing.client.format import count, size
from lapwing.client.log_reader import LogMessage
from lapwing.wire.resp import bodies

PREVIEW: Final = 240  # characters of a body in the list
BEFORE_MATCH: Final = 24  # of them before the text that was searched for
WHOLE: Final = 262_144  # characters of a body in the view
MOST_PAIRS: Final = 500  # pairs of a Redis entry in the view


def parse_edges(text: str) -> dict[str, int]:
    """Parse `node=sequence,...`; malformed parts are left out."""
    pairs = (part.rpartition("=") for part in text.split(","))
    return {node: int(sequence) for node, _, sequence in pairs if node and sequence.isdecimal()}


def show_edges(edges: Mapping[str, int]) -> str:
    """Return what `parse_edges` parses."""
    return ",".join(f"{node}={sequence}" for node, sequence in sorted(edges.items()))


def preview(body: str, text: str) -> str:
    """Return the part of a body that the list shows: the beginning, or the place where `text` is."""
    at = body.lower().find(text.lower()) if text else -1
    if at > 2 * BEFORE_MATCH:
        return "…" + body[at - BEFORE_MATCH : at - BEFORE_MATCH + PREVIEW]
    return body[:PREVIEW]


def pairs_of(body: bytes) -> list[list[str]] | None:
    """Return the pairs of an entry that a Redis client has written with several fields; None for any other body."""
    found = bodies.pairs_of(body)[:MOST_PAIRS]
    return [[word.decode("utf-8", "backslashreplace") for word in pair] for pair in found] or None


def shown_body(body: bytes, text: str = "") -> str:
    """Return the part of a body that the list shows: pairs as pairs, a binary body as hex."""
    if (pairs := pairs_of(body)) is not None:
        return preview("  ".join(f"{name}={value}" for name, value in pairs), text)
    try:
        return preview(body.decode(), text)
    except UnicodeDecodeError:
        return f"binary: {body[:40].hex(' ')}"


def message_columns(text: str = "") -> Columns:
    """Return the columns of messages; of a body that contains `text` that part is shown."""
    return (
        TableColumn("sequence", "Sequence", "text", cell=lambda message: str(message.sequence)),
        TableColumn("published", "Published", "stamp", "In UTC", cell=lambda message: message.timestamp / 1e9),
        TableColumn("node", "Node", "text"),
        TableColumn("size", "Size", "bytes", cell=lambda message: len(message.body)),
        TableColumn("body", "Body", "code", cell=lambda message: shown_body(message.body, text)),
        TableColumn("headers", "Headers", "labels", cell=_headers),
    )


def _headers(message: LogMessage) -> list[Label]:
    lines = "\n".join(f"{key}: {value}" for key, value in message.headers.items())
    return [[str(len(message.headers)), "info", lines]] if message.headers else []


def shortened(message: Json) -> Json:
    """Return the message for the view: with the pairs of a Redis entry, and at most `WHOLE` characters of its body."""
    whole = body_of(message)
    pairs = pairs_of(whole)
    shown = {**message, "size": len(whole)} | ({} if pairs is None else {"pairs": pairs})
    body = message.get("body")
    if body is not None and len(body) > WHOLE:
        return {**shown, "body": body[:WHOLE] + f"\n… {count(len(body) - WHOLE)} characters more"}
    return shown


def body_of(message: Json) -> bytes:
    """Return the body of a message of nsqd's HTTP API."""
    if message.get("body") is not None:
        return str(message["body"]).encode()
    try:
        return base64.b64decode(message.get("body_base64") or "")
    except binascii.Error:
        return b""


def editable(body: bytes) -> str | None:
    """Return a body as text that a form can change; None for a binary one, and for pairs, whose lengths must fit."""
    if kernel.is_pairs(body):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def keep_line_ends(before: str, edited: str) -> str:
    """Return an edited text with the line ends that it had: a text field of a browser makes all of them LF."""
    rest = before.replace("\r\n", "")
    if rest == before or "\r" in rest or "\n" in rest:
        return edited  # of both kinds: nobody knows which is meant where
    return edited.replace("\r\n", "\n").replace("\n", "\r\n")


def fixed_body(body: bytes) -> str:
    """Return the beginning of a sentence about a body that a form cannot change."""
    kind = "has the fields of a Redis entry" if kernel.is_pairs(body) else "is binary"
    return f"The body {kind} ({size(len(body))})"
