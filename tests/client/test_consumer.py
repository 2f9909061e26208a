"""A consumer against an nsqd whose every answer the test decides."""

import asyncio
import threading
import time

import pytest
from nsqd_double import NsqdDouble

from lapwing import Consumer, Message
from lapwing.client.address import Address
from lapwing.client.errors import Refused, Stopped, Unreachable
from lapwing.client.message import Requeue
from lapwing.errors import ConfigError
from lapwing.wire.nsq import commands as c
from lapwing.wire.nsq import frames
from measuring import about_short_times


def ids(commands):
    return [command.id for command in commands]


class Recorder:
    """A handler that keeps what it saw, and can be told to fail or to wait."""

    def __init__(self, failing=()):
        self.bodies = []
        self.failing = set(failing)

    async def __call__(self, message):
        self.bodies.append(message.body)
        if message.body in self.failing:
            raise RuntimeError("as the test wants")


async def test_a_handler_that_returns_finishes_the_message():
    handler = Recorder()
    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10):
        peer = await nsqd.subscriber(10)
        delivered = peer.deliver(b"one", b"two", b"three")
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 3)

        assert handler.bodies == [b"one", b"two", b"three"]
        assert ids(nsqd.said(c.Fin)) == delivered


async def test_rdy_follows_sub_without_waiting_for_its_answer():
    async with NsqdDouble() as nsqd, Consumer("t", "c", Recorder(), nsqd=nsqd.address, max_in_flight=5):
        await nsqd.subscriber(5)

        kinds = [type(command) for command in nsqd.commands]
        assert kinds == [c.Identify, c.Sub, c.Rdy]


async def test_a_heartbeat_before_the_answer_to_sub_is_no_trouble():
    async with NsqdDouble() as nsqd:
        nsqd.on_sub = lambda command: frames.HEARTBEAT + frames.OK
        async with Consumer("t", "c", Recorder(), nsqd=nsqd.address):
            await nsqd.until(lambda: nsqd.said(c.Nop))


async def test_max_in_flight_is_shared_over_two_nsqds_and_comes_back_when_one_goes():
    async with (
        NsqdDouble() as first,
        NsqdDouble() as second,
        Consumer("t", "c", Recorder(), nsqd=[first.address], max_in_flight=5) as consumer,
    ):
        peer = await first.subscriber(5)
        consumer._connections._found({Address("127.0.0.1", second.port)})
        await second.subscriber(2)

        assert peer.rdys == [5, 2]
        await second.vanish()
        await first.until(lambda: peer.rdys == [5, 2, 5])


async def test_a_failing_handler_requeues_with_the_default_delay_and_backs_off_first():
    async with NsqdDouble() as nsqd:
        handler = Recorder(failing=[b"bad"])
        settings = {"max_in_flight": 10, "backoff_multiplier": 0.05, "default_requeue_delay": 90.0}
        async with Consumer("t", "c", handler, nsqd=nsqd.address, **settings):
            peer = await nsqd.subscriber(10)
            peer.deliver(b"bad")
            await nsqd.until(lambda: nsqd.said(c.Req))

            assert nsqd.said(c.Req)[0].delay == 90_000_000_000
            assert [type(command) for command in peer.commands[-2:]] == [c.Rdy, c.Req]
            assert peer.rdys == [10, 0]
            await nsqd.until(lambda: peer.rdys == [10, 0, 1])
            peer.deliver(b"good")
            await nsqd.until(lambda: peer.rdys == [10, 0, 1, 10])
            assert [type(command) for command in peer.commands[-2:]] == [c.Rdy, c.Fin]


