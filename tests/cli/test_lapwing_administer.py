"""The commands that change a cluster, on two real nsqds that one nsqlookupd knows."""

import json
import os
import pty
import signal
import subprocess

import pytest
from commanding import PROGRAM, environment, lapwing
from pairing import NUMBERS, Pair

from daemons import until
from lapwing import SyncAdmin
from lapwing.cli import shared
from lapwing.client.http import DaemonHttp


def test_a_topic_is_created_paused_and_deleted_on_every_node_and_each_is_named(pair: Pair) -> None:
    name = f"t{next(NUMBERS)}"
    created = pair.run("topic", "create", name)
    until(lambda: len(pair.names(name)) == 2, what="the topic in discovery")
    pair.run("topic", "pause", name)
    paused = [each["paused"] for each in pair.json("topics") if each["topic"] == name]
    pair.run("topic", "unpause", name)
    deleted = pair.json("topic", "delete", name, "--yes")

    for node in pair.nodes:
        assert f"{node.http}  created" in created
    assert paused == [True]
    assert [(each["ok"], each["error"]) for each in deleted] == [(True, "")] * 2
    assert pair.names(name) == []


def test_a_topic_that_only_nsqlookupd_knows_is_deleted_there(pair: Pair) -> None:
    with SyncAdmin(lookupd=pair.lookupd.http) as admin:
        admin.register("ahead")
    said = pair.run("topic", "delete", "ahead", "--yes")

    assert said == "topic ahead is deleted in nsqlookupd; no nsqd had it\n"
    assert "knows a topic 'ahead'" in pair.run("topic", "delete", "ahead", "--yes", code=1)


def test_one_node_can_be_chosen(pair: Pair) -> None:
    topic = pair.topic()
    said = pair.run("channel", "delete", f"{topic}/c", "--node", pair.nodes[0].http, "--yes")

    assert said == f"{pair.nodes[0].http}  deleted\n"
    assert pair.channel(topic)["channel"] == "c"  # the other still has it
    assert "expected one of" in pair.run("topic", "pause", topic, "--node", "nowhere:1", code=2)


def test_a_node_that_refuses_is_named_and_the_others_do_it(pair: Pair) -> None:
    topic = pair.topic()
    lapwing("channel", "delete", f"{topic}/c", "--yes", "--nsqd-http-address", pair.nodes[1].http)
    said = pair.run("channel", "pause", f"{topic}/c", code=1)

    assert f"{pair.nodes[0].http}  paused" in said
    assert f"{pair.nodes[1].http}  refused: CHANNEL_NOT_FOUND" in said
    assert pair.channel(topic)["paused"]


def test_a_node_that_does_not_answer_is_named_and_the_change_is_not_complete(pair: Pair) -> None:
    topic, one = pair.topic(), pair.nodes[0].http
    both = ("--nsqd-http-address", one, "--nsqd-http-address", "127.0.0.1:1")
    for words in (("settings", f"{topic}/c", "max_attempts=3"), ("channel", "pause", f"{topic}/c")):
        done = lapwing(*words, *both, code=1)
        assert done.stdout.startswith(one), words
        assert "127.0.0.1:1" in done.stderr, words
        lapwing(*words, *both, "--node", one)
    for words in (("dead", "redrive", f"{topic}/c", "--yes"), ("dead", "show", f"{topic}/c")):
        assert "127.0.0.1:1" in lapwing(*words, *both, code=1).stderr, words
    assert "CHANNEL_NOT_FOUND" in lapwing("dead", "show", f"{topic}/no", "--nsqd-http-address", one, code=1).stderr


def test_where_a_node_does_not_answer_the_question_nothing_is_destroyed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "daemon_http", lambda where: DaemonHttp(connect_timeout=0.5, request_timeout=0.5))
    topic = pair.topic("one")
    os.kill(pair.nodes[1].pid, signal.SIGSTOP)
    try:
        emptied = pair.run("channel", "empty", f"{topic}/c", "--yes", code=1)
        moved = pair.run("seek", f"{topic}/c", "latest", "--yes", code=1)
    finally:
        os.kill(pair.nodes[1].pid, signal.SIGCONT)

    assert "nothing was changed" in emptied
    assert f"{pair.nodes[0].http}  1 messages, 0 in flight" in emptied
    assert f"{pair.nodes[1].http}  refused: no answer within 0.5 s" in emptied
    assert f"{pair.nodes[0].http}  would go from" in moved
    assert pair.channel(topic)["depth"] == 1


