"""Each hot byte loop in plain Python: the meaning. `_speed.pyx` is the same, compiled.

A message frame, on the wire and in the log, all integers big-endian:

    size u32 | type u32 = 2 | timestamp i64 ns | attempts u16 | id 16 hex digits | body
             `------------------ size counts from here --------------------------------'

The id is the hex of `node << 54 | sequence`, so whoever holds an id knows where the message lies.
No length is believed before it is checked. `data` may be any contiguous bytes-like object, and every number any
integer: a place beyond the data holds nothing, a negative place is a `ValueError`, a time that needs more than 64 bits
an `OverflowError`.
"""

from array import array
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import google_crc32c

from lapwing.errors import PublishRefused
from lapwing.kernel.pure_buffers import (
    BAD_COUNT,
    BAD_SIZE,
    HEAD,
    HEADED,
    MESSAGE,
    SHORT,
    SURPLUS,
    TOO_BIG,
    Buffer,
    checked_place,
    flat,
)
from lapwing.kernel.pure_headers import *  # noqa: F403 - this module is one whole twin
from lapwing.kernel.pure_resp import *  # noqa: F403

_FIN: Final = 21  # bytes of `FIN <id>\n`
_HEX: Final = frozenset(b"0123456789abcdef")
_SIZE: Final = Struct(">i")
_PREFIX: Final = Struct(">II")
_FRAME: Final = Struct(">II8sH16s")
_STAMP: Final = Struct(">qH16s")
_LARGEST: Final = 0x7FFFFFFF  # the largest size of a frame, and the last place that a scan looks at
_ROOM: Final = _LARGEST - 30  # the largest body
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from `value`."""
    checksum: int = google_crc32c.extend(value, data if isinstance(data, bytes) else bytes(memoryview(data)))
    return checksum


def frame_one(body: Buffer, first_id: int, timestamp: int) -> bytes:
    """Return the frame of one message."""
    return frame_bodies((body,), first_id, timestamp)


def frame_bodies(bodies: Iterable[Buffer], first_id: int, timestamp: int) -> bytes:
    """Return the frames of `bodies`, with ids from `first_id` on. Raises `OverflowError` past 2 GiB a body."""
    pack, time = _FRAME.pack, timestamp.to_bytes(8, "big", signed=True)
    parts: list[Buffer] = []
    for number, body in enumerate(bodies, first_id):
        body = flat(body)
        size = len(body)
        if size > _ROOM:
            raise OverflowError(f"a body of {size} bytes does not fit a frame")
        parts.append(pack(size + 30, MESSAGE, time, 1, b"%016x" % (number & _MASK)))
        parts.append(body)
    return b"".join(parts)


def frame_mpub(
    body: Buffer, first_id: int, timestamp: int, max_count: int, max_size: int
) -> tuple[bytes, int]:
    """Return the frames of an MPUB body (count, then size and bytes of each), and how many there are.

    All or nothing: raises `PublishRefused` with the first thing that is wrong.
    """
    time = timestamp.to_bytes(8, "big", signed=True)
    body = flat(body)
    end = len(body)
    if end < 4:
        raise PublishRefused(SHORT, -1, end)
    (count,) = _SIZE.unpack_from(body)
    if count <= 0 or count > max_count:
        raise PublishRefused(BAD_COUNT, -1, count)
    max_size = min(max_size, _ROOM)
    pack, size_at = _FRAME.pack, _SIZE.unpack_from
    view = memoryview(body)
    parts: list[Buffer] = []
    at = 4
    for index in range(count):
        if end - at < 4:
            raise PublishRefused(SHORT, index, end)
        (size,) = size_at(body, at)
        if size <= 0:
            raise PublishRefused(BAD_SIZE, index, size)
        if size > max_size:
            raise PublishRefused(TOO_BIG, index, size)
        at += 4
        if end - at < size:
            raise PublishRefused(SHORT, index, end)
        parts.append(pack(size + 30, MESSAGE, time, 1, b"%016x" % ((first_id + index) & _MASK)))
        parts.append(view[at : at + size])
        at += size
    if at != end:
        raise PublishRefused(SURPLUS, count, at)
    return b"".join(parts), count


def mpub_run(data: Buffer, at: int, count: int, max_size: int) -> tuple[int, int]:
    """Return how many of the next `count` messages of an MPUB body are whole, and where they end.

    `at` is where the size of the first one stands. The run ends before a message whose size is not 1 to `max_size`.
    """
    at, data = checked_place(at), flat(data)
    end = len(data)
    max_size = min(max_size, _ROOM)
    whole = 0
    while whole < count and end - at >= 4:
        (size,) = _SIZE.unpack_from(data, at)
        if not 0 < size <= max_size or end - at - 4 < size:
            break
        at += 4 + size
        whole += 1
    return whole, at


def fin_run(data: Buffer, start: int) -> int:
    """Return where the run of whole `FIN <id>` lines that begins at `start` ends.

    A space or a closing CR makes the id shorter than it looks: such a line ends the run, and needs a parser.
    """
    start, data = checked_place(start), flat(data)
    end = len(data)
    while end - start >= _FIN and data[start : start + 4] == b"FIN " and data[start + 20] == 10:
        text = bytes(data[start + 4 : start + 20])
        if b"\n" in text or b" " in text or text.endswith(b"\r"):
            break
        start += _FIN
    return start


def fin_sequences(block: Buffer, base: int) -> list[int]:
    """Return the sequences that a run of FINs names; -1 for an id of another node, or what is no id at all.

    `base` is the node's share of an id.
    """
    if not 0 <= base <= _MASK:
        raise ValueError(f"base {base} is no id")
    block = flat(block)
    texts = [bytes(block[at : at + 16]) for at in range(4, len(block) - 16, _FIN)]
    return [max(int(text, 16) - base, -1) if _HEX.issuperset(text) else -1 for text in texts]


def take_frames(data: Buffer, start: int, stop: int, max_count: int, max_bytes: int) -> tuple[int, int]:
    """Return how many whole frames from `start` fit, and where they end; the first one fits whatever its size."""
    start, data = checked_place(start), flat(data)
    stop = min(stop, len(data))
    limit = min(stop, start + max_bytes)
    count, at = 0, start
    while count < max_count and stop - at >= HEAD:
        size, kind = _PREFIX.unpack_from(data, at)
        if size < 30 or size > _LARGEST or kind != MESSAGE:
            break
        after = at + 4 + size
        if after > stop or (after > limit and count):
            break
        at = after
        count += 1
    return count, at


def fins_of(data: Buffer, start: int, stop: int) -> tuple[bytes, int, int]:
    """Return the FINs that answer the run of whole message frames at `start`, with headers or without.

    Return also how many there are, and the end of the run: the first bytes that are no whole message frame.
    """
    start, data = checked_place(start), flat(data)
    stop = min(stop, len(data), _LARGEST)
    fins = []
    at = start
    while stop - at >= HEAD:
        size, kind = _PREFIX.unpack_from(data, at)
        if size < 30 or kind not in (MESSAGE, HEADED) or size > stop - at - 4:
            break
        fins.append(b"FIN %b\n" % bytes(data[at + 18 : at + HEAD]))
        at += 4 + size
    return b"".join(fins), len(fins), at


def scan_frames(data: Buffer, start: int, stop: int) -> tuple["array[int]", int]:
    """Return where each whole message frame from `start` begins, then where the last one ends; and that end again.

    Scanning stops at the first bytes that are no whole frame: torn and corrupt look alike from here.
    """
    start, data = checked_place(start), flat(data)
    stop = min(stop, len(data), _LARGEST)
    positions = array("i", [start] if start <= _LARGEST else [0])
    at = start
    while stop - at >= HEAD:
        size, kind = _PREFIX.unpack_from(data, at)
        if size < 30 or kind != MESSAGE or size > stop - at - 4:
            break
        at += 4 + size
        positions.append(at)
    return positions, at


def decode_columns(
    data: Buffer, start: int, stop: int, row: int, ids: Buffer, times: Buffer, offsets: Buffer, bodies: Buffer
) -> tuple[int, int]:
    """Write the frames of [start, stop) into columns from `row` on; the next row, and where the next frame begins.

    The columns are room that Arrow understands: 16 bytes an id, microseconds as native i64, where bodies begin as
    native i32 (that of `row` is there already, and is where the next body begins), and the bodies. It ends at
    what is no whole frame, and where a column is full.
    """
    at, index, data = checked_place(start), checked_place(row), flat(data)
    id_at, time_at, offset_at, body_at = (memoryview(column).cast("B") for column in (ids, times, offsets, bodies))
    time_at, offset_at = time_at[: len(time_at) // 8 * 8].cast("q"), offset_at[: len(offset_at) // 4 * 4].cast("i")
    most = min(len(id_at) // 16, len(time_at), len(offset_at) - 1)
    room = min(len(body_at), _LARGEST)
    if index > most:
        raise ValueError("a row outside of the columns")
    total = offset_at[index]
    if total < 0:
        raise ValueError("an offset that is negative")
    positions, _ = scan_frames(data, at, stop)
    for after in positions[1:]:
        size = after - at - HEAD
        if index == most or size > room - total:
            break
        nanoseconds, _, identity = _STAMP.unpack_from(data, at + 8)
        time_at[index] = nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000)
        id_at[16 * index : 16 * index + 16] = identity
        body_at[total : total + size] = data[at + HEAD : after]
        total += size
        index += 1
        offset_at[index] = total
        at = after
    return index, at


def decode_messages(data: Buffer, start: int, stop: int) -> tuple[list[tuple[int, int, bytes, bytes]], int]:
    """Return the run of whole message frames at `start` as (timestamp, attempts, id, body), and where it ends."""
    start, data = checked_place(start), flat(data)
    positions, end = scan_frames(data, start, stop)
    messages = []
    for index in range(len(positions) - 1):
        at = positions[index]
        timestamp, tries, identity = _STAMP.unpack_from(data, at + 8)
        messages.append((timestamp, tries, identity, bytes(data[at + HEAD : positions[index + 1]])))
    return messages, end


def with_each_attempts(frames: bytes, attempts: Sequence[int]) -> bytes:
    """Return the same frames, each with its number of attempts. Raises `ValueError` unless there are so many frames."""
    out = bytearray(frames)
    at = 0
    for tries in attempts:
        if len(out) - at < HEAD:
            break
        out[at + 16 : at + 18] = min(max(tries, 0), 0xFFFF).to_bytes(2, "big")
        at += 4 + _PREFIX.unpack_from(out, at)[0]
    else:
        if at == len(out):
            return bytes(out)
    raise ValueError(f"{len(attempts)} frames were expected")


def with_attempts(frame: Buffer, attempts: int) -> bytes:
    """Return the same frame with this number of attempts, at most 65,535: there is room for no more."""
    frame = flat(frame)
    if len(frame) < HEAD:
        raise ValueError(f"frame of {len(frame)} bytes, at least {HEAD} needed")
    return b"".join((frame[:16], min(max(attempts, 0), 0xFFFF).to_bytes(2, "big"), frame[18:]))
