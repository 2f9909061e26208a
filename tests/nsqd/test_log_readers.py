"""`/channel/reader`."""

import json
from typing import Any

from doors import Node

from lapwing.net.server.routes import Router
from lapwing.nsqd.http.log_readers import LIFETIME, MAX_READERS, LogReaders


def reading() -> Node:
    """A node with only these routes."""
    node = Node()
    node.table = Router(LogReaders(node.clock.now).routes())
    return node


async def claim(node: Node, reader: str, *topics: str, channel: str = "lake") -> list[tuple[str, str, int]]:
    query = "".join(f"&topic={topic}" for topic in topics)
    status, text = await node.ask("POST", f"/channel/reader?channel={channel}&reader={reader}{query}")
    assert status == 200, text
    answer: dict[str, list[dict[str, Any]]] = json.loads(text)
    return [(each["topic"], each["reader"], each["seen_ms_ago"]) for each in answer["others"]]


async def test_a_channel_that_one_reader_moves_is_not_taken_by_another() -> None:
    node = reading()
    assert await claim(node, "one", "a", "b") == []
    node.wall.ns += 2_000_000

    assert await claim(node, "two", "b", "c") == [("b", "one", 2)]
    assert await claim(node, "one", "a", "b") == []
    assert await claim(node, "one", "c") == [("c", "two", 0)]
    assert await claim(node, "three", "b", channel="other") == []


async def test_a_reader_that_shows_no_sign_of_life_loses_its_channel() -> None:
    node = reading()
    await claim(node, "one", "a")
    node.wall.ns += LIFETIME
    assert await claim(node, "one") == []
    node.wall.ns += LIFETIME
    assert await claim(node, "two", "a") == [("a", "one", LIFETIME // 1_000_000)]
    node.wall.ns += 1

    assert await claim(node, "two", "a") == []
    assert await claim(node, "one", "a") == [("a", "two", 0)]


async def test_what_is_no_claim_is_refused() -> None:
    node = reading()

    assert await node.ask("POST", "/channel/reader?reader=x") == (400, '{"message":"MISSING_ARG_CHANNEL"}')
    assert await node.ask("POST", "/channel/reader?channel=c") == (400, '{"message":"MISSING_ARG_READER"}')
    assert await node.ask("POST", "/channel/reader?channel=c&reader=" + "x" * 129) == (
        400, '{"message":"INVALID_ARG_READER"}',
    )  # fmt: skip
    for number in range(MAX_READERS):
        await claim(node, str(number))
    assert await node.ask("POST", "/channel/reader?channel=c&reader=more") == (503, '{"message":"TOO_MANY_READERS"}')
