"""The content of an MPUB: where it ends, and the answer to a content that is wrong.

The count inside decides, as in NSQ: several client libraries declare a body that is too short. A body that is longer
than its messages is refused.
"""

import struct
from typing import Final

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq.limits import Limits

_INT32: Final = struct.Struct(">i")


def refusal(error: PublishRefused, size: int, limits: Limits) -> ProtocolError:
    """Return the answer to a body of `size` bytes that the kernel refuses."""
    if error.code == kernel.BAD_COUNT:
        return _bad_count(error.value)
    if error.code == kernel.BAD_SIZE:
        return _bad_size(error.index, error.value)
    if error.code == kernel.TOO_BIG:
        return _too_big(error.value, limits)
    if error.code == kernel.SHORT:
        return _short(size, max(error.index, 0))
    return surplus(size, error.value)


def surplus(size: int, actual: int) -> ProtocolError:
    """Return the answer to a body that is longer than its messages.

    NSQ reads the surplus bytes as commands, so that the body of a message may become a command.
    """
    return ProtocolError("E_BAD_BODY", f"MPUB body size {size} does not match its {actual} bytes")


class Content:
    """The messages of a body, checked as far as they have arrived."""

    __slots__ = ("_limits", "count", "end", "index")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0  # 0 until it can be read
        self.index = 0  # of the first message that is not whole
        self.end = 0  # where the whole messages end

    def missing(self, body: bytes | bytearray) -> int:
        """Return how many bytes more it takes, at least, until every message is whole.

        Raises `ProtocolError` at a bad message. `body` is all that has arrived so far.
        A message that was found whole once is not checked again.
        """
        limits = self._limits
        if not self.count:
            if len(body) < 4:
                return 4 - len(body)
            (count,) = _INT32.unpack_from(body)
            if not 0 < count <= limits.max_count:
                raise _bad_count(count)
            self.count = count
            self.end = 4
        whole, self.end = kernel.mpub_run(body, self.end, self.count - self.index, limits.max_message)
        self.index += whole
        if self.index == self.count:
            return 0
        begin = self.end + 4
        behind = 5 * (self.count - self.index - 1)  # bytes that the messages after this one take at least
        if len(body) < begin:
            return begin + 1 + behind - len(body)
        size: int = _INT32.unpack_from(body, self.end)[0]
        if size <= 0:
            raise _bad_size(self.index, size)
        if size > limits.max_message:
            raise _too_big(size, limits)
        bodies = begin + size - 4 * (self.index + 2)  # without the count and the sizes, which a client may leave out
        if bodies > limits.max_body:
            raise ProtocolError("E_BAD_BODY", f"MPUB body too big {bodies} > {limits.max_body}")
        return begin + size + behind - len(body)

    def unread(self, body: bytes | bytearray) -> ProtocolError:
        """Return the answer to a client that sends nothing after `body`, with messages missing."""
        if not self.count:
            return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
        if len(body) < self.end + 4:
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
