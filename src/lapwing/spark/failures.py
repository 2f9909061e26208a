"""The reason of a failure in Spark, in one line: without traces, plans and stacks of two languages."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lapwing.errors import ConfigError

_DOMAIN: Final = re.compile(r"^lapwing\.[\w.]+: (.+)$")
_TRACE: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s*File "(.+)", line (\d+)')
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
# files of Python itself and of what is installed: the line that a user can mend is elsewhere
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|\.zip/|/lapwing/(?:spark|net)/|^<frozen")
_JAVA: Final = re.compile(r"^(?:: |Caused by: )([\w.$]+(?:Exception|Error)): (.+)$")
_BY_SPARK: Final = re.compile(r"^(?:py4j|pyspark)\.[\w.]+: ")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")
_SEARCHED: Final = re.compile(r" on search path \[[^]]*\]|\. Verify the spelling and correctness of the [a-z ]+")
_NOISE: Final = re.compile(r"\s*(SQLSTATE: \w+|;?\s*\(?line \d+,? pos \d+\)?;?)\s*")


def complaint(error: BaseException) -> str:
    """Return one line that names what was wrong, and the line of a user's file that raised it."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _DOMAIN.match(line):
            return found[1]
    raised = _raised_by_python(text.splitlines())
    if raised and not _BY_SPARK.match(raised):
        return raised
    causes = [found[2] for line in lines if (found := _JAVA.match(line))]
    if raised and causes:
        return _tidy(causes[-1])  # Java's first words are those of the call that failed
    if raised or causes:
        return _tidy(_BY_SPARK.sub("", raised) or causes[0])
    return _tidy(lines[0]) if lines else type(error).__name__


def _raised_by_python(lines: list[str]) -> str:
    """Return what the last traceback in these lines raised, with the last of its frames that is a user's own."""
    begins = [index for index, line in enumerate(lines) if line.rstrip().endswith(_TRACE)]
    if not begins:
        return ""
    place = ""
    for line in lines[begins[-1] + 1 :]:
        if found := _FRAME.match(line):
            if not _INSTALLED.search(found[1]):
                place = f"{_shortest(found[1])}:{found[2]}: "
        elif not line.startswith((" ", "\t")) and _RAISED.match(line.strip()):
            return place + line.strip()
    return ""


def _shortest(path: str) -> str:
    """Return the path as seen from here, where that is shorter."""
    return min(path, os.path.relpath(path), key=len) if path.startswith("/") else path


def analysis(error: BaseException, hint: str = "") -> str:
    """Return the sentence of an error that Spark's SQL compiler raised, with the place it points at."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    first = _SEARCHED.sub("", _tidy(lines[0])).rstrip(".; ") if lines else type(error).__name__
    where = _PLACE.search(str(error))
    return f"{first}{hint} (line {where[1]}, column {int(where[2]) + 1})" if where else first + hint


@contextmanager
def compiling(where: str, views: str = "") -> Iterator[None]:
    """Raise an error of Spark's SQL compiler as a `ConfigError` that begins with `where`.

    `views` is added to the complaint about a view that is not there.
    """
    from pyspark.errors import PySparkException  # settings are read without Spark

    try:
        yield
    except PySparkException as error:
        hint = views if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND" else ""
        raise ConfigError(f"{where}: {analysis(error, hint)}") from error


def raised_in(error: BaseException, path: str) -> str:
    """Return what a user's Python file raised, with the line of it that was reached."""
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
