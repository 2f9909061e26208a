"""`lapwing dead` and `lapwing pending` on two real nsqds that one nsqlookupd knows."""

import os
import pty
import subprocess
from typing import Any

import pytest
from commanding import PROGRAM, environment, lapwing
from pairing import Pair

from asking import ask
from daemons import until
from lapwing.cli.commands import UsageError
from lapwing.cli.dead_targets import LetterFlags
from lapwing.cli.pending import PendingFlags

HOUR = 3_600_000


def deferred(pair: Pair, *bodies: str, node: int = 0) -> str:
    """A topic on both nodes whose channel c has deferred messages on one."""
    topic = pair.topic()
    for body in bodies:
        status, _ = ask(pair.nodes[node], "POST", f"/pub?topic={topic}&defer={HOUR}", body.encode())
        assert status == 200
    return topic


def dead(pair: Pair, *bodies: str, reason: str = "no good") -> str:
    """A topic on both nodes whose channel c gave messages up on the first one."""
    topic = deferred(pair, *bodies)
    pair.run("pending", "reject", f"{topic}/c", "--state", "deferred", "--reason", reason, "--yes")
    until(lambda: pair.names(f"{topic}.c.dead"), what="the dead-letter topic in discovery")
    return topic


def letters(pair: Pair, topic: str) -> int:
    counts = {each["topic"]: each["letters"] for each in ask(pair.nodes[0], "GET", "/dead")[1]["topics"]}
    return int(counts[f"{topic}.c.dead"])


def answers(pair: Pair, *words: str) -> list[Any]:
    """The answer of each node, the first node's first; None where the command left a node out."""
    found = {each["node"]: each["answer"] for each in pair.json(*words)}
    return [found.get(node.http) for node in pair.nodes]


def test_a_dead_letter_topic_that_is_not_there_yet_is_explained(pair: Pair) -> None:
    explained = pair.run("dead", "show", "orders.billing.dead", code=1)

    assert "a topic 'orders.billing.dead'; the first dead letter of a channel creates it" in explained


def test_pending_messages_are_listed_with_their_state_on_every_node(pair: Pair) -> None:
    topic = deferred(pair, "one", '{"two": 2}')
    table = pair.run("pending", "list", f"{topic}/c")
    bodies = pair.run("pending", "ls", f"{topic}/c", "--bodies", "--state", "deferred", "--count", "1")
    first, second = answers(pair, "pending", "list", f"{topic}/c")

    assert table.count(" deferred ") == 2
    assert f"{pair.nodes[1].http}: 0 in flight, 0 ready, 0 deferred" in table
    assert "one" in bodies
    assert "two" not in bodies
    assert [entry["state"] for entry in first["entries"]] == ["deferred"] * 2
    assert second["entries"] == []


def test_messages_are_claimed_finished_and_cancelled_by_id_and_by_state(pair: Pair) -> None:
    topic = deferred(pair, "one", "two", "three", "four")
    entries = answers(pair, "pending", "list", f"{topic}/c")[0]["entries"]
    ids = [entry["id"] for entry in entries]
    dry = pair.run("pending", "claim", f"{topic}/c", ids[0], "--dry-run")
    asked = pair.run("pending", "claim", f"{topic}/c", ids[0], code=2)
    claimed = pair.run("pending", "claim", f"{topic}/c", ids[0], "--yes")
    finished = answers(pair, "pending", "finish", f"{topic}/c", ids[1], "--yes")
    again = pair.run("pending", "finish", f"{topic}/c", ids[1], "--yes", code=1)
    by_limit = answers(pair, "pending", "cancel", f"{topic}/c", "--limit", "1", "--yes")
    cancelled = pair.run("pending", "cancel", f"{topic}/c", "--yes")

    assert "would make 1 message ready" in dry
    assert "Give --yes" in asked
    assert f"{pair.nodes[0].http}  done: make 1 message ready" in claimed
    assert f"{pair.nodes[1].http}  nothing to do" in claimed
    assert [each["claimed"] for each in finished] == [1, 0]
    assert f"{ids[1]} was left alone: not pending: finished" in again
    assert [each["ids"] for each in by_limit] == [[ids[2]], []]
    assert "done: cancel 1 message" in cancelled
    assert lapwing("sub", topic, "c", "-n", "1", daemon=pair.nodes[0]).stdout == "one\n"
    assert pair.channel(topic)["deferred"] == 0


