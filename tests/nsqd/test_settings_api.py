"""`/topic/settings`, `/channel/settings` and `/policies`, asked as the HTTP server would."""

import json

import pytest
from doors import Node

import asking
from daemons import nsqd
from lapwing.broker.settings import definitions as settings


@pytest.fixture
async def node() -> Node:
    node = Node(msg_timeout=30_000_000_000)
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert (await node.ask("POST", target))[0] == 200
    return node


async def ask(node: Node, method: str, target: str, document: object = None) -> tuple[int, object]:
    status, body = await node.ask(method, target, b"" if document is None else json.dumps(document).encode())
    return status, json.loads(body) if body else None


async def test_a_channel_shows_each_setting_with_where_it_comes_from(node: Node):
    status, answer = await ask(node, "PATCH", "/channel/settings?topic=t&channel=c", {"max_attempts": 5})

    assert status == 200
    assert answer == (await ask(node, "GET", "/channel/settings?topic=t&channel=c"))[1]
    assert answer["topic"] == "t"
    assert answer["channel"] == "c"
    found = answer["settings"]
    assert list(found) == list(settings.CHANNEL)
    assert found["max_attempts"] == {"value": 5, "from": "channel"}
    assert found["msg_timeout"] == {"value": "30s", "from": "flag"}
    assert found["dead_topic"] == {"value": "t.c.dead", "from": "default"}
    assert found["rate"] == {"value": "", "from": "default"}


async def test_settings_are_removed_one_or_all(node: Node):
    target = "/channel/settings?topic=t&channel=c"
    await ask(node, "PATCH", target, {"max_attempts": 5, "max_in_flight": 6, "max_depth": 7})
    await ask(node, "DELETE", target + "&setting=max_attempts")
    assert node.broker.existing_channel("t", "c").settings == {"max_in_flight": 6, "max_depth": 7}
    await ask(node, "PATCH", target, {"max_depth": None})
    assert node.broker.existing_channel("t", "c").settings == {"max_in_flight": 6}

    status, answer = await ask(node, "DELETE", target)
    assert status == 200
    assert answer["settings"]["max_in_flight"] == {"value": 0, "from": "default"}
    assert node.broker.existing_channel("t", "c").settings == {}


async def test_a_topic_has_settings_of_its_own(node: Node):
    status, answer = await ask(node, "PATCH", "/topic/settings?topic=t", {"retention_age": "1h", "message_ttl": "2h"})

    assert status == 200
    assert list(answer["settings"]) == list(settings.TOPIC_LEVEL)
    assert answer["settings"]["retention_age"] == {"value": "1h0m0s", "from": "topic"}
    _, of_channel = await ask(node, "GET", "/channel/settings?topic=t&channel=c")
    assert of_channel["settings"]["message_ttl"] == {"value": "2h0m0s", "from": "topic"}
    assert (await ask(node, "DELETE", "/topic/settings?topic=t"))[0] == 200
    assert node.broker.existing("t").settings == {}


