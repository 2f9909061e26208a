"""The audit: every change with its user, time and outcome, in memory and in a file if one is named."""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lapwing.errors import ConfigError

KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, or one refused change."""

    at: float  # Unix seconds
    user: str
    address: str
    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    outcome: str = ""  # empty: done; otherwise the error
    detail: str = ""


class Audit:
    """The last changes, newest first. Every change is also appended to `path` as a line of JSON.

    A file that cannot be opened at the start is a `ConfigError`. One that cannot be written later does not stop
    anybody: `trouble` has the reason, and the page shows it.
    """

    def __init__(self, path: str = "") -> None:
        self._path = Path(path) if path else None
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self.trouble = ""
        if self._path is not None:
            try:
                self._path.open("a").close()
                self._entries.extendleft(reversed(_tail(self._path)))
            except OSError as error:
                raise ConfigError(f"cannot open the audit file {path}: {error.strerror}") from error

    def write(self, user: str, address: str, action: str, **about: str) -> None:
        """Add a change that was just made, or refused; `about` are the other fields of its entry."""
        entry = AuditEntry(time.time(), user, address, action, **about)
        self._entries.appendleft(entry)
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")
                self.trouble = ""
            except OSError as error:
                self.trouble = f"the audit file {self._path} cannot be written: {error.strerror}"

    def entries(self) -> list[AuditEntry]:
        """Return the kept entries, newest first."""
        return list(self._entries)


def _tail(path: Path) -> list[AuditEntry]:
    """Return the last entries of an audit file, newest first, without malformed lines."""
    entries: list[AuditEntry] = []
    for line in reversed(_last_lines(path)):
        try:
            entries.append(AuditEntry(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return entries[:KEPT]


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 512 * KEPT))
        return file.read().decode("utf-8", "replace").splitlines()
