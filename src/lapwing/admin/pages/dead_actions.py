"""The dialogs that redrive, purge and cancel. What takes many letters shows first how many, with a sample."""

from collections.abc import Callable, Sequence
from typing import Final

from nicegui import background_tasks

from lapwing.admin.actions import Action
from lapwing.admin.audit import in_words
from lapwing.admin.dead_letters import LetterFilter
from lapwing.admin.delivery_control import Results
from lapwing.admin.pages.dead_rows import LETTER_COLUMNS, letter_row
from lapwing.admin.pages.elements import Table, element, set_text
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.message_rows import body_of, editable, fixed_body, keep_line_ends
from lapwing.client.cluster import Json, Node
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


def counted(results: Results) -> int:
    """Return how many letters a dry run found, over all nodes."""
    return sum(result.answer["letters"] for result in results if result.answer is not None)


def sampled(results: Results) -> list[Json]:
    """Return some of the letters that a dry run found."""
    letters = [
        {**letter, "in": result.node}
        for result in results
        if result.answer is not None
        for letter in result.answer["sample"]
    ]
    return sorted(letters, key=lambda letter: str(letter["at"]))[:SAMPLE]


def _described(wanted: LetterFilter) -> str:
    return ", ".join(f"{key} {value}" for key, value in wanted.given().items()) or "all letters"


def ask_redrive(view: PageView, topic: str, nodes: Sequence[Node], wanted: LetterFilter) -> None:
    """Ask how many letters to redrive, where to and how fast; a preview comes first."""
    control = view.admin.control
    with form_dialog(view, f"Redrive dead letters of {topic}", wide=True) as form:
        element("p", f"Which: {_described(wanted)}. Letters that die later are not part of it.")
        to = form.field("To", kind="select", options=TARGETS, value="channel", on_change=lambda _: forget())
        with element("div", None, "lw-form"):
            rate = form.field(
                "Rate on each nsqd", placeholder="no limit, or 100/s", on_change=lambda _: forget(), focus=True
            )
            limit = form.field("At most, on each nsqd", placeholder="all", on_change=lambda _: forget())
        verdict = element("p", "", role="status")
        table = Table("sample", "Sample of the letters", LETTER_COLUMNS, plain=True)
        table.set_visibility(False)

        async def preview() -> Json | None:
            document: Json = {
                "filter": wanted.to_document(),
                "to": to.value,
                "rate": rate.value.strip(),
                "limit": parse_limit(limit.value),
            }
            results = await control.redrive(nodes, topic, {**document, "dry_run": True})
            form.complain("; ".join(dict.fromkeys(result.error for result in results if not result.done)))
            found = counted(results)
            set_text(verdict, f"{several(found, 'letter')} would be redriven." if found else "No letter matches.")
            table.show([letter_row(letter) for letter in sampled(results)])
            table.set_visibility(found > 0)
            return document if found else None

        async def redrive(document: Json) -> None:
            await form.submit(
                Action("redrive_dead_letters", topic),
                in_words({key: value for key, value in document.items() if value}),
                lambda: control.redrive(nodes, topic, document),
                f"Redriving dead letters of {topic}",
            )

        forget: Callable[[], None] = form.preview_buttons(preview, "Redrive", redrive, "main")


def ask_redrive_one(
    view: PageView, topic: str, node: Node, letter: Json, *, edit: bool, then: Callable[[], None]
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
            document: Json = {"filter": {"sequences": [letter["sequence"]]}, "to": to.value}
            wanted = text if edited is None or text is None else keep_line_ends(text, edited.value)
            changed = wanted != text
            if changed:
                if not wanted:
                    raise ValueError("A message needs a body.")
                document["body"] = wanted
            done = f"Redriving the letter to {place if to.value == 'channel' else letter['topic']}"
            await form.submit(
                Action("redrive_dead_letters", topic, node=node.name),
                f"letter {letter['sequence']} to {to.value}" + (", body edited" if changed else ""),
                lambda: view.admin.control.redrive([node], topic, document),
                done,
                then=then,
            )

        form.buttons(("Redrive", redrive, "main"))


def ask_purge(
    view: PageView, topic: str, nodes: Sequence[Node], wanted: LetterFilter, *, letter: Json | None = None
) -> None:
    """Ask before letters are dropped for good: those that match, or the one given."""
    control = view.admin.control
    title = f"Purge the letter {letter['sequence']}?" if letter is not None else f"Purge dead letters of {topic}?"
    with form_dialog(view, title) as form:
        if letter is None:
            element("p", f"Which: {_described(wanted)}.")
        verdict = element("p", "The letter is lost for good." if letter is not None else "Counting …", role="status")
        if letter is None:
            form.ask_name(topic)

        async def purge() -> None:
            meant = {"sequences": [letter["sequence"]]} if letter is not None else wanted.to_document()
            node = nodes[0].name if letter is not None else ""
            await form.submit(
                Action("purge_dead_letters", topic, node=node),
                in_words(meant),
                lambda: control.purge(nodes, topic, {"filter": meant}),
                f"Purging dead letters of {topic}",
            )

        form.buttons(("Purge", purge, "kill"))

    async def look() -> None:
        results = await control.purge(nodes, topic, {"filter": wanted.to_document(), "dry_run": True})
        form.complain("; ".join(dict.fromkeys(result.error for result in results if not result.done)))
        set_text(verdict, f"{several(counted(results), 'letter')} would be lost for good.")

    if letter is None:
        background_tasks.create(form.attempt(look))


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
                lambda: view.admin.control.cancel_redrive(nodes, topic),
                f"Cancelled the redrive of {topic}",
            )

        form.buttons(("Cancel the redrive", cancel, "kill"))
