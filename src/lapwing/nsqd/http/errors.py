"""Turn errors of the broker and of its logs into HTTP answers. No route does this by itself."""

from __future__ import annotations

import errno
from typing import Final

from lapwing.errors import (
    BrokerError,
    ChannelFull,
    Draining,
    Exiting,
    LapwingError,
    LimitReached,
    LogError,
    MessageTooBig,
    NoSuchChannel,
    NoSuchHolder,
    NoSuchTopic,
    NotReplicated,
    NotSaved,
    OutOfMemory,
    ReadFailed,
    SettingRefused,
    WriteFailed,
)
from lapwing.net.server.answers import Refused

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_CODES: Final[tuple[tuple[type[LapwingError], int, str], ...]] = (
    (NoSuchTopic, 404, "TOPIC_NOT_FOUND"),
    (NoSuchChannel, 404, "CHANNEL_NOT_FOUND"),
    (MessageTooBig, 413, "MSG_TOO_BIG"),
    (Exiting, 503, "EXITING"),
)
_SENTENCES: Final[tuple[tuple[type[LapwingError], int], ...]] = (  # their texts are the message
    (SettingRefused, 400),
    (NotSaved, 503),
    (Draining, 503),
    (ChannelFull, 503),
    (NoSuchHolder, 404),
)


def refusal(error: BaseException) -> Refused | None:
    """Return the refusal that answers an error; None for an error that nobody expects."""
    if isinstance(error, Refused):
        return error
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return Refused(status, code)
    for kind, status in _SENTENCES:
        if isinstance(error, kind):
            return Refused(status, str(error))
    if isinstance(error, LimitReached):
        return Refused(403, f"TOO_MANY_{error.noun.upper()}")
    if isinstance(error, OutOfMemory):
        return Refused(503, "OUT_OF_MEMORY", reason=str(error))
    if isinstance(error, NotReplicated):
        return Refused(503, "NOT_REPLICATED", reason=str(error))
    if isinstance(error, LogError | OSError):
        return Refused(503, _disk_code(error), reason=str(error))
    return Refused(503, "REFUSED", reason=str(error)) if isinstance(error, BrokerError) else None


def _disk_code(error: LogError | OSError) -> str:
    if isinstance(error, WriteFailed | OSError) and error.errno in _FULL:
        return "DISK_FULL"
    return "READ_FAILED" if isinstance(error, ReadFailed) else "WRITE_FAILED"
