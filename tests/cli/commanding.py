"""The `lapwing` command as a person calls it: in a process of its own, or, for speed, in this one."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from daemons import Daemon
from lapwing.cli import main

PROGRAM = str(Path(sys.executable).parent / "lapwing")

Done = subprocess.CompletedProcess[str]


def environment(daemon: Daemon | None = None, **more: str) -> dict[str, str]:
    """The shell's environment, with the daemon's addresses where commands look for them."""
    known = {"LAPWING_NSQD_HTTP": daemon.http, "LAPWING_NSQD_TCP": daemon.tcp} if daemon is not None else {}
    return {**os.environ, **known, **more}


def process(*arguments: str, daemon: Daemon | None = None, stdin: bytes = b"", code: int = 0) -> Done:
    """A command's output, run as a process; the test fails when it ends with another code than expected."""
    done = subprocess.run([PROGRAM, *arguments], env=environment(daemon), input=stdin, capture_output=True, timeout=60,
                          check=False)
    return _checked(arguments, done.returncode, done.stdout, done.stderr, code)


def lapwing(*arguments: str, daemon: Daemon | None = None, code: int = 0) -> Done:
    """The same within this process, which costs no start."""
    out, errors = io.BytesIO(), io.BytesIO()
    status = 0
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(out, write_through=True)) as shown,
        contextlib.redirect_stderr(io.TextIOWrapper(errors, write_through=True)) as complained,
        mock.patch.object(sys, "argv", ["lapwing", *arguments]),
        mock.patch.dict(os.environ, environment(daemon)),
    ):
        try:
            main.main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        shown.flush()
        complained.flush()
        return _checked(arguments, status, out.getvalue(), errors.getvalue(), code)


def _checked(arguments: tuple[str, ...], status: int, out: bytes, errors: bytes, expected: int) -> Done:
    told = subprocess.CompletedProcess(arguments, status, out.decode(), errors.decode())
    assert status == expected, f"lapwing {' '.join(arguments)}: {status}\n{told.stdout}\n{told.stderr}"
    return told


def lapwing_json(*arguments: str, daemon: Daemon | None = None, code: int = 0) -> Any:
    """What a command says with --json."""
    return json.loads(lapwing(*arguments, "--json", daemon=daemon, code=code).stdout)
