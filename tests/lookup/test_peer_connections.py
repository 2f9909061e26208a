"""The connections of nsqds: one that sends very much lets the others have their turn."""

import asyncio
import struct
from typing import Any

from lookupclient import IDENTITY, identify

from lapwing.lookup.metrics import LookupCounts
from lapwing.lookup.registry import Registry
from lapwing.lookup.session import LookupSession
from lapwing.lookup.tcp import PeerConnection, PeerConnections

OK = struct.pack(">i", 2) + b"OK"


class Transport(asyncio.Transport):
    """Remembers what was written, and whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return NoSocket() if name == "socket" else ("127.0.0.1", 1)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class NoSocket:
    """Takes options, and does nothing with them."""

    def setsockopt(self, *_: object) -> None:
        return None


def connect(registry: Registry) -> tuple[PeerConnection, Transport]:
    peers = PeerConnections(
        lambda remote: LookupSession(registry, b"welcome", remote, lambda text: None), lambda: 1, LookupCounts(0)
    )
    connection, transport = peers.protocol(), Transport()
    connection.connection_made(transport)
    connection.data_received(b"  V1" + identify(IDENTITY))
    transport.written = b""
    return connection, transport


def registers(count: int) -> bytes:
    return b"".join(b"REGISTER topic-%05d\n" % number for number in range(count))


async def test_a_flood_of_commands_is_carried_out_in_slices_and_read_no_further_meanwhile() -> None:
    registry = Registry(inactive_after=1, tombstone_lifetime=1)
    connection, transport = connect(registry)
    connection.data_received(registers(10_000))
    turns = 0
    while not transport.reading:
        before = len(registry)
        await asyncio.sleep(0)
        assert len(registry) - before < 1_000
        turns += 1

    assert turns >= 10
    assert len(registry) == 10_000
    assert transport.written == 10_000 * OK


async def test_a_flood_waits_while_its_answers_are_not_read_and_goes_with_its_connection() -> None:
    registry = Registry(inactive_after=1, tombstone_lifetime=1)
    connection, transport = connect(registry)
    connection.data_received(registers(10_000))
    await asyncio.sleep(0)
    connection.pause_writing()
    known = len(registry)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(registry) == known
    assert not transport.reading
    connection.resume_writing()
    await asyncio.sleep(0)
    assert known < len(registry) < 10_000
    connection.connection_lost(None)
    known = len(registry)
    await asyncio.sleep(0)

    assert len(registry) == known
    assert not registry.producers


async def test_a_flood_ends_at_the_first_error() -> None:
    registry = Registry(inactive_after=1, tombstone_lifetime=1)
    connection, transport = connect(registry)
    connection.data_received(b"REGISTER a\nREGISTER ???\n" + registers(10_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert registry.topics == ["a"]
    assert transport.closed
    assert b"E_BAD_TOPIC" in transport.written
