"""Deliveries by key: order, fairness and limits, through failures, claims, seeks, restarts and changes of settings."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from appending import append
from lapwing.broker import stats
from lapwing.broker.channel import delivery
from lapwing.broker.channel import keys as channel_keys
from lapwing.broker.channel.ledger import Reason
from lapwing.broker.channel.message_keys import MessageKeys
from lapwing.broker.channel.subscription import Credit
from lapwing.broker.topic import batch
from lapwing.errors import LapwingError, SettingRefused
from play import MINUTE, SECOND, Client, Stage, numbered


class Receipt:
    def settle(self, sequence: int, error: LapwingError | None) -> None:
        assert error is None


def configure(stage: Stage, **changes: object) -> None:
    stage.broker.settings.change_channel(stage.channel(), changes, now=stage.now)
    stage.commit()


def publish(stage: Stage, names: str | Sequence[str], header: str = "key") -> None:
    """Publish a message for each letter, which is its key; a dot is a message without one. The bodies count up."""
    parts = []
    first = stage.broker.topic("t").log.next
    for number, name in enumerate(names, first):
        text = b"" if name == "." else json.dumps({header: name}).encode()
        body = b"%d" % number
        parts.append(struct.pack(">iI", len(text) + len(body) + 4, len(text)) + text + body)
    topic = stage.broker.topic("t")
    body = struct.pack(">i", len(parts)) + b"".join(parts)
    topic.append(batch.headed(topic, body, now=stage.now), Receipt(), now=stage.now)
    stage.commit()


@pytest.fixture
def keyed(stage: Stage) -> Stage:
    """A channel that is ordered by key."""
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, order="key")
    return stage


def on_disk(path: Path) -> Stage:
    stage = Stage(path)
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, order="key")
    return stage


def test_one_message_of_each_key_is_in_flight_and_the_next_follows_when_it_is_finished(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aabbac")

    assert consumer.received() == [0, 2, 5]
    consumer.finish(0)
    assert consumer.received() == [1]
    consumer.finish(2, 1)
    assert consumer.received() == [3, 4]


def test_messages_without_a_key_are_never_blocked(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "a.a..")

    assert consumer.received() == [0, 1, 3, 4]


def test_a_failed_message_blocks_its_key_until_it_is_finished(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aab")
    assert consumer.received() == [0, 2]
    consumer.requeue(0, delay=10_000)

    assert consumer.received() == []
    keyed.pass_time(10 * SECOND)
    assert consumer.received() == [0]
    consumer.finish(0)
    assert consumer.received() == [1]


def test_a_message_that_is_given_up_makes_room_for_the_next_of_its_key(keyed: Stage):
    configure(keyed, max_attempts=1)
    consumer = keyed.consumer()
    publish(keyed, "aa")
    assert consumer.received() == [0]
    consumer.requeue(0)

    assert consumer.received() == [1]


def test_a_message_that_times_out_or_is_lost_blocks_its_key(keyed: Stage):
    consumer = keyed.consumer(ready=1)
    publish(keyed, "aaa")
    assert consumer.received() == [0]
    keyed.pass_time(2 * MINUTE)
    assert consumer.received() == [0]
    consumer.leave()
    second = keyed.consumer()

    assert second.received() == [0]
    second.finish(0)
    assert second.received() == [1]


def test_the_cursor_waits_at_the_first_message_that_waits(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aab.")
    consumer.received()
    consumer.finish(2, 3)
    channel = keyed.channel()

    assert (channel.cursor, channel.depth, channel.needed_from()) == (1, 1, 0)
    consumer.finish(0)
    consumer.finish(1)
    assert (channel.cursor, channel.depth, channel.ahead.count) == (4, 0, 0)


@pytest.mark.parametrize("kill", [False, True])
def test_order_holds_over_a_restart(tmp_path: Path, kill: bool):
    keyed = on_disk(tmp_path)
    consumer = keyed.consumer()
    publish(keyed, "aaabbb.")
    assert consumer.received() == [0, 3, 6]
    consumer.finish(0, 6)
    assert consumer.received() == [1]
    keyed.checkpoint()
    keyed.kill() if kill else keyed.restart()
    again = keyed.consumer()

    keyed.pass_time(SECOND)
    assert sorted(again.received()) == [1, 3]
    again.finish(1)
    assert again.received() == [2]
    again.finish(2, 3)
    assert again.received() == [4]
    again.finish(4)
    assert again.received() == [5]


def test_attempts_are_counted_over_a_restart(tmp_path: Path):
    keyed = on_disk(tmp_path)
    consumer = keyed.consumer()
    publish(keyed, "aab")
    assert consumer.received() == [0, 2]
    keyed.restart()
    keyed.consumer()
    keyed.pass_time(SECOND)

    assert [keyed.channel().ledger.attempts[each] for each in (0, 2)] == [2, 2]


def test_attempts_are_counted_over_a_restart_after_order_is_switched_off(tmp_path: Path):
    keyed = on_disk(tmp_path)
    consumer = keyed.consumer()
    publish(keyed, "aab")
    assert consumer.received() == [0, 2]
    configure(keyed, order=None)
    assert consumer.received() == [1]
    keyed.restart()
    keyed.consumer()
    keyed.pass_time(SECOND)

    assert [keyed.channel().ledger.attempts[each] for each in (0, 1, 2)] == [2, 2, 2]


def test_the_lowest_of_several_requeued_messages_goes_first_when_order_is_switched_on(stage: Stage):
    stage.broker.topic("t").create_channel("c", now=stage.now)
    consumer = stage.consumer()
    publish(stage, "aaa")
    assert consumer.received() == [0, 1, 2]
    configure(stage, order="key")
    consumer.requeue(2)
    consumer.requeue(0)

    assert consumer.received() == []
    consumer.finish(1)
    assert consumer.received() == [0]
    consumer.finish(0)
    assert consumer.received() == [2]


def test_switched_off_the_channel_delivers_everything(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aaaa")
    assert consumer.received() == [0]
    configure(keyed, order=None)

    assert consumer.received() == [1, 2, 3]
    assert keyed.channel().keys is None


def test_a_claim_leaves_messages_whose_key_is_blocked(keyed: Stage):
    configure(keyed, order=None)
    consumer = keyed.consumer()
    publish(keyed, "aab")
    assert consumer.received() == [0, 1, 2]
    configure(keyed, order="key")
    consumer.requeue(1)
    holder = keyed.channel().named_holder("other")

    assert keyed.channel().claim([0, 1, 2], holder, now=keyed.now) == [0, 2]


def test_what_is_handed_over_waits_for_its_key(keyed: Stage):
    configure(keyed, order=None)
    consumer, other = keyed.consumer(), keyed.consumer(ready=0)
    publish(keyed, "aa")
    assert consumer.received() == [0, 1]
    configure(keyed, order="key")
    channel = keyed.channel()
    channel.give_back(channel.ledger.take_pending([0, 1]), Reason.CLAIMED, now=keyed.now)
    other.subscription.size = 3
    delivery.hand_over(channel, [0, 1], other.subscription, keyed.now)
    keyed.commit()

    assert (consumer.received(), other.received()) == ([], [0])


def test_a_seek_begins_anew(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aabb")
    assert consumer.received() == [0, 2]
    consumer.finish(0)
    assert consumer.received() == [1]
    keyed.channel().seek(0, back=True)
    keyed.commit()

    assert consumer.received() == [0, 2]


def test_deleted_messages_are_passed_over(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aaaa")
    assert consumer.received() == [0]
    keyed.broker.topic("t").delete(1, 3)
    keyed.commit()
    assert keyed.channel().depth == 1
    consumer.finish(0)

    assert consumer.received() == [3]


def test_expired_messages_make_room_for_the_next_of_their_key(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "aa")
    assert consumer.received() == [0]
    configure(keyed, message_ttl="10s")
    keyed.pass_time(11 * SECOND)
    publish(keyed, "a")
    consumer.finish(0)

    assert consumer.received() == [2]
    assert keyed.channel().counts.expired == 1


def test_a_blocked_channel_looks_at_each_message_once(keyed: Stage, monkeypatch: pytest.MonkeyPatch):
    consumer = keyed.consumer()
    publish(keyed, "a" * 50)
    assert consumer.received() == [0]
    looked: list[int] = []
    passed = keyed.channel().ahead
    real = type(passed).wait
    monkeypatch.setattr(type(passed), "wait", lambda self, some: (looked.extend(some), real(self, some)))
    for _ in range(20):
        keyed.commit()
        keyed.pass_time(SECOND)
    publish(keyed, "aab")

    assert looked == [50, 51]
    assert consumer.received() == [52]
    assert not keyed.broker.work


def test_redis_readers_get_runs(keyed: Stage):
    publish(keyed, "aabbcc")
    parts: list[bytes] = []
    credit = Credit(keyed.channel().named_holder("reader"), parts.append, lambda: None, count=9)
    keyed.channel().deliver_to(credit, now=keyed.now)

    assert [part[18:34] for part in parts] == [keyed.broker.topic("t").id_of(each).encode() for each in (0, 2, 4)]


# --- fairness and limits --------------------------------------------------------------------------------------------


@pytest.fixture
def fair(stage: Stage) -> Stage:
    """A channel on which keys take turns."""
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, fair=True)
    return stage


def test_keys_take_turns(fair: Stage):
    publish(fair, "aaaaaaaabbcc")
    consumer = fair.consumer(ready=6)

    assert sorted(consumer.received()) == [0, 1, 8, 9, 10, 11]


def test_a_long_backlog_of_one_key_is_looked_through_before_it_is_delivered(
    fair: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery, "LOOKED_AT", 4)
    publish(fair, "a" * 30 + "b")
    consumer = fair.consumer(ready=2)
    while fair.broker.work:
        fair.commit()

    assert consumer.received() == [0, 30]


def test_the_key_with_fewest_in_flight_goes_first(fair: Stage):
    publish(fair, "aaaaaaaa")
    consumer = fair.consumer(ready=4)
    assert consumer.received() == [0, 1, 2, 3]
    publish(fair, "bbb")
    consumer.finish(0, 1)

    assert consumer.received() == [8, 9]


def test_weights_are_shares_of_the_turns(fair: Stage):
    configure(fair, key_weights="gold*=3")
    publish(fair, ["gold-1", "x"] * 12)
    consumer = fair.consumer(ready=8)

    assert [each % 2 for each in sorted(consumer.received())].count(0) == 6


def test_one_at_a_time_keys_take_turns_by_weight(fair: Stage):
    configure(fair, key_weights="a=2")
    publish(fair, "aaaabbbb")
    consumer = fair.consumer(ready=1)
    order = []
    for _ in range(8):
        (received,) = consumer.received()
        order.append("a" if received < 4 else "b")
        consumer.finish(received)

    assert "".join(order) == "aabaabbb"


def test_a_key_alone_gets_everything(fair: Stage):
    publish(fair, "aaaaa")

    assert fair.consumer().received() == [0, 1, 2, 3, 4]


def test_a_limit_holds_for_each_key(stage: Stage):
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, max_in_flight_per_key=2)
    publish(stage, "aaaabb..")
    consumer = stage.consumer()

    assert consumer.received() == [0, 1, 4, 5, 6, 7]
    consumer.requeue(0, delay=10_000)
    assert consumer.received() == [2]


def test_a_deferred_retry_holds_no_place_of_a_limit(fair: Stage):
    configure(fair, max_in_flight_per_key=1)
    publish(fair, "aa")
    consumer = fair.consumer()
    assert consumer.received() == [0]
    consumer.requeue(0, delay=10_000)

    assert consumer.received() == [1]
    consumer.finish(1)
    fair.pass_time(10 * SECOND)
    assert consumer.received() == [0]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_blocked_keys_are_counted_and_the_oldest_is_named(keyed: Stage):
    consumer = keyed.consumer()
    publish(keyed, "ab")
    keyed.pass_time(SECOND)
    publish(keyed, "b")
    keyed.pass_time(SECOND)
    publish(keyed, "aa")
    keyed.pass_time(3 * SECOND)
    topics = stats.topic_stats(keyed.broker, now=keyed.now, topic="t", channel="c")
    assert topics is not None

    assert topics[0].channels[0].blocked == stats.BlockedKeys(2, 3, "b", 4 * SECOND)
    consumer.finish(0, 1)
    topics = stats.topic_stats(keyed.broker, now=keyed.now, topic="t", channel="c")
    assert topics is not None
    assert topics[0].channels[0].blocked == stats.BlockedKeys(1, 1, "a", 0)


# --- what a key is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "body", "key"),
    [
        ("/a", b'{"a": "x"}', b"x"),
        ("/a/b", b'{"a": {"b": "x"}}', b"x"),
        ("/a/1", b'{"a": ["x", "y"]}', b"y"),
        ("/a~1b/m~0n", b'{"a/b": {"m~n": "x"}}', b"x"),
        ("/a", b'{"a": 7}', b"7"),
        ("/a", b'{"a": true}', b"true"),
        ("/a", b'{"a": {"z": 1, "b": [1, "\xc3\xbc"]}}', '{"b":[1,"ü"],"z":1}'.encode()),
        ("/a", b'{"a": null}', None),
        ("/a", b'{"a": ""}', None),
        ("/a", b'{"b": 1}', None),
        ("/a/-1", b'{"a": ["x"]}', None),
        ("/a/b", b'{"a": "x"}', None),
        ("/a", b"no JSON", None),
        ("/a", b"[" * 100_000, None),
        ("/a", b"*2\r\n$1\r\na\r\n$1\r\nx\r\n", b"x"),
    ],
)
def test_the_key_of_a_json_body(pointer: str, body: bytes, key: bytes | None):
    assert MessageKeys("json:" + pointer).of_body(body) == key


def test_the_key_of_a_stream_entry_is_a_field_of_that_name(keyed: Stage):
    consumer = keyed.consumer()
    topic = keyed.broker.topic("t")
    for key, number in ((b"a", b"0"), (b"a", b"1"), (b"b", b"2")):
        body = b"*4\r\n$3\r\nkey\r\n$1\r\n%b\r\n$1\r\nn\r\n$1\r\n%b\r\n" % (key, number)
        append(topic, body, Receipt(), now=keyed.now)
    keyed.commit()

    assert sorted(keyed.channel().ledger.in_flight_or_ready()) == [0, 2]
    assert consumer


def test_the_key_comes_from_the_header_that_the_setting_names(keyed: Stage):
    configure(keyed, key_from="header:customer")
    publish(keyed, "aa", header="customer")
    consumer = keyed.consumer()

    assert consumer.received() == [0]


def test_the_key_comes_from_the_body(stage: Stage):
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, order="key", key_from="json:/customer/id")
    for customer, n in ((1, 0), (1, 1), (2, 2)):
        append(stage.broker.topic("t"), b'{"customer": {"id": %d}, "n": %d}' % (customer, n), Receipt(), now=stage.now)
    stage.commit()
    stage.consumer()

    assert sorted(stage.channel().ledger.in_flight_or_ready()) == [0, 2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"order": "keys"}, "order: one of none, key expected"),
        ({"key_from": "key"}, 'key_from: "header:" and the name'),
        ({"key_from": "header:Key"}, 'key_from: "header:" and the name'),
        ({"key_from": "json:a"}, 'key_from: "header:" and the name'),
        ({"fair": True, "key_weights": "a"}, "key_weights: keys and their weights from 1 to 1000"),
        ({"fair": True, "key_weights": {"a": 0}}, "key_weights: keys and their weights from 1 to 1000"),
        ({"key_weights": "a=2"}, "key_weights needs fair"),
        ({"order": "key", "max_in_flight_per_key": 2}, "order key has at most one message of a key in flight"),
    ],
)
def test_settings_that_mean_nothing_are_refused(keyed: Stage, changes: dict[str, object], sentence: str):
    configure(keyed, order=None)
    with pytest.raises(SettingRefused) as caught:
        configure(keyed, **changes)

    assert str(caught.value).startswith(sentence)


def test_long_keys_are_kept_short(keyed: Stage):
    publish(keyed, ["x" * 1000 + each for each in "aab"])
    consumer = keyed.consumer()

    assert consumer.received() == [0, 2]
    assert all(len(name) < 200 for name in keyed.channel().keys._keys)


@pytest.mark.parametrize("forget", [False, True])
def test_what_waits_comes_although_its_page_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: bool
):
    keyed = on_disk(tmp_path)
    monkeypatch.setattr(channel_keys, "KEPT_PAGES", 2)
    consumer = keyed.consumer()
    for _ in range(12):
        publish(keyed, "ab")
    seen = consumer.take()[0]
    for _ in range(11):
        if forget:
            keyed.channel().keys.shed()
        consumer.finish(*[sequence for sequence, _, _ in seen[-2:]])
        seen += consumer.take()[0]

    assert seen == [(number, 1, b"%d" % number) for number in range(24)]


def test_no_more_are_looked_at_than_memory_allows(keyed: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_keys, "MOST_WAITING", 5)
    consumer = keyed.consumer()
    publish(keyed, "a" * 20 + "b")

    assert consumer.received() == [0]
    for each in range(14):
        consumer.finish(each)
        consumer.received()
    assert keyed.channel().ahead.waiting <= 5
    consumer.finish(14)
    assert consumer.received()[:1] == [15]


def test_no_more_runs_are_passed_than_a_checkpoint_saves_soon(keyed: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_keys, "MOST_RUNS", 5)
    consumer = keyed.consumer()
    publish(keyed, "aa" + ".a" * 20)

    assert consumer.received() == [0, 2, 4, 6, 8]
    assert len(keyed.channel().ahead.runs) == 4
    seen: list[int] = []
    for sequence in range(0, 42):
        consumer.finish(sequence)
        seen += consumer.received()
    assert sorted(seen) == [1, 3, 5, 7, *range(9, 42)]


def test_plain_messages_pass_a_keyed_channel(keyed: Stage):
    client: Client = keyed.client()
    client.publish(*numbered(3))

    assert keyed.consumer().received() == [0, 1, 2]


def test_a_channel_with_nothing_to_deliver_by_key_is_packed(tmp_path: Path):
    keyed = on_disk(tmp_path)
    consumer = keyed.consumer()
    publish(keyed, "aab")
    consumer.finish(*consumer.received())
    consumer.finish(*consumer.received())
    consumer.leave()
    keyed.checkpoint()

    assert keyed.channel().pack(keyed.now) is not None
