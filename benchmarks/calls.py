"""Count the calls that nsqd makes for one message, by cProfile: functions of Python, and those of C that they call.

    python benchmarks/calls.py                       every row
    python benchmarks/calls.py --only 16 --profile   those whose name has "16", and where the calls are

nsqd runs in this process. Each round sends what clients send, and then calls what the event loop would call: receive,
carry out, write the logs, deliver, answer. Only that is counted. Calls within compiled modules are not seen.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable

import uvloop

from lapwing.broker.settings.options import Options
from lapwing.net.logs import Level, Log
from lapwing.nsqd.daemon import Daemon

ROUNDS = 300
BODY = struct.pack(">I", 200) + bytes(200)
FRAME = 34 + 200  # bytes of a message's frame
ANSWER = 10  # bytes of an OK


class Client:
    """A connection to nsqd."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.create_connection(("127.0.0.1", daemon.tcp.port))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(b"  V2")
        self._unread = b""

    def send(self, data: bytes) -> None:
        """Send commands."""
        self._socket.sendall(data)

    async def send_all(self, data: bytes) -> None:
        """Send commands of any size."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def expect(self, size: int) -> None:
        """Wait until as many bytes have come, and drop them."""
        loop = asyncio.get_running_loop()
        while size:
            size -= len(await loop.sock_recv(self._socket, size))

    def take(self) -> int:
        """Return how many answers to publishes have come."""
        return len(self._socket.recv(1 << 16)) // ANSWER

    def ids(self) -> list[bytes]:
        """Return the ids of the messages that have come."""
        try:
            data = self._unread + self._socket.recv(1 << 20)
        except BlockingIOError:
            return []
        whole = len(data) // FRAME * FRAME
        self._unread = data[whole:]
        return [data[at + 18 : at + 34] for at in range(0, whole, FRAME)]


Turn = Callable[[], None]
Row = Callable[[Daemon, Turn], Awaitable[int]]


def publishing(word: bytes, topics: int) -> Row:
    """Return a row in which ten connections publish, to one topic after the other."""

    async def row(daemon: Daemon, turn: Turn) -> int:
        delay = b" 3600000" if word == b"DPUB" else b""
        commands = [b"%b some%d%b\n" % (word, number, delay) + BODY for number in range(topics)]
        clients = [Client(daemon) for _ in range(10)]
        for client in clients:
            client.send(b"".join(commands) * 2)
            await client.expect(2 * topics * ANSWER)
        published = 0
        for number in range(ROUNDS):
            for place, client in enumerate(clients):
                client.send(commands[(number + place) % topics])
            turn()
            published += sum(client.take() for client in clients)
        return published

    return row


def consuming(consumers: int, in_flight: int, answer: bytes = b"FIN %b\n") -> Row:
    """Return a row in which consumers answer the messages that they have got, all of them in each round."""

    async def row(daemon: Daemon, turn: Turn) -> int:
        clients = [Client(daemon) for _ in range(consumers)]
        for client in clients:
            client.send(b"SUB all ch\nRDY %d\n" % in_flight)
            await client.expect(ANSWER)
        rounds = max(ROUNDS // in_flight, 10)
        count = (rounds + 10) * consumers * in_flight
        batch = struct.pack(">I", count) + BODY * count
        publisher = Client(daemon)
        await publisher.send_all(b"MPUB all\n" + struct.pack(">I", len(batch)) + batch)
        await publisher.expect(ANSWER)
        await asyncio.sleep(0.1)  # until everybody has got something
        answered = 0
        for _ in range(rounds):
            for client in clients:
                ids = client.ids()
                answered += len(ids)
                client.send(b"".join([answer % each for each in ids]))
            turn()
        return answered

    return row


async def passing(daemon: Daemon, turn: Turn) -> int:
    """Publish a message, deliver it and finish it, each in a round of its own."""
    consumer, publisher = Client(daemon), Client(daemon)
    consumer.send(b"SUB all ch\nRDY 1\n")
    await consumer.expect(ANSWER)
    publisher.send(b"PUB all\n" + BODY)
    await publisher.expect(ANSWER)
    await asyncio.sleep(0.1)
    passed = 0
    for _ in range(ROUNDS):
        ids = consumer.ids()
        passed += len(ids)
        consumer.send(b"".join([b"FIN %b\n" % each for each in ids]))
        turn()
        publisher.send(b"PUB all\n" + BODY)
        turn()
        publisher.take()
    return passed


ROWS: dict[str, Row] = {
    "PUB over 10 topics": publishing(b"PUB", 10),
    "DPUB": publishing(b"DPUB", 1),
    "consume, 1 in flight": consuming(1, 1),
    "consume, 16 consumers, 1 in flight": consuming(16, 1),
    "consume, 16 consumers, 10 in flight": consuming(16, 10),
    "consume, 4 consumers, 200 in flight": consuming(4, 200),
    "requeue, 4 consumers, 200 in flight": consuming(4, 200, b"REQ %b 0\n"),
    "PUB, deliver, FIN": passing,
}


async def count(row: Row) -> tuple[float, pstats.Stats]:
    """Return the calls per message of a row, and where they are."""
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        anywhere = "127.0.0.1:0"
        options = Options(
            data_path=folder, tcp_address=anywhere, http_address=anywhere, tcp_transport="epoll", max_body_size=1 << 28
        )
        daemon = Daemon(options, Log("", Level.FATAL))
        await daemon.start()
        receive = daemon._polled._receive

        def turn() -> None:
            profiler.enable()
            receive()
            profiler.disable()

        gc.freeze()
        messages = await row(daemon, turn)
        await daemon.stop()
    stats = pstats.Stats(profiler)
    return stats.total_calls / messages, stats


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--profile", action="store_true", help="show the functions that are called most")
    arguments = parser.parse_args()
    for name, row in ROWS.items():
        if arguments.only in name:
            calls, stats = uvloop.run(count(row))
            print(f"{name:40} {calls:8.1f} calls a message")
            if arguments.profile:
                stats.sort_stats("ncalls").print_stats(60)


if __name__ == "__main__":
    main()
