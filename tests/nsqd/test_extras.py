"""An installation without the extras: what they are for is left out, or refused with how to get it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import daemons


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which cramjam and re2 are not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery, importlib.util\n"
        "found = importlib.machinery.PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    return None if name in ('cramjam', 're2') else found(name, path, target)\n"
        "importlib.machinery.PathFinder.find_spec = find_spec\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


def python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nsqd_grants_no_snappy_and_is_used_without(bare: dict[str, str], tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path, env=bare) as nsqd:
        assert "clients get no snappy: cramjam is not installed (pip install 'lapwing[snappy]')" in nsqd.stderr
        code = (
            "import asyncio\n"
            "from lapwing import Producer\n"
            "async def main():\n"
            f"    async with Producer({nsqd.tcp!r}, snappy=True) as producer:\n"
            "        await producer.publish('t', b'x')\n"
            "asyncio.run(main())\n"
        )
        refused = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **bare}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert "snappy is on, and cramjam is not installed: pip install 'lapwing[snappy]'" in refused.stderr
        python(code.replace(", snappy=True", ""), bare)


def test_an_auth_server_needs_re2(bare: dict[str, str]) -> None:
    done = subprocess.run(
        [*daemons.program("nsqd"), "--auth-http-address=127.0.0.1:1"], env={**os.environ, **bare},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--auth-http-address needs google-re2: pip install 'lapwing[re2]'" in done.stderr


def test_a_pattern_for_dead_letters_needs_re2(bare: dict[str, str]) -> None:
    code = (
        "from lapwing.broker.failures import dead_filter\n"
        "try:\n"
        "    dead_filter.parse({'pattern': 'a+'}, now=1)\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    assert "google-re2 is not installed here: pip install 'lapwing[re2]'" in python(code, bare)
