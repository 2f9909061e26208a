"""Who waits for a log to grow is called when it does, whoever else comes and goes meanwhile."""

import pytest

from lapwing.broker.growth import Growth


def test_a_new_waiter_leaves_what_grew_before_to_the_others() -> None:
    growth = Growth()
    woken: list[str] = []
    growth.follow(["orders"], lambda now: woken.append(f"first at {now}"))
    growth.note("orders")
    growth.follow(["payments"], lambda now: woken.append("second"))
    growth.wake(7)

    assert woken == ["first at 7"]


def test_a_waiter_that_leaves_ends_nothing_for_others() -> None:
    growth = Growth()
    woken: list[str] = []
    leave = growth.follow(["orders", "payments"], lambda now: woken.append("gone"))
    growth.follow(["orders"], lambda now: woken.append("there"))
    growth.note("orders")
    leave()
    growth.wake(0)

    assert woken == ["there"]
    assert not growth.watches("payments")


def test_only_topics_that_somebody_follows_are_noted() -> None:
    growth = Growth()
    growth.note("orders")
    assert not growth.grown
    growth.follow(["orders"], lambda now: None)
    growth.note("orders")

    assert growth.grown


def test_what_grows_while_waiters_are_called_reaches_them_in_the_same_turn() -> None:
    growth = Growth()
    woken: list[str] = []
    growth.follow(["a"], lambda now: growth.note("b"))
    growth.follow(["b"], lambda now: woken.append("b"))
    growth.note("a")
    growth.wake(0)

    assert woken == ["b"]


def test_a_waiter_that_fails_strands_no_other() -> None:
    growth = Growth()
    woken: list[str] = []

    def fail(now: int) -> None:
        raise MemoryError

    growth.follow(["a"], fail)
    growth.follow(["a"], lambda now: woken.append("there"))
    growth.note("a")
    with pytest.raises(MemoryError):
        growth.wake(0)

    assert woken == ["there"]
    assert not growth.grown
