"""Transports on one epoll set behave as the event loop's own do."""

import asyncio
import errno
import random
import resource
import socket
import struct
from contextlib import suppress

import pytest

from lapwing.net.sockets import polled

pytestmark = pytest.mark.skipif(not polled.available, reason="the compiled set of sockets needs Linux and a C compiler")

BIG = 32 << 20  # more than the buffers of two sockets


class Recorder(asyncio.Protocol):
    """Notes every event; `echo` sends back whatever comes."""

    def __init__(self, *, echo=False, keep_open=False):
        self.events = []
        self.data = bytearray()
        self.echo = echo
        self.keep_open = keep_open
        self.changed = asyncio.Event()

    def note(self, event):
        self.events.append(event)
        self.changed.set()

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        self.data += data
        if self.echo:
            self.transport.write(data)
        self.changed.set()

    def eof_received(self):
        self.note("eof")
        return self.keep_open

    def connection_lost(self, error):
        self.note("lost" if error is None else f"lost {error.errno}")

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")

    async def until(self, holds):
        async with asyncio.timeout(60):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class Server:
    """Accepts on a loopback port; each client has its recorder."""

    def __init__(self, **behaviour):
        self.rounds = []
        self.connections = polled.PolledConnections(
            asyncio.get_running_loop(), begin=lambda: self.rounds.append("begin"), end=lambda: self.rounds.append("end")
        )
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.recorders = []
        self.accepted = asyncio.Event()
        self.connections.accept(self.listening, lambda: self.recorder(**behaviour))

    def recorder(self, **behaviour):
        recorder = Recorder(**behaviour)
        self.recorders.append(recorder)
        self.accepted.set()
        return recorder

    async def client(self):
        reader, writer = await asyncio.open_connection(*self.listening.getsockname())
        await asyncio.wait_for(self.accepted.wait(), 60)
        self.accepted.clear()
        return reader, writer, self.recorders[-1]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.connections.close()
        self.listening.close()
        for recorder in self.recorders:
            recorder.transport.get_extra_info("socket").close()


async def test_bytes_go_both_ways_and_every_round_is_begun_and_ended():
    async with Server(echo=True) as server:
        reader, writer, recorder = await server.client()
        writer.write(b"hello")

        assert await reader.readexactly(5) == b"hello"
        assert recorder.events == ["made"]
        assert server.rounds[:2] == ["begin", "end"]
        writer.close()
        await recorder.until(lambda: "lost" in recorder.events)
        assert recorder.events == ["made", "eof", "lost"]


async def test_a_peer_that_ends_its_input_still_gets_its_answer_where_the_protocol_wants_that():
    async with Server(keep_open=True) as server:
        reader, writer, recorder = await server.client()
        writer.write(b"question")
        writer.write_eof()
        await recorder.until(lambda: "eof" in recorder.events)

        recorder.transport.write(b"answer")
        recorder.transport.write_eof()
        assert await reader.read() == b"answer"
        await recorder.until(lambda: "lost" in recorder.events)  # neither end has anything more to send
        assert recorder.events == ["made", "eof", "lost"]
        writer.close()


async def test_a_reader_that_is_slow_pauses_the_writer_and_gets_everything():
    async with Server() as server:
        reader, writer, recorder = await server.client()
        recorder.transport.set_write_buffer_limits(high=1 << 20)
        recorder.transport.write(b"x" * BIG)

        assert recorder.events == ["made", "pause"]
        assert recorder.transport.get_write_buffer_size() > 1 << 20
        assert len(await reader.readexactly(BIG)) == BIG
        await recorder.until(lambda: "resume" in recorder.events)
        assert recorder.transport.get_write_buffer_size() <= 1 << 18
        writer.close()


async def test_pieces_of_any_size_and_kind_leave_in_order_as_they_were_when_they_were_written():
    chance = random.Random(7)
    pieces = [chance.randbytes(chance.choice((1, 10, 1000, 70_000, 600_000))) for _ in range(300)]
    async with Server() as server:
        reader, writer, recorder = await server.client()
        for number, piece in enumerate(pieces):
            kind = (bytes, bytearray, memoryview)[number % 3]
            data = kind(piece)
            recorder.transport.write(data)
            if kind is bytearray:
                data[:] = bytes(len(data))
        waiting = recorder.transport.get_write_buffer_size()
        assert 0 < waiting < sum(map(len, pieces))

        assert await reader.readexactly(sum(map(len, pieces))) == b"".join(pieces)
        recorder.transport.write(b"end")
        assert await reader.readexactly(3) == b"end"
        assert recorder.transport.get_write_buffer_size() == 0
        writer.close()


