"""Show what one turn of nsqd costs, by function, when each of some connections has published one message.

    python benchmarks/turn.py                        CPU per message with 1, 16, 64 and 250 connections
    python benchmarks/turn.py --connections 16 --profile

nsqd runs in this process. Each round sends one PUB on every connection and then calls what the event loop would call:
receive, append, write the log, answer. Only that call is measured, with its system calls.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import socket
import struct
import tempfile
import time
from pathlib import Path

import uvloop

from lapwing.broker.settings.options import Options
from lapwing.net.logs import Level, Log
from lapwing.nsqd.daemon import Daemon

BODY = bytes(200)
PUB = b"PUB bench\n" + struct.pack(">I", len(BODY)) + BODY
OK = struct.pack(">II", 6, 0) + b"OK"


async def measure(connections: int, rounds: int, *, profile: bool) -> float:
    """Return us of CPU per message, the best of five series; with `profile`, print where the time goes."""
    with tempfile.TemporaryDirectory() as folder:
        anywhere = "127.0.0.1:0"
        options = Options(data_path=folder, tcp_address=anywhere, http_address=anywhere, tcp_transport="epoll")
        daemon = Daemon(options, Log("", Level.FATAL))
        await daemon.start()
        clients = [await connect(daemon.tcp.port) for _ in range(connections)]
        receive = daemon._polled._receive
        gc.freeze()
        best = min(series(clients, receive, rounds) for _ in range(5))
        if profile:
            profiler = cProfile.Profile()
            series(clients, receive, rounds, profiler)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        for client in clients:
            client.close()
        await daemon.stop()
    return best


async def connect(port: int) -> socket.socket:
    """Return a connection that has published before, so that nsqd knows what comes."""
    loop = asyncio.get_running_loop()
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for data in (b"  V2" + PUB, PUB):
        await loop.sock_sendall(client, data)
        assert await loop.sock_recv(client, 100) == OK
    return client


def series(clients: list[socket.socket], receive, rounds: int, profiler: cProfile.Profile | None = None) -> float:
    """Return us of CPU per message over some rounds."""
    spent = 0
    for _ in range(rounds):
        for client in clients:
            client.send(PUB)
        if profiler is not None:
            profiler.enable()
        began = time.process_time_ns()
        receive()
        spent += time.process_time_ns() - began
        if profiler is not None:
            profiler.disable()
        for client in clients:
            assert client.recv(100) == OK
    return spent / rounds / len(clients) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=Path(__file__).read_text().split('"""')[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 250])
    parser.add_argument("--messages", type=int, default=20000, help="messages of each series")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, by function")
    arguments = parser.parse_args()
    print("connections   us of CPU per message")
    for connections in arguments.connections:
        rounds = max(arguments.messages // connections, 1)
        cost = uvloop.run(measure(connections, rounds, profile=arguments.profile))
        print(f"{connections:11}   {cost:.1f}", flush=True)


if __name__ == "__main__":
    main()
