"""Request and reply."""

import asyncio
import json
import urllib.request

import pytest
from nsqd_double import NsqdDouble

from daemons import nsqd as running_nsqd
from daemons import until
from lapwing import Consumer, Producer
from lapwing.client.errors import PublishFailed
from lapwing.client.inbox import Inbox, RequestTimeout
from lapwing.client.message import Message
from lapwing.client.sync import SyncProducer


@pytest.fixture(scope="module")
def daemon():
    with running_nsqd() as nsqd:
        yield nsqd


async def test_each_request_gets_its_own_reply(daemon):
    async with Producer(daemon.tcp) as asking, Producer(daemon.tcp) as other, Producer(daemon.tcp) as answering:

        async def double(message):
            await answering.reply(message, b"%d" % (2 * int(message.body)), headers={"unit": "m"})

        async with Consumer("double", "c", double, nsqd=daemon.tcp, max_in_flight=50, concurrency=10):
            askers = [asking, other] * 10
            replies = await asyncio.gather(
                *(asker.request("double", b"%d" % number) for number, asker in enumerate(askers))
            )

    assert [int(reply.body) for reply in replies] == [2 * number for number in range(20)]
    assert {reply.headers["unit"] for reply in replies} == {"m"}


def test_a_request_that_nobody_answers_times_out_and_leaves_no_inbox(daemon):
    with SyncProducer(daemon.tcp) as producer, pytest.raises(RequestTimeout, match=r"no reply from nobody within 0.3"):
        producer.request("nobody", b"?", timeout=0.3)

    def topics():
        with urllib.request.urlopen(f"{daemon.url}/stats?format=json") as answer:
            return [topic["topic_name"] for topic in json.load(answer)["topics"]]

    until(lambda: Inbox.topic not in topics(), what="the inbox is gone")


async def test_only_a_request_can_be_replied_to(daemon):
    async with Producer(daemon.tcp) as producer:
        with pytest.raises(ValueError, match="is no request: it has no reply-to header"):
            await producer.reply(Message((1, 1, b"0123456789abcdef", b"x"), None, 0.0), b"y")


async def test_a_plain_server_takes_no_requests():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(PublishFailed, match="has no headers"):
            await producer.request("t", b"x", timeout=5)
