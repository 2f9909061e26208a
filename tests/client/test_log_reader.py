"""Reading logs without consuming: on a real nsqd, and on one that forgets."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from daemons import Daemon, nsqd
from http_double import HttpDouble, reply
from lapwing import LogReader
from lapwing.client import log_reader
from lapwing.client.cluster import node_of_info
from lapwing.client.cluster_client import ClusterClient, UpstreamFailed
from lapwing.client.http import DaemonHttp
from lapwing.client.log_reader import LogRange, LogSlice, NoLog, NoTopic, TopicLogs
from lapwing.errors import ConfigError

NUMBERS = count()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[DaemonHttp]:
    made = DaemonHttp()
    yield made
    await made.aclose()


@pytest.fixture
async def topic(daemon: Daemon, http: DaemonHttp) -> str:
    """A topic with the messages 0 to 9."""
    name = f"logged{next(NUMBERS)}"
    await publish(http, daemon, name, *range(10))
    return name


async def publish(http: DaemonHttp, daemon: Daemon, topic: str, *bodies: object) -> None:
    for body in bodies:
        await http.post(daemon.http, "/pub", {"topic": topic}, body=str(body).encode())


def numbers(messages: list[Any]) -> list[int]:
    return [int(message.body) for message in messages]


async def test_the_newest_come_by_default_and_the_first_from_a_sequence(daemon: Daemon, topic: str) -> None:
    async with LogReader(topic, nsqd_http=daemon.http) as reader:
        newest = await reader.read(3)
        first = await reader.read(3, sequence=2)
        (found,) = await reader.ranges()

    assert numbers(newest) == [7, 8, 9]
    assert numbers(first) == [2, 3, 4]
    assert (found.first, found.next) == (0, 10)


async def test_messages_of_a_key_are_found(daemon: Daemon, http: DaemonHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"keyed{next(NUMBERS)}"
    for number in range(12):
        headers = {"X-Lapwing-Headers": json.dumps({"key": "ab"[number % 2]})}
        await http.post(daemon.http, "/pub", {"topic": name}, body=b'{"n":%d,"of":{"x":%d}}' % (number, number % 3),
                        headers=headers)  # fmt: skip
    notices: list[str] = []
    async with LogReader(name, nsqd_http=daemon.http, notice=notices.append) as reader:
        newest = await reader.find("a", 2)
        first = await reader.find("a", 2, sequence=3)
        inside = await reader.find("2", 9, key_from="json:/of/x")
        assert not notices
        monkeypatch.setattr(log_reader, "SEARCHED_AT_MOST", 1)
        monkeypatch.setattr(log_reader, "_PAGE", 3)
        none = await reader.find("c", 2)

    assert [each.sequence for each in newest] == [8, 10]
    assert [each.sequence for each in first] == [4, 6]
    assert [each.sequence for each in inside] == [2, 5, 8, 11]
    assert none == []
    assert notices == [f"3 messages of {name} were searched; begin at another place for others"]


async def test_reading_begins_at_a_time(daemon: Daemon, topic: str) -> None:
    async with LogReader(topic, nsqd_http=daemon.http) as reader:
        whole = await reader.read(100, since=datetime(2020, 1, 1, tzinfo=UTC))
        some = await reader.read(100, since=whole[6].timestamp)

    assert numbers(whole) == list(range(10))
    assert numbers(some) == [6, 7, 8, 9]


async def test_following_goes_on_with_what_is_published(daemon: Daemon, topic: str, http: DaemonHttp) -> None:
    seen: list[int] = []
    async with LogReader(topic, nsqd_http=daemon.http) as reader, aclosing(reader.follow(last=2)) as messages:
        async with asyncio.timeout(60):
            async for message in messages:
                seen.append(int(message.body))
                if len(seen) == 2:
                    await publish(http, daemon, topic, 10, 11)
                if len(seen) == 4:
                    break

    assert seen == [8, 9, 10, 11]


async def test_following_waits_for_a_topic(daemon: Daemon, http: DaemonHttp) -> None:
    notices: asyncio.Queue[str] = asyncio.Queue()
    reader = LogReader("not-yet", nsqd_http=daemon.http, notice=notices.put_nowait)
    async with reader, aclosing(reader.follow()) as messages, asyncio.timeout(60):
        first = asyncio.ensure_future(anext(messages))
        notice = await notices.get()
        await publish(http, daemon, "not-yet", 1)
        message = await first

    assert message.body == b"1"
    assert notice == f"{daemon.http} has no topic not-yet yet: waiting for it"


async def test_no_topic_no_node_and_wrong_use_are_errors_that_name_the_fix(daemon: Daemon) -> None:
    async with LogReader("nowhere", nsqd_http=[daemon.http]) as reader:
        with pytest.raises(NoTopic, match="no topic 'nowhere' on"):
            await reader.read()
        with pytest.raises(ConfigError, match="one of sequence, since and last"):
            await reader.read(sequence=1, last=2)
    async with LogReader("t", nsqd_http="127.0.0.1:1") as reader:
        with pytest.raises(UpstreamFailed, match="connection refused"):
            await reader.read()
    with pytest.raises(ConfigError, match="nsqd_http or lookupd"):
        LogReader("t")


async def test_a_plain_nsq_server_has_no_log() -> None:
    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        return reply({"version": "1.3.0"}) if target == "/info" else reply({"message": "NOT_FOUND"}, "404 Not Found")

    async with HttpDouble(answer) as server, LogReader("t", nsqd_http=server.address) as reader:
        with pytest.raises(NoLog, match="plain NSQ server"):
            await reader.read()


async def test_messages_that_retention_took_are_named(http: DaemonHttp) -> None:
    """The log moves on between the question where it begins and the reading."""

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        if target.startswith("/info"):
            return reply({"version": "1.3.0"})
        if target.startswith("/log/offsets"):
            return reply({"topics": [{"topic": "t", "log_id": "a", "first": 0, "next": 8}]})
        if "from=0&" in target:
            return reply({"message": "OUT_OF_RANGE", "first": 7, "next": 8}, "416 Range Not Satisfiable")
        message = {"timestamp": 1, "sequence": 7, "id": "x", "attempts": 1, "body": "7", "headers": {}}
        return reply({"log_id": "a", "first": 7, "next": 8, "resume": 8, "messages": [message]})

    notices: list[str] = []
    async with HttpDouble(answer) as server, LogReader("t", nsqd_http=server.address, notice=notices.append) as reader:
        messages = await reader.read(10, sequence=0)

    assert numbers(messages) == [7]
    assert notices == [f"{server.address}: 7 messages of t from 0 on are gone"]


async def test_messages_are_found_by_text_in_both_directions(daemon: Daemon, topic: str, http: DaemonHttp) -> None:
    await publish(http, daemon, topic, "Needle 1", "hay", "needle 2")
    logs = TopicLogs(http, topic)
    ranges = await logs.ranges((await ClusterClient(http, nsqds=[daemon.http]).nodes()).value)
    backwards = await logs.newest(ranges, limit=5, text="needle")
    forwards = await logs.oldest(ranges, limit=1, text="needle")
    before = await logs.newest(ranges, limit=2, before={ranges[0].node.name: 10})

    assert [message.body for message in backwards.messages] == [b"needle 2", b"Needle 1"]
    assert [message.body for message in forwards.messages] == [b"Needle 1"]
    assert numbers(before.messages) == [9, 8]


# ---- slices of several logs ----


def of_log(bodies: list[str], times: list[int]) -> Any:
    """Answers like an nsqd whose log holds these bodies; at most 3 messages an answer."""

    def answering(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        query = dict(parse_qsl(urlsplit(target).query))
        end = len(bodies)
        if target.startswith("/log/offsets"):
            held = {"topic": "t", "log_id": "a", "first": 0, "next": end, "bytes": 10 * end}
            return reply({"topics": [held]})
        begin, to = int(query["from"]), min(int(query.get("to", end)), int(query["from"]) + 3)
        messages = [
            {"sequence": at, "id": f"{at:016x}", "timestamp": times[at], "attempts": 1, "body": bodies[at]}
            for at in range(begin, min(to, end))
        ]
        return reply({"log_id": "a", "next": end, "resume": min(to, end), "messages": messages})

    return answering


async def sliced(http: DaemonHttp, *addresses: str) -> tuple[TopicLogs, list[LogRange]]:
    logs = TopicLogs(http, "t")
    nodes = [node_of_info(address, {"hostname": address}) for address in addresses]
    return logs, await logs.ranges(nodes)


def bodies(found: LogSlice) -> list[str]:
    return [message.body.decode() for message in found.messages]


async def test_messages_of_one_moment_are_newest_first_too(http: DaemonHttp) -> None:
    async with HttpDouble(of_log(["a", "b", "c", "d", "e"], [1, 5, 5, 5, 5])) as node:
        logs, ranges = await sliced(http, node.address)
        first = await logs.newest(ranges, limit=3)
        second = await logs.newest(ranges, limit=3, before=first.edges)

    assert (bodies(first), first.complete) == (["e", "d", "c"], False)
    assert (bodies(second), second.complete) == (["b", "a"], True)


async def test_pages_of_several_logs_leave_nothing_out_and_show_nothing_twice(http: DaemonHttp) -> None:
    async with (
        HttpDouble(of_log([f"a{at}" for at in range(20)], [10 * at for at in range(20)])) as one,
        HttpDouble(of_log([f"b{at}" for at in range(9)], [150 + at for at in range(9)])) as two,
    ):
        logs, ranges = await sliced(http, one.address, two.address)
        down: list[str] = []
        found = await logs.newest(ranges, limit=4)
        while True:
            down += bodies(found)
            if found.complete:
                break
            found = await logs.newest(ranges, limit=4, before=found.edges)
        up: list[str] = []
        found = await logs.oldest(ranges, limit=4)
        while True:
            up += bodies(found)
            if found.complete:
                break
            found = await logs.oldest(ranges, limit=4, begins=found.edges)

    assert down == list(reversed(up))
    assert sorted(up) == sorted([f"a{at}" for at in range(20)] + [f"b{at}" for at in range(9)])
    assert up[:15] == [f"a{at}" for at in range(15)]


async def test_a_search_says_how_far_it_came_and_goes_on(http: DaemonHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SEARCHED_AT_MOST", 8)
    monkeypatch.setattr(log_reader, "_PAGE", 4)
    texts = ["needle", *(f"hay {at}" for at in range(1, 20)), "a NEEDLE"]
    async with HttpDouble(of_log(texts, [100 + at for at in range(21)])) as node:
        logs, ranges = await sliced(http, node.address)
        first = await logs.newest(ranges, limit=10, text="needle")
        second = await logs.newest(ranges, limit=10, text="needle", before=first.edges)
        third = await logs.newest(ranges, limit=10, text="needle", before=second.edges)
        upwards = await logs.oldest(ranges, limit=10, text="needle")

    assert (bodies(first), first.searched, first.reached, first.complete) == (["a NEEDLE"], 8, 113, False)
    assert (bodies(second), second.searched, second.reached, second.complete) == ([], 8, 105, False)
    assert (bodies(third), third.searched, third.reached, third.complete) == (["needle"], 5, 100, True)
    assert (bodies(upwards), upwards.reached, upwards.complete) == (["needle"], 107, False)
