"""Records one after the other: damage costs what is damaged, and no sound record behind it."""

from random import Random

import pytest

from lapwing.log import records
from lapwing.log.records import HEAD, MAGIC

BLOCK = 256 << 10  # what is read at once


class Bytes:
    """A file in memory that counts what is read."""

    path = "memory"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.bytes_read = 0

    def read(self, size: int, offset: int) -> bytes:
        found = self._data[offset : offset + size]
        self.bytes_read += len(found)
        return found


def sound(data: bytes) -> list[bytes]:
    """The payloads of a stream, which has no gap and no overlap."""
    found, at = [], 0
    for begin, payload, end in records.stream(Bytes(data), 0, len(data)):  # type: ignore[arg-type]
        assert begin == at < end
        at = end
        if payload is not None:
            found.append(payload)
    assert at == len(data)
    return found


@pytest.mark.parametrize("size", [1, 1000, BLOCK - HEAD, BLOCK, 3 * BLOCK])
@pytest.mark.parametrize("garbage", [1, 3, HEAD, 50_000, BLOCK - 2, 2 * BLOCK])
def test_a_record_behind_garbage_is_found_wherever_the_blocks_end(size: int, garbage: int) -> None:
    payloads = [Random(number).randbytes(size) for number in range(3)]
    data = records.encode(payloads[0]) + bytes(garbage) + b"".join(map(records.encode, payloads[1:]))

    assert sound(data) == payloads


def test_a_magic_number_in_garbage_hides_nothing() -> None:
    payload = Random(1).randbytes(BLOCK)
    lie = MAGIC + (100).to_bytes(4, "little") + bytes(4)
    wide = MAGIC + BLOCK.to_bytes(4, "little") + bytes(4)
    for garbage in (MAGIC, lie + bytes(1000), wide + bytes(1000), wide + lie + wide + bytes(BLOCK)):
        assert sound(garbage + records.encode(payload) + records.encode(b"x")) == [payload, b"x"]


def test_garbage_full_of_beginnings_is_read_in_bounded_time() -> None:
    data = (MAGIC + (BLOCK + 500).to_bytes(4, "little") + bytes(4)) * (3 * BLOCK // 12)
    file = Bytes(data)
    for _ in records.stream(file, 0, len(data)):  # type: ignore[arg-type]
        pass

    assert file.bytes_read < 200 * BLOCK