async def test_close_lets_the_buffer_leave_and_abort_does_not():
    async with Server() as server:
        reader, writer, recorder = await server.client()
        recorder.transport.write(b"x" * BIG)
        recorder.transport.close()
        assert recorder.transport.is_closing()

        assert len(await reader.read(-1)) == BIG
        await recorder.until(lambda: "lost" in recorder.events)
        writer.close()

        reader, writer, recorder = await server.client()
        recorder.transport.write(b"x" * BIG)
        recorder.transport.abort()
        await recorder.until(lambda: "lost" in recorder.events)
        assert len(await reader.read(-1)) < BIG
        writer.close()


async def test_nothing_is_received_while_reading_is_paused():
    async with Server() as server:
        _, writer, recorder = await server.client()
        recorder.transport.pause_reading()
        assert not recorder.transport.is_reading()
        writer.write(b"later")
        await writer.drain()
        other_reader, other_writer, other = await server.client()
        other_writer.write(b"now")
        await other.until(lambda: other.data == b"now")

        assert recorder.data == b""
        recorder.transport.resume_reading()
        await recorder.until(lambda: recorder.data == b"later")
        writer.close()
        other_writer.close()
        del other_reader


async def test_a_reset_is_a_loss_with_its_errno_even_while_reading_is_paused():
    async with Server() as server:
        for paused in (False, True):
            _, writer, recorder = await server.client()
            if paused:
                recorder.transport.pause_reading()
            client = writer.transport.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await recorder.until(lambda recorder=recorder: recorder.events[-1].startswith("lost"))

            assert recorder.events[0] == "made"
            assert len(recorder.events) == 2
            assert len(server.connections.sockets) == 0


async def test_one_connection_gives_no_more_than_its_limit_a_round():
    async with Server() as server:
        _, writer, recorder = await server.client()
        sizes = []
        recorder.data_received = lambda data: (sizes.append(len(data)), recorder.changed.set())
        writer.write(b"x" * (4 << 20))
        await recorder.until(lambda: sum(sizes) == 4 << 20)

        assert max(sizes) <= polled.LIMIT
        writer.close()


async def test_both_ends_are_known_by_their_addresses():
    async with Server() as server:
        _, writer, recorder = await server.client()

        assert recorder.transport.get_extra_info("peername") == writer.get_extra_info("sockname")
        assert recorder.transport.get_extra_info("sockname") == writer.get_extra_info("peername")
        assert recorder.transport.get_extra_info("cipher", "none") == "none"
        writer.close()


class Owner:
    """A connection of a set, without a transport."""

    receiver = partial = None

    def __init__(self, sockets):
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.near.setblocking(False)
        self.fd = self.far.fileno()
        sockets.add(self.fd, self)


def test_one_call_takes_what_a_flood_has_sent_up_to_a_limit_and_all_of_the_others():
    sockets = polled.SocketSet()
    flood, other = Owner(sockets), Owner(sockets)
    data = b"x" * 131079
    try:
        assert flood.near.send(data) == len(data)
        other.near.send(b"NOP\n")

        assert dict(sockets.receive()) == {flood: data, other: b"NOP\n"}
    finally:
        sockets.close()
        for each in (flood, other):
            each.near.close()
            each.far.close()


def test_want_of_memory_for_what_one_client_sends_leaves_the_others_theirs():
    sockets = polled.SocketSet()
    owners = [Owner(sockets) for _ in range(3)]
    for owner, data in zip(owners, (b"first", bytes(100_000), b"last"), strict=True):
        owner.near.send(data)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    hoard = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (held, limits[1]))
        with suppress(MemoryError):
            while True:
                hoard.append(bytes(90_000))
        found = sockets.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        sockets.close()
        for each in owners:
            each.near.close()
            each.far.close()

    assert dict(found) == {owners[0]: b"first", owners[1]: errno.ENOMEM, owners[2]: b"last"}
