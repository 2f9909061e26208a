"""Log lines on stderr, written without ever waiting for the reader."""

import os
import select
import sys
import time
from collections import deque
from enum import IntEnum
from typing import Final

_LONGEST: Final = 4000  # bytes of a line; a pipe that is ready takes so much at once
_BACKLOG: Final = 2000  # lines kept while stderr takes none


class Level(IntEnum):
    """The level of a line; the numbers are those of the configuration API."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5


_SHOWN: Final = {1: "DEBUG", 2: "INFO", 3: "WARNING", 4: "ERROR", 5: "FATAL"}


def parse_level(word: str) -> Level:
    """Return the level of that name, in any case; raise `ValueError`."""
    try:
        return Level[word.upper()]
    except KeyError:
        raise ValueError(f"invalid log level '{word}' (debug, info, warn, error, fatal)") from None


class Log:
    """Lines of the form `<prefix>2026/11/15 06:37:42.569634 INFO: text`.

    A reader of stderr that stops reading costs log lines, never time: 2000 lines are kept, further ones are dropped and
    counted, and the count is logged when lines are read again.
    """

    def __init__(self, prefix: str = "", level: Level = Level.INFO, fd: int | None = None) -> None:
        self.prefix = prefix
        self.level = level  # may be changed at any time
        self._fd = sys.stderr.fileno() if fd is None else fd
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._second = -1
        self._stamp = ""
        self._waiting: deque[bytes] = deque()
        self._lost = 0

    def debug(self, text: str) -> None:
        """Log a line that helps to find a fault."""
        if self.level <= Level.DEBUG:
            self._log(Level.DEBUG, text)

    def info(self, text: str) -> None:
        """Log a normal event."""
        if self.level <= Level.INFO:
            self._log(Level.INFO, text)

    def warn(self, text: str) -> None:
        """Log an event that an operator may want to act on."""
        if self.level <= Level.WARN:
            self._log(Level.WARN, text)

    def error(self, text: str) -> None:
        """Log a failure."""
        if self.level <= Level.ERROR:
            self._log(Level.ERROR, text)

    def fatal(self, text: str) -> None:
        """Log the reason why the daemon ends."""
        self._log(Level.FATAL, text)
        self.drain()

    def enabled(self, level: Level) -> bool:
        """Return whether a line of that level would be written."""
        return self.level <= level

    def _log(self, level: Level, text: str) -> None:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
            self._second = second
        if not text.isprintable():  # one event, one line, and a terminal left alone, whoever wrote the text
            text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
        line = f"{self.prefix}{self._stamp}.{int((now - second) * 1e6):06} {_SHOWN[level]}: {text}"
        self._put(line.encode("utf-8", "backslashreplace")[:_LONGEST] + b"\n")

    def _put(self, line: bytes) -> None:
        if len(self._waiting) >= _BACKLOG:
            self._lost += 1
        else:
            self._waiting.append(line)
        self._write(0)

    def _write(self, patience: int) -> bool:
        """Write waiting lines as far as stderr takes them within `patience` ms; return whether all are out."""
        while self._waiting:
            try:
                if not self._poll.poll(patience):
                    return False
                line = self._waiting[0]
                done = os.write(self._fd, line)
            except OSError:  # stderr is gone, and with it every way to report that
                self._waiting.clear()
                return True
            if done < len(line):
                self._waiting[0] = line[done:]
                continue
            self._waiting.popleft()
            if self._lost and not self._waiting:
                lost, self._lost = self._lost, 0
                self._log(Level.WARN, f"{lost} log lines were dropped: stderr was not read")
        return True

    def drain(self) -> None:
        """Give waiting lines one more second to get out."""
        self._write(1000)
