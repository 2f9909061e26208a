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
