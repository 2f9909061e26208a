"""Which of several waiting tasks a worker begins."""

import asyncio

import pytest

from lapwing.client.message import Hold
from lapwing.contrib import priorities
from lapwing.contrib.priorities import PriorityGate, topic_of, topics_of


def test_a_queue_has_a_topic_for_each_band() -> None:
    assert [topic_of("mail", each) for each in (100, 1, 0, -1)] == ["mail.high", "mail.high", "mail", "mail.low"]
    assert topics_of(["a", "b"]) == ["a.high", "b.high", "a", "b", "a.low", "b.low"]


async def test_the_most_urgent_message_gets_the_next_slot() -> None:
    order: list[str] = []
    gate = PriorityGate(1, lambda count: None)

    async def task(name: str, band: int) -> None:
        async with gate.entered(band):
            order.append(name)
            await asyncio.sleep(0)

    names = [("low", 2), ("usual", 1), ("usual again", 1), ("high", 0)]
    await asyncio.gather(*(task(*each) for each in names))

    assert order == ["high", "usual", "usual again", "low"]


async def test_no_more_tasks_run_than_there_are_slots() -> None:
    running = most = 0
    gate = PriorityGate(3, lambda count: None)

    async def task() -> None:
        nonlocal running, most
        async with gate.entered(1):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(task() for _ in range(20)))

    assert most == 3


async def test_what_waits_for_long_is_left_to_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities, "_PATIENCE", 0.01)
    monkeypatch.setattr(priorities, "_GATHER", 0.0)
    sizes: list[int] = []
    gate = PriorityGate(1, sizes.append)
    async with gate.entered(0):
        for _ in range(2):
            with pytest.raises(Hold):
                async with gate.entered(1):
                    pass
        assert sizes == [0]

    assert sizes == [0, 2]
    async with gate.entered(1):
        pass


async def test_a_cancelled_task_leaves_its_slot() -> None:
    gate = PriorityGate(1, lambda count: None)

    async def task() -> None:
        async with gate.entered(0):
            await asyncio.Event().wait()

    running = asyncio.ensure_future(task())
    waiting = asyncio.ensure_future(task())
    await asyncio.sleep(0)
    for each in (waiting, running):
        each.cancel()
    await asyncio.wait([waiting, running])

    async with gate.entered(0):
        pass
