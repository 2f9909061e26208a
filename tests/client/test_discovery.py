"""Finding nsqds through nsqlookupd, without one."""

import asyncio
import json

import pytest
from nsqd_double import NsqdDouble

from lapwing import Consumer, Producer
from lapwing.client.address import Address
from lapwing.client.discovery import Discovery, addresses_in, lookup_url
from lapwing.client.errors import Unreachable
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError
from lapwing.wire.nsq import commands as c


class LookupDouble:
    """Answers every GET with what the test has put there; `asked` are the request heads."""

    def __init__(self):
        self.status = 200
        self.answer = {"channels": [], "producers": []}
        self.asked = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    def lists(self, *nsqds):
        self.answer = {
            "producers": [{"broadcast_address": "127.0.0.1", "tcp_port": nsqd.port, "http_port": 1} for nsqd in nsqds]
        }

    async def _serve(self, reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(request.decode())
        body = json.dumps(self.answer).encode()
        head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (self.status, len(body))
        writer.write(head + body)
        await writer.drain()
        writer.close()


async def handle(message):
    """Nothing to do; returning finishes."""


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("h:4161", "http://h:4161/lookup?topic=a%23b"),
        ("http://h:4161", "http://h:4161/lookup?topic=a%23b"),
        ("https://h:4161/", "https://h:4161/lookup?topic=a%23b"),
        ("http://h:4161/custom?k=v", "http://h:4161/custom?k=v&topic=a%23b"),
    ],
)
def test_an_address_becomes_a_lookup(text, url):
    assert lookup_url(text, topic="a#b") == url


def test_a_producer_asks_for_all_nodes():
    assert lookup_url("h:4161", topic=None) == "http://h:4161/nodes"


@pytest.mark.parametrize("text", ["h", "http://h", "ftp://h:1", "h:port", "http://[::1:5", "h:99999"])
def test_an_address_without_a_port_is_refused(text):
    with pytest.raises(ConfigError):
        lookup_url(text, topic="t")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"producers": [{"broadcast_address": "h", "tcp_port": 1}]}, {Address("h", 1)}),
        ({"data": {"producers": [{"broadcast_address": "h", "tcp_port": 1}]}}, {Address("h", 1)}),
        ({"producers": [{"broadcast_address": "", "tcp_port": 1}, {"tcp_port": 2}]}, set()),
        ({"producers": [{"broadcast_address": "h", "tcp_port": "1"}]}, set()),
        ({"producers": None}, set()),
        ({}, set()),
        ([], set()),
    ],
)
def test_an_answer_is_read_with_care(answer, found):
    assert addresses_in(answer) == found


async def test_a_consumer_finds_its_nsqds():
    async with NsqdDouble() as nsqd, LookupDouble() as lookupd:
        lookupd.lists(nsqd)
        async with Consumer("t", "c", handle, lookupd=lookupd.address, max_in_flight=4, auth_secret="s3cret"):
            peer = await nsqd.subscriber(4)
            peer.deliver(b"x")
            await nsqd.until(lambda: nsqd.said(c.Fin))

        assert "GET /lookup?topic=t " in lookupd.asked[0]
        assert "application/vnd.nsq; version=1.0" in lookupd.asked[0]
        assert "bearer s3cret" in lookupd.asked[0].lower()


async def test_all_nsqlookupds_are_asked_at_start_and_one_that_is_down_does_not_matter():
    async with NsqdDouble() as first, NsqdDouble() as second, LookupDouble() as one, LookupDouble() as two:
        one.lists(first)
        two.lists(second)
        addresses = [one.address, "127.0.0.1:1", two.address]
        async with Consumer("t", "c", handle, lookupd=addresses, max_in_flight=4) as consumer:
            await first.subscriber(2)
            await second.subscriber(2)

            assert len(consumer.connections) == 2


async def test_a_topic_that_comes_later_is_found_at_a_later_poll():
    async with NsqdDouble() as nsqd, LookupDouble() as lookupd:
        lookupd.status = 404
        async with Consumer(
            "t", "c", handle, lookupd=lookupd.address, lookupd_poll_interval=0.05, lookupd_poll_jitter=0.0
        ):
            assert not nsqd.peers
            lookupd.status = 200
            lookupd.lists(nsqd)
            await nsqd.subscriber()


async def test_a_vanished_address_is_kept_while_it_works_and_dropped_when_it_fails():
    async with NsqdDouble() as nsqd, LookupDouble() as lookupd:
        lookupd.lists(nsqd)
        async with Consumer(
            "t", "c", handle, lookupd=lookupd.address, lookupd_poll_interval=0.05, lookupd_poll_jitter=0.0
        ) as consumer:
            peer = await nsqd.subscriber()
            lookupd.lists()
            count = len(lookupd.asked)
            await nsqd.until(lambda: len(lookupd.asked) > count + 2)
            assert not peer.closed

            peer.drop()
            await nsqd.until(lambda: not consumer._connections.addresses)
            assert len(nsqd.peers) == 1


async def test_a_lost_connection_is_a_reason_to_ask_again():
    async with NsqdDouble() as nsqd, LookupDouble() as lookupd:
        lookupd.lists(nsqd)
        async with Consumer("t", "c", handle, lookupd=lookupd.address):
            (await nsqd.subscriber()).drop()
            await nsqd.until(lambda: len(lookupd.asked) == 2)
            await nsqd.until(lambda: len(nsqd.live) == 1)


async def test_the_application_may_leave_addresses_out():
    async with NsqdDouble() as wanted, NsqdDouble() as unwanted, LookupDouble() as lookupd:
        lookupd.lists(wanted, unwanted)
        async with Consumer(
            "t", "c", handle, lookupd=lookupd.address, address_filter=lambda address: address != unwanted.address
        ) as consumer:
            await wanted.subscriber()

            assert consumer.connections == [wanted.address]


async def test_a_producer_publishes_to_what_nsqlookupd_knows():
    async with NsqdDouble() as nsqd, LookupDouble() as lookupd:
        lookupd.lists(nsqd)
        async with Producer(lookupd=lookupd.address) as producer:
            await producer.publish("t", b"x")

        assert nsqd.said(c.Pub)
        assert "GET /nodes " in lookupd.asked[0]


async def test_a_producer_without_an_nsqd_to_publish_to_is_told_why():
    async with LookupDouble() as lookupd:
        with pytest.raises(Unreachable, match="knows no nsqd"):
            async with Producer(lookupd=lookupd.address):
                pass
    with pytest.raises(Unreachable, match="is nsqlookupd running there"):
        async with Producer(lookupd="127.0.0.1:1"):
            pass


async def test_garbage_from_nsqlookupd_is_told_and_survived():
    found = []
    async with LookupDouble() as lookupd:
        lookupd.answer = {"producers": ["nonsense"]}
        discovery = Discovery([lookupd.address], ClientOptions(), found.append, topic="t")
        await discovery.start()
        await discovery.stop()

    assert not found
    assert lookupd.address in discovery.errors[0]
