"""Redis Streams as a peer: pipelined XADDs and consumer groups, with an append-only file like `durability os`."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings, Target
from peers import STAMP, Peer, free_port, running

_COUNT: Final = 200
_ENTRY: Final = re.compile(rb"\$\d+\r\n(\d{13}-\d+)\r\n\*2\r\n\$4\r\nbody\r\n\$\d+\r\n")
_ENTRIES: Final = re.compile(rb"\*1\r\n\*2\r\n\$5\r\nbench\r\n\*(\d+)\r\n")


@contextmanager
def server(folder: str) -> Iterator[Target]:
    """A redis-server on a free port."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
               "--appendonly", "yes", "--appendfsync", "no"]
    with running(command, port) as target:
        yield target


class RedisLine:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.consuming = {"count": _COUNT}
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._group = b""

    def close(self) -> None:
        self.sock.close()

    def _receive(self) -> None:
        more = self.sock.recv(1 << 18)
        if not more:
            raise BenchError("redis-server hung up")
        self._data += more

    def _ask(self, *words: bytes) -> bytes:
        self.sock.sendall(_resp(*words))
        while b"\r\n" not in self._data:
            self._receive()
        answer, _, self._data = self._data.partition(b"\r\n")
        return answer

    def declare(self, groups: int) -> None:
        for group in range(groups):
            answer = self._ask(b"XGROUP", b"CREATE", b"bench", b"group%d" % group, b"0", b"MKSTREAM")
            if answer != b"+OK":
                raise BenchError(f"redis-server refused a group: {answer.decode('utf-8', 'replace')}")

    def prepare(self, group: int) -> None:
        self._group = b"group%d" % group

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish with at most a window of unanswered commands."""
        one = _resp(b"XADD", b"bench", b"*", b"body", b"x" * settings.size)
        batch = one * settings.batch
        window = settings.batch * max(2, settings.window)
        sent = answered = 0
        while answered < messages:
            while sent < messages and sent - answered + settings.batch <= window:
                count = min(settings.batch, messages - sent)
                self.sock.sendall(batch if count == settings.batch else one * count)
                sent += count
            self._receive()
            if b"-" in self._data[:1]:
                raise BenchError(f"redis-server answered {self._data[:200]!r}")
            lines = self._data.count(b"\r\n") // 2  # an answer is a length and an id
            answered += lines
            parts = self._data.split(b"\r\n", lines * 2)
            self._data = parts[-1]

    def _read(self, *more: bytes) -> bytes:
        return _resp(b"XREADGROUP", b"GROUP", self._group, b"one", b"COUNT", b"%d" % _COUNT, *more,
                     b"STREAMS", b"bench", b">")

    def _entries(self) -> list[tuple[bytes, int]] | None:
        """Return the ids of a whole answer and where their bodies begin; the data is left alone."""
        if (head := _ENTRIES.search(self._data)) is None:
            return None
        found, at = [], head.end()
        for _ in range(int(head[1])):
            entry = _ENTRY.search(self._data, at)
            if entry is None:
                return None
            at = entry.end() + int(self._data[self._data.rindex(b"$", 0, entry.end()) + 1 : entry.end() - 2]) + 2
            if at > len(self._data):
                return None
            found.append((entry[1], entry.end()))
        return found

    def consume(self, messages: int) -> None:
        """Read and acknowledge so many."""
        left, read = messages, self._read()
        self.sock.sendall(read)
        while left > 0:
            self._receive()
            if self._data.count(b"\r\nbody\r\n") < min(_COUNT, left) or not self._data.endswith(b"x\r\n"):
                continue
            ids = _ENTRY.findall(self._data)
            left -= len(ids)
            self._data = b""
            # the answer to an acknowledgement comes before that to the read behind it, and has nothing new
            self.sock.sendall(_resp(b"XACK", b"bench", self._group, *ids) + (read if left > 0 else b""))
        while not self._data.endswith(b"\r\n"):
            self._receive()
        self._data = b""

    def stored(self) -> int:
        answer = self._ask(b"XLEN", b"bench")
        return int(answer[1:]) if answer.startswith(b":") else -1  # -LOADING: it reads its file

    def publication(self, size: int) -> tuple[bytes, bytes]:
        whole = _resp(b"XADD", b"bench", b"*", b"body", bytes(size))
        return whole[: -size - 2], bytes(size - STAMP) + b"\r\n"

    def follow(self) -> None:
        self._group = b"group0"
        self.sock.sendall(self._read(b"BLOCK", b"0"))

    def arrived(self) -> list[int]:
        self._receive()
        entries = self._entries()
        if entries is None:
            return []
        stamps = [int.from_bytes(self._data[at : at + STAMP], "big") for _, at in entries]
        self._data = b""
        ids = [each for each, _ in entries]
        self.sock.sendall(_resp(b"XACK", b"bench", self._group, *ids) + self._read(b"BLOCK", b"0"))
        return stamps


def _resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


PEER = Peer("redis", "os: appendonly, appendfsync no", server, RedisLine)
