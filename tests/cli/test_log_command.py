"""`lapwing log`: exit codes and what is printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lapwing import kernel
from lapwing.log.datapath import DataPath
from lapwing.log.log import DiskLog, Extra


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """A data path with one topic of three messages."""
    log = DiskLog(tmp_path / "topics" / "t-orders", 1)
    bodies = [b"one", b"\xff\xfe", "drei ä".encode()]
    log.append(kernel.frame_bodies(bodies, 1 << 54, 5), 3, now=5, extras=[Extra(2, 0, {"k": "v"})])
    log.close()
    return tmp_path


def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "lapwing.cli.main", "log", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


def damage(data_path: Path) -> None:
    path = data_path / "topics" / "t-orders" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def test_verify_says_that_all_is_well(data_path: Path) -> None:
    done = run("verify", data_path)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "orders: 3 messages [0, 3), 114 bytes in 1 segment",
        "no problem found",
    ]


@pytest.mark.parametrize("command", ["verify", "repair", "export"])
def test_a_directory_that_is_no_data_path_is_not_well(tmp_path: Path, command: str) -> None:
    done = run(command, tmp_path)

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"neither nsqd.dat nor topics" in done.stderr


def test_verify_finds_repair_sets_aside_and_export_gets_out_what_is_left(data_path: Path) -> None:
    damage(data_path)

    done = run("verify", data_path, "--topic", "orders", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["ok"], report["problems"][0]["lost"], report["topics"][0]["topic"]) == (False, 3, "orders")
    assert run("export", data_path).returncode == 1
    done = run("repair", data_path)
    assert done.returncode == 0
    assert b"set aside to" in done.stdout
    done = run("verify", data_path)
    assert (done.returncode, b"3 set aside" in done.stdout) == (0, True)
    assert run("repair", data_path).stdout == b"nothing to repair\n"


def test_export_prints_bodies_or_json(data_path: Path) -> None:
    assert run("export", data_path).stdout == b"one\n\xff\xfe\n" + "drei ä\n".encode()

    lines = [json.loads(line) for line in run("export", data_path, "--json", "--from", 1).stdout.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2]
    assert (lines[0]["body"], lines[0]["body_base64"]) == (None, "//4=")
    assert (lines[1]["body"], lines[1]["headers"]) == ("drei ä", {"k": "v"})


def test_export_writes_to_a_file(data_path: Path, tmp_path: Path) -> None:
    assert run("export", data_path, "--to", 1, "--output", tmp_path / "out").returncode == 0
    assert (tmp_path / "out").read_bytes() == b"one\n"


def test_what_is_asked_for_wrongly_ends_with_two(data_path: Path) -> None:
    assert run("verify", data_path / "nowhere").returncode == 2
    done = run("verify", data_path, "--topic", "nothing")
    assert (done.returncode, b"no topic nothing" in done.stderr) == (2, True)
    assert run("verify").returncode == 2
    held = DataPath(data_path)
    done = run("repair", data_path)
    assert (done.returncode, b"in use by another instance of nsqd, process" in done.stderr) == (2, True)
    held.release()


def test_help_shows_examples() -> None:
    for command in ("verify", "repair", "export"):
        assert b"Example: lapwing log " + command.encode() in run(command, "--help").stdout
