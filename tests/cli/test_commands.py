"""Commands from functions: parsing, help, completion; without a process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from lapwing.cli.commands import Argument, Command, Group, Option, UsageError, command, run

SEEN: list[dict[str, Any]] = []


@dataclass(frozen=True)
class Where:
    address: Annotated[list[str] | None, Option("--address", metavar="HOST:PORT", help="Where.")] = None
    secret: Annotated[str, Option(env="SECRET", help="A secret.")] = ""


@command(example="lapwing try it")
def attempt(
    first: Annotated[str, Argument(help="The first.", choices=("it", "that"))],
    rest: Annotated[list[str] | None, Argument(help="The others.")] = None,
    count: Annotated[int, Option("--count", "-n", min=1, max=9, help="How many.")] = 3,
    share: Annotated[float, Option(help="A share.")] = 0.5,
    fast: Annotated[bool, Option("--fast/--slow", help="Be fast, or slow.")] = True,
    file: Annotated[Path | None, Option(help="A file.")] = None,
    wait: Annotated[float, Option(min=0.5, max=90, duration=True, help="A time.")] = 60,
    kind: Annotated[str, Option(complete=lambda text: ["red", "green"], help="A colour.")] = "red",
    where: Where = Where(),  # noqa: B008
) -> None:
    """Try something.

    A second paragraph."""
    SEEN.append(dict(locals()))


def called(*words: str) -> dict[str, Any]:
    SEEN.clear()
    attempt.run("lapwing try", words)
    return SEEN[0]


def test_options_stand_before_between_and_behind_arguments() -> None:
    seen = called("-n5", "it", "--share=0.25", "x", "--slow", "y", "--file", "/tmp/f", "--address", "a", "--address=b")

    assert (seen["first"], seen["rest"], seen["count"]) == ("it", ["x", "y"], 5)
    assert (seen["share"], seen["fast"]) == (0.25, False)
    assert seen["file"] == Path("/tmp/f")
    assert seen["where"] == Where(["a", "b"], "")


def test_what_is_not_given_has_its_default() -> None:
    assert called("it") == {"first": "it", "rest": None, "count": 3, "share": 0.5, "fast": True, "file": None,
                            "wait": 60, "kind": "red", "where": Where()}  # fmt: skip


def test_a_duration_is_written_with_its_unit_and_comes_as_seconds() -> None:
    assert called("it", "--wait", "1.5s")["wait"] == 1.5
    assert called("it")["wait"] == 60
    assert "--wait DURATION      A time. [default: 1m0s]" in attempt.help_text("lapwing try", 70)


def test_two_dashes_end_the_options() -> None:
    assert called("it", "--", "--slow", "--help")["rest"] == ["--slow", "--help"]
    assert called("it", "-")["rest"] == ["-"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "FIRST is missing"),
        (["other"], "FIRST other: expected it or that"),
        (["it", "--count", "many"], "--count many: expected a whole number"),
        (["it", "--count", "0"], "--count 0: expected 1 or more"),
        (["it", "--count", "10"], "--count 10: expected 9 or less"),
        (["it", "--share", "half"], "--share half: expected a number"),
        (["it", "--share", "nan", "--count", "nan"], "--count nan: expected a whole number"),
        (["it", "--count"], "--count needs a value"),
        (["it", "--fast=yes"], "--fast takes no value"),
        (["it", "--cuont", "1"], "there is no option --cuont; did you mean --count?"),
        (["it", "--cou", "1"], "there is no option --cou; did you mean --count?"),
        (["it", "-x"], "there is no option -x"),
        (["it", "--wait", "30"], '--wait: invalid duration "30": the unit is missing, write 30s'),
        (["it", "--wait", "10ms"], "--wait 10ms: expected 500ms or more"),
        (["it", "--wait", "2m"], "--wait 2m: expected 1m30s or less"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_allowed(words: list[str], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        attempt.run("lapwing try", words)

    assert str(caught.value).startswith(why)


def test_a_required_argument_behind_a_repeated_one_gets_the_last_word() -> None:
    def move(sources: Annotated[list[str], Argument()], target: Annotated[str, Argument()]) -> None:
        """Move."""

    made = Command(move, name="move", example="lapwing move")

    assert made.parse(["a", "b", "c"]) == {"sources": ["a", "b"], "target": "c"}
    with pytest.raises(UsageError, match="SOURCES is missing"):
        made.parse(["a"])


def test_too_many_arguments_are_named() -> None:
    def one(word: Annotated[str, Argument()]) -> None:
        """One."""

    with pytest.raises(UsageError, match="'b' is one argument too many"):
        Command(one, name="one", example="").parse(["a", "b"])


def test_help_has_defaults_environment_and_example() -> None:
    said = attempt.help_text("lapwing try", 70)

    assert said.startswith("Usage: lapwing try [OPTIONS] FIRST [REST...]\n\nTry something.\n\nA second paragraph.\n")
    assert "  -n, --count INTEGER  How many. [default: 3]" in said
    assert "  --fast / --slow      Be fast, or slow. [default: --fast]" in said
    assert "[environment: SECRET]" in said
    assert said.endswith("Example: lapwing try it")
    assert max(len(line) for line in said.splitlines()) <= 70


def test_a_usage_error_ends_with_status_2_and_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    group = Group("some", "Some commands.", example="lapwing some try")
    group.commands["try"] = attempt
    with pytest.raises(SystemExit) as ended:
        run(group, "lapwing some", ["try", "--bogus"])
    said = capsys.readouterr().err
    with pytest.raises(SystemExit) as unknown:
        run(group, "lapwing some", ["tyr"])

    assert (ended.value.code, unknown.value.code) == (2, 2)
    assert said.startswith("Usage: lapwing some try [OPTIONS] FIRST")
    assert "did you mean try?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "i", ["it"]),
        (["it"], "--co", ["--count"]),
        (["it", "--kind"], "", ["red", "green"]),
        (["it", "--kind"], "g", ["green"]),
        (["it"], "--kind=g", ["--kind=green"]),
        (["--count", "3"], "th", ["that"]),
        (["--fast"], "th", ["that"]),
        (["it", "x"], "y", []),
    ],
)
def test_completion_knows_options_values_and_arguments(words: list[str], incomplete: str, found: list[str]) -> None:
    assert attempt.complete(words, incomplete) == found
