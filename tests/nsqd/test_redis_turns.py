"""Long requests of many Redis clients are carried out in several turns, so that others are served in between."""

import asyncio
from typing import Any, cast
from unittest.mock import Mock

from doors import Node, quiet

from lapwing.nsqd.doors.connection import Connection
from lapwing.nsqd.doors.redis import RedisDoor

LONG = 8_000  # words


def encode(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def connected(door: RedisDoor, name: str, wrote: list[str]) -> Connection:
    """A client whose name is noted when something is sent to it."""
    client = door.connect()
    transport = Mock(write=lambda data: wrote.append(name), get_extra_info=lambda name, default=None: ("127.0.0.1", 1))
    client.connection_made(cast(Any, transport))
    return client


def test_a_short_command_is_answered_between_the_long_ones_of_many_clients() -> None:
    async def test() -> None:
        node = Node()
        door = RedisDoor(node.broker, node.turn, quiet())
        node.turn.gatherers.append(door.renew_shares)
        node.turn.watchers.append(door.end_turn)
        wrote: list[str] = []
        many = [connected(door, "long", wrote) for _ in range(6)]
        short = connected(door, "short", wrote)

        for client in many:
            client.data_received(encode(b"EXISTS", *[b"%d" % number for number in range(LONG)]))
        await asyncio.sleep(0)
        before = len(wrote)
        short.data_received(encode(b"PING"))
        for _ in range(30):
            await asyncio.sleep(0)

        assert sorted(wrote) == ["long"] * 6 + ["short"]
        assert wrote.index("short") <= before + 1 <= 3

    asyncio.run(test())


def test_a_client_gets_its_replies_in_order_however_many_turns_its_requests_take() -> None:
    async def test() -> None:
        node = Node()
        door = RedisDoor(node.broker, node.turn, quiet())
        node.turn.gatherers.append(door.renew_shares)
        client = door.connect()
        sent: list[bytes] = []
        transport = Mock(write=sent.append, get_extra_info=lambda name, default=None: ("127.0.0.1", 1))
        client.connection_made(cast(Any, transport))
        long = encode(b"EXISTS", *[b"k"] * LONG)
        client.data_received(long + encode(b"ECHO", b"1") + long + encode(b"ECHO", b"2") + long)
        client.eof_received()
        for _ in range(30):
            await asyncio.sleep(0)

        assert b"".join(sent) == b":0\r\n$1\r\n1\r\n:0\r\n$1\r\n2\r\n:0\r\n"
        assert len(sent) == 3

    asyncio.run(test())
