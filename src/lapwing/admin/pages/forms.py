"""Dialogs with fields, whose change is carried out on several nodes. Enter submits; an error stays in the dialog."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import background_tasks
from nicegui.element import Element

from lapwing.admin.actions import Action
from lapwing.admin.delivery_control import Results, failures
from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.elements import Dialog, Field, button, element, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.errors import LapwingError

Press = Callable[[], Awaitable[None]]
FormButton = tuple[str, Press, str]  # text, what it does, tone


class FormDialog:
    """A dialog under construction: add fields and texts, then call `buttons`. The last button is what Enter presses."""

    def __init__(self, dialog: Dialog) -> None:
        self._dialog = dialog
        self._problem: Element | None = None
        self.on_enter: Press | None = None

    def field(self, label: str, **options: Any) -> Field:
        """Add a field."""
        return Field(label, on_enter=self._enter, **options)

    async def _enter(self) -> None:
        if self.on_enter is not None:
            await self.on_enter()

    def buttons(self, *wanted: FormButton | None, leave: str = "Cancel") -> list[Element]:
        """Add the row of buttons, `leave` first, and the place for errors above it; return the others."""
        self._problem = element("p", "", role="alert")
        shown = [each for each in wanted if each is not None]
        if self.on_enter is None and shown:
            self.on_enter = shown[-1][1]
        with element("div", None, "lw-buttons"):
            button(leave, self.close)
            return [button(text, press, tone=tone) for text, press, tone in shown]

    def complain(self, text: str) -> None:
        """Show an error, or none."""
        if self._problem is not None:
            set_text(self._problem, text)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work beside the open dialog, such as counting."""
        background_tasks.create(work)

    def close(self) -> None:
        """Take the dialog away."""
        self._dialog.close()


@contextmanager
def form_dialog(view: PageView, title: str, *, wide: bool = False) -> Iterator[FormDialog]:
    """Open a dialog with what is made inside."""
    with view.client.content:
        dialog = Dialog(title)
    with dialog, element("div", None, f"lw-dialog {'lw-wide-dialog' if wide else ''}".strip()):
        element("h2", title)
        yield FormDialog(dialog)
    dialog.on("hide", lambda: dialog.delete(), args=[])
    dialog.open()


async def submit(
    view: PageView,
    form: FormDialog,
    action: Action,
    detail: str,
    change: Callable[[], Awaitable[Results]],
    done: str | Callable[[Results], str],
    *,
    then: Callable[[], None] | None = None,
) -> None:
    """Carry out an audited change. If every node refuses it, the dialog stays open with the reasons.

    `done` is the text that is shown then, or a function that makes it of the results.
    """
    form.complain("")
    try:
        results = await view.admin.actions.apply(view.visitor, action, detail, change)
    except LapwingError as error:
        form.complain(error_text(error))
        return
    refused = failures(results)
    if len(refused) == len(results):
        form.complain("; ".join(dict.fromkeys(reason.partition(": ")[2] for reason in refused)) or "No nsqd has it.")
        return
    form.close()
    text = done if isinstance(done, str) else done(results)
    view.notify(f"{text}, but not everywhere: {'; '.join(refused)}" if refused else text, bad=bool(refused))
    view.admin.poller.soon()
    if then is not None:
        then()
