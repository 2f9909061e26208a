"""Places are counted in 32 bits: what lies around the last of them, in a file that is mostly hole."""

import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from twins import BASE, both, columns_of, room

from lapwing.kernel import pure

LAST = 2**31 - 1
RUN = pure.frame_bodies([b"1" * 50, b"2" * 50, b"3" * 50], BASE, 1)  # 84 bytes each


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[memoryview]:
    """2 GiB and a little of nothing, with three frames of which the second one ends at the last place."""
    path: Path = tmp_path_factory.mktemp("huge") / "hole"
    with path.open("wb") as file:
        file.truncate(2**31 + 4096)
        file.seek(LAST - 168)
        file.write(RUN)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        yield view
        view.release()
    path.unlink()


def test_a_scan_ends_at_the_last_place_that_32_bits_can_say(kernel: ModuleType, huge: memoryview) -> None:
    start = LAST - 168

    assert kernel.scan_frames(huge, start, len(huge)) == (array("i", [start, LAST - 84, LAST]), LAST)
    assert columns_of(kernel, huge, start, len(huge))[:2] == (2, LAST)
    assert [body[:1] for *_, body in kernel.decode_messages(huge, start, len(huge))[0]] == [b"1", b"2"]
    assert kernel.fins_of(huge, start, len(huge))[1:] == (2, LAST)


def test_a_slice_may_lie_anywhere(kernel: ModuleType, huge: memoryview) -> None:
    assert kernel.take_frames(huge, LAST - 168, len(huge), 9, 2**40) == (3, LAST + 84)
    assert kernel.take_frames(huge, LAST, len(huge), 9, 2**40) == (1, LAST + 84)


@pytest.mark.parametrize("start", [LAST - 84, LAST - 1, LAST, LAST + 1, 2**31 + 4095, 2**31 + 4096])
def test_the_twins_agree_around_the_edge(huge: memoryview, start: int) -> None:
    for name in ("scan_frames", "decode_messages", "fins_of"):
        both(name, huge, start, len(huge))
    both("decode_columns", huge, start, len(huge), 0, *room(3, 300))


def test_a_body_that_fits_no_frame_is_refused_before_it_is_copied(kernel: ModuleType, huge: memoryview) -> None:
    for body in (huge, huge[: LAST - 29]):
        with pytest.raises(OverflowError):
            kernel.frame_one(body, BASE, 1)
        with pytest.raises(OverflowError):
            kernel.frame_bodies([b"small", body], BASE, 1)
