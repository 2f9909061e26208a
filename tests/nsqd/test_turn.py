"""The end of a round of the event loop serves everybody, whatever one of them raises."""

import asyncio
from typing import Any

from doors import Node


class Connection:
    def __init__(self, sent: list[str], name: str, error: Exception | None = None) -> None:
        self.sent, self.name, self.error = sent, name, error

    def flush(self) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(self.name)


async def test_one_that_raises_strands_no_other() -> None:
    node = Node()
    reported: list[str] = []

    def note(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        reported.append(f"{about['message']}: {about['exception']}")

    def fail(now: int) -> None:
        raise MemoryError("a waiter")

    asyncio.get_running_loop().set_exception_handler(note)
    sent: list[str] = []
    node.broker.growth.follow(["t"], fail)
    node.broker.topic("t")
    node.turn.add(Connection(sent, "broken", MemoryError("a connection")))
    node.turn.add(Connection(sent, "whole"))
    await asyncio.sleep(0)

    assert sent == ["whole"]
    assert [text.partition(": ")[2] for text in reported] == ["a waiter", "a connection"]


async def test_answers_are_sent_although_a_sync_or_an_announcement_cannot_begin() -> None:
    node = Node(durability="fsync")
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about["message"]))
    sent: list[str] = []

    def fail() -> None:
        raise MemoryError

    node.turn.on_unsynced = node.turn.on_changes = fail
    topic = node.broker.topic("t")
    node.broker.work.sync(topic, [])
    node.turn.add(Connection(sent, "whole"))
    await asyncio.sleep(0)

    assert sent == ["whole"]
    assert reported == ["a sync could not be begun", "changes could not be announced"]
