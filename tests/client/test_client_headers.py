"""Headers in the client: published, delivered, and left out or refused on a plain NSQ server."""

import json
import urllib.request

import pytest
from nsqd_double import NsqdDouble

from daemons import nsqd as running_nsqd
from lapwing import Consumer, Producer
from lapwing.client.errors import PublishFailed
from lapwing.client.sync import SyncConsumer, SyncProducer
from lapwing.testing import Broker
from lapwing.wire.nsq import commands as c


@pytest.fixture(scope="module")
def daemon():
    with running_nsqd() as nsqd:
        yield nsqd


async def test_headers_reach_the_consumer(daemon):
    async with Producer(daemon.tcp) as producer, Consumer("reach", "c", nsqd=daemon.tcp, max_in_flight=10) as consumer:
        await producer.publish("reach", b"one", headers={"key": "a", "note": 'grün "x"'})
        await producer.publish("reach", b"two")
        await producer.publish_many("reach", [b"three", b"four"], headers={"n": "3"})
        await producer.publish_many("reach", [b"five", b"six"], headers=[{"n": "5"}, {}])
        await producer.publish("reach", b"seven", headers={"n": "7"}, defer=0.01)
        seen = {}
        for _ in range(7):
            async with await anext(consumer) as message:
                seen[message.body] = message.headers

    assert seen == {
        b"one": {"key": "a", "note": 'grün "x"'}, b"two": {}, b"three": {"n": "3"}, b"four": {"n": "3"},
        b"five": {"n": "5"}, b"six": {}, b"seven": {"n": "7"},
    }  # fmt: skip


def test_the_blocking_client_does_the_same(daemon):
    with SyncProducer(daemon.tcp) as producer, SyncConsumer("sync", "c", nsqd=daemon.tcp) as consumer:
        producer.publish("sync", b"one", headers={"a": "1"})
        with consumer.get(10) as message:
            assert (message.body, message.headers) == (b"one", {"a": "1"})


def test_http_keeps_headers_and_the_type_of_the_body(daemon):
    for name, kind in (("typed", "application/json"), ("typed", "application/x-www-form-urlencoded")):
        request = urllib.request.Request(
            f"{daemon.url}/pub?topic={name}", b"{}", {"X-Lapwing-Headers": '{"a":"1"}', "Content-Type": kind}
        )
        urllib.request.urlopen(request).close()
    with SyncConsumer("typed", "c", nsqd=daemon.tcp, max_in_flight=2) as consumer:
        messages = [consumer.get(10) for _ in range(2)]
        found = [message.headers for message in messages]
        for message in messages:
            message.finish()

    assert found == [{"a": "1", "content-type": "application/json"}, {"a": "1"}]


async def test_concurrent_publishes_with_headers_are_one_command():
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        futures = [producer.submit("t", b"%d" % number, headers={"n": str(number)}) for number in range(3)]
        for future in futures:
            await future

        pairs = [(b'{"n":"%d"}' % number, b"%d" % number) for number in range(3)]
        assert nsqd.said(c.Hmpub) == [c.Hmpub.of("t", pairs)]


async def test_a_plain_server_gets_no_headers_and_the_caller_an_error():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(PublishFailed, match="a plain NSQ server, which has no headers"):
            await producer.publish("t", b"x", headers={"a": "1"})
        with pytest.raises(PublishFailed, match="a plain NSQ server, which has no headers"):
            await producer.publish_many("t", [b"x", b"y"], headers={"a": "1"})
        await producer.publish("t", b"plain")

        assert nsqd.said(c.Pub | c.Mpub | c.Dpub) == [c.Pub("t", b"plain")]


async def test_a_pool_with_one_plain_server_publishes_headers_to_the_other():
    async with (
        NsqdDouble() as plain,
        NsqdDouble(headers=True) as ours,
        Producer([plain.address, ours.address]) as producer,
    ):
        await ours.until(lambda: len(producer.connections) == 2)
        for _ in range(4):
            await producer.publish("t", b"x", headers={"a": "1"})

        assert len(ours.said(c.Hpub)) == 4
        assert not plain.said(c.Pub)


async def test_a_client_that_wants_no_headers_does_not_ask():
    async with NsqdDouble() as nsqd, Producer(nsqd.address, headers=False), Producer(nsqd.address):
        assert [peer.identity.get("headers") for peer in nsqd.peers] == [None, True]


@pytest.mark.parametrize(
    ("headers", "error", "text"),
    [
        ({"Key": "a"}, ValueError, "header name 'Key'"),
        ({"a b": "x"}, ValueError, "header name 'a b'"),
        ({"a": 1}, TypeError, "values of headers are text"),
        ({"a": "x" * 17000}, ValueError, "at most 16384"),
        ({"message-id": "x" * 129}, ValueError, "at most 128 bytes"),
    ],
)
async def test_headers_that_nsqd_would_refuse_are_refused_before(headers, error, text):
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(error, match=text):
            await producer.publish("t", b"x", headers=headers)


async def test_the_broker_for_tests_knows_headers():
    broker = Broker()
    broker.channel("t", "c")
    await broker.producer().publish("t", b"x", headers={"a": "1"})
    await broker.producer().publish_many("t", [b"y", b"z"], headers=[{"b": "2"}, {}])
    seen = []
    await broker.handle("t", "c", lambda message: seen.append((message.body, message.headers)))

    assert seen == [(b"x", {"a": "1"}), (b"y", {"b": "2"}), (b"z", {})]


def test_json_of_a_message_shows_its_headers(daemon):
    from lapwing.tools.message_format import delivered_json

    with SyncProducer(daemon.tcp) as producer, SyncConsumer("shown", "c", nsqd=daemon.tcp) as consumer:
        producer.publish("shown", b"one", headers={"a": "1"})
        with consumer.get(10) as message:
            assert json.loads(json.dumps(delivered_json(message)))["headers"] == {"a": "1"}


def test_half_of_a_surrogate_pair_can_be_printed(daemon):
    request = urllib.request.Request(
        f"{daemon.url}/pub?topic=half", b"x", {"X-Lapwing-Headers": r'{"a":"\ud800 \ud83d\ude00"}'}
    )
    urllib.request.urlopen(request).close()
    with SyncConsumer("half", "c", nsqd=daemon.tcp) as consumer, consumer.get(10) as message:
        assert message.headers == {"a": "? \U0001f600"}
