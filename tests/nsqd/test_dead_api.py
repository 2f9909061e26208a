"""`/dead`: dead letters listed, grouped, redriven and purged; through a node without sockets and a real nsqd."""

import asyncio
import base64
import json
from typing import Any

import pytest
from doors import Node
from rawtalk import Raw

import asking
import play
from daemons import nsqd, until
from failing import reject
from lapwing.broker.failures import dead_letter_view
from lapwing.wire.nsq.commands import Rdy, Sub
from play import Client

DEAD = "t.c.dead"


class Buried:
    """A node whose channel has given up six messages."""

    def __init__(self, node: Node) -> None:
        self.node, self.broker, self.options = node, node.broker, node.options
        self.now = node.clock.now()

    def commit(self) -> None:
        self.broker.commit(self.node.clock.now())

    async def ask(self, method: str, target: str, document: Any = None) -> tuple[int, Any]:
        body = b"" if document is None else json.dumps(document).encode()
        status, answer = await self.node.ask(method, target, body)
        return status, json.loads(answer) if answer else None

    async def settled(self) -> dict[str, Any]:
        """Wait until the redrive is over."""
        async with asyncio.timeout(60):
            while True:
                status, task = await self.ask("GET", f"/dead/redrive?topic={DEAD}")
                assert status == 200
                if task["state"] != "running":
                    return task
                await asyncio.sleep(0.005)


@pytest.fixture
async def buried(monkeypatch: pytest.MonkeyPatch) -> Buried:
    monkeypatch.setattr(play, "NODE", 7)
    node = Node()
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert (await node.ask("POST", target))[0] == 200
    for number in range(6):
        body = json.dumps({"number": number}).encode() if number < 5 else b"\xff\x00"
        assert (await node.ask("POST", "/pub?topic=t", body))[0] == 200
    found = Buried(node)
    client = Client(found)  # type: ignore[arg-type]
    client.session.about.client_id = "worker"
    client.say(Sub("t", "c"), Rdy(100))
    for number in range(6):
        reject(client, number, "odd" if number % 2 else "even", f"Error: {number}")
    client.leave()
    return found


async def test_dead_letter_topics_are_listed(buried: Buried):
    assert await buried.ask("GET", "/dead") == (200, {"topics": [{"topic": DEAD, "letters": 6, "redrive": None}]})


async def test_a_letter_says_where_it_comes_from_and_why(buried: Buried):
    status, answer = await buried.ask("GET", f"/dead/letters?topic={DEAD}")

    assert status == 200
    assert (answer["topic"], answer["waiting"], answer["next"]) == (DEAD, 6, None)
    first, last = answer["letters"][0], answer["letters"][5]
    assert first == {
        "sequence": 0,
        "id": f"{7 << 54:016x}",
        "topic": "t",
        "channel": "c",
        "node": buried.broker.node_name,
        "reason": "rejected",
        "error": "even: Error: 0",
        "failures": 0,
        "deliveries": 1,
        "count": 1,
        "published": "2027-01-15T08:00:00Z",
        "first_failed": None,
        "at": "2027-01-15T08:00:00Z",
        "consumer": "nsq:worker:",
        "held": False,
        "size": 13,
        "headers": {},
        "body": '{"number": 0}',
    }
    assert base64.b64decode(last["body_base64"]) == b"\xff\x00"


async def test_letters_are_filtered_and_paged(buried: Buried):
    async def found(query: str) -> list[int]:
        _, answer = await buried.ask("GET", f"/dead/letters?topic={DEAD}&{query}")
        return [letter["sequence"] for letter in answer["letters"]]

    assert await found("error=odd") == [1, 3, 5]
    assert await found("text=3") == [3]
    assert await found("pattern=r%22:%20%5B12%5D") == [1, 2]
    assert await found('fields=%7B"/number":4%7D') == [4]
    assert await found("sequences=[0,5]&body=false") == [0, 5]
    assert await found("source=u") == []
    assert await found("channel=c&reason=rejected&since=1h") == [0, 1, 2, 3, 4, 5]
    _, page = await buried.ask("GET", f"/dead/letters?topic={DEAD}&limit=4")
    assert page["next"] == 3
    assert await found("after=3") == [4, 5]


async def test_large_letters_are_read_a_few_at_a_time(buried: Buried, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_letter_view, "_MOST_BYTES", 20)
    _, answer = await buried.ask("GET", f"/dead/letters?topic={DEAD}")
    assert [letter["sequence"] for letter in answer["letters"]] == [*range(6)]
    await buried.ask("POST", f"/dead/redrive?topic={DEAD}", {"filter": {"error": "odd"}})
    task = await buried.settled()

    assert (task["state"], task["redriven"], task["looked"], task["left"]) == ("done", 3, 6, 0)


async def test_letters_are_counted_by_channel_reason_and_error(buried: Buried):
    _, answer = await buried.ask("GET", f"/dead/groups?topic={DEAD}")
    assert len(answer["groups"]) == 6
    assert answer["others"] == 0
    at = "2027-01-15T08:00:00Z"
    assert {
        "topic": "t", "channel": "c", "reason": "rejected", "error": "odd: Error: 1",
        "letters": 1, "first": at, "last": at, "sample": 1,
    } in answer["groups"]  # fmt: skip


async def test_a_dry_run_counts_and_shows_and_changes_nothing(buried: Buried):
    document = {"filter": {"error": "odd"}, "dry_run": True}
    status, answer = await buried.ask("POST", f"/dead/redrive?topic={DEAD}", document)

    assert (status, answer["letters"], answer["dry_run"], answer["to"]) == (200, 3, True, "channel")
    assert [letter["sequence"] for letter in answer["sample"]] == [1, 3, 5]
    assert (await buried.ask("GET", "/dead"))[1]["topics"][0]["letters"] == 6
    assert (await buried.ask("GET", f"/dead/redrive?topic={DEAD}"))[0] == 404


async def test_a_redrive_runs_by_itself_and_shows_its_progress(buried: Buried):
    status, task = await buried.ask("POST", f"/dead/redrive?topic={DEAD}", {"filter": {"error": "odd"}})
    assert (status, task["state"]) == (200, "running")
    task = await buried.settled()

    assert (task["state"], task["redriven"], task["looked"], task["skipped"]) == ("done", 3, 6, {})
    assert buried.broker.existing_channel("t", "c").depth == 3
    assert (await buried.ask("GET", "/dead"))[1]["topics"][0]["letters"] == 3


async def test_one_letter_with_another_body_goes_to_the_topic(buried: Buried):
    document = {"topic": DEAD, "to": "topic", "filter": {"sequences": [2]}, "body": "mended"}
    assert (await buried.ask("POST", "/dead/redrive", document))[0] == 200
    assert (await buried.settled())["redriven"] == 1

    _, answer = await buried.node.ask("GET", "/stats?format=json&topic=t")
    assert json.loads(answer)["topics"][0]["channels"][0]["depth"] == 1
    assert buried.broker.existing("t").log.frame(6).endswith(b"mended")


async def test_a_redrive_is_cancelled(buried: Buried):
    await buried.ask("POST", f"/dead/redrive?topic={DEAD}", {"rate": "1/h"})
    assert (await buried.ask("POST", f"/dead/redrive?topic={DEAD}", {}))[0] == 400
    status, task = await buried.ask("POST", f"/dead/cancel?topic={DEAD}")

    assert (status, task["state"]) == (200, "cancelled")


async def test_an_empty_parameter_of_the_query_counts_as_left_out(buried: Buried):
    status, answer = await buried.ask("GET", f"/dead/letters?topic={DEAD}&channel=&since=&fields=&error=even")

    assert (status, len(answer["letters"])) == (200, 3)


async def test_letters_are_purged(buried: Buried):
    await buried.ask("POST", f"/dead/purge?topic={DEAD}", {"filter": {"error": "even"}})
    assert (await buried.settled())["redriven"] == 3

    assert (await buried.ask("GET", "/dead"))[1]["topics"][0]["letters"] == 3
    assert buried.broker.existing_channel("t", "c").depth == 0


