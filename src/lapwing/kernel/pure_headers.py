"""The byte loops of headers in plain Python. `_headers.pxi` has the same functions, compiled.

The headers of a message are one JSON object of strings. A message that has headers is published as

    size i32 | length of the headers u32 | headers | body          (the size counts from the length on)

and delivered, to a consumer that wants headers, in a frame of type 3:

    size u32 | type u32 = 3 | timestamp i64 ns | attempts u16 | id 16 hex digits | length u32 | headers | body

In the log the frame is that of a plain message. The headers lie beside it in rows, as text:

    [sequence,deferral ns,{headers}],[sequence,deferral ns,{headers}],...
"""

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final

from lapwing.errors import PublishRefused
from lapwing.kernel.pure_buffers import (
    BAD_COUNT,
    BAD_HEADERS,
    BAD_SIZE,
    HEAD,
    HEADED,
    HEADERS_TOO_BIG,
    MESSAGE,
    SHORT,
    SURPLUS,
    TOO_BIG,
    Buffer,
    as_bytes,
)

MAX_HEADERS: Final = 16 * 1024  # bytes of the headers of one message
LONGEST_MESSAGE_ID: Final = 128  # bytes of the value of `message-id`, as it is written in JSON

_LARGEST: Final = 0x7FFFFFFF
_ROOM: Final = _LARGEST - 30  # the largest body
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_SEQUENCE: Final = (1 << 54) - 1  # the bits of an id that are the sequence
_SIZE: Final = Struct(">i")
_LENGTH: Final = Struct(">I")
_PREFIX: Final = Struct(">II")
_FRAME: Final = Struct(">II8sH16s")
_STAMP: Final = Struct(">qH16s")
_HEX: Final = frozenset(b"0123456789abcdef")

_TEXT: Final = rb'"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"'  # a string of JSON
_MEMBER: Final = re.compile(rb'[ \t\r\n]*"([a-z0-9!#$%&\'*+.^_`|~-]{1,64})"[ \t\r\n]*:[ \t\r\n]*' + _TEXT)
_OPEN: Final = re.compile(rb"[ \t\r\n]*\{")
_NEXT: Final = re.compile(rb"[ \t\r\n]*([,}])")
_NOTHING: Final = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_ROW: Final = re.compile(rb"\[(0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18}),(?=\{)")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _object(text: bytes) -> tuple[int, int, int]:
    """Return how many headers a lawful text has, and where its braces begin and end; -1 if it is not lawful."""
    opened = _OPEN.match(text)
    if opened is None or not _is_utf8(text):
        return -1, 0, 0
    if _NOTHING.fullmatch(text, opened.end()):
        return 0, 0, 0
    at, count = opened.end(), 0
    while True:
        member = _MEMBER.match(text, at)
        if member is None or (member[1] == b"message-id" and len(member[2]) > LONGEST_MESSAGE_ID):
            return -1, 0, 0
        count += 1
        following = _NEXT.match(text, member.end())
        if following is None:
            return -1, 0, 0
        at = following.end()
        if following[1] == b"}":
            return (count, opened.end() - 1, at) if _SPACE.fullmatch(text, at) else (-1, 0, 0)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def count_headers(text: Buffer) -> int:
    """Return how many headers a text holds; -1 unless it is a JSON object of strings with lawful names.

    A name is a token of 1 to 64 lower-case characters. The value of `message-id` has at most 128 bytes.
    """
    return _object(as_bytes(text))[0]


