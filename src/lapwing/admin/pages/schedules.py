"""The page of schedules: which messages nsqd publishes by itself, when, and what became of them."""

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from lapwing.admin.actions import Action
from lapwing.admin.error_texts import refusals
from lapwing.admin.pages.elements import Table, button, element, notice, panel, set_text
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Columns, Row, TableColumn, linked
from lapwing.client.admin import Admin
from lapwing.client.admin_results import Results, Schedule, settled
from lapwing.names import valid_policy

COMING: Final = 10  # times that are shown of a schedule
_KINDS: Final = [("every", "every so often (5m)"), ("cron", "cron expression"), ("at", "at one time")]
_MISFIRES: Final = [("once", "one message for all"), ("skip", "none"), ("all", "each of them")]
_TONES: Final = {"active": "good", "failing": "bad", "paused": "warn", "done": ""}


async def draw(view: PageView) -> None:
    """Draw `/schedules`."""
    view.explain("nsqd publishes these messages by itself, each time once. A schedule lives on one node.")
    nodes = view.lapwing_nodes()
    if not nodes:
        notice("These nsqds are plain NSQ, which has no schedules, or do not answer.")
        return
    brokers = view.admin.brokers.at(nodes)
    results = await settled(brokers.schedules(count=COMING))
    found = {each.name: each for answer in results.answers.values() for each in answer.schedules}
    where = {each.name: node for node, answer in results.answers.items() for each in answer.schedules}

    async def act(action: str, name: str) -> None:
        if action == "delete":
            _ask_remove(view, name, brokers)
        elif action == "edit":
            _ask(view, found[name], brokers)
        else:
            await _carry_out(view, action, name, brokers)

    if refused := refusals(results):
        notice(f"Not all schedules can be read: {'; '.join(refused)}.", "warning")
    with panel("Schedules", "choose a row to see its next times"):
        if view.visitor.may_change:
            with element("div", None, "lw-buttons lw-pad"):
                button("New schedule", lambda: _ask(view, None, brokers), tone="main", sign="add")
        table = Table(
            "schedules",
            "Schedules",
            _columns(view, where),
            order="name",
            empty="There are no schedules.",
            on_act=act,
            on_pick=lambda name: show(name),
        )
    table.show_each(found.values(), lambda each: each.name)
    with panel("Next times") as box, element("div", None, "lw-pad"):
        coming = element("pre", "", "lw-body", tabindex=0)

    def show(name: str) -> None:
        times = found[name].next if name in found else ()
        set_text(coming, "\n".join(times) or f"{name} has no more times.")
        box.set_visibility(name in found)
        table.choose(name)

    show(view.asked("name") or next(iter(sorted(found)), ""))


def _columns(view: PageView, nodes: Mapping[str, str]) -> Columns:
    """Return the columns of schedules; `nodes` has the node of each."""

    def actions(schedule: Schedule) -> Row:
        if not view.visitor.may_change:
            return []
        pause = ["resume", "Resume", ""] if schedule.state == "paused" else ["pause", "Pause", ""]
        return [["run", "Run now", ""], pause, ["edit", "Change …", ""], ["delete", "Delete …", "danger"]]

    missed = "Times that passed while the node did not run or could not publish"
    return (
        TableColumn("name", "Schedule", "text", wide=True),
        TableColumn("topic", "Topic", "link", cell=lambda each: linked(each.topic, view.links.topic(each.topic))),
        TableColumn("when", "When", "code"),
        TableColumn(
            "state", "State", "labels", cell=lambda each: [[each.state, _TONES.get(each.state, ""), each.problem]]
        ),
        TableColumn("next", "Next", "text", cell=lambda each: (*each.next, "")[0]),
        TableColumn("last", "Last", "text"),
        TableColumn("published", "Published", title="Since the node has started"),
        TableColumn("missed", "Missed", title=missed),
        TableColumn("node", "Node", "text", cell=lambda each: nodes[each.name]),
        TableColumn("actions", "Actions", "actions", cell=actions),
    )


async def _carry_out(view: PageView, action: str, name: str, brokers: Admin) -> None:
    """Run, pause or resume a schedule, after a question for which Enter is enough."""
    verbs: dict[str, tuple[str, str, Callable[[str], Awaitable[Results[Any]]]]] = {
        "run": ("Run", "Its message is published now, beside its times.", brokers.run_schedule),
        "pause": ("Pause", "Its times are left out until somebody resumes it.", brokers.pause_schedule),
        "resume": ("Resume", "It publishes again; times that passed meanwhile are left out.", brokers.resume_schedule),
    }
    verb, meaning, change = verbs[action]
    with form_dialog(view, f"{verb} schedule {name}?") as form:
        element("p", meaning)

        async def carry_out() -> None:
            await form.submit(
                Action(f"{action}_schedule", ""),
                name,
                lambda: change(name),
                f"{verb}: {name}",
                then=None if action == "run" else lambda: view.go(view.links.page("/schedules", name=name)),
            )

        form.buttons((verb, carry_out, "main"))


def _ask(view: PageView, schedule: Schedule | None, brokers: Admin) -> None:
    before = schedule or Schedule("", "", "", (), every="", document={"body": ""})
    name = before.name
    body_before = str(before.document.get("body") or "")
    binary = "body_base64" in before.document
    kind_before = "cron" if before.cron else "at" if before.at else "every"
    with form_dialog(view, f"Change schedule {name}" if name else "New schedule") as form:
        name_field = form.field("Name", value=name, focus=not name)
        name_field.set_visibility(not name)
        topic = form.field("Topic", value=before.topic)
        body = form.field("Body of each message", kind="textarea", value=body_before)
        if binary:
            element("p", "The body is no text: it stays as it is unless you write another.")
        kind = form.field("When", kind="select", options=_KINDS, value=kind_before)
        when = form.field("Times (5m, 30 8 * * MON-FRI, 2030-01-31T12:00:00Z)", value=getattr(before, kind_before))
        zone = form.field("Time zone of a cron expression", value=before.zone)
        misfire = form.field("Times that nsqd misses", kind="select", options=_MISFIRES, value=before.misfire)

        async def save() -> None:
            wanted = name or name_field.value.strip()
            if not valid_policy(wanted):
                raise ValueError("A schedule needs a name of letters, digits, '.', '_' and '-'.")
            content: str | bytes = body.value
            if binary and not content:
                content = _binary(before)
            times = {kind.value: when.value.strip()}
            await form.submit(
                Action("put_schedule", topic.value.strip()),
                f"{wanted}: {kind.value} {when.value.strip()}",
                lambda: brokers.put_schedule(
                    wanted,
                    topic.value.strip(),
                    content,
                    **times,
                    zone=zone.value.strip() if kind.value == "cron" else "UTC",
                    misfire=misfire.value,
                    headers=before.headers,
                    paused=before.state == "paused",
                ),
                f"Saved schedule {wanted}",
                then=lambda: view.go(view.links.page("/schedules")),
            )

        form.buttons(("Save", save, "main"))


def _binary(schedule: Schedule) -> bytes:
    return base64.b64decode(str(schedule.document["body_base64"]))


def _ask_remove(view: PageView, name: str, brokers: Admin) -> None:
    with form_dialog(view, f"Delete schedule {name}?") as form:
        element("p", "Its messages that are published stay in their topic.")

        async def remove() -> None:
            await form.submit(
                Action("remove_schedule", ""),
                name,
                lambda: brokers.remove_schedule(name),
                f"Deleted schedule {name}",
                then=lambda: view.go(view.links.page("/schedules")),
            )

        form.buttons(("Delete", remove, "kill"))
