"""Messages of a topic: browsed without consuming them, followed live, published."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from nicegui import background_tasks, ui
from nicegui.element import Element

from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.dialogs import carry_out
from lapwing.admin.pages.elements import (
    Field,
    MessageView,
    Table,
    button,
    element,
    link_button,
    notice,
    panel,
    set_attributes,
    set_text,
)
from lapwing.admin.pages.frame import PATIENCE, PageView, frame
from lapwing.admin.pages.table_rows import PageLinks, Row, TableColumn
from lapwing.admin.peek import LogState, Peek, newest, oldest
from lapwing.client.cluster import Json
from lapwing.client.format import count, size, utc_time
from lapwing.client.format import messages as messages_word
from lapwing.client.http import CallFailed
from lapwing.names import own, valid

if TYPE_CHECKING:
    from lapwing.admin.services import Admin

PAGE: Final = 100
KEPT: Final = 500  # rows of a live tail
PREVIEW: Final = 240  # characters of a body in the list
WHOLE: Final = 262_144  # characters of a body in the view
BREATH: Final = 0.7  # seconds between two looks of a live tail

COLUMNS: Final = (
    TableColumn("sequence", "Sequence", "text"),
    TableColumn("published", "Published", "stamp", "In UTC"),
    TableColumn("node", "Node", "text"),
    TableColumn("size", "Size", "bytes"),
    TableColumn("body", "Body", "code"),
    TableColumn("headers", "Headers", "labels"),
)


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """What the address asks for: so every view has its link."""

    topic: str = ""
    node: str = ""
    start: str = "newest"  # newest, oldest, sequence, time
    at: str = ""
    text: str = ""
    message: str = ""

    @classmethod
    def of(cls, view: PageView) -> "MessageQuery":
        """From the page's parameters."""
        return cls(
            view.asked("topic"),
            view.asked("node"),
            view.asked("start", "newest"),
            view.asked("at"),
            view.asked("text"),
            view.asked("message"),
        )

    def href(self, links: PageLinks) -> str:
        """The link to exactly this."""
        given = {
            "topic": self.topic,
            "node": self.node,
            "start": self.start if self.start != "newest" else "",
            "at": self.at,
            "text": self.text,
            "message": self.message,
        }
        return links.page(
            "/messages?" + urlencode({key: value for key, value in given.items() if value}, quote_via=quote)
        )


def install(admin: "Admin") -> None:
    """`/messages`"""

    @ui.page("/messages", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, "Messages", "/messages") as view:
            asked = MessageQuery.of(view)
            if view.cluster_view.lapwing:
                _form(view, asked)
                if asked.topic:
                    await _browse(view, asked)
            else:
                notice("These nsqds keep no log that can be read, so messages can be published here, not looked at.")
            if view.visitor.may_change:
                _publish(view, asked)


def _form(view: PageView, asked: MessageQuery) -> None:
    listed = [name for name in view.cluster_view.topics if name == asked.topic or not own(name)]
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
        wanted = MessageQuery(
            topic.value, node.value, start, place.value if start in ("sequence", "time") else "", text.value
        )
        view.go(wanted.href(view.links))

    with panel(), element("div", None, "lw-form lw-pad"):
        topic = Field(
            "Topic", kind="select", options=topics, value=asked.topic, width="180px", on_change=lambda _: go()
        )
        node = Field("Node", kind="select", options=nodes, value=asked.node, width="160px")
        begin = Field("Start", kind="select", options=starts, value=asked.start, width="135px")
        place = Field(
            "Sequence or UTC time", value=asked.at, placeholder="42 or 2026-11-15 09:30:00", width="190px", on_enter=go
        )
        text = Field("Contains", value=asked.text, placeholder="in body, headers, id", width="150px", on_enter=go)
        button("Show", go, tone="main", sign="search")


def place_of(asked: MessageQuery) -> tuple[int | None, int | None]:
    """(sequence, time in ns) that `at` names; raises `ValueError` with words for the user."""
    if asked.start == "sequence":
        if not asked.at.isdigit():
            raise ValueError("A sequence is a whole number.")
        return int(asked.at), None
    if asked.start == "time":
        try:
            when = datetime.fromisoformat(asked.at)
        except ValueError as error:
            raise ValueError("A time looks like 2026-11-15 09:30:00.") from error
        return None, int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
    return None, None


@dataclass(slots=True)
class Browser:
    """What the list holds, and the live tail that adds to it."""

    view: PageView
    asked: MessageQuery
    peek: Peek
    states: list[LogState]
    messages: list[Json]
    paused: bool = False
    tails: dict[str, int] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


