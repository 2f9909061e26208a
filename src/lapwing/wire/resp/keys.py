"""Keys and groups of Redis as names of topics and channels, one to one.

A name has 1 to 64 of `A-Za-z0-9._-`. Each other byte of a key is written `_hh_`, its two hex digits between
underscores, and so is an underscore that would be read as the begin of such an escape: `orders:new` is the topic
`orders_3a_new`. Keys of database n > 0 are the topics that begin with `_db<n>_`. A topic that no key gives has no key.
"""

from __future__ import annotations

import re
from typing import Final

from lapwing import names

DATABASES: Final = 16

_PLAIN: Final = re.compile(rb"[.a-zA-Z0-9-]+")  # needs no second look: no underscore
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_HEX: Final = frozenset(b"0123456789abcdef")
_UNDERSCORE: Final = ord("_")
_ESCAPE: Final = re.compile(r"_([0-9a-f]{2})_")
_DATABASE: Final = re.compile(r"_db([1-9]|1[0-5])_")


def topic_of(key: bytes, database: int = 0) -> str | None:
    """Return the topic of a key; None if the key is empty or its name would be too long."""
    name = _escape(key)
    if database:
        name = f"_db{database}_{name}"
    elif _DATABASE.match(name):
        name = "_5f_" + name[1:]
    return name if key and len(name) <= names.LONGEST else None


def key_of(topic: str) -> tuple[bytes, int] | None:
    """Return the key and the database of a topic; None if no key gives it."""
    database = _DATABASE.match(topic)
    number = int(database[1]) if database else 0
    key = _unescape(topic[database.end() :] if database else topic)
    return (key, number) if key is not None and topic_of(key, number) == topic else None


def channel_of(group: bytes) -> str | None:
    """Return the channel of a group; None if the group is empty or its name would be too long."""
    name = _escape(group)
    return name if group and len(name) <= names.LONGEST else None


def group_of(channel: str) -> bytes | None:
    """Return the group of a channel; None if no group gives it."""
    group = _unescape(channel)
    return group if group is not None and channel_of(group) == channel else None


def _escape(key: bytes) -> str:
    if len(key) > names.LONGEST or _PLAIN.fullmatch(key):
        return key.decode("latin-1")  # one that is too long stays so
    parts = []
    for at, byte in enumerate(key):
        if byte not in _SAFE or (byte == _UNDERSCORE and _reads_as_escape(key, at)):
            parts.append(f"_{byte:02x}_")
        else:
            parts.append(chr(byte))
    return "".join(parts)


def _reads_as_escape(key: bytes, at: int) -> bool:
    """Return whether the underscore there would stand before two hex digits and another underscore."""
    if len(key) < at + 4 or not _HEX.issuperset(key[at + 1 : at + 3]):
        return False
    return key[at + 3] == _UNDERSCORE or key[at + 3] not in _SAFE


def _unescape(name: str) -> bytes | None:
    try:
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name).encode("latin-1")
    except UnicodeEncodeError:
        return None
