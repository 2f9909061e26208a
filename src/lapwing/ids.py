"""Node and sequence to sixteen hex digits and back.

An id is `node << 54 | sequence` in lowercase hex: it rises with the sequence, and gives by arithmetic the message of
which node's log it names.
"""

import functools
import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

NODES: Final = 1024
SEQUENCE_BITS: Final = 54
MOST_SEQUENCE: Final = (1 << SEQUENCE_BITS) - 1
LENGTH: Final = 16

_DIGITS: Final = b"0123456789abcdef"


@functools.cache
def base(node: int) -> int:
    """Return the number of the node's sequence 0, one object for all topics."""
    return node << SEQUENCE_BITS


def encode(node: int, sequence: int) -> bytes:
    """Return the id of a message."""
    return b"%016x" % (node << SEQUENCE_BITS | sequence)


def decode(message_id: bytes) -> tuple[int, int]:
    """Node and sequence of an id; raises `ValueError` at anything but sixteen lowercase hex digits."""
    if len(message_id) != LENGTH or message_id.translate(None, _DIGITS):
        raise ValueError(f"id {message_id!r}: {LENGTH} lowercase hex digits needed")
    number = int(message_id, 16)
    return number >> SEQUENCE_BITS, number & MOST_SEQUENCE


def well_formed(message_ids: Sequence[bytes]) -> bool:
    """Return whether all of them, sixteen bytes each, are lowercase hex digits."""
    return not b"".join(message_ids).translate(None, _DIGITS)


def default_node(hostname: str) -> int:
    """Return the node number of a host that was given none: the one that NSQ takes."""
    digest = hashlib.md5(hostname.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODES
