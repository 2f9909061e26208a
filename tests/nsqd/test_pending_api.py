"""`/channel/pending`, `/channel/claim` and `/channel/cancel`: who holds what, and how it is taken from them."""

import asyncio
import json
from typing import Any

import pytest
from doors import Node

import play
from failing import fail
from lapwing.wire.nsq.commands import Rdy, Sub
from play import MS, SECOND, Client


class Held:
    """A node with a topic of ten messages, and consumers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.broker = node.broker
        self.options = node.options
        self.now = node.clock.now()

    @classmethod
    async def made(cls, **options: Any) -> "Held":
        node = Node(**options)
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert (await node.ask("POST", target))[0] == 200
        for number in range(10):
            assert (await node.ask("POST", "/pub?topic=t", b"message %d" % number))[0] == 200
        return cls(node)

    def commit(self) -> None:
        self.broker.commit(self.node.clock.now())

    def consumer(self, ready: int, name: str = "") -> Client:
        client = Client(self)  # type: ignore[arg-type]
        client.session.about.client_id = name
        client.say(Sub("t", "c"), Rdy(ready))
        return client

    def later(self, span: int) -> None:
        self.node.wall.ns += span
        self.now += span
        self.broker.scan(self.now)
        self.commit()

    async def pending(self, query: str = "") -> dict[str, Any]:
        found = await self.node.json(f"/channel/pending?topic=t&channel=c{query}")
        assert isinstance(found, dict)
        return found

    async def claim(self, **document: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"topic": "t", "channel": "c", **document}).encode()
        status, answer = await self.node.ask("POST", "/channel/claim", body)
        self.commit()
        return status, json.loads(answer)


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(play, "NODE", 7)  # the ids that clients answer with are those of this node
    return await Held.made()


def sequences(found: dict[str, Any]) -> list[int]:
    return [entry["sequence"] for entry in found["entries"]]


async def test_every_pending_message_is_shown_with_its_holder_and_state(held: Held):
    held.consumer(2, "one")
    two = held.consumer(3, "two")
    got = two.received()
    fail(two, got[0], delay=30 * SECOND, error="it broke")
    held.later(5 * SECOND)

    found = await held.pending("&body=true")
    assert found["counts"] == {"in_flight": 5, "ready": 0, "deferred": 1}
    assert found["next"] is None
    by = {entry["sequence"]: entry for entry in found["entries"]}
    assert by[got[0]] == {
        "sequence": got[0],
        "id": f"{(7 << 54) + got[0]:016x}",
        "state": "deferred",
        "holder": None,
        "idle": None,
        "deadline": "2027-01-15T08:00:30Z",
        "deliveries": 1,
        "failures": 1,
        "error": "it broke",
        "size": 9,
        "body": f"message {got[0]}",
    }
    assert by[0]["state"] == "in_flight"
    assert by[0]["holder"] == "nsq:one:"
    assert by[0]["idle"] == 5000
    assert by[0]["deadline"] == "2027-01-15T08:01:00.005Z"


async def test_pages_follow_one_another(held: Held):
    held.consumer(10)
    found, seen = await held.pending("&limit=4"), []
    while True:
        seen += sequences(found)
        if found["next"] is None:
            break
        found = await held.pending(f"&limit=4&after={found['next']}")

    assert seen == list(range(10))
    assert sequences(await held.pending("&limit=10")) == list(range(10))


async def test_filters_by_state_holder_and_idle_time(held: Held):
    one = held.consumer(2, "one")
    held.later(10 * SECOND)
    held.consumer(2, "two")
    one.requeue(0, delay=SECOND)

    assert sequences(await held.pending("&holder=nsq:two:")) == [2, 3]
    assert sequences(await held.pending("&min_idle=10000")) == [1]
    assert sequences(await held.pending("&state=deferred")) == [0]
    assert sequences(await held.pending("&state=in_flight")) == [1, 2, 3, 4]


async def test_idle_messages_are_claimed_for_others(held: Held):
    slow = held.consumer(3, "slow")
    held.later(20 * SECOND)
    quick = held.consumer(2, "quick")
    assert quick.received() == [3, 4]
    slow.say(Rdy(0))
    status, answer = await held.claim(min_idle=10_000, action="ready")

    assert (status, answer["claimed"]) == (200, 3)
    assert answer["ids"] == [f"{(7 << 54) + each:016x}" for each in (0, 1, 2)]
    assert held.broker.existing_channel("t", "c").counts.claimed == 3
    slow.take()
    slow.finish(0)
    assert slow.answers()[0].startswith(b"E_FIN_FAILED FIN ")
    assert all(entry["failures"] == 0 for entry in (await held.pending())["entries"])


@pytest.mark.parametrize("action", ["finish", "reject", "defer"])
async def test_a_claim_finishes_rejects_and_defers(held: Held, action: str):
    held.consumer(3, "one")
    extra = {"delay": 5000} if action == "defer" else {"reason": "by hand"} if action == "reject" else {}
    ids = [f"{(7 << 54) + each:016x}" for each in (0, 2, 99)]
    status, answer = await held.claim(ids=ids, action=action, **extra)
    assert (status, answer["claimed"], answer["next"]) == (200, 2, None)
    channel = held.broker.existing_channel("t", "c")
    held.later(MS)

    states = {entry["sequence"]: entry["state"] for entry in (await held.pending())["entries"]}
    assert states[1] == "in_flight"
    assert (states.get(0), states.get(2)) == (("deferred", "deferred") if action == "defer" else (None, None))
    if action == "reject":
        letters = await held.node.json("/dead/letters?topic=t.c.dead")
        assert [(each["sequence"], each["error"]) for each in letters["letters"]] == [(0, "by hand"), (1, "by hand")]
        assert channel.counts.dead == 2


@pytest.mark.parametrize("dead_topic", ["t.c.dead", ""])
async def test_a_claim_that_rejects_nothing_makes_no_dead_letter_topic(held: Held, dead_topic: str):
    channel = held.broker.existing_channel("t", "c")
    held.broker.settings.change_channel(channel, {"dead_topic": dead_topic}, now=held.now)
    status, answer = await held.claim(state="deferred", action="reject")
    held.later(MS)

    assert (status, answer["claimed"]) == (200, 0)
    assert list(held.broker.topics) == ["t"]


async def test_deferred_messages_are_cancelled_the_same_way(held: Held):
    for _ in range(5):
        await held.node.ask("POST", "/pub?topic=t&defer=600000", b"later")
    held.later(MS)
    status, answer = await held.claim(state="deferred", action="finish", limit=3)
    assert (status, answer["claimed"], answer["next"]) == (200, 3, 12)
    status, answer = await held.claim(state="deferred", action="ready", after=answer["next"])
    assert (status, answer["claimed"], answer["next"]) == (200, 2, None)

    assert sorted(held.consumer(100).received()) == [*range(10), 13, 14]


async def test_waiting_messages_are_cancelled_by_their_message_id(held: Held):
    for number, target in enumerate(("/pub?topic=t", "/pub?topic=t&defer=600000")):
        named = [(b"x-lapwing-headers", json.dumps({"message-id": f"job-{number}"}).encode())]
        assert (await held.node.ask("POST", target, b"x", headers=named))[0] == 200
    held.commit()
    asked = {"topic": "t", "channel": "c", "message_ids": ["job-0", "job-1", "job-2"]}
    dry = await held.node.ask("POST", "/channel/cancel", json.dumps({**asked, "dry_run": True}).encode())
    status, answer = await held.node.ask("POST", "/channel/cancel", json.dumps(asked).encode())
    held.commit()

    assert json.loads(dry[1])["cancelled"] == 2
    assert (status, json.loads(answer)) == (200, {
        "topic": "t", "channel": "c", "dry_run": False, "cancelled": 2,
        "ids": [f"{(7 << 54) + each:016x}" for each in (10, 11)], "message_ids": ["job-0", "job-1"],
        "refused": {"job-2": "no message with this id waits here"},
    })  # fmt: skip
    held.later(600 * SECOND)
    assert held.consumer(100).received() == list(range(10))


@pytest.mark.parametrize("message_ids", [None, [], [""], ["a", 1], "a", ["a"] * 10_001])
async def test_message_ids_that_are_no_list_of_names_are_refused(held: Held, message_ids: Any):
    body = json.dumps({"topic": "t", "channel": "c", "message_ids": message_ids}).encode()
    status, answer = await held.node.ask("POST", "/channel/cancel", body)

    assert status == 400
    assert json.loads(answer)["message"].startswith("message_ids: a list ")


async def test_a_claim_hands_messages_to_a_consumer_by_its_name(held: Held):
    held.consumer(2, "one")
    two = held.consumer(0, "two")
    two.say(Rdy(5))
    two.received()
    two.say(Rdy(20))
    two.take()
    status, answer = await held.claim(holder="nsq:one:", action="ready", to="nsq:two:", limit=1)
    assert (status, answer["claimed"]) == (200, 1)
    assert [each[:2] for each in two.take()[0]] == [(0, 2)]

    status, answer = await held.claim(holder="nsq:one:", action="ready", to="three")
    assert (status, answer["message"]) == (404, "no consumer three of t/c is connected")


async def test_of_two_claimers_one_wins(held: Held):
    held.consumer(1, "one")
    first = await held.claim(sequences=[0], action="finish")
    second = await held.claim(sequences=[0], action="finish")

    assert (first[1]["claimed"], second[1]["claimed"]) == (1, 0)


async def test_of_two_claimers_who_look_at_the_same_time_one_wins(held: Held):
    for _ in range(4):
        assert (await held.node.ask("POST", "/mpub?topic=t", b"\n".join([b"x"] * 500)))[0] == 200
    one = held.consumer(2500, "one")
    held.later(10 * SECOND)
    one.say(Rdy(0))
    held.consumer(2500, "two")
    claims = [held.claim(min_idle=5000, action="ready", limit=10_000) for _ in range(2)]
    claimed = [answer["claimed"] for _, answer in await asyncio.gather(*claims)]

    assert sorted(claimed) == [0, 2010]


async def test_a_claim_looks_at_ten_times_its_limit_and_says_where_to_go_on(held: Held):
    one = held.consumer(5, "one")
    held.later(10 * SECOND)
    one.touch(0)
    held.consumer(5, "two")
    status, answer = await held.claim(min_idle=5000, action="finish", limit=2)
    assert (status, answer["claimed"], answer["next"]) == (200, 2, 1)
    seen = 2
    while answer["next"] is not None:
        _, answer = await held.claim(min_idle=5000, action="finish", limit=2, after=answer["next"])
        seen += answer["claimed"]

    assert seen == 5


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({}, 400, "action: one of ready, finish, reject, defer expected"),
        ({"action": "eat", "ids": []}, 400, "action: one of ready, finish, reject, defer expected"),
        ({"action": "finish"}, 400, "which messages: ids, sequences, holder, min_idle or state expected"),
        (
            {"action": "finish", "min_idle": 0},
            400,
            "which messages: ids, sequences, holder, min_idle or state expected",
        ),
        ({"action": "finish", "state": None}, 400, "state: a value expected; leave it out for any"),
        ({"action": "finish", "state": ""}, 400, "state: a value expected; leave it out for any"),
        ({"action": "finish", "holder": ""}, 400, "holder: a value expected; leave it out for any"),
        ({"action": "finish", "holder": None, "state": "ready"}, 400, "holder: a value expected; leave it out for any"),
        ({"action": "finish", "ids": None, "state": "ready"}, 400, "ids: a value expected; leave it out for any"),
        ({"action": "finish", "sequences": None, "state": "ready"}, 400, "sequences: a value expected; leave it out"),
        ({"action": "finish", "state": []}, 400, "state: one of in_flight, ready, deferred expected"),
        ({"action": "finish", "ids": "x"}, 400, "ids: a list of at most 10000 ids expected"),
        ({"action": "finish", "ids": ["zz"]}, 400, "ids: 'zz' is no id of a message: 16 digits from 0 to f expected"),
        ({"action": "finish", "ids": ["é" * 16]}, 400, "ids: 'éééééééééééééééé' is no id of a message"),
        (
            {"action": "finish", "sequences": [-1]},
            400,
            "sequences: -1 is no sequence: whole numbers from 0 on expected",
        ),
        ({"action": "finish", "sequences": [True]}, 400, "sequences: a list of at most 10000 sequences expected"),
        ({"action": "finish", "state": "lost"}, 400, "state: one of in_flight, ready, deferred expected"),
        ({"action": "finish", "min_idle": -1}, 400, "min_idle: a whole number from 0 on expected"),
        ({"action": "finish", "ids": [], "limit": 0}, 400, "limit: a whole number from 1 to 10000 expected"),
        ({"action": "defer", "ids": []}, 400, "delay: milliseconds above 0 expected, as the action is defer"),
        ({"action": "defer", "ids": [], "delay": 10**9}, 400, "delay: a whole number from 0 to 3600000 expected"),
        ({"action": "finish", "ids": [], "to": "x"}, 400, "to: only what is made ready can be handed to a consumer"),
        ({"action": "finish", "idz": []}, 400, "idz is no parameter: use topic, channel, ids, sequences, state"),
        ({"action": "finish", "ids": [], "channel": "x"}, 404, "CHANNEL_NOT_FOUND"),
        ({"action": "finish", "ids": [], "topic": 7}, 400, "topic: a string expected"),
    ],
)
async def test_bad_claims_are_answered_with_one_sentence(held: Held, document, status, message):
    found, answer = await held.claim(**document)

    assert found == status
    assert answer["message"].startswith(message)


@pytest.mark.parametrize("query", ["&state=lost", "&limit=many", "&after=-5", "&min_idle=x"])
async def test_bad_listings_are_answered_with_one_sentence(held: Held, query: str):
    status, answer = await held.node.ask("GET", f"/channel/pending?topic=t&channel=c{query}")

    assert status == 400
    assert "expected" in json.loads(answer)["message"]


async def test_ids_that_are_not_taken_are_named_with_the_reason(held: Held):
    held.consumer(2, "one")
    other, waiting = f"{(9 << 54):016x}", held.broker.existing("t").id_of(7)
    mine, theirs = (held.broker.existing("t").id_of(sequence) for sequence in (0, 1))
    status, answer = await held.claim(ids=[mine, other, waiting], action="finish")
    assert (status, answer["ids"]) == (200, [mine])
    assert answer["refused"] == {
        other: "an id of another node",
        waiting: "not pending: finished, a dead letter, or not yet delivered",
    }

    _, answer = await held.claim(ids=[mine], action="finish")
    assert list(answer["refused"]) == [mine]
    _, answer = await held.claim(ids=[theirs], action="finish", state="deferred")
    assert answer["refused"] == {theirs: "the state is in_flight"}
    _, answer = await held.claim(ids=[theirs], action="finish", holder="two")
    assert answer["refused"] == {theirs: "the holder is nsq:one:"}
    _, answer = await held.claim(ids=[theirs], action="finish", min_idle=60_000)
    assert answer["refused"] == {theirs: "it was delivered less than min_idle ago"}
    _, answer = await held.claim(ids=[theirs], action="finish")
    assert "refused" not in answer
