"""Writing to a log and reading it back, as the tests of the room do."""

from collections.abc import Sequence

from lapwing import kernel
from lapwing.log.log import Extra, TopicLog

NODE = 7


def publish(log: TopicLog, bodies: Sequence[bytes], *, now: int = 1, extras: Sequence[Extra] = ()) -> int:
    """Append and flush one batch; the first sequence."""
    first = append(log, bodies, now=now, extras=extras)
    log.flush()
    return first


def append(log: TopicLog, bodies: Sequence[bytes], *, now: int = 1, extras: Sequence[Extra] = ()) -> int:
    """Append one batch without flushing."""
    frames = kernel.frame_bodies(bodies, (log.node << 54) + log.next, now)
    return log.append(frames, len(bodies), now=now, extras=extras)


def bodies(log: TopicLog, start: int | None = None, stop: int | None = None) -> list[bytes]:
    """The bodies of a range, read in blocks; a quarantined message is missing."""
    found: list[bytes] = []
    start = log.first if start is None else start
    for first, count, frames in log.blocks(start, log.end if stop is None else stop, 1 << 20):
        messages, _ = kernel.decode_messages(frames, 0, len(frames))
        assert not frames or [int(message[2], 16) for message in messages] == [
            (log.node << 54) + sequence for sequence in range(first, first + count)
        ]
        found += [message[3] for message in messages]
    return found
