"""docs/explanation/reliability.md names a test for every fault and every invariant, and each of them exists."""

import re

import pytest

from documents import ROOT, table

FILE = re.compile(r"`?(tests/[a-z_/]+\.py)`?: ((?:`?test_\w+`?(?:, )?)+)")


@pytest.mark.parametrize("heading", ["Faults", "Invariants"])
def test_every_test_that_the_table_names_exists(heading: str) -> None:
    rows = table("docs/explanation/reliability.md", heading)
    missing = []
    for what, cell in rows:
        found = FILE.findall(cell)
        assert sum(names.count("test_") for _, names in found) == cell.count("test_") - len(found), what
        for path, names in found:
            source = (ROOT / path).read_text()
            wanted = re.findall(r"test_\w+", names)
            missing += [f"{path}: {name}" for name in wanted if not re.search(rf"def {name}\b", source)]

    assert len(rows) >= 10
    assert not missing, f"mend the table {heading} of docs/explanation/reliability.md: {missing}"
