"""What all tests share."""

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that every folder of tests finds `daemons`

# a shell has its background jobs ignore Ctrl-C, and they hand that on to the programs that the tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nobody looks for cycles: a broker seldom does."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
