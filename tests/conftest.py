"""What all tests share."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # so that every folder of tests finds `daemons`

import daemons
import forking
from example_counts import examples

daemons.forks = forking.AVAILABLE

# a shell has its background jobs ignore Ctrl-C, and they hand that on to the programs that the tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the tests start hundreds of programs: without this cache each compiles all that it imports, three times its start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `make test` tries the same examples every time, so that only a change can turn it red; `make soak-long` searches for
# new ones, and `make quick` tries a fifth of them.
# An example takes longer where the machine is busy: that is no failure.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile(
    "same", settings.get_profile("search"), derandomize=True, database=None, max_examples=examples(100)
)
settings.load_profile("search" if os.environ.get("LAPWING_SOAK") else "same")


def pytest_collection_finish() -> None:
    """Have httpx, where tests use it, wait for longer than its 5 seconds: a busy machine is slow, not wrong."""
    if httpx := sys.modules.get("httpx"):
        vars(httpx._config.DEFAULT_TIMEOUT_CONFIG).update(dict.fromkeys(("connect", "read", "write", "pool"), 60.0))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nobody looks for cycles: a broker seldom does."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
