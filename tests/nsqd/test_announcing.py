"""Whoever makes a topic can look it up as soon as it hears that it is made."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from doors import options, quiet
from others import LookupDouble

from http_double import HttpDouble, reply
from lapwing.nsqd.daemon import Daemon
from lapwing.wire.nsq import frames
from lapwing.wire.nsq.commands import Pub, Sub
from lapwing.wire.nsq.lookup import Register


@pytest.fixture
async def http() -> AsyncIterator[HttpDouble]:
    async with HttpDouble(lambda *_: reply({"channels": ["known"]})) as double:
        yield double


@pytest.fixture
async def lookup(http: HttpDouble) -> AsyncIterator[LookupDouble]:
    async with LookupDouble(http.port) as double:
        yield double


@pytest.fixture
async def daemon(tmp_path: Path, lookup: LookupDouble) -> AsyncIterator[Daemon]:
    made = Daemon(
        options(
            tcp_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            data_path=str(tmp_path),
            lookupd_tcp_addresses=(lookup.address,),
        ),
        quiet(),
    )
    await made.start()
    async with asyncio.timeout(60):
        while not made.peers.connected:  # noqa: ASYNC110 - the daemon offers no event for it
            await asyncio.sleep(0.005)
    yield made
    await made.stop()


@pytest.mark.parametrize("command", [Pub("t", b"x"), Sub("t", "mine")])
async def test_ok_over_tcp_means_that_the_topic_can_be_found(
    daemon: Daemon, lookup: LookupDouble, command: Pub | Sub
) -> None:
    assert daemon.tcp is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp.port)
    writer.write(b"  V2" + command.encode())
    answer = await asyncio.wait_for(reader.readexactly(len(frames.OK)), 60)
    told = list(lookup.told)
    topic = daemon.broker.existing("t")
    writer.close()

    assert answer == frames.OK
    assert Register("t") in told
    assert "known" in topic.channels
    assert not topic.held


async def test_the_second_publish_does_not_wait(daemon: Daemon, lookup: LookupDouble) -> None:
    assert daemon.tcp is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp.port)
    writer.write(b"  V2" + Pub("t", b"x").encode())
    await asyncio.wait_for(reader.readexactly(len(frames.OK)), 60)
    lookup.silent = True
    writer.write(Pub("t", b"y").encode())
    answer = await asyncio.wait_for(reader.readexactly(len(frames.OK)), 60)
    writer.close()

    assert answer == frames.OK
    assert daemon.broker.existing("t").message_count == 2
