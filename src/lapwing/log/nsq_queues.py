"""Find the disk queues that NSQ's own nsqd has left in a data path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

_META: Final = ".diskqueue.meta.dat"
_LARGEST_META: Final = 4096  # bytes; such a file holds five numbers


@dataclass(frozen=True, slots=True)
class NsqQueue:
    """A disk queue with messages in it."""

    name: str  # `topic` or `topic:channel`
    depth: int  # messages


def undrained(data_path: str) -> list[NsqQueue]:
    """Return every disk queue of NSQ in `data_path` that still holds messages, by name.

    A file that cannot be read or understood is left out: nothing is lost by not naming it.
    """
    found = []
    for entry in sorted(os.listdir(data_path or ".")):
        if entry.endswith(_META):
            depth = _depth(os.path.join(data_path, entry))
            if depth > 0:
                found.append(NsqQueue(entry.removesuffix(_META), depth))
    return found


def _depth(path: str) -> int:
    """Return the first number of a queue's metadata: how many messages it holds."""
    try:
        with open(path, "rb") as file:
            return int(file.read(_LARGEST_META).partition(b"\n")[0])
    except (OSError, ValueError):
        return 0