def frame_headed(
    body: Buffer, first_id: int, timestamp: int, max_count: int, max_size: int, max_headers: int
) -> tuple[bytes, bytes, int]:
    """Return the plain frames of an HMPUB body, the rows of the headers, and how many messages there are.

    All or nothing: raises `PublishRefused` with the first thing that is wrong.
    """
    time = timestamp.to_bytes(8, "big", signed=True)
    data = as_bytes(body)
    end = len(data)
    if end < 4:
        raise PublishRefused(SHORT, -1, end)
    (count,) = _SIZE.unpack_from(data)
    if count <= 0 or count > max_count:
        raise PublishRefused(BAD_COUNT, -1, count)
    max_size = min(max_size, _ROOM)
    at = 4
    for index in range(count):
        if end - at < 8:
            raise PublishRefused(SHORT, index, end)
        (size,), (length,) = _SIZE.unpack_from(data, at), _LENGTH.unpack_from(data, at + 4)
        if size < 4:
            raise PublishRefused(BAD_SIZE, index, size)
        if length > max_headers:
            raise PublishRefused(HEADERS_TOO_BIG, index, length)
        rest = size - 4 - length
        if rest <= 0:
            raise PublishRefused(BAD_SIZE, index, rest)
        if rest > max_size:
            raise PublishRefused(TOO_BIG, index, rest)
        if end - at - 4 < size:
            raise PublishRefused(SHORT, index, end)
        at += 4 + size
    if at != end:
        raise PublishRefused(SURPLUS, count, at)
    frames: list[bytes] = []
    rows: list[bytes] = []
    at = 4
    for index in range(count):
        (size,), (length,) = _SIZE.unpack_from(data, at), _LENGTH.unpack_from(data, at + 4)
        identity = (first_id + index) & _MASK
        text = data[at + 8 : at + 8 + length]
        if length:
            number, begin, stop = _object(text)
            if number < 0:
                raise PublishRefused(BAD_HEADERS, index, length)
            if number:
                rows.append(b"[%d,0,%b]" % (identity & _SEQUENCE, text[begin:stop]))
        frames.append(_FRAME.pack(size - 4 - length + 30, MESSAGE, time, 1, b"%016x" % identity))
        frames.append(data[at + 8 + length : at + 4 + size])
        at += 4 + size
    return b"".join(frames), b",".join(rows), count


