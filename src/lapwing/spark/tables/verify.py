"""Proof that an archive holds every message of a range of sequences exactly once.

The sequences are read out of the files themselves, all of them, and compared with what by the table's log has been
archived, and with what the brokers have published if they are asked. The result is shown in words or as JSON.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.brokers.directory import Directory, ask_all
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, call
from lapwing.spark.options import BrokerAccess
from lapwing.spark.pipelines.settings.kind_settings import ALL_TOPICS
from lapwing.spark.tables.delta import Log, Part, TableNote, archive_table, parts_of, reached, read_note

Run = tuple[int, int]  # sequences [first, stop)

_MOST_SHOWN: Final = 5
_SHORT: Final = 8  # characters of a log's id in the table, which has to fit a terminal


@dataclass
class LogProof:
    """The part of one log that the archive holds."""

    topic: str
    node: int
    log_id: str
    first: int = 0
    stop: int = 0
    rows: int = 0
    missing: list[Run] = field(default_factory=list)
    twice: list[Run] = field(default_factory=list)
    published: int | None = None  # where the log ends now; None when nobody was asked or it is gone
    ended: bool = False  # the topic was deleted or created again: nothing more will come of this log
    lost: list[Run] = field(default_factory=list)  # read by no batch before the log was deleted
    archived: bool = True  # False: a log that the archive should have and knows nothing of

    @property
    def sound(self) -> bool:
        return self.archived and not self.missing and not self.twice

    @property
    def waiting(self) -> int | None:
        """Messages that are published and not archived yet."""
        return None if self.published is None else max(self.published - self.stop, 0)


@dataclass
class Proof:
    """The result of a check."""

    place: str
    logs: list[LogProof] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    faults: list[str] = field(default_factory=list)  # in words: what is wrong with files

    @property
    def sound(self) -> bool:
        return not self.faults and all(log.sound for log in self.logs)


def published(nsqd: tuple[str, ...], lookupd: tuple[str, ...] = ()) -> dict[Log, Run]:
    """Return (first, next) of every log of these brokers, by topic, node and identity; all of them have to answer."""
    access = BrokerAccess(nsqd=nsqd, lookupd=lookupd)
    try:
        addresses = Directory(access).find(departed=True)
    except BrokerAway as error:
        raise ConfigError(f"{error}; is nsqlookupd running?") from error
    found = {}
    for _, answer in ask_all(addresses, lambda address: call(address, access, "GET", "/log/offsets")):
        if isinstance(answer, BrokerAway | BrokerRefused):
            raise ConfigError(f"{answer}; is this nsqd running?")
        assert isinstance(answer, dict)
        for topic in answer["topics"]:
            found[topic["topic"], int(answer["node_id"]), topic["log_id"]] = (topic["first"], topic["next"])
    return found


def verify(
    place: str, *, topics: Iterable[str] = (), span: Run | None = None, published: Mapping[Log, Run] | None = None
) -> Proof:
    """Check an archive, or the part of it that `topics` and `span` (sequences) name; it may be in use.

    `published` is what the brokers hold: (first, next) of each log.
    """
    table = archive_table(place)
    wanted, published = frozenset(topics), published or {}
    note, parts = read_note(table), parts_of(table)
    known = note.until.keys() | {part.partition["topic"] for part in parts} | {each[0] for each in note.ended}
    if strange := wanted - known - {log[0] for log in published}:
        raise LapwingError(f"{place}: nothing of topic {', '.join(sorted(strange))} was ever archived here")
    proof = Proof(place)
    held = _held(table, [part for part in parts if not wanted or part.partition["topic"] in wanted], proof)
    ended = {(topic, node, log_id): sequence for topic, node, log_id, sequence in note.ended}
    began = {(topic, node, log_id): sequence for topic, node, log_id, sequence in note.began}
    expected = {**ended, **reached(note.until)}
    for log, sequence in expected.items():
        if (not wanted or log[0] in wanted) and (sequence > 0 or log in published):
            held.setdefault(log, [])
    for log in sorted(held):
        proven = prove(log, held[log], expected.get(log), span, published.get(log), began.get(log))
        proof.logs.append(_ended(proven) if log in ended else proven)
    proof.logs += [
        LogProof(*log, first=first, stop=first, published=after, archived=False)
        for log, (first, after) in sorted(published.items())
        if log not in held and first < after and _in_scope(log[0], wanted, note)
    ]
    return proof


def _held(table: DeltaTable, parts: list[Part], proof: Proof) -> dict[Log, list[Run]]:
    """Return the sequences of each log that are in the files; files that are gone or damaged go into the proof."""
    held: dict[Log, list[Run]] = {}
    fragments = {each.path: each for each in table.to_pyarrow_dataset().get_fragments()}
    for part in sorted(parts, key=lambda part: part.path):
        try:
            rows = fragments[part.path].to_table(columns=["node", "log_id", "sequence"])
        except (OSError, pa.ArrowInvalid) as error:
            proof.faults.append(f"{part.path}: {str(error).splitlines()[0]}")
            continue
        proof.files += 1
        proof.rows += len(rows)
        if len(rows) != part.rows:
            proof.faults.append(f"{part.path}: {len(rows)} rows, the table's log has {part.rows}")
        for (node, log_id), found in runs_by_log(rows).items():
            held.setdefault((part.partition["topic"] or "", node, log_id), []).extend(found)
    return held


def _in_scope(topic: str, wanted: frozenset[str], note: TableNote) -> bool:
    """Return whether the archive should have the topic: the user asks for it, or the pipeline reads it."""
    if wanted:
        return topic in wanted
    if topics := note.scope.get("topics"):
        return topic in topics
    return re.fullmatch(note.scope.get("pattern") or ALL_TOPICS, topic) is not None


def _ended(proof: LogProof) -> LogProof:
    """Return the proof of a log that was deleted: the end of it may have been deleted before a batch had read it."""
    proof.ended = True
    if proof.missing and proof.missing[-1][1] == proof.stop:
        proof.lost.append(proof.missing.pop())
    return proof


def prove(
    log: Log, held: list[Run], end: int | None, span: Run | None, published: Run | None, began: int | None = None
) -> LogProof:
    """Compare the runs of sequences that are held with those that should be: from the first one held to `end`.

    `began` is where the pipeline began to read the log, if that is known.
    """
    proof = LogProof(*log)
    if span is not None:
        held = [(max(a, span[0]), min(b, span[1])) for a, b in held if max(a, span[0]) < min(b, span[1])]
    ordered = sorted(held)
    proof.rows = sum(stop - first for first, stop in ordered)
    low = min([first for first, _ in ordered[:1]] + ([] if began is None else [began]), default=0)
    if span is not None:
        low = span[0]
    high = max((stop for _, stop in ordered), default=low)
    if end is not None:
        high = max(high, end if span is None else min(end, span[1]))
    if span is not None and span[1] < 2**62:
        high = max(high, span[1])
    reached = low
    for first, stop in ordered:
        if first > reached:
            proof.missing.append((reached, first))
        if first < reached:
            proof.twice.append((first, min(stop, reached)))
        reached = max(reached, stop)
    if reached < high:
        proof.missing.append((reached, high))
    if published is not None and span is None and published[0] > high:
        proof.missing.append((high, published[0]))  # retention has deleted them before they were archived
        high = published[0]
    proof.first, proof.stop = low, high
    proof.published = published[1] if published is not None else None
    return proof


def runs_by_log(rows: pa.Table) -> dict[tuple[int, str], list[Run]]:
    """Return the sequences of some rows as runs without a gap, by log."""
    found: dict[tuple[int, str], list[Run]] = {}
    nodes, logs = rows.column("node"), rows.column("log_id")
    pairs = rows.group_by(["node", "log_id"]).aggregate([])
    for node, log_id in zip(pairs.column("node").to_pylist(), pairs.column("log_id").to_pylist(), strict=True):
        sequences = rows.column("sequence")
        if len(pairs) > 1:
            same_log = pc.is_null(logs) if log_id is None else pc.equal(logs, log_id)
            sequences = sequences.filter(pc.and_(pc.equal(nodes, node), same_log))
        found[node, log_id or ""] = runs(sequences.combine_chunks())
    return found


def runs(sequences: pa.Array) -> list[Run]:
    """Sequences as runs [first, stop); one that stands there twice begins a run of its own."""
    if isinstance(sequences, pa.ChunkedArray):
        sequences = sequences.combine_chunks()
    count = len(sequences)
    if count == 0:
        return []
    steps = pc.subtract(sequences.slice(1), sequences.slice(0, count - 1))
    if count > 1 and pc.min(steps).as_py() < 1:
        sequences = sequences.take(pc.sort_indices(sequences))
        steps = pc.subtract(sequences.slice(1), sequences.slice(0, count - 1))
    breaks = [0, *(index + 1 for index in pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()), count]
    return [(sequences[low].as_py(), sequences[high - 1].as_py() + 1) for low, high in pairwise(breaks)]


def shown(ranges: list[Run]) -> str:
    """Runs in words: `3 messages: 7, 9 .. 10`."""
    total = sum(stop - first for first, stop in ranges)
    parts = [f"{first:,}" if stop == first + 1 else f"{first:,} .. {stop - 1:,}" for first, stop in ranges]
    more = f" and {len(parts) - _MOST_SHOWN} more ranges" if len(parts) > _MOST_SHOWN else ""
    return f"{total:,} messages: {', '.join(parts[:_MOST_SHOWN])}{more}"


def proof_json(proof: Proof) -> dict[str, Any]:
    """Return the proof for programs."""
    logs = [{**asdict(log), "waiting": log.waiting, "sound": log.sound} for log in proof.logs]
    return {**asdict(proof), "logs": logs, "sound": proof.sound}


def proof_text(proof: Proof) -> str:
    """Return the proof for people."""
    lines = [f"{proof.place}: {proof.rows:,} messages in {proof.files:,} files", ""]
    asked = any(log.published is not None for log in proof.logs)
    head = ["topic", "node", "log", "sequences", "messages", "missing", "twice", *(["waiting"] if asked else [])]
    rows = [head, *([*_row(log), *([_waiting(log)] if asked else [])] for log in proof.logs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [
            text.ljust(width) if column in (0, 2) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.append("")
    for log in proof.logs:
        where = f"topic {log.topic}, node {log.node}, log {log.log_id}"
        if log.missing:
            lines.append(f"MISSING  {where}: {shown(log.missing)}")
        if log.twice:
            lines.append(f"TWICE    {where}: {shown(log.twice)}")
        if not log.archived:
            lines.append(f"NOT ARCHIVED  {where}: {log.waiting or 0:,} messages; no batch has begun with this log")
        if log.ended:
            lost = f"; deleted before they were archived: {shown(log.lost)}" if log.lost else ""
            lines.append(f"DELETED  {where}: the topic was deleted or created again{lost}")
    lines += [f"FAULT    {fault}" for fault in proof.faults]
    if proof.sound:
        lines.append("complete: every message of these ranges is there exactly once")
    else:
        lines.append("NOT COMPLETE")
    return "\n".join(lines)


def _row(log: LogProof) -> list[str]:
    return [
        log.topic, str(log.node), log.log_id[:_SHORT],
        f"{log.first:,} .. {log.stop - 1:,}" if log.stop > log.first else "none",
        f"{log.rows:,}", f"{sum(b - a for a, b in log.missing):,}", f"{sum(b - a for a, b in log.twice):,}",
    ]  # fmt: skip


def _waiting(log: LogProof) -> str:
    return "gone" if log.waiting is None else f"{log.waiting:,}"