def test_what_destroys_is_counted_asked_for_and_done(pair: Pair) -> None:
    topic = pair.topic("one", "two")
    dry = pair.run("channel", "empty", f"{topic}/c", "--dry-run")
    refused = pair.run("channel", "empty", f"{topic}/c", code=2)
    before = pair.channel(topic)["depth"]
    pair.run("channel", "empty", f"{topic}/c", "--yes")

    assert "would empty channel" in dry
    assert "2 messages, 0 in flight, 0 consumers" in dry
    assert "Give --yes to do it: there is no terminal to ask on" in refused
    assert (before, pair.channel(topic)["depth"]) == (2, 0)


@pytest.mark.parametrize(("answer", "depth", "code"), [(b"y\n", 0, 0), (b"\n", 1, 1)])
def test_a_terminal_is_asked(pair: Pair, answer: bytes, depth: int, code: int) -> None:
    topic = pair.topic("one")
    us, them = pty.openpty()
    os.write(us, answer)
    done = subprocess.run([PROGRAM, "channel", "empty", f"{topic}/c", *pair.flags], stdin=them, capture_output=True,
                          text=True, env=environment(), timeout=60, check=False)  # fmt: skip
    os.close(us)
    os.close(them)

    assert "Continue? [y/N]" in done.stderr
    assert (done.returncode, pair.channel(topic)["depth"]) == (code, depth)


def test_names_that_are_not_there_are_one_sentence(pair: Pair) -> None:
    assert "knows a topic 'nowhere'" in pair.run("topic", "pause", "nowhere", code=1)
    direct = ("--nsqd-http-address", pair.nodes[0].http)
    assert "no nsqd has a topic 'nowhere'" in lapwing("topic", "pause", "nowhere", *direct, code=1).stderr
    unknown = lapwing("channel", "create", "nowhere/c", *direct, code=1).stderr
    assert "`lapwing topic create nowhere --channel c` creates both" in unknown
    assert "expected TOPIC/CHANNEL" in pair.run("channel", "pause", "orders", code=2)


def test_settings_are_shown_with_their_source_and_changed_everywhere(pair: Pair) -> None:
    topic = pair.topic()
    changed = pair.run("settings", f"{topic}/c", "max_attempts=5", "retry_first=1s")
    shown = pair.run("settings", f"{topic}/c")
    found = pair.json("settings", f"{topic}/c")
    pair.run("settings", f"{topic}/c", "--unset", "max_attempts")

    assert changed.count("set: max_attempts=5") == 2
    assert "max_attempts             5" in shown
    assert "channel" in shown
    assert [each["answer"]["settings"]["max_attempts"]["value"] for each in found] == [5, 5]
    assert "max_attempts" not in pair.run("settings", f"{topic}/c")
    assert "max_attempts" in pair.run("settings", f"{topic}/c", "--all")
    assert "max_atempts" in pair.run("settings", f"{topic}/c", "max_atempts=5", code=1)
    assert "KEY=VALUE" in pair.run("settings", topic, "nonsense", code=2)
    twice = pair.run("settings", topic, "max_msg_size=3", "max_msg_size=4", code=2)
    assert "max_msg_size is given twice: leave one out" in twice
    both = pair.run("settings", f"{topic}/c", "max_attempts=3", "--unset", "max_attempts", code=2)
    assert "max_attempts is set and unset: leave one out" in both


def test_a_mistyped_setting_or_channel_is_explained_with_the_way_out(pair: Pair) -> None:
    topic = pair.topic()
    mistyped = pair.run("settings", f"{topic}/c", "max_attemps=3", code=1)
    unknown = pair.run("settings", f"{topic}/nosuch", code=1)

    assert "max_attemps is no setting of a channel: did you mean max_attempts?" in mistyped
    assert "CHANNEL_NOT_FOUND: there is no such channel; `lapwing channels` lists them" in unknown


def test_a_policy_is_set_listed_and_removed_on_every_node(pair: Pair) -> None:
    topic = pair.topic()
    set_ = pair.run("policy", "set", "retries", "--topics", f"{topic}*", "--priority", "7", "max_attempts=9")
    listed = pair.run("policy", "list")
    removed = pair.run("policy", "remove", "retries", "--yes")

    assert set_.count("set; matches 1 topics and 1 channels") == 2
    assert listed.count("max_attempts=9") == 2
    assert "priority 7" in listed
    assert removed.count("removed") == 2
    for name in ("..", "a/b"):
        for words in (("set", name, "max_attempts=9"), ("remove", name, "--yes")):
            assert "a policy is named like a topic" in pair.run("policy", *words, code=2)
    assert pair.run("policy", "remove", "retries", "--yes", code=1).count("refused: POLICY_NOT_FOUND") == 2


