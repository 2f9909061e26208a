"""The audit: every change with its user, time and outcome, of this nsqadmin and of the nodes."""

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lapwing.client.cluster import Node
from lapwing.client.http import Asked, DaemonHttp
from lapwing.errors import ConfigError

KEPT: Final = 1000
PARTLY: Final = "WARNING: "  # how the outcome of a change begins that some nodes have refused
_READ: Final = "500"  # of each node
_ACTIONS: Final = {  # the words of the page for what nodes have written down
    "POST /channel/claim": "claim messages",
    "POST /channel/cancel": "cancel messages",
    "POST /channel/seek": "seek channel",
    "POST /dead/redrive": "redrive dead letters",
    "POST /dead/cancel": "cancel redrive",
    "POST /dead/purge": "purge dead letters",
    "POST /drain": "drain node",
    "POST /undrain": "undrain node",
    "PATCH /topic/settings": "change settings",
    "PATCH /channel/settings": "change settings",
    "DELETE /topic/settings": "clear settings",
    "DELETE /channel/settings": "clear settings",
    "PUT /policies": "put policy",
    "DELETE /policies": "remove policy",
    "PUT /schedules": "put schedule",
    "DELETE /schedules": "remove schedule",
    "POST /schedules/run": "run schedule",
    "POST /schedules/pause": "pause schedule",
    "POST /schedules/resume": "resume schedule",
    "PUT /config": "set option",
}
_NAMED: Final = (  # a name follows in the path
    "/policies", "/config", "/schedules/run", "/schedules/pause", "/schedules/resume", "/schedules",
)  # fmt: skip


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
    change: str = ""  # names the change in the audits of the nodes
    program: str = ""  # with which it was made; empty: nsqadmin


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


# ---- the nodes ----


async def read_nodes(http: DaemonHttp, nodes: Iterable[Node]) -> Asked[Any]:
    """Return the newest changes that each node has written down, by the name of the node."""
    contacts = {node.name: node.contact for node in nodes}
    return await http.ask_all(contacts, lambda name: http.get(contacts[name], "/audit", {"limit": _READ}))


def merged(own: Iterable[AuditEntry], answers: Mapping[str, Any]) -> list[AuditEntry]:
    """Return the changes of this nsqadmin with those that nodes know of besides, newest first.

    A change that one command made on several nodes is one entry.
    """
    entries = list(own)
    known = {entry.change for entry in entries if entry.change}
    several: dict[tuple[str, ...], AuditEntry] = {}
    for node, answer in answers.items():
        for number, change in enumerate(answer["changes"]):
            entry = _of_node(node, change)
            if entry.change in known:
                continue
            key = (entry.change or f"{node} {number}", entry.action, entry.topic, entry.channel, entry.detail)
            before = several.get(key)
            several[key] = entry if before is None else _joined(before, entry)
    return sorted([*entries, *several.values()], key=lambda entry: entry.at, reverse=True)[:KEPT]


def _of_node(node: str, change: Mapping[str, Any]) -> AuditEntry:
    method, path = str(change["method"]), str(change["path"])
    name = ""
    for stem in _NAMED:
        if path.startswith(f"{stem}/"):
            path, name = stem, path[len(stem) + 1 :]
            break
    words = _ACTIONS.get(f"{method} {path}")
    if words is None:  # `/topic/pause` and the like
        noun, _, verb = path.removeprefix("/").partition("/")
        words = f"{verb} {noun}" if verb else noun
    user, address = str(change["user"]), str(change["address"]).rpartition(":")[0]
    detail = " ".join(part for part in (name, _detail(str(change["detail"]))) if part)
    return AuditEntry(
        change["at_ms"] / 1000, user, address, words, str(change["topic"]), str(change["channel"]), node,
        f"{node}: {change['error']}" if change["error"] else "", detail, str(change["change"]),
        str(change["program"]) or "an unnamed program",
    )  # fmt: skip


def _joined(first: AuditEntry, second: AuditEntry) -> AuditEntry:
    outcome = "; ".join(each for each in (first.outcome, second.outcome) if each)
    if bool(first.outcome) != bool(second.outcome):
        outcome = f"{PARTLY}{outcome}"
    return replace(first, at=min(first.at, second.at), node=f"{first.node}, {second.node}", outcome=outcome)


def _detail(text: str) -> str:
    """Return the body of a request in words; as it is if it is no JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key not in ("topic", "channel", "dry_run")}
    return in_words(document)


def in_words(value: Any) -> str:
    """Return a JSON value as words: `to back 2h, create yes`."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{key} {in_words(inner)}".strip() for key, inner in value.items())
        case list() | tuple():
            return " ".join(in_words(inner) for inner in value)
    return str(value)


# ---- the file ----


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
