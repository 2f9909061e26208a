"""The pairs of a stream entry as the body of a message, and back.

An entry of one pair whose field is the topic's body field is the plain value. Any other entry is the RESP array of its
words. Where a topic keeps fields as JSON, entries of distinct UTF-8 fields are a JSON object of strings instead.
"""

from __future__ import annotations

import json
from typing import Final

from lapwing import kernel

BODY_FIELD: Final = b"data"

_WORDS: Final = 2**31 - 1


def to_body(words: list[bytes], field: bytes = BODY_FIELD, *, as_json: bool = False) -> bytes:
    """Return the body of an entry, given as field, value, field, value and so on."""
    if len(words) == 2 and words[0] == field and words[1] and not _misread(words[1], as_json):
        return words[1]
    if as_json:
        body = _to_json(words)
        if body is not None:
            return body
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def to_pairs(body: bytes, field: bytes = BODY_FIELD, *, as_json: bool = False) -> list[bytes]:
    """Return the field, value, field, value and so on of a body, whoever published it."""
    if words := _words_of(body):
        return words
    if as_json:
        pairs = _from_json(body)
        if pairs is not None:
            return pairs
    return [field, body]


def pairs_of(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of an entry that is kept as the RESP array of its words; none of another body."""
    words = _words_of(body)
    return list(zip(words[::2], words[1::2], strict=True))


def _words_of(body: bytes) -> list[bytes]:
    """Return the words of a body that is the RESP array of an entry; none of another one."""
    if not body.startswith(b"*"):
        return []
    words, end = kernel.split_words(body, 0, _WORDS)
    return words if len(words) % 2 == 0 and end == len(body) else []


def fields_of(body: bytes) -> dict[str, str | list[str]]:
    """Return the fields of such an entry for people and JSON; a field that comes again has the list of its values.

    Bytes that are not UTF-8 are written as `\\xhh`.
    """
    found: dict[str, str | list[str]] = {}
    for name, value in pairs_of(body):
        field, text = (word.decode("utf-8", "backslashreplace") for word in (name, value))
        before = found.get(field)
        if before is None:
            found[field] = text
        else:
            found[field] = [*(before if isinstance(before, list) else [before]), text]
    return found


def _misread(value: bytes, as_json: bool) -> bool:
    return kernel.is_pairs(value) or (as_json and _from_json(value) is not None)


def _to_json(words: list[bytes]) -> bytes | None:
    """Return the JSON object of an entry; None if another entry has the same JSON."""
    try:
        fields = [word.decode() for word in words]
    except UnicodeDecodeError:
        return None
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    if 2 * len(pairs) != len(fields):
        return None
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode()


def _from_json(body: bytes) -> list[bytes] | None:
    """Return the pairs of a JSON object of strings; None if `body` is anything else."""
    if not body.startswith(b"{"):
        return None
    try:
        found = json.loads(body, object_pairs_hook=list)
        words = [word.encode() for pair in found for word in pair]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return words if words and len({field for field, _ in found}) == len(found) else None
