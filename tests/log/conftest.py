"""A log to write to, on disk and in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lapwing.log.log import DiskLog, TopicLog
from lapwing.log.memory import MemoryLog

from .writing import NODE


@pytest.fixture(params=["disk", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> TopicLog:
    """The disk log and its twin."""
    makers: dict[str, Callable[[], TopicLog]] = {
        "disk": lambda: DiskLog(tmp_path / "topic", NODE),
        "memory": lambda: MemoryLog(NODE),
    }
    return makers[request.param]()
