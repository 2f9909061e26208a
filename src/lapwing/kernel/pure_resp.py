"""The byte loops of RESP, Redis's protocol, in plain Python. `_resp.pxi` has the same functions, compiled.

A request and the pairs of a stream entry are arrays of bulk strings:

    *<words>\\r\\n  then for each word  $<length>\\r\\n<bytes>\\r\\n

Every number is in its only spelling (no sign, no leading zero), so that an array can be compared by its bytes. A body
that is, whole and to the byte, such an array with an even number of words is the pairs of an entry; any other body is
one pair, whose field the caller names. An entry's id is `<milliseconds>-<sequence>`.
"""

import re
from array import array
from struct import Struct
from typing import Any, Final

from lapwing.kernel.pure_buffers import HEAD, MESSAGE, Buffer, as_bytes, checked_place

_LARGEST: Final = 0x7FFFFFFF
_ROOM: Final = _LARGEST - 30  # the largest body
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_DIGITS: Final = re.compile(rb"0|[1-9][0-9]{0,9}")
_ID: Final = re.compile(rb"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")
_PREFIX: Final = Struct(">II")
_FRAME: Final = Struct(">II8sH16s")
_XADD: Final = b"XADD"


def _number(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return the number in the line `<kind><number>` at `at`, and where the next line begins; (-1, at) if none is."""
    if at >= len(data) or data[at] != kind:
        return -1, at
    found = _DIGITS.match(data, at + 1)
    if found is None or data[found.end() : found.end() + 2] != b"\r\n":
        return -1, at
    number = int(found[0])
    return (number, found.end() + 2) if number <= _LARGEST else (-1, at)


def _bulk(data: bytes, at: int) -> tuple[int, int]:
    """Return where the bytes of the whole bulk string at `at` begin and end; (-1, -1) if there is none."""
    size, begin = _number(data, at, 36)
    end = begin + size
    if size < 0 or data[end : end + 2] != b"\r\n":
        return -1, -1
    return begin, end


def _words(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return how many words the whole array at `at` has, and where it ends; (-1, at) if there is none."""
    count, place = _number(data, at, 42)
    if count < 1 or count > most:
        return -1, at
    for _ in range(count):
        begin, end = _bulk(data, place)
        if begin < 0:
            return -1, at
        place = end + 2
    return count, place


def split_words(data: Buffer, start: int, max_words: int) -> tuple[list[bytes], int]:
    """Return the words of the whole array of at most `max_words` bulk strings at `start`, and where it ends.

    No words and `start` mean that there is no such array: what lies there is unfinished, or needs a careful parser.
    """
    at, flat = checked_place(start), as_bytes(data)
    count, place = _number(flat, at, 42) if at <= len(flat) else (-1, at)
    if count < 1 or count > max_words:
        return [], start
    words: list[bytes] = []
    for _ in range(count):
        begin, end = _bulk(flat, place)
        if begin < 0:
            return [], start
        words.append(flat[begin:end])
        place = end + 2
    return words, place


def take_words(data: Buffer, start: int, max_words: int, room: int, overhead: int) -> tuple[list[bytes], int, int]:
    """Return the whole bulk strings at `start`, up to `max_words`, where they end, and how much room they take.

    Each takes its bytes and `overhead`, of 16 bits; a bulk string for which there is no `room` is left where it is.
    """
    at, flat = checked_place(start), as_bytes(data)
    words: list[bytes] = []
    taken = 0
    while len(words) < max_words:
        begin, end = _bulk(flat, at)
        if begin < 0 or end - begin + overhead > room - taken:
            break
        words.append(flat[begin:end])
        taken += end - begin + overhead
        at = end + 2
    return words, (at if words else start), taken


def is_pairs(body: Buffer) -> bool:
    """Return whether a body is the pairs of an entry: one whole array with an even number of words, and no more."""
    flat = as_bytes(body)
    count, end = _words(flat, 0, _LARGEST)
    return count > 0 and count % 2 == 0 and end == len(flat)


def _plain_xadd(data: bytes, at: int) -> tuple[int, int, int, int, int] | None:
    """Take a whole `XADD key * field value ..` apart: where the key begins and ends, the pairs begin and end, words."""
    count, place = _number(data, at, 42)
    if count < 5 or count % 2 == 0:
        return None
    begin, end = _bulk(data, place)
    if begin < 0 or data[begin:end].upper() != _XADD:
        return None
    key_at, key_end = _bulk(data, end + 2)
    if key_at < 0:
        return None
    begin, end = _bulk(data, key_end + 2)
    if begin < 0 or data[begin:end] != b"*":
        return None
    pairs_at = place = end + 2
    for _ in range(count - 3):
        begin, end = _bulk(data, place)
        if begin < 0:
            return None
        place = end + 2
    return key_at, key_end, pairs_at, place, count - 3


def xadd_run(data: Buffer, start: int, max_size: int) -> tuple[int, int, bytes]:
    """Return how many whole plain XADDs to one key begin at `start`, where they end, and the key.

    A plain XADD has no options, the id `*`, and pairs whose array takes at most `max_size` bytes.
    """
    at, flat = checked_place(start), as_bytes(data)
    count, key = 0, b""
    while at < len(flat):
        parts = _plain_xadd(flat, at)
        if parts is None:
            break
        key_at, key_end, pairs_at, pairs_end, words = parts
        if pairs_end - pairs_at + len(b"*%d\r\n" % words) > max_size:
            break
        if count and flat[key_at:key_end] != key:
            break
        key = flat[key_at:key_end]
        count += 1
        at = pairs_end
    return count, (at if count else start), key


def frame_xadds(block: Buffer, first_id: int, timestamp: int, field: Buffer) -> tuple[bytes, int, int]:
    """Frame the entries of a run of plain XADDs; return the frames, how many, and the bytes of their bodies.

    The body is the value alone if the entry is one pair with that `field` and the value would not be taken for pairs,
    else the array of its words. Raises `ValueError` if `block` is anything else than such a run.
    """
    time = timestamp.to_bytes(8, "big", signed=True)
    flat, name = as_bytes(block), as_bytes(field)
    parts: list[bytes] = []
    at = count = size = 0
    while at < len(flat):
        found = _plain_xadd(flat, at)
        if found is None:
            raise ValueError(f"no plain XADD at {at}")
        _, _, pairs_at, at, words = found
        body = b"*%d\r\n%b" % (words, flat[pairs_at:at])
        if words == 2:
            begin, end = _bulk(flat, pairs_at)
            if flat[begin:end] == name:
                begin, end = _bulk(flat, end + 2)
                if end > begin and not is_pairs(flat[begin:end]):
                    body = flat[begin:end]
        if len(body) > _ROOM:
            raise OverflowError(f"a body of {len(body)} bytes does not fit a frame")
        identity = b"%016x" % ((first_id + count) & _MASK)
        parts.append(_FRAME.pack(len(body) + 30, MESSAGE, time, 1, identity))
        parts.append(body)
        count += 1
        size += len(body)
    return b"".join(parts), count, size


def id_replies(milliseconds: int, first: int, count: int) -> bytes:
    """Return the ids of `count` entries from sequence `first` on, all of one time, as bulk strings back to back."""
    parts = []
    for sequence in range(first, first + count):
        text = b"%d-%d" % (milliseconds & _MASK, sequence & _MASK)
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def _frames(data: bytes, at: int, stop: int) -> list[tuple[int, int]]:
    """Return where each whole message frame from `at` on begins and ends."""
    spans: list[tuple[int, int]] = []
    stop = min(stop, len(data), _LARGEST)
    while stop - at >= HEAD:
        size, kind = _PREFIX.unpack_from(data, at)
        if size < 30 or kind != MESSAGE or size > stop - at - 4:
            break
        spans.append((at, at + 4 + size))
        at += 4 + size
    return spans


def entry_replies(data: Buffer, start: int, stop: int, first: int, field: Buffer) -> tuple[bytes, int, int]:
    """Return the entries of the run of whole frames at `start` as RESP arrays, how many, and where the frames end.

    Their sequences are those from `first` on; `field` names the pair that a plain body is shown as.
    """
    at, flat, name = checked_place(start), as_bytes(data), as_bytes(field)
    plain = b"*2\r\n$%d\r\n%b\r\n" % (len(name), name)
    parts: list[bytes] = []
    spans = _frames(flat, at, stop)
    for sequence, (begin, end) in enumerate(spans, first):
        milliseconds = max(int.from_bytes(flat[begin + 8 : begin + 16], "big", signed=True), 0) // 1_000_000
        text = b"%d-%d" % (milliseconds, sequence & _MASK)
        parts.append(b"*2\r\n$%d\r\n%b\r\n" % (len(text), text))
        body = flat[begin + HEAD : end]
        parts.append(body if is_pairs(body) else b"%b$%d\r\n%b\r\n" % (plain, len(body), body))
    return b"".join(parts), len(spans), (spans[-1][1] if spans else start)


def publish_times(data: Buffer, start: int, stop: int) -> tuple["array[int]", int]:
    """Return when each of the whole frames at `start` was published, in ms, and where the frames end."""
    at, flat = checked_place(start), as_bytes(data)
    spans = _frames(flat, at, stop)
    stamps = (int.from_bytes(flat[begin + 8 : begin + 16], "big", signed=True) for begin, _ in spans)
    return array("q", [max(stamp, 0) // 1_000_000 for stamp in stamps]), (spans[-1][1] if spans else start)


def known_sequences(words: list[Any], start: int, first: int, times: "array[int]") -> tuple[list[int], list[Any]]:
    """Return the sequences of the ids in words[start:], and the words that need a closer look.

    `times` has the ms of the entries from sequence `first` on: an id counts only if its time is that of its sequence.
    """
    if not 0 <= first <= _MASK:
        raise ValueError(f"first {first} is no sequence")
    known: list[int] = []
    others: list[Any] = []
    at, many = checked_place(start), len(times)
    for word in words[at:]:
        found = _ID.fullmatch(word) if type(word) is bytes else None
        index = int(found[2]) - first if found else -1
        if found and 0 <= index < many and times[index] == int(found[1]):
            known.append(int(found[2]))
        else:
            others.append(word)
    return known, others


def acked_sequences(data: Buffer, head: Buffer, first: int, times: "array[int]") -> list[int]:
    """Return the sequences of the ids of one whole XACK whose first three words are `head`, as they came.

    Return none if the data is anything else, or if one of the ids is not known; see `known_sequences`.
    """
    if not 0 <= first <= _MASK:
        raise ValueError(f"first {first} is no sequence")
    flat, wanted = as_bytes(data), as_bytes(head)
    count, at = _number(flat, 0, 42)
    if count < 4 or not flat.startswith(wanted, at):
        return []
    at += len(wanted)
    known: list[int] = []
    for _ in range(count - 3):
        begin, end = _bulk(flat, at)
        found = _ID.fullmatch(flat, begin, end) if begin >= 0 else None
        index = int(found[2]) - first if found else -1
        if not found or not 0 <= index < len(times) or times[index] != int(found[1]):
            return []
        known.append(int(found[2]))
        at = end + 2
    return known if at == len(flat) else []
