"""The dialog that publishes a message: a new one, or a copy of one that exists."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lapwing.admin.pages.elements import element
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.message_rows import editable, fixed_body, keep_line_ends
from lapwing.client.headers import encode
from lapwing.names import valid

_PLAIN: Final = re.compile('(?!")[^\x00-\x1f\x7f-\x9f\u2028\u2029]*')  # no line break, and not the beginning of JSON


@dataclass(frozen=True, slots=True)
class Draft:
    """The content that the dialog begins with."""

    topic: str = ""
    node: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def show_headers(headers: Mapping[str, str]) -> str:
    """Return headers as lines of `name: value`; a value that a line cannot hold as it is stands there as JSON."""
    return "\n".join(
        f"{name}: {value if value == value.strip() and _PLAIN.fullmatch(value) else json.dumps(value)}"
        for name, value in headers.items()
    )


def parse_headers(text: str) -> dict[str, str]:
    """Parse lines of `name: value`. Raises `ValueError` with a sentence for the user."""
    headers: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise ValueError(f"A header looks like name: value, not {line.strip()!r}.")
            headers[name.strip()] = _value(value.strip())
    try:
        encode(headers)
    except ValueError as error:
        text = str(error)
        raise ValueError(f"{text[:1].upper()}{text[1:]}.") from error
    return headers


def _value(text: str) -> str:
    """Return the value that a text is: itself, or what it is as a string of JSON."""
    if text.startswith('"'):
        with contextlib.suppress(ValueError):
            value = json.loads(text)
            if isinstance(value, str):
                return value
    return text


def parse_delay(text: str) -> int:
    """Parse seconds, and return milliseconds. Raises `ValueError` with a sentence for the user."""
    try:
        delay = round(float(text or 0) * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError("A delay is a number of seconds.") from error
    if delay < 0:
        raise ValueError("A delay cannot be negative.")
    return delay


def ask_publish(view: PageView, draft: Draft) -> None:
    """Open the dialog. A body that is not text cannot be edited: it is published as it is."""
    title = "Publish the message again" if draft.body else "Publish a message"
    nodes = [(state.node.name, f"{state.node.hostname} ({state.node.name})") for state in view.cluster_view.reachable]
    chosen = draft.node if any(name == draft.node for name, _ in nodes) else nodes[0][0] if nodes else ""
    text = editable(draft.body)
    with form_dialog(view, title, wide=True) as form:
        with element("div", None, "lw-form"):
            topic = form.field("Topic", value=draft.topic, focus=not draft.topic, width="100%")
            node = form.field("Node", kind="select", options=nodes, value=chosen)
            delay = form.field("Delay in seconds", kind="number", placeholder="0")
        if text is None:
            element("p", f"{fixed_body(draft.body)} and is published as it is.")
        focus, hint = bool(draft.topic), "Ctrl+Enter publishes"
        body = form.field("Body", kind="textarea", value=text or "", focus=focus, hint=hint)
        body.set_visibility(text is not None)
        lines = show_headers(draft.headers)
        headers = form.field("Headers, one name: value a line", kind="textarea", value=lines)
        headers.set_visibility(view.cluster_view.lapwing)

        async def publish() -> None:
            if not valid(topic.value):
                raise ValueError("A topic has 1 to 64 letters, digits, dots, dashes or underscores.")
            content = draft.body if text is None else keep_line_ends(text, body.value).encode()
            if not content:
                raise ValueError("A message needs a body.")
            defer, given = parse_delay(delay.value), parse_headers(headers.value)
            warning = await view.admin.actions.publish(
                view.visitor, topic.value, content, node=node.value, headers=given, defer=defer
            )
            form.close()
            view.notify(warning or f"Published to {topic.value}", bad=bool(warning))
            view.admin.poller.soon()

        form.buttons(("Publish", publish, "main"), sign="send")
