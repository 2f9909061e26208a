"""Failing, releasing and rejecting on a real nsqd that counts failures and keeps dead letters."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from daemons import Daemon, nsqd
from lapwing import Consumer, Hold, LogReader, Message, Reject
from lapwing.client.http import DaemonHttp

NUMBERS = count()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


@pytest.fixture
async def topic(daemon: Daemon) -> AsyncIterator[str]:
    """A topic with one message and a channel c that gives up after two failures."""
    name = f"failing{next(NUMBERS)}"
    http = DaemonHttp()
    await http.post(daemon.http, "/topic/create", {"topic": name})
    await http.post(daemon.http, "/channel/create", {"topic": name, "channel": "c"})
    where = {"topic": name, "channel": "c"}
    await http.call("PATCH", daemon.http, "/channel/settings", where, document={"max_attempts": 2})
    await http.post(daemon.http, "/pub", {"topic": name}, body=b"body")
    yield name
    await http.aclose()


async def dead_letter(daemon: Daemon, topic: str) -> dict[str, str]:
    """The headers of the first dead letter."""
    async with LogReader(f"{topic}.c.dead", nsqd_http=daemon.http, notice=lambda text: None) as reader:
        async with asyncio.timeout(60):
            async for message in reader.follow(sequence=0):
                assert message.body == b"body"
                return message.headers
    raise AssertionError("follow ended")


async def test_a_message_that_keeps_failing_is_given_up_by_the_broker_with_the_last_error(
    daemon: Daemon, topic: str
) -> None:
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.attempts)
        raise ValueError(f"attempt {message.attempts}")

    async with Consumer(topic, "c", handler, nsqd=daemon.tcp, max_attempts=1):
        headers = await dead_letter(daemon, topic)

    assert seen == [1, 2]  # the broker's limit counts, not the client's
    assert headers["dead-reason"] == "attempts"
    assert headers["dead-failures"] == "2"
    assert headers["dead-error"].startswith("ValueError: attempt 2 (test_failures_against_nsqd.py:")


async def test_a_rejected_message_is_a_dead_letter_at_once(daemon: Daemon, topic: str) -> None:
    async def handler(message: Message) -> None:
        raise Reject("not JSON", "line 1")

    async with Consumer(topic, "c", handler, nsqd=daemon.tcp):
        headers = await dead_letter(daemon, topic)

    assert headers["dead-reason"] == "rejected"
    assert "line 1" in headers["dead-error"]


async def test_a_held_message_is_never_given_up(daemon: Daemon, topic: str) -> None:
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def handler(message: Message) -> None:
        attempts.put_nowait(message.attempts)
        if message.attempts < 5:
            raise Hold(0)

    async with Consumer(topic, "c", handler, nsqd=daemon.tcp):
        async with asyncio.timeout(60):
            seen = [await attempts.get() for _ in range(5)]

    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("settings", [{"max_attempts": 9, "retry_first": "10m"}, {"retry_first": "10m"}])
async def test_a_message_that_fails_stalls_no_other_where_the_channel_has_retry_settings(
    daemon: Daemon, settings: dict[str, object]
) -> None:
    name = f"failing{next(NUMBERS)}"
    where, http = {"topic": name, "channel": "c"}, DaemonHttp()
    await http.post(daemon.http, "/topic/create", {"topic": name})
    await http.post(daemon.http, "/channel/create", where)
    await http.call("PATCH", daemon.http, "/channel/settings", where, document=settings)
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handler(message: Message) -> None:
        handled.put_nowait(message.body)
        if message.body == b"bad":
            raise ValueError

    async with Consumer(name, "c", handler, nsqd=daemon.tcp) as consumer:
        for body in (b"bad", b"good", b"bad", b"better"):
            await http.post(daemon.http, "/pub", {"topic": name}, body=body)
            assert await asyncio.wait_for(handled.get(), 60) == body
            assert not consumer.rdy.in_backoff
    stats = await http.get(daemon.http, "/stats", {"format": "json", **where})
    await http.aclose()
    (channel,) = stats["topics"][0]["channels"]
    assert channel["deferred_count"] == 2  # for ten minutes, as the channel has it