async def test_policies_are_put_shown_listed_and_removed(node: Node):
    document = {"topics": "t*", "channels": "*", "priority": 10, "settings": {"max_attempts": 3}}
    shown = {"name": "p", **document, "matching_topics": 1, "matching_channels": 1}
    assert await ask(node, "PUT", "/policies/p", document) == (200, shown)
    nowhere = {"topics": "x*", "settings": {"max_attempts": 4}}
    assert (await ask(node, "PUT", "/policies/q", nowhere))[1]["matching_channels"] == 0

    assert await ask(node, "GET", "/policies/p") == (200, shown)
    assert [policy["name"] for policy in (await ask(node, "GET", "/policies"))[1]["policies"]] == ["p", "q"]
    _, of_channel = await ask(node, "GET", "/channel/settings?topic=t&channel=c")
    assert of_channel["settings"]["max_attempts"] == {"value": 3, "from": "policy p"}
    assert await ask(node, "DELETE", "/policies/p") == (200, None)
    assert await ask(node, "DELETE", "/policies/p") == (404, {"message": "POLICY_NOT_FOUND"})
    assert await ask(node, "GET", "/policies/p") == (404, {"message": "POLICY_NOT_FOUND"})


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "message"),
    [
        ("PATCH", "/channel/settings?topic=t&channel=c", b'{"max": 1}', 400, "max is no setting of a channel: use one"),
        ("PATCH", "/channel/settings?topic=t&channel=c", b"{", 400, "a JSON object expected in the body, such as"),
        ("PATCH", "/channel/settings?topic=t&channel=c", b"[" * 50_000, 400, "a JSON object expected in the body"),
        ("PATCH", "/channel/settings?topic=t&channel=c", b"7", 400, "an object of settings expected, such as"),
        ("PATCH", "/channel/settings?topic=t&channel=c", b'{"burst": 1}', 400, "burst needs a rate: set rate too"),
        ("PATCH", "/channel/settings?topic=t&channel=x", b"{}", 404, "CHANNEL_NOT_FOUND"),
        ("PATCH", "/channel/settings?topic=x&channel=c", b"{}", 404, "TOPIC_NOT_FOUND"),
        ("PATCH", "/channel/settings?topic=t", b"{}", 400, "MISSING_ARG_CHANNEL"),
        ("PATCH", "/topic/settings?topic=t", b'{"max_attempts": 1}', 400, "max_attempts is no setting of a topic: use"),
        ("PATCH", "/topic/settings?topic=t", b'{"max_msg_size": 2000000}', 400, "max_msg_size 2000000 is out of range"),
        ("DELETE", "/topic/settings?topic=t&setting=x", b"", 400, "x is no setting of a topic: use one of"),
        ("PUT", "/policies/p%20q", b"{}", 400, "a policy is named like a topic: "),
        ("PUT", "/policies/p", b"{}", 400, "settings: an object with at least one setting expected, such as"),
    ],
)
async def test_bad_input_is_answered_with_one_sentence(node: Node, method, target, body, status, message):
    found, answer = await node.ask(method, target, body)

    assert found == status
    assert json.loads(answer)["message"].startswith(message)
    assert "\n" not in json.loads(answer)["message"]


async def test_every_setting_is_described(node: Node):
    _, answer = await ask(node, "GET", "/settings")

    assert [each["name"] for each in answer["channel"]] == list(settings.CHANNEL)
    assert [each["name"] for each in answer["topic"]] == list(settings.TOPIC_LEVEL)
    assert answer["channel"][3] == {
        "name": "retry_max",
        "kind": "duration",
        "default": "15m0s",
        "help": "retry at most this long after a failure",
    }
    assert {each["default"] for each in answer["channel"]} > {"<topic>.<channel>.dead", "reject", "0.1"}


async def test_stats_show_the_settings_that_are_not_the_defaults_and_nothing_else_is_new(node: Node):
    def of(stats: dict) -> tuple[dict, dict]:
        return stats["topics"][0], stats["topics"][0]["channels"][0]

    topic, channel = of(await node.json("/stats?format=json"))
    assert "settings" not in topic | channel
    await ask(node, "PATCH", "/channel/settings?topic=t&channel=c", {"max_attempts": 5})
    await ask(node, "PATCH", "/topic/settings?topic=t", {"retention_count": 5})

    topic, channel = of(await node.json("/stats?format=json"))
    assert topic["settings"] == {"retention_count": 5}
    assert channel["settings"] == {"max_attempts": 5, "msg_timeout": "30s"}


def test_settings_survive_kill_9_of_a_real_nsqd():
    with nsqd() as daemon:
        asking.ask(daemon, "POST", "/topic/create?topic=t")
        asking.ask(daemon, "POST", "/channel/create?topic=t&channel=c")
        target = "/channel/settings?topic=t&channel=c"
        assert asking.ask(daemon, "PATCH", target, {"max_attempts": 5})[0] == 200
        assert asking.ask(daemon, "PUT", "/policies/p", {"settings": {"max_in_flight": 9}})[0] == 200
        daemon.kill()
        daemon.restart()

        found = asking.ask(daemon, "GET", target)[1]["settings"]
        assert found["max_attempts"] == {"value": 5, "from": "channel"}
        assert found["max_in_flight"] == {"value": 9, "from": "policy p"}
