"""What is inside the body of an MPUB: refusals in the protocol's words, and bodies that are not what they say.

A body that holds exactly what it declares is never walked here; the kernel does that when it frames the messages.
"""

import struct
from typing import Final

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq.limits import Limits

_INT32: Final = struct.Struct(">i")


def refusal(error: PublishRefused, size: int, limits: Limits) -> ProtocolError:
    """What to answer when the kernel refuses a body of `size` bytes."""
    if error.code == kernel.BAD_COUNT:
        return _bad_count(error.value)
    if error.code == kernel.BAD_SIZE:
        return _bad_size(error.index, error.value)
    if error.code == kernel.TOO_BIG:
        return _too_big(error.value, limits)
    if error.code == kernel.SHORT:
        return _short(size, max(error.index, 0))
    return mismatch(size, error.value)


def mismatch(size: int, actual: int) -> ProtocolError:
    """The content is not as long as the body was said to be.

    NSQ goes by the content and reads what is left as commands, so that a slip of a producer, or the body of a message,
    becomes a command. We refuse.
    """
    return ProtocolError("E_BAD_BODY", f"MPUB body size {size} does not match its {actual} bytes")


def plausible(body: bytes, limits: Limits) -> bool:
    """Whether so many messages can be in there at all."""
    if len(body) < 4:
        return False
    (count,) = _INT32.unpack_from(body)
    return bool(0 < count <= limits.max_count and 4 + 5 * count <= len(body))


class Content:
    """The messages of a body, followed as far as they have come."""

    __slots__ = ("_limits", "count", "index", "position")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0  # 0 until it can be read
        self.index = 0  # of the message that comes next
        self.position = 0  # where that begins

    def follow(self, body: bytes | bytearray) -> int:
        """How many bytes more it takes, at least, until the content is complete; raises `ProtocolError` at a wrong one.

        `body` is all that has come so far, each time; what was followed once is not looked at again.
        """
        if not self.count:
            if len(body) < 4:
                return 4 - len(body)
            (count,) = _INT32.unpack_from(body)
            if not 0 < count <= self._limits.max_count:
                raise _bad_count(count)
            self.count = count
            self.position = 4
        while self.index < self.count:
            begin = self.position + 4
            if len(body) < begin:
                return begin - len(body)
            size: int = _INT32.unpack_from(body, self.position)[0]
            if size <= 0:
                raise _bad_size(self.index, size)
            if size > self._limits.max_message:
                raise _too_big(size, self._limits)
            if len(body) < begin + size:
                return begin + size - len(body)
            self.position = begin + size
            self.index += 1
        return 0

    def unread(self, body: bytes | bytearray) -> ProtocolError:
        """What to answer when nothing comes after `body`, and the content is not complete."""
        if not self.count:
            return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
        if len(body) < self.position + 4:
            return ProtocolError("E_BAD_MESSAGE", f"MPUB failed to read message({self.index}) body size")
        return ProtocolError("E_BAD_MESSAGE", "MPUB failed to read message body")


def _short(size: int, index: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"MPUB body size {size} ends inside message({index})")


def _bad_count(count: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"MPUB invalid message count {count}")


def _bad_size(index: int, size: int) -> ProtocolError:
    return ProtocolError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")


def _too_big(size: int, limits: Limits) -> ProtocolError:
    return ProtocolError("E_BAD_MESSAGE", f"MPUB message too big {size} > {limits.max_message}")
