"""Publish once: a repeated message-id is acknowledged and not stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from appending import append
from lapwing.broker.topic.dedup import DedupWindow
from lapwing.errors import LapwingError
from lapwing.log.disk import File
from lapwing.wire.nsq.commands import Hmpub, Hpub, Pub
from play import MINUTE, SECOND, Stage

HOUR = 60 * MINUTE


def once(stage: Stage, **settings: Any) -> None:
    """Give topic t a window."""
    wanted = {"dedup_window": "10m", **settings}
    stage.broker.settings.change_topic(stage.broker.topic("t"), wanted, now=stage.now)


def item(message_id: str, body: bytes) -> tuple[bytes, bytes]:
    return json.dumps({"message-id": message_id}).encode(), body


def publish(stage: Stage, *messages: tuple[str, bytes], headers: bool = False) -> list[bytes]:
    client = stage.client()
    client.session.headers = headers
    return client.say(Hmpub.of("t", [item(*each) for each in messages])).answers()


def stored(stage: Stage) -> list[bytes]:
    consumer = stage.consumer("all")
    bodies = [body for _, _, body in consumer.take()[0]]
    consumer.leave()
    return bodies


def _known(window: DedupWindow, message_id: bytes, *, now: int) -> int | None:
    """Return the sequence of the message that has this id."""
    return window.repeats([(1 << 40, message_id)], now=now).get(1 << 40)


def test_a_repeat_is_acknowledged_and_not_stored(stage: Stage) -> None:
    once(stage)
    assert publish(stage, ("a", b"1")) == [b"OK"]
    assert publish(stage, ("a", b"1 again")) == [b"OK"]
    assert publish(stage, ("b", b"2")) == [b"OK"]

    assert stored(stage) == [b"1", b"2"]
    assert stage.broker.existing("t").dedup is not None
    assert stage.broker.existing("t").dedup.duplicates == 1


def test_each_repeat_in_a_batch_is_dropped_by_itself(stage: Stage) -> None:
    once(stage)
    publish(stage, ("a", b"1"), ("b", b"2"))
    batch = [item("b", b"no"), item("c", b"3"), (b"", b"4"), item("c", b"no"), item("a", b"no")]
    stage.client().say(Hmpub.of("t", batch))

    assert stored(stage) == [b"1", b"2", b"3", b"4"]


def test_one_turn_with_both_stores_one(stage: Stage) -> None:
    once(stage)
    one, two = stage.client(), stage.client()
    one.session.handle(Hpub.of("t", *item("a", b"1")), now=stage.now)
    two.session.handle(Hpub.of("t", *item("a", b"1")), now=stage.now)
    assert one.answers() == two.answers() == []
    stage.commit()

    assert one.answers() == two.answers() == [b"OK"]
    assert stored(stage) == [b"1"]


def test_without_a_window_ids_are_headers_like_any_other(stage: Stage) -> None:
    publish(stage, ("a", b"1"))
    publish(stage, ("a", b"1"))

    assert stored(stage) == [b"1", b"1"]


def test_messages_without_an_id_are_never_repeats(stage: Stage) -> None:
    once(stage)
    stage.client().publish(b"x").publish(b"x").say(Hpub.of("t", b'{"a":"1"}', b"x"), Hpub.of("t", b'{"a":"1"}', b"x"))

    assert stored(stage) == [b"x"] * 4


def test_an_id_is_new_again_after_the_window(stage: Stage) -> None:
    once(stage, dedup_window="1m")
    publish(stage, ("a", b"1"))
    stage.pass_time(MINUTE - 1)
    publish(stage, ("a", b"no"))
    stage.pass_time(1)
    publish(stage, ("a", b"2"))

    assert stored(stage) == [b"1", b"2"]


def test_the_oldest_ids_go_first_and_are_counted(stage: Stage) -> None:
    once(stage, dedup_max=3)
    publish(stage, *((str(number), b"x") for number in range(5)))
    window = stage.broker.existing("t").dedup
    assert window is not None

    assert (len(window), window.forgotten) == (3, 2)
    publish(stage, ("0", b"stored again"))
    publish(stage, ("4", b"no"))
    assert len(stored(stage)) == 6


def test_publishers_with_headers_get_to_know_of_the_window(stage: Stage) -> None:
    stage.client().publish(b"x")
    assert publish(stage, ("a", b"1"), headers=True) == [b"OK"]
    once(stage)

    assert publish(stage, ("b", b"1"), headers=True) == [b"OK message-id"]
    client = stage.client()
    client.session.headers = True
    assert client.say(Pub("t", b"x")).answers() == [b"OK message-id"]
    assert stage.broker.settings.dedup_topics() == ["t"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_the_window_is_read_back_at_a_start(tmp_path: Path, end: str) -> None:
    stage = Stage(tmp_path)
    once(stage, dedup_window="1h")
    publish(stage, ("old", b"old"))
    stage.pass_time(50 * MINUTE)
    for number in range(0, 12_000, 400):
        publish(stage, *((f"id-{each}", b"x") for each in range(number, number + 400)))
    stage.checkpoint()
    getattr(stage, end)()
    window = stage.broker.existing("t").dedup
    assert window is not None

    assert len(window) == 12_001
    publish(stage, ("old", b"no"), ("id-0", b"no"), ("id-11999", b"no"))
    assert stage.broker.existing("t").log.end == 12_001
    stage.pass_time(30 * MINUTE)
    publish(stage, ("old", b"new"), ("id-5", b"no"))
    assert stage.broker.existing("t").log.end == 12_002


def test_segments_with_ids_of_the_window_are_kept_for_the_next_start(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=1000)
    once(stage)
    for number in range(100):
        publish(stage, (f"id-{number}", b"x" * 100))
    consumer = stage.consumer("all")
    consumer.finish(*consumer.received())
    consumer.leave()
    stage.checkpoint(trim=True)
    stage.kill()

    publish(stage, *((f"id-{number}", b"no") for number in range(100)))
    assert stage.broker.existing("t").log.end == 100
    stage.pass_time(10 * MINUTE)
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first > 0


def test_a_clock_that_is_set_forgets_no_id(tmp_path: Path) -> None:
    stage = Stage(tmp_path, now=10 * HOUR)
    once(stage)
    publish(stage, ("a", b"1"))
    for skew in (HOUR, -HOUR):
        stage.skew = stage.broker.skew = skew
        publish(stage, ("a", b"no"), (f"by {skew}", b"new"))
        stage.kill()
        publish(stage, ("a", b"no"), (f"by {skew}", b"no"))
    stage.pass_time(10 * MINUTE)
    publish(stage, ("a", b"new"))

    assert stored(stage) == [b"1", b"new", b"new", b"new"]


def test_an_id_that_is_published_in_the_turn_of_a_new_window_is_known(stage: Stage) -> None:
    once(stage, dedup_window="5m")
    client = stage.client()
    client.session.handle(Hpub.of("t", *item("a", b"1")), now=stage.now)
    once(stage, dedup_window="10m")
    stage.commit()
    publish(stage, ("a", b"no"))

    assert stored(stage) == [b"1"]


def test_the_newest_of_messages_with_one_id_counts_at_a_start(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    publish(stage, ("a", b"1"))
    stage.pass_time(9 * MINUTE)
    publish(stage, ("a", b"2"))
    once(stage)
    stage.pass_time(9 * MINUTE)
    publish(stage, ("a", b"no"))

    assert stored(stage) == [b"1", b"2"]


def test_an_empty_id_is_none(stage: Stage) -> None:
    once(stage)
    topic = stage.broker.existing("t")
    publish(stage, ("", b"1"), ("", b"2"))
    publish(stage, ("", b"3"))
    for _ in range(2):
        append(topic, b"4", Outcome(), now=stage.now, headers={"message-id": ""})
        append(topic, [b"5", b"6"], Outcome(), now=stage.now, headers={"message-id": ""})
        stage.commit()

    assert stored(stage) == [b"1", b"2", b"3", b"4", b"5", b"6", b"4", b"5", b"6"]


def test_counts_survive_another_window(stage: Stage) -> None:
    once(stage, dedup_max=2)
    publish(stage, ("a", b"0"), ("b", b"1"))
    publish(stage, ("b", b"no"), ("c", b"2"), ("d", b"3"))
    before = stage.broker.existing("t").dedup
    once(stage, dedup_max=3)
    after = stage.broker.existing("t").dedup

    assert before is not None
    assert after is not None
    assert (after.duplicates, after.forgotten) == (before.duplicates, before.forgotten) == (1, 2)


def test_a_window_that_is_switched_on_later_knows_earlier_ids(stage: Stage) -> None:
    publish(stage, ("a", b"1"))
    once(stage)
    publish(stage, ("a", b"no"))

    assert stored(stage) == [b"1"]


def test_a_repeat_with_fsync_waits_for_the_sync_of_the_first(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    once(stage)
    first, second = stage.client(), stage.client()
    first.say(Hpub.of("t", *item("a", b"1")))
    second.say(Hpub.of("t", *item("a", b"1")))
    assert first.answers() == second.answers() == []

    for topic, waiting in stage.broker.work.unsynced:
        job = topic.log.begin_sync()
        if job is not None:
            job()
            topic.log.finish_sync(None)
        for receipt, sequence in waiting:
            receipt.settle(sequence, None)
    assert first.answers() == second.answers() == [b"OK"]
    assert stage.broker.existing("t").log.end == 1


def test_what_could_not_be_written_may_be_published_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    once(stage)
    publish(stage, ("before", b"0"))

    def refuse(self: File, data: bytes, offset: int) -> None:
        raise OSError(28, "full")

    with monkeypatch.context() as patched:
        patched.setattr(File, "write", refuse)
        [answer] = publish(stage, ("a", b"1"))
        assert answer.startswith(b"E_HMPUB_FAILED")
    assert publish(stage, ("a", b"1")) == [b"OK"]
    assert publish(stage, ("a", b"no")) == [b"OK"]
    assert publish(stage, ("before", b"no")) == [b"OK"]

    assert stored(stage) == [b"0", b"1"]


class Outcome:
    """The receipt of a publish."""

    def __init__(self) -> None:
        self.sequence = -1

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        assert error is None
        self.sequence = sequence


def test_publishes_of_other_doors_are_recognised_too(stage: Stage) -> None:
    once(stage)
    topic = stage.broker.existing("t")
    outcomes = [Outcome() for _ in range(4)]
    append(topic, b"1", outcomes[0], now=stage.now, headers={"message-id": "a"})
    append(topic, b"no", outcomes[1], now=stage.now, headers={"message-id": "a"})
    append(topic, [b"2", b"3"], outcomes[2], now=stage.now, headers={"message-id": "b"})
    append(topic, [b"2", b"3"], outcomes[3], now=stage.now, headers={"message-id": "b"})
    stage.commit()

    assert stored(stage) == [b"1", b"2", b"3"]
    assert outcomes[0].sequence == outcomes[1].sequence == 0
    assert min(outcome.sequence for outcome in outcomes) >= 0


@pytest.mark.parametrize(("name", "value"), [("dedup_window", "25h"), ("dedup_window", "-1s"), ("dedup_max", 0)])
def test_settings_out_of_bounds_are_refused(stage: Stage, name: str, value: object) -> None:
    with pytest.raises(LapwingError, match=name):
        once(stage, **{name: value})


def test_ids_of_two_times_that_could_not_be_written_take_no_others_with_them() -> None:
    window = DedupWindow(10 * SECOND, 50)
    window.add([(0, b"0"), (1, b"1"), (2, b"2")], now=0)
    window.add([(3, b"3")], now=SECOND)
    window.take_back()
    window.add([(0, b"4"), (1, b"5"), (2, b"6")], now=2 * SECOND)
    window.written()

    assert _known(window, b"0", now=2 * SECOND) is None
    assert [_known(window, each, now=11 * SECOND) for each in (b"4", b"5", b"6")] == [0, 1, 2]
    assert _known(window, b"4", now=12 * SECOND) is None


def test_a_window_holds_no_more_than_it_may_however_it_is_filled() -> None:
    window = DedupWindow(10 * SECOND, 50)
    now, sequence = 0, 0
    for turn in range(2000):
        ids = [(sequence + each, b"%d" % (sequence + each)) for each in range(turn % 7)]
        assert window.repeats(ids, now=now) == {}
        window.add(ids, now=now)
        if turn % 5 == 0:
            window.take_back()
            assert all(_known(window, message_id, now=now) is None for _, message_id in ids)
        window.written()
        sequence += turn % 7
        now += SECOND // 3
        assert len(window) <= 50
    assert _known(window, b"0", now=now) is None
    assert _known(window, b"x", now=now + HOUR) is None
    assert len(window) == 0
