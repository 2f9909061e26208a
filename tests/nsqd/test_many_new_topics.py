"""A client that creates very many topics has them created some at a time: others have their turn in between."""

import asyncio
import itertools
import struct
from pathlib import Path

import pytest
from doors import options, quiet

from lapwing.nsqd.daemon import Daemon

MOST = 2 * 9  # topics of one client in one turn: of what has waited, and of what has just come


def publishes(names: list[str]) -> bytes:
    return b"  V2" + b"".join(b"PUB %s\n%s" % (name.encode(), struct.pack(">I", 1) + b"x") for name in names)


def additions(names: list[str]) -> bytes:
    add = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\nb\r\n"
    return b"".join(add % (len(name), name.encode()) for name in names)


@pytest.mark.parametrize("door", ["tcp", "redis"])
async def test_others_have_their_turn_while_one_client_creates_topics(tmp_path: Path, door: str) -> None:
    names = [f"t{number}" for number in range(150)]
    loopback = dict.fromkeys(("tcp_address", "http_address", "redis_address"), "127.0.0.1:0")
    daemon = Daemon(options(**loopback, data_path=str(tmp_path)), quiet())
    await daemon.start()
    counts = [0]
    commit = daemon.broker.commit

    def counted(now: int) -> None:
        counts.append(len(daemon.broker.topics))
        commit(now)

    daemon.broker.commit = counted  # type: ignore[method-assign]
    try:
        listener = getattr(daemon, door)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(publishes(names) if door == "tcp" else additions(names))
        async with asyncio.timeout(60):
            for _ in names:
                await reader.readuntil(b"OK" if door == "tcp" else b"-")  # an id has one hyphen
        writer.close()
    finally:
        await daemon.stop()

    assert counts[-1] == len(names)
    assert max(after - before for before, after in itertools.pairwise(counts)) <= MOST