def test_a_schedule_is_put_listed_run_paused_and_removed(pair: Pair) -> None:
    topic = pair.topic()
    node = ("--node", pair.nodes[0].http)
    assert "no schedules; `lapwing schedule put --help`" in lapwing("schedule", "list", daemon=pair.nodes[0]).stderr
    put = ("schedule", "put", "nightly", topic, '{"kind": "daily"}', "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    assert "active: cron 30 2 * * * Europe/Berlin" in pair.run(*put, "-H", "kind=report", *node)
    listed = pair.run("schedule", "list")
    shown = pair.run("schedule", "show", "nightly", "-n", "3")
    assert (listed.count("nightly"), shown.count("next ")) == (1, 1 + 3)
    assert "published" in pair.run("schedule", "run", "nightly")
    assert "paused" in pair.run("schedule", "pause", "nightly")
    assert "active" in pair.run("schedule", "resume", "nightly")
    assert "removed" in pair.run("schedule", "remove", "nightly", "--yes")
    assert pair.channel(topic)["depth"] == 1

    assert "give one of --every, --cron and --at" in pair.run("schedule", "put", "n", topic, "b", code=2)
    assert "the unit is missing" in pair.run("schedule", "put", "n", topic, "b", "--every", "5", *node, code=1)
    assert "lapwing schedule list" in pair.run("schedule", "run", "nightly", code=1)


def test_replay_counts_asks_delivers_again_and_can_be_undone(pair: Pair) -> None:
    topic = pair.topic("one", "two", "three")
    node = pair.nodes[0]
    direct = ("--nsqd-http-address", node.http)
    lapwing("sub", topic, "c", "-n", "3", daemon=node)
    dry = lapwing("replay", f"{topic}/c", "--back", "1h", "--dry-run", *direct).stdout
    lapwing("replay", f"{topic}/c", "--back", "1h", "--yes", *direct)
    again = lapwing("sub", topic, "c", "-n", "2", daemon=node).stdout
    lapwing("seek", f"{topic}/c", "latest", "--yes", *direct)
    after = pair.channel(topic)["depth"]

    assert "3 messages delivered again, 0 skipped" in dry
    assert again == "one\ntwo\n"
    assert after == 0
    lapwing("seek", f"{topic}/c", "bookmark", "--yes", *direct)
    assert lapwing("sub", topic, "c", "-n", "1", daemon=node).stdout == "three\n"


def test_a_replay_never_skips_and_wrong_places_are_named(pair: Pair) -> None:
    topic = pair.topic("one", "two", "three")
    direct = ("--nsqd-http-address", pair.nodes[0].http)

    assert "2 messages would be skipped" in lapwing("replay", f"{topic}/c", "--from", "2", *direct, code=1).stderr
    assert "one of --back" in lapwing("replay", f"{topic}/c", *direct, code=2).stderr
    assert "expected earliest" in lapwing("seek", f"{topic}/c", "yesterday", *direct, code=2).stderr
    assert "is not in the log" in lapwing("seek", f"{topic}/c", "99", *direct, code=1).stdout


def test_a_node_is_drained_and_taken_back(pair: Pair) -> None:
    node = pair.nodes[0]
    topic = pair.topic("one")
    started = pair.run("drain", "start", "--node", node.http)
    states = {each["node"]: each["answer"]["state"] for each in pair.json("drain", "status")}
    refused = lapwing("pub", topic, "x", "--timeout", "0.5s", daemon=node, code=1).stderr
    stopped = pair.run("drain", "stop", "--node", node.http)

    assert "messages left" in started
    assert states[node.http] != "none"
    assert states[pair.nodes[1].http] == "none"
    assert refused
    assert "not draining" in stopped
    assert "Give --yes" in pair.run("drain", "start", code=2)


def test_words_after_the_place_are_completed(pair: Pair) -> None:
    topic = pair.topic()

    def completed(*words: str) -> list[str]:
        done = subprocess.run([PROGRAM, "__complete", *words], env=environment(pair.nodes[0]), capture_output=True,
                              text=True, check=True)  # fmt: skip
        return done.stdout.split()

    assert completed("channel", "pause", f"{topic}/") == [f"{topic}/c"]
    assert completed("seek", f"{topic}/c", "ear") == ["earliest"]
    assert completed("topic", "del") == ["delete"]
    assert topic in completed("topic", "delete", "")
    assert json.dumps(completed("settings", topic[:1]))
