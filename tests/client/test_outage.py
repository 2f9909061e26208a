"""A consumer through an outage of ten minutes, by a clock that does not make us wait for it."""

import asyncio
import gc
import logging
import tracemalloc
from itertools import pairwise

import hasty
import pytest
from nsqd_double import NsqdDouble, Peer

from lapwing import Consumer
from lapwing.client import consumer as consuming
from lapwing.client.connection import HANDSHAKE, connect
from lapwing.client.options import ClientOptions
from lapwing.wire.nsq import commands as c

LONGEST = ClientOptions().max_reconnect_delay
MOMENT = 1.0  # s that anything else may take, by the loop's clock


class Nsqd(NsqdDouble):
    """At a Unix socket, so that nobody can take its address while it is away."""

    def __init__(self, path):
        super().__init__()
        self.address = str(path)

    async def listen(self, port=0):
        await self._serve(lambda: Peer(self))

    async def hang(self):
        """Hear nobody any more, neither those who are here nor those who come."""
        self.server.close()
        for peer in self.live:
            peer.transport.pause_reading()
        await self._serve(asyncio.Protocol)

    async def _serve(self, protocol):
        self.server = await asyncio.get_running_loop().create_unix_server(protocol, self.address)


class Slow:
    """A handler that holds odd messages until it is told to go on."""

    def __init__(self):
        self.go_on = asyncio.Event()

    async def __call__(self, message):
        if int(message.body) % 2:
            await self.go_on.wait()


def size_of_all():
    """What may grow: tasks, timers, bytes."""
    gc.collect()
    loop = asyncio.get_running_loop()
    return len(asyncio.all_tasks()), len(loop._scheduled), tracemalloc.get_traced_memory()[0]


async def ten_minutes_without(nsqd, attempts, *, gone):
    """A consumer whose nsqd is gone, or hangs, for ten minutes; when that began, and the sizes early and late."""
    loop = asyncio.get_running_loop()
    handler = Slow()
    await nsqd.listen()
    async with Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10, concurrency=10) as consumer:
        peer = await nsqd.subscriber(10)
        peer.deliver(*(b"%d" % number for number in range(10)))
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 5)

        began = loop.time()
        await (nsqd.vanish() if gone else nsqd.hang())
        handler.go_on.set()  # what is finished now reaches nobody
        await asyncio.sleep(120)
        early = size_of_all()
        await asyncio.sleep(480)
        late = size_of_all()
        assert consumer.connections == []
        assert nsqd.address in consumer.errors[0]
        assert consumer.stats.in_flight == 0

        await nsqd.vanish()
        tried = len(attempts)
        nsqd.commands.clear()
        back = loop.time()
        await nsqd.listen()
        await nsqd.until(lambda: nsqd.live and nsqd.live[0].rdy == 10, seconds=120)
        assert loop.time() - back <= LONGEST + (0 if gone else HANDSHAKE) + MOMENT
        again = nsqd.live[0].deliver(*(b"%d" % number for number in range(1, 10, 2)), attempts=2)
        new = nsqd.live[0].deliver(*(b"%d" % number for number in range(10, 15)))
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 10)
        assert {command.id for command in nsqd.said(c.Fin)} == {*again, *new}
    await nsqd.vanish()
    return began, tried, early, late


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "hanging"])
def test_a_consumer_comes_back_after_ten_minutes_and_has_not_grown(tmp_path, monkeypatch, caplog, gone):
    attempts = []

    async def counted(*arguments):
        attempts.append(asyncio.get_running_loop().time())
        return await connect(*arguments)

    monkeypatch.setattr(consuming, "connect", counted)
    tracemalloc.start()
    try:
        began, tried, early, late = hasty.run(ten_minutes_without(Nsqd(tmp_path / "nsqd"), attempts, gone=gone))
    finally:
        tracemalloc.stop()

    gaps = [later - earlier for earlier, later in pairwise(attempts[1:tried])]
    assert max(gaps) <= LONGEST + (0 if gone else HANDSHAKE) + MOMENT
    assert min(gaps[-10:]) >= LONGEST / 2  # nor does it hammer
    assert attempts[1] - began <= (0 if gone else ClientOptions().read_timeout) + MOMENT + 1
    assert attempts[tried - 1] - began > 600 - LONGEST - HANDSHAKE - MOMENT
    assert late[0] == early[0]
    assert late[1] <= early[1] + 20
    assert late[2] - early[2] < 64 * 1024
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 20
