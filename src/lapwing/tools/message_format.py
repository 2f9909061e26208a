"""Write messages to a terminal, a file or a pipe."""

import json
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from lapwing.client.cluster import Json
from lapwing.client.format import local_time, printable, printable_text
from lapwing.client.log_reader import LogMessage
from lapwing.tools.terminal import Terminal
from lapwing.wire.resp.bodies import fields_of

_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')


@dataclass(frozen=True, slots=True)
class MessagePrinter:
    """Print messages of one topic: on a terminal with headings, colour and indented JSON, elsewhere a line each."""

    topic: str
    out: BinaryIO
    terminal: Terminal
    is_terminal: bool
    as_json: bool = False
    details: bool = False  # sequence, time, node and headers before each body
    pretty: bool = False  # JSON bodies are indented
    raw: bool = False  # entries of Redis clients are not shown as a JSON object of their fields

    def print(self, message: LogMessage) -> None:
        """Print one message."""
        self.out.write(self.format(message))

    def format(self, message: LogMessage) -> bytes:
        """Return what is printed of a message."""
        if self.as_json:
            return json.dumps(message.as_json(self.topic), ensure_ascii=False).encode() + b"\n"
        shown = message.body if self.raw else shown_body(message.body)
        if not self.is_terminal and not self.pretty:
            return (self._line_head(message) if self.details else b"") + shown + b"\n"
        body = self._body(shown)
        if not self.details:
            return body + b"\n"
        return self._heading(message).encode() + (b"\n" if self.pretty else b"  ") + body + b"\n"

    def _line_head(self, message: LogMessage) -> bytes:
        headers = f"  {json.dumps(message.headers, ensure_ascii=False)}" if message.headers else ""
        return f"{message.sequence}  {local_time(message.timestamp)}{headers}  ".encode()

    def _heading(self, message: LogMessage) -> str:
        paint = self.terminal.paint
        parts = [paint(f"{message.sequence}", "title"), paint(local_time(message.timestamp)[:23], "dim")]
        if self.pretty:
            parts.append(paint(message.node, "dim"))
        for name, value in message.headers.items():
            parts.append(paint(printable_text(f"{name}: {value}"), "yellow"))
        return "  ".join(parts)

    def _body(self, body: bytes) -> bytes:
        document: Any = None
        if body[:1] in b"{[":
            try:
                document = json.loads(body)
            except (ValueError, RecursionError):
                document = None
        if document is None:
            return printable(body) if self.is_terminal else body
        text = json.dumps(document, indent=2, ensure_ascii=False) if self.pretty else body.decode()
        if not self.is_terminal:
            return text.encode()
        return "\n".join(self._coloured(printable_text(line)) for line in text.split("\n")).encode()

    def _coloured(self, line: str) -> str:
        if not self.terminal.colour:
            return line

        def paint(match: re.Match[str]) -> str:
            if match[1] is None:
                return self.terminal.paint(match[0], "yellow")
            if match[2] is not None:
                return self.terminal.paint(match[1], "cyan") + match[2]
            return self.terminal.paint(match[1], "green")

        return _TOKEN.sub(paint, line)


def shown_body(body: bytes) -> bytes:
    """Return the body for people: the fields of a Redis entry as one line of JSON, any other body as it is."""
    fields = fields_of(body)
    return json.dumps(fields, ensure_ascii=False).encode() if fields else body


def delivered_json(message: Any) -> Json:
    """Return a delivered message (of the client library) as a JSON object."""
    headers = message.headers
    found = LogMessage(message.timestamp, message.address, -1, message.id, message.attempts, message.body, headers)
    document = found.as_json(message.topic)
    del document["sequence"]
    if not headers:
        del document["headers"]
    return document
