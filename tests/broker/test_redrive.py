"""Redrive: dead letters come back into the channel that gave them up, once, whatever happens on the way."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from failing import configure, failures, letters, reject
from lapwing import kernel
from lapwing.broker.failures import dead_filter
from lapwing.broker.operations import claims, redrive, redrive_task, seek
from lapwing.broker.operations.redrive_task import CANCELLED, DONE, RUNNING, RedriveTask
from lapwing.broker.settings.definitions import Rate
from lapwing.errors import SettingRefused, WriteFailed
from lapwing.wire.nsq.commands import Rdy
from overriding import overriding
from play import SECOND, Stage, numbered
from redriving import DEAD, buried, run, start, waiting


def sync(stage: Stage) -> None:
    """Do what the syncer does for all that is unsynced now."""
    for topic, receipts in stage.broker.work.take_unsynced():
        job = topic.store.begin_sync()
        if job is not None:
            job()
        topic.store.finish_sync(None)
        for receipt, sequence in receipts:
            receipt.settle(sequence, None)


def test_a_redrive_returns_messages_to_the_channel_that_gave_them_up_and_to_no_other(stage: Stage):
    other = stage.consumer("other")
    consumer = buried(stage)
    other.take()
    start(stage)
    task = run(stage)

    assert (task.state, task.redriven, task.looked) == (DONE, 3, 3)
    assert start(stage).document()["left"] == 3
    assert run(stage).document()["left"] == 0
    assert [each[:2] for each in consumer.take()[0]] == [(0, 2), (1, 2), (2, 2)]
    assert other.received() == []
    assert waiting(stage) == 0
    assert stage.channel().counts.redriven == 3
    consumer.finish(0, 1, 2)


def test_failures_begin_again_and_a_second_death_is_counted(stage: Stage):
    consumer = buried(stage, 1)
    configure(stage, max_attempts=1)
    for deaths in (2, 3):
        start(stage)
        run(stage)
        assert consumer.received() == [0]
        assert failures(stage, 0) == 0
        consumer.requeue(0)
        assert letters(stage, DEAD)[-1][1]["dead-count"] == str(deaths)

    assert "dead-count" not in letters(stage, DEAD)[0][1]
    assert letters(stage, DEAD)[-1][1]["dead-deliveries"] == "3"


def test_only_those_that_are_wanted_come_back(stage: Stage):
    consumer = buried(stage, 6)
    start(stage, error="reason 1")
    task = run(stage)

    assert (task.redriven, task.looked) == (3, 6)
    assert consumer.received() == [1, 3, 5]
    assert waiting(stage) == 3
    assert stage.consumer("dead", topic=DEAD).received() == [0, 2, 4]


def test_letters_out_of_the_middle_stay_finished(tmp_path: Path):
    stage = Stage(tmp_path)
    buried(stage, 6)
    start(stage, error="reason 1")
    run(stage)
    for way in (stage.kill, stage.restart):
        way()
        assert waiting(stage) == 3

    assert stage.consumer("dead", topic=DEAD).received() == [0, 2, 4]


@pytest.mark.parametrize("to", ["channel", "topic", "nowhere"])
def test_a_limit_and_a_rate_are_kept(stage: Stage, to: str):
    buried(stage, 20)
    start(stage, to, limit=12, rate=Rate(10, SECOND))
    assert run(stage).redriven == 1
    for _ in range(30):
        stage.pass_time(SECOND // 10)
        task = run(stage)

    assert (task.state, task.redriven) == (DONE, 12)
    assert waiting(stage) == 8


def test_one_task_at_a_time_and_a_cancelled_one_loses_nothing(stage: Stage):
    consumer = buried(stage, 10)
    start(stage, rate=Rate(1, SECOND))
    run(stage)
    with pytest.raises(SettingRefused, match=f"a redrive of {DEAD} runs already: wait for it, or cancel it first"):
        start(stage)
    task = stage.broker.redrives.cancel(stage.broker.existing(DEAD), now=stage.now)
    assert task is not None
    assert task.state == CANCELLED
    assert waiting(stage) == 9
    assert run(stage).state == CANCELLED
    start(stage)
    assert run(stage).redriven == 9

    assert sorted(consumer.received()) == list(range(10))


def test_redriving_twice_doubles_nothing(stage: Stage):
    consumer = buried(stage)
    start(stage)
    run(stage)
    start(stage)
    assert run(stage).redriven == 0

    assert consumer.received() == [0, 1, 2]


def test_a_letter_that_a_consumer_holds_is_left_to_it(stage: Stage):
    buried(stage)
    reader = stage.consumer("dead", topic=DEAD, ready=1)
    assert reader.received() == [0]
    start(stage)
    task = run(stage)

    assert (task.redriven, dict(task.skipped)) == (2, {"held by a consumer": 1})
    reader.finish(0)
    assert waiting(stage) == 0


def test_a_letter_that_was_requeued_or_deferred_comes_back_too(stage: Stage):
    consumer = buried(stage)
    reader = stage.consumer("dead", topic=DEAD, ready=2)
    reader.requeue(0, delay=SECOND)
    reader.requeue(1)
    reader.leave()
    start(stage)
    assert run(stage).redriven == 3

    assert sorted(consumer.received()) == [0, 1, 2]


def test_a_message_that_the_log_has_let_go_of_comes_back_from_the_side_log(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=4096)
    consumer = stage.consumer()
    stage.client().publish(b"precious")
    reject(consumer, 0)
    for _ in range(5):
        stage.client().publish(bytes(3000))
        consumer.finish(*[each for each in consumer.received() if each])
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first > 0
    published = letters(stage)[0][1]["dead-published"]
    start(stage)
    assert run(stage).redriven == 1
    ((sequence, attempts, body),) = consumer.take()[0]
    assert (sequence, attempts, body) == (0, 2, b"precious")
    assert stage.channel().published_at(0) == 1_000 * SECOND
    assert published == "1970-01-01T00:16:40Z"
    stage.kill()
    again = stage.consumer()
    assert again.take()[0][0][2] == b"precious"
    again.finish(0)

    assert set(stage.channel().side_logged.sequences) == set()


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("to", ["latest", "earliest", "middle"])
def test_the_bookmark_keeps_what_came_back_since_the_seek(tmp_path: Path, to: str, deleted: bool):
    stage = Stage(tmp_path)
    consumer = buried(stage, 4)
    consumer.finish(4)
    consumer.say(Rdy(0))
    channel = stage.channel()
    seek.seek(channel, {"latest": 5, "earliest": 0, "middle": 2}[to], now=stage.now)
    if deleted:
        stage.broker.existing("t").delete(0, 3)
    start(stage)
    assert run(stage).redriven == 4
    stage.kill()
    channel = stage.channel()
    finished = stage.consumer(ready=1)
    (done,) = finished.received()
    finished.say(Rdy(0)).finish(done)
    assert done < 4
    planned = seek.preview(channel, "bookmark", now=stage.now)
    assert seek.seek_bookmark(channel, now=stage.now) == planned
    stage.commit()
    consumer = stage.consumer()

    assert dict(enumerate(numbered(4))) == {done: numbered(4)[done]} | {
        each: body for each, _, body in consumer.take()[0]
    }


@pytest.mark.parametrize("target", [0, 2])
def test_the_bookmark_defers_no_letter_that_came_back(stage: Stage, target: int):
    consumer = stage.consumer()
    stage.client().publish(b"later", b"fine", delay=60_000)
    claims.claim(stage.channel(), [0], "reject", now=stage.now)
    claims.claim(stage.channel(), [1], "finish", now=stage.now)
    stage.commit()
    seek.seek(stage.channel(), target, now=stage.now)
    start(stage)
    assert run(stage).redriven == 1
    before = consumer.received()
    seek.seek_bookmark(stage.channel(), now=stage.now)
    stage.commit()

    assert consumer.received() == before


def test_the_bookmark_is_as_it_was_when_letters_could_not_be_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stage = Stage(tmp_path)
    buried(stage).say(Rdy(0))
    channel = stage.channel()
    seek.seek(channel, 0, now=stage.now)
    bookmark = channel.bookmark

    def refuse(**_: object) -> bool:
        raise WriteFailed("journal", 0, OSError(28, "No space left on device"))

    start(stage)
    with monkeypatch.context() as patch:
        topic = stage.broker.existing("t")
        patch.setattr(topic, "__class__", overriding(topic, checkpoint=refuse))
        assert run(stage).redriven == 0
    assert channel.bookmark == bookmark
    stage.pass_time(SECOND)

    assert run(stage).redriven == 3
    assert channel.bookmark != bookmark


@pytest.mark.parametrize("again", [False, True])
def test_a_message_that_was_deleted_since_comes_back_from_the_side_log(tmp_path: Path, again: bool):
    stage = Stage(tmp_path)
    consumer = buried(stage)
    consumer.leave()
    stage.commit()
    if again:
        stage.channel().seek(0, back=True)
    stage.broker.existing("t").delete(0, 3)
    start(stage)
    assert (run(stage).redriven, stage.channel().depth) == (3, 4)
    stage.broker.existing("t").delete(0, 3)
    stage.kill()
    stage.pass_time(1)
    consumer = stage.consumer()
    assert {each: body for each, _, body in consumer.take()[0]} == dict(enumerate([*numbered(3), b"fine"]))
    consumer.requeue(1)
    assert consumer.received() == [1]
    consumer.finish(0, 1, 2, 3)

    assert (stage.channel().depth, stage.channel().in_flight_count) == (0, 0)
    assert set(stage.channel().side_logged.sequences) == set()


def test_a_deleted_message_that_waits_in_the_channel_gets_the_body_of_its_letter(stage: Stage):
    consumer = stage.consumer(ready=0)
    stage.client().publish(b"later", delay=SECOND)
    claims.claim(stage.channel(), [0], "reject", now=stage.now)
    stage.commit()
    seek.seek(stage.channel(), 0, now=stage.now)
    stage.broker.existing("t").delete(0, 1)
    start(stage)
    run(stage)
    stage.pass_time(SECOND)
    consumer.say(Rdy(1))

    assert [body for _, _, body in consumer.take()[0]] == [b"later"]


def test_a_body_may_be_edited(stage: Stage):
    if stage.path is None:
        pytest.skip("a topic in memory has no side log for it")
    consumer = buried(stage)
    start(stage, sequences=[1], edited=b"mended")
    run(stage)

    assert consumer.take()[0] == [(1, 2, b"mended")]
    consumer.requeue(1)
    assert consumer.take()[0] == [(1, 3, b"mended")]
    consumer.finish(1)
    assert stage.channel().ledger.sequences() == [3]


def test_an_edited_body_stays_when_the_message_dies_and_is_redriven_again(stage: Stage):
    if stage.path is None:
        pytest.skip("a topic in memory has no side log for it")
    consumer = buried(stage)
    start(stage, sequences=[1], edited=b"mended")
    run(stage)
    consumer.take()
    claims.claim(stage.channel(), [1], "reject", now=stage.now)
    stage.commit()
    start(stage, text="mended")
    run(stage)

    assert [body for _, _, body in consumer.take()[0]] == [b"mended"]


def test_an_edited_body_that_is_too_large_for_its_topic_is_not_taken(stage: Stage):
    buried(stage)
    stage.broker.settings.change_topic(stage.broker.existing("t"), {"max_msg_size": 30}, now=stage.now)
    start(stage, sequences=[1], edited=b"x" * 31)
    task = run(stage)

    assert (task.redriven, waiting(stage)) == (0, 3)
    assert dict(task.skipped) == {
        "its new body is larger than max_msg_size 30 of topic t: shorten it, or raise max_msg_size": 1
    }


def test_an_edited_body_stays_when_the_cursor_goes_back_before_its_delivery(tmp_path: Path):
    stage = Stage(tmp_path)
    buried(stage).leave()
    start(stage, sequences=[1], edited=b"mended")
    run(stage)
    seek.seek(stage.channel(), 0, now=stage.now)
    stage.broker.checkpoint_topic(stage.channel().topic, now=stage.now)
    stage.kill()
    stage.pass_time(1)

    bodies = {sequence: body for sequence, _, body in stage.consumer().take()[0]}
    assert bodies == {0: numbered(3)[0], 1: b"mended", 2: numbered(3)[2], 3: b"fine"}


def test_a_message_finished_with_an_edited_body_comes_again_as_it_was_published(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.client().publish(b"broken", delay=1000)
    claims.claim(stage.channel(), [0], "reject", now=stage.now)
    stage.commit()
    start(stage, sequences=[0], edited=b"mended")
    run(stage)
    claims.claim(stage.channel(), [0], "finish", now=stage.now)
    seek.seek(stage.channel(), 0, now=stage.now)
    stage.broker.checkpoint_topic(stage.channel().topic, now=stage.now)
    stage.kill()
    stage.pass_time(2 * SECOND)

    assert [body for _, _, body in stage.consumer().take()[0]] == [b"broken"]


def test_the_bookmark_keeps_a_message_that_was_given_up_ahead_and_redriven(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.client().publish(*numbered(2))
    stage.client().publish(*numbered(1), delay=5_000)
    claims.claim(stage.channel(), [2], "reject", now=stage.now)
    stage.commit()
    seek.seek(stage.channel(), 0, now=stage.now)
    start(stage)
    run(stage)
    seek.seek_bookmark(stage.channel(), now=stage.now)
    stage.pass_time(6 * SECOND)

    assert sorted(stage.consumer().received()) == [0, 1, 2]


def test_letters_that_are_not_synced_yet_wait_for_their_redrive(tmp_path: Path):
    stage = Stage(tmp_path, durability="fsync")
    consumer = stage.consumer()
    stage.client().publish(*numbered(2))
    reject(consumer, 0)
    stage.commit()
    sync(stage)
    reject(consumer, 1)
    stage.commit()
    start(stage)
    before = run(stage)
    assert (before.state, before.redriven) == (RUNNING, 1)
    sync(stage)
    stage.pass_time(SECOND)

    assert run(stage).redriven == 2
    assert sorted(each for each, _, _ in consumer.take()[0][-2:]) == [0, 1]
    assert stage.channel().ledger.with_consumers == 2


def test_a_message_that_the_cursor_will_reach_anyway_is_not_doubled(stage: Stage):
    consumer = buried(stage)
    consumer.leave()
    stage.channel().seek(0, back=True)
    start(stage)
    assert run(stage).redriven == 3

    assert stage.consumer().received() == [0, 1, 2, 3]


@pytest.mark.parametrize("gone", ["channel", "topic"])
def test_letters_whose_channel_is_gone_stay(stage: Stage, gone: str):
    buried(stage)
    if gone == "channel":
        stage.broker.delete_channel("t", "c")
    else:
        stage.broker.delete_topic("t")
    start(stage)
    task = run(stage)

    assert (task.state, task.redriven, dict(task.skipped)) == (DONE, 0, {"channel t/c does not exist": 3})
    assert waiting(stage) == 3


def test_a_topic_that_was_made_again_gets_no_message_of_the_old_one(stage: Stage):
    buried(stage)
    stage.broker.delete_topic("t")
    consumer = stage.consumer()
    stage.client().publish(*numbered(5))
    consumer.finish(*consumer.received())
    start(stage)
    task = run(stage)

    assert task.redriven == 0
    assert dict(task.skipped) == {"topic t was created again since: publish to the topic instead": 3}
    assert consumer.received() == []
    start(stage, to="topic")
    assert run(stage).redriven == 3
    assert [body for _, _, body in consumer.take()[0]] == numbered(3)


def test_a_letter_whose_message_the_log_has_lost_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """After a crash the log of a topic may end before messages whose letters are there."""
    consumer = buried(stage)
    log = stage.broker.existing("t").log
    with monkeypatch.context() as patch:
        patch.setattr(log, "end", 1)
        start(stage)
        task = run(stage)
    assert (task.redriven, task.skipped.total(), waiting(stage)) == (1, 2, 2)
    (reason,) = task.skipped
    assert reason == "the log of topic t lost the message in a crash: publish to the topic instead"
    assert consumer.received() == [0]
    start(stage, to="topic")
    assert run(stage).redriven == 2


def test_a_letter_is_not_taken_for_another_message_with_its_sequence(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    consumer = buried(stage)
    consumer.leave()
    stage.channel().seek(0, back=True)
    topic = stage.broker.existing("t")
    real = type(topic.log).frame

    def frame(log: Any, sequence: int) -> bytes:
        found = real(log, sequence)
        return found if log is not topic.log or sequence != 1 else kernel.frame_one(b"new", 1, stage.now + 7)

    with monkeypatch.context() as patch:
        patch.setattr(type(topic.log), "frame", frame)
        start(stage)
        task = run(stage)

    assert (task.redriven, task.skipped.total(), waiting(stage)) == (2, 1, 1)


def test_an_edited_body_is_not_lost_when_its_message_is_in_the_channel(stage: Stage):
    consumer = buried(stage)
    consumer.leave()
    stage.channel().seek(0, back=True)
    start(stage, sequences=[1], edited=b"mended")
    task = run(stage)

    assert (task.redriven, waiting(stage)) == (0, 3)
    assert dict(task.skipped) == {"its message is in channel t/c again: finish it there, or redrive it unchanged": 1}


@pytest.mark.parametrize("to_dead", [False, True])
def test_a_letter_that_would_expire_at_once_stays(stage: Stage, to_dead: bool):
    consumer = buried(stage)
    configure(stage, message_ttl="10s", expired_to_dead=to_dead)
    stage.pass_time(11 * SECOND)
    start(stage)
    task = run(stage)
    assert (task.redriven, waiting(stage)) == (0, 3)
    assert dict(task.skipped) == {
        "older than message_ttl 10s of channel t/c: raise message_ttl, or publish to the topic instead": 3
    }
    configure(stage, message_ttl="1h")
    start(stage)

    assert run(stage).redriven == 3
    assert consumer.received() == [0, 1, 2]


@pytest.mark.parametrize("overflow", ["drop-oldest", "dead"])
def test_a_redrive_waits_while_the_channel_would_shed_what_comes_back(stage: Stage, overflow: str):
    consumer = buried(stage, 6)
    consumer.finish(6)
    consumer.say(Rdy(0))
    configure(stage, max_depth=2, overflow=overflow)
    start(stage)
    task = run(stage)
    assert (task.state, task.redriven, waiting(stage), stage.channel().depth) == (RUNNING, 2, 4, 2)
    assert task.error == f"channel t/c holds max_depth 2, and overflow is {overflow}: the redrive waits for room"
    for _ in range(4):
        stage.pass_time(SECOND)
        assert run(stage).redriven == 2
    consumer.say(Rdy(2500))
    for _ in range(2):
        stage.pass_time(SECOND)
        task = run(stage)

    assert (task.state, task.redriven, task.looked) == (DONE, 6, 6)
    assert sorted(consumer.received()) == list(range(6))
    assert stage.channel().counts.overflowed == 0


@pytest.mark.parametrize("overflow", ["drop-oldest", "dead"])
def test_a_redrive_leaves_room_for_deferred_messages(stage: Stage, overflow: str):
    consumer = buried(stage, 3)
    consumer.finish(3)
    consumer.say(Rdy(0))
    stage.client().publish(b"later", b"last", delay=1_000)
    configure(stage, max_depth=3, overflow=overflow)
    start(stage)
    task = run(stage)
    assert (task.state, task.redriven, stage.channel().depth) == (RUNNING, 1, 1)
    assert "holds max_depth 3 with its deferred messages" in task.error
    stage.pass_time(2 * SECOND)
    assert (stage.channel().depth, run(stage).redriven) == (3, 1)
    consumer.say(Rdy(2500))
    stage.pass_time(SECOND)

    assert (run(stage).state, stage.channel().counts.overflowed) == (DONE, 0)
    assert sorted(consumer.received()) == [0, 1, 2, 4, 5]


def test_letters_are_published_again_for_all_channels_if_so_asked(stage: Stage):
    other = stage.consumer("other")
    consumer = buried(stage)
    other.take()
    start(stage, to="topic")
    task = run(stage)

    assert (task.state, task.redriven) == (DONE, 3)
    assert [body for _, _, body in consumer.take()[0]] == numbered(3)
    assert [body for _, _, body in other.take()[0]] == numbered(3)
    assert waiting(stage) == 0
    assert {key for _, headers in letters(stage, "t") for key in headers} == {"dead-redriven"}
    reject(consumer, 4, "again")
    assert letters(stage)[-1][1]["dead-reason"] == "rejected"


def test_a_purge_finishes_letters(stage: Stage):
    consumer = buried(stage, 4)
    start(stage, to="nowhere", error="reason 0")
    assert run(stage).redriven == 2

    assert waiting(stage) == 2
    assert consumer.received() == []


def test_a_task_goes_on_after_a_kill_where_it_was(tmp_path: Path):
    stage = Stage(tmp_path)
    buried(stage, 20)
    start(stage, rate=Rate(10, SECOND), limit=15)
    for _ in range(5):
        run(stage)
        stage.pass_time(SECOND // 10)
    stage.kill()
    link = stage.channel("dead", DEAD).dead
    assert link is not None
    assert link.redrive is not None
    assert (link.redrive.state, link.redrive.redriven) == (RUNNING, 5)
    for _ in range(20):
        stage.pass_time(SECOND // 10)
        task = run(stage)

    assert (task.state, task.redriven) == (DONE, 15)
    assert waiting(stage) == 5
    assert len(stage.consumer().received()) == 16


@pytest.mark.parametrize("to", ["channel", "topic"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_kill_between_the_return_and_the_end_of_a_letter_doubles_nothing(tmp_path: Path, to: str, finished: bool):
    stage = Stage(tmp_path)
    consumer = buried(stage)
    stage.checkpoint()
    start(stage, to=to)
    dead = stage.broker.existing(DEAD)

    def refuse(**_: object) -> bool:
        raise WriteFailed("journal", 0, OSError(28, "No space left on device"))

    if to == "channel":
        dead.__class__ = overriding(dead, checkpoint=refuse)  # what is finished there does not reach the disk
    stage.broker.redrives.step(now=stage.now)
    stage.commit()
    got = consumer.received()
    assert len(got) == 3
    if finished:
        consumer.finish(*got)
    stage.broker.checkpoint_topic(stage.broker.existing("t"))
    stage.kill()
    run(stage)

    assert waiting(stage) == 0
    left = stage.consumer()
    assert len(left.received()) == (1 if finished else 4)


def test_when_the_channel_cannot_be_journaled_the_letters_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stage = Stage(tmp_path)
    consumer = buried(stage)
    stage.checkpoint()
    start(stage)
    journal = stage.broker.existing("t").store.journal

    def refuse(*, sync: bool = False) -> None:
        raise WriteFailed("journal", 0, OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(journal, "__class__", overriding(journal, flush=refuse))
        task = run(stage)
    assert (task.state, task.redriven) == (RUNNING, 0)
    assert "No space left on device" in task.error
    assert waiting(stage) == 3
    assert consumer.received() == []
    stage.pass_time(SECOND)
    assert run(stage).redriven == 3

    assert consumer.received() == [0, 1, 2]


def test_letters_that_came_back_before_others_failed_do_not_come_back_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Letters of two topics in one dead-letter topic: the journal of the second cannot be written."""
    consumer, other = stage.consumer(), stage.consumer(topic="u")
    configure(stage, dead_topic=DEAD)
    configure(stage, topic="u", dead_topic=DEAD)
    stage.client().publish(b"a")
    stage.client().publish(b"b", topic="u")
    reject(consumer, 0)
    reject(other, 0)
    consumer.take()
    other.take()
    start(stage)
    second = stage.broker.existing("u")

    def refuse(**_: object) -> bool:
        raise WriteFailed("journal", 0, OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(second, "__class__", overriding(second, checkpoint=refuse))
        task = run(stage)
        assert consumer.received() == [0]
        consumer.finish(0)
        assert (task.state, task.redriven, waiting(stage)) == (RUNNING, 1, 1)
        assert "No space left on device" in task.error
    stage.pass_time(SECOND)
    task = run(stage)

    assert (task.state, task.redriven, task.looked, waiting(stage)) == (DONE, 2, 2, 0)
    assert consumer.received() == []
    assert other.received() == [0]


def test_the_note_of_a_task_is_understood_again():
    task = RedriveTask(
        "1", "topic", dead_filter.parse({"text": "x", "sequences": [1]}), Rate(5, SECOND), 7, 1, 2, 3, edited=b"\xff"
    )
    task.marks["t"] = ("log", 5)
    task.skipped["why"] = 2
    import json

    assert redrive_task.decode(json.loads(redrive_task.encode(task))) == task


def test_a_message_given_up_before_its_delivery_was_saved_is_not_delivered_again_after_a_kill(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = buried(stage, 1)
    consumer.finish(1)
    stage.pass_time(SECOND)
    stage.checkpoint()
    stage.client().publish(*numbered(3))
    reject(consumer, 3)
    assert len(letters(stage, DEAD)) == 2
    stage.kill()
    consumer = stage.consumer()
    assert consumer.received() == [2, 4]
    consumer.finish(2, 4)
    start(stage)
    run(stage)

    assert consumer.received() == [0, 3]
    consumer.finish(0, 3)
    stage.restart()
    assert stage.consumer().received() == []


def test_a_message_that_the_cursor_has_not_reached_survives_restarts_around_its_redrive(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0)
    stage.client().publish(b"later", delay=SECOND)
    claims.claim(stage.channel(), [0], "reject", now=stage.now)
    stage.commit()
    assert [body for body, _ in letters(stage)] == [b"later"]
    stage.restart()
    start(stage)
    assert run(stage).redriven == 1
    stage.kill()
    stage.pass_time(SECOND)

    assert stage.consumer().received() == [0]


def test_letters_that_were_deleted_do_not_come_back(stage: Stage):
    consumer = buried(stage, 5)
    reader = stage.consumer("dead", topic=DEAD, ready=2)
    assert reader.received() == [0, 1]
    reader.leave()
    stage.broker.existing(DEAD).delete(1, 3)
    start(stage)
    task = run(stage)

    assert (task.state, task.redriven, task.looked) == (DONE, 3, 3)
    assert sorted(consumer.received()) == [0, 3, 4]
    assert stage.consumer("dead", topic=DEAD).received() == []


@pytest.mark.parametrize(("limit", "part"), [({"max_depth": 10}, 10), ({"max_bytes": 500}, 22)])
def test_letters_are_published_again_as_far_as_there_is_room(stage: Stage, limit: dict[str, int], part: int):
    consumer = buried(stage, 30)
    consumer.finish(30)
    consumer.say(Rdy(0))
    configure(stage, **limit)
    start(stage, "topic")
    task = run(stage)
    assert (task.state, task.redriven, waiting(stage), stage.channel().depth) == (RUNNING, part, 30 - part, part)
    assert "is full" in task.error
    bodies = []
    consumer.say(Rdy(2500))
    for _ in range(30):
        messages = consumer.take()[0]
        bodies += [body for _, _, body in messages]
        consumer.finish(*[sequence for sequence, _, _ in messages])
        stage.pass_time(SECOND)
        task = run(stage)

    assert (task.state, task.redriven, task.looked, task.error) == (DONE, 30, 30, "")
    assert bodies == numbered(30)
    assert waiting(stage) == 0


def test_a_letter_that_is_too_large_for_the_topic_is_skipped(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"small", b"x" * 2000, b"little")
    for sequence in range(3):
        reject(consumer, sequence)
    consumer.take()
    stage.broker.settings.change_topic(stage.broker.existing("t"), {"max_msg_size": 1000}, now=stage.now)
    start(stage, "topic")
    task = run(stage)

    assert (task.state, task.redriven, waiting(stage)) == (DONE, 2, 1)
    assert [body for _, _, body in consumer.take()[0]] == [b"small", b"little"]
    assert sum(task.skipped.values()) == 1
    assert next(iter(task.skipped)).startswith("larger than the 1000 bytes that topic t takes")


def test_a_step_writes_no_more_when_very_many_messages_are_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redrive, "STEP", 10)
    stage = Stage(tmp_path)
    consumer = buried(stage, 400)
    consumer.finish(400)
    stage.broker.leave(stage.channel(), consumer.subscription, now=stage.now)
    stage.checkpoint()
    start(stage)
    journal = tmp_path / "topics" / "t-t" / "journal"
    sizes = [journal.stat().st_size]
    for _ in range(40):
        stage.broker.redrives.step(now=stage.now)
        sizes.append(journal.stat().st_size)

    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps[1:]) <= 2 * steps[1], steps
    stage.kill()
    stage.pass_time(0)
    assert (run(stage).redriven, waiting(stage)) == (400, 0)
    assert sorted(stage.consumer(ready=500).received()) == list(range(400))
