"""Dialogs with fields, whose change is carried out on several nodes. Enter submits; an error stays in the dialog."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from nicegui.element import Element

from lapwing.admin.actions import Action
from lapwing.admin.error_texts import error_text, refusal, refusals
from lapwing.admin.pages.elements import Dialog, Field, button, element, set_attributes, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.client.admin_results import Results
from lapwing.errors import LapwingError

T = TypeVar("T")
Press = Callable[[], Awaitable[None]]
FormButton = tuple[str, Press, str]  # text, what it does, tone


class FormDialog:
    """A dialog under construction: add fields and texts, then call `buttons`. The last button is what Enter presses."""

    def __init__(self, view: PageView, dialog: Dialog) -> None:
        self._view = view
        self._dialog = dialog
        self._problem: Element | None = None
        self._made: list[Element] = []
        self._name = ""  # to be typed by the user
        self._typed: Field | None = None
        self._on_enter: Press | None = None

    def field(self, label: str, **options: Any) -> Field:
        """Add a field."""
        return Field(label, on_enter=self._enter, **options)

    def ask_name(self, name: str) -> None:
        """Add a field in which the user has to type this name, before the only button works."""
        self._name = name
        self._typed = self.field(f"Type the name to confirm: {name}", focus=True, on_change=lambda _: self._check())

    async def _enter(self) -> None:
        if self._on_enter is not None:
            await self._press(self._on_enter)

    def buttons(self, *wanted: FormButton | None, leave: str = "Cancel", sign: str = "") -> list[Element]:
        """Add the row of buttons, `leave` first, and the place for errors above it; return the others."""
        self._problem = element("p", "", role="alert")
        shown = [each for each in wanted if each is not None]
        if shown:
            self._on_enter = shown[-1][1]
        with element("div", None, "lw-buttons"):
            button(leave, self.close)
            self._made = [
                button(text, partial(self._press, press), tone=tone, sign=sign) for text, press, tone in shown
            ]
        self._check()
        return self._made

    def preview_buttons(
        self, preview: Callable[[], Awaitable[T | None]], text: str, change: Callable[[T], Awaitable[None]], tone: str
    ) -> Callable[[], None]:
        """Add the buttons of a change that is shown first; the returned function makes another preview necessary.

        `preview` returns what `change` needs, or None if there is nothing to change. Enter shows the preview.
        """
        previewed: list[T | None] = [None]

        async def show() -> None:
            previewed[0] = await preview()
            set_attributes(confirm, disabled=previewed[0] is None)

        async def carry_out() -> None:
            if previewed[0] is None:
                await show()
            else:
                await change(previewed[0])

        def forget() -> None:
            previewed[0] = None
            set_attributes(confirm, disabled=True)

        _, confirm = self.buttons(("Preview", show, ""), (text, carry_out, tone))
        self._on_enter = show
        forget()
        return forget

    def _check(self) -> None:
        if self._typed is not None:
            set_attributes(self._made[-1], disabled=self._typed.value != self._name)

    async def _press(self, press: Press) -> None:
        if self._typed is not None and self._typed.value != self._name:
            self.complain(f"Type {self._name} to confirm.")
        else:
            await self.attempt(press)

    async def attempt(self, work: Press) -> None:
        """Do some work. A refusal, or a `ValueError` with a sentence for the user, is shown in the dialog."""
        self.complain("")
        try:
            await work()
        except ValueError as error:
            self.complain(str(error))
        except LapwingError as error:
            self.complain(error_text(error))

    def complain(self, text: str) -> None:
        """Show an error, or none."""
        if self._problem is not None:
            set_text(self._problem, text)

    def close(self) -> None:
        """Take the dialog away."""
        self._dialog.close()

    async def submit(
        self,
        action: Action,
        detail: str,
        change: Callable[[], Awaitable[Results[T]]],
        done: str | Callable[[Results[T]], str],
        *,
        then: Callable[[], None] | None = None,
        undo: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Carry out an audited change. If every node refuses it, the dialog stays open with the reasons.

        `done` is the text that is shown then, or a function that makes it of the results. `undo` is offered beside it.
        """
        results = await self._view.admin.actions.apply(self._view.visitor, action, detail, change)
        refused = refusals(results)
        if not any(result.done for result in results):
            self.complain("; ".join(dict.fromkeys(map(refusal, results))) or "No nsqd has it.")
            return
        self.close()
        text = done if isinstance(done, str) else done(results)
        if undo is not None and not refused:
            self._view.offer(f"{text}.", "Undo", undo)
        else:
            self._view.notify(
                f"{text}, but not everywhere: {'; '.join(refused)}" if refused else text, bad=bool(refused)
            )
        self._view.admin.poller.soon()
        if then is not None:
            then()


@contextmanager
def form_dialog(view: PageView, title: str, *, wide: bool = False) -> Iterator[FormDialog]:
    """Open a dialog with what is made inside."""
    with view.client.content:
        dialog = Dialog(title)
    with dialog, element("div", None, f"lw-dialog {'lw-wide-dialog' if wide else ''}".strip()):
        element("h2", title)
        yield FormDialog(view, dialog)
    dialog.on("hide", lambda: dialog.delete(), args=[])
    dialog.open()
