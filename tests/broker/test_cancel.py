"""Messages are cancelled by the message-id of their publisher while they wait."""

from collections.abc import Iterable

import pytest

from appending import append
from lapwing.broker.operations.cancel import Cancellation
from lapwing.errors import LapwingError
from lapwing.wire.nsq.commands import Rdy
from play import MINUTE, SECOND, Stage


class Stored:
    def settle(self, sequence: int, error: LapwingError | None) -> None:
        assert error is None


def publish(stage: Stage, *message_ids: str, defer: int = 0) -> None:
    topic = stage.broker.topic("t")
    if "c" not in topic.channels:
        topic.create_channel("c", now=stage.now)
    for each in message_ids:
        append(topic, each.encode(), Stored(), now=stage.now, defer=defer, headers={"message-id": each})
    stage.commit()


def cancel(stage: Stage, *message_ids: str, dry_run: bool = False) -> tuple[Iterable[str], dict[str, str]]:
    cancellation = Cancellation(stage.channel(), message_ids, dry_run=dry_run)
    while not cancellation.step(now=stage.now):
        stage.commit()
    stage.broker.checkpoint_topic(stage.broker.existing("t"), now=stage.now)
    return sorted(cancellation.cancelled), cancellation.refused


def test_messages_that_wait_for_their_first_delivery_are_never_delivered(stage: Stage):
    publish(stage, "a", "b", "ö\n", "d")
    assert cancel(stage, "b", "ö\n", "x") == (["b", "ö\n"], {"x": "no message with this id waits here"})

    assert stage.channel().depth == 2
    assert stage.consumer().received() == [0, 3]
    assert stage.channel().counts.claimed == 2


def test_deferred_and_requeued_messages_are_cancelled(stage: Stage):
    publish(stage, "later", "never", defer=MINUTE)
    publish(stage, "again")
    consumer = stage.consumer()
    assert consumer.received() == [2]
    consumer.say(Rdy(0)).requeue(2)
    assert cancel(stage, "never", "again") == (["again", "never"], {})
    stage.pass_time(2 * MINUTE)
    consumer.say(Rdy(10))

    assert consumer.received() == [0]
    consumer.finish(0)
    assert stage.channel().oldest() is None


def test_a_message_in_flight_is_left_with_its_consumer(stage: Stage):
    publish(stage, "a")
    consumer = stage.consumer()
    found, refused = cancel(stage, "a")

    assert (found, list(refused)) == ([], ["a"])
    assert refused["a"].startswith("in flight with nsq:")
    assert consumer.received() == [0]


def test_all_messages_of_one_id_are_cancelled_but_for_those_in_flight(stage: Stage):
    publish(stage, "a", "a", "a")
    consumer = stage.consumer(ready=1)

    assert cancel(stage, "a") == (["a"], {})
    assert consumer.say(Rdy(5)).received() == [0]


def test_a_dry_run_changes_nothing(stage: Stage):
    publish(stage, "a", "b")

    assert cancel(stage, "a", dry_run=True) == (["a"], {})
    assert stage.consumer().received() == [0, 1]
    assert stage.channel().counts.claimed == 0


def test_other_channels_still_get_the_message(stage: Stage):
    publish(stage, "a")
    stage.broker.existing("t").create_channel("other", now=stage.now)
    publish(stage, "b")
    cancel(stage, "b")

    assert stage.consumer().received() == [0]
    assert stage.consumer("other").received() == [1]


def test_what_a_paused_topic_has_not_handed_over_is_named(stage: Stage):
    publish(stage, "a")
    stage.broker.pause_topic("t", True, now=stage.now)
    publish(stage, "b")

    found, refused = cancel(stage, "a", "b")
    assert (found, refused) == (["a"], {"b": "the topic has not handed it to the channel yet, as it is paused"})


@pytest.mark.parametrize("stage", ["disk"], indirect=True)
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_cancelled_message_stays_so_across_a_restart(stage: Stage, end: str):
    publish(stage, "a", "b", "c")
    publish(stage, "later", defer=MINUTE)
    publish(stage, "d")
    assert cancel(stage, "b", "later", "d")[1] == {}
    getattr(stage, end)()
    consumer = stage.consumer()
    got = consumer.received()
    consumer.finish(*got)
    stage.pass_time(2 * MINUTE)

    assert (got, consumer.received()) == ([0, 2], [])


@pytest.mark.parametrize("stage", ["disk"], indirect=True)
def test_a_message_in_the_side_log_is_found_by_its_id(stage: Stage):
    publish(stage, "early", "other", defer=30 * MINUTE)
    publish(stage, *map(str, range(20)))
    stage.consumer().finish(*range(2, 22))
    channel = stage.channel()
    while not channel.copy_aside(22):
        stage.pass_time(SECOND)
    assert sorted(channel.side_logged.sequences) == [0, 1]
    assert cancel(stage, "early", "7") == (["early"], {"7": "no message with this id waits here"})
    stage.restart()

    assert sorted(stage.channel().ledger.sequences()) == [1]


def test_messages_far_behind_each_other_are_found(stage: Stage):
    publish(stage, "first")
    stage.client().publish(*[b"x"] * 12_000)
    publish(stage, "last")

    assert cancel(stage, "first", "last") == (["first", "last"], {})
    assert stage.channel().depth == 12_000
