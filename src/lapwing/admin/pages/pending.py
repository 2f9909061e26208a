"""The panel of a channel's page that shows pending messages: who holds them, and how they are taken back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nicegui import background_tasks

from lapwing.admin.actions import Action
from lapwing.admin.audit import in_words
from lapwing.admin.error_texts import refusals
from lapwing.admin.pages.dead_rows import first_line, seconds_of, shown_time, with_facts
from lapwing.admin.pages.elements import (
    MessageView,
    Table,
    button,
    element,
    notice,
    panel,
    set_attributes,
    set_text,
    show_notice,
)
from lapwing.admin.pages.forms import FormDialog, form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Row, TableColumn
from lapwing.client.admin_results import Claimed, Pending, PendingMessage, Results, settled
from lapwing.client.cluster import Json, Node
from lapwing.client.format import count, duration, messages, parse_span

IN_FLIGHT: Final = "in_flight"
READY: Final = "ready"
DEFERRED: Final = "deferred"
PAGE: Final = 100  # messages of each node
SECOND: Final = 1_000_000_000  # ns
MOST: Final = 10_000  # messages that one claim may take on each node
_TIMES: Final = ("delay", "min_idle")  # seconds
TABS: Final = ((IN_FLIGHT, "In flight"), (READY, "To be delivered again"), (DEFERRED, "Deferred"))
COLUMNS: Final = (
    TableColumn("sequence", "Sequence", "text"),
    TableColumn("node", "NSQd host", "link"),
    TableColumn("holder", "Holder", "text", wide=True),
    TableColumn("idle", "Idle", "dur", "Time since it was delivered, or touched"),
    TableColumn("deadline", "Deadline", "stamp", "When it is given to another consumer, in UTC"),
    TableColumn("deliveries", "Deliveries"),
    TableColumn("failures", "Failures"),
    TableColumn("error", "Last error", "code"),
    TableColumn("size", "Size", "bytes"),
    TableColumn("actions", "Actions", "actions"),
)
DEFERRED_COLUMNS: Final = tuple(
    TableColumn("deadline", "Due", "stamp", "When it is delivered, in UTC") if each.key == "deadline" else each
    for each in COLUMNS
    if each.key not in ("holder", "idle")
)
READY_COLUMNS: Final = tuple(each for each in COLUMNS if each.key not in ("holder", "idle", "deadline"))
_COLUMNS: Final = {IN_FLIGHT: COLUMNS, READY: READY_COLUMNS, DEFERRED: DEFERRED_COLUMNS}
_EMPTY: Final = {
    IN_FLIGHT: "No consumer holds a message.",
    READY: "No message waits to be delivered again.",
    DEFERRED: "No message is deferred.",
}


@dataclass(frozen=True, slots=True)
class ClaimAction:
    """One thing that a claim can do with messages, in the words of the page."""

    name: str  # as nsqd calls it
    label: str
    question: str
    past: str
    tone: str = "main"


ACTIONS: Final = (
    ClaimAction("ready", "Make ready", "Other consumers get it at once.", "Made ready"),
    ClaimAction("finish", "Finish", "It counts as done, and nobody gets it again.", "Finished", "kill"),
    ClaimAction("reject", "Reject", "It becomes a dead letter, or is dropped where none are kept.", "Rejected", "kill"),
    ClaimAction("defer", "Defer", "It is delivered after the delay.", "Deferred"),
)
_LABELS: Final = {(DEFERRED, "ready"): "Deliver now", (DEFERRED, "finish"): "Cancel the message"}


def actions_for(state: str) -> list[ClaimAction]:
    """Return what can be done with a message in this state."""
    return [action for action in ACTIONS if (state, action.name) != (READY, "ready")]


def label_of(action: ClaimAction, state: str) -> str:
    """Return the label of an action for messages in this state."""
    return _LABELS.get((state, action.name), action.label)


def entry_row(entry: PendingMessage, node: str, node_href: str, state: str, *, may_change: bool) -> Row:
    """Return the row of one pending message."""
    cells: Json = {
        "sequence": str(entry.sequence),
        "node": [node, node_href, "", []],
        "holder": entry.holder or "",
        "idle": entry.idle / 1000 if entry.idle is not None else None,
        "deadline": seconds_of(entry.deadline),
        "deliveries": entry.deliveries,
        "failures": entry.failures,
        "error": first_line(entry.error),
        "size": entry.size,
        "actions": [
            [action.name, f"{label_of(action, state)} …", "danger" if action.tone == "kill" else ""]
            for action in actions_for(state)
        ]
        if may_change
        else [],
    }
    return [f"{node}|{entry.sequence}", *(cells[column.key] for column in _COLUMNS[state])]


def claimed(results: Results[Claimed], past: str) -> str:
    """Return a sentence about how many messages a claim took, and whether more are left."""
    answers = results.answers.values()
    taken = sum(answer.claimed for answer in answers)
    if not taken:
        reasons = [reason for answer in answers for reason in answer.refused.values()]
        return f"Nothing was changed: {reasons[0] if reasons else 'no message fits'}"
    more = any(answer.more for answer in answers)
    return f"{past} {messages(taken)}" + ("; there are more" if more else "")


def entry_message(entry: PendingMessage, node: str) -> Json:
    """Return a pending message for the message view."""
    facts: list[list[Any]] = [
        ["Sequence", entry.sequence],
        ["Id", entry.id],
        ["State", dict(TABS)[entry.state].lower()],
        ["Holder", entry.holder],
        ["Deliveries", entry.deliveries],
        ["Failures", entry.failures],
        ["Deadline", shown_time(entry.deadline)],
        ["Node", node],
    ]
    return with_facts(entry.document, facts)


class PendingPanel:
    """The tabs of pending messages. The open tab is read again with every new view of the cluster."""

    def __init__(self, view: PageView, topic: str, channel: str) -> None:
        self._view = view
        self._topic = topic
        self._channel = channel
        self._state = view.asked("pending") if view.asked("pending") in _COLUMNS else IN_FLIGHT
        self._entries: dict[str, PendingMessage] = {}  # by row
        self._edges: dict[str, int] = {}
        self._following: dict[str, int] = {}
        self._busy = False
        with panel("Pending messages", "who holds them, and what waits to be delivered") as self._box:
            with element("div", None, "lw-buttons lw-pad"):
                with element("div", None, "lw-tabs", role="tablist", aria_label="Pending messages"):
                    self._tabs = {state: self._tab(state, text) for state, text in TABS}
                if view.visitor.may_change:
                    button("Claim …", self._ask_many, sign="pan_tool", title="Take many messages from their holders")
                self._first = button("First", lambda: self._turn({}), sign="first_page")
                self._next = button("Next", lambda: self._turn(self._following), sign="chevron_right")
            self._problem = notice("", "warning", role="alert")
            self._table = Table(
                "pending",
                f"Pending messages of {topic}/{channel}",
                COLUMNS,
                plain=True,
                on_act=self._act,
                on_pick=self._pick,
            )
        self._choose(self._state)
        view.live(self._refresh)

    def _tab(self, state: str, text: str) -> Any:
        made = element("button", text, type="button", role="tab", aria_selected="false")
        made.on("click", lambda: self._choose(state), args=[])
        return made

    def _choose(self, state: str) -> None:
        self._state = state
        for name, tab in self._tabs.items():
            set_attributes(tab, aria_selected="true" if name == state else "false")
        self._table.set_columns(_COLUMNS[state])
        self._table.show([])
        set_attributes(self._table, empty="Reading …")
        self._first.set_visibility(False)
        self._next.set_visibility(False)
        self._turn({})

    def _turn(self, edges: dict[str, int]) -> None:
        self._edges = edges
        background_tasks.create(self._load())

    # ---- reading ----

    def _nodes(self) -> list[Node]:
        return self._view.channel_nodes(self._topic, self._channel)

    def _refresh(self) -> None:
        shown = bool(self._nodes())
        self._box.set_visibility(shown)
        if shown and not self._busy:
            background_tasks.create(self._load())

    async def _load(self) -> None:
        self._busy = True
        try:
            state, edges = self._state, dict(self._edges)
            brokers = self._view.admin.brokers.at(self._nodes())
            results = await settled(brokers.pending(self._topic, self._channel, state=state, after=edges, count=PAGE))
        finally:
            self._busy = False
        if state == self._state and edges == self._edges:
            self._show(results.answers, edges, refusals(results))

    def _show(self, answers: dict[str, Pending], edges: dict[str, int], failed: list[str]) -> None:
        may_change = self._view.visitor.may_change
        rows = [
            entry_row(entry, node, self._view.links.node(node), self._state, may_change=may_change)
            for node, answer in answers.items()
            for entry in answer.entries
        ]
        self._entries = {f"{node}|{each.sequence}": each for node, found in answers.items() for each in found.entries}
        set_attributes(self._table, empty=_EMPTY[self._state])
        self._table.show(rows)
        for state, text in TABS:
            waiting = sum(answer.counts[state] for answer in answers.values())
            set_text(self._tabs[state], f"{text} {count(waiting)}" if waiting else text)
        self._following = edges | {node: answer.next for node, answer in answers.items() if answer.next is not None}
        self._first.set_visibility(bool(edges))
        self._next.set_visibility(any(answer.next is not None for answer in answers.values()))
        show_notice(self._problem, f"Not all can be read: {'; '.join(failed)}." if failed else "")

    async def _pick(self, row: str) -> None:
        """Show one message whole in a dialog."""
        found = self._view.message_of(row)
        if found is None:
            return
        node, sequence = found
        state = self._state
        brokers = self._view.admin.brokers.at([node])
        results = await settled(brokers.pending(self._topic, self._channel, after=sequence - 1, count=1, bodies=True))
        entry = next((each for answer in results.answers.values() for each in answer.entries), None)
        if entry is None or entry.sequence != sequence:
            problem = "; ".join(refusals(results)) or "This message is not pending any more."
            self._view.notify(problem, bad=True)
            return
        with form_dialog(self._view, f"Message {sequence} of {self._topic}/{self._channel}", wide=True) as form:
            MessageView().show(entry_message(entry, node.name))

            def then(action: ClaimAction) -> Any:
                async def go() -> None:
                    form.close()
                    self._ask(node, action, state, entry)

                return go

            may_change = self._view.visitor.may_change
            shown = actions_for(entry.state) if may_change else []
            form.buttons(*((f"{label_of(each, entry.state)} …", then(each), "") for each in shown), leave="Close")

    # ---- claiming ----

    def _act(self, name: str, row: str) -> None:
        found, entry = self._view.message_of(row), self._entries.get(row)
        action = next(each for each in ACTIONS if each.name == name)
        if found is not None and entry is not None:
            self._ask(found[0], action, self._state, entry)

    def _ask(self, node: Node, action: ClaimAction, state: str, entry: PendingMessage) -> None:
        """Ask before one message is claimed."""
        label = label_of(action, state)
        with form_dialog(self._view, f"{label}: message {entry.sequence} of {self._topic}/{self._channel}?") as form:
            element("p", action.question)
            if state == IN_FLIGHT:
                element("p", "Its holder loses it: a late answer of that consumer is refused.")
            extra = _ExtraFields(form, action.name)

            async def claim() -> None:
                await self._submit(form, [node], action, {"ids": [entry.id]}, extra)

            form.buttons((label, claim, action.tone))

    def _ask_many(self) -> None:
        """Ask which messages of the open tab to claim, and what for."""
        state = self._state
        words = dict(TABS)[state].lower()
        with form_dialog(self._view, f"Claim messages of {self._topic}/{self._channel}") as form:
            element("p", f"Takes messages that are {words}, on every nsqd. A claim does not count as a failure.")
            choices = [(each.name, f"{label_of(each, state)}: {each.question}") for each in actions_for(state)]
            kind = form.field("Then", kind="select", options=choices, value=choices[0][0], on_change=lambda _: adapt())
            holder = form.field("Held by", placeholder="any consumer", focus=True)
            idle = form.field("Idle for at least", placeholder="0s, or 5m")
            for shown in (holder, idle):
                shown.set_visibility(state == IN_FLIGHT)
            limit = form.field("At most, on each nsqd", kind="number", value="100")
            extra = _ExtraFields(form, kind.value, many=True)

            def adapt() -> None:
                extra.show_for(kind.value)

            async def claim() -> None:
                action = next(each for each in ACTIONS if each.name == kind.value)
                wanted = claim_members(state, holder.value, idle.value, limit.value)
                await self._submit(form, self._nodes(), action, wanted, extra)

            form.buttons(("Claim", claim, "kill"))

    async def _submit(
        self, form: FormDialog, nodes: Sequence[Node], action: ClaimAction, members: Json, extra: "_ExtraFields"
    ) -> None:
        wanted = {**members, "action": action.name, **extra.members(action.name)}
        node = nodes[0].name if len(nodes) == 1 else ""
        await form.submit(
            Action("claim_messages", self._topic, self._channel, node),
            in_words({name: duration(each) if name in _TIMES else each for name, each in wanted.items()}),
            lambda: self._view.admin.brokers.at(nodes).claim(self._topic, self._channel, **wanted),
            lambda results: claimed(results, action.past),
            then=self._refresh,
        )


class _ExtraFields:
    """The fields that one action alone needs: a delay, a reason, the consumer that gets the messages."""

    def __init__(self, form: FormDialog, action: str, *, many: bool = False) -> None:
        self._to = form.field("To the consumer", placeholder="any; a name as Holder shows it")
        self._delay = form.field("Delay", placeholder="10m", focus=not many and action == "defer")
        self._reason = form.field("Reason", placeholder="for the dead letter", focus=not many and action == "reject")
        self.show_for(action)

    def show_for(self, action: str) -> None:
        """Show the fields of an action."""
        self._to.set_visibility(action == "ready")
        self._delay.set_visibility(action == "defer")
        self._reason.set_visibility(action == "reject")

    def members(self, action: str) -> Json:
        """Return these members of the claim. Raises `ConfigError` with a sentence for the user."""
        if action == "ready" and self._to.value.strip():
            return {"to": self._to.value.strip()}
        if action == "defer":
            return {"delay": parse_span(self._delay.value, "delay") / SECOND}
        if action == "reject" and self._reason.value.strip():
            return {"reason": self._reason.value.strip()}
        return {}


def claim_members(state: str, holder: str, idle: str, limit: str) -> Json:
    """Return which messages a claim means. Raises `ValueError` or `ConfigError` with a sentence for the user."""
    if not limit.strip().isdecimal() or not 1 <= int(limit) <= MOST:
        raise ValueError(f"A claim takes 1 to {count(MOST)} messages at a time.")
    members: Json = {"state": state, "limit": int(limit)}
    if holder.strip():
        members["holder"] = holder.strip()
    if idle.strip() and (least := parse_span(idle, "idle time") / SECOND):
        members["min_idle"] = least
    return members
