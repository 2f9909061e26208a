"""lapwing import-redis: streams of a live server, copied with their groups and pending entries."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import lapwing

import daemons
from lapwing.wire.resp.reply_reader import ReplyReader, encode


class Server:
    """A connection to a server, one command at a time."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.reader = ReplyReader()

    def ask(self, command: str) -> object:
        self.socket.sendall(encode(*command.split()))
        while True:
            self.reader.receive(self.socket.recv(65536))
            for reply in self.reader.replies():
                return reply


@pytest.fixture(params=["lapwing", "redis"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The server to copy from: our own door, and Redis itself where it is installed."""
    if request.param == "lapwing":
        with daemons.nsqd("--redis-address=127.0.0.1:0") as daemon:
            server = Server(daemon.addresses["Redis"])
            yield server
            server.socket.close()
        return
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        server = Server(_listening(port))
        yield server
        server.socket.close()
    finally:
        process.kill()
        process.wait()


def _listening(port: int) -> str:
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return f"127.0.0.1:{port}"
        except OSError:
            assert time.monotonic() < until, "redis-server does not listen"
            time.sleep(0.05)  # until it listens


@pytest.fixture
def target() -> Iterator[Server]:
    with daemons.nsqd("--redis-address=127.0.0.1:0") as daemon:
        server = Server(daemon.addresses["Redis"])
        yield server
        server.socket.close()


def test_a_stream_arrives_with_its_groups_and_pending_entries(source: Server, target: Server) -> None:
    for number in range(1, 8):
        source.ask(f"XADD events:new {number}-1 n {number} b x")
    for command in (
        "XGROUP CREATE events:new g 0",
        "XGROUP CREATE events:new late 5-1",
        "XREADGROUP GROUP g worker COUNT 3 STREAMS events:new >",
        "XREADGROUP GROUP g other COUNT 1 STREAMS events:new >",
        "XCLAIM events:new g other 0 1-1 RETRYCOUNT 4",
        "XACK events:new g 2-1",
        "XDEL events:new 6-1",
    ):
        source.ask(command)

    assert "events:new" in lapwing("import-redis", source.address, "events:*", "--dry-run").stdout
    done = json.loads(lapwing("import-redis", source.address, "events:*", "--to", target.address, "--json").stdout)

    assert done == [
        {
            "stream": "events:new",
            "entries": 6,
            "groups": 2,
            "consumers": 2,
            "pending": 3,
            "not_pending": 0,
            "problem": "",
        }
    ]
    assert target.ask("XRANGE events:new - +") == source.ask("XRANGE events:new - +")
    assert target.ask("XPENDING events:new g") == source.ask("XPENDING events:new g")
    lines = target.ask("XPENDING events:new g - + 10")
    assert isinstance(lines, list)
    assert [(line[0], line[1], line[3]) for line in lines] == [
        (b"1-1", b"other", 4),
        (b"3-1", b"worker", 1),
        (b"4-1", b"other", 1),
    ]
    for group in ("g", "late"):
        read = f"XREADGROUP GROUP {group} next STREAMS events:new >"
        assert target.ask(read) == source.ask(read)


def test_a_stream_that_was_copied_before_is_continued(source: Server, target: Server) -> None:
    source.ask("XADD s 1-1 n 1")
    lapwing("import-redis", source.address, "s", "--to", target.address)
    source.ask("XADD s 2-1 n 2")

    assert "1 entries" in lapwing("import-redis", source.address, "s", "--to", target.address).stdout
    assert target.ask("XLEN s") == 2


def test_what_cannot_be_copied_is_named(target: Server) -> None:
    refused = lapwing("import-redis", target.address, "nosuch", "--to", "127.0.0.1:1", code=1)
    assert "is a Redis server listening there?" in refused.stderr
    nothing = lapwing("import-redis", target.address, "nosuch", "--dry-run", code=2)
    assert "no stream matches nosuch" in nothing.stderr
    itself = lapwing("import-redis", target.address, "x", "--to", target.address, code=2)
    assert "cannot be copied to itself" in itself.stderr
