"""A daemon that is stopped while it starts ends, wherever in its start it is."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# the signal comes in the finalizer of an object, where Python drops exceptions
START = """
import os, sys

class Freed:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[-1]))
        for _ in range(100):
            pass

class Imports:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncio":
            Freed()

sys.meta_path.insert(0, Imports())
from lapwing.cli.PROGRAM import main
main()
"""
FLAGS = {
    "nsqd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
    "nsqlookupd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
    "nsqadmin": ["--http-address=127.0.0.1:0", "--lookupd-http-address=127.0.0.1:1"],
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", FLAGS)
def test_a_signal_ends_a_program_that_starts(program: str, number: signal.Signals, tmp_path: Path) -> None:
    start = [sys.executable, "-c", START.replace("PROGRAM", program), *FLAGS[program], str(int(number))]
    ended = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
