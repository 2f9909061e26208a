"""Pages for developers name modules, classes and functions that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lapwing"
SUFFIXES = (".py", ".pyx", ".pxi")
ROOMS = "|".join(sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
MODULE = re.compile(rf"`((?:{ROOMS})(?:/[a-z_]+)+)(?![a-z_*])")
NAME_IN_MODULE = re.compile(rf"`((?:{ROOMS})(?:/[a-z_]+)*)\.((?!(?:py|pyx|pxi|dat)`)[A-Za-z_]+(?:\.[a-z_]+)*)`")
CLASS = re.compile(r"`((?:[A-Z][a-z]+){2,}|[A-Z][a-z]+(?=\.))((?:\.[a-z_]+)?)`")
DECISIONS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "decisions").glob("*.md"))


def sources(module: str) -> str:
    """The text of a module, or of all modules of a room; empty if there is none."""
    found = [path for suffix in SUFFIXES if (path := (SOURCE / module).with_suffix(suffix)).exists()]
    folder = SOURCE / module
    return "\n".join(path.read_text() for path in (*found, *folder.glob("*.py")))


@cache
def files() -> list[str]:
    return [path.read_text() for path in SOURCE.rglob("*.p*") if path.suffix in SUFFIXES]


def defines(text: str, name: str) -> bool:
    """Whether a source text has a class, a function, a constant or an attribute of this name."""
    defined = rf"\b(?:def|class) {name}\b|\bcp?def (?:\w+ )*{name}\("
    assigned = rf"^ *(?:self\.)?{name}\b[^\n(]*=|^ *{name}: "
    return bool(re.search(f"{defined}|{assigned}", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("ARCHITECTURE.md", 30),
        ("CONTRIBUTING.md", 5),
        ("docs/reference/admin.md", 4),
        *((page, 0) for page in DECISIONS),
    ],
)
def test_every_module_and_class_that_a_page_names_exists(page: str, least: int) -> None:
    text = (ROOT / page).read_text()
    modules = sorted(set(MODULE.findall(text)))
    names = sorted(set(NAME_IN_MODULE.findall(text)))
    classes = sorted(set(CLASS.findall(text)))

    missing = [module for module in modules if not sources(module)]
    missing += [
        f"{module}.{name}"
        for module, name in names
        if not all(defines(sources(module), part) for part in name.split("."))
    ]
    missing += [
        name + member
        for name, member in classes
        if not any(
            re.search(rf"\bclass {name}\b", source) and (not member or defines(source, member[1:]))
            for source in files()
        )
    ]
    assert len(modules) >= least
    assert missing == []