def test_messages_are_cancelled_by_the_message_id_of_their_publisher(pair: Pair) -> None:
    topic = deferred(pair, "one")
    for node, job in ((pair.nodes[0], "job-1"), (pair.nodes[1], "job-2")):
        lapwing("pub", topic, "x", "--header", f"message-id={job}", daemon=node)
    named = ("--message-id", "job-1", "--message-id", "job-2")
    dry = pair.run("pending", "cancel", f"{topic}/c", *named, "--dry-run")
    asked = pair.run("pending", "cancel", f"{topic}/c", *named, code=2)
    cancelled = answers(pair, "pending", "cancel", f"{topic}/c", *named, "--yes")
    again = pair.run("pending", "cancel", f"{topic}/c", "--message-id", "job-1", "--yes", code=1)

    assert dry.count("would cancel 1 message") == 2
    assert f"This will cancel 2 messages of {topic}/c" in asked
    assert [each["message_ids"] for each in cancelled] == [["job-1"], ["job-2"]]
    assert "job-1 was left alone: no message with this id waits here" in again
    assert (pair.channel(topic)["depth"], pair.channel(topic)["deferred"]) == (0, 1)
    mixed = pair.run("pending", "cancel", f"{topic}/c", "0f1a2b3c4d5e6f70", "--message-id", "job-1", code=2)
    assert "leave out ids and --limit" in mixed
    assert "--message-id is empty" in pair.run("pending", "cancel", f"{topic}/c", "--message-id", "", code=2)


def test_messages_are_deferred_and_wrong_choices_are_one_sentence(pair: Pair) -> None:
    topic = deferred(pair, "one")
    before = answers(pair, "pending", "list", f"{topic}/c")[0]["entries"][0]["deadline"]
    pair.run("pending", "defer", f"{topic}/c", "--state", "deferred", "--by", "2m", "--yes")
    after = answers(pair, "pending", "list", f"{topic}/c")[0]["entries"][0]["deadline"]

    assert after < before
    assert "--by is missing" in pair.run("pending", "defer", f"{topic}/c", "--state", "deferred", code=2)
    assert "give ids, --state" in pair.run("pending", "claim", f"{topic}/c", code=2)
    assert "invalid duration" in pair.run("pending", "claim", f"{topic}/c", "--min-idle", "soon", code=2)
    assert "expected in_flight, ready or deferred" in pair.run("pending", "list", f"{topic}/c", "--state", "x", code=2)
    missing = pair.run("pending", "list", f"{topic}/nothing", code=1)
    assert "CHANNEL_NOT_FOUND: there is no such channel; `lapwing channels` lists them" in missing
    refused = pair.run("pending", "finish", f"{topic}/c", "nonsense", "--yes", code=2)
    assert "'nonsense' is no id of a message: 16 digits from 0 to f expected" in refused
    nobody = pair.run("pending", "finish", f"{topic}/c", "ffc0000000000000", "--yes", code=1)
    assert "ffc0000000000000 was left alone: an id of another node" in nobody


def test_dead_letters_are_listed_grouped_and_shown(pair: Pair) -> None:
    topic = dead(pair, '{"id": 1}', '{"id": 2}', reason="KeyError: \x1b[31mid")
    topics = pair.run("dead", "list")
    groups = pair.run("dead", "list", f"{topic}/c")
    shown = pair.run("dead", "show", f"{topic}/c", "--field", "/id=2")
    found = answers(pair, "dead", "show", f"{topic}.c.dead", "--count", "1")[0]
    nothing = pair.run("dead", "show", f"{topic}/c", "--reason", "expired")

    assert f"{topic}.c.dead" in topics
    assert f"{topic}/c" in groups
    assert "rejected" in groups
    assert "KeyError: \\x1b[31mid" in groups  # a terminal does not obey it
    assert "\x1b" not in shown
    assert '{"id": 2}' in shown
    assert '{"id": 1}' not in shown
    assert [letter["body"] for letter in found] == ['{"id": 1}']
    assert "no dead letters match" in nothing


def test_letters_are_redriven_with_a_filter_a_dry_run_and_a_limit(pair: Pair) -> None:
    topic = dead(pair, "one", "two", "three")
    dry = pair.run("dead", "redrive", f"{topic}/c", "--text", "t", "--dry-run")
    asked = pair.run("dead", "redrive", f"{topic}/c", code=2)
    done = pair.run("dead", "redrive", f"{topic}/c", "--text", "t", "--limit", "1", "--wait", "--yes")
    nothing = pair.run("dead", "redrive", f"{topic}/c", "--text", "nothing like it", "--yes")

    assert "would return 2 dead letters" in dry
    assert "no good" in dry
    assert "This will return 3 dead letters" in asked
    assert "done: 1 dead letter returned" in done
    assert "no dead letters match" in nothing
    assert lapwing("sub", topic, "c", "-n", "1", daemon=pair.nodes[0]).stdout == "two\n"
    assert letters(pair, topic) == 2


def test_one_letter_is_edited_and_a_redrive_is_shown_and_cancelled(pair: Pair) -> None:
    topic = dead(pair, "one", "two", "three")
    direct = ("--nsqd-http-address", pair.nodes[0].http)
    edited = ("dead", "redrive", f"{topic}/c", "--sequence", "1", "--body", "2", "--yes", "--wait")
    pair.run(*edited)
    delivered = lapwing("sub", topic, "c", "-n", "1", daemon=pair.nodes[0]).stdout
    lapwing("dead", "redrive", f"{topic}/c", "--rate", "1/h", "--yes", *direct)
    second = pair.run("dead", "redrive", f"{topic}/c", "--yes", code=1)
    until(lambda: "returned, " in pair.run("dead", "status", f"{topic}/c"), what="the first letter")
    status = answers(pair, "dead", "status", f"{topic}/c")
    cancelled = pair.run("dead", "cancel", f"{topic}/c")

    assert delivered == "2\n"
    assert "runs already" in second
    assert status[0]["state"] == "running"
    assert "cancelled: 1 dead letter returned" in cancelled
    assert letters(pair, topic) == 1
    assert "--sequence" in pair.run("dead", "redrive", f"{topic}/c", "--body", "x", code=2)


