"""Leases: what was delivered and is not yet answered for."""

from lapwing.broker.inflight import FEW, SHARED, InFlight
from lapwing.broker.subscriber import Subscriber

MS = 1_000_000
MINUTE = 60_000 * MS


def consumer(timeout: int = MINUTE) -> Subscriber:
    return Subscriber(lambda data: None, lambda: None, timeout=timeout)


def expired(in_flight: InFlight, now: int) -> list[int]:
    return [sequence for _, late in in_flight.expire(now) for sequence in late]


def test_what_is_not_answered_for_in_time_comes_back_in_order_of_delivery() -> None:
    in_flight, one, two = InFlight(max_timeout=15 * MINUTE), consumer(), consumer(timeout=MINUTE // 2)
    in_flight.deliver(range(1, 4), one, now=0)
    in_flight.deliver(range(4, 6), two, now=0)

    assert in_flight.expire(MINUTE // 2) == []
    assert in_flight.expire(MINUTE // 2 + SHARED) == [(two, [4, 5])]
    assert in_flight.expire(MINUTE + SHARED) == [(one, [1, 2, 3])]
    assert not one.in_flight
    assert not two.in_flight


def test_a_deadline_is_never_early() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 2), one, now=0)
    in_flight.deliver(range(2, 3), one, now=SHARED)  # joins the lease of the first

    assert expired(in_flight, MINUTE + SHARED - 1) == []
    assert expired(in_flight, MINUTE + SHARED) == [1, 2]


def test_what_is_delivered_within_moments_shares_a_lease() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    for sequence, now in enumerate((0, SHARED // 2, SHARED, SHARED + 1)):
        in_flight.deliver(range(sequence, sequence + 1), one, now=now)

    assert one.in_flight[0] is one.in_flight[1] is one.in_flight[2]
    assert one.in_flight[3] is not one.in_flight[0]


def test_a_lease_is_not_shared_when_the_timeout_has_changed() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 2), one, now=0)
    one.timeout = MINUTE // 2
    in_flight.deliver(range(2, 3), one, now=0)

    assert expired(in_flight, MINUTE // 2 + SHARED) == [2]
    assert expired(in_flight, MINUTE + SHARED) == [1]


def test_what_was_answered_for_does_not_come_back() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 4), one, now=0)
    del one.in_flight[2]

    assert expired(in_flight, 2 * MINUTE) == [1, 3]


def test_what_was_requeued_and_came_again_within_moments_expires_once() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 3), one, now=0)
    del one.in_flight[1]
    in_flight.deliver(range(1, 2), one, now=MS)

    assert expired(in_flight, 2 * MINUTE) == [1, 2]


def test_touch_gives_a_whole_new_timeout_to_one_message() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 4), one, now=0)
    in_flight.touch(2, one, timeout=MINUTE, now=MINUTE // 2)

    assert expired(in_flight, MINUTE + SHARED) == [1, 3]
    assert expired(in_flight, MINUTE + MINUTE // 2) == [2]


def test_touch_never_reaches_past_max_timeout() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 4), one, now=0)
    in_flight.touch(2, one, timeout=60 * MINUTE, now=MINUTE // 2)

    assert expired(in_flight, 1 * MINUTE + SHARED) == [1, 3]
    assert expired(in_flight, 15 * MINUTE) == [2]


def test_touching_again_and_again_stops_at_max_timeout_too() -> None:
    in_flight, one = InFlight(max_timeout=3 * MINUTE), consumer()
    in_flight.deliver(range(1, 2), one, now=0)
    for step in range(1, 20):
        in_flight.touch(1, one, timeout=MINUTE, now=step * MINUTE // 8)

    assert expired(in_flight, 3 * MINUTE - 1) == []
    assert expired(in_flight, 3 * MINUTE) == [1]


def test_touching_without_end_takes_no_memory() -> None:
    in_flight, one = InFlight(max_timeout=1000 * MINUTE), consumer()
    in_flight.deliver(range(1, 4), one, now=0)
    in_flight.deliver(range(4, 5), one, now=SHARED + 1)
    for step in range(10 * FEW):
        in_flight.touch(2, one, timeout=MINUTE, now=step * MS)

    assert len(in_flight) <= FEW
    assert expired(in_flight, MINUTE + 2 * SHARED + 1) == [1, 3, 4]
    assert expired(in_flight, MINUTE + (10 * FEW - 1) * MS - 1) == []
    assert expired(in_flight, MINUTE + (10 * FEW - 1) * MS) == [2]


def test_the_next_deadline_forgets_what_was_answered_for() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 3), one, now=0)
    in_flight.deliver(range(3, 4), one, now=MINUTE)
    one.in_flight.pop(1)
    assert in_flight.next_deadline() == MINUTE + SHARED
    one.in_flight.pop(2)

    assert in_flight.next_deadline() == 2 * MINUTE + SHARED
    assert in_flight.soonest == 2 * MINUTE + SHARED


def test_clearing_leaves_no_deadline() -> None:
    in_flight, one = InFlight(max_timeout=15 * MINUTE), consumer()
    in_flight.deliver(range(1, 3), one, now=0)
    in_flight.clear()

    assert in_flight.next_deadline() is None
    assert in_flight.soonest is None
    assert in_flight.expire(MINUTE * 99) == []
