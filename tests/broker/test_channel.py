"""One cursor, and who gets the next slice."""

from itertools import chain
from pathlib import Path

import pytest

from lapwing.broker.settings.options import TOPOLOGY_AWARE
from lapwing.errors import CursorConflict
from lapwing.wire.nsq.commands import Cls, Rdy
from play import MINUTE, MS, SECOND, Stage, drain, numbered

# --- who gets what -------------------------------------------------------------------------------------------------


def test_messages_come_in_order_of_publish(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"one").publish(b"two", b"three")

    assert consumer.take()[0] == [(0, 1, b"one"), (1, 1, b"two"), (2, 1, b"three")]
    assert stage.channel().depth == 0
    assert stage.channel().in_flight_count == 3


def test_a_batch_is_shared_out_evenly(stage: Stage) -> None:
    consumers = [stage.consumer() for _ in range(3)]
    stage.client().publish(*numbered(10))
    shares = drain(consumers)

    assert sorted(map(len, shares)) == [2, 4, 4]
    assert sorted(chain(*shares)) == list(range(10))


def test_messages_one_by_one_go_round(stage: Stage) -> None:
    consumers = [stage.consumer() for _ in range(3)]
    for body in numbered(9):
        stage.client().publish(body)

    assert [len(share) for share in drain(consumers)] == [3, 3, 3]


def test_what_one_has_no_room_for_others_get(stage: Stage) -> None:
    consumers = [stage.consumer(ready=ready) for ready in (1, 0, 100)]
    stage.client().publish(*numbered(10))

    assert [len(share) for share in drain(consumers)] == [1, 0, 9]


def test_ready_is_a_window_and_not_a_credit(stage: Stage) -> None:
    consumer = stage.consumer(ready=2)
    stage.client().publish(*numbered(5))
    assert consumer.received() == [0, 1]
    consumer.finish(0)
    assert consumer.received() == [2]
    consumer.say(Rdy(0)).finish(1, 2)
    assert consumer.received() == []
    consumer.say(Rdy(1))

    assert consumer.received() == [3]


def test_a_consumer_that_closes_gets_nothing_more_but_may_finish(stage: Stage) -> None:
    consumer = stage.consumer(ready=2)
    stage.client().publish(*numbered(5))
    consumer.received()
    consumer.say(Cls()).finish(0, 1).say(Rdy(5))

    assert consumer.take() == ([], [b"CLOSE_WAIT"])
    assert stage.channel().depth == 3


def test_a_slow_socket_gets_nothing_more_until_it_is_empty(stage: Stage) -> None:
    consumer = stage.consumer()
    consumer.subscription.unsent = 1 << 20
    stage.client().publish(*numbered(3))
    assert consumer.session.replies.ready == []

    consumer.subscription.unsent = 0
    stage.broker.mark_ready(stage.channel())
    stage.commit()
    assert consumer.received() == [0, 1, 2]


def test_a_sampling_consumer_gets_about_its_share_and_the_rest_is_dropped(stage: Stage) -> None:
    consumer = stage.consumer(sample_rate=20)
    stage.client().publish(*numbered(2000))
    received = consumer.received()
    channel = stage.channel()

    assert 300 < len(received) < 550
    assert received == sorted(received)
    assert (channel.depth, channel.in_flight_count) == (0, len(received))
    assert channel.discarded_count == 2000 - len(received)
    consumer.finish(*received)
    assert channel.in_flight_count == 0


def test_consumers_nearby_come_first_when_that_is_asked_for() -> None:
    stage = Stage(enable_experiment=(TOPOLOGY_AWARE,))
    far, near, region = (stage.consumer(locality=locality, ready=4) for locality in (0, 2, 1))
    stage.client().publish(*numbered(10))

    assert [len(share) for share in drain([near, region, far])] == [4, 4, 2]
    assert stage.channel().delivered == [2, 4, 4]


def test_otherwise_nearness_does_not_count() -> None:
    stage = Stage()
    consumers = [stage.consumer(locality=locality) for locality in (0, 2, 1)]
    stage.client().publish(*numbered(9))

    assert [len(share) for share in drain(consumers)] == [3, 3, 3]


# --- answers -------------------------------------------------------------------------------------------------------


def test_a_requeued_message_comes_behind_all_that_waits(stage: Stage) -> None:
    consumer = stage.consumer(ready=1)
    stage.client().publish(*numbered(3))
    assert consumer.received() == [0]
    consumer.requeue(0)
    stage.client().publish(b"later")
    order = []
    while received := consumer.take()[0]:
        order += [(sequence, attempts) for sequence, attempts, _ in received]
        consumer.finish(received[0][0])

    assert order == [(1, 1), (2, 1), (0, 2), (3, 1)]


