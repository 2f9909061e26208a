"""Spark's lines on stderr, without those that mean nothing: traces of workers that were ended, Java frames,
and repetitions about a task or a query that has failed.

The command that runs the pipeline prints a failure once, in one line; `LAPWING_TRACE=1` lets everything through.
"""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_TRACE: Final = "Traceback (most recent call last):"
_CHAINED: Final = re.compile(r"^(During handling of the above|The above exception was)")
_RAISED: Final = re.compile(r"^[\w.$]+(Error|Exception|Interrupt|Exit)\b")
# how a Python worker takes leave when its socket is closed under it
_LEAVE: Final = re.compile(r"^(BrokenPipeError|EOFError|ConnectionResetError|OSError: \[Errno 9\])")
_RECORD: Final = re.compile(r"^\d{4}-\d\d-\d\d \S+ [A-Z]+ ")
# written for every attempt of a task beside the error itself, for later attempts of a task, and for a query whose
# error is printed anyway
_AGAIN: Final = re.compile(
    r"^\S+ \S+ ERROR (Utils: Aborting task|Executor: Exception in task \d+\.[1-9]"
    r"|DataWritingSparkTask: Abort|WriteToDataSourceV2Exec: .* abort"
    r"|MicroBatchExecution: Query .* terminated with error)"
)
_OF_ERROR: Final = re.compile(
    rf"{_RAISED.pattern}|{_CHAINED.pattern}|^{re.escape(_TRACE)}|^Caused by: |^\s|^[\w$]+(\.[\w$]+)+: "
)
_FRAME: Final = re.compile(
    r"^\s+at [\w.$/<>]+\(|^\s+\.\.\. \d+ (common frames omitted|more)|^\s*Suppressed: |^ SQLSTATE: \w+$"
)


def meaningful(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that mean something."""
    held: list[str] = []  # a trace whose end has not come yet
    dropped = False  # the last trace meant nothing; what is chained to it may not either
    for line in _once(lines):
        if held and _RECORD.match(line):
            yield line  # of another process, amid the trace
        elif held:
            held.append(line)
            if _RAISED.match(line):
                if _LEAVE.match(line) and any("/pyspark/" in each for each in held):
                    dropped = True
                else:
                    yield from held
                held = []
            elif not line.startswith((" ", "\t")) and line.strip() and not _CHAINED.match(line):
                yield from held
                held = []
        elif line.startswith(_TRACE):
            held = [line]
        elif dropped and (not line.strip() or _CHAINED.match(line)):
            continue
        elif not _FRAME.match(line):
            dropped = False
            yield line
    yield from held


def _once(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without repetitions of a failure, and the error that stands below it."""
    again = False
    for line in lines:
        if _AGAIN.match(line):
            again = True
        elif not (again and _OF_ERROR.match(line)):
            again = False
            yield line


@contextmanager
def quieted() -> Iterator[None]:
    """Let only meaningful lines of this process and those it starts reach its stderr."""
    if os.environ.get("LAPWING_TRACE"):
        yield
        return
    sys.stderr.flush()
    real = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    before = sys.stderr
    sys.stderr = os.fdopen(real, "w", buffering=1, errors="backslashreplace", closefd=False)

    def copy() -> None:
        with os.fdopen(source, errors="replace") as lines:
            for line in meaningful(lines):
                os.write(real, line.encode("utf-8", "replace"))

    threading.Thread(target=copy, name="stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)  # a JVM that still lives keeps the pipe; the thread ends with it or with us
        sys.stderr = before
