"""Reading logs without consuming: on a real nsqd, and on one that forgets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from daemons import Daemon, nsqd
from http_double import HttpDouble, reply
from lapwing import LogReader
from lapwing.client.cluster_client import ClusterClient, UpstreamFailed
from lapwing.client.http import DaemonHttp
from lapwing.client.log_reader import NoLog, NoTopic, TopicLogs
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


async def test_reading_begins_at_a_time(daemon: Daemon, topic: str) -> None:
    async with LogReader(topic, nsqd_http=daemon.http) as reader:
        whole = await reader.read(100, since=datetime(2020, 1, 1, tzinfo=UTC))
        some = await reader.read(100, since=whole[6].timestamp)

    assert numbers(whole) == list(range(10))
    assert numbers(some) == [6, 7, 8, 9]


async def test_following_goes_on_with_what_is_published(daemon: Daemon, topic: str, http: DaemonHttp) -> None:
    seen: list[int] = []
    async with LogReader(topic, nsqd_http=daemon.http) as reader, aclosing(reader.follow(last=2)) as messages:
        async with asyncio.timeout(20):
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
    async with reader, aclosing(reader.follow()) as messages, asyncio.timeout(20):
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

    assert [message.body for message in backwards] == [b"needle 2", b"Needle 1"]
    assert [message.body for message in forwards] == [b"Needle 1"]
    assert numbers(before) == [9, 8]
