"""The `lapwing` command itself: its help, its completion, its reference."""

import subprocess
import sys
from pathlib import Path

import pytest
from commanding import PROGRAM, environment, lapwing, process

from lapwing.cli import main, reference

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_ends_with_an_example() -> None:
    said = process("--help").stdout

    for name in ("up", "pub", "sub", "tail", "peek", "topics", "channels", "top", "bench", "check", "doctor"):
        assert f"  {name} " in said
    assert "Example: " in said


def test_help_loads_no_command() -> None:
    code = "import sys; sys.argv = ['lapwing', '--help']\nfrom lapwing.cli.main import main\n" \
           "try: main()\nexcept SystemExit: pass\n" \
           "print([name for name in sys.modules if name in ('httpx', 'asyncio', 'lapwing.client', 'pyspark')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.splitlines()[-1] == "[]"


def test_version_names_the_kernel() -> None:
    assert "kernel" in lapwing("--version").stdout


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


def test_an_unknown_command_is_a_usage_error_that_helps() -> None:
    said = lapwing("topcs", code=2).stderr

    assert "No such command 'topcs'" in said


def _every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in ("up", "pub", "sub", "tail", "peek", "topics", "channels", "top", "bench", "check", "doctor"):
        found.append((name,))
        found += [(name, sub) for sub in getattr(main.load(name), "commands", {})]
    return found


@pytest.mark.parametrize("path", _every_command(), ids=" ".join)
def test_every_command_explains_itself_with_an_example(path: tuple[str, ...]) -> None:
    command = main.load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    said = command.make_context(" ".join(path), [], resilient_parsing=True).get_help()

    assert f"Example: lapwing {path[0]}" in said


def test_the_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = environment(_LAPWING_COMPLETE="complete_bash", COMP_WORDS=" ".join(("lapwing", *words)),
                            COMP_CWORD=str(len(words)))
        return subprocess.run([PROGRAM], env=asked, capture_output=True, text=True, check=False).stdout.split()

    assert completed("chan") == ["channels"]
    assert "--defer" in completed("pub", "--d")
    assert "fanout" in completed("bench", "f")


def test_the_reference_in_the_docs_is_what_the_programs_say() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()

    assert written == reference.reference(), "run: python -m lapwing.cli.reference > docs/cli.md"
