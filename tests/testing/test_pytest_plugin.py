"""The pytest plugin: loaded by its entry point, and without weight for programs that do not use it."""

import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from documents import ROOT
from lapwing import App
from lapwing.testing import Broker


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> None:
    """The plugin, also where lapwing was installed before it had one."""
    plugins = request.config.pluginmanager
    module = import_module("lapwing.pytest_plugin")
    if not plugins.is_registered(module):
        plugins.register(module, "lapwing")


def test_pytest_finds_it_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"lapwing": "lapwing.pytest_plugin"}


async def test_its_fixtures_run_an_app_on_the_broker(plugin: None, request: pytest.FixtureRequest) -> None:
    app, seen = App("127.0.0.1:1"), []

    @app.consumer("orders", "billing")
    async def bill(body: bytes) -> None:
        seen.append(body)

    broker = request.getfixturevalue("lapwing_broker")
    async with request.getfixturevalue("lapwing_app")(app) as shop:
        broker.publish("orders", b"1")
        (outcome,) = await shop.handle()

    assert isinstance(broker, Broker)
    assert shop.broker is broker
    assert (outcome.topic, outcome.channel, outcome.answer, seen) == ("orders", "billing", "finished", [b"1"])


def test_it_imports_nothing_of_lapwing_until_a_fixture_is_used() -> None:
    script = "import sys, lapwing.pytest_plugin; print(*(m for m in sys.modules if m.startswith('lapwing.')))"

    assert subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60).split() == [
        "lapwing.pytest_plugin"
    ]
