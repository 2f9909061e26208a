"""The dialogs that redrive, purge and cancel. What takes many letters shows first how many, with a sample."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nicegui import background_tasks

from lapwing.admin.actions import Action
from lapwing.admin.audit import in_words
from lapwing.admin.dead_letters import letter_filter
from lapwing.admin.pages.dead_rows import letter_columns, letter_key
from lapwing.admin.pages.elements import Table, element, set_text
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.message_rows import body_of, editable, fixed_body, keep_line_ends
from lapwing.client.admin import Admin, LetterFilter
from lapwing.client.admin_results import Redrive, Results
from lapwing.client.cluster import Json
from lapwing.client.format import count, several

TARGETS: Final = (
    ("channel", "the channel that gave them up"),
    ("topic", "their topic: every channel of it gets them"),
)
SAMPLE: Final = 5


def parse_limit(text: str) -> int:
    """Parse the most letters to take; empty means all. Raises `ValueError` with a sentence for the user."""
    if text.strip() and not text.strip().isdecimal():
        raise ValueError("The most letters is a whole number, or empty for all.")
    return int(text or 0)


def counted(results: Results[Redrive]) -> int:
    """Return how many letters a dry run found, over all nodes."""
    return sum(plan.letters for plan in results.answers.values())


def sampled(results: Results[Redrive]) -> list[Json]:
    """Return some of the letters that a dry run found."""
    letters = [{**each.document, "in": node} for node, plan in results.answers.items() for each in plan.sample]
    return sorted(letters, key=lambda letter: str(letter["at"]))[:SAMPLE]


def _described(given: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in given.items()) or "all letters"


def ask_redrive(view: PageView, brokers: Admin, topic: str, given: Mapping[str, str]) -> None:
    """Ask how many letters to redrive, where to and how fast; a preview comes first."""
    with form_dialog(view, f"Redrive dead letters of {topic}", wide=True) as form:
        element("p", f"Which: {_described(given)}. Letters that die later are not part of it.")
        to = form.field("To", kind="select", options=TARGETS, value="channel", on_change=lambda _: forget())
        with element("div", None, "lw-form"):
            rate = form.field(
                "Rate on each nsqd", placeholder="no limit, or 100/s", on_change=lambda _: forget(), focus=True
            )
            limit = form.field("At most, over all nsqds", placeholder="all", on_change=lambda _: forget())
        verdict = element("p", "", role="status")
        table = Table("sample", "Sample of the letters", letter_columns(), plain=True)
        table.set_visibility(False)

        async def preview() -> dict[str, Any] | None:
            asked: dict[str, Any] = {"to": to.value, "rate": rate.value.strip(), "limit": parse_limit(limit.value)}
            results = await brokers.redrive(topic, letter_filter(given), **asked, dry_run=True)
            found = counted(results)
            set_text(verdict, f"{several(found, 'letter')} would be redriven." if found else "No letter matches.")
            table.show_each(sampled(results), letter_key)
            table.set_visibility(found > 0)
            return asked if found else None

        async def redrive(asked: dict[str, Any]) -> None:
            await form.submit(
                Action("redrive_dead_letters", topic),
                in_words({key: value for key, value in {"filter": dict(given), **asked}.items() if value}),
                lambda: brokers.redrive(topic, letter_filter(given), **asked, wait=0.0),
                f"Redriving dead letters of {topic}",
            )

        forget: Callable[[], None] = form.preview_buttons(preview, "Redrive", redrive, "main")


def ask_redrive_one(
    view: PageView, brokers: Admin, topic: str, letter: Json, *, edit: bool, then: Callable[[], None]
) -> None:
    """Ask where to redrive one letter; with `edit` its body can be changed first."""
    body = body_of(letter)
    text = editable(body)
    place = f"{letter['topic']}/{letter['channel']}"
    title = "Edit and redrive the letter" if edit else "Redrive the letter"
    with form_dialog(view, title, wide=edit) as form:
        targets = (("channel", f"the channel {place}"), TARGETS[1])
        to = form.field("To", kind="select", options=targets, value="channel")
        edited = None
        if letter["error"]:
            element("p", f"Its error: {str(letter['error']).partition(chr(10))[0][:300]}")
        if edit and text is not None:
            edited = form.field("Body", kind="textarea", value=text, hint="Ctrl+Enter redrives", focus=True)
        elif edit:
            element("p", f"{fixed_body(body)} and cannot be edited here: it is redriven as it is.")

        async def redrive() -> None:
            wanted = text if edited is None or text is None else keep_line_ends(text, edited.value)
            changed = wanted != text
            if changed and not wanted:
                raise ValueError("A message needs a body.")
            new = wanted if changed and wanted else ""
            await form.submit(
                Action("redrive_dead_letters", topic, node=letter["in"]),
                f"letter {letter['sequence']} to {to.value}" + (", body edited" if changed else ""),
                lambda: brokers.redrive(topic, _only(letter), to=to.value, body=new, wait=0.0),
                f"Redriving the letter to {place if to.value == 'channel' else letter['topic']}",
                then=then,
            )

        form.buttons(("Redrive", redrive, "main"))


def ask_purge(view: PageView, brokers: Admin, topic: str, given: Mapping[str, str]) -> None:
    """Ask before the letters that match are dropped for good."""
    with form_dialog(view, f"Purge dead letters of {topic}?") as form:
        element("p", f"Which: {_described(given)}.")
        verdict = element("p", "Counting …", role="status")
        form.ask_name(topic)

        async def purge() -> None:
            await form.submit(
                Action("purge_dead_letters", topic),
                in_words(dict(given)),
                lambda: brokers.purge(topic, letter_filter(given), wait=0.0),
                f"Purging dead letters of {topic}",
            )

        form.buttons(("Purge", purge, "kill"))

    async def look() -> None:
        results = await brokers.purge(topic, letter_filter(given), dry_run=True)
        set_text(verdict, f"{several(counted(results), 'letter')} would be lost for good.")

    background_tasks.create(form.attempt(look))


def ask_purge_one(view: PageView, brokers: Admin, topic: str, letter: Json) -> None:
    """Ask before one letter is dropped for good."""
    with form_dialog(view, f"Purge the letter {letter['sequence']}?") as form:
        element("p", "The letter is lost for good.")

        async def purge() -> None:
            await form.submit(
                Action("purge_dead_letters", topic, node=letter["in"]),
                f"letter {letter['sequence']}",
                lambda: brokers.purge(topic, _only(letter), wait=0.0),
                f"Purging dead letters of {topic}",
            )

        form.buttons(("Purge", purge, "kill"))


def _only(letter: Json) -> LetterFilter:
    return LetterFilter(sequences=[letter["sequence"]])


def ask_cancel(view: PageView, topic: str) -> None:
    """Ask before the redrives of a topic are ended."""
    found = view.admin.poller.dead.get(topic)
    running = found.running if found is not None else {}
    nodes = [state.node for state in view.cluster_view.nodes if state.node.name in running]
    with form_dialog(view, f"Cancel the redrive of {topic}?") as form:
        left = sum(task["left"] for task in running.values())
        element("p", f"{count(left)} letters that it has not looked at stay dead letters. Nothing is lost.")

        async def cancel() -> None:
            await form.submit(
                Action("cancel_redrive", topic),
                "",
                lambda: view.admin.brokers.at(nodes).cancel_redrive(topic),
                f"Cancelled the redrive of {topic}",
            )

        form.buttons(("Cancel the redrive", cancel, "kill"))
