"""The code blocks and tables of README.md and docs/, for tests that run and compare them."""

import re
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NEXT_HEADING = re.compile(r"^#+ ", re.MULTILINE)
LANGUAGES = ("sh", "python", "yaml", "json")


def script(name: str) -> ModuleType:
    """The module of a Python program in scripts/."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Block:
    """A code block of a page; `first` is its first line, by which tests know it."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return re.split(r"\s+#", self.text.partition("\n")[0])[0].strip()

    def __str__(self) -> str:
        return f"{self.page}: {self.first}"


def pages() -> list[str]:
    """Every page but docs/reference/cli.md, which is made from the programs."""
    docs = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*/**/*.md"))]
    return [
        *sorted(path.name for path in ROOT.glob("README*.md")),
        *(page for page in docs if not page.startswith("docs/decisions/") and not page.endswith("/cli.md")),
    ]


def blocks(page: str) -> list[Block]:
    """The blocks of a page that have a language."""
    found = _FENCE.findall((ROOT / page).read_text())
    return [Block(page, language, joined(text)) for language, text in found if language]


def joined(text: str) -> str:
    """Return a text with commands of several lines in one each."""
    return re.sub(r" \\\n\s*", " ", text)


def block(page: str, first: str) -> Block:
    """The block of a page that begins with this line."""
    (found,) = [each for each in blocks(page) if each.first == first]
    return found


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of each row of the table below a heading, without the table's head."""
    _, _, text = (ROOT / page).read_text().partition(f"# {heading}\n")
    assert text, f"{page} has no heading {heading!r}"
    lines = _NEXT_HEADING.split(text)[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"][2:]


def security_table(section: str) -> list[list[str]]:
    """The rows of a table of docs/reference/security.md."""
    return table("docs/reference/security.md", section)
