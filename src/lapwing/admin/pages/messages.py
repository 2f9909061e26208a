"""The page of messages: browse the log of a topic without consuming it, search it, follow it, publish to it."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from nicegui import background_tasks
from nicegui.element import Element

from lapwing.admin.error_texts import error_text
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.elements import (
    Field,
    MessageSheet,
    Table,
    button,
    element,
    link_button,
    notice,
    panel,
    set_attributes,
)
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.live_tail import KEPT, LiveTail
from lapwing.admin.pages.message_rows import message_columns, parse_edges, shortened, show_edges
from lapwing.admin.pages.publish import Draft, ask_publish
from lapwing.client.format import count, size, utc_time
from lapwing.client.format import messages as messages_word
from lapwing.client.http import CallFailed
from lapwing.client.log_reader import LogMessage, LogRange, LogSlice, TopicLogs
from lapwing.names import own

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """The view that the address asks for, so that every view has its link."""

    topic: str = ""
    node: str = ""
    start: str = "newest"  # newest, oldest, sequence, time
    at: str = ""
    text: str = ""
    message: str = ""
    edges: Mapping[str, int] = field(default_factory=dict)  # by node: where this page of the list begins or ends

    @classmethod
    def of(cls, view: PageView) -> "MessageQuery":
        """Read the parameters of the page."""
        names = ("topic", "node", "start", "at", "text", "message")
        given = {name: view.asked(name) for name in names if view.asked(name)}
        return cls(**given, edges=parse_edges(view.asked("edges")))

    def href(self, links: PageLinks) -> str:
        """Return the link to exactly this view."""
        return links.page(
            "/messages",
            topic=self.topic,
            node=self.node,
            start=self.start if self.start != "newest" else "",
            at=self.at,
            text=self.text,
            edges=show_edges(self.edges),
            message=self.message,
        )


async def draw(view: PageView) -> None:
    """Draw `/messages`."""
    query = MessageQuery.of(view)
    if view.visitor.may_change:
        with view.buttons:
            draft = Draft(query.topic, query.node)
            button("Publish a message", lambda: ask_publish(view, draft), tone="main", sign="send")
    if not view.cluster_view.lapwing:
        notice("These nsqds keep no log that can be read: messages can be published here, but not shown.")
        return
    _form(view, query)
    if query.topic:
        await _browse(view, query)


def _form(view: PageView, query: MessageQuery) -> None:
    listed = [name for name in view.cluster_view.topics if name == query.topic or not own(name)]
    topics = [("", "choose a topic"), *((name, name) for name in listed)]
    nodes = [
        ("", "all nodes"),
        *((state.node.name, state.node.name) for state in view.cluster_view.nodes if state.lapwing),
    ]
    starts = [
        ("newest", "newest first"),
        ("oldest", "oldest first"),
        ("sequence", "from sequence"),
        ("time", "from time"),
    ]

    def go() -> None:
        start = begin.value
        at = place.value if start in ("sequence", "time") else ""
        view.go(MessageQuery(topic.value, node.value, start, at, text.value).href(view.links))

    with panel(), element("div", None, "lw-form lw-pad"):
        topic = Field(
            "Topic", kind="select", options=topics, value=query.topic, width="180px", on_change=lambda _: go()
        )
        node = Field("Node", kind="select", options=nodes, value=query.node, width="160px")
        begin = Field("Start", kind="select", options=starts, value=query.start, width="135px")
        place = Field(
            "Sequence or UTC time", value=query.at, placeholder="42 or 2026-11-15 09:30:00", width="190px", on_enter=go
        )
        text = Field("Contains", value=query.text, placeholder="in body, headers, id", width="150px", on_enter=go)
        button("Show", go, tone="main", sign="search")


def place_of(query: MessageQuery) -> tuple[int | None, int | None]:
    """Return the sequence or the time (ns) that `at` names. Raises `ValueError` with a sentence for the user."""
    if query.start == "sequence":
        if not query.at.isdigit():
            raise ValueError("A sequence is a whole number.")
        return int(query.at), None
    if query.start == "time":
        try:
            when = datetime.fromisoformat(query.at)
        except ValueError as error:
            raise ValueError("A time looks like 2026-11-15 09:30:00.") from error
        return None, int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
    return None, None


async def _browse(view: PageView, query: MessageQuery) -> None:
    logs = TopicLogs(view.admin.cluster_client.http, query.topic)
    states = [state for state in view.cluster_view.nodes if state.lapwing and query.node in ("", state.node.name)]
    try:
        sequence, at = place_of(query)
        ranges = await logs.ranges([state.node for state in states if state.reachable], at=at)
        if query.start == "newest":
            found = await logs.newest(ranges, limit=PAGE, before=query.edges, text=query.text)
        else:
            begins = {
                each.node.name: sequence if sequence is not None else each.at if each.at is not None else each.first
                for each in ranges
            }
            found = await logs.oldest(ranges, limit=PAGE, begins=begins | dict(query.edges), text=query.text)
    except ValueError as error:
        notice(str(error), "warning", role="alert")
        return
    except CallFailed as error:
        notice(error_text(error), "error", role="alert")
        return
    _facts(ranges)
    if ranges:
        MessageList(view, query, logs, ranges, found)


def _facts(ranges: list[LogRange]) -> None:
    if not ranges:
        notice("No node that keeps a log has this topic.")
        return
    with element("div", None, "lw-logs"):
        for found in ranges:
            held = f"{found.node.name} holds {messages_word(found.next - found.first)}"
            if found.next > found.first:
                begin, end = utc_time(found.first_timestamp / 1e9), utc_time(found.last_timestamp / 1e9)
                held += f", sequences {found.first} to {found.next - 1}, {size(found.bytes)}, from {begin} to {end} UTC"
            element("div", held)


def searched(query: MessageQuery, found: LogSlice) -> str:
    """Return a sentence about how far a search has come."""
    hits = f"{messages_word(len(found.messages))} of {count(found.searched)} searched contain “{query.text}”"
    if found.complete:
        side = "beginning" if query.start == "newest" else "end"
        return f"{hits}. The search has reached the {side} of the log."
    way = "back to" if query.start == "newest" else "up to"
    return f"{hits}, {way} {utc_time(found.reached / 1e9)} UTC."


class MessageList:
    """The list of messages beside the chosen message. On a phone the message opens over the list."""

    def __init__(
        self, view: PageView, query: MessageQuery, logs: TopicLogs, ranges: list[LogRange], found: LogSlice
    ) -> None:
        self._view = view
        self._query = query
        self._logs = logs
        self._messages = found.messages
        self._chosen: LogMessage | None = None
        if query.text:
            element("p", searched(query, found), "lw-faint", role="status")
        with element("div", None, "lw-buttons"):
            if query.start == "newest" and not query.edges:
                LiveTail(view, logs, ranges, query.text, self._add)
            self._turning(ranges, found)
        with element("div", None, "lw-two"):
            with panel():
                self._table = Table(
                    "messages",
                    f"Messages of {query.topic}",
                    message_columns(query.text),
                    on_pick=self.pick,
                    empty="No message contains this text." if query.text else "No messages here.",
                )
                set_attributes(self._table, mark=query.text)
            self._sheet = MessageSheet("Message", self._table, self._sheet_buttons, mark=query.text)
        self._show()
        if query.message:
            background_tasks.create(self.pick(query.message))

    def _show(self) -> None:
        self._table.show_each(self._messages, lambda message: f"{message.node}|{message.sequence}")

    def _add(self, newer: list[LogMessage]) -> None:
        self._messages = (newer + self._messages)[:KEPT]
        self._show()

    def _turning(self, ranges: list[LogRange], found: LogSlice) -> None:
        """Buttons to the next and previous page of the list."""
        view, query = self._view, self._query
        here = replace(query, message="")
        if query.start == "newest":
            if query.edges:
                link_button("Newest", replace(here, edges={}).href(view.links), sign="first_page")
            if not found.complete:
                word = "Search older messages" if query.text else "Older"
                link_button(word, replace(here, edges=found.edges).href(view.links), sign="chevron_right")
            return
        firsts = {each.node.name: each.first for each in ranges}
        begins = firsts | {message.node: message.sequence for message in reversed(found.messages)}
        if any(begins[node] > first for node, first in firsts.items()):
            older = MessageQuery(query.topic, query.node, text=query.text, edges=begins)
            link_button("Older", older.href(view.links), sign="chevron_left")
        if not found.complete:
            word = "Search newer messages" if query.text else "Newer"
            link_button(word, replace(here, edges=found.edges).href(view.links), sign="chevron_right")

    async def pick(self, row: str) -> None:
        """Show the message of a row."""
        self._table.choose(row)
        self._chosen = await self._fetch(row)
        if self._chosen is None:
            self._view.notify("The log no longer holds this message.", bad=True)
            return
        node, _, sequence = row.rpartition("|")
        link = MessageQuery(self._query.topic, node, "sequence", sequence, "", row)
        self._sheet.show(shortened(self._chosen.as_json(self._query.topic)), link.href(self._view.links))

    async def _fetch(self, row: str) -> LogMessage | None:
        named = self._view.message_of(row)
        if named is None:
            return None
        node, sequence = named
        with contextlib.suppress(CallFailed):
            found = await self._logs.page(node, sequence, sequence + 1, limit=1)
            return found.messages[0] if found.messages else None
        return None

    def _sheet_buttons(self) -> list[Element]:
        return [button("Publish again", self._publish_again, sign="send")] if self._view.visitor.may_change else []

    def _publish_again(self) -> None:
        if self._chosen is not None:
            # with the id of the first, the topic may take it for a repeat and not store it
            headers = {name: value for name, value in self._chosen.headers.items() if name != "message-id"}
            ask_publish(self._view, Draft(self._query.topic, self._chosen.node, self._chosen.body, headers))
