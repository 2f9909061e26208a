"""nsqlookupds are told of what we have, and asked what a new topic shall begin with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doors import Node
from others import LookupDouble

from http_double import HttpDouble, reply
from lapwing.nsqd.lookupd import peer as peer_module
from lapwing.nsqd.lookupd.peer import Peers
from lapwing.wire.nsq.lookup import Identify, PeerInfo, Ping, Register, Unregister


@asynccontextmanager
async def peers(
    *lookups: LookupDouble, topics: dict[str, list[str]] | None = None, **settings: Any
) -> AsyncIterator[tuple[Node, Peers]]:
    addresses = tuple(lookup.address for lookup in lookups)
    node = Node(lookupd_tcp_addresses=addresses, broadcast_tcp_port=4150, **settings)
    for topic, channels in (topics or {}).items():
        made_topic = node.broker.topic(topic)
        for channel in channels:
            made_topic.create_channel(channel, now=0)
    node.broker.changes.clear()
    made = Peers(node.broker, node.options, node.clock.now, node.turn.schedule_flush, node.log)
    node.peers = made  # type: ignore[assignment]
    node.api._publishing._announcer = made
    node.turn.on_changes = made.send_changes
    await made.start()
    try:
        yield node, made
    finally:
        await made.stop()


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not claim():  # noqa: ASYNC110 - there is no event for every claim
            await asyncio.sleep(0.005)


async def test_an_nsqlookupd_is_told_who_we_are_and_all_we_have() -> None:
    topics: dict[str, list[str]] = {"b": [], "a": ["c1", "c2#ephemeral"]}
    async with LookupDouble() as lookup, peers(lookup, topics=topics, topology_zone="z"):
        await lookup.until(lambda: len(lookup.told) == 4)

    about = lookup.told[0]
    assert isinstance(about, Identify)
    assert about.peer == PeerInfo(
        broadcast_address="node.example",
        hostname=about.peer.hostname,
        http_port=4151,
        tcp_port=4150,
        topology_zone="z",
        version="1.3.0",
    )
    assert lookup.told[1:] == [Register("b"), Register("a", "c1"), Register("a", "c2#ephemeral")]


async def test_what_comes_and_goes_is_told_in_its_order_to_every_peer() -> None:
    async with LookupDouble() as one, LookupDouble() as two, peers(one, two) as (node, made):
        await until(lambda: len(made.connected) == 2)
        await node.ask("POST", "/topic/create?topic=t")
        await node.ask("POST", "/channel/create?topic=t&channel=c")
        await node.ask("POST", "/topic/delete?topic=t")
        for lookup in (one, two):
            await lookup.until(lambda lookup=lookup: len(lookup.told) == 5)

        expected = [Register("t"), Register("t", "c"), Unregister("t", "c"), Unregister("t")]
        assert one.told[1:] == two.told[1:] == expected


async def test_a_new_topic_is_known_before_its_maker_hears_of_it() -> None:
    async with LookupDouble() as lookup, peers(lookup) as (node, made):
        await until(lambda: made.connected)
        answer = await node.ask("POST", "/pub?topic=t", b"x")

        assert answer == (200, "OK")
        assert lookup.told[-1] == Register("t")
        assert made.settling("t") is None


async def test_the_maker_of_a_topic_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_WAIT", 0.05)
    async with LookupDouble() as lookup, peers(lookup) as (node, made):
        await until(lambda: made.connected)
        lookup.silent = True
        answer = await node.ask("POST", "/pub?topic=t", b"x")

        assert answer == (200, "OK")


async def test_a_lost_connection_is_made_again_and_everything_told_again() -> None:
    async with LookupDouble() as lookup, peers(lookup) as (node, made):
        await until(lambda: made.connected)
        await node.ask("POST", "/topic/create?topic=t")
        lookup.told.clear()
        lookup.drop()
        await lookup.until(lambda: len(lookup.told) == 2)

        assert isinstance(lookup.told[0], Identify)
        assert lookup.told[1] == Register("t")


async def test_a_start_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_HEAD_START", 60)
    async with LookupDouble() as one, LookupDouble() as two, peers(one, two) as (_, made):
        assert {peer.address for peer in made.connected} == {one.address, two.address}


async def test_a_start_does_not_wait_long_for_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_HEAD_START", 0.05)
    async with LookupDouble() as ready, LookupDouble() as slow:
        slow.silent = True
        async with peers(ready, slow) as (_, made):
            await until(lambda: made.connected)

            assert [peer.address for peer in made.connected] == [ready.address]


async def test_an_nsqlookupd_that_starts_later_is_found() -> None:
    async with LookupDouble() as first:
        address_taken = first.port
        first.stop()
        async with peers(first) as (node, made):
            await node.ask("POST", "/topic/create?topic=t")
            await asyncio.sleep(0.05)
            async with LookupDouble(port=address_taken) as second:
                await second.until(lambda: Register("t") in second.told)

                assert len(made.connected) == 1


async def test_one_that_does_not_answer_is_given_up_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_PATIENCE", 0.05)
    async with LookupDouble() as lookup:
        lookup.silent = True
        async with peers(lookup) as (_, made):
            await lookup.until(lambda: len(lookup.told) >= 2)

            assert all(isinstance(command, Identify) for command in lookup.told)
            assert made.connected == []


@pytest.mark.parametrize("welcome", [b"E_INVALID", b"nonsense", b"[]"])
async def test_one_that_does_not_welcome_us_is_no_peer(welcome: bytes) -> None:
    async with LookupDouble(welcome=welcome) as lookup, peers(lookup) as (node, made):
        await lookup.until(lambda: len(lookup.told) >= 2)
        answer = await node.ask("POST", "/pub?topic=t", b"x")

        assert made.connected == []
        assert answer == (200, "OK")


async def test_pings_say_that_we_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_PING", 0.01)
    async with LookupDouble() as lookup, peers(lookup):
        await lookup.until(lambda: lookup.told.count(Ping()) >= 3)

        assert sum(isinstance(command, Identify) for command in lookup.told) == 1


async def test_peers_come_and_go_at_run_time() -> None:
    async with LookupDouble() as old, LookupDouble() as new, peers(old) as (node, made):
        await until(lambda: made.connected)
        await node.ask("POST", "/topic/create?topic=t")
        answer = await node.ask("GET", "/ping")
        made.use([new.address, new.address])
        await new.until(lambda: Register("t") in new.told)
        before = len(old.told)
        await node.ask("POST", "/topic/create?topic=u")

        assert answer == (200, "OK")
        assert made.addresses == (new.address,)
        assert new.told[-1] == Register("u")
        assert len(old.told) == before


async def test_an_address_that_is_none_disturbs_nobody() -> None:
    async with LookupDouble() as lookup, peers(lookup) as (node, made):
        made.use(["nonsense", lookup.address, ""])
        await until(lambda: made.connected)

        assert await node.ask("POST", "/pub?topic=t", b"x") == (200, "OK")


async def test_a_new_topic_begins_with_the_channels_that_others_have_of_it() -> None:
    known = {"channels": ["b", "a", "gone#ephemeral", "bad name", 7]}
    async with (
        HttpDouble(lambda *_: reply(known)) as http,
        HttpDouble(lambda *_: reply({"message": "NO"}, "500 Broken")) as broken,
        LookupDouble(http.port) as one,
        LookupDouble(broken.port) as two,
        peers(one, two) as (node, made),
    ):
        await until(lambda: len(made.connected) == 2)
        answer = await node.ask("POST", "/mpub?topic=t%23ephemeral", b"x\ny")
        topic = node.broker.existing("t#ephemeral")
        await one.until(lambda: Register("t#ephemeral", "b") in one.told)

        assert answer == (200, "OK")
        assert http.requests[0][1] == "/channels?topic=t%23ephemeral"
        assert {name: channel.depth for name, channel in topic.channels.items()} == {"a": 2, "b": 2}
        assert not topic.held


class HttpLater(HttpDouble):
    """Answers that there are no channels, once it is allowed to."""

    def __init__(self) -> None:
        super().__init__(lambda *_: reply({"channels": []}))
        self.allowed = asyncio.Event()

    async def answer(self, *request: Any) -> bytes | None:
        await self.allowed.wait()
        return await super().answer(*request)


async def test_messages_wait_in_a_new_topic_until_its_channels_are_known() -> None:
    async with (
        HttpLater() as http,
        LookupDouble(http.port) as lookup,
        peers(lookup, http_client_request_timeout=60_000_000_000) as (node, made),
    ):
        await until(lambda: made.connected)
        reply_later = asyncio.ensure_future(node.ask("POST", "/pub?topic=t", b"x"))
        await until(lambda: http.requests)
        topic = node.broker.existing("t")
        topic.create_channel("mine", now=node.clock.now())
        waiting = topic.held, topic.depth, topic.channels["mine"].depth
        http.allowed.set()
        answer = await reply_later

        assert waiting == (True, 1, 0)
        assert answer == (200, "OK")
        assert (topic.held, topic.depth, topic.channels["mine"].depth) == (False, 0, 1)


async def test_messages_wait_in_a_new_topic_no_longer_than_a_request_may_take() -> None:
    async with (
        HttpDouble(lambda *_: None) as http,
        LookupDouble(http.port) as lookup,
        peers(lookup, http_client_request_timeout=50_000_000) as (node, made),
    ):
        await until(lambda: made.connected)

        assert await node.ask("POST", "/pub?topic=t", b"x") == (200, "OK")
        assert not node.broker.existing("t").held


async def test_a_topic_that_is_deleted_while_others_are_asked_stays_deleted() -> None:
    async with (
        HttpLater() as http,
        LookupDouble(http.port) as lookup,
        peers(lookup, http_client_request_timeout=60_000_000_000) as (node, made),
    ):
        await until(lambda: made.connected)
        created = asyncio.ensure_future(node.ask("POST", "/topic/create?topic=t"))
        await until(lambda: http.requests)
        deleted = await node.ask("POST", "/topic/delete?topic=t")
        http.allowed.set()
        answer = await created

        assert deleted == answer == (200, "")
        assert "t" not in node.broker.topics


async def test_ten_thousand_topics_are_told_within_moments() -> None:
    topics: dict[str, list[str]] = {f"t{number}": [] for number in range(10_000)}
    async with LookupDouble() as lookup, peers(lookup, topics=topics) as (_, made):
        await lookup.until(lambda: len(lookup.told) == 10_001)

        assert len(made.connected) == 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_ends_a_peer_whose_connection_is_refused_at_that_moment(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    attempt = loop.create_future()

    async def connect(*_: object) -> None:
        await attempt

    monkeypatch.setattr(loop, "create_connection", connect)
    monkeypatch.setattr(peer_module, "_HEAD_START", 0.0)
    node = Node(lookupd_tcp_addresses=("127.0.0.1:1",))
    made = Peers(node.broker, node.options, node.clock.now, node.turn.schedule_flush, node.log)
    await made.start()
    attempt.set_exception(ConnectionRefusedError("refused"))
    for _ in range(turns):  # of the event loop, until the stop
        await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await made.stop()
