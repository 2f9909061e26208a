"""What counts as a failure, and what a channel with settings does about it."""

from pathlib import Path

import pytest

from appending import append
from failing import configure, fail, failures, letters, reject, release
from lapwing.broker.channel.ledger import Holder, Reason
from lapwing.broker.operations import claims
from lapwing.broker.settings import policies
from lapwing.errors import WriteFailed
from lapwing.wire.nsq.commands import Cls, Rdy
from overriding import overriding
from play import MINUTE, MS, SECOND, Stage, identity, numbered

# --- what counts ------------------------------------------------------------------------------------------------


def test_requeues_timeouts_and_lost_connections_are_failures(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a")
    fail(consumer, 0)
    assert failures(stage, 0) == 1
    stage.pass_time(MINUTE + 10 * MS)
    assert failures(stage, 0) == 2
    consumer.leave()

    assert failures(stage, 0) == 3
    assert stage.channel().counts.failures == 3
    assert [attempts for _, attempts, _ in stage.consumer().take()[0]] == [4]


def test_releases_closings_restarts_and_claims_are_none(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(b"a")
    release(consumer, 0)
    stage.pass_time(MS)
    consumer.say(Cls())
    consumer.leave()
    consumer = stage.consumer()
    assert consumer.received() == [0]
    stage.restart()
    consumer = stage.consumer()
    assert consumer.received() == [0]
    stage.checkpoint()
    stage.kill()
    stage.consumer()
    channel = stage.channel()
    channel.give_back(channel.ledger.take_all(next(iter(channel.ledger.holders))), Reason.CLAIMED, now=stage.now)

    assert failures(stage, 0) == 0
    assert channel.counts.failures == 0


def test_failures_survive_and_are_forgotten_when_the_message_is_finished(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    for sequence in (0, 0, 1):
        fail(consumer, sequence)
        consumer.take()
    stage.checkpoint()
    stage.kill()
    assert [failures(stage, each) for each in range(3)] == [2, 1, 0]
    stage.consumer().finish(0)
    assert failures(stage, 0) == 0
    stage.checkpoint()
    stage.kill()

    assert [failures(stage, each) for each in range(3)] == [0, 1, 0]


def test_without_settings_a_requeue_is_what_it_was(stage: Stage):
    consumer = stage.consumer(ready=1)
    stage.client().publish(*numbered(2))
    assert consumer.received() == [0]
    fail(consumer, 0)
    assert consumer.received() == [1]
    consumer.finish(1)

    assert consumer.take()[0][0][:2] == (0, 2)


# --- retries ----------------------------------------------------------------------------------------------------


def test_the_broker_backs_off(stage: Stage):
    consumer = stage.consumer()
    configure(stage, retry_first="1s", retry_factor=3, retry_max="5s", retry_jitter=0)
    stage.client().publish(b"a")
    for wait in (1, 3, 5, 5):
        assert consumer.received() == [0]
        fail(consumer, 0)
        stage.pass_time(wait * SECOND - MS)
        assert consumer.received() == []
        stage.pass_time(MS)

    assert consumer.take()[0][0][:2] == (0, 5)


def test_back_off_after_a_timeout_and_a_lost_connection_too(stage: Stage):
    consumer = stage.consumer()
    configure(stage, retry_first="10s", retry_jitter=0, retry_factor=1)
    stage.client().publish(b"a")
    assert consumer.received() == [0]
    stage.pass_time(MINUTE + 10 * MS)
    assert consumer.received() == []
    stage.pass_time(10 * SECOND)
    assert consumer.received() == [0]
    consumer.leave()
    other = stage.consumer()
    assert other.received() == []
    stage.pass_time(10 * SECOND)

    assert other.received() == [0]


def test_an_explicit_delay_wins_and_a_release_does_not_back_off(stage: Stage):
    consumer = stage.consumer()
    configure(stage, retry_first="10s", retry_jitter=0)
    stage.client().publish(b"a")
    fail(consumer, 0, delay=2 * SECOND)
    consumer.take()
    stage.pass_time(2 * SECOND)
    assert consumer.received() == [0]
    release(consumer, 0)

    assert consumer.received() == [0]


def test_jitter_spreads_retries(stage: Stage):
    consumer = stage.consumer()
    configure(stage, retry_first="10s", retry_jitter=0.5)
    stage.client().publish(*numbered(200))
    consumer.leave()
    assert len(stage.channel().ledger.deferred) == 200
    stage.pass_time(5 * SECOND - MS)
    assert stage.channel().depth == 0
    stage.pass_time(5 * SECOND)
    assert 60 < stage.channel().depth < 140
    stage.pass_time(5 * SECOND + MS)

    assert stage.channel().depth == 200


# --- giving up --------------------------------------------------------------------------------------------------


def test_a_message_that_keeps_failing_becomes_a_dead_letter(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=3)
    stage.client().publish(b"bad").publish(b"good")
    for attempt in range(3):
        assert 0 in consumer.received()
        stage.now += SECOND
        fail(consumer, 0, error=f"error {attempt}")

    assert consumer.received() == []
    ((body, headers),) = letters(stage)
    assert body == b"bad"
    log = stage.broker.existing("t").log
    assert headers == {
        "dead-topic": "t",
        "dead-channel": "c",
        "dead-node": stage.broker.node_name,
        "dead-log": log.identity,
        "dead-sequence": "0",
        "dead-id": identity(0).decode(),
        "dead-reason": "attempts",
        "dead-error": "error 2",
        "dead-failures": "3",
        "dead-deliveries": "3",
        "dead-published": "1970-01-01T00:16:40Z",
        "dead-first-failed": "1970-01-01T00:16:41Z",
        "dead-at": "1970-01-01T00:16:43Z",
        "dead-consumer": consumer.holder.name,
    }
    channel, dead = stage.channel(), stage.channel("dead", "t.c.dead")
    assert channel.counts.dead == 1
    assert (channel.depth, channel.in_flight_count) == (0, 1)
    assert dead.depth == 1
    assert failures(stage, 0) == 0
    consumer.finish(1)


def test_a_timeout_and_a_lost_connection_give_up_too(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=2)
    stage.client().publish(b"a")
    stage.pass_time(MINUTE + 10 * MS)
    assert consumer.received() == [0, 0]
    consumer.leave()

    assert [headers["dead-failures"] for _, headers in letters(stage)] == ["2"]


def test_reason_and_error_of_a_reject_take_four_kib_together(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a")
    reject(consumer, 0, "r" * 4000, "é" * 4000)

    ((_, headers),) = letters(stage)
    assert 4095 <= len(headers["dead-error"].encode()) <= 4096


def test_a_reject_gives_up_at_once(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a", b"b")
    reject(consumer, 0, "no such customer", "KeyError: 17")
    reject(consumer, 1, "why not")

    (one, headers), (two, others) = letters(stage)
    assert (one, two) == (b"a", b"b")
    assert headers["dead-reason"] == "rejected"
    assert headers["dead-error"] == "no such customer: KeyError: 17"
    assert others["dead-error"] == "why not"
    assert headers["dead-failures"] == "0"
    assert headers["dead-deliveries"] == "1"
    assert stage.channel().in_flight_count == 0


def test_a_reject_of_what_one_does_not_hold_fails(stage: Stage):
    consumer, other = stage.consumer(), stage.consumer(ready=0)
    stage.client().publish(b"a")
    reject(other, 0)
    reject(consumer, 5)

    assert other.answers() == [b"E_REJ_FAILED REJ %b failed client does not own message" % identity(0)]
    assert consumer.answers() == [b"E_REJ_FAILED REJ %b failed ID not in flight" % identity(5)]
    assert letters(stage) == []


def test_without_a_dead_letter_topic_messages_are_dropped_with_a_log_line(stage: Stage):
    consumer = stage.consumer()
    configure(stage, dead_topic="", max_attempts=1)
    stage.client().publish(*numbered(3))
    for sequence in (0, 1):
        fail(consumer, sequence)
    reject(consumer, 2)

    assert list(stage.broker.topics) == ["t"]
    assert stage.channel().counts.dead == 3
    assert stage.reports == [
        "channel t/c: gave up message 0 (attempts) and dropped it, as dead_topic is empty; 1 so far"
    ]
    assert (stage.channel().depth, stage.channel().in_flight_count) == (0, 0)


def test_ephemeral_channels_keep_no_dead_letters_unless_a_topic_is_named(stage: Stage):
    consumer = stage.consumer("c#ephemeral")
    stage.client().publish(b"a", b"b")
    reject(consumer, 0)
    assert list(stage.broker.topics) == ["t"]
    configure(stage, "c#ephemeral", dead_topic="bin")
    reject(consumer, 1)

    assert [body for body, _ in letters(stage, "bin")] == [b"b"]


def test_the_headers_of_the_message_are_kept(stage: Stage):
    consumer = stage.consumer()
    topic = stage.broker.existing("t")

    class Receipt:
        def settle(self, sequence: int, error: object) -> None:
            assert error is None

    append(topic, b"a", Receipt(), now=stage.now, headers={"key": "k", "traceparent": "x"})
    stage.commit()
    reject(consumer, 0)

    ((_, headers),) = letters(stage)
    assert (headers["key"], headers["traceparent"]) == ("k", "x")


def test_a_dead_letter_never_makes_another(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a", b"b")
    reject(consumer, 0)
    reject(consumer, 1)
    undertaker = stage.consumer("dead", topic="t.c.dead")
    configure(stage, "dead", "t.c.dead", max_attempts=2, retry_max="10s")
    assert undertaker.received() == [0, 1]
    fail(undertaker, 0)
    assert undertaker.received() == [0]
    fail(undertaker, 0)
    reject(undertaker, 1)

    assert "t.c.dead.dead.dead" not in stage.broker.topics or not letters(stage, "t.c.dead.dead.dead")
    channel = stage.channel("dead", "t.c.dead")
    assert (channel.depth, channel.in_flight_count, len(channel.ledger.deferred)) == (0, 0, 1)
    stage.pass_time(10 * SECOND)
    assert undertaker.received() == [0]


def test_other_channels_of_the_topic_are_not_concerned(stage: Stage):
    consumer, other = stage.consumer(), stage.consumer("other")
    stage.client().publish(b"a")
    reject(consumer, 0)

    assert other.received() == [0]
    assert stage.channel("other").in_flight_count == 1


def test_many_are_moved_in_one_turn(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(2500))
    for sequence in range(2500):
        consumer.session.handle(stage_req(sequence), now=stage.now)
    stage.commit()

    assert [body for body, _ in letters(stage)] == numbered(2500)
    assert stage.channel().in_flight_count == 0
    assert stage.channel().counts.dead == 2500


def stage_req(sequence: int):
    from lapwing.wire.nsq.commands import Req

    return Req(identity(sequence), 0)


# --- one crash buries nobody who is innocent --------------------------------------------------------------------


def test_a_message_that_only_lost_connections_is_delivered_alone_before_it_is_given_up(stage: Stage):
    configure_first = stage.consumer()
    configure(stage, max_attempts=2)
    stage.client().publish(*numbered(3))
    configure_first.leave()
    stage.consumer(ready=3).leave()
    assert letters(stage) == []
    consumer = stage.consumer(ready=3)
    stage.client().publish(b"fresh")
    assert consumer.received() == [0]
    consumer.finish(0)
    assert consumer.received() == [1]
    consumer.leave()  # it was this one
    assert [headers["dead-sequence"] for _, headers in letters(stage)] == ["1"]
    last = stage.consumer(ready=3)
    assert last.received() == [2]
    last.finish(2)

    assert last.received() == [3]


def test_a_consumer_that_holds_others_is_kept_free_for_it(stage: Stage):
    first = stage.consumer(ready=1)
    configure(stage, max_attempts=1)
    stage.client().publish(b"a")
    busy = stage.consumer(ready=2)
    stage.client().publish(b"b", b"c", b"d")
    assert busy.received() == [1, 2]
    first.leave()
    assert busy.received() == []
    busy.finish(1)
    assert busy.received() == []
    busy.finish(2)
    assert busy.take()[0][0][:2] == (0, 2)
    assert busy.received() == []
    busy.finish(0)

    assert busy.received() == [3]


def test_other_consumers_go_on_meanwhile(stage: Stage):
    first = stage.consumer(ready=1)
    configure(stage, max_attempts=1)
    stage.client().publish(b"a")
    one, two = stage.consumer(ready=1), stage.consumer(ready=1)
    stage.client().publish(b"b", b"c", b"d", b"e")
    held = {one: one.received()[0], two: two.received()[0]}
    first.leave()
    one.finish(held[one])
    two.finish(held[two])
    got = sorted([one.received()[0], two.received()[0]])

    assert got == [0, 3]


def test_a_failure_of_another_kind_needs_no_delivery_alone(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=2)
    stage.client().publish(b"a")
    fail(consumer, 0)
    consumer.leave()

    assert len(letters(stage)) == 1


@pytest.mark.parametrize("stop", ["restart", "kill", "kill while one is delivered"])
def test_messages_wait_to_be_alone_after_a_restart_too(tmp_path: Path, stop: str):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(4))
    consumer.leave()
    assert stage.channel().depth == 4
    if "while" in stop:
        assert stage.consumer().received() == [0]
    if stop == "restart":
        stage.restart()
    else:
        stage.checkpoint()
        stage.kill()
    consumer = stage.consumer()
    assert stage.channel().depth == 3
    assert consumer.received() == [0]
    consumer.leave()

    assert [headers["dead-sequence"] for _, headers in letters(stage)] == ["0"]
    assert stage.consumer().received() == [1]


@pytest.mark.parametrize("delay", [0, SECOND])
def test_a_claim_does_not_cancel_the_delivery_alone(stage: Stage, delay: int):
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(4))
    consumer.leave()
    action = "defer" if delay else "ready"
    assert claims.claim(stage.channel(), range(4), action, now=stage.now, delay=delay) == [0, 1, 2, 3]
    stage.pass_time(delay)
    assert stage.channel().depth == 4
    consumer = stage.consumer()
    assert consumer.received() == [0]
    release(consumer, 0)
    assert len(consumer.received()) == 1
    consumer.leave()

    assert len(letters(stage)) == 1


def test_a_claim_for_a_consumer_gives_it_no_company_for_what_it_holds(stage: Stage):
    first = stage.consumer(ready=1)
    configure(stage, max_attempts=1)
    stage.client().publish(b"a")
    first.leave()
    one = stage.consumer(ready=1)
    assert one.received() == [0]
    two = stage.consumer(ready=2)
    stage.client().publish(b"b")
    assert two.received() == [1]
    name = next(each.holder.name for each in stage.channel().subscriptions if 1 in each.holder.in_flight)
    assert claims.claim(stage.channel(), [0], "ready", now=stage.now, to=name) == [0]
    stage.commit()

    assert two.received() == []
    assert one.received() == [0]


def test_messages_that_wait_to_be_alone_stay_so_when_the_cursor_moves_back(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(4))
    consumer.leave()
    stage.channel().move(0)
    assert stage.channel().depth == 4
    consumer = stage.consumer()
    for sequence in range(4):
        assert consumer.received() == [sequence]
        consumer.finish(sequence)
    consumer.leave()

    assert stage.channel().depth == 0
    assert stage.consumer().received() == []


def test_a_message_that_waits_to_be_alone_can_be_put_in_flight(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(b"a")
    consumer.leave()
    channel = stage.channel()
    channel.force(0, Holder("redis"), delivered=stage.now)

    assert (channel.depth, channel.in_flight_count) == (0, 1)


def test_a_consumer_without_room_is_not_given_a_message_alone(stage: Stage):
    consumer = stage.consumer(ready=1)
    configure(stage, max_attempts=1)
    stage.client().publish(b"a")
    consumer.leave()
    idle = stage.consumer(ready=0)
    assert idle.received() == []
    idle.say(Rdy(1))

    assert idle.received() == [0]


# --- the dead-letter topic refuses ------------------------------------------------------------------------------


def test_a_message_waits_when_its_dead_letter_topic_refuses_and_health_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    configure(stage, retry_max="30s")
    stage.client().publish(b"a", b"b")
    reject(consumer, 0)
    log = stage.broker.existing("t.c.dead").log

    def refuse() -> None:
        log.forget()
        raise WriteFailed(str(tmp_path), 0, OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(log, "__class__", overriding(log, flush=refuse))
        reject(consumer, 1)
    channel = stage.channel()
    assert (len(channel.ledger.deferred), channel.in_flight_count, channel.depth) == (1, 0, 0)
    stage.client().publish(b"c")  # which can be written, so that nothing else is wrong
    assert stage.broker.health is not None
    assert "dead letters of t/c wait: " in stage.broker.health
    assert "No space left on device" in stage.broker.health
    assert consumer.received() == [0, 1, 2]
    stage.pass_time(30 * SECOND)

    assert [body for body, _ in letters(stage)] == [b"a", b"b"]
    assert stage.broker.health is None
    assert consumer.received() == []


def test_a_topic_that_cannot_be_made_refuses_too(stage: Stage):
    stage = Stage(max_topics=1)
    consumer = stage.consumer()
    configure(stage, retry_max="5s")
    stage.client().publish(b"a")
    reject(consumer, 0)
    assert "this node has 1 topics" in (stage.broker.health or "")
    assert len(stage.channel().ledger.deferred) == 1
    configure(stage, dead_topic="")
    stage.pass_time(5 * SECOND)

    assert stage.broker.health is None
    assert stage.channel().counts.dead == 1


def test_a_channel_that_is_emptied_or_deleted_meanwhile_is_no_problem(stage: Stage):
    stage.broker.options.__class__  # noqa: B018 - the stage is in memory or on disk
    consumer = stage.consumer()
    stage.client().publish(b"a", b"b")
    consumer.session.handle(reject_command(0), now=stage.now)
    stage.broker.empty_channel("t", "c", now=stage.now)
    stage.commit()
    assert stage.channel().counts.dead == 0
    stage.client().publish(b"c")
    consumer.session.handle(reject_command(2), now=stage.now)
    stage.broker.delete_channel("t", "c")
    stage.commit()

    assert "c" not in stage.broker.existing("t").channels


def reject_command(sequence: int):
    from lapwing.wire.nsq.commands import Rej

    return Rej.of(identity(sequence), "no")


# --- kill -9 ----------------------------------------------------------------------------------------------------


def test_after_a_kill_a_copy_is_recognised_and_not_made_again(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(6))
    fail(consumer, 0)
    stage.checkpoint()
    for sequence in (1, 2):
        fail(consumer, sequence)
    reject(consumer, 3)
    assert len(letters(stage)) == 4
    stage.kill()  # the journal does not know that 1, 2 and 3 are finished
    consumer = stage.consumer()

    assert consumer.received() == [4, 5]
    assert len(letters(stage)) == 4
    assert stage.channel("dead", "t.c.dead").depth == 4


def test_a_message_that_was_given_up_and_not_copied_is_moved_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(stage.broker.mover, "publish", lambda now, most: stage.broker.mover.waiting.clear() or most)
        reject(consumer, 0, "never")
    stage.checkpoint()
    assert letters(stage) == []
    stage.kill()

    ((body, headers),) = letters(stage)
    assert (body, headers["dead-reason"]) == (b"a", "rejected")
    assert stage.consumer().received() == []


def test_a_dead_letter_topic_that_was_deleted_is_made_again(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a", b"b")
    reject(consumer, 0)
    stage.broker.delete_topic("t.c.dead")
    reject(consumer, 1)

    assert [body for body, _ in letters(stage)] == [b"b"]
    assert stage.channel("dead", "t.c.dead").depth == 1


# --- limits -----------------------------------------------------------------------------------------------------


def test_no_more_are_in_flight_than_the_channel_may_have(stage: Stage):
    one, two = stage.consumer(), stage.consumer()
    configure(stage, max_in_flight=3)
    stage.client().publish(*numbered(10))
    assert len(one.received() + two.received()) == 3
    holder = one if one.holder.in_flight else two
    holder.finish(next(iter(holder.holder.in_flight)))
    assert len(one.received() + two.received()) == 1
    configure(stage, max_in_flight=None)

    assert len(one.received() + two.received()) == 6


def test_deliveries_keep_to_the_rate(stage: Stage):
    consumer = stage.consumer()
    configure(stage, rate="10/s", burst=2)
    stage.client().publish(*numbered(10))
    assert len(consumer.received()) == 2
    stage.pass_time(99 * MS)
    assert consumer.received() == []
    for expected in range(2, 6):
        stage.pass_time(MS if expected == 2 else 100 * MS)
        assert consumer.received() == [expected]
    stage.pass_time(SECOND)
    assert len(consumer.received()) == 2

    assert stage.channel().counts.throttled > 0


def test_a_message_that_is_too_old_is_not_delivered(stage: Stage):
    consumer = stage.consumer(ready=1)
    configure(stage, message_ttl="10s")
    stage.client().publish(*numbered(3))
    assert consumer.received() == [0]
    stage.pass_time(5 * SECOND)
    stage.client().publish(b"young")
    stage.pass_time(6 * SECOND)
    fail(consumer, 0)
    assert consumer.received() == [3]
    consumer.finish(3)
    assert consumer.received() == []

    assert stage.channel().counts.expired == 3
    assert stage.channel().depth == 0
    assert list(stage.broker.topics) == ["t"]


def test_expired_messages_become_dead_letters_if_so_set(stage: Stage):
    consumer = stage.consumer(ready=1)
    configure(stage, message_ttl="10s", expired_to_dead=True)
    stage.client().publish(*numbered(3))
    stage.pass_time(11 * SECOND)
    stage.client().publish(b"young")
    fail(consumer, 0)
    consumer.finish(3)

    assert [headers["dead-reason"] for _, headers in letters(stage)] == ["expired"] * 3
    by_sequence = {headers["dead-sequence"]: headers for _, headers in letters(stage)}
    assert (by_sequence["0"]["dead-deliveries"], by_sequence["0"]["dead-failures"]) == ("1", "1")
    assert (by_sequence["1"]["dead-deliveries"], by_sequence["1"]["dead-failures"]) == ("0", "0")
    assert consumer.received() == [0, 3]
    assert stage.channel().counts.expired == 3


def test_expiry_leaves_the_rate_to_those_who_are_young(stage: Stage):
    consumer = stage.consumer(ready=0)
    configure(stage, message_ttl="10s", rate="1/m", burst=1)
    stage.client().publish(*numbered(3))
    stage.pass_time(11 * SECOND)
    stage.client().publish(b"young", b"next")
    consumer.say(Rdy(5))

    assert consumer.received() == [3]


def test_the_timeout_of_the_channel_holds_for_those_who_ask_for_nothing(stage: Stage):
    plain, own = stage.consumer(ready=1), stage.consumer(ready=1, msg_timeout=30 * SECOND, touch_timeout=30 * SECOND)
    configure(stage, msg_timeout="10s")
    stage.client().publish(b"a", b"b")
    first = plain.received()
    assert len(own.received()) == 1
    stage.pass_time(10 * SECOND + 10 * MS)
    assert plain.received() == first
    assert own.received() == []
    stage.pass_time(9 * SECOND)
    plain.touch(first[0])
    stage.pass_time(9 * SECOND)
    assert plain.received() == []
    stage.pass_time(2 * SECOND)

    assert plain.received() == first


# --- more than fits ---------------------------------------------------------------------------------------------


def test_the_oldest_are_dropped_when_more_waits_than_may(stage: Stage):
    consumer = stage.consumer(ready=2)
    configure(stage, max_depth=3, overflow="drop-oldest")
    stage.client().publish(*numbered(4))
    assert consumer.received() == [0, 1]
    stage.client().publish(*numbered(4))
    assert stage.channel().depth == 3
    assert stage.channel().counts.overflowed == 3
    consumer.finish(0, 1)
    assert consumer.received() == [5, 6]
    consumer.leave()
    stage.client().publish(b"x")

    assert stage.channel().counts.overflowed == 4
    assert stage.consumer().received() == [6, 7, 8]


def test_the_oldest_become_dead_letters_when_more_waits_than_may(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=2, overflow="dead")
    stage.client().publish(*numbered(5))

    assert [headers["dead-sequence"] for _, headers in letters(stage)] == ["0", "1", "2"]
    assert {headers["dead-reason"] for _, headers in letters(stage)} == {"overflow"}
    assert {headers["dead-deliveries"] for _, headers in letters(stage)} == {"0"}
    assert stage.consumer().received() == [3, 4]


@pytest.mark.parametrize(
    "wishes",
    [
        {"message_ttl": "10s", "expired_to_dead": True},
        {"max_depth": 2, "overflow": "dead"},
        {"max_bytes": 50, "overflow": "dead"},
    ],
)
def test_dead_letters_are_kept_where_other_messages_would_become_dead_letters(stage: Stage, wishes: dict[str, object]):
    """A dead letter never makes another: a policy for all channels must not drop it either."""
    policy = policies.parse("all", {"settings": wishes})
    stage.broker.settings.put_policy(policy, now=stage.now)
    stage.consumer(ready=0)
    stage.client().publish(*numbered(5))
    if "message_ttl" in wishes:
        stage.pass_time(11 * SECOND)
        assert stage.consumer().received() == []
    dead = len(letters(stage))
    assert dead > 2
    stage.pass_time(11 * SECOND)
    reader = stage.consumer("dead", topic="t.c.dead")

    assert reader.received() == list(range(dead))
    assert stage.channel("dead", "t.c.dead").counts.dead == 0


def test_dead_letters_expire_where_expired_messages_are_dropped(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"a")
    reject(consumer, 0)
    configure(stage, "dead", "t.c.dead", message_ttl="10s")
    stage.pass_time(11 * SECOND)

    assert stage.consumer("dead", topic="t.c.dead").received() == []
    assert stage.channel("dead", "t.c.dead").counts.expired == 1


def test_bytes_beyond_the_limit_are_dropped(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_bytes=5000, overflow="drop-oldest")
    for body in numbered(10, 1000):
        stage.client().publish(body)

    assert 3 <= stage.channel().depth <= 5
    assert stage.channel().depth + stage.channel().counts.overflowed == 10


def test_a_paused_channel_sheds_too_and_deferred_messages_are_left_alone(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=1, overflow="drop-oldest")
    stage.broker.pause_channel("t", "c", True)
    stage.client().publish(b"a").publish(b"later", delay=SECOND).publish(b"b", b"c")

    channel = stage.channel()
    assert (channel.depth, len(channel.ledger.deferred), channel.counts.overflowed) == (1, 1, 2)


def test_a_message_delivered_alone_times_out_although_nothing_else_has_a_deadline(stage: Stage):
    consumer = stage.consumer()
    configure(stage, max_attempts=1)
    stage.client().publish(*numbered(2))
    consumer.leave()
    stage.pass_time(2 * MINUTE)
    consumer = stage.consumer()
    assert consumer.received() == [0]
    stage.pass_time(2 * MINUTE)

    assert consumer.received() == [1]
    assert len(letters(stage)) == 1


def test_what_an_overflow_dropped_ahead_of_the_cursor_stays_dropped(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0)
    configure(stage, max_depth=4, overflow="drop-oldest")
    stage.client().publish(b"later", delay=SECOND)
    stage.pass_time(SECOND)
    stage.client().publish(*numbered(4))
    assert stage.channel().counts.overflowed == 1
    stage.restart()
    configure(stage, max_depth=0, overflow="reject")
    stage.pass_time(MINUTE)

    assert stage.consumer().received() == [1, 2, 3, 4]
