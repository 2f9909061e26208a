"""What a crash took from memory: no channel waits for it, and no id means two messages."""

from pathlib import Path

import pytest

from play import MINUTE, Stage, numbered


def killed(path: Path, *, paused: bool = False) -> Stage:
    """A broker that was killed with five messages on disk, and five in memory."""
    stage = Stage(path, durability="memory", mem_queue_size=10)
    consumer = stage.consumer(ready=3)
    if paused:
        stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(*numbered(5)).publish(*numbered(6))
    consumer.finish(0)
    stage.client().publish(*numbered(3)).publish(b"deferred", delay=MINUTE).publish(b"last")
    stage.checkpoint()
    stage.kill()
    return stage


def test_a_new_message_never_has_the_id_of_a_lost_one(tmp_path: Path) -> None:
    stage = killed(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(b"new")

    assert consumer.received() == [1, 2, *range(3, 11), 21]


def test_depth_counts_what_is_there(tmp_path: Path) -> None:
    stage = killed(tmp_path)
    assert (stage.channel().depth, stage.broker.existing("t").depth) == (10, 0)
    stage.restart()

    assert (stage.channel().depth, stage.broker.existing("t").depth) == (10, 0)


def test_a_paused_topic_hands_over_what_is_left(tmp_path: Path) -> None:
    stage = killed(tmp_path, paused=True)
    topic = stage.broker.existing("t")
    assert (stage.channel().depth, topic.depth) == (0, 11)
    consumer = stage.consumer()
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.client().publish(b"new")

    assert consumer.received() == [*range(11), 21]
    assert (topic.depth, stage.channel().depth, stage.channel().message_count) == (0, 0, 12)


@pytest.mark.parametrize("wait", [0, 2 * MINUTE])
def test_what_was_in_flight_or_deferred_and_is_lost_waits_no_more(tmp_path: Path, wait: int) -> None:
    stage = Stage(tmp_path, durability="memory", mem_queue_size=10)
    stage.consumer()
    stage.client().publish(*numbered(3)).publish(b"deferred", delay=MINUTE)
    stage.checkpoint()
    stage.kill()
    consumer = stage.consumer()
    stage.client().publish(b"new")
    stage.pass_time(wait)

    assert set(consumer.received()) == {10}
    assert not any("cannot be delivered" in report for report in stage.reports)
    assert any("0 to 9" in report for report in stage.reports)


def test_a_topic_without_a_channel_keeps_what_is_left_for_the_first_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="memory", mem_queue_size=4)
    stage.client().publish(*numbered(5)).publish(b"lost")
    stage.kill()
    assert stage.broker.existing("t").depth == 5
    stage.client().publish(b"new")

    assert stage.consumer().received() == [0, 1, 2, 3, 4, 9]
    assert stage.channel().depth == 0


def test_a_second_kill_within_moments_does_not_bring_up_what_the_first_one_took(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="memory", mem_queue_size=10)
    stage.consumer()
    stage.client().publish(*numbered(3)).publish(b"deferred", delay=MINUTE)
    stage.checkpoint()
    stage.kill()
    stage.client().publish(b"new")
    stage.kill()
    stage.reports.clear()
    consumer = stage.consumer()
    stage.pass_time(2 * MINUTE)

    assert consumer.received() == []
    assert stage.reports == []
