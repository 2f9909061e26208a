"""Pages for developers name modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lapwing"


@pytest.mark.parametrize(("page", "least"), [("ARCHITECTURE.md", 30), ("CONTRIBUTING.md", 5), ("docs/admin.md", 4)])
def test_every_module_that_a_page_names_exists(page: str, least: int) -> None:
    rooms = "|".join(sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
    text = (ROOT / page).read_text()
    named = set(re.findall(rf"`((?:{rooms})(?:/[a-z_]+)+)(?![a-z_*])", text))

    missing = [
        name
        for name in sorted(named)
        if not any((SOURCE / name).with_suffix(suffix).exists() for suffix in (".py", ".pyx"))
        and not (SOURCE / name).is_dir()
    ]
    assert len(named) >= least
    assert missing == []
