"""benchmarks/report.py refuses to write figures that mislead."""

import os
import subprocess
import sys
from pathlib import Path

REPORT = Path(__file__).parents[2] / "benchmarks" / "report.py"


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, REPORT, *arguments], env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_the_pure_kernel_is_refused() -> None:
    done = run("--stdout", LAPWING_PURE="1")

    assert done.returncode == 1
    assert done.stdout == ""
    assert "this is the pure Python kernel" in done.stderr
    assert "unset LAPWING_PURE" in done.stderr


def test_one_table_alone_is_not_written_into_the_page() -> None:
    done = run("--only", "pub")

    assert done.returncode == 2
    assert "add --stdout" in done.stderr
