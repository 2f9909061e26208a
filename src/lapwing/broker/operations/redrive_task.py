"""A redrive of a dead-letter topic: what it is to do, how far it has come, and its note in the journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from lapwing.broker.failures import dead_filter
from lapwing.broker.failures.dead_filter import DeadFilter
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings import times
from lapwing.broker.settings.definitions import Rate
from lapwing.errors import SettingRefused
from lapwing.records import dataclass

CHANNEL, TOPIC, NOWHERE = "channel", "topic", "nowhere"
RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"


@dataclass(slots=True)
class RedriveTask:
    """A redrive, or a purge (`to` nowhere), of one dead-letter topic."""

    id: str
    to: str
    wanted: DeadFilter
    rate: Rate
    limit: int  # 0: none
    started: int  # Unix ns
    stop: int  # letters from here on came after the task
    position: int = 0  # letters below are dealt with
    state: str = RUNNING
    looked: int = 0
    redriven: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    error: str = ""  # why it waits or has failed
    marks: dict[str, tuple[str, int]] = field(default_factory=dict)  # topics published to: log, and where copies begin
    edited: bytes | None = None  # the body of the one letter that is redriven
    unsettled: int | None = None  # the first letter that is being published again

    def skip(self, reason: str, count: int) -> None:
        """Count letters that are left where they are."""
        self.skipped[reason] += count

    def advance(self, redriven: int, looked: int, position: int, *, skipped: Counter[str] | None = None) -> None:
        """Count letters, and be at a position; with `skipped`, count as skipped no more than that."""
        self.redriven += redriven
        self.looked += looked
        self.position = position
        self.skipped = +(self.skipped if skipped is None else skipped)

    def pass_by(self, position: int) -> None:
        """Have no letter below a position left."""
        self.position = max(self.position, position)

    def go_back(self, position: int, problem: str) -> None:
        """Look again at letters from a position on, whose publish has failed."""
        self.position = min(self.position, position)
        self.error = problem

    def begin_settling(self, letter: int) -> None:
        """Note that letters from this one on are published again, and not written yet."""
        if self.unsettled is None:
            self.unsettled = letter

    def end_settling(self) -> None:
        """Note that all letters that were published again are written."""
        self.unsettled = None

    def note_problem(self, problem: str) -> None:
        """Note why the task waits; an empty text: it does not."""
        self.error = problem

    def end(self, state: str) -> None:
        """End the task: it is done, or cancelled."""
        self.state = state
        if state == CANCELLED:
            self.error = ""

    def document(self) -> dict[str, Any]:
        """Return the task as JSON, for people."""
        return {
            "id": self.id,
            "to": self.to,
            "filter": self.wanted.document(),
            "rate": settings.RATE.show(self.rate),
            "limit": self.limit,
            "started": times.show(self.started),
            "state": self.state,
            "looked": self.looked,
            "redriven": self.redriven,
            "skipped": dict(self.skipped),
            "left": max(self.stop - self.position, 0),
            "error": self.error,
        }


def encode(task: RedriveTask | None) -> bytes:
    """Return a task as it is noted in the journal."""
    if task is None:
        return b""
    document = {
        "id": task.id,
        "to": task.to,
        "wanted": task.wanted.document(),
        "rate": settings.RATE.show(task.rate),
        "limit": task.limit,
        "started": task.started,
        "stop": task.stop,
        "position": task.position if task.unsettled is None else min(task.unsettled, task.position),
        "state": task.state,
        "looked": task.looked,
        "redriven": task.redriven,
        "skipped": dict(task.skipped),
        "error": task.error,
        "marks": task.marks,
        "edited": None if task.edited is None else task.edited.hex(),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode(note: Mapping[str, Any]) -> RedriveTask:
    """Return the task that was noted. Raises `KeyError`, `TypeError` or `ValueError`."""
    try:
        wanted = dead_filter.parse(note["wanted"])
    except SettingRefused as error:
        raise ValueError(str(error)) from error
    task = RedriveTask(
        str(note["id"]), str(note["to"]), wanted, settings.RATE.from_file(note["rate"]), int(note["limit"]),
        int(note["started"]), int(note["stop"]), int(note["position"]), str(note["state"]), int(note["looked"]),
        int(note["redriven"]), Counter(note["skipped"]), str(note["error"]),
    )  # fmt: skip
    task.marks = {str(name): (str(log), int(end)) for name, (log, end) in note["marks"].items()}
    task.edited = None if note["edited"] is None else bytes.fromhex(note["edited"])
    return task


