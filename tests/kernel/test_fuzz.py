"""The fuzzer itself: every target runs, and a failure leaves its input behind."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import fuzz_files
import pytest


@pytest.mark.parametrize("target", fuzz_files.TARGETS)
def test_a_few_cases_of_each_target_find_nothing(target: str) -> None:
    for seed in range(40):
        _, error = fuzz_files.case(target, seed)
        assert error is None, f"seed {seed}: {error}"


def test_a_target_runs_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_files.watch("twins", 1, 0.2, tmp_path)

    assert "nothing found" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(random: Random) -> Iterator[bytes]:
        yield random.randbytes(3)
        raise ZeroDivisionError

    monkeypatch.setitem(fuzz_files.TARGETS, "broken", broken)
    monkeypatch.setattr(fuzz_files.subprocess, "run", lambda command, check: _worked(command))
    assert not fuzz_files.watch("broken", 7, 1, tmp_path)

    (path,) = tmp_path.iterdir()
    failure = json.loads(path.read_text())
    assert (failure["target"], failure["seed"]) == ("broken", 7)
    assert failure["input"] == [repr(Random(7).randbytes(3))]
    assert "ZeroDivisionError" in failure["error"]


class _Done:
    def __init__(self, returncode: int) -> None:
        self.returncode = returncode


def _worked(command: list[str]) -> _Done:
    """What the process would have done, done here."""
    named = dict(zip(command[2::2], command[3::2], strict=True))
    return _Done(fuzz_files.work(named["--target"], int(named["--seed"]), float(named["--seconds"]), named["--work"]))