async def test_the_default_delay_grows_with_the_attempts_up_to_its_limit():
    async with NsqdDouble() as nsqd:
        handler = Recorder(failing=[b"x"])
        settings = {"default_requeue_delay": 2.0, "max_requeue_delay": 5.0, "max_backoff_duration": 0.0}
        async with Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10, **settings):
            peer = await nsqd.subscriber(10)
            for attempts in (1, 2, 3):
                peer.deliver(b"x", attempts=attempts)
            await nsqd.until(lambda: len(nsqd.said(c.Req)) == 3)

            assert [request.delay // 10**9 for request in nsqd.said(c.Req)] == [2, 4, 5]
            assert peer.rdys == [10]


async def test_requeue_can_be_raised_with_a_delay_and_without_blame():
    async def handler(message):
        raise Requeue(3.0, backoff=False)

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10):
        peer = await nsqd.subscriber(10)
        peer.deliver(b"x")
        await nsqd.until(lambda: nsqd.said(c.Req))

        assert nsqd.said(c.Req)[0].delay == 3 * 10**9
        assert peer.rdys == [10]


async def test_a_message_is_answered_once():
    async def handler(message):
        message.requeue(0, backoff=False)
        message.finish()
        message.touch()

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10):
        peer = await nsqd.subscriber(10)
        peer.deliver(b"x")
        await nsqd.until(lambda: nsqd.said(c.Req))
        peer.deliver(b"y")
        await nsqd.until(lambda: len(nsqd.said(c.Req)) == 2)

        assert not nsqd.said(c.Fin)
        assert not nsqd.said(c.Touch)


async def test_too_many_attempts_are_given_up_unseen_and_told():
    handler, given_up = Recorder(), []
    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_attempts=2, on_giving_up=given_up.append, max_in_flight=9),
    ):
        peer = await nsqd.subscriber(9)
        peer.deliver(b"fine", attempts=2)
        peer.deliver(b"hopeless", attempts=3)
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 2)

        assert handler.bodies == [b"fine"]
        assert [message.body for message in given_up] == [b"hopeless"]


async def test_who_is_told_of_giving_up_may_take_time_and_fail():
    told, go_on = [], asyncio.Event()

    async def keep(message):
        await go_on.wait()
        told.append(message.body)
        if message.body == b"bad":
            raise RuntimeError("as the test wants")

    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", Recorder(), nsqd=nsqd.address, max_in_flight=5, on_giving_up=keep),
    ):
        peer = await nsqd.subscriber(5)
        [bad, good] = peer.deliver(b"bad", b"good", attempts=6)
        await asyncio.sleep(0.05)
        assert not nsqd.said(c.Fin)
        go_on.set()
        await nsqd.until(lambda: nsqd.said(c.Fin) and nsqd.said(c.Req))

        assert sorted(told) == [b"bad", b"good"]
        assert ids(nsqd.said(c.Fin)) == [good]
        assert ids(nsqd.said(c.Req)) == [bad]


@pytest.mark.parametrize("run", ["auto", "threads"])
async def test_a_function_that_returns_a_coroutine_is_waited_for(run):
    handler = Recorder(failing=[b"bad"])
    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", lambda message: handler(message), nsqd=nsqd.address, max_in_flight=5, run=run),
    ):
        peer = await nsqd.subscriber(5)
        [good, bad] = peer.deliver(b"good", b"bad")
        await nsqd.until(lambda: nsqd.said(c.Fin) and nsqd.said(c.Req))

        assert handler.bodies == [b"good", b"bad"]
        assert ids(nsqd.said(c.Fin)) == [good]
        assert ids(nsqd.said(c.Req)) == [bad]


async def test_heartbeats_are_answered_while_a_blocking_handler_runs():
    release = threading.Event()

    def handler(message):
        release.wait(60)

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address):
        peer = await nsqd.subscriber()
        peer.deliver(b"slow")
        peer.write(frames.HEARTBEAT)
        await nsqd.until(lambda: nsqd.said(c.Nop))
        assert not nsqd.said(c.Fin)

        release.set()
        await nsqd.until(lambda: nsqd.said(c.Fin))


