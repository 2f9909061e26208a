"""The check of docstrings, comments, log lines and flag help finds what it is for, and nothing else."""

from pathlib import Path
from types import ModuleType

import pytest

from documents import script


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return script("check-prose")


def rules(checker: ModuleType, tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / "module.py"
    path.write_text(source)
    return [finding.rule for finding in checker.check_file(path)]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What stands here."""', "docstring begins with 'What'"),
        ('class A:\n    """Those who wait."""', "docstring begins with 'Those'"),
        ('def f():\n    """The number of it."""', "docstring of a function begins without a verb"),
        ('def f():\n    """Return the topic.\n\n    It tells others."""', "'tells' in a docstring"),
        ("x = 1  # as we said before", "'said' in a comment"),
        ('log.info(f"{name} goes on")', "'goes on' in a log line"),
        ('raise ValueError(f"{name}: say which topic")', "'say' in a text"),
        ('x: int = option(0, "most topics; 0: any")', "flag help begins without a verb"),
        ('x: int = option(0, "keep what was told")', "'told' in flag help"),
    ],
)
def test_each_rule_finds_its_mistake(checker: ModuleType, tmp_path: Path, source: str, rule: str) -> None:
    assert rules(checker, tmp_path, source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        '"""The routes of one daemon."""',
        'def f():\n    """Return the topic; `tell` is a name here."""',
        'class A:\n    @property\n    def f(self):\n        """Whether it is paused."""',
        'x: int = option(0, "create at most this many topics; 0: any number")',
        'raise ValueError(f"{name}: name the topic")',
        'print("told")',
        'log.info("the disk takes writes again")',
    ],
)
def test_plain_english_passes(checker: ModuleType, tmp_path: Path, source: str) -> None:
    assert rules(checker, tmp_path, source) == []


def test_a_page_is_checked_but_for_names(checker: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The word `tell` is a name.\nThe log says so.\n")

    assert [(finding.line, finding.rule) for finding in checker.check_file(page)] == [(2, "'says' in a page")]


def test_clean_rooms_stay_clean_and_no_room_that_is_clean_may_fail(
    checker: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checker.main([]) == 0, capsys.readouterr().out
