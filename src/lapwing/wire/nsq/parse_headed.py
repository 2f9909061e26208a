"""The answers to an HPUB or HMPUB whose content is wrong."""

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq.limits import Limits


def refusal(word: str, error: PublishRefused, size: int, limits: Limits) -> ProtocolError:
    """Return the answer to the body, of `size` bytes, of a command that the kernel refuses."""
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
