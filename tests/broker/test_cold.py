"""Topics that nobody uses are packed, and a node with very many of them starts fast: it does not open their files."""

from pathlib import Path

import pytest

from lapwing.broker.keeper import keeper, storage
from lapwing.broker.keeper.opening import Opening
from lapwing.broker.settings import policies
from lapwing.broker.stats import topic_stats
from lapwing.broker.topic import batch
from lapwing.broker.topic.cold import ColdTopic
from lapwing.broker.topic.receipt import NO_RECEIPT
from lapwing.errors import Draining, Exiting, MessageTooBig
from lapwing.log import resting_file
from play import SECOND, Stage

NAMES = [f"t{number}" for number in range(5)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare a fast start for any number of topics."""
    monkeypatch.setattr(storage, "_MANY", 0)


def sync(stage: Stage) -> None:
    for topic in stage.broker.topics_in_use():
        job = topic.store.begin_sync()
        if job is not None:
            job()
            topic.store.finish_sync(None)


def idle(path: Path) -> Stage:
    """Return a node with topics of one message each, which are cold."""
    stage = Stage(path)
    for name in NAMES:
        stage.client().publish(name.encode(), topic=name)
    stage.checkpoint()
    sync(stage)
    stage.now += keeper.IDLE
    stage.checkpoint()
    assert cold(stage) == NAMES
    return stage


def cold(stage: Stage) -> list[str]:
    return [name for name, topic in stage.broker.topics.items() if isinstance(topic, ColdTopic)]


def received(stage: Stage, topic: str) -> list[bytes]:
    return [body for _, _, body in stage.consumer(topic=topic).take()[0]]


# --- while it runs -------------------------------------------------------------------------------------------------


def test_a_cold_topic_takes_messages_and_delivers_them(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    stage.client().publish(b"more", topic="t0")

    assert received(stage, "t0") == [b"t0", b"more"]
    assert received(stage, "t1") == [b"t1"]


def test_a_topic_with_a_consumer_is_not_packed_and_one_to_sync_is_remembered(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    stage.consumer(topic="t0")
    stage.client().publish(b"more", topic="t1")
    for _ in range(3):
        stage.checkpoint()
        stage.now += keeper.IDLE

    assert cold(stage) == ["t1", "t2", "t3", "t4"]
    assert [*stage.broker.keeper._unsynced_cold] == ["t1"]


def test_a_topic_that_was_read_is_packed_again(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    assert stage.broker.existing("t2").log.frame(0).endswith(b"t2")
    assert "t2" not in cold(stage)
    stage.checkpoint(trim=True)
    stage.now += keeper.IDLE
    stage.checkpoint()

    assert cold(stage) == NAMES


def test_very_many_new_topics_are_packed_sooner_and_once_used_again_as_late_as_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    client = stage.client()
    names = [f"t{number}" for number in range(700)]
    for name in names:
        client.publish(b"x", topic=name)
    stage.checkpoint()
    stage.now += keeper.SOON
    client.publish(b"y", topic="t7")
    stage.checkpoint()
    while stage.broker.keeper.pack_idle(stage.now):
        pass

    assert cold(stage) == [name for name in names[:201] if name != "t7"]
    client.publish(b"y", topic="t8")
    stage.checkpoint()
    stage.now += keeper.IDLE - 1
    stage.checkpoint()
    assert "t8" not in cold(stage)
    stage.now += 1
    while stage.broker.keeper.pack_idle(stage.now):
        pass
    assert cold(stage) == names


def test_few_new_topics_are_not_packed_sooner(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"x", topic="t")
    stage.checkpoint()
    stage.now += keeper.IDLE - 1
    stage.checkpoint()

    assert cold(stage) == []


def test_a_topic_with_pending_messages_is_not_packed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer(ready=1)
    for body in (b"a", b"b", b"c"):
        stage.client().publish(body)
    consumer.requeue(0, delay=SECOND)
    stage.broker.leave(stage.channel(), next(iter(stage.channel().subscriptions)), now=stage.now)
    stage.checkpoint()
    sync(stage)
    stage.now += keeper.IDLE
    stage.pass_time(SECOND)
    stage.checkpoint()
    stage.now += keeper.IDLE
    stage.checkpoint()

    assert cold(stage) == []
    assert sorted(stage.consumer().received()) == [0, 1, 2]


def test_a_cold_channel_keeps_its_place_its_counts_and_its_settings(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    for body in (b"a", b"b", b"c"):
        stage.client().publish(body)
    consumer.requeue(0)
    stage.commit()
    consumer.finish(0, 1, 2)
    stage.broker.settings.change_channel(stage.channel(), {"max_attempts": 7}, now=stage.now)
    stage.broker.leave(stage.channel(), next(iter(stage.channel().subscriptions)), now=stage.now)
    stage.client().publish(b"d")
    stage.broker.pause_channel("t", "c", True)
    before = topic_stats(stage.broker, now=stage.now)
    for _ in range(3):
        stage.checkpoint()
        sync(stage)
        stage.now += keeper.IDLE
    assert cold(stage) == ["t"]

    assert topic_stats(stage.broker, now=stage.now) == before
    assert cold(stage) == ["t"]
    stage.broker.pause_channel("t", "c", False)
    assert cold(stage) == []
    assert stage.channel().effective.max_attempts == 7
    stage.broker.pause_channel("t", "c", True)
    assert topic_stats(stage.broker, now=stage.now) == before
    stage.broker.pause_channel("t", "c", False)
    assert stage.consumer().received() == [3]


def test_who_keeps_a_topic_that_was_packed_finds_that_it_is_gone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    stage.broker.existing("t").create_channel("c", now=stage.now)
    topic, channel = stage.broker.existing("t"), stage.channel()
    for _ in range(3):
        stage.checkpoint()
        stage.now += keeper.IDLE
    assert cold(stage) == ["t"]

    assert (topic.exiting, channel.exiting) == (True, True)
    with pytest.raises(Exiting):
        topic.append(batch.single(topic, b"b", now=stage.now), NO_RECEIPT, now=stage.now)
    assert stage.consumer().received() == [0]


def test_a_topic_is_not_packed_while_a_caller_keeps_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    with stage.broker.existing("t").keep():
        for _ in range(3):
            stage.checkpoint()
            stage.now += keeper.IDLE
        assert cold(stage) == []
    stage.checkpoint()

    assert cold(stage) == ["t"]


def test_a_policy_and_a_drain_hold_for_topics_that_were_cold(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    policy = policies.parse("p", {"topics": "t*", "settings": {"max_msg_size": 5}})
    stage.broker.settings.put_policy(policy, now=stage.now)
    stage.broker.begin_drain(now=stage.now)
    topic = stage.broker.existing("t1")
    with pytest.raises(Draining):
        topic.append(batch.single(topic, b"b", now=stage.now), NO_RECEIPT, now=stage.now)
    stage.broker.end_drain()
    topic = stage.broker.existing("t2")

    with pytest.raises(MessageTooBig):
        topic.append(batch.single(topic, b"larger", now=stage.now), NO_RECEIPT, now=stage.now)


def test_a_cold_topic_keeps_what_was_deleted_and_what_a_door_keeps(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for body in (b"a", b"b", b"c"):
        stage.client().publish(body)
    topic = stage.broker.existing("t")
    topic.delete(0, 2)
    topic.door_state["last"] = 7
    topic.changed()
    for _ in range(3):
        stage.checkpoint()
        stage.now += keeper.IDLE
    assert cold(stage) == ["t"]

    topic = stage.broker.existing("t")
    assert (topic.deleted.runs(), topic.door_state, topic.saved_state) == ([(0, 2)], {"last": 7}, {"last": 7})
    assert stage.consumer().received() == [2]


def test_a_cold_topic_that_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    stage.broker.delete_topic("t3")
    stage.client().publish(b"again", topic="t3")

    assert received(stage, "t3") == [b"again"]


# --- a fast start ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_after_a_clean_stop_topics_are_there_without_opening_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = idle(tmp_path)
    stage.broker.pause_topic("t4", True, now=stage.now)
    identity = stage.broker.existing("t0").log.identity
    with monkeypatch.context() as patch:
        patch.setattr(Opening, "_open", None)
        stage.restart()
    assert cold(stage) == NAMES
    assert stage.broker.existing("t4").paused
    assert [topic.depth for topic in stage.broker.topics.values()] == [1] * 5
    stage.client().publish(b"more", topic="t0")

    assert received(stage, "t0") == [b"t0", b"more"]
    assert stage.broker.existing("t0").log.identity == identity


@pytest.mark.usefixtures("few")
def test_a_topic_that_was_used_before_a_kill_is_opened_by_its_files(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    stage.restart()
    stage.client().publish(b"more", topic="t0")
    stage.consumer(topic="t1").finish(0)
    stage.checkpoint()
    stage.kill()

    assert set(cold(stage)) >= {"t2", "t3", "t4"}
    assert received(stage, "t0") == [b"t0", b"more"]
    assert received(stage, "t1") == []
    assert received(stage, "t2") == [b"t2"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("ending", ["00000000000000000000.log", "00000000000000000000.idx", "journal", "a file.tmp"])
def test_a_topic_whose_files_were_touched_is_opened_by_them(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = idle(tmp_path)
    stage.broker.close(now=stage.now)
    with open(tmp_path / "topics" / "t-t1" / ending, "ab") as file:
        file.write(b"garbage")
    opened = []
    plain = Opening._open
    monkeypatch.setattr(
        Opening, "_open", lambda self, entry, now: (opened.append(entry.name), plain(self, entry, now))
    )
    stage.open()

    assert opened == ["t1"]
    assert received(stage, "t1") == [b"t1"]


@pytest.mark.usefixtures("few")
def test_after_a_start_of_the_machine_every_topic_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = idle(tmp_path)
    stage.broker.close(now=stage.now)
    stage.boot_id = "another run"
    opened = []
    plain = Opening._open
    monkeypatch.setattr(
        Opening, "_open", lambda self, entry, now: (opened.append(entry.name), plain(self, entry, now))
    )
    stage.open()

    assert opened == NAMES


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("damage", [b"", b"\n", b"garbage\n", None])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes | None) -> None:
    stage = idle(tmp_path)
    stage.broker.close(now=stage.now)
    file = tmp_path / resting_file.FILE
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + b"x" + data[len(data) // 2 + 1 :] if damage is None else damage)
    stage.open()

    assert [received(stage, name) for name in NAMES] == [[name.encode()] for name in NAMES]


def test_few_topics_need_no_such_file(tmp_path: Path) -> None:
    stage = idle(tmp_path)
    (tmp_path / resting_file.FILE).write_bytes(b"of an earlier run")
    stage.broker.close(now=stage.now)

    assert not (tmp_path / resting_file.FILE).exists()


# --- the work of one turn ------------------------------------------------------------------------------------------


def test_a_checkpoint_of_many_topics_is_done_in_slices(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    client = stage.client()
    for number in range(100):
        client.publish(b"x", topic=f"t{number}")
    broker = stage.broker
    work = broker.begin_checkpoint(now=stage.now)
    left = []
    while work.advance(30, now=stage.now):
        left.append(len(broker.keeper.unindexed))

    assert left == [70, 40, 10]
    assert not broker.keeper.unindexed


def test_a_topic_that_is_written_to_during_a_checkpoint_waits_for_the_next_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    client = stage.client()
    for name in NAMES:
        client.publish(b"x", topic=name)
    work = stage.broker.begin_checkpoint(now=stage.now)
    assert work.advance(4, now=stage.now)
    client.publish(b"y", topic="t0")

    assert not work.advance(4, now=stage.now)
    assert [topic.name for topic in stage.broker.keeper.unindexed] == ["t0"]


def test_topics_that_are_created_without_end_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    client = stage.client()
    for number in range(1300):
        client.publish(b"%d" % number, topic=f"t{number}")

    awake = len(stage.broker.topics) - len(cold(stage))
    assert awake <= 1001
    assert received(stage, "t0") == [b"0"]
    stage.kill()
    assert [received(stage, f"t{number}") for number in (0, 1, 1299)] == [[b"0"], [b"1"], [b"1299"]]
