"""Who did what, when, and how it went: kept in memory, and in a file if one is named."""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lapwing.errors import ConfigError

KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One deed."""

    at: float  # Unix seconds
    user: str
    address: str
    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    outcome: str = ""  # empty: done; otherwise what went wrong
    detail: str = ""


class Audit:
    """The last deeds, newest first; every one is also appended to `path` as a line of JSON.

    A file that cannot be opened at the start is a `ConfigError`. One that cannot be written later does not stop
    anybody: `trouble` says so, and the page shows it.
    """

    def __init__(self, path: str = "") -> None:
        self._path = Path(path) if path else None
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self.trouble = ""
        if self._path is not None:
            try:
                self._path.open("a").close()
                self._entries.extendleft(reversed(_tail(self._path)))
            except OSError as error:
                raise ConfigError(f"cannot open the audit file {path}: {error.strerror}") from error

    def write(
        self,
        user: str,
        address: str,
        action: str,
        *,
        topic: str = "",
        channel: str = "",
        node: str = "",
        outcome: str = "",
        detail: str = "",
    ) -> Entry:
        """Note a deed that was just done, or refused."""
        entry = Entry(time.time(), user, address, action, topic, channel, node, outcome, detail)
        self._entries.appendleft(entry)
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")
                self.trouble = ""
            except OSError as error:
                self.trouble = f"the audit file {self._path} cannot be written: {error.strerror}"
        return entry

    def entries(self) -> list[Entry]:
        """What is remembered, newest first."""
        return list(self._entries)


def _tail(path: Path) -> list[Entry]:
    """The last entries of an audit file, newest first; lines that are none are passed over."""
    entries: list[Entry] = []
    for line in reversed(_last_lines(path)):
        try:
            entries.append(Entry(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return entries[:KEPT]


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 512 * KEPT))
        return file.read().decode("utf-8", "replace").splitlines()
