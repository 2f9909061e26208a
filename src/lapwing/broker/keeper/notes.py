"""The notes of a channel in the journal, beside its pending messages.

bookmark    where it stood before the last seek
dead        up to where it agrees with its dead-letter topic
redrive     of the channel of a dead-letter topic: the task under way, or the last one
returned    dead letters that were returned to it, and may not be finished yet
doubt       until when it stands still, as a damaged journal may have lost deferrals
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.channel.holds import Hold
from lapwing.broker.failures.dead_letter_link import DeadLetterMark
from lapwing.broker.operations import redrive_task
from lapwing.broker.topic.skips import Bookmark, Run

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel

_BOOKMARK: Final = "bookmark"
_DEAD: Final = "dead"
_REDRIVE: Final = "redrive"
_RETURNED: Final = "returned"
_DOUBT: Final = "doubt"


def changed(channel: Channel) -> Iterator[tuple[str, bytes]]:
    """Yield the notes of a channel that are not as the journal has them, by key."""
    yield from changed_by_return(channel)
    until = channel.holds.get(Hold.DOUBTFUL)
    found = {_DOUBT: _encoded({"until": until} if until is not None else None)}
    link = channel.dead
    if link is not None:
        channel.topic.mover.update_mark(channel)
        found[_DEAD] = _encoded(asdict(link.mark) if link.mark is not None else None)
        found[_REDRIVE] = redrive_task.encode(link.redrive)
    yield from _changed(channel, found)


def changed_by_return(channel: Channel) -> Iterator[tuple[str, bytes]]:
    """Yield those of them that change when dead letters are returned."""
    found = {_BOOKMARK: _encoded(asdict(channel.bookmark) if channel.bookmark is not None else None)}
    if channel.dead is not None:
        found[_RETURNED] = _encoded(channel.dead.returned)
    yield from _changed(channel, found)


def _changed(channel: Channel, found: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for key, note in found.items():
        if note != channel.notes.get(key, b""):
            channel.notes[key] = note
            yield key, note


def restore(channel: Channel, saved: Mapping[str, bytes]) -> None:
    """Take over the notes of the journal; one that is not understood is reported and ignored."""
    channel.notes = dict(saved)
    for key, note in saved.items():
        try:
            _restore(channel, key, json.loads(note))
        except (KeyError, TypeError, ValueError) as error:
            name = f"{channel.topic.name}/{channel.name}"
            channel.topic.report(f"channel {name}: its note {key} in the journal is ignored: {error!r}")


def _restore(channel: Channel, key: str, note: Any) -> None:
    if key == _BOOKMARK:
        unfinished, finished = _runs(note["unfinished"]), _runs(note.get("finished", []))
        channel.bookmark = Bookmark(int(note["cursor"]), tuple(unfinished), int(note["target"]), tuple(finished))
    elif key == _DOUBT:
        channel.hold(Hold.DOUBTFUL, until=int(note["until"]))
    elif key == _DEAD:
        channel.dead_link().mark = DeadLetterMark(str(note["topic"]), str(note["log"]), int(note["next"]))
    elif key == _REDRIVE:
        channel.dead_link().redrive = redrive_task.decode(note)
    elif key == _RETURNED:
        channel.dead_link().returned = {str(topic): [int(each) for each in some] for topic, some in note.items()}


def _runs(note: Any) -> list[Run]:
    return [(int(start), int(stop)) for start, stop in note]


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() if document else b""
