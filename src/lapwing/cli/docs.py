"""lapwing docs: the documents that came with this installation."""

import sys
import sysconfig
from pathlib import Path
from typing import Annotated

from lapwing.cli.commands import Argument, Option, command, guess
from lapwing.errors import ConfigError

# folders of docs/, and what they are called
KINDS = {
    "tutorials": "Tutorials",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "zh": "中文",
}


def folder() -> Path:
    """Return the folder with README.md and docs/: the clone that this runs from, or the installed copy."""
    clone = Path(__file__).parents[3]
    if (clone / "docs" / "explanation").exists():
        return clone
    return Path(sysconfig.get_path("data")) / "share" / "doc" / "lapwing"


def pages() -> dict[str, Path]:
    """Return the pages by name: `readme`, `operations`, `why`, `zh/redis`."""
    return {name: path for group in _groups().values() for name, path in group.items()}


def _groups() -> dict[str, dict[str, Path]]:
    """Return the pages by name, those of each kind together."""
    root = folder()
    found = {"lapwing": {path.stem.lower(): path for path in sorted(root.glob("*.md"))}}
    for kind, heading in KINDS.items():
        prefix = "zh/" if kind == "zh" else ""
        found[heading] = {prefix + path.stem: path for path in sorted((root / "docs" / kind).rglob("*.md"))}
    return found


@command(example="lapwing docs troubleshooting")
def app(
    page: Annotated[str, Argument(help="The page, such as operations.", complete=lambda text: list(pages()))] = "",
    path: Annotated[bool, Option("--path", help="Print where the page is, instead of the page.")] = False,
) -> None:
    """Show a page of the documents, or list all pages. They come with lapwing, so they fit this version."""
    found = pages()
    if not found:
        raise ConfigError(f"the documents are not installed: {folder()} is missing")
    if not page:
        width = max(map(len, found))
        for heading, group in _groups().items():
            print(f"{heading}:")
            for name, place in group.items():
                print(f"  {name:<{width}}  {place if path else _title(place)}")
        return
    folders, _, name = page.lower().removesuffix(".md").rpartition("/")
    if "zh" in folders.split("/"):
        name = f"zh/{name}"
    if name not in found:
        raise ConfigError(f"there is no page {page}{guess(name, list(found)) or ';'} `lapwing docs` lists them")
    if path:
        print(found[name])
        return
    text = found[name].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
    else:
        print(text, end="")


def _title(place: Path) -> str:
    with place.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")
