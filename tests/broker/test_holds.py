"""A channel stands still while there is any reason for it, and nobody lifts the reason of another."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lapwing.broker.channel.holds import Hold
from lapwing.broker.settings import policies
from play import SECOND, Stage


def unpause(stage: Stage) -> None:
    stage.broker.pause_channel("t", "c", False)


def change(stage: Stage) -> None:
    stage.broker.settings.change_channel(stage.channel(), {"paused_until": "1s"}, now=stage.now)
    stage.pass_time(2 * SECOND)
    stage.broker.settings.change_channel(stage.channel(), {"max_attempts": 3}, now=stage.now)


def put_policy(stage: Stage) -> None:
    policy = policies.parse("p", {"settings": {"max_attempts": 3}}, now=stage.now)
    stage.broker.settings.put_policy(policy, now=stage.now)


def create_channel(stage: Stage) -> None:
    stage.broker.existing("t").create_channel("new", now=stage.now, cursor=0)


@pytest.mark.parametrize("act", [unpause, change, put_policy, create_channel])
def test_a_drain_that_has_ended_deliveries_keeps_them_ended(stage: Stage, act: Callable[[Stage], None]) -> None:
    consumer = stage.consumer(ready=0)
    stage.client().publish(b"a")
    stage.broker.begin_drain(now=stage.now, deadline=stage.now + SECOND)
    stage.pass_time(2 * SECOND)
    stage.checkpoint()
    act(stage)
    stage.commit()
    name = "new" if act is create_channel else "c"
    consumer = stage.consumer(name)
    assert consumer.received() == []

    stage.broker.end_drain()
    stage.commit()
    assert consumer.received() == [0]


def test_the_end_of_a_drain_leaves_a_paused_channel_paused(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.broker.begin_drain(now=stage.now, deadline=stage.now + SECOND)
    stage.pass_time(2 * SECOND)
    stage.checkpoint()
    stage.broker.pause_channel("t", "c", True)
    stage.broker.end_drain()
    stage.client().publish(b"a")
    assert consumer.received() == []

    unpause(stage)
    stage.commit()
    assert consumer.received() == [0]


def test_a_channel_with_a_damaged_journal_waits_after_a_restart_too_unless_it_is_unpaused(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer()
    stage.client().publish(b"a")
    stage.channel().hold(Hold.DOUBTFUL, until=stage.now + 10 * SECOND)
    stage.broker.settings.change_channel(stage.channel(), {"max_attempts": 3}, now=stage.now)
    stage.restart()
    consumer = stage.consumer()
    assert consumer.received() == []
    stage.pass_time(10 * SECOND)
    assert consumer.received() == [0]
    stage.checkpoint()

    stage.channel().hold(Hold.DOUBTFUL, until=stage.now + 10 * SECOND)
    unpause(stage)
    stage.client().publish(b"b")
    assert consumer.received() == [1]
    stage.restart()
    assert not stage.channel().holds
