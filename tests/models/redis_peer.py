"""A real redis-server for comparison, and replies in which ids are those of no server in particular."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader, encode


class RedisPeer:
    """One connection to redis-server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.reader = ReplyReader()

    def ask(self, words: list[bytes]) -> Any:
        self.socket.sendall(encode(*words))
        while True:
            self.reader.receive(self.socket.recv(1 << 16))
            for reply in self.reader.replies():
                return reply


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisPeer]:
    """A redis-server without files; None can be had where it is not installed, so look for it first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                peer = RedisPeer(port)
                break
            except OSError:
                assert time.monotonic() < until, "redis-server does not listen"
                time.sleep(0.05)  # until it listens
        yield peer
        peer.socket.close()
    finally:
        process.kill()
        process.wait()


def installed() -> bool:
    return shutil.which("redis-server") is not None


def plain(reply: Any, names: dict[bytes, str]) -> Any:
    """A reply whose ids are replaced by their numbers, and errors by their lines."""
    if isinstance(reply, Exception):
        return f"-{reply.line if isinstance(reply, ErrorReply) else reply}"
    if isinstance(reply, list):
        return [plain(each, names) for each in reply]
    if isinstance(reply, bytes):
        return names.get(reply, reply)
    return reply
