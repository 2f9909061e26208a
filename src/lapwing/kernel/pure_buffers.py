"""The parts that all byte loops in plain Python share: numbers of frames and refusals, bytes, and places in them."""

from typing import Final

Buffer = bytes | bytearray | memoryview

HEAD: Final = 34  # bytes of a frame before its body
MESSAGE: Final = 2  # frame type
HEADED: Final = 3  # frame type of a message with its headers

BAD_COUNT: Final = 1  # this and the next ones: why a batch is refused
BAD_SIZE: Final = 2
TOO_BIG: Final = 3
SHORT: Final = 4
SURPLUS: Final = 5
BAD_HEADERS: Final = 6
HEADERS_TOO_BIG: Final = 7


def flat(data: Buffer) -> Buffer:
    """Return the same bytes as a buffer of single bytes, which a view of larger items is not."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the bytes do not lie back to back")
    return view if view.ndim == 1 and view.format == "B" else view.tobytes()


def as_bytes(data: Buffer) -> bytes:
    """Return the same bytes as `bytes`."""
    return data if type(data) is bytes else bytes(flat(data))


def checked_place(start: int) -> int:
    """Return `start`. Raises `ValueError` if it is negative."""
    if start < 0:
        raise ValueError(f"start {start} is negative")
    return start
