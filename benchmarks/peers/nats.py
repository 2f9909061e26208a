"""NATS JetStream as a peer: a file-backed stream, every message acknowledged to its publisher, every delivery by us."""

import itertools
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings, Target
from peers import STAMP, Peer, free_port, running

_ACKNOWLEDGED: Final = re.compile(rb'\{"stream":"bench",[^}]*\}\r\n')
_DELIVERED: Final = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\n")
_FETCH: Final = 500
_PENDING: Final = 10_000
_PUSHED: Final = b"pushed"
_inboxes = itertools.count()


@contextmanager
def server(folder: str) -> Iterator[Target]:
    """A nats-server with JetStream on a free port."""
    port = free_port()
    with running(["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder], port) as target:
        yield target


class NatsLine:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.consuming = {"fetch": _FETCH}
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = b"_INBOX.bench%d" % next(_inboxes)
        self._group = ""
        self.sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % self._inbox)
        self._data = b""
        self._until(b"PONG\r\n")

    def close(self) -> None:
        self.sock.close()

    def _receive(self) -> None:
        more = self.sock.recv(1 << 18)
        if not more:
            raise BenchError("nats-server hung up")
        self._data += more
        if self._data.startswith(b"-ERR"):
            raise BenchError(f"nats-server answered {self._data[:200]!r}")
        if self._data.startswith(b"PING\r\n"):
            self.sock.sendall(b"PONG\r\n")
            self._data = self._data[6:]

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            self._receive()
        said, _, self._data = self._data.partition(mark)
        return said

    def _ask(self, subject: bytes, question: object) -> dict[str, Any]:
        body = json.dumps(question).encode()
        self.sock.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(body), body))
        head = self._until(b"\r\n")
        answer: dict[str, Any] = json.loads(self._until(b"\r\n"))
        if "error" in answer:
            raise BenchError(f"nats-server refused {subject.decode()}: {answer['error']} ({head!r})")
        return answer

    def declare(self, groups: int) -> None:
        self._ask(b"$JS.API.STREAM.CREATE.bench",
                  {"name": "bench", "subjects": ["bench"], "storage": "file", "retention": "limits", "num_replicas": 1})

    def _create(self, name: str, **more: str) -> None:
        config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": _PENDING}
        question = {"stream_name": "bench", "config": config | more}
        self._ask(b"$JS.API.CONSUMER.DURABLE.CREATE.bench.%b" % name.encode(), question)

    def prepare(self, group: int) -> None:
        self._group = f"group{group}"
        self._create(self._group)

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish with at most a window of unacknowledged messages."""
        one = b"PUB bench %b %d\r\n%b\r\n" % (self._inbox, settings.size, b"x" * settings.size)
        batch = one * settings.batch
        window = settings.batch * max(2, settings.window)
        sent = acknowledged = 0
        while acknowledged < messages:
            while sent < messages and sent - acknowledged + settings.batch <= window:
                count = min(settings.batch, messages - sent)
                self.sock.sendall(batch if count == settings.batch else one * count)
                sent += count
            self._receive()
            end = 0
            for found in _ACKNOWLEDGED.finditer(self._data):
                acknowledged += 1
                end = found.end()
            self._data = self._data[end:]

    def _fetch(self, left: int) -> bytes:
        ask = json.dumps({"batch": min(_FETCH, left)}).encode()
        subject = b"$JS.API.CONSUMER.MSG.NEXT.bench.%b" % self._group.encode()
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(ask), ask)

    def consume(self, messages: int) -> None:
        """Fetch and acknowledge so many."""
        left = messages
        self.sock.sendall(self._fetch(left))
        while left > 0:
            wanted = min(_FETCH, left)
            subjects: list[bytes] = []
            while len(subjects) < wanted:
                self._receive()
                end = 0
                for found in _DELIVERED.finditer(self._data):
                    subjects.append(found[1])
                    end = found.end()
                self._data = self._data[end:]
            left -= len(subjects)
            acknowledgements = b"".join([b"PUB %b 0\r\n\r\n" % subject for subject in subjects])
            self.sock.sendall(acknowledgements + (self._fetch(left) if left else b""))

    def stored(self) -> int:
        messages: int = self._ask(b"$JS.API.STREAM.INFO.bench", {})["state"]["messages"]
        return messages

    def publication(self, size: int) -> tuple[bytes, bytes]:
        return b"PUB bench %b %d\r\n" % (self._inbox, size), bytes(size - STAMP) + b"\r\n"

    def follow(self) -> None:
        self.sock.sendall(b"SUB %b 2\r\n" % _PUSHED)
        self._create("pushed", deliver_subject=_PUSHED.decode())

    def arrived(self) -> list[int]:
        self._receive()
        stamps, answers, at = [], [], 0
        while (end := self._data.find(b"\r\n", at)) >= 0:
            words = self._data[at:end].split()
            size = int(words[-1]) if words[0] == b"MSG" else -2
            if end + 2 + size + 2 > len(self._data):
                break
            if words[0] == b"MSG" and words[2] == b"2":
                stamps.append(int.from_bytes(self._data[end + 2 : end + 2 + STAMP], "big"))
                answers.append(b"PUB %b 0\r\n\r\n" % words[3])
            at = end + 2 + size + 2
        self._data = self._data[at:]
        if answers:
            self.sock.sendall(b"".join(answers))
        return stamps


PEER = Peer("nats", "os: file storage", server, NatsLine)
