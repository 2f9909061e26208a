"""What went wrong in Spark, in the words of whoever raised it: without traces, plans and stacks of two languages."""

import os
import re
from typing import Final

_DOMAIN: Final = re.compile(r"^(?:lapwing\.[\w.]+|OSError|ValueError): (.+)$")
_JAVA: Final = re.compile(r"^(?:: |Caused by: )([\w.$]+(?:Exception|Error)): (.+)$")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")
_SEARCHED: Final = re.compile(r" on search path \[[^]]*\]|\. Verify the spelling and correctness of the [a-z ]+")
_NOISE: Final = re.compile(r"\s*(SQLSTATE: \w+|;?\s*\(?line \d+,? pos \d+\)?;?)\s*")


def complaint(error: BaseException) -> str:
    """One line that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _DOMAIN.match(line):
            return found[1]
    causes = [found[2] for line in lines if (found := _JAVA.match(line))]
    if causes:
        return _tidy(causes[0])
    return _tidy(lines[0]) if lines else type(error).__name__


def analysis(error: BaseException, hint: str = "") -> str:
    """The sentence of an error that Spark's SQL compiler raised, with the place it points at."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    first = _SEARCHED.sub("", _tidy(lines[0])).rstrip(".; ") if lines else type(error).__name__
    where = _PLACE.search(str(error))
    return f"{first}{hint} (line {where[1]}, column {int(where[2]) + 1})" if where else first + hint


def raised_in(error: BaseException, path: str) -> str:
    """What a user's Python file raised, with the line of it that was reached."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    whole = os.path.abspath(path)  # as Python has it, however it was given
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == whole:
            line = trace.tb_lineno
        trace = trace.tb_next
    what = analysis(error) if _CLASS.match(str(error)) else f"{type(error).__name__}: {error}"
    return f"{path}{f':{line}' if line else ''}: {what}"


def _tidy(line: str) -> str:
    return _NOISE.sub(" ", _CLASS.sub("", line)).strip()
