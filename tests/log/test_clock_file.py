"""The broker's time in a file: saved whole, and never a reason not to start."""

from pathlib import Path

import pytest

from lapwing.log.clock_file import FILE, ClockFile, SavedClock

SAVED = SavedClock("a boot", -(10**18), 3600 * 10**9)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    ClockFile(str(tmp_path)).save(SAVED)

    assert ClockFile(str(tmp_path)).load() == SAVED
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"null", b'{"boot": 1}', b'{"boot":1,"since_boot":{},"skew":1}']
)
def test_a_file_that_is_missing_or_damaged_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)

    assert ClockFile(str(tmp_path)).load() is None