async def test_a_handler_that_never_waits_still_lets_heartbeats_through():
    async def handler(message):
        busy = time.monotonic() + 0.003
        while time.monotonic() < busy:
            pass  # as a computation is

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=100):
        peer = await nsqd.subscriber(100)
        peer.deliver(*[b"x"] * 100)
        peer.write(frames.HEARTBEAT)
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 100)

        kinds = [type(command) for command in peer.commands]
        assert kinds.index(c.Nop) < len(kinds) - 50


@about_short_times
async def test_held_messages_are_touched_until_nsqd_grants_no_more():
    done = asyncio.Event()
    seen = []

    async def handler(message):
        await done.wait()
        seen.append(message.expired)

    async with (
        NsqdDouble(msg_timeout=200, max_msg_timeout=700) as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=2, stop_timeout=1.0) as consumer,
    ):
        peer = await nsqd.subscriber(2)
        peer.deliver(b"held", b"waiting")
        await nsqd.until(lambda: len(nsqd.said(c.Touch)) >= 4, seconds=10)
        assert {touch.id for touch in nsqd.said(c.Touch)} == {b"%016x" % 1, b"%016x" % 2}
        held = next(iter(consumer._subscriptions)).in_flight[b"%016x" % 1]
        await nsqd.until(lambda: held.expired)
        done.set()
        await nsqd.until(lambda: seen)

    assert seen[0] is True
    assert len(nsqd.said(c.Touch)) <= 14


async def test_touching_can_be_switched_off():
    release = asyncio.Event()

    async def handler(message):
        await release.wait()

    async with (
        NsqdDouble(msg_timeout=100) as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, auto_touch=False),
    ):
        peer = await nsqd.subscriber()
        [first] = peer.deliver(b"x")
        peer.write(frames.HEARTBEAT)
        await asyncio.sleep(0.3)
        release.set()
        await nsqd.until(lambda: nsqd.said(c.Fin))

        assert not nsqd.said(c.Touch)
        assert ids(nsqd.said(c.Fin)) == [first]


async def test_concurrency_is_how_many_handlers_run_at_once():
    running, most = 0, 0

    async def handler(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, concurrency=3, max_in_flight=20):
        peer = await nsqd.subscriber(20)
        peer.deliver(*[b"x"] * 12)
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 12)

    assert most == 3


async def test_a_handler_that_is_cancelled_from_elsewhere_costs_no_worker():
    async def handler(message):
        if message.body == b"cancelled":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=5):
        peer = await nsqd.subscriber(5)
        cancelled, fine = peer.deliver(b"cancelled", b"fine")
        await nsqd.until(lambda: nsqd.said(c.Fin))

        assert ids(nsqd.said(c.Fin)) == [fine]
        assert ids(nsqd.said(c.Req)) == [cancelled]


async def test_a_wall_clock_set_back_does_not_stop_reconnecting(monkeypatch):
    async with NsqdDouble() as nsqd, Consumer("t", "c", Recorder(), nsqd=nsqd.address) as consumer:
        peer = await nsqd.subscriber()
        monkeypatch.setattr(time, "time", lambda: 1.0)
        peer.drop()
        await nsqd.until(lambda: len(nsqd.live) == 1 and nsqd.live[0].rdy == 1)

        assert consumer.connections == [nsqd.address]


async def test_plain_functions_run_in_threads_and_keep_their_order():
    seen, threads = [], set()

    def handler(message):
        threads.add(threading.get_ident())
        seen.append(message.body)
        if message.body == b"3":
            raise Requeue(0, backoff=False)

    bodies = [b"%d" % number for number in range(50)]
    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=50):
        peer = await nsqd.subscriber(50)
        peer.deliver(*bodies)
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 49 and nsqd.said(c.Req))

    assert seen == bodies
    assert threading.get_ident() not in threads


