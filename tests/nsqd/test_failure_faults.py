"""Bad input and faults around failures, dead letters and policies, on a real nsqd."""

import threading
import time
import urllib.error
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import daemons
from asking import ask
from daemons import Daemon, nsqd, until

HOUR = 3_600_000
_NUMBERS = count()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


def dead(daemon: Daemon, *bodies: bytes, settings: dict[str, object] | None = None) -> str:
    """A topic whose channel c has given messages up."""
    topic = f"t{next(_NUMBERS)}"
    for target in (f"/topic/create?topic={topic}", f"/channel/create?topic={topic}&channel=c"):
        assert ask(daemon, "POST", target)[0] == 200
    if settings is not None:
        assert ask(daemon, "PATCH", f"/channel/settings?topic={topic}&channel=c", settings)[0] == 200
    bury(daemon, topic, *bodies)
    return topic


def bury(daemon: Daemon, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        assert ask(daemon, "POST", f"/pub?topic={topic}&defer={HOUR}", body)[0] == 200
    claim = {"topic": topic, "channel": "c", "state": "deferred", "action": "reject"}
    status, answer = ask(daemon, "POST", "/channel/claim", claim)
    assert (status, answer["claimed"]) == (200, len(bodies))


def waiting(daemon: Daemon, topic: str) -> int | None:
    found = {each["topic"]: each["letters"] for each in ask(daemon, "GET", "/dead")[1]["topics"]}
    letters: int | None = found.get(topic)
    return letters


def test_a_pattern_that_would_run_for_ever_elsewhere_is_answered_at_once(daemon: Daemon) -> None:
    topic = dead(daemon, b"a" * 100_000 + b"!")
    began = time.monotonic()
    document = {"filter": {"pattern": "(a|a)*(a+)+$"}, "dry_run": True}
    status, answer = ask(daemon, "POST", f"/dead/redrive?topic={topic}.c.dead", document)

    assert (status, answer["letters"]) == (200, 0)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "document",
    [
        {"filter": {"sequences": list(range(10_001))}},
        {"filter": {"fields": {f"/{each}": 1 for each in range(17)}}},
        {"filter": {"fields": {"/a": {"b": 1}}}},
        {"filter": {"pattern": "x" * 2000}},
        {"filter": {"pattern": "(((a{100}){100}){100})"}},
        {"filter": {"reason": "bad luck"}},
        {"filter": {"since": "yesterday"}},
        {"filter": {"colour": "red"}},
        {"filter": []},
        {"rate": "fast"},
        {"limit": -1},
        {"to": "somewhere"},
        {"body": "x"},
        {"body": "", "filter": {"sequences": [0]}},
    ],
)
def test_a_bad_redrive_is_one_sentence_and_changes_nothing(daemon: Daemon, document: dict[str, object]) -> None:
    topic = dead(daemon, b"one")
    status, answer = ask(daemon, "POST", f"/dead/redrive?topic={topic}.c.dead", document)

    assert status == 400, answer
    assert "\n" not in answer["message"]
    assert ask(daemon, "GET", f"/dead/redrive?topic={topic}.c.dead")[0] == 404
    assert waiting(daemon, f"{topic}.c.dead") == 1


def test_a_dead_letter_topic_that_is_deleted_comes_again_with_the_next_letter(daemon: Daemon) -> None:
    topic = dead(daemon, b"one", b"two")
    name = f"{topic}.c.dead"
    assert ask(daemon, "POST", f"/dead/redrive?topic={name}", {"rate": "1/h"})[0] == 200
    until(lambda: ask(daemon, "GET", f"/dead/redrive?topic={name}")[1]["redriven"] == 1, what="the first letter")
    assert ask(daemon, "POST", f"/topic/delete?topic={name}")[0] == 200
    gone = ask(daemon, "GET", f"/dead/redrive?topic={name}")[0]
    bury(daemon, topic, b"three")
    until(lambda: waiting(daemon, name) == 1, what="the new letter")
    (letter,) = ask(daemon, "GET", f"/dead/letters?topic={name}")[1]["letters"]

    assert gone in (400, 404)
    assert letter["body"] == "three"
    assert ask(daemon, "GET", f"/dead/redrive?topic={name}")[0] == 404  # the old task is gone with its topic
    assert ask(daemon, "GET", "/ping") == (200, "OK")


def test_a_channel_that_is_deleted_keeps_its_letters_where_they_are(daemon: Daemon) -> None:
    topic = dead(daemon, b"one")
    name = f"{topic}.c.dead"
    assert ask(daemon, "POST", f"/channel/delete?topic={topic}&channel=c")[0] == 200
    assert ask(daemon, "POST", f"/dead/redrive?topic={name}", {})[0] == 200
    until(lambda: ask(daemon, "GET", f"/dead/redrive?topic={name}")[1]["state"] == "done", what="the redrive")

    assert ask(daemon, "GET", f"/dead/redrive?topic={name}")[1]["skipped"] == {f"channel {topic}/c does not exist": 1}
    assert waiting(daemon, name) == 1


def test_a_seek_beyond_the_log_and_a_claim_of_what_is_finished_change_nothing(daemon: Daemon) -> None:
    topic = dead(daemon, b"one")
    place = {"topic": topic, "channel": "c"}
    beyond = ask(daemon, "POST", "/channel/seek", {**place, "to": {"sequence": 99}})
    claimed = ask(daemon, "POST", "/channel/claim", {**place, "sequences": [0, 5, 10**15], "action": "ready"})
    huge = ask(daemon, "POST", "/channel/seek", {**place, "to": {"sequence": 10**30}})

    assert (beyond[0], "is not in the log" in beyond[1]["message"]) == (416, True)
    assert (huge[0], "is not in the log" in huge[1]["message"]) == (416, True)
    assert (claimed[0], claimed[1]["claimed"]) == (200, 0)
    assert waiting(daemon, f"{topic}.c.dead") == 1


def test_a_policy_that_matches_nothing_is_kept_and_says_so(daemon: Daemon) -> None:
    document = {"topics": "nothing-like-it-*", "channels": "*", "settings": {"max_attempts": 3}}
    status, answer = ask(daemon, "PUT", "/policies/nobody", document)

    assert (status, answer["matching_topics"], answer["matching_channels"]) == (200, 0, 0)
    assert ask(daemon, "DELETE", "/policies/nobody")[0] == 200
    assert ask(daemon, "DELETE", "/policies/nobody")[0] == 404


def test_a_kill_amid_policy_changes_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    answered: list[int] = []
    over = threading.Event()

    def change(running: Daemon) -> None:
        number = 0
        while not over.is_set():
            number += 1
            document = {"topics": "*", "channels": "*", "settings": {"max_attempts": number, "max_in_flight": number}}
            try:
                status, _ = ask(running, "PUT", "/policies/p", document)
            except (urllib.error.URLError, OSError):
                return  # it was killed
            assert status == 200
            answered.append(number)

    with daemons.start_nsqd(tmp_path) as running:
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert ask(running, "POST", target)[0] == 200
        for _ in range(2):
            answered.clear()
            over.clear()
            thread = threading.Thread(target=change, args=(running,))
            thread.start()
            until(lambda: len(answered) > 5, what="some changes")
            running.kill()
            over.set()
            thread.join(60)
            running.restart()
            settings = ask(running, "GET", "/channel/settings?topic=t&channel=c")[1]["settings"]
            found = settings["max_attempts"]["value"], settings["max_in_flight"]["value"]

            assert found in {(answered[-1],) * 2, (answered[-1] + 1,) * 2}