def test_a_requeue_with_a_delay_waits(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    consumer.requeue(0, delay=SECOND)
    consumer.received()
    stage.pass_time(SECOND - 1)
    assert (consumer.received(), len(stage.channel().ledger.deferred)) == ([], 1)
    stage.pass_time(1)

    assert consumer.take()[0] == [(0, 2, b"a")]


def test_what_is_not_answered_for_in_time_goes_to_another(stage: Stage) -> None:
    slow = stage.consumer()
    stage.client().publish(b"a")
    assert slow.received() == [0]
    slow.say(Rdy(0))
    other = stage.consumer()
    stage.pass_time(MINUTE - 1)
    assert other.received() == []
    stage.pass_time(10 * MS)

    assert other.take()[0] == [(0, 2, b"a")]
    assert stage.channel().timeout_count == 1


def test_what_is_requeued_at_once_still_expires_and_comes_again(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    consumer.requeue(0)
    assert [attempts for _, attempts, _ in consumer.take()[0]] == [1, 2]
    stage.pass_time(2 * MINUTE)

    assert consumer.take()[0] == [(0, 3, b"a")]


def test_touch_holds_on_to_a_message(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a", b"b")
    consumer.received()
    stage.pass_time(MINUTE // 2)
    consumer.touch(1)
    stage.pass_time(MINUTE // 2 + 10 * MS)
    assert consumer.received() == [0]
    stage.pass_time(MINUTE // 2)

    assert consumer.received() == [1]


def test_attempts_stay_at_the_most_that_the_wire_has_room_for(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    stage.channel().ledger.attempts[0] = 65535
    consumer.requeue(0)

    assert [attempts for _, attempts, _ in consumer.take()[0]] == [1, 65535]
    assert stage.channel().ledger.attempts[0] == 65536


# --- coming and going ----------------------------------------------------------------------------------------------


def test_what_a_consumer_held_comes_before_all_else(stage: Stage) -> None:
    gone = stage.consumer(ready=3)
    stage.client().publish(*numbered(5))
    assert gone.received() == [0, 1, 2]
    gone.finish(1)
    gone.leave()
    other = stage.consumer()

    assert [(sequence, attempts) for sequence, attempts, _ in other.take()[0]] == [(0, 2), (2, 2), (3, 2), (4, 1)]


def test_what_a_consumer_held_waits_for_its_timeout_where_nsq_is_wanted() -> None:
    stage = Stage(requeue_on_disconnect=False)
    gone = stage.consumer(ready=2)
    stage.client().publish(*numbered(3))
    gone.leave()
    other = stage.consumer()
    channel = stage.channel()
    assert other.received() == [2]
    assert (channel.in_flight_count, len(channel.subscriptions)) == (3, 1)
    stage.pass_time(MINUTE + 10 * MS)

    assert other.received() == [0, 1, 2]
    assert len(channel.ledger.holders) == 1


@pytest.mark.parametrize("order", ["empty", "seek"])
def test_a_consumer_that_is_gone_is_forgotten_with_what_it_held(order: str) -> None:
    stage = Stage(requeue_on_disconnect=False)
    gone = stage.consumer()
    stage.client().publish(*numbered(3))
    gone.leave()
    channel = stage.channel()
    channel.empty() if order == "empty" else channel.seek(3)

    assert not channel.ledger.holders
    assert channel.in_flight_count == 0


# --- orders from above ---------------------------------------------------------------------------------------------


def test_a_paused_channel_delivers_nothing_and_goes_on_later(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.broker.pause_channel("t", "c", True)
    stage.client().publish(*numbered(2))
    assert (consumer.received(), stage.channel().depth) == ([], 2)
    stage.broker.pause_channel("t", "c", False)
    stage.commit()

    assert consumer.received() == [0, 1]


def test_emptying_drops_all_that_waits_is_in_flight_or_deferred(stage: Stage) -> None:
    consumer = stage.consumer(ready=2)
    stage.client().publish(*numbered(5)).publish(b"deferred", delay=SECOND)
    consumer.received()
    channel = stage.channel()
    channel.empty()
    assert (channel.depth, channel.in_flight_count, len(channel.ledger.deferred), channel.cursor) == (0, 0, 0, 6)
    consumer.finish(0)
    assert consumer.answers() == [b"E_FIN_FAILED FIN 0140000000000000 failed ID not in flight"]
    stage.pass_time(2 * MINUTE)
    stage.client().publish(b"after")

    assert consumer.received() == [6]


def test_seeking_forward_finishes_all_before(stage: Stage) -> None:
    consumer = stage.consumer(ready=3)
    stage.client().publish(*numbered(10)).publish(b"deferred", delay=SECOND)
    consumer.requeue(0, delay=SECOND)
    consumer.received()
    stage.channel().seek(8)
    stage.commit()

    assert consumer.received() == [8, 9]
    stage.pass_time(2 * SECOND)
    assert consumer.received() == [10]


def test_seeking_back_delivers_again(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(*numbered(5))
    consumer.finish(*consumer.received())
    stage.channel().seek(3, back=True)
    stage.commit()

    assert consumer.take()[0] == [(3, 1, numbered(5)[3]), (4, 1, numbered(5)[4])]


def test_a_cursor_goes_back_only_when_told_so(stage: Stage) -> None:
    stage.consumer().say(Rdy(1))
    stage.client().publish(*numbered(5))

    with pytest.raises(CursorConflict):
        stage.channel().seek(0)
    assert stage.channel().in_flight_count == 1


def test_a_move_to_deferred_messages_is_no_move_back(stage: Stage) -> None:
    """A reader of the log commits in its own time; the cursor has jumped over what was deferred meanwhile."""
    stage.consumer(ready=0)
    stage.client().publish(b"first").publish(b"a", delay=MINUTE).publish(b"b", delay=MINUTE).publish(b"last")
    stage.channel().seek(1)
    assert stage.channel().cursor == 3
    stage.channel().seek(2)  # the reader has read "a"; "b" is still deferred

    assert stage.channel().cursor == 3
    assert stage.channel().ledger.sequences() == [2]
    with pytest.raises(CursorConflict):
        stage.channel().seek(1)  # "a" is finished
    stage.pass_time(2 * MINUTE)
    stage.channel().seek(2)  # "b" is due, and nobody was given it
    assert stage.channel().depth == 2
    stage.channel().seek(4)
    assert stage.channel().depth == 0
    assert stage.channel().ledger.sequences() == []


def test_a_seek_past_the_end_stops_at_it(stage: Stage) -> None:
    consumer = stage.consumer(ready=0)
    stage.client().publish(*numbered(5))
    stage.channel().seek(99)
    stage.client().publish(b"new")
    consumer.say(Rdy(5))

    assert consumer.received() == [5]


def test_seeking_forward_counts_what_waits_for_its_time_once(stage: Stage) -> None:
    consumer = stage.consumer(ready=0)
    stage.client().publish(*numbered(3)).publish(b"deferred", delay=SECOND).publish(b"last")
    stage.channel().seek(1, back=True)

    assert stage.channel().depth == 3
    consumer.say(Rdy(10))
    assert consumer.received() == [1, 2, 4]
    stage.pass_time(SECOND)
    assert consumer.received() == [3]


def test_seeking_back_lets_what_was_deferred_wait_from_its_publish_on(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a").publish(b"deferred", delay=10 * SECOND)
    stage.pass_time(4 * SECOND)
    stage.channel().seek(0, back=True)
    stage.commit()
    assert consumer.received() == [0, 0]
    stage.pass_time(6 * SECOND)

    assert consumer.take()[0] == [(1, 1, b"deferred")]


def test_the_oldest_unfinished_is_known(stage: Stage) -> None:
    consumer = stage.consumer(ready=2)
    channel = stage.channel()
    assert channel.oldest() is None
    stage.client().publish(*numbered(3))
    consumer.finish(0)
    assert channel.oldest() == 1
    consumer.finish(1, 2)

    assert channel.oldest() is None


def test_what_was_dropped_in_the_topic_stays_dropped_for_who_seeks_back_and_after_a_restart(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer().publish(b"zero").finish(0).leave()
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(b"dropped").publish(b"dropped too", delay=SECOND)
    stage.broker.existing("t").empty()
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.client().publish(b"three")
    stage.channel().seek(0, back=True)
    assert (stage.channel().depth, len(stage.channel().ledger.deferred)) == (2, 0)

    stage.restart()
    assert (stage.channel().depth, len(stage.channel().ledger.deferred)) == (2, 0)
    assert stage.consumer().received() == [0, 3]


def test_a_seek_survives_a_kill_however_much_the_channel_has_in_flight(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=80).publish(*numbered(100))
    stage.checkpoint()
    stage.channel().seek(90)
    stage.broker.checkpoint_topic(stage.channel().topic, now=stage.now)
    stage.kill()

    assert stage.consumer().received() == list(range(90, 100))


# --- ephemeral channels --------------------------------------------------------------------------------------------


def test_an_ephemeral_channel_drops_the_newest_that_it_has_no_room_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path, mem_queue_size=3)
    consumer = stage.consumer("c#ephemeral", ready=2)
    stage.client().publish(*numbered(10))
    assert consumer.received() == [0, 1]
    consumer.finish(0, 1)
    assert consumer.received() == [2, 3]
    consumer.finish(2, 3)

    assert consumer.received() == [4]
    assert stage.channel("c#ephemeral").dropped_count == 5


def test_an_ephemeral_channel_without_room_drops_what_comes_and_nothing_that_it_has() -> None:
    stage = Stage(mem_queue_size=3)
    gone, other = stage.consumer("c#ephemeral"), stage.consumer("c#ephemeral", ready=0)
    gone.publish(*numbered(5)).say(Rdy(0)).publish(*numbered(2))
    gone.leave()
    other.publish(b"too much")
    channel = stage.channel("c#ephemeral")
    assert (channel.depth, channel.dropped_count) == (7, 1)

    assert other.say(Rdy(9)).received() == list(range(7))


def test_an_ephemeral_channel_goes_with_its_last_consumer(stage: Stage) -> None:
    one, two = stage.consumer("c#ephemeral"), stage.consumer("c#ephemeral")
    one.leave()
    assert "c#ephemeral" in stage.broker.existing("t").channels
    two.leave()

    assert stage.broker.existing("t").channels == {}
