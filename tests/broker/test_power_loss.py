"""A power loss may take the end of a log and not the journal that speaks of it: new messages are not taken for old."""

import shutil
from collections.abc import Callable
from pathlib import Path

from play import MINUTE, Stage

HOUR = 60 * MINUTE


def power_lost(path: Path, lost: Callable[[Stage], None], **options: object) -> Stage:
    """A broker whose messages from sequence 2 on, and what `lost` did to them, are gone; its journal is not."""
    stage = Stage(path, max_req_timeout=HOUR, **options)
    stage.consumer(ready=0)
    stage.client().publish(b"kept", b"kept too")
    stage.checkpoint()
    topic = path / "topics" / "t-t"
    shutil.copytree(topic, path / "before")
    lost(stage)
    stage.checkpoint()
    stage.broker.keeper.save_catalog()
    stage.broker.storage.close()
    for file in topic.glob("0*"):
        file.unlink()
    for file in (path / "before").glob("0*"):
        shutil.copy(file, topic)
    stage.open()
    return stage


def defer_some(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"late", delay=HOUR).publish(b"again")
    consumer.finish(0, 1).requeue(3, delay=HOUR // 2).leave()
    for _ in range(3):  # one more of them has attempts to its name
        stage.client().publish(b"tried")
        stage.consumer().leave()


def test_new_messages_are_delivered_at_once_and_in_order(tmp_path: Path) -> None:
    stage = power_lost(tmp_path, defer_some)
    consumer = stage.consumer()
    stage.client().publish(b"c").publish(b"d").publish(b"e")

    assert [body for _, _, body in consumer.take()[0]] == [b"c", b"d", b"e"]
    assert len(stage.channel().ledger.deferred) == 0


def test_new_messages_begin_with_their_first_attempt(tmp_path: Path) -> None:
    stage = power_lost(tmp_path, defer_some)
    consumer = stage.consumer()
    stage.client().publish(b"c").publish(b"d").publish(b"e")
    assert {attempts for _, attempts, _ in consumer.take()[0]} == {1}
    consumer.leave()

    assert {attempts for _, attempts, _ in stage.consumer().take()[0]} == {2}


def test_nothing_of_the_old_ones_comes_back_with_the_next_restart(tmp_path: Path) -> None:
    stage = power_lost(tmp_path, defer_some)
    stage.client().publish(b"c").publish(b"d").publish(b"e")
    consumer = stage.consumer()
    consumer.finish(*consumer.received())
    stage.restart()
    stage.pass_time(2 * HOUR)

    assert stage.consumer().received() == []


def test_what_was_emptied_and_lost_does_not_swallow_new_messages(tmp_path: Path) -> None:
    def empty(stage: Stage) -> None:
        stage.broker.pause_topic("t", True, now=stage.now)
        stage.client().publish(b"dropped", b"dropped too")
        stage.broker.existing("t").empty()
        stage.broker.pause_topic("t", False, now=stage.now)

    stage = power_lost(tmp_path, empty)
    consumer = stage.consumer()
    stage.client().publish(b"c").publish(b"d").publish(b"e")

    assert consumer.received() == [0, 1, 2, 3, 4]


def test_new_messages_do_not_look_finished_after_a_kill_within_moments(tmp_path: Path) -> None:
    stage = power_lost(tmp_path, defer_some)
    stage.client().publish(b"c").publish(b"d").publish(b"e")
    stage.kill()

    assert [body for _, _, body in stage.consumer().take()[0]] == [b"c", b"d", b"e"]


def test_what_was_set_aside_and_lost_is_not_served_in_the_place_of_a_new_message(tmp_path: Path) -> None:
    def set_aside(stage: Stage) -> None:
        consumer = stage.consumer()
        stage.client().publish(b"old").publish(b"next")
        consumer.finish(0, 1).requeue(2, delay=HOUR)
        stage.channel().copy_aside(3)

    stage = power_lost(tmp_path, set_aside)
    stage.client().publish(b"new", delay=MINUTE).publish(b"next")
    stage.checkpoint()
    stage.kill()
    consumer = stage.consumer()
    consumer.finish(3)
    stage.pass_time(MINUTE)

    assert [body for _, _, body in consumer.take()[0]] == [b"next", b"new"]