async def test_answers_may_come_from_another_thread():
    def handler(message):
        message.touch()
        message.requeue(1.0, backoff=False)

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address):
        peer = await nsqd.subscriber()
        peer.deliver(b"x")
        await nsqd.until(lambda: nsqd.said(c.Req))

        assert len(nsqd.said(c.Touch)) == 1
        assert not nsqd.said(c.Fin)


def in_a_process(message):
    """A handler for the process pool; importable by name, as it must be."""
    if message.body == b"again":
        raise Requeue(2.0, backoff=False)
    if message.body == b"later":
        message.requeue(3.0, backoff=False)
    if message.body == b"bad":
        raise RuntimeError("as the test wants")
    if message.topic != "t" or not message.address or message.expired:
        raise RuntimeError(f"a poor copy: {message.topic!r}, {message.address!r}, {message.expired}")
    message.finish()


@pytest.mark.slow
async def test_handlers_may_run_in_processes():
    async with (
        NsqdDouble() as nsqd,
        Consumer(
            "t", "c", in_a_process, nsqd=nsqd.address, run="processes", concurrency=1, max_in_flight=10,
            max_backoff_duration=0.0,
        ),
    ):  # fmt: skip
        peer = await nsqd.subscriber(10)
        good, again, later, bad = peer.deliver(b"good", b"again", b"later", b"bad")
        await nsqd.until(lambda: len(nsqd.said(c.Req)) == 3 and nsqd.said(c.Fin), seconds=60)

        assert ids(nsqd.said(c.Fin)) == [good]
        requests = [(request.id, request.delay // 10**9) for request in nsqd.said(c.Req)]
        assert requests == [(again, 2), (later, 3), (bad, 90)]


async def test_messages_can_be_iterated_and_answered_by_hand():
    async with NsqdDouble() as nsqd, Consumer("t", "c", nsqd=nsqd.address, max_in_flight=10) as consumer:
        peer = await nsqd.subscriber(10)
        delivered = peer.deliver(b"one", b"two", b"three")
        seen = []
        async for message in consumer:
            seen.append((message.body, message.attempts, message.topic))
            message.finish()
            if len(seen) == 3:
                break
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 3)

        assert seen == [(b"one", 1, "t"), (b"two", 1, "t"), (b"three", 1, "t")]
        assert ids(nsqd.said(c.Fin)) == delivered


async def test_a_message_block_finishes_and_an_exception_in_it_requeues():
    async with NsqdDouble() as nsqd, Consumer("t", "c", nsqd=nsqd.address, max_in_flight=10) as consumer:
        peer = await nsqd.subscriber(10)
        good, bad = peer.deliver(b"good", b"bad")
        async with await anext(consumer):
            pass
        with pytest.raises(RuntimeError):
            async with await anext(consumer):
                raise RuntimeError("as the test wants")
        await nsqd.until(lambda: nsqd.said(c.Req) and nsqd.said(c.Fin))

        assert (nsqd.said(c.Fin)[0].id, nsqd.said(c.Req)[0].id) == (good, bad)


async def test_leaving_the_consumer_block_gives_everything_back_at_once():
    async with NsqdDouble() as nsqd:
        delivered = []

        async def fail():
            async with Consumer("t", "c", nsqd=nsqd.address, max_in_flight=10) as consumer:
                peer = await nsqd.subscriber(10)
                delivered.extend(peer.deliver(b"one", b"two", b"three"))
                await anext(consumer)
                raise RuntimeError("as the test wants")

        with pytest.raises(RuntimeError):
            await fail()
        await nsqd.until(lambda: not nsqd.live)

        assert sorted(ids(nsqd.said(c.Req))) == sorted(delivered)
        assert all(request.delay == 0 for request in nsqd.said(c.Req))
        assert nsqd.said(c.Cls)


async def test_stop_lets_handlers_finish_what_they_have():
    begun, release = asyncio.Event(), asyncio.Event()

    async def handler(message):
        begun.set()
        await release.wait()

    async with NsqdDouble() as nsqd:
        consumer = Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10)
        await consumer.start()
        peer = await nsqd.subscriber(10)
        delivered = peer.deliver(b"one", b"two")
        await begun.wait()
        stopping = asyncio.create_task(consumer.stop())
        await nsqd.until(lambda: nsqd.said(c.Cls))
        assert not nsqd.said(c.Fin)
        release.set()
        await stopping
        await nsqd.until(lambda: not nsqd.live)

        assert ids(nsqd.said(c.Fin)) == delivered
        await consumer.stop()
        with pytest.raises(Stopped):
            await Consumer.start(consumer)


