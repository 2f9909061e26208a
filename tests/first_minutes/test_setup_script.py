"""scripts/setup on machines that lack something: one sentence with the remedy."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for script in ("setup", "set-up-functions"):
        shutil.copy(ROOT / "scripts" / script, tmp_path / "scripts")
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    return tmp_path


def refused(clone: Path, **environment: str) -> str:
    done = subprocess.run(
        [clone / "scripts" / "setup"], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert not (clone / ".venv").exists()
    return done.stderr


def test_no_python_is_one_sentence(clone: Path) -> None:
    said = refused(clone, PYTHON="python-that-is-not-there")

    assert said.count("\n") == 1
    assert "install Python 3.11 or newer" in said


def test_an_old_python_is_one_sentence(clone: Path) -> None:
    old = clone / "python3"
    old.write_text('#!/bin/sh\ntest "$1" = --version && echo Python 3.9.2 || exit 1\n')
    old.chmod(0o755)
    said = refused(clone, PYTHON=str(old))

    assert said.count("\n") == 1
    assert "Python 3.9.2 is too old: lapwing needs 3.11 or newer" in said


def test_little_disk_is_one_sentence(clone: Path) -> None:
    said = refused(clone, LAPWING_SETUP_MB="999999999")

    assert said.count("\n") == 1
    assert "999999999 are needed: free some space" in said


def test_uv_uses_the_index_and_the_certificates_of_pip(clone: Path) -> None:
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    settings = "global.cert='/etc/company.crt'\nglobal.index-url='https://mirror.invalid/simple'"
    stubs = {"python": f"case \"$*\" in '-m pip config list') echo \"{settings}\";; esac",
             "uv": f'echo "$SSL_CERT_FILE $UV_DEFAULT_INDEX" >> {clone}/seen'}  # fmt: skip
    for name, lines in stubs.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    subprocess.run([clone / "scripts" / "setup"], env=environment, check=True, timeout=60, capture_output=True)

    assert (clone / "seen").read_text().splitlines() == ["/etc/company.crt https://mirror.invalid/simple"] * 2


def test_a_terminal_shows_how_long_a_silent_step_has_been_running(clone: Path) -> None:
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    os.mkfifo(clone / "built")
    for name, line in {"python": "exit 0", "uv": f"case \"$*\" in *' -e .') read word < {clone}/built;; esac"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    terminal, script = pty.openpty()
    running = subprocess.Popen([clone / "scripts" / "setup"], stdout=script, stderr=script)
    os.close(script)
    shown = b""
    while not re.search(rb" \d+ s", shown.partition(b"4/4")[2]):  # a busy machine may leave a second out
        shown += os.read(terminal, 4096)
    (clone / "built").write_text("go\n")
    while b"set-up: done" not in shown:
        shown += os.read(terminal, 4096)

    assert running.wait(timeout=30) == 0
    os.close(terminal)


def test_the_bars_of_uv_are_shown_without_its_list_of_packages(tmp_path: Path) -> None:
    colour, plain = "\\033[32m", "\\033[39m"
    uv = tmp_path / "uv"
    uv.write_text(f"""#!/bin/sh
        test -t 2 || exit 9
        printf 'Preparing packages... (1/2)\\r\\033[2K' >&2
        printf 'Installed 2 packages\\n {colour}+{plain} one==1.0\\n' >&2
        printf ' - two==1.0\\n + two==2.0\\n' >&2
        exit 3
    """)
    uv.chmod(0o755)
    terminal, child = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "without-package-list", uv], stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux reports the end of the child so
        while data := os.read(terminal, 4096):
            shown += data

    assert running.wait(timeout=30) == 3
    assert b"(1/2)" in shown
    assert b"Installed 2 packages" in shown
    assert b"==" not in shown
    os.close(terminal)
