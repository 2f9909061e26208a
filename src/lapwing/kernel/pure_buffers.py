"""Arguments of the byte loops in plain Python: the bytes, and places in them."""

Buffer = bytes | bytearray | memoryview


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
