"""A proof in words, and as JSON."""

from dataclasses import asdict
from typing import Any

from lapwing.spark.pipelines.verify import LogProof, Proof, shown


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
        log.topic, str(log.node), log.log_id,
        f"{log.first:,} .. {log.stop - 1:,}" if log.stop > log.first else "none",
        f"{log.rows:,}", f"{sum(b - a for a, b in log.missing):,}", f"{sum(b - a for a, b in log.twice):,}",
    ]  # fmt: skip


def _waiting(log: LogProof) -> str:
    return "gone" if log.waiting is None else f"{log.waiting:,}"
