"""The frames of a broker: size, type and payload, all numbers big-endian."""

import struct
from typing import Final

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2
HEADED: Final = 3  # a message with its headers

_HEAD: Final = struct.Struct(">II")


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) + 4, kind) + payload


def response(payload: bytes) -> bytes:
    """Return the frame of an answer."""
    return _frame(RESPONSE, payload)


def error(payload: bytes) -> bytes:
    """Return the frame of a refusal."""
    return _frame(ERROR, payload)


OK: Final = response(b"OK")
OK_MESSAGE_ID: Final = response(b"OK message-id")  # and the topic recognises repeated ids
CLOSE_WAIT: Final = response(b"CLOSE_WAIT")
HEARTBEAT: Final = response(b"_heartbeat_")