def _rows(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the rows of a text as (sequence, deferral, headers). Raises `ValueError` at what is none."""
    at = 0
    while at < len(text):
        row = _ROW.match(text, at)
        if row is None or max(int(row[1]), int(row[2])) >> 63:
            raise ValueError(f"no row of headers at {at}")
        end = _end_of(text, row.end())
        if text[end : end + 1] != b"]" or text[end + 1 : end + 2] not in (b"", b","):
            raise ValueError(f"a row of headers does not end at {end}")
        yield int(row[1]), int(row[2]), text[row.end() : end]
        at = end + 2


def _end_of(text: bytes, at: int) -> int:
    """Return where the object that begins at `at` ends."""
    at += 1
    while at < len(text):
        if text[at] == 0x22:
            string = _STRING.match(text, at)
            if string is None:
                break
            at = string.end()
        elif text[at] == 0x7D:
            return at + 1
        else:
            at += 1
    raise ValueError("headers without an end")


def find_rows(rows: Buffer, start: int, stop: int) -> list[tuple[int, int, bytes]]:
    """Return the rows of the messages [start, stop) as (sequence, deferral ns, headers). Raises `ValueError`."""
    return [row for row in _rows(as_bytes(rows)) if start <= row[0] < stop]


def message_ids(rows: Buffer) -> list[tuple[int, bytes]]:
    """Return (sequence, `message-id`) of each row that has one, as UTF-8; an empty one is none. Raises `ValueError`."""
    return header_values(rows, b"message-id")


def header_values(rows: Buffer, header: bytes) -> list[tuple[int, bytes]]:
    """Return the sequence of each row that has a header of that name, and its value, as `message_ids` does."""
    found = []
    for sequence, _, text in _rows(as_bytes(rows)):
        strings = [each[0][1:-1] for each in _STRING.finditer(text)]
        name = None
        for place in range(0, len(strings) - 1, 2):
            if strings[place] == header:
                name = strings[place + 1]
        if name:
            found.append((sequence, _plain(name)))
    return found


def header_column(rows: Buffer, header: bytes, first: int, count: int) -> tuple[list[bytes | None], int]:
    """Return the value of a header of each of `count` messages from `first` on, None without one, and the longest size.

    Raises `ValueError`.
    """
    found: list[bytes | None] = [None] * count
    values = [(sequence, value) for sequence, value in header_values(rows, header) if first <= sequence < first + count]
    for sequence, value in values:
        found[sequence - first] = value
    return found, max((len(value) for _, value in values), default=0)


def place_among(sequences: "array[int]", sequence: int, first: int) -> int:
    """Return the place of `sequence` in rising 64-bit numbers from the place `first` on, or where it would be."""
    return bisect_left(sequences, sequence, first)


def _plain(text: bytes) -> bytes:
    """Return what the inside of a JSON string means, as UTF-8. Raises `ValueError`."""
    if b"\\" not in text:
        return text
    plain: str = json.loads(b'"%b"' % text, strict=False)
    return plain.encode("utf-8", "surrogatepass")


def row_places(rows: Buffer) -> tuple["array[int]", "array[int]"]:
    """Return the sequence of each row, and where each row begins; the places end with that behind the last row's comma.

    Raises `ValueError` when the rows are none.
    """
    sequences, places = array("q"), array("q", [0])
    for sequence, deferral, text in _rows(as_bytes(rows)):
        sequences.append(sequence)
        places.append(places[-1] + len(b"[%d,%d,%b]," % (sequence, deferral, text)))
    return sequences, places


def with_headers(frames: Buffer, rows: Buffer) -> bytes:
    """Return message frames with the headers of `rows`: of type 3 where a message has some, else as they are.

    Both are in the order of their sequences. Rows of other messages are passed over; so is what follows the last whole
    frame. Raises `ValueError` when the rows are none.
    """
    data, found = as_bytes(frames), _rows(as_bytes(rows))
    out: list[bytes] = []
    row = next(found, None)
    at = 0
    while len(data) - at >= HEAD:
        size, kind = _PREFIX.unpack_from(data, at)
        if size < 30 or kind != MESSAGE or size > len(data) - at - 4:
            break
        after = at + 4 + size
        text = data[at + 18 : at + HEAD]
        sequence = int(text, 16) & _SEQUENCE if _HEX.issuperset(text) else -1
        while row is not None and row[0] < sequence:
            row = next(found, None)
        headers = row[2] if row is not None and row[0] == sequence else b""
        if len(headers) > 2 and size + 4 + len(headers) <= _LARGEST:
            out.append(_PREFIX.pack(size + 4 + len(headers), HEADED) + data[at + 8 : at + HEAD])
            out.append(_LENGTH.pack(len(headers)) + headers + data[at + HEAD : after])
            row = next(found, None)
        else:
            out.append(data[at:after])
        at = after
    return b"".join(out)


def decode_headed(
    data: Buffer, start: int, stop: int
) -> tuple[list[tuple[int, int, bytes, bytes, bytes]], int]:
    """Return the run of whole frames of type 3 at `start` as (timestamp, attempts, id, body, headers), and its end."""
    if start < 0:
        raise ValueError(f"start {start} is negative")
    view = as_bytes(data)
    stop = min(stop, len(view), _LARGEST)
    messages = []
    at = start
    while stop - at >= HEAD + 4:
        size, kind = _PREFIX.unpack_from(view, at)
        if size < 34 or kind != HEADED or size > stop - at - 4:
            break
        (length,) = _LENGTH.unpack_from(view, at + HEAD)
        if length > size - 34:
            break
        timestamp, tries, identity = _STAMP.unpack_from(view, at + 8)
        begin, after = at + HEAD + 4, at + 4 + size
        messages.append((timestamp, tries, identity, view[begin + length : after], view[begin : begin + length]))
        at = after
    return messages, at


def strip_headers(frame: Buffer) -> tuple[bytes, bytes]:
    """Return a frame as that of a plain message, and its headers; a frame without headers as it is.

    Raises `ValueError` when a frame of type 3 is not whole.
    """
    data = as_bytes(frame)
    if len(data) < HEAD or _PREFIX.unpack_from(data)[1] != HEADED:
        return data, b""
    messages, end = decode_headed(data, 0, len(data))
    if len(messages) != 1 or end != len(data):
        raise ValueError(f"frame of {len(data)} bytes is no whole message with headers")
    body, headers = messages[0][3:]
    return _PREFIX.pack(len(body) + 30, MESSAGE) + data[8:HEAD] + body, headers
