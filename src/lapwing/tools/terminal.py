"""Write to a terminal: tables that fit its width, screens that change in place, progress bars."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Final, TextIO

from lapwing.client.format import duration, short

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "title": "1;36"}
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_LEAST_NAME: Final = 10  # columns that a narrow terminal leaves of a name
_ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a colour."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `short` is its heading where the terminal is narrow."""

    name: str
    short: str = ""
    left: bool = False  # aligned to the left; such columns are cut where the terminal is narrow
    note: bool = False  # goes to a line of its own where the terminal is narrow


@dataclass(frozen=True, slots=True)
class Terminal:
    """A stream: its width, and whether it takes colours and redrawing."""

    width: int = 0  # 0: no limit
    height: int = 0  # lines that a screen can show
    colour: bool = False
    redraws: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Terminal":
        """Return the terminal that a stream is; a pipe or file gets whole lines without colour."""
        if not stream.isatty():
            return cls()
        dumb = os.environ.get("TERM", "") in ("dumb", "")
        size = get_terminal_size()
        return cls(size.columns, size.lines - 1, not dumb and not os.environ.get("NO_COLOR"), not dumb)

    def paint(self, text: str, style: str) -> str:
        """Return the text in a colour, if the terminal has colours."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.colour and style and text else text

    def cut(self, line: str) -> str:
        """Return the line cut to the width of the terminal."""
        if not self.width or len(_ESCAPE.sub("", line)) <= self.width:
            return line
        room, parts, at = self.width - 1, [], 0
        for match in [*_ESCAPE.finditer(line), None]:
            text = line[at : match.start()] if match else line[at:]
            parts.append(text[: max(0, room)])
            if len(text) > room >= 0:
                parts.append(_ELLIPSIS)
                room = -1
            room -= len(text)
            if match:
                parts.append(match[0])
                at = match.end()
        return "".join(parts)


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], terminal: Terminal, *, title: str = ""
) -> list[str]:
    """Return the lines of a table that fits the terminal: short headings, then cut names, then notes below."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    headings = [column.name for column in columns]
    widths = _widths(headings, cells)
    below = False
    if terminal.width and _total(widths) > terminal.width:
        headings = [column.short or column.name for column in columns]
        widths = _widths(headings, cells)
        notes = [index for index, column in enumerate(columns) if column.note]
        if notes and _total(widths) > terminal.width:
            below = True
            for index in notes:
                widths[index] = 0
        _squeeze(widths, columns, terminal.width)
    shown = [index for index, column in enumerate(columns) if widths[index] or not (column.note and below)]
    lines = [terminal.paint(title, "title")] if title else []
    head = _line([_fit(headings[index], widths[index], columns[index].left) for index in shown])
    lines.append(terminal.paint(head, "bold"))
    for row in cells:
        texts = [
            terminal.paint(_fit(row[index].text, widths[index], columns[index].left), row[index].style)
            if row[index].text
            else " " * widths[index]
            for index in shown
        ]
        lines.append(_line(texts))
        if below:
            lines += [
                terminal.cut(terminal.paint(f"  {row[index].text}", row[index].style))
                for index, column in enumerate(columns)
                if column.note and row[index].text
            ]
    return [terminal.cut(line) for line in lines]


def _widths(headings: Sequence[str], cells: Sequence[Sequence[Cell]]) -> list[int]:
    return [max([len(heading), *(len(row[index].text) for row in cells)]) for index, heading in enumerate(headings)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (sum(1 for width in widths if width) - 1)


def _squeeze(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Cut the widest of the left-aligned columns until all fit, or all are as narrow as can be."""
    left = [index for index, column in enumerate(columns) if column.left and widths[index]]
    while _total(widths) > room:
        widest = max(left, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= _LEAST_NAME:
            return
        widths[widest] -= 1


def _fit(text: str, width: int, left: bool) -> str:
    if len(text) > width:
        text = text[: max(0, width - 1)] + _ELLIPSIS
    return text.ljust(width) if left else text.rjust(width)


def _line(texts: Sequence[str]) -> str:
    return "  ".join(texts).rstrip()


class Screen:
    """Lines that are drawn again in place, over the whole screen or below what was printed."""

    def __init__(self, out: TextIO, *, whole: bool) -> None:
        self._out = out
        self._whole = whole
        self._drawn = 0

    def __enter__(self) -> "Screen":
        self._out.write("\x1b[?1049h\x1b[?25l" if self._whole else "\x1b[?25l")
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        self._out.write("\x1b[?25h\x1b[?1049l" if self._whole else "\x1b[?25h")
        self._out.flush()

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines that are shown."""
        height = max(1, get_terminal_size().lines - 1)  # as `Terminal.height`
        shown = list(lines[:height])
        self._clear()
        self._out.write("".join(f"{line}\x1b[K\n" for line in shown))
        self._drawn = len(shown)
        self._out.flush()

    def print(self, line: str) -> None:
        """Print a line above the ones that are redrawn."""
        self._clear()
        self._out.write(f"{line}\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._whole:
            self._out.write("\x1b[H\x1b[J")
        elif self._drawn:
            self._out.write(f"\r\x1b[{self._drawn}A\x1b[J")  # the echo of Ctrl-C has moved the cursor
        self._drawn = 0


Report = Callable[[str, int, "int | None"], None]


@contextmanager
def progress_bars(*, quiet: bool = False, unit: Callable[[float], str] = short) -> Iterator[Report]:
    """Yield a function (what, done, total) that shows bars on stderr, if that is a terminal. The bars go at the end."""
    terminal = Terminal.of(sys.stderr)
    if quiet or not terminal.redraws:
        yield lambda what, done, total: None
        return
    began = time.monotonic()
    last = 0.0
    bars: dict[str, tuple[int, int | None]] = {}
    with Screen(sys.stderr, whole=False) as screen:

        def report(what: str, done: int, total: int | None) -> None:
            nonlocal last
            bars[what] = done, total
            now = time.monotonic()
            if now - last >= 0.1 or done == total:
                last = now
                screen.draw([bar(name, *far, now - began, terminal, unit) for name, far in bars.items()])

        yield report


def bar(
    what: str, done: int, total: int | None, seconds: float, terminal: Terminal, unit: Callable[[float], str] = short
) -> str:
    """Return one line: a bar, how far it is, and how long it will take; without a total how much was done."""
    if not total:
        return terminal.cut(f"{what}  {unit(done)}")
    share = min(1.0, done / total)
    full = round(share * 24)
    left = f", {duration(seconds / share - seconds)} left" if 0.02 < share < 1 and seconds > 1 else ""
    drawn = terminal.paint("━" * full, "green") + terminal.paint("━" * (24 - full), "dim")
    return terminal.cut(f"{what}  {drawn} {share:4.0%}  {unit(done)} of {unit(total)}{left}")
