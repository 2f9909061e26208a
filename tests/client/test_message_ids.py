"""The producer gives messages ids where the topic recognises them, and keeps them when it publishes again."""

import asyncio
import json
import urllib.request

from nsqd_double import NsqdDouble

from daemons import nsqd as running_nsqd
from lapwing import Producer
from lapwing.client.sync import SyncConsumer, SyncProducer
from lapwing.wire.nsq import commands as c
from lapwing.wire.nsq import frames

KNOWS = frames.OK_MESSAGE_ID


def ids(command):
    """The message-id of each message of a publish."""
    bodies = [command.body] if isinstance(command, c.Hpub) else c.bodies(command.body)
    return [json.loads(body[4 : 4 + int.from_bytes(body[:4], "big")] or "{}").get("message-id") for body in bodies]


async def test_ids_are_made_for_topics_that_recognise_them():
    async with NsqdDouble(headers=True, message_ids=["once", "orders.*"]) as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: frames.OK if command.topic == "plain" else KNOWS
        await producer.publish("plain", b"x")
        await producer.publish("once", b"x")
        await producer.publish("orders.eu", b"x", headers={"a": "1"})
        await producer.publish_many("once", [b"x", b"y"])
        await producer.publish("once", b"x", headers={"message-id": "own"})

        assert nsqd.said(c.Pub) == [c.Pub("plain", b"x")]
        found = [message_id for command in nsqd.said(c.Hpub | c.Hmpub) for message_id in ids(command)]
        assert len(set(found)) == len(found) == 5
        assert found[-1] == "own"
        assert all(found)


async def test_a_header_with_the_value_message_id_is_none():
    async with NsqdDouble(headers=True, message_ids=["*"]) as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: KNOWS
        await producer.publish("t", b"x", headers={"a": "message-id"})

        assert all(ids(nsqd.said(c.Hpub)[0]))


def test_ids_count_for_the_size_of_a_batch():
    with running_nsqd("--max-body-size=20000") as daemon:
        for change in (b"", b'{"dedup_window": "5m"}', b'{"dedup_window": "0s"}', b'{"dedup_window": "5m"}'):
            if change:
                request = urllib.request.Request(f"{daemon.url}/topic/settings?topic=t", change, method="PATCH")
                urllib.request.urlopen(request).close()
            with SyncProducer(daemon.tcp, max_body_size=20_000) as producer:
                producer.publish_many("t", [b"x" * 90] * 210)
                producer.publish_many("t", [b"x" * 90] * 210)
        with urllib.request.urlopen(f"{daemon.url}/stats?format=json&topic=t") as answer:
            [topic] = json.load(answer)["topics"]

    assert topic["message_count"] == 8 * 210


async def test_the_answers_of_nsqd_decide_from_then_on():
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"1")
        nsqd.on_publish = lambda command: KNOWS
        await producer.publish("t", b"2")
        await producer.publish("t", b"3")
        nsqd.on_publish = lambda command: frames.OK
        await producer.publish("t", b"4")
        await producer.publish("t", b"5")

        said = nsqd.said(c.Pub | c.Hpub)
        assert [type(command) for command in said] == [c.Pub, c.Pub, c.Hpub, c.Hpub, c.Pub]


async def test_a_batch_that_is_sent_again_has_the_same_ids():
    async with NsqdDouble(headers=True, message_ids=["*"]) as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: None
        publishes = [asyncio.ensure_future(producer.publish("t", b"%d" % number)) for number in range(3)]
        await nsqd.until(lambda: nsqd.said(c.Hmpub | c.Hpub))
        first = ids(nsqd.said(c.Hmpub)[0])
        nsqd.on_publish = lambda command: KNOWS
        nsqd.live[0].drop()
        await asyncio.gather(*publishes)

        assert ids(nsqd.said(c.Hmpub)[-1]) == first
        assert len(nsqd.said(c.Hmpub)) == 2


async def test_a_plain_server_gets_no_ids():
    async with NsqdDouble(message_ids=["*"]) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")

        assert nsqd.said(c.Pub) == [c.Pub("t", b"x")]


def test_the_same_id_is_delivered_once():
    with running_nsqd() as daemon:
        urllib.request.urlopen(f"{daemon.url}/topic/create?topic=t", b"").close()
        change = urllib.request.Request(
            f"{daemon.url}/topic/settings?topic=t", b'{"dedup_window": "5m"}', method="PATCH"
        )
        urllib.request.urlopen(change).close()
        with SyncProducer(daemon.tcp) as producer, SyncConsumer("t", "c", nsqd=daemon.tcp, max_in_flight=9) as consumer:
            for body in (b"1", b"again"):
                producer.publish("t", body, headers={"message-id": "a"})
            producer.publish("t", b"2")
            seen = []
            for _ in range(2):
                with consumer.get(10) as message:
                    seen.append((message.body, message.headers["message-id"] == "a"))

        with urllib.request.urlopen(f"{daemon.url}/stats?format=json&topic=t") as answer:
            [topic] = json.load(answer)["topics"]
    assert seen == [(b"1", True), (b"2", False)]
    assert topic["duplicates"] == 1