async def _browse(view: PageView, asked: MessageQuery) -> None:
    peek = Peek(view.admin.cluster_client.http)
    nodes = [state.node for state in view.cluster_view.nodes if state.lapwing and asked.node in ("", state.node.name)]
    try:
        sequence, at = place_of(asked)
        states = await peek.states(nodes, asked.topic, at=at)
        begins = {
            state.node.name: sequence if sequence is not None else state.at if state.at is not None else state.first
            for state in states
        }
        if asked.start == "newest":
            shown = await newest(peek, states, asked.topic, before={}, text=asked.text, limit=PAGE)
        else:
            shown = await oldest(peek, states, asked.topic, begins=begins, text=asked.text, limit=PAGE)
    except ValueError as error:
        notice(str(error), "warning", role="alert")
        return
    except CallFailed as error:
        notice(error_text(error), "error", role="alert")
        return
    browser = Browser(view, asked, peek, states, shown)
    browser.tails = {state.node.name: state.next for state in states}
    _facts(states)
    _list(browser)


def _facts(states: list[LogState]) -> None:
    if not states:
        notice("No node that keeps a log has this topic.")
        return
    with element("div", None, "lw-logs"):
        for state in states:
            held = f"{state.node.name} holds {messages_word(state.next - state.first)}"
            if state.next > state.first:
                begin, end = utc_time(state.first_timestamp / 1e9), utc_time(state.last_timestamp / 1e9)
                held += f", sequences {state.first} to {state.next - 1}, {size(state.bytes)}, from {begin} to {end} UTC"
            element("div", held)


def message_row(message: Json) -> Row:
    """One message in the list."""
    body = message.get("body")
    coded = message.get("body_base64") or ""
    length = len(body.encode()) if body is not None else len(coded) * 3 // 4
    preview = body[:PREVIEW] if body is not None else f"binary, base64: {coded[:60]}"
    headers = message.get("headers") or {}
    said = (
        [[f"{len(headers)}", "info", "\n".join(f"{key}: {value}" for key, value in headers.items())]] if headers else []
    )
    return [
        f"{message['node']}|{message['sequence']}",
        str(message["sequence"]),
        message["timestamp"] / 1e9,
        message["node"],
        length,
        preview,
        said,
    ]


def _list(browser: Browser) -> None:
    view, asked = browser.view, browser.asked
    with element("div", None, "lw-buttons"):
        if asked.start == "newest":
            follow = button("Follow live", lambda: _follow(browser, follow, pause, said, table), sign="play_arrow")
            pause = button("Pause", lambda: _pause(browser, pause, said), sign="pause")
            pause.set_visibility(False)
            said = element("span", "", "lw-faint", role="status")
        _turning(view, asked, browser.messages, browser.states)
    with element("div", None, "lw-two"):
        with panel():
            table = Table(
                "messages",
                f"Messages of {asked.topic}",
                COLUMNS,
                on_pick=lambda row: pick(row),
                empty="No messages here.",
            )
        with panel("Message") as side:
            side.classes("lw-sticky")
            whole = MessageView()
            link = element("a", "Link to this message", "lw-quiet", href="#")
            link.set_visibility(False)
    table.show([message_row(message) for message in browser.messages])

    async def pick(row: str) -> None:
        table.choose(row)
        message = await _fetch(browser, row)
        if message is None:
            view.tell("This message is no longer held.", bad=True)
            return
        whole.show(_cut(message))
        node, _, sequence = row.rpartition("|")
        set_attributes(link, href=MessageQuery(asked.topic, node, "sequence", sequence, "", row).href(view.links))
        link.set_visibility(True)

    if asked.message:
        background_tasks.create(pick(asked.message))
    view.client.on_delete(lambda: browser.task.cancel() if browser.task is not None else None)


def _turning(view: PageView, asked: MessageQuery, shown: list[Json], states: list[LogState]) -> None:
    """On to the next page, where one node is looked at from a place on."""
    if len(states) == 1 and shown and asked.start != "newest" and not asked.text:
        state = states[0]
        first, last = shown[0]["sequence"], shown[-1]["sequence"]
        if first > state.first:
            link_button(
                "Older",
                MessageQuery(asked.topic, state.node.name, "sequence", str(max(state.first, first - PAGE))).href(
                    view.links
                ),
                sign="chevron_left",
            )
        if last + 1 < state.next:
            link_button(
                "Newer",
                MessageQuery(asked.topic, state.node.name, "sequence", str(last + 1)).href(view.links),
                sign="chevron_right",
            )
    elif len(states) == 1 and shown and asked.start == "newest" and not asked.text:
        state, first = states[0], shown[-1]["sequence"]
        if first > state.first:
            link_button(
                "Older",
                MessageQuery(asked.topic, state.node.name, "sequence", str(max(state.first, first - PAGE))).href(
                    view.links
                ),
                sign="chevron_left",
            )


async def _fetch(browser: Browser, row: str) -> Json | None:
    node, _, sequence = row.rpartition("|")
    known = [state.node for state in browser.view.cluster_view.nodes if state.node.name == node]
    if not known or not sequence.isdigit():
        return None
    with contextlib.suppress(CallFailed):
        found = await browser.peek.read(known[0], browser.asked.topic, int(sequence), int(sequence) + 1, limit=1)
        return found[0] if found else None
    return None


