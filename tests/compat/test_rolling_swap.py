"""docs/tutorials/from-nsq.md: NSQ's nodes are swapped one by one under traffic, with what they hold. Nothing is lost.

Needs NSQ's own nsqd: LAPWING_PEER_NSQD=/path/to/nsqd.
"""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons import BESIDE_PYTHON, program, start_nsqlookupd
from lapwing import Consumer, Message, Producer
from lapwing.client.errors import ClientError
from lapwing.client.http import DaemonHttp

PEER = os.environ.get("LAPWING_PEER_NSQD", "")

pytestmark = pytest.mark.skipif(not PEER, reason="name NSQ's own nsqd with LAPWING_PEER_NSQD")


class Node:
    """An nsqd with a place and ports that stay, whoever made the program."""

    def __init__(self, path: Path, lookupd: str) -> None:
        path.mkdir()
        with socket.socket() as tcp, socket.socket() as http:
            for probe in (tcp, http):
                probe.bind(("127.0.0.1", 0))
            self.tcp, self.http = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in (tcp, http))
        self.path = path
        self.flags = [f"--tcp-address={self.tcp}", f"--http-address={self.http}", f"--data-path={path}",
                      f"--lookupd-tcp-address={lookupd}", "--broadcast-address=127.0.0.1"]  # fmt: skip
        self.log = (path.parent / f"{path.name}.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str]) -> None:
        self.process = subprocess.Popen([*command, *self.flags], stderr=self.log, stdout=self.log)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(30) == 0
            self.process = None

    async def answers(self) -> None:
        host, _, port = self.tcp.rpartition(":")
        for _ in range(3000):
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return
        raise AssertionError(f"{self.path} does not answer")


async def test_two_nodes_are_swapped_under_traffic_and_nothing_is_lost(tmp_path: Path) -> None:
    with start_nsqlookupd() as lookupd:
        nodes = [Node(tmp_path / name, lookupd.tcp) for name in ("a", "b")]
        try:
            for node in nodes:
                node.start([PEER])
                await node.answers()
            await swapped(nodes, lookupd.http)
        finally:
            for node in nodes:
                if node.process is not None:
                    node.process.kill()
                    node.process.wait()
                node.log.close()


async def swapped(nodes: list[Node], lookupd: str) -> None:
    sent: set[bytes] = set()
    received: set[bytes] = set()
    over = asyncio.Event()

    async def handle(message: Message) -> None:
        received.add(message.body)

    async def publish(producer: Producer) -> None:
        while not over.is_set():
            bodies = [b"%d" % number for number in range(len(sent), len(sent) + 20)]
            try:
                await producer.publish_many("orders", bodies, timeout=10)
            except ClientError:
                continue  # sent again: consumers may see it twice
            sent.update(bodies)
            await asyncio.sleep(0.005)

    options = {"lookupd_poll_interval": 0.2, "max_reconnect_delay": 0.3}
    async with Producer([node.tcp for node in nodes]) as producer:
        for node in nodes:  # a channel that nobody consumes keeps messages, which have to come along
            await channel(node, "archive")
            await channel(node, "billing")
        traffic = asyncio.create_task(publish(producer))
        async with Consumer("orders", "billing", handle, lookupd=lookupd, max_in_flight=100, **options):
            for node in nodes:
                await grown(sent, by=400)
                await asyncio.to_thread(node.stop)
                command = [BESIDE_PYTHON / "lapwing", "import-nsqd", node.path]
                imported = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
                assert b"orders" in imported.stdout
                node.start(program("nsqd"))
                await node.answers()
            await grown(sent, by=400)
            over.set()
            await traffic
            await until_true(lambda: sent <= received)
    received.clear()
    async with Consumer("orders", "archive", handle, lookupd=lookupd, max_in_flight=500, **options):
        await until_true(lambda: sent <= received)


async def grown(sent: set[bytes], *, by: int) -> None:
    goal = len(sent) + by
    await until_true(lambda: len(sent) >= goal)


async def until_true(claim: Callable[[], bool]) -> None:
    for _ in range(3000):
        if claim():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("messages are missing")


async def channel(node: Node, name: str) -> None:
    http = DaemonHttp()
    await http.post(node.http, "/topic/create", {"topic": "orders"})
    await http.post(node.http, "/channel/create", {"topic": "orders", "channel": name})
    await http.aclose()
