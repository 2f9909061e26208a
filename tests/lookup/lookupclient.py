"""A blocking nsqd of sorts: speaks to a real nsqlookupd, one command and one answer at a time."""

import http.client
import json
import socket
import struct
from typing import Any

IDENTITY = {
    "broadcast_address": "10.0.0.7",
    "hostname": "a",
    "http_port": 4151,
    "tcp_port": 4150,
    "topology_region": "",
    "topology_zone": "",
    "version": "1.3.0",
}


class Peer:
    """One connection to an nsqlookupd's TCP door."""

    def __init__(self, address: str, magic: bytes = b"  V1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.send(magic)

    @property
    def name(self) -> str:
        """What the other end knows it by."""
        return "{}:{}".format(*self.socket.getsockname())

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> bytes:
        """The next answer; empty when the connection ended."""
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0]) if head else b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self.socket.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                return b""
            data += piece
        return data

    def ask(self, data: bytes) -> bytes:
        self.send(data)
        return self.answer()

    def identify(self, **changes: Any) -> bytes:
        return self.ask(identify({**IDENTITY, **changes}))

    def ended(self) -> bool:
        """Whether the other end hung up; waits for it."""
        return self._exactly(1) == b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def identify(content: object) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def call(address: str, method: str, path: str) -> tuple[int, Any]:
    """Status and body (JSON where it is JSON) of one HTTP request."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        if (answer.getheader("Content-Type") or "").startswith("application/json"):
            return answer.status, json.loads(body)
        return answer.status, body.decode()
    finally:
        connection.close()


def get(address: str, path: str) -> Any:
    status, body = call(address, "GET", path)
    assert status == 200, body
    return body
