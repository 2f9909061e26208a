"""The setting `active`: one consumer of a channel gets messages, and the next takes over."""

import pytest

from lapwing.broker import stats
from lapwing.broker.channel.subscription import Credit
from lapwing.broker.client_stats import ClientInfo
from lapwing.broker.operations import claims
from lapwing.broker.stats import ChannelStats
from lapwing.wire.nsq.commands import Cls, Rdy, Req
from play import MINUTE, SECOND, Stage, identity, numbered


def configure(stage: Stage, **changes: object) -> None:
    stage.broker.settings.change_channel(stage.channel(), changes, now=stage.now)
    stage.commit()


@pytest.fixture
def single(stage: Stage) -> Stage:
    """A channel with one active consumer."""
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, active="single")
    return stage


def shown(stage: Stage) -> ChannelStats:
    topics = stats.topic_stats(stage.broker, now=stage.now, topic="t", channel="c")
    assert topics is not None
    return topics[0].channels[0]


def named(stage: Stage, name: str, count: int = 9) -> tuple[Credit, list[bytes]]:
    """A named consumer whose read waits."""
    parts: list[bytes] = []
    credit = Credit(stage.channel().named_holder(name), parts.append, lambda: None, count=count)
    stage.channel().subscribe(credit)
    stage.commit()
    return credit, parts


def test_the_oldest_consumer_gets_every_message(single: Stage):
    first, second, third = single.consumer(ready=2), single.consumer(), single.consumer()
    single.client().publish(*numbered(5))

    assert [each.received() for each in (first, second, third)] == [[0, 1], [], []]
    first.finish(0, 1)
    assert [each.received() for each in (first, second, third)] == [[2, 3], [], []]


def test_a_consumer_that_asks_for_nothing_is_not_chosen(single: Stage):
    idle, second = single.consumer(ready=0), single.consumer(ready=1)
    single.client().publish(*numbered(2))
    idle.say(Rdy(5))

    assert [idle.received(), second.received()] == [[], [0]]
    second.finish(0)
    assert [idle.received(), second.received()] == [[], [1]]


def test_the_next_takes_over_in_order_when_it_is_lost(single: Stage):
    first, second = single.consumer(ready=3), single.consumer(ready=2500)
    single.client().publish(*numbered(6))
    first.finish(1)
    first.leave()

    assert second.received() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("command", [Rdy(0), Cls()])
def test_the_next_takes_over_when_everything_is_answered(single: Stage, command: Rdy | Cls):
    first, second = single.consumer(ready=2), single.consumer()
    single.client().publish(*numbered(4))
    first.say(command)
    assert second.received() == []
    first.finish(0)
    assert second.received() == []
    first.requeue(1)

    assert second.received() == [2, 3, 1]


@pytest.mark.parametrize("command", [Rdy(0), Cls()])
def test_the_next_takes_over_at_once_from_one_that_holds_nothing(single: Stage, command: Rdy | Cls):
    first, second = single.consumer(), single.consumer()
    single.client().publish(b"one")
    first.finish(0).say(command)

    assert (shown(single).clients or ())[1].active
    single.client().publish(b"two")
    assert second.received() == [1]


def test_it_does_not_come_back_to_one_that_asks_again(single: Stage):
    first, second = single.consumer(), single.consumer()
    first.say(Rdy(0))
    first.say(Rdy(9))
    single.client().publish(b"one")

    assert [first.received(), second.received()] == [[], [0]]


def test_what_times_out_comes_to_the_same_or_the_next_one(single: Stage):
    first, second = single.consumer(), single.consumer()
    single.client().publish(b"one")
    single.pass_time(2 * MINUTE)
    assert first.take()[0] == [(0, 1, b"one"), (0, 2, b"one")]

    first.say(Rdy(0))
    single.pass_time(2 * MINUTE)
    assert second.take()[0] == [(0, 3, b"one")]


def test_messages_that_stay_with_a_lost_consumer_are_waited_for():
    stage = Stage(requeue_on_disconnect=False)
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, active="single")
    first, second = stage.consumer(ready=1), stage.consumer()
    stage.client().publish(*numbered(2))
    first.leave()
    assert second.received() == []
    stage.pass_time(2 * MINUTE)

    assert second.received() == [1, 0]  # a timeout goes behind what waited then, as in NSQ


def test_a_message_that_waits_for_its_retry_holds_nobody_up(single: Stage):
    first, second = single.consumer(ready=1), single.consumer()
    single.client().publish(*numbered(2))
    first.say(Req(identity(0), 10 * SECOND), Rdy(0))

    assert second.received() == [1]


@pytest.mark.parametrize("value", [None, "all"])
def test_everybody_gets_messages_when_the_setting_is_gone(single: Stage, value: str | None):
    first, second = single.consumer(ready=1), single.consumer(ready=1)
    single.client().publish(*numbered(2))
    configure(single, active=value)

    assert [first.received(), second.received()] == [[0], [1]]
    assert [each.active for each in shown(single).clients or ()] == [None, None]


def test_nobody_gets_more_while_two_hold_messages(stage: Stage):
    first, second = stage.consumer(ready=2), stage.consumer(ready=2)
    stage.client().publish(*numbered(6))
    ours, theirs = first.received(), second.received()
    assert len(ours) == len(theirs) == 2
    configure(stage, active="single")
    first.finish(ours[0])
    second.finish(theirs[0])
    assert [first.received(), second.received()] == [[], []]

    first.finish(ours[1])
    assert [first.received(), second.received()] == [[], [4]]


