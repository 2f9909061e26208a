"""Sizes that a reader can hold in the head: a larger class is two."""

import ast
from pathlib import Path

import lapwing

ROOT = Path(lapwing.__file__).parent
MOST_LINES = 350


def class_sizes() -> dict[str, int]:
    """The lines of each class, by file and name."""
    return {
        f"{path.relative_to(ROOT)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_no_class_has_more_lines_than_a_reader_can_hold() -> None:
    sizes = class_sizes()

    assert sizes["broker/pending.py: Pending"] > 100
    assert {name: lines for name, lines in sizes.items() if lines > MOST_LINES} == {}


def test_the_module_of_channels_is_short() -> None:
    assert len((ROOT / "broker/channel.py").read_text().splitlines()) < MOST_LINES
