"""topics, channels, top, check and doctor, as processes on real daemons."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import PROGRAM, lapwing, lapwing_json, process

from daemons import Daemon, nsqd, start_nsqlookupd, until


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        lapwing("pub", "orders", "one", "two", "three", daemon=running)
        assert lapwing("sub", "orders", "billing", "-n", "1", daemon=running).stdout == "one\n"
        lapwing("pub", "alone", "x", daemon=running)
        yield running


@pytest.mark.parametrize(
    "words", [("topics",), ("channels", "orders"), ("top", "-n", "1", "--interval", "0.2s"), ("check",)], ids=" ".join
)
def test_as_a_process_of_its_own(daemon: Daemon, words: tuple[str, ...]) -> None:
    said = process(*words, daemon=daemon)

    assert said.stdout
    assert said.stderr == ""


def test_topics_tells_what_waits_where(daemon: Daemon) -> None:
    said = lapwing("topics", daemon=daemon).stdout
    told = {topic["topic"]: topic for topic in lapwing_json("topics", daemon=daemon)}

    assert "no channel" in next(line for line in said.splitlines() if line.startswith("alone"))
    assert told["orders"]["channels"] == ["billing"]
    assert told["alone"]["depth"] == told["alone"]["waiting"] == 1
    assert (told["orders"]["depth"], told["orders"]["waiting"]) == (0, 2)


def test_rates_come_with_a_second_look(daemon: Daemon) -> None:
    told = lapwing_json("topics", "--rates", daemon=daemon)

    assert all(topic["in_per_second"] == 0.0 for topic in told)


def test_lapwings_own_topics_are_shown_to_those_who_ask(daemon: Daemon) -> None:
    lapwing("pub", "_lapwing_samples", "{}", daemon=daemon)

    def listed(*words: str) -> bool:
        top = json.loads(lapwing("top", "-n", "1", "--interval", "0.2s", "--json", *words, daemon=daemon).stdout)
        topics = [topic["topic"] for topic in lapwing_json("topics", *words, daemon=daemon)]
        assert ("_lapwing_samples" in top["topics"]) == ("_lapwing_samples" in topics)
        return "_lapwing_samples" in topics

    assert not listed()
    assert listed("--all")
    behind = ("check", "--lag-warning", "1")
    assert "_lapwing_samples" not in lapwing(*behind, daemon=daemon, code=1).stdout
    assert "_lapwing_samples" in lapwing(*behind, "--topic", "_lapwing_samples", daemon=daemon, code=1).stdout


def test_channels_tells_who_is_behind(daemon: Daemon) -> None:
    said = lapwing("channels", daemon=daemon).stdout
    (told,) = lapwing_json("channels", "orders", daemon=daemon)

    assert "no consumer" in said
    assert (told["depth"], told["messages"], told["clients"]) == (2, 3, 0)
    assert told["oldest_seconds"] > 0
    assert "no topic 'nope'" in lapwing("channels", "nope", daemon=daemon, code=1).stderr


def test_top_without_a_terminal_is_a_line_a_look(daemon: Daemon) -> None:
    lines = lapwing("top", "-n", "2", "--interval", "0.2s", daemon=daemon).stdout.splitlines()
    told = json.loads(lapwing("top", "-n", "1", "--interval", "0.2s", "--json", daemon=daemon).stdout)

    assert len(lines) == 2
    assert "waiting 2" in lines[0]
    assert set(told["topics"]) == {"orders", "alone"}


def test_check_speaks_in_exit_codes(daemon: Daemon) -> None:
    assert lapwing("check", daemon=daemon).stdout.startswith("OK: ")
    assert "2 messages behind" in lapwing("check", "--lag-warning", "2", daemon=daemon, code=1).stdout
    assert "| lag=2;1;2 " in lapwing("check", "--lag-warning", "1", "--lag-critical", "2", daemon=daemon, code=2).stdout
    assert lapwing("check", "--age-critical", "1ms", "--channel", "billing", daemon=daemon, code=2)
    assert lapwing("check", "--topic", "nope", daemon=daemon, code=3).stdout.startswith("UNKNOWN: no topic nope")
    assert lapwing("check", "--age-warning", "soon", daemon=daemon, code=3).stdout.startswith("UNKNOWN: --age-warning")
    assert "127.0.0.1:1" in lapwing("check", "--nsqd-http-address", "127.0.0.1:1", code=2).stdout
    assert lapwing_json("check", "--topic", "orders", daemon=daemon)["lag"] == 2


@pytest.mark.parametrize("arguments", [("--lag-warning", "many"), ("--bogus",), ("--age-critical", "soon")])
def test_check_calls_a_bad_option_unknown_and_not_critical(arguments: tuple[str, ...]) -> None:
    assert lapwing("check", *arguments, code=3).stdout.startswith("UNKNOWN: ")


def test_discovery_finds_the_nodes() -> None:
    with start_nsqlookupd() as lookupd, nsqd(lookupd_tcp_addresses=(lookupd.tcp,)) as daemon:
        lapwing("pub", "found", "x", daemon=daemon)
        address = ("--lookupd-http-address", lookupd.http)
        until(lambda: lapwing_json("topics", *address) != [], what="the topic in discovery")

        assert [topic["topic"] for topic in lapwing_json("topics", *address)] == ["found"]
        assert lapwing("sub", "found", "c", "-n", "1", *address).stdout == "x\n"
        # the command line counts for more than the environment
        assert lapwing("check", *address, daemon=daemon).stdout.startswith("OK")


def test_the_shell_completes_topics_and_channels(daemon: Daemon) -> None:
    def completed(*words: str) -> list[str]:
        return process("__complete", *words, daemon=daemon).stdout.split()

    assert completed("tail", "or") == ["orders"]
    assert completed("channels", "or") == ["orders"]
    assert completed("sub", "orders", "b") == ["billing"]
    assert completed("check", "--channel", "") == ["billing"]


def test_doctor_examines_the_machine(tmp_path: Path) -> None:
    # as its exit code depends on the machine, it is run without the checks of `process`
    done = subprocess.run([PROGRAM, "doctor", "--data", str(tmp_path), "--json"], capture_output=True, text=True,
                          check=False)
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}

    assert done.returncode in (0, 1)
    assert {"kernel", "file limit", "clock", "disk", "fsync", "Java and Spark"} <= set(findings)
    assert all(finding["advice"] for finding in findings.values() if finding["level"] != "fine")
