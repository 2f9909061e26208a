"""Leases: what was delivered and is not yet answered for."""

from lapwing.broker.channel.ledger import FEW, SHARED, Holder, Ledger
from ledgers import new_ledger

MS = 1_000_000
MINUTE = 60_000 * MS


def expired(ledger: Ledger, now: int) -> list[int]:
    return [sequence for _, late in ledger.expire(now) for sequence in late]


def test_what_is_not_answered_for_in_time_comes_back_in_order_of_delivery() -> None:
    ledger, one, two = new_ledger(max_timeout=15 * MINUTE), Holder(), Holder()
    ledger.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    ledger.deliver(range(4, 6), two, timeout=MINUTE // 2, now=0)

    assert ledger.expire(MINUTE // 2) == []
    assert ledger.expire(MINUTE // 2 + SHARED) == [(two, [4, 5])]
    assert ledger.expire(MINUTE + SHARED) == [(one, [1, 2, 3])]
    assert not one.in_flight
    assert not two.in_flight


def test_a_deadline_is_never_early() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    ledger.deliver(range(2, 3), one, timeout=MINUTE, now=SHARED)  # joins the lease of the first

    assert expired(ledger, MINUTE + SHARED - 1) == []
    assert expired(ledger, MINUTE + SHARED) == [1, 2]


def test_what_is_delivered_within_moments_shares_a_lease() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    for sequence, now in enumerate((0, SHARED // 2, SHARED, SHARED + 1)):
        ledger.deliver(range(sequence, sequence + 1), one, timeout=MINUTE, now=now)

    assert one.in_flight[0] is one.in_flight[1] is one.in_flight[2]
    assert one.in_flight[3] is not one.in_flight[0]


def test_a_lease_is_not_shared_when_the_timeout_has_changed() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    ledger.deliver(range(2, 3), one, timeout=MINUTE // 2, now=0)

    assert expired(ledger, MINUTE // 2 + SHARED) == [2]
    assert expired(ledger, MINUTE + SHARED) == [1]


def test_what_was_answered_for_does_not_come_back() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    del one.in_flight[2]

    assert expired(ledger, 2 * MINUTE) == [1, 3]


def test_what_was_requeued_and_came_again_within_moments_expires_once() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    del one.in_flight[1]
    ledger.deliver(range(1, 2), one, timeout=MINUTE, now=MS)

    assert expired(ledger, 2 * MINUTE) == [1, 2]


def test_touch_gives_a_whole_new_timeout_to_one_message() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    ledger.touch(2, one, timeout=MINUTE, now=MINUTE // 2)

    assert expired(ledger, MINUTE + SHARED) == [1, 3]
    assert expired(ledger, MINUTE + MINUTE // 2) == [2]


def test_touch_never_reaches_past_max_timeout() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    ledger.touch(2, one, timeout=60 * MINUTE, now=MINUTE // 2)

    assert expired(ledger, 1 * MINUTE + SHARED) == [1, 3]
    assert expired(ledger, 15 * MINUTE) == [2]


def test_touching_again_and_again_stops_at_max_timeout_too() -> None:
    ledger, one = new_ledger(max_timeout=3 * MINUTE), Holder()
    ledger.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    for step in range(1, 20):
        ledger.touch(1, one, timeout=MINUTE, now=step * MINUTE // 8)

    assert expired(ledger, 3 * MINUTE - 1) == []
    assert expired(ledger, 3 * MINUTE) == [1]


def test_touching_without_end_takes_no_memory() -> None:
    ledger, one = new_ledger(max_timeout=1000 * MINUTE), Holder()
    ledger.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    ledger.deliver(range(4, 5), one, timeout=MINUTE, now=SHARED + 1)
    for step in range(10 * FEW):
        ledger.touch(2, one, timeout=MINUTE, now=step * MS)

    assert ledger.lease_count <= FEW
    assert expired(ledger, MINUTE + 2 * SHARED + 1) == [1, 3, 4]
    assert expired(ledger, MINUTE + (10 * FEW - 1) * MS - 1) == []
    assert expired(ledger, MINUTE + (10 * FEW - 1) * MS) == [2]


def test_the_next_deadline_forgets_what_was_answered_for() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    ledger.deliver(range(3, 4), one, timeout=MINUTE, now=MINUTE)
    one.in_flight.pop(1)
    assert ledger.next_deadline() == MINUTE + SHARED
    one.in_flight.pop(2)

    assert ledger.next_deadline() == 2 * MINUTE + SHARED
    assert ledger.soonest == 2 * MINUTE + SHARED


def test_clearing_leaves_no_deadline() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    ledger.clear()

    assert ledger.next_deadline() is None
    assert ledger.soonest is None
    assert ledger.expire(MINUTE * 99) == []


def test_a_lease_without_a_timeout_never_expires() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder("worker", named=True)
    ledger.deliver(range(1, 3), one, timeout=None, now=0)
    ledger.deliver(range(3, 4), one, timeout=MINUTE, now=0)

    assert expired(ledger, 99 * MINUTE) == [3]
    assert list(one.in_flight) == [1, 2]
    assert ledger.next_deadline() is None


def test_what_is_held_since_earlier_expires_earlier() -> None:
    ledger, one = new_ledger(max_timeout=15 * MINUTE), Holder()
    ledger.hold([5, 2], one, timeout=MINUTE, delivered=-MINUTE // 2)

    assert one.in_flight[5].delivered == -MINUTE // 2
    assert expired(ledger, MINUTE // 2 + SHARED) == [5, 2]