async def test_stop_gives_up_on_handlers_after_its_timeout_and_gives_their_messages_back():
    begun = asyncio.Event()

    async def handler(message):
        begun.set()
        await asyncio.Event().wait()

    async with NsqdDouble() as nsqd:
        async with Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10, stop_timeout=0.2):
            peer = await nsqd.subscriber(10)
            delivered = peer.deliver(b"one", b"two")
            await begun.wait()
        await nsqd.until(lambda: not nsqd.live)

        assert sorted(ids(nsqd.said(c.Req))) == sorted(delivered)


async def test_a_handler_may_stop_its_own_consumer():
    async with NsqdDouble() as nsqd:
        consumer = Consumer("t", "c", lambda message: None, nsqd=nsqd.address, run="loop")

        async def handler(message):
            await consumer.stop()

        consumer._handler = handler
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            (await nsqd.subscriber()).deliver(b"last")

        await nsqd.until(lambda: not nsqd.live)
        assert len(nsqd.said(c.Fin)) == 1


async def test_a_lost_connection_is_made_again_and_its_waiting_messages_are_left_to_nsqd():
    release = asyncio.Event()
    seen = []

    async def handler(message):
        seen.append(message.body)
        await release.wait()

    async with NsqdDouble() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=5) as consumer:
        peer = await nsqd.subscriber(5)
        peer.deliver(b"begun", b"waiting")
        await nsqd.until(lambda: seen)
        peer.drop()
        again = await nsqd.until(lambda: [one for one in nsqd.live if one.rdy == 5 and one is not peer])
        release.set()
        again[0].deliver(b"waiting again")
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 1)

        assert seen == [b"begun", b"waiting again"]
        assert consumer.stats.connections == 1


async def test_an_nsqd_that_comes_back_later_is_found_again():
    async with NsqdDouble() as nsqd, Consumer("t", "c", Recorder(), nsqd=nsqd.address, max_in_flight=5) as consumer:
        await nsqd.subscriber(5)
        port = nsqd.port
        await nsqd.vanish()
        await nsqd.until(lambda: consumer.errors)
        await nsqd.listen(port)
        peer = await nsqd.until(lambda: nsqd.live and nsqd.live[0].rdy == 5 and nsqd.live[0])
        peer.deliver(b"back")
        await nsqd.until(lambda: nsqd.said(c.Fin))


async def test_an_address_where_nobody_listens_fails_the_start_and_is_named():
    async with NsqdDouble() as nsqd:
        address = nsqd.address
    with pytest.raises(Unreachable, match="connection refused") as caught:
        await Consumer("t", "c", Recorder(), nsqd=address).start()

    assert address in str(caught.value)


async def test_one_of_two_nsqds_is_enough_to_start_unless_every_one_is_asked_for():
    async with NsqdDouble() as gone:
        address = gone.address
    async with NsqdDouble() as nsqd:
        async with Consumer("t", "c", Recorder(), nsqd=[nsqd.address, address]) as consumer:
            assert consumer.connections == [nsqd.address]
            assert address in consumer.errors[0]
        with pytest.raises(Unreachable):
            await Consumer("t", "c", Recorder(), nsqd=[nsqd.address, address]).start(need="every")


