"""The content of an MPUB: where it ends. The answer to the content of any publish that is wrong.

The count inside decides, as in NSQ: several client libraries declare a body that is too short. A body that is longer
than its messages is refused.
"""

import struct
from typing import Final

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq.limits import Limits

_INT32: Final = struct.Struct(">i")


def refusal(word: str, error: PublishRefused, size: int, limits: Limits) -> ProtocolError:
    """Return the answer to the body, of `size` bytes, of a command that the kernel refuses.

    NSQ reads bytes behind the last message as commands, so that the body of a message may become a command.
    """
    which = "message" if word == "HPUB" else f"message({max(error.index, 0)})"
    if error.code == kernel.BAD_COUNT:
        return ProtocolError("E_BAD_BODY", f"{word} invalid message count {error.value}")
    if error.code == kernel.BAD_SIZE:
        return ProtocolError("E_BAD_MESSAGE", f"{word} invalid {which} body size {error.value}")
    if error.code == kernel.TOO_BIG:
        return ProtocolError("E_BAD_MESSAGE", f"{word} message too big {error.value} > {limits.max_message}")
    if error.code == kernel.HEADERS_TOO_BIG:
        return ProtocolError("E_BAD_MESSAGE", f"{word} {which} headers too big {error.value} > {kernel.MAX_HEADERS}")
    if error.code == kernel.BAD_HEADERS:
        lengths = "with names in lower case of at most 64 characters and a message-id of at most 128 bytes"
        needed = f"a JSON object of strings, {lengths}"
        return ProtocolError("E_BAD_MESSAGE", f"{word} {which} headers are not {needed}")
    if error.code == kernel.SHORT:
        return ProtocolError("E_BAD_BODY", f"{word} body size {size} ends inside {which}")
    return ProtocolError("E_BAD_BODY", f"{word} body size {size} does not match its {error.value} bytes")


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
                raise self._refusal(kernel.BAD_COUNT, count)
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
            raise self._refusal(kernel.BAD_SIZE, size)
        if size > limits.max_message:
            raise self._refusal(kernel.TOO_BIG, size)
        bodies = begin + size - 4 * (self.index + 2)  # without the count and the sizes, which a client may leave out
        if bodies > limits.max_body:
            raise ProtocolError("E_BAD_BODY", f"MPUB body too big {bodies} > {limits.max_body}")
        return begin + size + behind - len(body)

    def surplus(self, size: int) -> ProtocolError:
        """Return the answer to a declared body of `size` bytes that is longer than its messages."""
        return self._refusal(kernel.SURPLUS, self.end, size)

    def _refusal(self, code: int, value: int, size: int = 0) -> ProtocolError:
        return refusal("MPUB", PublishRefused(code, self.index, value), size, self._limits)

    def unread(self, body: bytes | bytearray) -> ProtocolError:
        """Return the answer to a client that sends nothing after `body`, with messages missing."""
        if not self.count:
            return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
        if len(body) < self.end + 4:
            return ProtocolError("E_BAD_MESSAGE", f"MPUB failed to read message({self.index}) body size")
        return ProtocolError("E_BAD_MESSAGE", "MPUB failed to read message body")