@pytest.mark.parametrize("flag", ["error", "text", "pattern", "since", "until", "source", "channel"])
def test_an_empty_condition_does_not_mean_all_letters(flag: str) -> None:
    with pytest.raises(UsageError, match=f"^--{flag} is empty: give a value, or leave it out for all letters$"):
        LetterFlags(**{flag: ""}).chosen("t/c")


@pytest.mark.parametrize("flag", ["holder", "min_idle"])
def test_an_empty_condition_does_not_mean_all_pending_messages(flag: str) -> None:
    with pytest.raises(UsageError, match=f"^--{flag.replace('_', '-')} is empty: give a value, or leave it out$"):
        PendingFlags(**{flag: ""}).members()


def test_letters_are_purged_after_asking(pair: Pair) -> None:
    topic = dead(pair, "one", "two")
    us, them = pty.openpty()
    os.write(us, b"y\n")
    words = [PROGRAM, "dead", "purge", f"{topic}/c", "--text", "one", "--wait", *pair.flags]
    done = subprocess.run(words, stdin=them, capture_output=True, text=True, env=environment(), timeout=60, check=True)
    os.close(us)
    os.close(them)

    assert f"drop 1 dead letter of {topic}/c for good" in done.stderr
    assert "done: 1 dead letter dropped" in done.stdout
    assert letters(pair, topic) == 1


def test_a_letter_of_one_node_needs_the_node(pair: Pair) -> None:
    topic = dead(pair, "one")
    other = deferred(pair, "two", node=1)
    for name in (topic, other):
        pair.run("settings", f"{name}/c", "dead_topic=shared.dead")
    pair.run("pending", "reject", f"{other}/c", "--state", "deferred", "--yes")
    ask(pair.nodes[0], "POST", f"/pub?topic={topic}&defer={HOUR}", b"three")
    pair.run("pending", "reject", f"{topic}/c", "--state", "deferred", "--yes")
    until(lambda: len(pair.names("shared.dead")) == 2, what="the dead-letter topic in discovery")
    refused = pair.run("dead", "show", "shared.dead", "--sequence", "0", code=1)
    node = pair.run("dead", "show", "shared.dead", "--sequence", "0", "--node", pair.nodes[1].http)
    own = pair.run("dead", "show", f"{topic}/c")

    assert "give --node" in refused
    assert "two" in node
    assert "three" in own
    assert "two" not in own


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--pattern", "("), "regular expression"),
        (("--pattern", "a{1000}{1000}"), "regular expression"),
        (("--field", "id=1"), "expected POINTER=VALUE"),
        (("--since", "whenever"), "since:"),
        (("--text", "x" * 2000), "at most 1024 characters"),
        (("--source", "elsewhere"), "leave --source"),
    ],
)
def test_a_filter_that_is_wrong_is_one_sentence(pair: Pair, words: tuple[str, str], sentence: str) -> None:
    topic = wrong_filters(pair)
    code = 2 if sentence.startswith(("expected", "leave")) else 1

    assert sentence in pair.run("dead", "show", f"{topic}/c", *words, code=code)
    assert letters(pair, topic) == 1


def wrong_filters(pair: Pair) -> str:
    """One topic for all of them."""
    if not _WRONG:
        _WRONG.append(dead(pair, "one"))
    return _WRONG[0]


_WRONG: list[str] = []


def test_names_are_one_sentence_and_completed(pair: Pair) -> None:
    topic = dead(pair, "one")

    def completed(*words: str) -> list[str]:
        done = subprocess.run([PROGRAM, "__complete", *words], env=environment(pair.nodes[0]), capture_output=True,
                              text=True, check=True)  # fmt: skip
        return done.stdout.split()

    assert "keeps no dead letters" in pair.run("dead", "show", topic, code=1)
    assert "there is no such channel" in pair.run("dead", "show", f"{topic}/nowhere", code=1)
    assert "knows a topic 'nowhere'" in pair.run("dead", "redrive", "nowhere", code=1)
    assert "no dead letters" in pair.run("dead", "list", f"{pair.topic()}/c")
    assert f"{topic}.c.dead" in completed("dead", "redrive", topic)
    assert f"{topic}/c" in completed("dead", "show", topic)
    assert completed("pending", "claim", f"{topic}/") == [f"{topic}/c"]
    assert completed("dead", "list", "--reason", "ex") == ["expired"]
    assert topic in completed("dead", "show", topic, "--source", topic)
    assert completed("dead", "") == ["list", "show", "redrive", "purge", "status", "cancel"]