@pytest.mark.parametrize(
    ("target", "document", "status", "message"),
    [
        ("/dead/redrive", {}, 400, "topic: the name of a dead-letter topic expected"),
        ("/dead/redrive?topic=x", {}, 404, "TOPIC_NOT_FOUND"),
        ("/dead/redrive?topic=t", {}, 400, "topic t keeps no dead letters: it has no channel dead"),
        (f"/dead/redrive?topic={DEAD}", {"filter": {"x": 1}}, 400, "x is no part of a filter: use topic, channel,"),
        (f"/dead/purge?topic={DEAD}", {"filter": {"until": 0}}, 400, "until: a time after 1970 expected; leave it out"),
        (f"/dead/purge?topic={DEAD}", {"filter": {"channel": ""}}, 400, "channel: a value expected; leave it out for"),
        (f"/dead/redrive?topic={DEAD}", {"filter": None}, 400, "filter: a JSON object expected"),
        (f"/dead/redrive?topic={DEAD}", {"filter": []}, 400, "filter: a JSON object expected"),
        (f"/dead/redrive?topic={DEAD}", {"filter": {"pattern": "("}}, 400, "pattern: a regular expression as RE2"),
        (f"/dead/redrive?topic={DEAD}", {"rate": "fast"}, 400, 'rate: a rate such as "100/s", "5/m" or "20/h"'),
        (f"/dead/redrive?topic={DEAD}", {"limit": -1}, 400, "limit: a whole number from 0 on expected"),
        (f"/dead/redrive?topic={DEAD}", {"to": "nowhere"}, 400, 'to: "channel" (the one that gave the message up)'),
        (f"/dead/redrive?topic={DEAD}", {"body": "x"}, 400, "body: name the one letter whose body it replaces, as"),
        (f"/dead/redrive?topic={DEAD}", {"body": "x", "body_base64": "eA=="}, 400, "body or body_base64: one string"),
        (f"/dead/redrive?topic={DEAD}", {"body_base64": "?"}, 400, "body_base64: base64 expected"),
        (f"/dead/redrive?topic={DEAD}", {"body": "", "filter": {"sequences": [1]}}, 400, "body: 1 to 1048576 bytes"),
        (f"/dead/redrive?topic={DEAD}", {"body": "\ud800", "filter": {"sequences": [1]}}, 400, "body: text expected: "),
        (f"/dead/redrive?topic={DEAD}", {"all": True}, 400, "all is no parameter: use topic, filter, rate, limit, to"),
        (f"/dead/cancel?topic={DEAD}", None, 404, "REDRIVE_NOT_FOUND"),
    ],
)
async def test_bad_input_is_answered_with_one_sentence(buried: Buried, target, document, status, message):
    before = (await buried.ask("GET", "/dead"))[1]["topics"][0]["letters"]
    found, answer = await buried.ask("POST", target, document)

    assert found == status
    assert answer["message"].startswith(message)
    assert "\n" not in answer["message"]
    assert (await buried.ask("GET", "/dead"))[1]["topics"][0]["letters"] == before


@pytest.mark.parametrize("query", ["fields=x", "sequences=x", "since=noon", "reason=bored", "limit=x"])
async def test_bad_listings_are_answered_with_one_sentence(buried: Buried, query: str):
    status, answer = await buried.ask("GET", f"/dead/letters?topic={DEAD}&{query}")

    assert status == 400
    assert "expected" in answer["message"]


def test_a_real_nsqd_gives_up_redrives_and_goes_on_after_a_kill():
    with nsqd() as daemon:
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert asking.ask(daemon, "POST", target)[0] == 200
        settings = {"max_attempts": 2, "retry_first": "10ms"}
        assert asking.ask(daemon, "PATCH", "/channel/settings?topic=t&channel=c", settings)[0] == 200
        for number in range(5):
            assert asking.ask(daemon, "POST", "/pub?topic=t", b"message %d" % number) == (200, "OK")
        with Raw(daemon) as raw:
            granted = json.loads(raw.identify(feature_negotiation=True, reject=True, topic="t", channel="c"))
            assert (granted["reject"], granted["max_attempts"]) == (True, 2)
            raw.subscribe("t", "c", ready=10)
            seen: dict[bytes, int] = {}
            while sum(seen.values()) < 10:
                attempts, message_id, _ = raw.message()
                seen[message_id] = seen.get(message_id, 0) + 1
                assert attempts == seen[message_id]
                raw.send(b"REQ %b 0 error=it%%20broke\n" % message_id)
            until(lambda: asking.ask(daemon, "GET", "/dead")[1]["topics"][0]["letters"] == 5)
        letters = asking.ask(daemon, "GET", f"/dead/letters?topic={DEAD}")[1]["letters"]
        assert {(each["reason"], each["error"], each["failures"]) for each in letters} == {("attempts", "it broke", 2)}
        assert asking.ask(daemon, "POST", f"/dead/redrive?topic={DEAD}", {"rate": "1/h"})[0] == 200
        until(lambda: asking.ask(daemon, "GET", f"/dead/redrive?topic={DEAD}")[1]["redriven"] == 1)
        daemon.kill()
        daemon.restart()
        task = asking.ask(daemon, "GET", f"/dead/redrive?topic={DEAD}")[1]
        assert task["state"] == "running"
        assert task["redriven"] in (1, 2)  # a rate begins with one at once
        assert asking.ask(daemon, "POST", f"/dead/cancel?topic={DEAD}")[1]["state"] == "cancelled"
        assert asking.ask(daemon, "POST", f"/dead/redrive?topic={DEAD}", {})[0] == 200
        until(lambda: asking.ask(daemon, "GET", f"/dead/redrive?topic={DEAD}")[1]["state"] == "done")
        with Raw(daemon) as raw:
            raw.subscribe("t", "c", ready=10)
            bodies = sorted(raw.message()[2] for _ in range(5))
        assert bodies == [b"message %d" % number for number in range(5)]