async def test_a_refused_subscription_is_told_with_nsqds_own_words():
    async with NsqdDouble() as nsqd:
        nsqd.on_sub = lambda command: frames.error(b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")
        with pytest.raises(Refused, match="exceeds limit of 1"):
            await Consumer("t", "c", Recorder(), nsqd=nsqd.address).start()


async def test_an_auth_secret_that_is_missing_is_asked_for():
    async with NsqdDouble(auth_required=True) as nsqd:
        with pytest.raises(Refused, match="auth_secret"):
            await Consumer("t", "c", Recorder(), nsqd=nsqd.address).start()


async def test_tls_that_is_not_offered_is_an_error_and_never_plain_text():
    async with NsqdDouble() as nsqd:
        with pytest.raises(Refused, match="tls"):
            await Consumer("t", "c", Recorder(), nsqd=nsqd.address, tls_v1=True).start()

        assert not nsqd.said(c.Sub)


async def test_silence_is_noticed():
    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", Recorder(), nsqd=nsqd.address, read_timeout=0.2, heartbeat_interval=0.1),
    ):
        await nsqd.subscriber()
        await nsqd.until(lambda: len(nsqd.peers) >= 2)


async def test_a_peer_that_speaks_http_is_recognised():
    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="HTTP"):
            await Consumer("t", "c", Recorder(), nsqd=f"127.0.0.1:{port}").start()


async def test_a_peer_that_never_answers_is_given_up_within_the_deadline():
    async def say_nothing(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        consumer = Consumer(
            "t", "c", Recorder(), nsqd=f"127.0.0.1:{port}", read_timeout=0.3, heartbeat_interval=0.2
        )
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await consumer.start()
        assert time.monotonic() - began < 20


async def test_starved_says_that_a_connection_has_all_it_may_have():
    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", nsqd=nsqd.address, max_in_flight=10, auto_touch=False) as consumer,
    ):
        peer = await nsqd.subscriber(10)
        peer.deliver(*[b"x"] * 8)
        for _ in range(8):
            await anext(consumer)
        assert not consumer.starved
        peer.deliver(b"y")
        await anext(consumer)
        assert consumer.starved


async def test_max_in_flight_can_be_changed_and_zero_pauses():
    async with NsqdDouble() as nsqd, Consumer("t", "c", Recorder(), nsqd=nsqd.address, max_in_flight=3) as consumer:
        peer = await nsqd.subscriber(3)
        consumer.max_in_flight = 0
        consumer.max_in_flight = 8
        await nsqd.until(lambda: peer.rdys == [3, 0, 8])


@pytest.mark.parametrize(
    "arguments",
    [
        ("bad topic", "c", {"nsqd": "h:1"}),
        ("t", "", {"nsqd": "h:1"}),
        ("t", "c", {}),
        ("t", "c", {"nsqd": "h"}),
        ("t", "c", {"nsqd": "h:1", "concurrency": 0}),
        ("t", "c", {"nsqd": "h:1", "heartbeat_interval": -1}),
    ],
)
def test_what_cannot_work_is_refused_when_the_consumer_is_made(arguments):
    topic, channel, keywords = arguments
    with pytest.raises(ConfigError):
        Consumer(topic, channel, Recorder(), **keywords)


async def test_the_identity_carries_what_was_asked_for():
    async with (
        NsqdDouble() as nsqd,
        Consumer("t", "c", Recorder(), nsqd=nsqd.address, sample_rate=10, user_agent="me/1", msg_timeout=5.0),
    ):
        peer = await nsqd.subscriber()

        assert peer.identity["sample_rate"] == 10
        assert peer.identity["user_agent"] == "me/1"
        assert peer.identity["msg_timeout"] == 5000


def test_a_message_shows_what_it_is():
    message = Message((5, 2, b"0123456789abcdef", b"x" * 50), None, 0.0)

    assert "0123456789abcdef" in repr(message)
    assert (message.timestamp, message.attempts, message.answered) == (5, 2, True)
    assert message.expired
