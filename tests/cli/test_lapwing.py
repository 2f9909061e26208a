"""The `lapwing` command itself: its help, its completion, its reference."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commanding import PROGRAM, environment, lapwing, process

from documents import script
from lapwing import __version__
from lapwing.cli import main
from lapwing.cli.commands import SCRIPTS, Group
from lapwing.names import NSQ_VERSION
from lapwing.tools.terminal import Terminal

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_ends_with_an_example() -> None:
    said = process("--help").stdout

    for name in main.COMMANDS:
        assert f"  {name} " in said
    assert "Example: " in said


def test_help_loads_no_command() -> None:
    code = "import sys; sys.argv = ['lapwing', '--help']\nfrom lapwing.cli.main import main\n" \
           "try: main()\nexcept SystemExit: pass\n" \
           "print([name for name in sys.modules if name in ('asyncio', 'lapwing.client', 'pyspark')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.splitlines()[-1] == "[]"


def test_the_version_says_which_number_is_whose() -> None:
    said = lapwing("--version").stdout

    assert said.startswith(f"lapwing {__version__} (speaks NSQ {NSQ_VERSION}'s protocol; ")
    assert "kernel" in said


def test_looking_at_topics_loads_no_heavy_library() -> None:
    """They cost more than the command itself."""
    code = "import sys; sys.argv = ['lapwing', 'topics', '--nsqd-http-address', '127.0.0.1:1']\n" \
           "from lapwing.cli.main import main\n" \
           "try: main()\nexcept SystemExit: pass\n" \
           "print([name for name in sys.modules if name in ('httpx', 'typer', 'rich', 'pydantic', 'uvloop')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.splitlines()[-1] == "[]"


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_full_disk_under_the_output_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                              env=environment(PYTHONUNBUFFERED=unbuffered), check=False)

    assert (done.returncode, done.stderr) == (1, "lapwing: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", [
    "nsq_stat -topic=t -channel=c -nsqd-http-address=127.0.0.1:1",
    "to_nsq -topic=t -nsqd-tcp-address=127.0.0.1:1",
    "lapwing pub t x --nsqd-tcp-address=127.0.0.1:1",
])
def test_closed_standard_streams_lead_nowhere(command: str, closed: str) -> None:
    """Not to a socket that got the number of one of them: the event loop would end the process for that."""
    done = subprocess.run(["bash", "-c", f"exec {Path(PROGRAM).parent}/{command} {closed}"], stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, timeout=30, check=False)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_query_without_an_archive_fails_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.spark.session.local_session", lambda name: pytest.fail("Spark starts"))
    monkeypatch.setattr("lapwing.cli.shared.NSQD_HTTP", "127.0.0.1:1")  # nobody is there, whatever runs on this machine
    said = lapwing("sql", "select 1", "--engine", "spark", "--archive", str(tmp_path), code=2).stderr

    assert said.startswith(f"lapwing: {tmp_path}: no archive is there; `lapwing pipeline run archive` writes one")


def test_a_query_with_a_mistake_fails_before_anything_of_spark_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapwing.cli.pipeline.spark_needed", lambda: pytest.fail("Spark is loaded"))
    spark = lapwing("sql", "selct 1", "--engine", "spark", "--archive", str(tmp_path), code=2).stderr
    duckdb = lapwing("sql", "selct 1", "--archive", str(tmp_path), code=2).stderr

    assert spark.startswith("lapwing: sql: line 1: selct is no statement of SQL; did you mean select?")
    assert duckdb.startswith('lapwing: sql: syntax error at or near "selct"')


def test_an_unknown_command_is_a_usage_error_that_helps() -> None:
    said = lapwing("topcs", code=2).stderr

    assert "there is no command 'topcs'; did you mean topics? `lapwing --help` explains" in said


def _every_command() -> list[str]:
    found = []
    for name in main.COMMANDS:
        command = main.load(name)
        found.append(name)
        found += [f"{name} {sub}" for sub in (command.commands if isinstance(command, Group) else ())]
    return found


@pytest.mark.parametrize("path", _every_command())
def test_every_command_explains_itself_with_an_example(path: str) -> None:
    said = lapwing(*path.split(), "--help").stdout

    assert f"Usage: lapwing {path}" in said
    assert f"Example: lapwing {path.split()[0]}" in said


def completed(*words: str) -> list[str]:
    return process("__complete", *words).stdout.split()


def test_the_shell_completes_commands_options_and_choices() -> None:
    assert completed("chan") == ["channels", "channel"]
    assert completed("pub", "--d") == ["--defer"]
    assert completed("bench", "f") == ["fanout"]
    assert completed("up", "--durability", "") == ["memory", "os", "fsync"]
    assert completed("up", "--durability=f") == ["--durability=fsync"]
    assert completed("pipeline", "run", "ar") == ["archive"]
    assert completed("nonsense", "x") == []


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_completion_script_calls_the_program(shell: str) -> None:
    assert "lapwing __complete" in lapwing("completion", shell).stdout


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(lapwing("completion", "bash").stdout)
    code = f"""PATH={Path(PROGRAM).parent}:$PATH; source {tmp_path}/script
        COMP_WORDS=(lapwing bench f); COMP_CWORD=2; _lapwing_complete; echo ${{COMPREPLY[@]}}"""
    said = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.split() == ["fanout"]


def test_the_reference_in_the_docs_is_what_the_programs_say() -> None:
    written = (ROOT / "docs" / "reference" / "cli.md").read_text()

    assert written == script("reference.py").reference(), "run: .venv/bin/python scripts/reference.py"


def test_the_status_of_pipelines_fits_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "archive"
    home.mkdir()
    (home / "lock").touch()
    status = {"name": "archive", "kind": "archive", "state": "finished", "batch_id": 1200, "batch_ms": 2078,
              "lag": 12_345, "input_rate": 64.2, "batch_at_ms": 1000 * (int(time.time()) - 8), "error": "no heap space"}
    (home / "status.json").write_text(json.dumps(status))
    monkeypatch.setattr("lapwing.tools.terminal.Terminal.of", lambda stream: Terminal(width=80))
    shown = lapwing("pipeline", "status", "--data", str(tmp_path)).stdout.splitlines()

    assert shown[0].split() == ["pipeline", "kind", "state", "pid", "batch", "took", "ended", "msg/s", "lag"]
    assert max(map(len, shown)) <= 80
    assert "2.1s" in shown[1]
    assert "12,345" in shown[1]
    assert shown[2] == "  no heap space"
    refused = lapwing("pipeline", "status", "lake", "--data", str(tmp_path), code=2).stderr
    assert "no pipeline lake has run" in refused
    assert "there are: archive" in refused


def test_a_pipeline_that_waits_for_its_broker_shows_that(tmp_path: Path) -> None:
    shown = lapwing("pipeline", "run", "archive", "--nsqd", "127.0.0.1:1", "--set", "retry=1s", "--data", str(tmp_path),
                    "--out", str(tmp_path / "lake"), code=2).stderr  # fmt: skip

    assert "is it running?" in shown.splitlines()[0]
    assert "no nsqd answers: 127.0.0.1:1" in shown.splitlines()[-1]
