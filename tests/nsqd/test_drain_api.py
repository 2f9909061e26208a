"""`/drain` and `/undrain`, and what publishers over HTTP are answered."""

import json

import pytest
from doors import Node

import asking
from daemons import nsqd


async def test_a_drain_is_begun_shown_and_ended():
    node = Node()
    await node.ask("POST", "/pub?topic=t", b"x")
    assert json.loads((await node.ask("GET", "/drain"))[1]) == {"state": "none"}
    assert "drain" not in await node.json("/stats?format=json")

    status, answer = await node.ask("POST", "/drain", b'{"deadline": "10m"}')
    shown = json.loads(answer)
    assert status == 200
    assert shown == {
        "state": "draining",
        "since": "2027-01-15T08:00:00Z",
        "deadline": "2027-01-15T08:10:00Z",
        "messages": 1,
        "topics": 1,
    }
    assert (await node.json("/stats?format=json"))["drain"] == shown
    status, answer = await node.ask("POST", "/pub?topic=t", b"x")
    assert status == 503
    assert json.loads(answer) == {"message": "this node is draining and takes no new messages: publish to another one"}
    assert (await node.ask("POST", "/mpub?topic=t", b"x\ny"))[0] == 503

    assert json.loads((await node.ask("POST", "/undrain"))[1]) == {"state": "none"}
    assert await node.ask("POST", "/pub?topic=t", b"x") == (200, "OK")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"deadline": 5}', b'{"deadline": "soon"}', b'{"deadline": "-1s"}'])
async def test_bad_input_is_answered_with_one_sentence(body: bytes):
    node = Node()
    status, answer = await node.ask("POST", "/drain", body)

    assert status == 400
    assert "\n" not in json.loads(answer)["message"]
    assert node.broker.drain is None


async def test_a_full_channel_and_a_long_body_are_answered():
    node = Node()
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        await node.ask("POST", target)
    await node.ask("PATCH", "/channel/settings?topic=t&channel=c", b'{"max_depth": 1}')
    await node.ask("PATCH", "/topic/settings?topic=t", b'{"max_msg_size": 5}')
    assert await node.ask("POST", "/pub?topic=t", b"x" * 6) == (413, '{"message":"MSG_TOO_BIG"}')
    assert await node.ask("POST", "/pub?topic=t", b"x") == (200, "OK")

    status, answer = await node.ask("POST", "/pub?topic=t", b"x")
    assert status == 503
    assert json.loads(answer)["message"] == "channel c of topic t is full: 1 messages wait, max_depth is 1"


def test_a_real_node_drains():
    with nsqd() as daemon:
        assert asking.ask(daemon, "POST", "/pub?topic=t", b"x") == (200, "OK")
        assert asking.ask(daemon, "POST", "/drain")[1]["state"] == "draining"
        assert asking.ask(daemon, "POST", "/pub?topic=t", b"x")[0] == 503
        assert asking.ask(daemon, "POST", "/undrain") == (200, {"state": "none"})
        assert asking.ask(daemon, "POST", "/pub?topic=t", b"x") == (200, "OK")
