"""Answers about thousands of topics leave in small pieces, and others have their turn between them."""

import asyncio
import json

import pytest
from doors import Node, settle

from lapwing.net.server.answers import StreamedAnswer
from lapwing.net.server.routes import Router
from lapwing.nsqd.http.log import LogApi

TOPICS = 3000


@pytest.fixture(scope="module")
def pieces_of() -> dict[str, tuple[list[bytes], int]]:
    """The pieces of each answer, and how often others had their turn meanwhile."""
    targets = ["/stats?format=json", "/stats", "/metrics", "/log/offsets", "/log/offsets?times=false"]
    return asyncio.run(ask_all(targets))


async def ask_all(targets: list[str]) -> dict[str, tuple[list[bytes], int]]:
    node = Node()
    api = LogApi(node.broker, node.clock.now, node.turn.schedule_flush, lambda: {"node_id": 7})
    node.table = Router([*node.api.routes(), *api.routes()])
    for number in range(TOPICS):
        topic = node.broker.topic(f"topic_{number}")
        topic.create_channel("c", now=node.wall.ns)
    return {target: await ask(node, target) for target in targets}


async def ask(node: Node, target: str) -> tuple[list[bytes], int]:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    answer = await settle(node.request("GET", target))
    assert isinstance(answer, StreamedAnswer)
    assert answer.pieces is not None
    pieces = [bytes(piece) async for piece in answer.pieces]
    task.cancel()
    return pieces, turns


@pytest.mark.parametrize("target", ["/stats?format=json", "/stats", "/metrics", "/log/offsets"])
def test_others_have_their_turn_between_small_pieces(
    pieces_of: dict[str, tuple[list[bytes], int]], target: str
) -> None:
    pieces, turns = pieces_of[target]

    assert max(map(len, pieces)) < 100_000
    assert turns >= TOPICS / 20


@pytest.mark.parametrize("target", ["/log/offsets", "/log/offsets?times=false", "/stats?format=json"])
def test_the_pieces_are_one_document(pieces_of: dict[str, tuple[list[bytes], int]], target: str) -> None:
    document = json.loads(b"".join(pieces_of[target][0]))

    assert len(document["topics"]) == TOPICS


def test_a_metric_stands_together(pieces_of: dict[str, tuple[list[bytes], int]]) -> None:
    lines = b"".join(pieces_of["/metrics"][0]).decode().splitlines()
    names = [line.partition("{")[0] for line in lines if line.startswith("lapwing_channel_depth{")]
    first = lines.index('lapwing_channel_depth{topic="topic_0",channel="c"} 0')

    assert len(names) == TOPICS
    assert all(line.startswith("lapwing_channel_depth{") for line in lines[first : first + TOPICS])
