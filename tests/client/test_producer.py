"""A producer against nsqds whose every answer the test decides."""

import asyncio
import struct
import time

import pytest
from nsqd_double import NsqdDouble

from lapwing import Producer
from lapwing.client.errors import PublishFailed, PublishTimeout, Refused, Stopped, Unreachable
from lapwing.client.sync import SyncProducer
from lapwing.errors import ConfigError
from lapwing.wire.nsq import commands as c
from lapwing.wire.nsq import frames


def bodies(command):
    """What a publish carries."""
    if not isinstance(command, c.Mpub):
        return [command.body]
    found, at = [], 4
    while at < len(command.body):
        (size,) = struct.unpack_from(">i", command.body, at)
        found.append(command.body[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def published(nsqd):
    return [body for command in nsqd.said(c.Pub | c.Mpub | c.Dpub) for body in bodies(command)]


async def test_one_publish_is_one_pub_and_is_confirmed():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"hello")

        assert nsqd.said(c.Pub) == [c.Pub("t", b"hello")]


async def test_publish_returns_only_after_nsqd_has_answered():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: None
        publish = asyncio.create_task(producer.publish("t", b"hello"))
        await nsqd.until(lambda: nsqd.said(c.Pub))
        assert not publish.done()

        nsqd.live[0].write(frames.OK)
        await publish


async def test_concurrent_publishes_travel_as_one_batch_in_their_order():
    wanted = [b"%d" % number for number in range(500)]
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await asyncio.gather(*(producer.publish("t", body) for body in wanted))

        assert published(nsqd) == wanted
        assert len(nsqd.said(c.Mpub)) == 1


async def test_topics_are_batched_each_for_itself():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await asyncio.gather(*(producer.publish(topic, topic.encode()) for topic in "abab"))

        assert [(command.topic, bodies(command)) for command in nsqd.said(c.Mpub)] == [
            ("a", [b"a", b"a"]),
            ("b", [b"b", b"b"]),
        ]


async def test_a_deferred_publish_keeps_its_place_among_the_others():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await asyncio.gather(
            producer.publish("t", b"1"), producer.publish("t", b"2", defer=1.5), producer.publish("t", b"3")
        )

        assert [type(command) for command in nsqd.said(c.Pub | c.Dpub)] == [c.Pub, c.Dpub, c.Pub]
        assert nsqd.said(c.Dpub)[0].delay == 1_500_000_000
        assert published(nsqd) == [b"1", b"2", b"3"]


async def test_what_is_gathered_while_nsqd_is_slow_leaves_together():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: None
        futures = []
        for number in range(40):
            futures.append(producer.submit("t", b"%d" % number))
            await asyncio.sleep(0)
        await nsqd.until(lambda: len(nsqd.said(c.Pub)) == 16)
        nsqd.on_publish = lambda command: frames.OK
        nsqd.live[0].write(frames.OK * 16)
        await asyncio.gather(*futures)

        assert published(nsqd) == [b"%d" % number for number in range(40)]
        assert len(nsqd.said(c.Mpub)) == 1


async def test_many_are_one_mpub_all_or_nothing():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await producer.publish_many("t", [b"1", b"2", b"3"])
        await producer.publish_many("t", [])

        assert [bodies(command) for command in nsqd.said(c.Mpub)] == [[b"1", b"2", b"3"]]


async def test_many_that_exceed_what_nsqd_takes_go_as_several():
    async with NsqdDouble() as nsqd, Producer(nsqd.address, max_body_size=100) as producer:
        await producer.publish_many("t", [b"x" * 30] * 10)

        assert [len(bodies(command)) for command in nsqd.said(c.Mpub)] == [2, 2, 2, 2, 2]


async def test_a_body_limit_is_learned_from_nsqd():
    def answer(command):
        if isinstance(command, c.Mpub) and len(command.body) > 100:
            return frames.error(b"E_BAD_BODY MPUB body too big %d > 100" % len(command.body))
        return frames.OK

    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = answer
        await producer.publish_many("t", [b"%030d" % number for number in range(5)])
        accepted = [command for command in nsqd.said(c.Pub | c.Mpub) if answer(command) == frames.OK]

        assert [body for command in accepted for body in bodies(command)] == [b"%030d" % number for number in range(5)]

        await asyncio.gather(*(producer.publish("t", b"%030d" % number) for number in range(5)))


async def test_one_message_that_is_too_big_does_not_fail_its_neighbours():
    def answer(command):
        if any(len(body) > 100 for body in bodies(command)):
            return frames.error(b"E_BAD_MESSAGE MPUB message too big 200 > 100")
        return frames.OK

    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = answer
        results = await asyncio.gather(
            producer.publish("t", b"small"), producer.publish("t", b"x" * 200), producer.publish("t", b"tiny"),
            return_exceptions=True,
        )  # fmt: skip

        assert results[0] is results[2] is None
        assert isinstance(results[1], PublishFailed)
        assert "too big" in str(results[1])
        assert bodies(nsqd.said(c.Mpub)[-1]) == [b"small", b"tiny"]


async def test_a_refusal_is_told_with_the_address_and_nsqds_words():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: frames.error(b"E_UNAUTHORIZED AUTH failed for PUB on \"t\" \"\"")
        with pytest.raises(PublishFailed) as caught:
            await producer.publish("t", b"x")

        assert caught.value.code == "E_UNAUTHORIZED"
        assert nsqd.address in str(caught.value)


async def test_what_was_behind_a_refused_publish_is_sent_again():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: frames.error(b"E_INVALID no") if command.topic == "bad" else frames.OK
        bad, good = await asyncio.gather(
            producer.publish("bad", b"1"), producer.publish("good", b"2"), return_exceptions=True
        )

        assert isinstance(bad, PublishFailed)
        assert good is None
        assert len(nsqd.peers) == 2


async def test_a_lost_connection_means_sent_again_until_confirmed():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: None
        publish = asyncio.create_task(producer.publish("t", b"precious"))
        await nsqd.until(lambda: nsqd.said(c.Pub))
        nsqd.on_publish = lambda command: frames.OK
        nsqd.live[0].drop()
        await publish

        assert published(nsqd) == [b"precious", b"precious"]


async def test_a_pool_takes_turns():
    async with NsqdDouble() as first, NsqdDouble() as second, Producer([first.address, second.address]) as producer:
        for number in range(10):
            await producer.publish("t", b"%d" % number)

        assert len(published(first)) == len(published(second)) == 5


async def test_a_pool_survives_the_loss_of_one_without_losing_a_publish():
    async with NsqdDouble() as first, NsqdDouble() as second, Producer([first.address, second.address]) as producer:
        first.on_publish = lambda command: None
        publishes = [asyncio.create_task(producer.publish("t", b"%d" % number)) for number in range(6)]
        await first.until(lambda: published(first))
        await first.vanish()
        await asyncio.gather(*publishes)
        await producer.publish("t", b"later")

        assert {*published(second)} >= {b"later", *published(first)}


async def test_a_full_disk_here_means_another_nsqd():
    async with NsqdDouble() as full, NsqdDouble() as healthy:
        full.on_publish = lambda command: frames.error(b"E_PUB_FAILED PUB failed no space left on device")
        async with Producer([full.address, healthy.address]) as producer:
            for number in range(4):
                await producer.publish("t", b"%d" % number)

            assert published(healthy) == [b"0", b"1", b"2", b"3"]


async def test_a_full_disk_everywhere_is_an_error():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: frames.error(b"E_PUB_FAILED PUB failed no space left on device")
        with pytest.raises(PublishFailed, match="no space left"):
            await producer.publish("t", b"x")


async def test_an_nsqd_that_hangs_is_left_for_another():
    async with NsqdDouble() as stuck, NsqdDouble() as healthy:
        stuck.on_publish = lambda command: None
        async with Producer([stuck.address, healthy.address], confirm_timeout=0.2) as producer:
            for number in range(3):
                await producer.publish("t", b"%d" % number, timeout=10)

            assert {*published(healthy)} == {b"0", b"1", b"2"}


async def test_no_publish_waits_past_its_deadline():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: None
        began = time.monotonic()
        with pytest.raises(PublishTimeout) as caught:
            await producer.publish("t", b"x", timeout=0.2)

        assert 0.15 < time.monotonic() - began < 20
        assert nsqd.address in str(caught.value)
        await producer.stop(timeout=0)


async def test_a_pool_that_cannot_be_reached_fails_at_the_deadline_with_every_reason():
    async with NsqdDouble() as nsqd:
        address = nsqd.address
    producer = Producer(address)
    began = time.monotonic()
    with pytest.raises(PublishTimeout, match="connection refused") as caught:
        await producer.publish("t", b"x", timeout=3)

    assert time.monotonic() - began < 20
    assert address in str(caught.value)
    await producer.stop()


async def test_starting_where_nobody_listens_fails_at_once():
    async with NsqdDouble() as nsqd:
        address = nsqd.address
    with pytest.raises(Unreachable, match="connection refused"):
        async with Producer(address):
            pass


async def test_starting_without_the_secret_nsqd_wants_fails_with_the_fix():
    async with NsqdDouble(auth_required=True) as nsqd:
        with pytest.raises(Refused, match="auth_secret"):
            await Producer(nsqd.address).start()


async def test_the_first_publish_connects():
    async with NsqdDouble() as nsqd:
        producer = Producer(nsqd.address)
        await producer.publish("t", b"x")
        await producer.stop()

        assert published(nsqd) == [b"x"]


async def test_a_publish_hurries_a_connection_that_waits_to_be_made_again():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        port = nsqd.port
        link = next(iter(producer._queue.connections._attempts.values()))
        link._delays._first = 60.0  # as after a long outage
        link._delays._longest = 60.0
        await nsqd.vanish()
        await nsqd.until(lambda: link.error is not None)
        await nsqd.listen(port)
        await producer.publish("t", b"now", timeout=10)


async def test_stop_waits_for_what_is_under_way_and_then_refuses():
    async with NsqdDouble() as nsqd:
        producer = Producer(nsqd.address)
        await producer.start()
        publish = producer.submit("t", b"x")
        await producer.stop()

        assert publish.done()
        assert publish.exception() is None
        with pytest.raises(Stopped):
            await producer.publish("t", b"y")
        await producer.stop()


async def test_a_publish_that_is_cancelled_harms_no_neighbour():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        tasks = [asyncio.create_task(producer.publish("t", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert results[0] is results[2] is None


@pytest.mark.parametrize(("topic", "body"), [("bad topic", b"x"), ("t", b""), ("t", 5), ("t", ""), ("", b"x")])
async def test_what_nsqd_would_refuse_is_refused_before_it_costs_the_connection(topic, body):
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises((ConfigError, ValueError, TypeError)):
            await producer.publish(topic, body)

        assert not published(nsqd)


async def test_heartbeats_are_answered_by_an_idle_producer():
    async with NsqdDouble() as nsqd, Producer(nsqd.address):
        nsqd.live[0].write(frames.HEARTBEAT)
        await nsqd.until(lambda: nsqd.said(c.Nop))


async def test_a_frame_nobody_asked_for_costs_the_connection_but_no_publish():
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        nsqd.live[0].write(frames.OK)
        await nsqd.until(lambda: nsqd.peers[0].closed)
        await producer.publish("t", b"x")

        assert published(nsqd) == [b"x"]


async def test_the_facade_for_scripts_publishes_and_fails_alike():
    async with NsqdDouble() as nsqd:

        def script():
            with SyncProducer(nsqd.address) as producer:
                producer.publish("t", b"1")
                producer.publish_many("t", [b"2", b"3"])
                producer.publish("t", b"4", defer=1)
                with pytest.raises(ValueError):
                    producer.publish("t", b"")
                producer.close()
                producer.close()

        await asyncio.to_thread(script)

        assert published(nsqd) == [b"1", b"2", b"3", b"4"]


def test_the_facade_for_scripts_names_what_it_cannot_reach():
    with pytest.raises(Unreachable, match="nsqd"):
        SyncProducer("127.0.0.1:1")
