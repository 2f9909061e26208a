"""A machine's clock that is set by hours, while the broker runs or while it does not."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lapwing.broker.stats import oldest_age
from lapwing.log.segments.retention import RetentionLimits, expendable
from play import MINUTE, SECOND, Stage, numbered

HOUR = 60 * MINUTE


def stamp(stage: Stage, sequence: int) -> int:
    return stage.broker.existing("t").log.timestamp(sequence)


@pytest.mark.parametrize("jump", [8 * HOUR, -8 * HOUR // 60])
def test_messages_tell_the_machines_time_and_deadlines_go_by_the_brokers(tmp_path: Path, jump: int) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(b"before").publish(b"deferred", delay=2 * MINUTE)
    stage.broker.skew = jump
    stage.client().publish(b"after").publish(*numbered(2))

    assert consumer.received() == [0, 2, 3, 4]
    assert [stamp(stage, sequence) - stage.now for sequence in range(5)] == [0, 0, jump, jump, jump]
    stage.pass_time(MINUTE - SECOND)
    assert consumer.received() == []
    stage.pass_time(2 * SECOND)
    assert consumer.received() == [0, 2, 3, 4]  # its timeout, no sooner and no later
    stage.pass_time(MINUTE - 2 * SECOND)
    assert 1 not in consumer.received()
    stage.pass_time(SECOND)
    assert 1 in consumer.received()


def test_a_search_by_time_finds_what_was_published_then(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    wall = []
    for skew in (0, 0, 8 * HOUR, 8 * HOUR, HOUR, HOUR):
        stage.pass_time(MINUTE)
        stage.broker.skew = skew
        stage.client().publish(b"x")
        wall.append(stage.now + skew)
    log = stage.broker.existing("t").log

    assert [log.at_time(time) for time in wall[:4]] == [0, 1, 2, 3]
    assert log.at_time(wall[4]) == 2  # more than was asked for rather than less
    stage.restart()
    assert [stage.broker.existing("t").log.at_time(time) for time in wall[:4]] == [0, 1, 2, 3]


@pytest.mark.parametrize("end", [Stage.restart, Stage.kill])
@pytest.mark.parametrize("jump", [8 * HOUR, -10 * MINUTE])
@pytest.mark.parametrize("saved", ["before the clock is set", "after", "never"])
def test_a_clock_that_was_set_makes_no_delay_shorter_after_a_restart(
    tmp_path: Path, end: object, jump: int, saved: str
) -> None:
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.checkpoint()
    stage.client().publish(b"deferred", delay=30 * MINUTE)
    if saved == "before the clock is set":
        stage.checkpoint()
    stage.skew = jump  # the broker's time goes on in the next process
    stage.broker.skew = jump
    if saved == "after":
        stage.checkpoint()
    stage.pass_time(10 * MINUTE)
    end(stage)  # type: ignore[operator]

    consumer = stage.consumer()
    stage.pass_time(19 * MINUTE)
    assert consumer.received() == []
    stage.pass_time(MINUTE if end is Stage.restart or saved != "never" else 11 * MINUTE)  # or it waits again
    assert consumer.received() == [0]


def test_a_deferral_that_was_not_saved_with_its_message_begins_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.checkpoint()
    channel = stage.channel()
    channel.quiet_until = stage.now + HOUR  # as after a save of very many messages
    stage.client().publish(b"deferred", delay=30 * MINUTE)
    stage.checkpoint()  # that the message was handed over
    stage.now += 8 * HOUR
    stage.kill()

    consumer = stage.consumer()
    stage.pass_time(30 * MINUTE - 1)
    assert consumer.received() == []
    stage.pass_time(1)
    assert consumer.received() == [0]


@pytest.mark.parametrize("told", [True, False])
def test_a_clock_set_back_between_two_lives_holds_no_message_for_longer_than_any_delay(
    tmp_path: Path, told: bool
) -> None:
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.client().publish(b"deferred", delay=MINUTE)
    if told:
        stage.checkpoint()
    stage.now += 100 * HOUR
    stage.kill()
    stage.client().publish(b"also deferred", delay=MINUTE)
    if told:
        stage.checkpoint()
    stage.now -= 50 * HOUR
    stage.kill()

    consumer = stage.consumer()
    stage.pass_time(stage.options.max_req_timeout)
    assert set(consumer.received()) == {0, 1}


def test_ages_and_latencies_are_right_after_a_jump(tmp_path: Path) -> None:
    stage = Stage(tmp_path, e2e_processing_latency_percentiles=(0.5,), e2e_processing_latency_window_time=HOUR)
    consumer = stage.consumer()
    stage.broker.skew = 8 * HOUR
    stage.client().publish(b"x")
    stage.pass_time(10 * SECOND)
    assert oldest_age(stage.channel(), now=stage.now) == 10 * SECOND
    consumer.finish(0)

    assert list(stage.channel().latencies.samples(now=stage.now)) == [10 * SECOND]  # type: ignore[union-attr]


def test_a_segment_stamped_by_a_clock_that_ran_ahead_is_not_kept_for_ever() -> None:
    year = 365 * 24 * HOUR
    newest = [1 * HOUR, 2 * HOUR + year, 0, 3 * HOUR, 4 * HOUR]
    closed = [SimpleNamespace(end=10 * number, size=100, newest=time) for number, time in enumerate(newest, 1)]

    def gone(now: int) -> int:
        limits = RetentionLimits(age=2 * HOUR)
        return expendable(closed, active_bytes=0, needed=100, now=now, limits=limits, free=None)

    assert [gone(now * HOUR) for now in (3, 4, 5, 6, 7)] == [0, 1, 1, 4, 5]


@pytest.mark.parametrize("jump", [100 * HOUR, -100 * HOUR])
def test_a_clock_that_jumps_deletes_nothing_that_is_young(tmp_path: Path, jump: int) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=4096, retention_age=HOUR)
    consumer = stage.consumer()
    for _ in range(5):
        stage.client().publish(bytes(3000))
        consumer.finish(*consumer.received())
    stage.broker.skew = jump
    stage.checkpoint(trim=True)

    assert stage.broker.existing("t").log.first == 0


def test_what_has_waited_long_enough_does_not_wait_anew_when_the_clock_is_set_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0)
    stage.client().publish(b"first").publish(b"deferred", delay=SECOND)
    stage.pass_time(MINUTE)
    assert stage.channel().depth == 2
    stage.broker.close(now=stage.now)
    stage.now -= 2 * MINUTE
    stage.open()
    stage.pass_time(0)

    assert stage.channel().depth == 2
    assert [each[:2] for each in stage.consumer().take()[0]] == [(0, 1), (1, 1)]
