"""Leases: what was delivered and is not yet answered for."""

from lapwing.broker.holder import Holder
from lapwing.broker.leases import FEW, SHARED, Leases

MS = 1_000_000
MINUTE = 60_000 * MS


def expired(leases: Leases, now: int) -> list[int]:
    return [sequence for _, late in leases.expire(now) for sequence in late]


def test_what_is_not_answered_for_in_time_comes_back_in_order_of_delivery() -> None:
    leases, one, two = Leases(max_timeout=15 * MINUTE), Holder(), Holder()
    leases.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    leases.deliver(range(4, 6), two, timeout=MINUTE // 2, now=0)

    assert leases.expire(MINUTE // 2) == []
    assert leases.expire(MINUTE // 2 + SHARED) == [(two, [4, 5])]
    assert leases.expire(MINUTE + SHARED) == [(one, [1, 2, 3])]
    assert not one.in_flight
    assert not two.in_flight


def test_a_deadline_is_never_early() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    leases.deliver(range(2, 3), one, timeout=MINUTE, now=SHARED)  # joins the lease of the first

    assert expired(leases, MINUTE + SHARED - 1) == []
    assert expired(leases, MINUTE + SHARED) == [1, 2]


def test_what_is_delivered_within_moments_shares_a_lease() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    for sequence, now in enumerate((0, SHARED // 2, SHARED, SHARED + 1)):
        leases.deliver(range(sequence, sequence + 1), one, timeout=MINUTE, now=now)

    assert one.in_flight[0] is one.in_flight[1] is one.in_flight[2]
    assert one.in_flight[3] is not one.in_flight[0]


def test_a_lease_is_not_shared_when_the_timeout_has_changed() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    leases.deliver(range(2, 3), one, timeout=MINUTE // 2, now=0)

    assert expired(leases, MINUTE // 2 + SHARED) == [2]
    assert expired(leases, MINUTE + SHARED) == [1]


def test_what_was_answered_for_does_not_come_back() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    del one.in_flight[2]

    assert expired(leases, 2 * MINUTE) == [1, 3]


def test_what_was_requeued_and_came_again_within_moments_expires_once() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    del one.in_flight[1]
    leases.deliver(range(1, 2), one, timeout=MINUTE, now=MS)

    assert expired(leases, 2 * MINUTE) == [1, 2]


def test_touch_gives_a_whole_new_timeout_to_one_message() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    leases.touch(2, one, timeout=MINUTE, now=MINUTE // 2)

    assert expired(leases, MINUTE + SHARED) == [1, 3]
    assert expired(leases, MINUTE + MINUTE // 2) == [2]


def test_touch_never_reaches_past_max_timeout() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    leases.touch(2, one, timeout=60 * MINUTE, now=MINUTE // 2)

    assert expired(leases, 1 * MINUTE + SHARED) == [1, 3]
    assert expired(leases, 15 * MINUTE) == [2]


def test_touching_again_and_again_stops_at_max_timeout_too() -> None:
    leases, one = Leases(max_timeout=3 * MINUTE), Holder()
    leases.deliver(range(1, 2), one, timeout=MINUTE, now=0)
    for step in range(1, 20):
        leases.touch(1, one, timeout=MINUTE, now=step * MINUTE // 8)

    assert expired(leases, 3 * MINUTE - 1) == []
    assert expired(leases, 3 * MINUTE) == [1]


def test_touching_without_end_takes_no_memory() -> None:
    leases, one = Leases(max_timeout=1000 * MINUTE), Holder()
    leases.deliver(range(1, 4), one, timeout=MINUTE, now=0)
    leases.deliver(range(4, 5), one, timeout=MINUTE, now=SHARED + 1)
    for step in range(10 * FEW):
        leases.touch(2, one, timeout=MINUTE, now=step * MS)

    assert len(leases) <= FEW
    assert expired(leases, MINUTE + 2 * SHARED + 1) == [1, 3, 4]
    assert expired(leases, MINUTE + (10 * FEW - 1) * MS - 1) == []
    assert expired(leases, MINUTE + (10 * FEW - 1) * MS) == [2]


def test_the_next_deadline_forgets_what_was_answered_for() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    leases.deliver(range(3, 4), one, timeout=MINUTE, now=MINUTE)
    one.in_flight.pop(1)
    assert leases.next_deadline() == MINUTE + SHARED
    one.in_flight.pop(2)

    assert leases.next_deadline() == 2 * MINUTE + SHARED
    assert leases.soonest == 2 * MINUTE + SHARED


def test_clearing_leaves_no_deadline() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.deliver(range(1, 3), one, timeout=MINUTE, now=0)
    leases.clear()

    assert leases.next_deadline() is None
    assert leases.soonest is None
    assert leases.expire(MINUTE * 99) == []


def test_a_lease_without_a_timeout_never_expires() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder("worker", named=True)
    leases.deliver(range(1, 3), one, timeout=None, now=0)
    leases.deliver(range(3, 4), one, timeout=MINUTE, now=0)

    assert expired(leases, 99 * MINUTE) == [3]
    assert list(one.in_flight) == [1, 2]
    assert leases.next_deadline() is None


def test_what_is_held_since_earlier_expires_earlier() -> None:
    leases, one = Leases(max_timeout=15 * MINUTE), Holder()
    leases.hold([5, 2], one, timeout=MINUTE, delivered=-MINUTE // 2)

    assert one.in_flight[5].delivered == -MINUTE // 2
    assert expired(leases, MINUTE // 2 + SHARED) == [5, 2]
