"""The page of dead letters: which there are and why, one with its error, and what is done with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nicegui import background_tasks
from nicegui.element import Element

from lapwing.admin.dead_letters import CONDITIONS, letter_filter, merge_groups, merge_letters
from lapwing.admin.error_texts import refusal, refusals
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.dead_actions import ask_cancel, ask_purge, ask_purge_one, ask_redrive, ask_redrive_one
from lapwing.admin.pages.dead_rows import (
    GROUP_COLUMNS,
    TASK_COLUMNS,
    letter_columns,
    letter_key,
    letter_message,
    topic_columns,
)
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
    show_notice,
)
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.message_rows import parse_edges, show_edges
from lapwing.admin.pages.table_rows import row_of
from lapwing.client.admin import Admin, LetterFilter
from lapwing.client.admin_results import settled
from lapwing.client.cluster import Json, Node
from lapwing.client.format import several
from lapwing.names import DEAD_REASONS

_LETTERS: Final = 50  # of one page
_RARER: Final = ("source", "pattern", "field", "since", "until")  # conditions that are folded up


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """The view that the address asks for, so that every view has its link."""

    topic: str = ""
    given: Mapping[str, str] = field(default_factory=dict)  # conditions for the letters, by name
    edges: Mapping[str, int] = field(default_factory=dict)  # by node: the last letter of the page before
    letter: str = ""  # `node|sequence`

    @classmethod
    def of(cls, view: PageView) -> "LetterQuery":
        """Read the parameters of the page."""
        given = {name: text for name in CONDITIONS if (text := view.asked(name).strip())}
        return cls(view.asked("topic"), given, parse_edges(view.asked("edges")), view.asked("letter"))

    def href(self, links: PageLinks) -> str:
        """Return the link to exactly this view."""
        edges = show_edges(self.edges)
        return links.page("/dead", topic=self.topic, **self.given, edges=edges, letter=self.letter)


def draw(view: PageView) -> None:
    """Draw `/dead`."""
    view.explain("Messages that a channel has given up. A redrive returns them to that channel, and to no other.")
    if not view.cluster_view.lapwing:
        notice("These nsqds are plain NSQ, which keeps no dead letters, or do not answer.")
        return
    query = LetterQuery.of(view)
    if not query.topic:
        _topics(view)
        return
    _tasks(view, query.topic)
    _form(view, query)
    DeadLetters(view, query)


def _topics(view: PageView) -> None:
    with panel("Dead-letter topics"):
        table = Table(
            "topics",
            "Dead-letter topics",
            topic_columns(view.links),
            order="letters:down",
            empty="No channel has given up a message. A channel gives up after max_attempts failures: see Settings.",
        )
    view.live(lambda: table.show_each(view.admin.poller.dead.values(), lambda each: each.name), dead=True)


def _tasks(view: PageView, topic: str) -> None:
    """Show the last redrive of each node, with its progress; the panel appears with the first of them."""
    with panel("Redrives and purges", "the last one of each nsqd") as box:
        with element("div", None, "lw-buttons lw-pad") as buttons:
            button("Cancel", lambda: ask_cancel(view, topic), tone="danger", sign="stop")
        table = Table("tasks", f"Redrives of {topic}", TASK_COLUMNS, plain=True)

    def refresh() -> None:
        found = view.admin.poller.dead.get(topic)
        tasks = found.tasks if found is not None else {}
        box.set_visibility(bool(tasks))
        buttons.set_visibility(found is not None and bool(found.running) and view.visitor.may_change)
        table.show_each(({**task, "node": node} for node, task in tasks.items()), "node")

    view.live(refresh, dead=True)


def _form(view: PageView, query: LetterQuery) -> None:
    topics = sorted({query.topic, *view.admin.poller.dead})

    def go() -> None:
        given = {name: text for name, shown in shown_fields.items() if (text := shown.value.strip())}
        view.go(LetterQuery(topic.value, given).href(view.links))

    with panel(), element("div", None, "lw-form lw-pad"):
        topic = Field(
            "Dead-letter topic",
            kind="select",
            options=[(name, name) for name in topics],
            value=query.topic,
            on_change=lambda name: view.go(view.links.dead(name)),
        )
        reasons = [("", "any reason"), *((reason, reason) for reason in DEAD_REASONS)]

        def text(name: str, label: str, width: str, placeholder: str = "") -> None:
            value = query.given.get(name, "")
            shown_fields[name] = Field(label, value=value, placeholder=placeholder, width=width, on_enter=go)

        shown_fields: dict[str, Field] = {}
        text("channel", "Channel", "130px")
        shown_fields["reason"] = Field(
            "Reason", kind="select", options=reasons, value=query.given.get("reason", ""), on_enter=go
        )
        text("error", "Error contains", "170px")
        text("text", "Body contains", "170px")
        button("Show", go, tone="main", sign="search")
        if query.given:
            link_button("All letters", view.links.dead(query.topic), sign="clear")
        more = not query.given.keys().isdisjoint(_RARER)
        with element("details", None, "lw-more-fields", open=more or None):
            element("summary", "More conditions")
            with element("div", None, "lw-form"):
                text("source", "From topic", "150px")
                text("pattern", "Body matches", "170px", "an RE2 expression")
                text("field", "JSON field of the body", "170px", "/customer/id=17")
                text("since", "Given up since", "170px", "2h ago as 2h, or a time")
                text("until", "Given up until", "170px", "10m, or a time")


class DeadLetters:
    """The groups and the letters of a topic, with the chosen letter beside them. They follow the number of letters."""

    def __init__(self, view: PageView, query: LetterQuery) -> None:
        self._view = view
        self._query = query
        self._groups: list[Json] = []
        self._chosen: Json | None = None
        self._seen: tuple[object, ...] = ()
        self._heading_buttons()
        self._problem = notice("", "warning", role="alert")
        with panel("Why", "letters by channel, reason and error; choose a row to see only these"):
            self._group_table = Table(
                "groups", "Groups of dead letters", GROUP_COLUMNS, on_pick=self._pick_group, empty="No dead letters."
            )
        with element("div", None, "lw-two"):
            with panel("Letters", "the oldest first"):
                self._table = Table(
                    "letters",
                    f"Letters of {query.topic}",
                    letter_columns(query.given.get("text", "")),
                    on_pick=self.pick,
                    empty="No dead letters.",
                )
                with element("div", None, "lw-buttons lw-pad"):
                    if query.edges:
                        link_button("Oldest", replace(query, edges={}, letter="").href(view.links), sign="first_page")
                    self._next = link_button("Newer", "#", sign="chevron_right")
                    self._next.set_visibility(False)
            empty = "Choose a letter to see all of it."
            self._sheet = MessageSheet(
                "Letter", self._table, self._sheet_buttons, mark=query.given.get("text", ""), empty=empty
            )
        view.live(self._refresh, dead=True)
        if query.letter:
            background_tasks.create(self.pick(query.letter))

    def _heading_buttons(self) -> None:
        if not self._view.visitor.may_change:
            return
        which = "matching letters" if self._query.given else "all letters"
        with self._view.buttons:
            button(f"Redrive {which} …", lambda: self._ask_many(ask_redrive), tone="main", sign="replay")
            button(f"Purge {which} …", lambda: self._ask_many(ask_purge), tone="danger", sign="delete_sweep")

    def _sheet_buttons(self) -> list[Element]:
        if not self._view.visitor.may_change:
            return []

        def redrive(*, edit: bool) -> None:
            self._with_letter(ask_redrive_one, edit=edit, then=self._sheet.close)

        return [
            button("Redrive …", lambda: redrive(edit=False), sign="replay"),
            button("Edit and redrive …", lambda: redrive(edit=True), sign="edit"),
            button("Purge …", lambda: self._with_letter(ask_purge_one), tone="danger", sign="delete_outline"),
        ]

    # ---- reading ----

    def _refresh(self) -> None:
        """Read groups and letters again when their number has changed, or a redrive has moved on."""
        found = self._view.admin.poller.dead.get(self._query.topic)
        moved = sum(task["redriven"] for task in found.tasks.values()) if found is not None else 0
        seen = (found.by_node if found is not None else None, moved)
        if seen != self._seen:
            self._seen = seen
            background_tasks.create(self._load())

    def _nodes(self) -> list[Node]:
        found = self._view.admin.poller.dead.get(self._query.topic)
        names = found.by_node if found is not None else ()
        return [state.node for state in self._view.cluster_view.nodes if state.reachable and state.node.name in names]

    async def _load(self) -> None:
        query, nodes = self._query, self._nodes()
        brokers = self._brokers(nodes)
        try:
            wanted = letter_filter(query.given)
        except ValueError as error:
            show_notice(self._problem, str(error))
            return
        groups = await settled(brokers.dead_groups(query.topic, wanted))
        letters = await settled(brokers.dead_letters(query.topic, wanted, after=query.edges, count=_LETTERS))
        page = merge_letters(letters.answers, after=query.edges, limit=_LETTERS)
        self._groups, others = merge_groups(groups.answers)
        lost = [refusal(result) for result in groups if not result.done]
        if others:
            lost.append(f"{several(others, 'letter')} of further groups are not counted below")
        if not nodes:
            lost.append(f"No nsqd that answers has dead letters in {query.topic}.")
        show_notice(self._problem, "; ".join(dict.fromkeys(lost)))
        self._group_table.show([row_of(GROUP_COLUMNS, str(number), each) for number, each in enumerate(self._groups)])
        self._table.show_each(page.letters, letter_key)
        self._next.set_visibility(not page.complete)
        set_attributes(self._next, href=replace(query, edges=page.edges, letter="").href(self._view.links))

    def _pick_group(self, row: str) -> None:
        group = self._groups[int(row)]
        named = {"source": group["topic"], **{name: group[name] for name in ("channel", "reason", "error")}}
        given = {name: text for name, text in {**self._query.given, **named}.items() if text}
        self._view.go(LetterQuery(self._query.topic, given, letter=group["sample"]).href(self._view.links))

    async def pick(self, row: str) -> None:
        """Show the letter of a row."""
        self._table.choose(row)
        named, letter = self._view.message_of(row), None
        if named is not None:
            node, sequence = named
            one = LetterFilter(sequences=[sequence])
            results = await settled(self._brokers([node]).dead_letters(self._query.topic, one, count=1))
            if not results.answers:
                self._view.notify("; ".join(refusals(results)), bad=True)
                return
            found = [each.document for answer in results.answers.values() for each in answer.letters]
            letter = {**found[0], "in": node.name} if found else None
        self._chosen = letter
        if letter is None:
            self._sheet.show(None)
            self._view.notify("This letter has been dealt with.", bad=True)
        else:
            self._sheet.show(letter_message(letter), replace(self._query, letter=row).href(self._view.links))

    # ---- dealing with them ----

    def _brokers(self, nodes: list[Node]) -> Admin:
        return self._view.admin.brokers.at(nodes)

    def _ask_many(self, ask: Callable[[PageView, Admin, str, Mapping[str, str]], None]) -> None:
        nodes = self._nodes()
        if not nodes:
            self._view.notify(f"No nsqd that answers has dead letters in {self._query.topic}.", bad=True)
            return
        ask(self._view, self._brokers(nodes), self._query.topic, self._query.given)

    def _with_letter(self, ask: Callable[..., None], **more: Any) -> None:
        """Open a dialog about the chosen letter."""
        letter = self._chosen
        node = self._view.cluster_view.node(letter["in"]) if letter is not None else None
        if letter is not None and node is not None:
            ask(self._view, self._brokers([node.node]), self._query.topic, letter, **more)
