"""The elements of pages. All text becomes text nodes: none of it can become markup."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import nicegui.elements.echart  # noqa: F401  # adds ECharts to the import map of the browser
from nicegui.element import Element
from nicegui.elements.mixins.value_element import ValueElement
from nicegui.events import GenericEventArguments

from lapwing.admin.pages.table_rows import Row, TableColumn, row_of
from lapwing.admin.static import PACKAGED

Click = Callable[[], Awaitable[None] | None]


def element(tag: str, text: str | None = None, classes: str = "", **attributes: Any) -> Element:
    """Add a plain element. In names of attributes `_` becomes `-`, and a trailing `_` is dropped."""
    made = Element(tag)
    made._text = text
    if classes:
        made.classes(classes)
    for name, value in attributes.items():
        if value is not None:
            made._props[name.rstrip("_").replace("_", "-")] = value
    return made


def set_text(target: Element, text: str) -> None:
    """Set the text of an element; nothing is sent if it is the same."""
    if target._text != text:
        target._text = text
        target.update()


def set_attributes(target: Element, **attributes: Any) -> None:
    """Set attributes of an element; nothing is sent if they are the same."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    changed = {name: value for name, value in named.items() if target._props.get(name) != value}
    if changed:
        target._props.update(changed)
        target.update()


def icon(name: str) -> Element:
    """Add an icon that screen readers ignore."""
    return element("i", name, "material-icons", aria_hidden="true")


def button(text: str, on_click: Click, *, tone: str = "", sign: str = "", title: str | None = None) -> Element:
    """Add a button; `tone` is `main`, `danger`, `kill` or empty."""
    classes = {"main": "lw-button lw-main-button", "danger": "lw-button lw-danger", "kill": "lw-button lw-danger-main"}
    made = element("button", None, classes.get(tone, "lw-button"), type="button", title=title)
    with made:
        if sign:
            icon(sign)
        element("span", text)
    made.on("click", lambda: on_click(), args=[])
    return made


def link_button(text: str, href: str, *, sign: str = "") -> Element:
    """Add a link that looks like a button."""
    made = element("a", None, "lw-button", href=href)
    with made:
        if sign:
            icon(sign)
        element("span", text)
    return made


@contextmanager
def panel(title: str = "", note: str = "") -> Iterator[Element]:
    """Add a framed part of the page; elements created inside follow its title."""
    with element("section", None, "lw-panel", aria_label=title or None) as made:
        if title:
            with element("header"):
                element("h2", title)
                if note:
                    element("p", note)
        yield made


def notice(text: str, tone: str = "", *, role: str = "note") -> Element:
    """Add a coloured paragraph, hidden without a text; `tone` is `warning`, `error` or empty for plain information."""
    made = element("p", text, f"lw-notice {'lw-' + tone if tone else ''}".strip(), role=role)
    made.set_visibility(bool(text))
    return made


def show_notice(target: Element, text: str) -> None:
    """Show another text in a notice, or hide it if the text is empty."""
    set_text(target, text)
    target.set_visibility(bool(text))


def tile(term: str, title: str = "") -> Element:
    """Add a figure with its name to a `dl.lw-tiles`; the text of the returned element is the figure."""
    with element("div", None, "lw-tile", title=title or None):
        element("dt", term)
        return element("dd", "-")


class Table(Element, component=PACKAGED / "lw_table.js", esm={"lapwing-ui": str(PACKAGED)}):
    """A live table; `table_rows` describes its rows."""

    def __init__(
        self,
        name: str,
        caption: str,
        columns: Sequence[TableColumn],
        *,
        empty: str = "",
        order: str = "",
        plain: bool = False,
        on_act: Callable[[str, str], Awaitable[None] | None] | None = None,
        on_pick: Callable[[str], Awaitable[None] | None] | None = None,
    ) -> None:
        """`name` is used in the address and for saved files; `plain`: no filter; `order`: `key` or `key:down`."""
        super().__init__()
        self.set_columns(columns)
        set_attributes(
            self,
            name=name,
            caption=caption,
            rows=[],
            empty=empty,
            order=order,
            plain=plain,
            pick=on_pick is not None,
        )
        if on_act is not None:
            self.on("act", lambda event: on_act(str(event.args["action"]), str(event.args["row"])))
        if on_pick is not None:
            self.on("pick", lambda event: on_pick(str(event.args)))

    def show(self, rows: list[Row], *, total: Row | None = None, tint: dict[str, str] | None = None) -> None:
        """Show these rows; nothing is sent if they are the same."""
        set_attributes(self, rows=rows, total=total, tint=tint)

    def show_each(self, items: Iterable[Any], key: str | Callable[[Any], str]) -> None:
        """Show a row for each of these objects; `key` is the member, or the function, that returns the row's key."""
        self.show([row_of(self._columns, key(each) if callable(key) else str(each[key]), each) for each in items])

    def set_columns(self, columns: Sequence[TableColumn]) -> None:
        """Show other columns; the rows of the next `show` have to fit them."""
        self._columns = columns
        set_attributes(self, columns=[column.to_json() for column in columns])

    def choose(self, row: str) -> None:
        """Mark a row as chosen."""
        set_attributes(self, picked=row)