def _cut(message: Json) -> Json:
    body = message.get("body")
    if body is not None and len(body) > WHOLE:
        return {**message, "body": body[:WHOLE] + f"\n… {count(len(body) - WHOLE)} characters more"}
    return message


# ---- the live tail ----


def _follow(browser: Browser, follow: Element, pause: Element, said: Element, table: Table) -> None:
    if browser.task is not None:
        browser.task.cancel()
        browser.task = None
        follow.classes(remove="lw-on")
        pause.set_visibility(False)
        set_text(said, "")
        return
    follow.classes(add="lw-on")
    pause.set_visibility(True)
    set_text(said, "following")
    browser.paused = False
    browser.task = background_tasks.create(_tail(browser, said, table))


def _pause(browser: Browser, pause: Element, said: Element) -> None:
    browser.paused = not browser.paused
    set_text(pause.default_slot.children[0], "play_arrow" if browser.paused else "pause")
    set_text(pause.default_slot.children[1], "Resume" if browser.paused else "Pause")
    set_text(said, "paused" if browser.paused else "following")


async def _tail(browser: Browser, said: Element, table: Table) -> None:
    """Add what is new to the top of the list, until cancelled; while paused, only count it."""
    topic, wanted = browser.asked.topic, browser.asked.text.lower()

    async def one(state: LogState) -> list[Json]:
        after = browser.tails[state.node.name]
        end = await browser.peek.news(state, topic, after)
        if end <= after:
            return []
        if browser.paused:  # nothing is read while nobody wants it: the end alone tells how much is new
            set_text(said, f"paused, {count(end - after)} new")
            return []
        begin = max(after, end - KEPT)
        fresh = await browser.peek.read(state.node, topic, begin, end, limit=KEPT)
        browser.tails[state.node.name] = (fresh[-1]["sequence"] + 1) if fresh else end
        return fresh

    waiting = {state.node.name: asyncio.ensure_future(one(state)) for state in browser.states}
    by_name = {state.node.name: state for state in browser.states}
    try:
        while waiting:
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(BREATH)  # gathers what comes thick and fast into one drawing
            fresh: list[Json] = []
            for name, task in list(waiting.items()):
                if task.done():
                    try:
                        fresh += task.result()
                    except CallFailed as error:
                        set_text(said, error_text(error))
                        await asyncio.sleep(2.0)
                    waiting[name] = asyncio.ensure_future(one(by_name[name]))
            if wanted:
                fresh = [message for message in fresh if wanted in (message.get("body") or "").lower()]
            if fresh:
                newer = sorted(fresh, key=lambda message: -message["timestamp"])
                browser.messages = (newer + browser.messages)[:KEPT]
                table.show([message_row(message) for message in browser.messages])
                if not browser.paused:
                    set_text(said, f"following, {count(len(browser.messages))} shown")
    finally:
        for task in waiting.values():
            task.cancel()


# ---- publishing ----


def parse_headers(text: str) -> dict[str, str]:
    """Lines of `name: value`; raises `ValueError` with words for the user."""
    headers: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise ValueError(f"A header looks like name: value, not {line.strip()!r}.")
            headers[name.strip()] = value.strip()
    return headers


def _publish(view: PageView, asked: MessageQuery) -> None:
    nodes = [
        (state.node.name, f"{state.node.hostname} ({state.node.name})")
        for state in view.cluster_view.nodes
        if state.reachable
    ]
    with panel("Publish a message"), element("div", None, "lw-pad lw-stack"):
        with element("div", None, "lw-form"):
            topic = Field("Topic to publish to", value=asked.topic, width="220px")
            node = Field("To node", kind="select", options=nodes, value=nodes[0][0] if nodes else "", width="240px")
            delay = Field("Delay in seconds", kind="number", placeholder="0", width="130px")
        with element("div", None, "lw-two"):
            body = Field("Body", kind="textarea")
            headers = Field("Headers, one name: value a line", kind="textarea")
            headers.set_visibility(view.cluster_view.lapwing)
        problem = element("p", "", role="alert")

        async def go() -> None:
            set_text(problem, "")
            try:
                if not valid(topic.value):
                    raise ValueError("That is no name for a topic.")
                if not body.value:
                    raise ValueError("A message has to have a body.")
                defer = round(float(delay.value or 0) * 1000)
                if defer < 0:
                    raise ValueError("A delay cannot be negative.")
                given = parse_headers(headers.value)
            except OverflowError:
                set_text(problem, "That delay is too long.")
                return
            except ValueError as error:
                set_text(problem, str(error))
                return
            await carry_out(
                view,
                lambda: view.admin.actions.publish(
                    view.visitor, topic.value, body.value.encode(), node=node.value, headers=given, defer=defer
                ),
                f"Published to {topic.value}",
            )

        button("Publish", go, tone="main", sign="send")
