"""Settings and policies: what is refused and why, where a value comes from, and what survives."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lapwing import names
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings import policies
from lapwing.broker.settings.definitions import ChannelSettings, Rate, TopicSettings
from lapwing.errors import NotSaved, SettingRefused, WriteFailed
from play import MINUTE, SECOND, Stage

CHANNEL_NAMES = (
    "max_attempts, retry_first, retry_factor, retry_max, retry_jitter, dead_topic, msg_timeout, hold, active, "
    "order, fair, key_from, key_weights, max_in_flight_per_key, max_in_flight, rate, burst, message_ttl, "
    "expired_to_dead, max_depth, max_bytes, overflow, paused_until"
)


def refusal(changes: Any, noun: str = "channel") -> str:
    definition = settings.CHANNEL if noun == "channel" else settings.TOPIC_LEVEL
    with pytest.raises(SettingRefused) as caught:
        settings.changed(definition, noun, {}, changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "kept", "value"),
    [
        ("max_attempts", 5, 5, 5),
        ("max_attempts", "5", 5, 5),
        ("retry_first", "1s", "1s", SECOND),
        ("retry_factor", "1.5", 1.5, 1.5),
        ("retry_factor", 3, 3, 3.0),
        ("retry_jitter", 0, 0, 0.0),
        ("dead_topic", "", "", ""),
        ("dead_topic", "bin", "bin", "bin"),
        ("rate", "100/s", "100/s", Rate(100, SECOND)),
        ("rate", 7, "7/s", Rate(7, SECOND)),
        ("rate", "5/m", "5/m", Rate(5, MINUTE)),
        ("rate", "", "", settings.UNLIMITED),
        ("overflow", "drop-oldest", "drop-oldest", "drop-oldest"),
        ("expired_to_dead", "true", True, True),
        ("paused_until", "2030-01-31T12:00:00Z", "2030-01-31T12:00:00Z", 1896091200 * SECOND),
        ("paused_until", "2030-01-31T13:00:00.5+01:00", "2030-01-31T12:00:00.5Z", 1896091200 * SECOND + SECOND // 2),
        ("paused_until", 1896091200, "2030-01-31T12:00:00Z", 1896091200 * SECOND),
        ("paused_until", "", "", 0),
    ],
)
def test_a_value_is_kept_as_one_would_write_it(name, given, kept, value):
    own = settings.changed(settings.CHANNEL, "channel", {}, {name: given})

    assert own == {name: kept}
    assert json.loads(json.dumps(own)) == own
    assert getattr(settings.resolve(ChannelSettings, [("channel", own)]), name) == value


def test_a_duration_as_a_time_means_from_now_on():
    now = int(datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()) * SECOND

    own = settings.changed(settings.CHANNEL, "channel", {}, {"paused_until": "30m"}, now=now)

    assert own == {"paused_until": "2030-01-31T12:30:00Z"}


def test_a_time_that_could_not_be_read_back_is_refused():
    """It would be accepted, kept, and never hold."""
    with pytest.raises(SettingRefused, match=r"^paused_until: a time such as"):
        settings.changed(settings.CHANNEL, "channel", {}, {"paused_until": "2500000h"}, now=SECOND)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_attemps": 5}, "max_attemps is no setting of a channel: did you mean max_attempts? "
                            f"There are {CHANNEL_NAMES}"),
        ({"attempts_of_all": 5}, f"attempts_of_all is no setting of a channel: use one of {CHANNEL_NAMES}"),
        ({"max_attempts": -1}, "max_attempts: an integer of 0 or more expected, not -1"),
        ({"max_attempts": "five"}, 'max_attempts: an integer of 0 or more expected, not "five"'),
        ({"max_attempts": True}, "max_attempts: an integer of 0 or more expected, not true"),
        ({"max_attempts": 10**30}, f"max_attempts: an integer of 0 or more expected, not {10**30}"),
        ({"max_attempts": [1]}, "max_attempts: an integer of 0 or more expected, not [1]"),
        (
            {"retry_first": "soon"},
            'retry_first: a duration such as "500ms", "30s", "15m" or "72h" expected, not "soon"',
        ),
        ({"retry_first": "-1s"}, 'retry_first: a duration such as "500ms", "30s", "15m" or "72h" expected, not "-1s"'),
        ({"retry_first": 5}, 'retry_first: a duration such as "500ms", "30s", "15m" or "72h" expected, not 5'),
        ({"retry_factor": 0.5}, "retry_factor: a number from 1 to 1000 expected, not 0.5"),
        ({"retry_factor": float("nan")}, "retry_factor: a number from 1 to 1000 expected, not NaN"),
        ({"retry_factor": "\u0661"}, 'retry_factor: a number from 1 to 1000 expected, not "\\u0661"'),
        ({"retry_factor": "1_0"}, 'retry_factor: a number from 1 to 1000 expected, not "1_0"'),
        ({"retry_jitter": 2}, "retry_jitter: a number from 0 to 1 expected, not 2"),
        ({"rate": "fast"}, 'rate: a rate such as "100/s", "5/m" or "20/h" expected, not "fast"'),
        ({"rate": "0/s"}, 'rate: a rate such as "100/s", "5/m" or "20/h" expected, not "0/s"'),
        ({"rate": "1/d"}, 'rate: a rate such as "100/s", "5/m" or "20/h" expected, not "1/d"'),
        ({"overflow": "spill"}, 'overflow: one of reject, drop-oldest, dead expected, not "spill"'),
        ({"expired_to_dead": 3}, "expired_to_dead: true or false expected, not 3"),
        (
            {"dead_topic": "no spaces"},
            'dead_topic: the name of a durable topic (letters, digits, ".", "_", "-", at most 64) or "" expected, '
            'not "no spaces"',
        ),
        (
            {"paused_until": "2030-01-31T12:00:00"},
            'paused_until: a time such as "2030-01-31T12:00:00Z", Unix seconds, or a duration such as "30m" expected, '
            'not "2030-01-31T12:00:00"',
        ),
        ([1], 'an object of settings expected, such as {"max_attempts": 5}'),
    ],
)
def test_what_is_no_setting_is_refused_with_one_sentence(changes, sentence):
    assert refusal(changes) == sentence


def test_a_long_value_is_not_shown_whole():
    assert len(refusal({"max_attempts": "x" * 100_000})) < 200
    assert len(refusal({"y" * 100_000: 1})) < 500


def test_null_removes_a_setting_and_leaves_the_others():
    own = settings.changed(settings.CHANNEL, "channel", {"max_attempts": 5, "burst": 2}, {"max_attempts": None})

    assert own == {"burst": 2}


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (
            {"retry_first": "1h"},
            "retry_first 1h0m0s is longer than retry_max 15m0s: lower retry_first or raise retry_max",
        ),
        ({"burst": 5}, "burst needs a rate: set rate too, or remove burst"),
        (
            {"overflow": "dead", "dead_topic": ""},
            "overflow dead needs a dead-letter topic: set dead_topic, or choose reject or drop-oldest",
        ),
        (
            {"expired_to_dead": True, "dead_topic": ""},
            "expired_to_dead needs a dead-letter topic: set dead_topic, or remove expired_to_dead",
        ),
        ({"dead_topic": "t"}, "dead_topic t is the topic of the channel itself: name another topic"),
        (
            {"msg_timeout": "1h"},
            "msg_timeout 1h0m0s is out of range: above 0, at most --max-msg-timeout 15m0s",
        ),
    ],
)
def test_contradictions_are_refused_and_nothing_changes(stage: Stage, own, sentence):
    stage.consumer()
    channel = stage.channel()
    with pytest.raises(SettingRefused) as caught:
        stage.broker.settings.change_channel(channel, own, now=stage.now)

    assert str(caught.value) == sentence
    assert channel.settings == {}
    assert channel.effective is stage.broker.settings.plain_channel


def test_a_value_falls_through_from_the_channel_to_the_policies_the_topic_the_flag_and_the_default():
    stage = Stage(msg_timeout=30 * SECOND)
    stage.consumer()
    channel, store = stage.channel(), stage.broker.settings
    store.change_topic(channel.topic, {"message_ttl": "1h"}, now=stage.now)
    for name, priority, own in (
        ("low", 1, {"max_attempts": 3, "max_in_flight": 30, "retry_first": "3s"}),
        ("high", 9, {"max_attempts": 9, "max_in_flight": 90}),
    ):
        store.put_policy(policies.parse(name, {"priority": priority, "settings": own}), now=stage.now)
    store.change_channel(channel, {"max_attempts": 5}, now=stage.now)

    found = store.explain_channel(channel)

    assert (found["max_attempts"].value, found["max_attempts"].source) == (5, "channel")
    assert (found["max_in_flight"].value, found["max_in_flight"].source) == (90, "policy high")
    assert (found["retry_first"].value, found["retry_first"].source) == ("3s", "policy low")
    assert (found["message_ttl"].value, found["message_ttl"].source) == ("1h0m0s", "topic")
    assert (found["msg_timeout"].value, found["msg_timeout"].source) == ("30s", "flag")
    assert (found["dead_topic"].value, found["dead_topic"].source) == ("t.c.dead", "default")
    assert (found["retry_max"].value, found["retry_max"].source) == ("15m0s", "default")
    assert channel.effective.max_attempts == 5
    assert channel.effective.max_in_flight == 90
    assert channel.effective.message_ttl == 60 * MINUTE


def test_a_policy_holds_for_channels_that_come_later_and_ends_when_it_is_removed(stage: Stage):
    store = stage.broker.settings
    policy = policies.parse("p", {"topics": "orders.*", "channels": "bill?ng", "settings": {"max_attempts": 4}})
    store.put_policy(policy, now=stage.now)
    stage.consumer("billing", topic="orders.eu")
    stage.consumer("billing", topic="other")
    stage.consumer("billling", topic="orders.eu")

    limits = [
        stage.channel(*each).effective.max_attempts
        for each in (("billing", "orders.eu"), ("billing", "other"), ("billling", "orders.eu"))
    ]
    assert limits == [4, 0, 0]

    assert store.remove_policy("p", now=stage.now)
    assert not store.remove_policy("p", now=stage.now)
    assert stage.channel("billing", "orders.eu").effective.max_attempts == 0


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], 'an object expected: {"topics": "orders.*", "channels": "*", "settings": {...}}'),
        ({"topic": "a"}, "topic is no part of a policy: use topics, channels, priority, settings"),
        (
            {"priority": "high", "settings": {"burst": 1}},
            "priority: an integer expected; of two policies that set a value, the higher one wins",
        ),
        ({}, 'settings: an object with at least one setting expected, such as {"max_attempts": 5}'),
        (
            {"topics": "a b", "settings": {"burst": 1}},
            'topics: a pattern such as "orders.*" expected: the characters of names, "*" and "?", at most 128',
        ),
        (
            {"channels": "*" * 129, "settings": {"burst": 1}},
            'channels: a pattern such as "orders.*" expected: the characters of names, "*" and "?", at most 128',
        ),
        (
            {"channels": "a*", "settings": {"retention_age": "1h"}},
            "retention_age is a setting of topics: leave out channels, or put it into another policy",
        ),
        ({"settings": {"burst": -1}}, "burst: an integer of 0 or more expected, not -1"),
    ],
)
def test_what_is_no_policy_is_refused_with_one_sentence(document, sentence):
    with pytest.raises(SettingRefused) as caught:
        policies.parse("p", document)

    assert str(caught.value) == sentence


def test_a_policy_that_contradicts_a_channel_it_matches_is_refused_and_the_former_one_stays(stage: Stage):
    store = stage.broker.settings
    stage.consumer()
    store.change_channel(stage.channel(), {"retry_max": "10s"}, now=stage.now)
    store.put_policy(policies.parse("p", {"settings": {"retry_first": "1s"}}), now=stage.now)
    with pytest.raises(SettingRefused, match=r"^with this policy, for t/c: retry_first 1m0s is longer than retry_max"):
        store.put_policy(policies.parse("p", {"settings": {"retry_first": "1m"}}), now=stage.now)

    assert stage.channel().effective.retry_first == SECOND
    assert store.policies.documents()["p"]["settings"] == {"retry_first": "1s"}


def test_a_policy_may_have_messages_dropped_instead_of_kept_as_dead_letters(stage: Stage):
    stage.consumer()
    stage.broker.settings.put_policy(policies.parse("p", {"settings": {"dead_topic": ""}}), now=stage.now)

    assert stage.channel().effective.dead_topic == ""
    assert not stage.channel().dead_topic


def test_one_dead_letter_topic_for_all_topics_is_not_its_own(stage: Stage):
    """Once it exists the policy matches its channel `dead` too: that must not block every later change."""
    store = stage.broker.settings
    everything = {"settings": {"dead_topic": "graveyard", "max_attempts": 1}}
    store.put_policy(policies.parse("all", everything), now=stage.now)
    consumer = stage.consumer()
    stage.client().publish(b"a")
    consumer.requeue(0)
    assert stage.channel("dead", "graveyard").depth == 1

    everything["settings"]["max_attempts"] = 2
    store.put_policy(policies.parse("all", everything), now=stage.now)
    store.change_channel(stage.channel("dead", "graveyard"), {"max_in_flight": 5}, now=stage.now)
    found = store.explain_channel(stage.channel("dead", "graveyard"))
    assert (found["dead_topic"].value, found["dead_topic"].source) == ("graveyard.dead.dead", "default")
    assert found["max_attempts"].value == 2


def test_a_pattern_that_could_run_for_ever_does_not():
    policy = policies.parse("p", {"topics": "*a" * 60 + "b", "settings": {"burst": 1, "rate": "1/s"}})

    assert not policy.matches("a" * names.LONGEST, "c")


def test_settings_and_policies_are_there_after_a_kill(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer()
    store = stage.broker.settings
    store.change_channel(stage.channel(), {"max_attempts": 5, "retry_first": "1s"}, now=stage.now)
    store.change_topic(stage.channel().topic, {"retention_bytes": 1000}, now=stage.now)
    store.put_policy(policies.parse("p", {"settings": {"max_in_flight": 7}}), now=stage.now)
    stage.kill()

    channel = stage.channel()
    assert channel.effective.max_attempts == 5
    assert channel.effective.retry_first == SECOND
    assert channel.effective.max_in_flight == 7
    assert channel.topic.effective.retention_bytes == 1000


def test_a_setting_of_another_version_stops_nobody_and_is_not_lost(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer()
    stage.broker.settings.change_channel(stage.channel(), {"max_attempts": 5}, now=stage.now)
    stage.channel().settings |= {"from_the_future": {"a": 1}, "burst": "many"}
    stage.broker.settings.policies.put(policies.Policy("q", settings={"max_attempts": {}}))
    stage.restart()

    channel = stage.channel()
    assert channel.effective.max_attempts == 5
    assert channel.effective.burst == 0
    assert channel.settings["from_the_future"] == {"a": 1}
    assert any("policy q of the catalog is left out" in line for line in stage.reports)


def test_a_change_that_cannot_be_saved_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stage = Stage(tmp_path)
    stage.consumer()
    store, channel = stage.broker.settings, stage.channel()
    store.put_policy(policies.parse("p", {"settings": {"max_in_flight": 7}}), now=stage.now)

    def refuse(*_: object) -> None:
        raise WriteFailed("nsqd.dat", 0, OSError(28, "No space left on device"))

    monkeypatch.setattr(stage.broker.storage.catalog, "save", refuse)
    with pytest.raises(NotSaved):
        store.change_channel(channel, {"max_attempts": 5}, now=stage.now)
    with pytest.raises(NotSaved):
        store.change_topic(channel.topic, {"retention_count": 5}, now=stage.now)
    with pytest.raises(NotSaved):
        store.put_policy(policies.parse("q", {"settings": {"max_attempts": 7}}), now=stage.now)
    with pytest.raises(NotSaved):
        store.remove_policy("p", now=stage.now)

    assert channel.settings == {}
    assert channel.topic.settings == {}
    assert channel.effective.max_attempts == 0
    assert channel.effective.max_in_flight == 7
    assert list(store.policies.documents()) == ["p"]
    assert stage.broker.health is not None


def test_topics_and_channels_without_settings_share_one_object(stage: Stage):
    stage.consumer()
    stage.consumer("d")

    assert stage.channel().effective is stage.channel("d").effective
    assert isinstance(stage.channel().topic.effective, TopicSettings)


# --- pause with an end ------------------------------------------------------------------------------------------


def test_a_pause_with_an_end_ends(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.broker.settings.change_channel(stage.channel(), {"paused_until": "10s"}, now=stage.now)
    stage.client().publish(b"a")
    assert consumer.received() == []
    stage.pass_time(9 * SECOND)
    assert consumer.received() == []

    stage.pass_time(SECOND)
    assert consumer.received() == [0]


def test_a_pause_with_an_end_survives_a_restart(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer()
    stage.broker.settings.change_channel(stage.channel(), {"paused_until": "10s"}, now=stage.now)
    stage.client().publish(b"a")
    stage.kill()
    consumer = stage.consumer()
    assert consumer.received() == []

    stage.pass_time(10 * SECOND)
    assert consumer.received() == [0]


@pytest.mark.parametrize("where", ["channel", "policy"])
def test_unpausing_ends_a_pause_that_has_an_end(stage: Stage, where: str):
    consumer = stage.consumer()
    store = stage.broker.settings
    if where == "channel":
        store.change_channel(stage.channel(), {"paused_until": "10s"}, now=stage.now)
    else:
        policy = policies.parse("p", {"settings": {"paused_until": "10s"}}, now=stage.now)
        store.put_policy(policy, now=stage.now)
    stage.client().publish(b"a")
    assert consumer.received() == []

    stage.broker.pause_channel("t", "c", False)
    stage.commit()
    assert consumer.received() == [0]


# --- names of dead-letter topics --------------------------------------------------------------------------------


def test_the_default_dead_letter_topic_is_named_after_topic_and_channel():
    assert settings.default_dead_topic("orders", "billing") == "orders.billing.dead"
    assert settings.default_dead_topic("orders#ephemeral", "billing") == ""
    assert settings.default_dead_topic("orders", "billing#ephemeral") == ""


def test_a_default_name_that_is_too_long_is_cut_and_stays_unique():
    long = settings.default_dead_topic("t" * 60, "billing")

    assert long.endswith(".billing.dead")
    assert len(long) == names.LONGEST
    assert long != settings.default_dead_topic("t" * 59, "billing")
    found = {settings.default_dead_topic("t" * a, "c" * b) for a in range(1, 65) for b in range(1, 65)}
    assert len(found) == 64 * 64
    assert all(names.valid(name) for name in found)


# --- retention of one topic -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "first"),
    [({}, 8), ({"retention_bytes": 20_000}, 6), ({"retention_age": "1h"}, 0), ({"retention_count": 5}, 4)],
)
def test_a_topic_keeps_what_its_own_retention_says(tmp_path: Path, own: dict[str, Any], first: int):
    stage = Stage(tmp_path, max_bytes_per_file=8192)
    consumer = stage.consumer()
    stage.broker.settings.change_topic(stage.broker.existing("t"), own, now=stage.now)
    for _ in range(10):
        stage.client().publish(bytes(4000))
        consumer.finish(*consumer.received())
    stage.checkpoint(trim=True)

    assert stage.broker.existing("t").log.first == first


def test_retention_of_a_topic_beats_the_flag(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=8192, retention_bytes=1 << 30)
    stage.consumer()
    topic = stage.broker.existing("t")
    store = stage.broker.settings
    assert store.explain_topic(topic)["retention_bytes"] == settings.Resolved(1 << 30, "flag")
    store.change_topic(topic, {"retention_bytes": 0}, now=stage.now)
    consumer = stage.consumer()
    for _ in range(10):
        stage.client().publish(bytes(4000))
        consumer.finish(*consumer.received())
    stage.checkpoint(trim=True)

    assert topic.log.first == 8


# --- the document -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noun", ["channel", "topic"])
def test_the_document_lists_every_setting_with_its_default_and_meaning(noun: str):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "failure.md").read_text()
    rows = []
    for each in settings.describe()[noun]:
        default = f"`{each['default']}`" if each["default"] else ""
        rows.append(f"| `{each['name']}` | {each['kind']} | {default} | {each['help']} |")

    assert "\n".join(rows) in text