def test_it_stays_the_same_when_another_limit_changes(single: Stage):
    first, second = single.consumer(ready=0), single.consumer(ready=9)
    single.client().publish(*numbered(3))
    second.finish(0, 1, 2)
    second.received()
    first.say(Rdy(9))
    configure(single, max_in_flight=1)
    single.client().publish(*numbered(2))
    assert [first.received(), second.received()] == [[], [3]]

    configure(single, max_in_flight=None, rate="1/s")
    second.finish(3)
    assert [first.received(), second.received()] == [[], [4]]


def test_a_rate_holds_over_the_change(single: Stage):
    configure(single, rate="1/s")
    first, second = single.consumer(), single.consumer()
    single.client().publish(*numbered(3))
    first.finish(0)
    assert first.received() == [0]
    first.leave()
    assert second.received() == []
    single.pass_time(SECOND)
    assert second.received() == [1]


def test_a_last_chance_is_delivered_alone_to_the_active_one(single: Stage):
    configure(single, max_attempts=1)
    first, second, third = single.consumer(ready=2), single.consumer(ready=5), single.consumer()
    single.client().publish(*numbered(3))
    first.leave()
    assert [second.received(), third.received()] == [[0], []]
    second.finish(0)
    assert [second.received(), third.received()] == [[1], []]
    second.finish(1)
    assert [second.received(), third.received()] == [[2], []]


def test_it_combines_with_holding_while_connected(single: Stage):
    configure(single, hold="connection")
    first, second = single.consumer(ready=1), single.consumer()
    single.client().publish(*numbered(2))
    single.pass_time(60 * MINUTE)
    assert [first.received(), second.received()] == [[0], []]
    first.leave()
    assert second.received() == [0, 1]


def test_an_operator_hands_what_it_holds_to_another(single: Stage):
    first, second = single.consumer(ready=2), single.consumer(ready=3, about=ClientInfo(client_id="second"))
    single.client().publish(*numbered(5))
    to = second.holder.name
    assert claims.claim(single.channel(), [0], "ready", now=single.now, to=to) == [0]
    single.commit()
    assert [first.received(), second.received()] == [[0, 1, 0], []]  # it holds more: it gets the message again

    assert claims.claim(single.channel(), [0, 1], "ready", now=single.now, to=to) == [0, 1]
    single.commit()
    assert [first.received(), second.received()] == [[], [0, 1, 2]]


def test_named_consumers_take_turns(single: Stage):
    _, ones = named(single, "one", 1)
    _, twos = named(single, "two", 1)
    single.client().publish(*numbered(2))
    assert (len(ones), len(twos)) == (1, 0)
    single.channel().finish([0], now=single.now)
    single.commit()

    assert (len(ones), len(twos)) == (1, 1)


def test_a_read_that_does_not_wait_gets_nothing_while_another_holds_some(single: Stage):
    channel = single.channel()
    one, two = channel.named_holder("one"), channel.named_holder("two")
    single.client().publish(*numbered(3))

    def read(name: str) -> int:
        parts: list[bytes] = []
        credit = Credit(channel.named_holder(name), parts.append, lambda: None, count=1)
        channel.deliver_to(credit, now=single.now)
        return len(parts)

    assert [read("one"), read("two"), read("one")] == [1, 0, 1]
    channel.finish([0, 1], now=single.now)
    assert [read("two"), read("one")] == [1, 0]
    assert (len(one.in_flight), len(two.in_flight)) == (0, 1)


def test_a_claim_of_a_named_consumer_makes_it_the_active_one(single: Stage):
    consumer = single.consumer(ready=2)
    single.client().publish(*numbered(4))
    other = single.channel().named_holder("other")
    single.channel().claim([0], other, now=single.now)
    single.commit()
    assert consumer.received() == [0, 1]
    consumer.finish(1)
    assert consumer.received() == []  # the other one holds a message

    single.channel().finish([0], now=single.now, holder=other)
    single.commit()
    assert consumer.received() == [2, 3]


def test_what_a_named_consumer_holds_is_waited_for_after_a_restart(tmp_path):
    stage = Stage(tmp_path)
    stage.broker.topic("t").create_channel("c", now=stage.now)
    configure(stage, active="single")
    named(stage, "one", 1)
    stage.client().publish(*numbered(2))
    stage.checkpoint()
    stage.restart()
    consumer = stage.consumer()
    assert consumer.received() == []
    assert shown(stage).active == "one"

    stage.channel().finish([0], now=stage.now)
    stage.commit()
    assert consumer.received() == [1]


def test_it_is_shown_which_one_is_active(single: Stage):
    assert shown(single).active == ""
    first, second = single.consumer(), single.consumer(about=ClientInfo(client_id="second"))
    assert shown(single).active == first.holder.name
    assert [each.active for each in shown(single).clients or ()] == [True, False]
    first.leave()
    assert shown(single).active == second.holder.name
    second.say(Rdy(0))
    assert shown(single).active == ""
    named(single, "one")
    assert shown(single).active == "one"
    assert [(each.name, each.active) for each in shown(single).holders] == [("one", True)]


def test_a_channel_without_the_setting_shows_nothing_of_it(stage: Stage):
    stage.consumer()
    assert shown(stage).active is None
    assert [each.active for each in shown(stage).clients or ()] == [None]
