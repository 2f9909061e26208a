"""NATS JetStream as a peer: a file-backed stream, every message acknowledged to its publisher, every delivery by us."""

import json
import re
import socket
from dataclasses import replace
from typing import Final

from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings
from lapwing.tools.bench.report import Result
from peers import over_line, running

_ACKNOWLEDGED: Final = re.compile(rb'\{"stream":"bench",[^}]*\}\r\n')
_DELIVERED: Final = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\n")
_FETCH: Final = 500
_INBOX: Final = b"_INBOX.bench"


def nats(ours: Result, settings: LoadSettings) -> Result:
    """The same load on a nats-server with JetStream."""
    with running(server_command) as target:
        result = over_line(ours, settings, target, NatsLine(target.tcp.port))
        return replace(result, server="nats", durability="os: file storage")


def server_command(folder: str, port: int) -> list[str]:
    return ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]


class NatsLine:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.consuming = {"fetch": _FETCH}
        self._sock = socket.create_connection(("127.0.0.1", port), 30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % _INBOX)
        self._data = b""
        self._until(b"PONG\r\n")

    def close(self) -> None:
        self._sock.close()

    def _receive(self) -> None:
        more = self._sock.recv(1 << 18)
        if not more:
            raise BenchError("nats-server hung up")
        self._data += more
        if self._data.startswith(b"-ERR"):
            raise BenchError(f"nats-server answered {self._data[:200]!r}")
        if self._data.startswith(b"PING\r\n"):
            self._sock.sendall(b"PONG\r\n")
            self._data = self._data[6:]

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            self._receive()
        said, _, self._data = self._data.partition(mark)
        return said

    def _ask(self, subject: bytes, question: object) -> None:
        body = json.dumps(question).encode()
        self._sock.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject, _INBOX, len(body), body))
        head = self._until(b"\r\n")
        answer = self._until(b"\r\n")
        if b'"error"' in answer:
            raise BenchError(f"nats-server refused {subject.decode()}: {answer.decode('utf-8', 'replace')} ({head!r})")

    def declare(self) -> None:
        self._ask(b"$JS.API.STREAM.CREATE.bench",
                  {"name": "bench", "subjects": ["bench"], "storage": "file", "retention": "limits", "num_replicas": 1})

    def prepare(self) -> None:
        config = {"durable_name": "one", "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": 10_000}
        self._ask(b"$JS.API.CONSUMER.DURABLE.CREATE.bench.one", {"stream_name": "bench", "config": config})

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish with at most a window of unacknowledged messages."""
        one = b"PUB bench %b %d\r\n%b\r\n" % (_INBOX, settings.size, b"x" * settings.size)
        batch = one * settings.batch
        window = settings.batch * max(2, settings.window)
        sent = acknowledged = 0
        while acknowledged < messages:
            while sent < messages and sent - acknowledged + settings.batch <= window:
                count = min(settings.batch, messages - sent)
                self._sock.sendall(batch if count == settings.batch else one * count)
                sent += count
            self._receive()
            end = 0
            for found in _ACKNOWLEDGED.finditer(self._data):
                acknowledged += 1
                end = found.end()
            self._data = self._data[end:]

    def consume(self, messages: int) -> None:
        """Fetch and acknowledge everything."""
        ask = json.dumps({"batch": _FETCH, "no_wait": True}).encode()
        fetch = b"PUB $JS.API.CONSUMER.MSG.NEXT.bench.one %b %d\r\n%b\r\n" % (_INBOX, len(ask), ask)
        received = 0
        self._sock.sendall(fetch)
        while received < messages:
            wanted = min(_FETCH, messages - received)
            subjects: list[bytes] = []
            while len(subjects) < wanted:
                self._receive()
                end = 0
                for found in _DELIVERED.finditer(self._data):
                    subjects.append(found[1])
                    end = found.end()
                self._data = self._data[end:]
            received += len(subjects)
            self._sock.sendall(b"".join([b"PUB %b 0\r\n\r\n" % subject for subject in subjects]) + fetch)
