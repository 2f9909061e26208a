"""A producer that sends each key to the same nsqd."""

from collections import Counter

import pytest
from nsqd_double import NsqdDouble

from lapwing import Producer
from lapwing.client.errors import PublishTimeout
from lapwing.client.producer import rendezvous
from lapwing.wire.nsq import commands as c

NODES = [f"10.0.0.{number}:4150" for number in range(5)]


def test_each_node_gets_a_share_and_a_node_that_leaves_moves_its_own_keys_alone():
    before = {f"customer-{number}": rendezvous(f"customer-{number}", NODES) for number in range(5000)}
    after = {key: rendezvous(key, NODES[1:]) for key in before}

    assert min(Counter(before.values()).values()) > 800
    assert all(after[key] == node for key, node in before.items() if node != NODES[0])
    assert rendezvous("customer-7", reversed(NODES)) == before["customer-7"]


async def test_a_key_goes_to_the_same_nsqd_every_time():
    async with NsqdDouble(headers=True) as one, NsqdDouble(headers=True) as two:
        async with Producer([one.address, two.address], route_by_key=True) as producer:
            for number in range(30):
                await producer.publish("t", b"%d" % number, headers={"key": f"k{number % 10}"})
        expected = [[], []]
        for number in range(30):
            expected[rendezvous(f"k{number % 10}", [one.address, two.address]) == two.address].append(number)
        got = [[int(each.body.rpartition(b"}")[2]) for each in nsqd.said(c.Hpub)] for nsqd in (one, two)]

    assert got == expected


async def test_many_messages_are_sorted_by_node():
    headers = [{"key": f"k{number % 10}"} for number in range(20)]
    async with NsqdDouble(headers=True) as one, NsqdDouble(headers=True) as two:
        producer = Producer([one.address, two.address], route_by_key=True)
        await producer.publish_many("t", [b"%d" % number for number in range(20)], headers=headers)
        await producer.stop()

        assert [len(nsqd.said(c.Hmpub)) for nsqd in (one, two)] == [1, 1]


async def test_a_key_waits_for_its_nsqd():
    one, two = NsqdDouble(headers=True), NsqdDouble(headers=True)
    async with one:
        async with two:
            producer = Producer([one.address, two.address], route_by_key=True)
            await producer.start()
            addresses = [one.address, two.address]
            gone = next(key for key in map(str, range(99)) if rendezvous(key, addresses) == two.address)
        with pytest.raises(PublishTimeout):
            await producer.publish("t", b"x", headers={"key": gone}, timeout=0.2)
        await producer.stop()

    assert not one.said(c.Hpub)
