"""The pytest plugin: fixtures for tests of programs that use lapwing. pytest loads it where lapwing is installed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest imports this module in every run, so it imports nothing itself
    from lapwing.client.app import App
    from lapwing.testing import Broker, RunningApp


@pytest.fixture
def lapwing_broker() -> "Broker":
    """Return the real broker in this process, without sockets or disk, whose clock the test turns."""
    from lapwing.testing import Broker

    return Broker()


@pytest.fixture
def lapwing_app(lapwing_broker: "Broker") -> "Callable[[App], AbstractAsyncContextManager[RunningApp]]":
    """Return a function that runs an `App` on `lapwing_broker`: `async with lapwing_app(app) as shop`."""
    return lapwing_broker.run
