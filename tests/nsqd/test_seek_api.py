"""`/channel/seek` of a node without sockets."""

import json

import pytest
from doors import Node


@pytest.fixture
async def node() -> Node:
    node = Node()
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert (await node.ask("POST", target))[0] == 200
    for _ in range(5):
        assert (await node.ask("POST", "/pub?topic=t", b"x"))[0] == 200
    return node


async def seek(node: Node, document: object, query: str = "") -> tuple[int, dict]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    status, answer = await node.ask("POST", f"/channel/seek{query}", body)
    return status, json.loads(answer)


async def test_a_dry_run_moves_nothing_and_a_seek_does(node: Node):
    where = {"topic": "t", "channel": "c", "to": {"sequence": 3}}
    planned = {"topic": "t", "channel": "c", "created": False, "cursor": 0, "sequence": 3, "again": 0, "skipped": 3}
    assert await seek(node, where | {"dry_run": True}) == (200, planned | {"dry_run": True})
    channel = node.broker.existing_channel("t", "c")
    assert channel.cursor == 0

    assert await seek(node, where) == (200, planned | {"dry_run": False})
    assert channel.cursor == 3
    status, answer = await seek(node, {"to": "bookmark"}, "?topic=t&channel=c")
    assert (status, answer["sequence"]) == (200, 0)
    assert channel.cursor == 0


async def test_a_channel_can_be_created_anywhere(node: Node):
    status, answer = await seek(node, {"topic": "t", "channel": "d", "to": {"sequence": 2}, "create": True})

    assert (status, answer["created"]) == (200, True)
    assert node.broker.existing_channel("t", "d").cursor == 2


@pytest.mark.parametrize(("to", "status"), [({"sequence": 99}, 416), ("there", 400), ("bookmark", 400)])
async def test_no_channel_is_created_for_a_place_that_is_none(node: Node, to: object, status: int):
    assert (await seek(node, {"topic": "t", "channel": "d", "to": to, "create": True}))[0] == status
    assert list(node.broker.existing("t").channels) == ["c"]


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        (b"{", 400, 'a JSON object expected in the body, such as {"to": "earliest"}'),
        ([], 400, 'a JSON object expected in the body, such as {"to": "earliest"}'),
        ({"to": "earliest"}, 400, "topic and channel: the names of a topic and its channel expected"),
        ({"topic": "t", "channel": "c"}, 400, 'to: "earliest", "latest", "bookmark", {"sequence": n}, {"time":'),
        ({"topic": "t", "channel": "c", "to": "there"}, 400, 'to: "earliest", "latest", "bookmark", {"sequence": n}'),
        ({"topic": "t", "channel": "c", "to": "latest", "dry": 1}, 400, "dry is no parameter: use topic, channel, to,"),
        ({"topic": "t", "channel": "c", "to": "latest", "dry_run": 1}, 400, "dry_run: true or false expected"),
        ({"topic": "t", "channel": "c", "to": "bookmark"}, 400, "to: the channel has no bookmark: it was never moved"),
        ({"topic": "t", "channel": "c", "to": {"sequence": 9}}, 416, "sequence 9 is not in the log, which holds 0 to"),
        ({"topic": "x", "channel": "c", "to": "latest"}, 404, "TOPIC_NOT_FOUND"),
        ({"topic": "t", "channel": "x", "to": "latest"}, 404, "CHANNEL_NOT_FOUND"),
        ({"topic": "t", "channel": "x y", "to": "latest", "create": True}, 400, "INVALID_ARG_CHANNEL"),
    ],
)
async def test_bad_input_is_answered_with_one_sentence(node: Node, document, status, message):
    found, answer = await seek(node, document)

    assert found == status
    assert answer["message"].startswith(message)


async def test_query_and_body_must_not_disagree(node: Node):
    status, answer = await seek(node, {"topic": "t", "channel": "c", "to": "latest"}, "?topic=u&channel=c")

    assert (status, answer["message"]) == (400, "topic: the query and the body name two different ones")
