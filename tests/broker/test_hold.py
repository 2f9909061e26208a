"""The setting `hold`: how long a message stays with a consumer that does not answer."""

import pytest

from lapwing.broker.channel.entries import entries
from play import MINUTE, SECOND, Stage

HOUR = 60 * MINUTE


def hold(stage: Stage, value: str | None) -> None:
    stage.broker.settings.change_channel(stage.channel(), {"hold": value}, now=stage.now)


@pytest.fixture
def held(stage: Stage) -> Stage:
    """A channel whose messages stay with a consumer while it is connected."""
    stage.broker.topic("t").create_channel("c", now=stage.now)
    hold(stage, "connection")
    stage.client().publish(b"one", b"two")
    return stage


def test_a_message_stays_with_a_connected_consumer_far_beyond_every_timeout(held: Stage):
    consumer, other = held.consumer(), held.consumer()
    for _ in range(40):
        held.pass_time(5 * MINUTE)

    assert (consumer.received(), other.received()) == ([0, 1], [])
    assert held.channel().timeout_count == 0
    shown = entries(held.channel().ledger, now=held.now, limit=9)
    assert [(entry.sequence, entry.deadline) for entry in shown] == [(0, None), (1, None)]
    assert consumer.finish(0, 1).answers() == []
    assert held.channel().depth == held.channel().in_flight_count == 0


def test_a_touch_takes_nothing_from_it(held: Stage):
    consumer = held.consumer()
    consumer.touch(0)
    held.pass_time(3 * HOUR)

    assert consumer.received() == [0, 1]


def test_a_lost_connection_gives_the_messages_back_at_once(held: Stage):
    consumer = held.consumer()
    held.pass_time(HOUR)
    consumer.leave()
    other = held.consumer()

    assert other.take()[0] == [(0, 2, b"one"), (1, 2, b"two")]


def test_messages_of_a_lost_connection_wait_for_their_timeout_where_they_are_not_requeued():
    kept = Stage(requeue_on_disconnect=False)
    kept.broker.topic("t").create_channel("c", now=kept.now)
    hold(kept, "connection")
    kept.client().publish(b"one")
    consumer, other = kept.consumer(), kept.consumer(ready=0)
    kept.pass_time(HOUR)
    consumer.leave()
    other.subscription.size = 1
    kept.pass_time(2 * MINUTE)

    assert other.received() == [0]


def test_a_client_without_heartbeats_has_timeouts_as_before(held: Stage):
    silent = held.consumer(heartbeats=False)
    silent.received()
    silent.subscription.size = 0
    held.pass_time(2 * MINUTE)

    assert held.channel().timeout_count == 2


def test_the_setting_holds_for_messages_in_flight_when_it_is_changed(held: Stage):
    consumer = held.consumer()
    consumer.received()
    held.pass_time(HOUR)
    hold(held, None)
    consumer.subscription.size = 0
    held.pass_time(2 * MINUTE)
    assert held.channel().timeout_count == 2

    consumer.subscription.size = 2
    held.pass_time(SECOND)
    hold(held, "connection")
    held.pass_time(HOUR)
    assert held.channel().timeout_count == 2
    assert consumer.received() == [0, 1]


@pytest.mark.parametrize("stage", ["disk"], indirect=True)
def test_what_a_consumer_held_at_a_restart_comes_again(held: Stage):
    consumer = held.consumer()
    consumer.finish(0)
    held.checkpoint()
    held.restart()

    assert held.consumer().take()[0] == [(1, 2, b"two")]
