"""The ledger: which moves of a message there are, and that the table of lawful moves is all of them."""

from collections.abc import Callable

import pytest

from lapwing.broker.channel.ledger import MOVES, Holder, Ledger, Reason, State
from lapwing.log.side.sequence_map import SequenceMap
from ledgers import MINUTE, new_ledger

KEPT = State.READY, State.IN_FLIGHT, State.DEFERRED, State.ALONE, State.MOVING


def state(ledger: Ledger, sequence: int) -> State:
    """Where a message is, for a cursor that has passed it."""
    return ledger.state_of(sequence) or State.FINISHED


def put(place: State) -> tuple[Ledger, Holder]:
    """A ledger with message 1 in a state."""
    ledger, holder = new_ledger(), Holder("one")
    ledger.side_logged.sequences = SequenceMap(0)
    ledger.attach(holder)
    if place is State.FINISHED:
        return ledger, holder
    ledger.deliver(range(1, 2), holder, timeout=MINUTE, now=0)
    if place is not State.IN_FLIGHT:
        ledger.take(1, holder)
    if place is State.READY:
        ledger.give_back([1], Reason.REQUEUED, now=0)
    elif place is State.DEFERRED:
        ledger.give_back([1], Reason.REQUEUED, now=0, delay=MINUTE)
    elif place is State.ALONE:
        ledger.wait_alone(1)
    elif place is State.MOVING:
        ledger.move([1], now=0)
    return ledger, holder


def retry(ledger: Ledger, holder: Holder) -> None:
    taken, _ = ledger.take_run([1], holder)
    ledger.give_back(taken, Reason.REQUEUED, now=0)


def retry_later(ledger: Ledger, holder: Holder) -> None:
    taken, _ = ledger.take_run([1], holder)
    ledger.give_back(taken, Reason.REQUEUED, now=0, delay=MINUTE)


def isolate(ledger: Ledger, holder: Holder) -> None:
    for taken in ledger.take_pending([1]):
        ledger.wait_alone(taken)


def give_up(ledger: Ledger, holder: Holder) -> None:
    taken = ledger.take_pending([1])
    if taken:
        ledger.move(taken, now=0)


def take_from_anybody(ledger: Ledger, holder: Holder) -> None:
    ledger.give_back(ledger.take_pending([1]), Reason.CLAIMED, now=0)


def take_and_defer(ledger: Ledger, holder: Holder) -> None:
    ledger.give_back(ledger.take_pending([1]), Reason.CLAIMED, now=0, delay=MINUTE)


def expire(ledger: Ledger, holder: Holder) -> None:
    for _, late in ledger.expire(2 * MINUTE):
        ledger.give_back(late, Reason.TIMED_OUT, now=2 * MINUTE)


def deliver_again(ledger: Ledger, holder: Holder) -> None:
    for sequence in [*ledger.ready, *ledger.alone]:
        ledger.remove_waiting(sequence)
        ledger.count_deliveries([sequence])
        ledger.deliver(range(sequence, sequence + 1), holder, timeout=MINUTE, now=0)


def return_finished(ledger: Ledger, holder: Holder) -> None:
    if 1 not in ledger:
        ledger.give_back([1], Reason.RETURNED, now=0)


def return_finished_later(ledger: Ledger, holder: Holder) -> None:
    if 1 not in ledger:
        ledger.give_back([1], Reason.RETURNED, now=0, delay=MINUTE)


VERBS: dict[str, Callable[[Ledger, Holder], object]] = {
    "retry": retry,
    "retry later": retry_later,
    "isolate": isolate,
    "give up": give_up,
    "take from anybody": take_from_anybody,
    "take and defer": take_and_defer,
    "expire": expire,
    "deliver again": deliver_again,
    "return": return_finished,
    "return later": return_finished_later,
    "finish": lambda ledger, holder: ledger.finish([1], now=0),
    "finish what one holds": lambda ledger, holder: ledger.finish([1], now=0, holder=holder),
    "drop": lambda ledger, holder: ledger.drop(1) if state(ledger, 1) is not State.IN_FLIGHT else None,
    "disown": lambda ledger, holder: ledger.disown(range(1, 2)),
    "finish below": lambda ledger, holder: ledger.finish_below(2),
    "clear": lambda ledger, holder: ledger.clear(),
    "refuse": lambda ledger, holder: ledger.refuse_move([1], now=0, delay=MINUTE),
    "ripen": lambda ledger, holder: ledger.ripen(2 * MINUTE, behind=0),
    "claim": lambda ledger, holder: ledger.claim([1], Holder("other", named=True), now=0),
    "touch": lambda ledger, holder: ledger.touch(1, holder, timeout=MINUTE, now=0) if 1 in holder.in_flight else None,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", [*KEPT, State.FINISHED])
def test_no_verb_makes_a_move_that_the_table_has_not(place: State, verb: str) -> None:
    ledger, holder = put(place)
    assert state(ledger, 1) is place

    VERBS[verb](ledger, holder)

    after = state(ledger, 1)
    assert after is place or after in MOVES[place]
    there = [1 in ledger.ready, 1 in ledger.alone, 1 in ledger.deferred]
    there += [1 in each.in_flight for each in ledger.holders]
    assert there.count(True) == (after is not State.FINISHED), "a message is in one place"
    assert ledger.lowest() == (None if after is State.FINISHED else 1)


@pytest.mark.parametrize("place", KEPT)
def test_each_move_of_the_table_is_made_by_some_verb(place: State) -> None:
    made = set()
    for verb in VERBS.values():
        ledger, holder = put(place)
        verb(ledger, holder)
        made.add(state(ledger, 1))

    assert made - {place} == MOVES[place] - {State.AHEAD}


@pytest.mark.parametrize("place", [State.READY, State.IN_FLIGHT, State.DEFERRED, State.ALONE])
def test_attempts_never_fall_while_a_message_is_here(place: State) -> None:
    for verb in VERBS.values():
        ledger, holder = put(place)
        before = ledger.deliveries(1)
        verb(ledger, holder)

        assert 1 not in ledger or ledger.deliveries(1) >= before


def test_a_run_of_ready_messages_ends_at_a_gap_and_at_a_place_that_the_cursor_has_not_reached() -> None:
    ready = new_ledger().ready
    ready.append([4, 5], behind=0)
    ready.append([6], behind=9)
    ready.append([8], behind=0)
    ready.prepend([2, 3])

    assert ready.first_run(8, 9) == [2, 3, 4, 5]
    assert ready.first_run(9, 9) == [2, 3, 4, 5, 6]
    assert ready.first_run(9, 3) == [2, 3, 4]
    assert (list(ready), ready.first()) == ([2, 3, 4, 5, 6, 8], (2, 0))
