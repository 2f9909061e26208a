"""Ledger messages: who holds them, how they are finished, claimed and given back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appending import append
from lapwing import ids, kernel
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.entries import Entry, PendingScan, entries
from lapwing.broker.channel.ledger import Holder, Ledger, Reason, State, others
from lapwing.broker.channel.subscription import Credit
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, NotInFlight, NotOwner
from lapwing.wire.nsq.commands import Cls
from ledgers import new_ledger
from play import MINUTE, MS, SECOND, Stage, identity, numbered


def state(ledger: Ledger) -> tuple[object, ...]:
    held = sorted((holder.name, sorted(holder.in_flight), holder.finished_count) for holder in ledger.holders)
    return held, list(ledger.ready), sorted(ledger.deferred.sequences()), ledger.attempts


class Reader:
    """A reader with a credit: what it got, as sequences and attempts."""

    def __init__(self, stage: Stage, name: str, count: int, *, timeout: int | None = None) -> None:
        self.stage = stage
        self.frames: list[bytes] = []
        self.hung_up = False
        self.channel = stage.channel()
        self.holder = self.channel.named_holder(name)
        self.credit = Credit(self.holder, self.frames.append, self._hang_up, count=count, timeout=timeout)
        self.channel.subscribe(self.credit)

    def _hang_up(self) -> None:
        self.hung_up = True

    def leave(self) -> None:
        self.stage.broker.leave(self.channel, self.credit, now=self.stage.now)

    def got(self) -> list[tuple[int, int]]:
        data = b"".join(self.frames)
        self.frames.clear()
        messages, _ = kernel.decode_messages(data, 0, len(data))
        return [(ids.decode(text)[1], attempts) for _, attempts, text, _ in messages]


@pytest.fixture
def topic(stage: Stage) -> Topic:
    topic = stage.broker.topic("t")
    topic.create_channel("c", now=stage.now)
    return topic


# --- finishing -----------------------------------------------------------------------------------------------------


@given(
    given=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 6)), max_size=6),
    returned=st.sets(st.integers(0, 36), max_size=5),
    finished=st.lists(st.integers(0, 40), max_size=20),
    who=st.integers(0, 2),
)
def test_a_run_of_fins_does_what_finish_does_with_the_same_messages(
    given: list[tuple[int, int, int]], returned: set[int], finished: list[int], who: int
) -> None:
    twins = []
    for _ in range(2):
        ledger, holders = new_ledger(), [Holder(str(number)) for number in range(3)]
        for holder in holders:
            ledger.attach(holder)
        for number, start, count in given:
            run = [each for each in range(start, start + count) if ledger.holder_of(each) is None]
            ledger.hold(run, holders[number], timeout=MINUTE, delivered=0)
        for sequence in returned:
            if (holder := ledger.holder_of(sequence)) is not None:
                ledger.take(sequence, holder)
                ledger.give_back([sequence], Reason.REQUEUED, now=0)
        twins.append((ledger, holders[who]))
    (one, holder), (other, same) = twins
    missing = others(finished, one.finish(finished, now=1, holder=holder))
    mine = [each for each in finished if each in same.in_flight]
    left = [place for place, each in enumerate(finished) if each not in mine or each in finished[:place]]

    assert missing == left
    assert sorted(other.finish(mine, now=1)) == sorted(set(mine))
    assert state(one) == state(other)


def test_anybody_may_finish_what_another_holds_what_is_requeued_and_what_is_deferred(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(*numbered(5))
    consumer.received()
    consumer.requeue(0, delay=MINUTE)
    consumer.say(Cls()).requeue(1)
    finished = stage.channel().finish([0, 1, 2, 7, 2], now=stage.now)
    stage.commit()

    assert sorted(finished) == [0, 1, 2]
    assert sorted(stage.channel().ledger.sequences()) == [3, 4]
    assert stage.channel().ledger.attempts == {}
    stage.pass_time(2 * MINUTE)
    assert sorted(stage.channel().ledger.sequences()) == [3, 4]


def test_a_message_that_was_finished_in_the_queue_and_requeued_again_keeps_its_new_place() -> None:
    ledger = new_ledger()
    for sequence in (1, 2):
        ledger.ready.append([sequence], behind=0)
    ledger.finish([1], now=0)
    ledger.ready.append([1], behind=0)

    assert [ledger.ready.first(), ledger.ready.remove(2), ledger.ready.first()] == [(2, 0), True, (1, 0)]


def test_the_fin_of_a_message_in_the_side_log_frees_it_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(4))
    consumer.received()
    stage.channel().copy_aside(4)
    assert set(stage.channel().side_logged.sequences) == {0, 1, 2, 3}
    consumer.finish(1)
    consumer.finish(2, 3, 9)

    assert set(stage.channel().side_logged.sequences) == {0}
    stage.channel().finish([0], now=stage.now)
    assert set(stage.channel().side_logged.sequences) == set()
    stage.restart()
    assert set(stage.channel().side_logged.sequences) == set()


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_a_deferred_message_that_was_finished_before_its_time_does_not_come_again(tmp_path: Path, way: str) -> None:
    stage = Stage(tmp_path)
    stage.broker.topic("t").create_channel("c", now=stage.now)
    client = stage.client().publish(b"first")
    client.publish(b"cancelled", b"due", delay=MINUTE)
    client.publish(b"last")
    assert stage.channel().finish([1], now=stage.now) == [1]
    stage.checkpoint()
    getattr(stage, way)()
    consumer = stage.consumer()
    assert consumer.received() == [0, 3]
    consumer.finish(0, 3)
    stage.pass_time(2 * MINUTE)

    assert consumer.received() == [2]
    stage.checkpoint()
    assert stage.channel().saved_ahead == []


# --- holders with a name -------------------------------------------------------------------------------------------


def test_a_named_holder_keeps_its_messages_without_a_connection_and_without_a_timeout(stage: Stage) -> None:
    stage.client().publish(b"before any channel")
    stage.broker.topic("t").create_channel("c", now=stage.now)
    reader = Reader(stage, "worker", 10)
    stage.commit()
    assert reader.got() == [(0, 1)]
    reader.leave()
    stage.pass_time(100 * MINUTE)

    assert stage.channel().ledger.named["worker"].in_flight.keys() == {0}
    assert stage.channel().depth == 0
    again = Reader(stage, "worker", 10)
    assert again.holder is reader.holder


@pytest.mark.usefixtures("topic")
def test_a_named_holder_that_is_dropped_takes_its_messages_with_it(stage: Stage) -> None:
    stage.client().publish(*numbered(3))
    reader = Reader(stage, "worker", 2)
    stage.commit()
    reader.leave()
    dropped = stage.channel().drop_holder("worker", now=stage.now)

    assert dropped == 2
    assert not stage.channel().ledger.holders
    assert stage.channel().ledger.sequences() == []
    assert stage.channel().depth == 1


@pytest.mark.usefixtures("topic")
def test_two_connections_may_be_one_holder(stage: Stage) -> None:
    first, second = Reader(stage, "worker", 1), Reader(stage, "worker", 1)
    stage.client().publish(*numbered(3))
    first.leave()

    assert first.got() + second.got() == [(0, 1), (1, 1)]
    assert second.holder.in_flight.keys() == {0, 1}


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_a_named_holder_keeps_its_messages_over_a_restart(tmp_path: Path, way: str) -> None:
    stage = Stage(tmp_path)
    stage.broker.topic("t").create_channel("c", now=stage.now)
    stage.client().publish(*numbered(6))
    stage.channel().named_holder("idle")
    reader = Reader(stage, "worker", 4)
    stage.commit()
    channel = stage.channel()
    channel.finish([1], now=stage.now)
    began, stage.now = stage.now, stage.now + SECOND
    channel.claim([3], reader.holder, now=stage.now)
    channel.claim([2], channel.named_holder("gone"), now=stage.now)
    channel.drop_holder("gone", now=stage.now)
    reader.holder.seen = stage.now
    stage.checkpoint()
    getattr(stage, way)()

    ledger = stage.channel().ledger
    assert sorted(ledger.named) == ["idle", "worker"]
    worker = ledger.named["worker"]
    assert {each: lease.delivered for each, lease in worker.in_flight.items()} == {0: began, 3: stage.now}
    assert (worker.seen, worker.active) == (stage.now, stage.now)
    assert ledger.attempts == {3: 2}
    assert (stage.channel().depth, stage.channel().cursor) == (2, 4)
    assert [each for each, _ in Reader(stage, "other", 9).got()] == []


# --- credits -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("topic")
def test_who_waits_longest_is_served_first_up_to_its_count(stage: Stage) -> None:
    readers = [Reader(stage, name, count) for name, count in (("a", 2), ("b", 5), ("c", 5))]
    stage.client().publish(*numbered(4))
    assert [[each for each, _ in reader.got()] for reader in readers] == [[0, 1], [2, 3], []]
    stage.client().publish(*numbered(4))

    assert [[each for each, _ in reader.got()] for reader in readers] == [[], [4, 5, 6], [7]]
    assert [reader.credit.left for reader in readers] == [0, 0, 4]


@pytest.mark.usefixtures("topic")
def test_a_reader_that_waits_and_a_consumer_with_a_window_both_get_messages(stage: Stage) -> None:
    consumer = stage.consumer(ready=2500)
    reader = Reader(stage, "worker", 1000)
    for _ in range(20):
        stage.client().publish(b"x")

    taken = len(consumer.received())
    assert taken == len(reader.got()) == 10


@pytest.mark.usefixtures("topic")
def test_one_reader_can_be_served_at_once(stage: Stage) -> None:
    stage.client().publish(*numbered(5))
    reader = Reader(stage, "worker", 3)
    stage.channel().deliver_to(reader.credit, now=stage.now)

    assert reader.got() == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.usefixtures("topic")
def test_readers_are_hung_up_on_when_the_channel_is_deleted(stage: Stage) -> None:
    reader = Reader(stage, "worker", 3)
    stage.broker.delete_channel("t", "c")

    assert reader.hung_up


@pytest.mark.usefixtures("topic")
def test_a_message_that_is_published_while_others_are_delivered_is_written_in_the_same_turn(stage: Stage) -> None:
    settled: list[int] = []

    class Noted:
        def settle(self, sequence: int, error: LapwingError | None) -> None:
            assert error is None
            settled.append(sequence)

    def publish(frames: bytes) -> None:
        if not settled:
            append(stage.broker.topic("u"), b"a copy", Noted(), now=stage.now)

    copies = stage.consumer(topic="u")
    holder = stage.channel().ledger.by_name("mover")
    stage.channel().subscribe(Credit(holder, publish, lambda: None, count=10))
    stage.client().publish(b"x")

    assert settled == [0]
    assert copies.take()[0] == [(0, 1, b"a copy")]
    assert not stage.broker.has_work


# --- claims --------------------------------------------------------------------------------------------------------


def test_a_claim_takes_what_is_idle_for_long_enough_and_counts_as_a_delivery(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"old")
    stage.now += 10 * SECOND
    stage.client().publish(b"young")
    consumer.received()
    channel = stage.channel()
    to = channel.ledger.by_name("worker")
    claimed = channel.claim([0, 1, 5], to, min_idle=5 * SECOND, now=stage.now)

    assert claimed == [0]
    assert channel.ledger.attempts == {0: 2}
    assert to.in_flight[0].delivered == stage.now
    consumer.finish(0)
    assert consumer.answers() == [b"E_FIN_FAILED FIN %b failed client does not own message" % identity(0)]
    stage.pass_time(2 * MINUTE)
    assert 0 in to.in_flight


def test_a_claim_need_not_count_and_may_set_the_time_of_delivery(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"x")
    consumer.received()
    channel = stage.channel()
    to = channel.ledger.by_name("worker")
    channel.claim([0], to, now=stage.now, delivered=stage.now - MINUTE, counted=False)

    assert (channel.ledger.attempts, to.in_flight[0].delivered) == ({0: 1}, stage.now - MINUTE)


def test_a_claim_takes_what_nobody_holds_whatever_idle_time_is_asked_for(stage: Stage) -> None:
    consumer = stage.consumer(ready=2)
    stage.client().publish(*numbered(2))
    consumer.received()
    consumer.requeue(0, delay=MINUTE)
    consumer.say(Cls()).requeue(1)
    channel = stage.channel()
    claimed = channel.claim([1, 0], channel.ledger.by_name("worker"), min_idle=MINUTE, now=stage.now)

    assert claimed == [1, 0]
    assert (channel.depth, len(channel.ledger.deferred), channel.in_flight_count) == (0, 0, 2)


def test_two_claimers_never_both_win(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"x")
    consumer.received()
    stage.now += MINUTE // 2
    channel = stage.channel()
    won = [
        channel.claim([0], channel.ledger.by_name(name), min_idle=SECOND, now=stage.now) for name in ("a", "b")
    ]

    assert won == [[0], []]


# --- entries -------------------------------------------------------------------------------------------------------


def test_entries_show_state_holder_idle_time_and_deliveries(stage: Stage) -> None:
    consumer = stage.consumer()
    consumer.session.about.client_id, consumer.session.about.remote_address = "host", "10.0.0.1:4711"
    stage.client().publish(*numbered(4))
    consumer.received()
    consumer.holder.name = "worker"
    consumer.requeue(0, delay=MINUTE)
    consumer.say(Cls()).requeue(2)
    stage.now += 10 * MS
    ledger = stage.channel().ledger
    lease = consumer.holder.in_flight[1]
    shown = entries(ledger, now=stage.now, limit=100)
    scan = PendingScan(ledger, most=9, states={State.READY}, holder=None, after=-1)
    while not scan.step():
        continue

    assert scan.found == [2]
    assert shown == [
        Entry(0, State.DEFERRED, 1, deadline=stage.now - 10 * MS + MINUTE, failures=1),
        Entry(1, State.IN_FLIGHT, 1, "worker", 10 * MS, lease.deadline),
        Entry(2, State.READY, 1, failures=1),
        Entry(3, State.IN_FLIGHT, 1, "worker", 10 * MS, lease.deadline),
    ]
    assert entries(ledger, now=stage.now, limit=2, after=0) == shown[1:3]
    assert entries(ledger, now=stage.now, limit=9, holder="worker") == [shown[1], shown[3]]
    assert entries(ledger, now=stage.now, limit=9, min_idle=SECOND) == []


def test_an_nsq_consumer_is_shown_by_client_id_and_port(stage: Stage) -> None:
    client = stage.client()
    client.session.about.client_id, client.session.about.remote_address = "host", "10.0.0.1:4711"

    assert client.session.name == "nsq:host:4711"


# --- coming back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closing", [True, False])
def test_a_consumer_that_announced_its_end_gives_its_messages_back_for_another_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"x")
    reasons: list[Reason] = []
    give_back = Channel.give_back

    def noted(channel: Channel, sequences: list[int], reason: Reason, **how: Any) -> None:
        reasons.append(reason)
        give_back(channel, sequences, reason, **how)

    monkeypatch.setattr(Channel, "give_back", noted)
    if closing:
        consumer.say(Cls())
    consumer.leave()

    assert reasons == [Reason.CLOSED if closing else Reason.DISCONNECTED]
    assert stage.channel().depth == 1


def test_a_message_is_taken_from_its_holder_alone() -> None:
    ledger, one, other = new_ledger(), Holder(), Holder()
    ledger.attach(one)
    ledger.hold([1], one, timeout=None, delivered=0)

    with pytest.raises(NotOwner):
        ledger.take(1, other)
    with pytest.raises(NotInFlight):
        ledger.take(2, one)
    ledger.take(1, one)
    assert one.in_flight == {}
