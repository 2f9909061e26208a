"""How producers and consumers begin and end when the other side is silent: nothing hangs, nothing is left behind."""

import asyncio
import contextlib
import time

import pytest
from nsqd_double import NsqdDouble

from lapwing import Consumer, Producer
from lapwing.client.errors import Stopped, Unreachable


@contextlib.asynccontextmanager
async def silent():
    """The address of a server that takes connections and says nothing, and an event: somebody has come."""
    came = asyncio.Event()

    async def say_nothing(reader, writer):
        came.set()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", came


def left_running():
    """Our tasks that live on."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lapwing")]


MAKERS = {
    "producer": lambda address: Producer(address),
    "producer by lookupd": lambda address: Producer(lookupd=address),
    "consumer": lambda address: Consumer("t", "c", nsqd=address),
    "consumer by lookupd": lambda address: Consumer("t", "c", lookupd=address),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
async def test_a_stop_ends_a_start_that_waits_for_an_answer(make):
    async with silent() as (address, came), asyncio.timeout(5):
        client = make(address)
        starting = asyncio.create_task(client.start())
        await came.wait()
        await client.stop()
        with contextlib.suppress(Stopped):
            await starting

        assert not left_running()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
async def test_a_start_that_is_cancelled_leaves_nothing_running(make):
    async with silent() as (address, came), asyncio.timeout(5):

        async def use():
            async with make(address):
                await asyncio.Event().wait()

        using = asyncio.create_task(use())
        await came.wait()
        using.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await using

        assert not left_running()


@pytest.mark.parametrize("settings", [{"tls_v1": True, "tls_root_ca_file": "/nowhere.pem"}, {"local_addr": "a..b:0"}])
async def test_what_no_connection_can_be_made_with_fails_the_start_and_is_not_waited_for(settings):
    async with NsqdDouble() as nsqd, asyncio.timeout(5):
        for client in (Producer(nsqd.address, **settings), Consumer("t", "c", nsqd=nsqd.address, **settings)):
            with pytest.raises(Unreachable, match=r"nowhere\.pem|a\.\.b"):
                async with client:
                    pass

    assert not left_running()


async def test_a_producer_that_reaches_nobody_leaves_nothing_running():
    async with NsqdDouble() as nsqd:
        address = nsqd.address
    with pytest.raises(Unreachable):
        async with Producer(address):
            pass

    assert not left_running()


def test_a_handler_that_exits_the_program_does_not_keep_it_waiting():
    async def leave(message):
        raise SystemExit(3)

    async def use():
        async with NsqdDouble() as nsqd, Consumer("t", "c", leave, nsqd=nsqd.address, max_in_flight=5):
            peer = await nsqd.subscriber(5)
            peer.deliver(b"first", b"second")
            await asyncio.Event().wait()

    began = time.monotonic()
    with pytest.raises(SystemExit):
        asyncio.run(use())

    assert time.monotonic() - began < 20  # and not stop_timeout


async def test_a_producer_whose_stop_is_cancelled_still_hangs_up():
    async with NsqdDouble() as nsqd:
        nsqd.on_publish = lambda command: None
        producer = Producer(nsqd.address)
        await producer.start()
        publish = producer.submit("t", b"never answered")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await producer.stop()

        assert isinstance(publish.exception(), Stopped)
        await nsqd.until(lambda: not nsqd.live)
    assert not left_running()
