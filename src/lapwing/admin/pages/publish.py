"""The dialog that publishes a message: a new one, or a copy of one that exists."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.elements import Dialog, Field, button, element, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.message_rows import editable, fixed_body, keep_line_ends
from lapwing.client.headers import encode
from lapwing.errors import LapwingError
from lapwing.names import valid

_PLAIN: Final = re.compile("(?!\")[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")  # no line break, and not the beginning of JSON


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
    again = bool(draft.body)
    title = "Publish the message again" if again else "Publish a message"
    nodes = [
        (state.node.name, f"{state.node.hostname} ({state.node.name})")
        for state in view.cluster_view.nodes
        if state.reachable
    ]
    chosen = draft.node if any(name == draft.node for name, _ in nodes) else nodes[0][0] if nodes else ""
    text = editable(draft.body)
    with view.client.content:
        dialog = Dialog(title)
    with dialog, element("div", None, "lw-dialog lw-wide-dialog"):
        element("h2", title)
        with element("div", None, "lw-form"):
            topic = Field("Topic", value=draft.topic, focus=not draft.topic, on_enter=lambda: go(), width="100%")
            node = Field("Node", kind="select", options=nodes, value=chosen, on_enter=lambda: go())
            delay = Field("Delay in seconds", kind="number", placeholder="0", on_enter=lambda: go())
        if text is None:
            element("p", f"{fixed_body(draft.body)} and is published as it is.")
        body = Field(
            "Body", kind="textarea", value=text or "", focus=bool(draft.topic), hint="Ctrl+Enter publishes",
            on_enter=lambda: go(),
        )  # fmt: skip
        body.set_visibility(text is not None)
        headers = Field(
            "Headers, one name: value a line",
            kind="textarea",
            value=show_headers(draft.headers),
            on_enter=lambda: go(),
        )
        headers.set_visibility(view.cluster_view.lapwing)
        problem = element("p", "", role="alert")
        with element("div", None, "lw-buttons"):
            button("Cancel", dialog.close)
            button("Publish", lambda: go(), tone="main", sign="send")

    async def go() -> None:
        try:
            if not valid(topic.value):
                raise ValueError("A topic has 1 to 64 letters, digits, dots, dashes or underscores.")
            content = draft.body if text is None else keep_line_ends(text, body.value).encode()
            if not content:
                raise ValueError("A message needs a body.")
            defer, given = parse_delay(delay.value), parse_headers(headers.value)
        except ValueError as error:
            set_text(problem, str(error))
            return
        try:
            outcome = await view.admin.actions.publish(
                view.visitor, topic.value, content, node=node.value, headers=given, defer=defer
            )
        except LapwingError as error:  # the dialog stays open: the message can be changed and sent again
            set_text(problem, error_text(error))
            return
        dialog.close()
        view.notify(outcome.message or f"Published to {topic.value}", bad=bool(outcome.message))
        view.admin.poller.soon()

    dialog.on("hide", lambda: dialog.delete(), args=[])
    dialog.open()