class Chart(Element, component=PACKAGED / "lw_chart.js"):
    """Lines over time, fed with `History` tracks."""

    def __init__(
        self, title: str, unit: str, series: Sequence[tuple[str, str]], *, span: float, stack: bool = False
    ) -> None:
        """`series` are names and colours (`c1` to `c5`); `unit` is a key of the component's `SAY`."""
        super().__init__()
        lines = [{"name": name, "colour": colour} for name, colour in series]
        empty = {"whole": True, "times": [], "values": [[] for _ in lines]}
        set_attributes(self, title=title, unit=unit, series=lines, span=span, stack=stack, points=empty)

    def show(self, columns: Sequence[Sequence[tuple[float, float | None]]], *, whole: bool, span: float) -> None:
        """Send all points, or the newest few, of which the browser adds those that it lacks. None is a gap."""
        times = [round(at, 1) for at, _ in columns[0]] if columns else []
        values = [[_brief(value) for _, value in column] for column in columns]
        set_attributes(self, points={"whole": whole, "times": times, "values": values}, span=span)


def _brief(value: float | None) -> float | None:
    return value if value is None else round(value, 3 if value >= 1 else 6)


class Field(Element, component=PACKAGED / "lw_field.js"):
    """A field with a label; `value` is its content."""

    def __init__(
        self,
        label: str,
        *,
        kind: str = "text",
        value: str = "",
        options: Sequence[tuple[str, str]] = (),
        placeholder: str = "",
        width: str = "",
        hint: str = "",
        focus: bool = False,
        on_change: Callable[[str], Awaitable[None] | None] | None = None,
        on_enter: Click | None = None,
    ) -> None:
        super().__init__()
        self.value = value
        self._on_change = on_change
        set_attributes(
            self,
            label=label,
            kind=kind,
            value=value,
            options=[list(option) for option in options],
            placeholder=placeholder,
            width=width,
            hint=hint,
            focus=focus,
        )
        self.on("change", self._changed)
        if on_enter is not None:
            self.on("enter", lambda: on_enter(), args=[])

    def _changed(self, event: GenericEventArguments) -> Awaitable[None] | None:
        self.value = str(event.args)
        return self._on_change(self.value) if self._on_change is not None else None


class Counter(Element, component=PACKAGED / "lw_counter.js"):
    """A number that counts up between polls."""

    def show(self, value: int) -> None:
        """Set the number."""
        set_attributes(self, value=value)


class MessageView(Element, component=PACKAGED / "lw_message.js"):
    """One message with its body as text, JSON tree or hex."""

    def show(self, message: dict[str, Any] | None) -> None:
        """Show this message, or none."""
        set_attributes(self, message=message)


class MessageSheet:
    """The message of the chosen row, beside its table, with its buttons. On a phone it opens over the table."""

    def __init__(
        self, title: str, table: Table, buttons: Callable[[], list[Element]], *, mark: str, empty: str = ""
    ) -> None:
        """`buttons` adds those of the page, which are shown with a message."""
        self._table = table
        with panel(title) as self._side:
            self._side.classes("lw-sticky lw-sheet")
            with element("div", None, "lw-buttons lw-sheet-buttons"):
                self._buttons = buttons()
                self._link = link_button("Link", "#", sign="link")
                button("Close", self.close, sign="close").classes("lw-sheet-close")
            self._whole = MessageView()
        set_attributes(self._whole, mark=mark, empty=empty)
        self.show(None)

    def show(self, message: dict[str, Any] | None, link: str = "#") -> None:
        """Show this message, with a link to it, or none."""
        self._whole.show(message)
        for each in (*self._buttons, self._link):
            each.set_visibility(message is not None)
        set_attributes(self._link, href=link)
        if message is not None:
            self._side.classes(add="lw-open")

    def close(self) -> None:
        """Close the sheet on a phone, and choose no row."""
        self._side.classes(remove="lw-open")
        self._table.choose("")


class Dialog(ValueElement[bool]):
    """A dialog in front of the page. Escape closes it, and the focus stays in it.

    NiceGUI's own is a component that the browser compiles, which the policy of our pages forbids.
    """

    def __init__(self, label: str) -> None:
        super().__init__(tag="q-dialog", value=False)
        self._props["aria-label"] = label

    def open(self) -> None:
        """Open the dialog."""
        self.set_value(True)

    def close(self) -> None:
        """Close the dialog."""
        self.set_value(False)
