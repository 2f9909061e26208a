"""What went wrong in Spark, in the words of whoever raised it: without traces, plans and stacks of two languages."""

import re
from typing import Final

_OURS: Final = re.compile(r"^(?:lapwing|builtins)?[\w.]*?(?:Error|Away|Refused|Loss|Columns|Row|Damaged)\w*: (.+)$")
_DOMAIN: Final = re.compile(r"^lapwing\.[\w.]+: (.+)$")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_NOISE: Final = re.compile(r"\s*(SQLSTATE: \w+|;\s*line \d+ pos \d+;?)\s*")


def complaint(error: BaseException) -> str:
    """One line (or a few) that says what was wrong."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _DOMAIN.match(line):
            return found[1]
    for line in reversed(lines):
        if (found := _OURS.match(line)) and "py4j" not in line:
            return found[1]
    return _tidy(lines[0]) if lines else type(error).__name__


def analysis(error: BaseException) -> str:
    """The sentence of an error that Spark's SQL compiler raised, with the place it points at."""
    lines = [line.rstrip() for line in str(error).splitlines()]
    first = _tidy(lines[0]) if lines else type(error).__name__
    pointed = [line for line in lines[1:12] if "^" in line or "pos " in line]
    where = re.search(r"line (\d+)[,]? pos (\d+)", str(error))
    if where and pointed:
        return f"{first} (line {where[1]}, column {int(where[2]) + 1})"
    return first


def _tidy(line: str) -> str:
    return _NOISE.sub(" ", _CLASS.sub("", line)).strip()
