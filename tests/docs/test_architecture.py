"""ARCHITECTURE.md names modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lapwing"


def test_every_module_that_the_architecture_names_exists() -> None:
    rooms = "|".join(sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(rf"`((?:{rooms})(?:/[a-z_]+)+)", text))

    missing = [
        name
        for name in sorted(named)
        if not any((SOURCE / name).with_suffix(suffix).exists() for suffix in (".py", ".pyx"))
        and not (SOURCE / name).is_dir()
    ]
    assert len(named) > 30
    assert missing == []
