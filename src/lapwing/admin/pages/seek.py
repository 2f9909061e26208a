"""The dialog that moves the cursor of a channel: it shows first how many messages would come again or be skipped."""

from collections.abc import Callable
from typing import Any, Final

from lapwing.admin.actions import Action
from lapwing.admin.audit import in_words
from lapwing.admin.error_texts import error_text, refusals
from lapwing.admin.pages.elements import Table, element, set_text
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import TableColumn
from lapwing.client.admin_results import Results, Seek
from lapwing.client.format import count, messages
from lapwing.errors import LapwingError

TARGETS: Final = (
    ("earliest", "the first message that the log holds"),
    ("latest", "behind the last message"),
    ("back", "back by a duration, such as 2h"),
    ("time", "a time, such as 2026-11-15T09:30:00Z"),
    ("sequence", "a sequence"),
    ("bookmark", "where it stood before the last seek"),
)
COLUMNS: Final = (
    TableColumn("node", "Node", "text"),
    TableColumn("from", "Cursor now", "text"),
    TableColumn("to", "Cursor then", "text"),
    TableColumn("again", "Come again"),
    TableColumn("skipped", "Skipped"),
)


def target_of(kind: str, text: str) -> Any:
    """Return the target as nsqd expects it. Raises `ValueError` with a sentence for the user."""
    if kind in ("earliest", "latest", "bookmark"):
        return kind
    if not text.strip():
        raise ValueError("Name the target: a duration, a time or a sequence.")
    if kind == "sequence":
        if not text.strip().isdecimal():
            raise ValueError("A sequence is a whole number.")
        return {"sequence": int(text)}
    return {kind: text.strip()}


def consequences(results: Results[Seek]) -> str:
    """Return a sentence about what a seek would do, over all nodes."""
    done = results.answers.values()
    again, skipped = sum(each.again for each in done), sum(each.skipped for each in done)
    if not done:
        return ""
    if not again and not skipped:
        return "Nothing changes: no message would come again, and none would be skipped."
    parts = [f"{messages(again)} will be delivered again" if again else ""]
    parts.append(f"{messages(skipped)} that nobody has finished will not be delivered" if skipped else "")
    return " and ".join(part for part in parts if part) + "."


def ask_seek(view: PageView, topic: str, channel: str) -> None:
    """Open the dialog."""
    brokers = view.admin.brokers.at(view.channel_nodes(topic, channel))
    with form_dialog(view, f"Seek {topic}/{channel}", wide=True) as form:
        element("p", "The cursor moves on every node. Messages before it count as finished, all others are delivered.")
        kind = form.field("To", kind="select", options=TARGETS, value="back", on_change=lambda _: adapt())
        at = form.field("Duration, time or sequence", placeholder="2h", on_change=lambda _: forget())
        verdict = element("p", "", role="status")
        table = Table("preview", "Preview of the seek", COLUMNS, plain=True)
        table.set_visibility(False)

        def adapt() -> None:
            forget()
            at.set_visibility(kind.value in ("back", "time", "sequence"))

        async def preview() -> Any:
            target = target_of(kind.value, at.value)
            results = await brokers.seek(topic, channel, target, dry_run=True)
            set_text(verdict, consequences(results))
            rows = [
                [node, node, count(each.cursor), count(each.sequence), each.again, each.skipped]
                for node, each in results.answers.items()
            ]
            table.show(rows)
            table.set_visibility(bool(rows))
            return target if rows else None

        async def seek(target: Any) -> None:
            await form.submit(
                Action("seek_channel", topic, channel),
                in_words({"to": target}),
                lambda: brokers.seek(topic, channel, target),
                f"Moved the cursor of {topic}/{channel}",
                undo=lambda: _undo(view, topic, channel),
            )

        forget: Callable[[], None] = form.preview_buttons(preview, "Seek", seek, "kill")


async def _undo(view: PageView, topic: str, channel: str) -> None:
    """Move the cursor back to the bookmark that every node keeps of the place before its last seek."""
    try:
        results = await view.admin.actions.apply(
            view.visitor,
            Action("seek_channel", topic, channel),
            "to bookmark",
            lambda: view.admin.brokers.at(view.channel_nodes(topic, channel)).seek(topic, channel, "bookmark"),
        )
    except LapwingError as error:
        view.notify(error_text(error), bad=True)
        return
    refused = refusals(results)
    view.notify("; ".join(refused) or f"Moved the cursor of {topic}/{channel} back", bad=bool(refused))
    view.admin.poller.soon()
