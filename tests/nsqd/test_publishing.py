"""`/pub` and `/mpub`."""

import asyncio
import errno
import json
import struct
from typing import Any, cast

import pytest
from doors import Node, settle

from lapwing.errors import WriteFailed
from lapwing.log.log import TopicLog
from lapwing.net.server.answers import Later
from lapwing.nsqd.http.publishing import HEADERS


def binary(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


class FullDisk:
    """A log whose writes fail."""

    pending = True

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def flush(self) -> None:
        raise WriteFailed("t.log", 0, OSError(errno.ENOSPC, "No space left on device"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_a_publish_is_answered_when_its_turn_has_ended_and_not_before() -> None:
    node = Node()
    reply = node.request("POST", "/pub?topic=t", b"hello")
    assert isinstance(reply, Later)
    before = reply.answer
    node.turn.end()

    assert before is None
    assert reply.answer is not None
    assert (reply.answer.status, reply.answer.body) == (200, b"OK")
    assert node.broker.existing("t").depth == 1


async def test_publishes_of_one_turn_share_one_end_of_turn() -> None:
    node = Node()
    replies = [node.request("POST", "/pub?topic=t", b"hello") for _ in range(10)]
    answers = [await settle(reply) for reply in replies]

    assert [answer.status for answer in answers] == [200] * 10
    assert node.broker.existing("t").message_count == 10


async def test_a_disk_that_refuses_is_answered_503_and_ping_says_why() -> None:
    node = Node()
    await node.ask("POST", "/topic/create?topic=t")
    topic = node.broker.existing("t")
    topic.log = cast("TopicLog", FullDisk(topic.log))
    refused = await node.ask("POST", "/pub?topic=t", b"x")
    ping = await node.ask("GET", "/ping")

    assert refused[0] == 503
    assert json.loads(refused[1])["message"] == "DISK_FULL"
    assert "No space left on device" in json.loads(refused[1])["reason"]
    assert ping[0] == 500
    assert ping[1].startswith("NOK - ")
    assert "No space left on device" in ping[1]


async def test_headers_travel_beside_the_message() -> None:
    node = Node()
    header = (HEADERS, '{"trace":"é"}'.encode())
    one = await node.ask("POST", "/pub?topic=t", b"x", [header])
    lines = await node.ask("POST", "/mpub?topic=t", b"a\nb", [header])
    batch = await node.ask("POST", "/mpub?topic=t&binary=true", binary(b"c", b"d"), [header])

    extras = node.broker.existing("t").log.extras(0, 5)
    assert one == lines == batch == (200, "OK")
    assert [(extra.sequence, extra.headers) for extra in extras] == [(n, {"trace": "é"}) for n in range(5)]


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[]", b'{"a":1}', b'{"A":"1"}', b'{"a":"' + b"x" * 16384 + b'"}'])
async def test_headers_that_are_none_are_refused_and_leave_nothing_behind(raw: bytes) -> None:
    node = Node()

    for path in ("/pub?topic=t", "/mpub?topic=t"):
        status, text = await node.ask("POST", path, b"x", [(HEADERS, raw)])
        refusal = json.loads(text)
        assert (status, refusal["message"]) == (400, "INVALID_HEADERS")
        assert refusal["reason"].startswith("X-Lapwing-Headers: a JSON object of strings expected, at most 16384 bytes")
    assert "t" not in node.broker.topics


async def test_headers_and_the_type_of_the_body_are_16_kib_together() -> None:
    node = Node()
    fields = [(HEADERS, b'{"a":"' + b"x" * 16_370 + b'"}'), (b"content-type", b"application/json")]

    status, text = await node.ask("POST", "/pub?topic=t", b"x", fields)
    assert (status, json.loads(text)["message"]) == (400, "INVALID_HEADERS")
    assert await node.ask("POST", "/pub?topic=t", b"x", fields[:1]) == (200, "OK")


async def test_an_id_that_has_no_room_for_a_number_is_refused_with_the_reason() -> None:
    node = Node()
    await node.ask("POST", "/pub?topic=t", b"x")
    node.broker.settings.change_topic(node.broker.existing("t"), {"dedup_window": "1m"}, now=0)
    field = (HEADERS, b'{"message-id":"' + b"x" * 127 + b'"}')

    status, text = await node.ask("POST", "/mpub?topic=t", b"a\nb", [field])
    assert (status, json.loads(text)["message"]) == (400, "INVALID_HEADERS")
    assert "give a shorter one" in text
    assert await node.ask("POST", "/mpub?topic=t", b"a", [field]) == (200, "OK")


@pytest.mark.parametrize("headers", [[], [(HEADERS, b'{"a":"b"}')]])
async def test_bytes_behind_a_binary_batch_are_nobodys(headers: list[tuple[bytes, bytes]]) -> None:
    node = Node()

    assert await node.ask("POST", "/mpub?topic=t&binary=true", binary(b"a", b"bb") + b"junk", headers) == (200, "OK")
    assert node.broker.existing("t").message_count == 2
    assert node.broker.existing("t").message_bytes == 3


@pytest.mark.parametrize("headers", [[], [(HEADERS, b'{"a":"b"}')]])
async def test_a_binary_batch_is_published_whole_or_not_at_all(headers: list[tuple[bytes, bytes]]) -> None:
    node = Node()

    short = await node.ask("POST", "/mpub?topic=t&binary=true", binary(b"a", b"bb")[:-1], headers)
    empty = await node.ask("POST", "/mpub?topic=t&binary=true", binary(b"a", b""), headers)
    assert short == empty == (413, '{"message":"BAD_MESSAGE"}')
    assert node.broker.existing("t").message_count == 0


@pytest.mark.parametrize("defer", ["1_0", "+-1", "1.5", "0x10", " 1", "1 ", "", "٣", "-1", "3600001", "9" * 30])
async def test_a_delay_that_is_no_number_of_milliseconds_up_to_an_hour_is_refused(defer: str) -> None:
    node = Node()
    target = "/pub?topic=t&defer=" + "".join(f"%{byte:02x}" for byte in defer.encode())

    assert await node.ask("POST", target, b"x") == (400, '{"message":"INVALID_DEFER"}')


async def test_an_http_publish_with_a_delay_waits_in_the_channel() -> None:
    node = Node()
    await node.ask("POST", "/topic/create?topic=t")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    await node.ask("POST", "/pub?topic=t&defer=%2B0060000", b"x")

    channel = node.broker.existing_channel("t", "c")
    assert (channel.depth, len(channel.ledger.deferred)) == (0, 1)


async def test_the_answer_that_makes_a_topic_waits_until_lookupds_know_it() -> None:
    node = Node()
    known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    node.peers.futures = {"t": known, "u": known}
    published = node.request("POST", "/pub?topic=t", b"x")
    created = node.request("POST", "/topic/create?topic=u")
    later = node.request("POST", "/pub?topic=t", b"y")
    node.turn.end()
    assert isinstance(published, Later)
    assert isinstance(created, Later)
    assert isinstance(later, Later)
    before = published.answer, created.answer
    known.set_result(None)

    assert before == (None, None)
    assert later.answer is not None  # who does not make the topic does not wait
    assert (await settle(published)).body == b"OK"
    assert (await settle(created)).status == 200


async def test_no_more_topics_than_the_operator_allows_are_made() -> None:
    node = Node(max_topics=1, max_channels=1)
    await node.ask("POST", "/pub?topic=t", b"x")
    await node.ask("POST", "/channel/create?topic=t&channel=c")

    assert await node.ask("POST", "/pub?topic=u", b"x") == (403, '{"message":"TOO_MANY_TOPICS"}')
    assert await node.ask("POST", "/channel/create?topic=t&channel=d") == (403, '{"message":"TOO_MANY_CHANNELS"}')
    assert await node.ask("POST", "/channel/create?topic=t&channel=c") == (200, "")


async def test_a_broker_that_stops_takes_nothing_more() -> None:
    node = Node()
    await node.ask("POST", "/pub?topic=t", b"x")
    node.broker.close(now=node.clock.now())

    assert await node.ask("POST", "/pub?topic=t", b"x") == (503, '{"message":"EXITING"}')
    assert await node.ask("POST", "/pub?topic=new", b"x") == (503, '{"message":"EXITING"}')
    assert await node.ask("POST", "/mpub?topic=t", b"x") == (503, '{"message":"EXITING"}')
