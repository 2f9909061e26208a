"""A stage to play on, in memory and on disk."""

from pathlib import Path

import pytest
from play import Stage


@pytest.fixture(params=["memory", "disk"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """A broker with its defaults."""
    return Stage(tmp_path if request.param == "disk" else None)
