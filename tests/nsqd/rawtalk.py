"""A client made of a bare socket, which may say anything; and what a test wants to know of the process it talks to."""

import json
import socket
import struct
import urllib.request
from types import TracebackType
from typing import Any

from daemons import Daemon


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">I", len(body)) + body


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    content = struct.pack(">I", len(bodies)) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    return f"MPUB {topic}\n".encode() + struct.pack(">I", len(content)) + content


def dpub(topic: str, ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {ms}\n".encode() + struct.pack(">I", len(body)) + body


def headed(headers: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(headers) + len(body), len(headers)) + headers + body


def hpub(topic: str, headers: bytes, body: bytes) -> bytes:
    return f"HPUB {topic}\n".encode() + headed(headers, body)


def hmpub(topic: str, pairs: list[tuple[bytes, bytes]]) -> bytes:
    content = struct.pack(">I", len(pairs)) + b"".join(headed(headers, body) for headers, body in pairs)
    return f"HMPUB {topic}\n".encode() + struct.pack(">I", len(content)) + content


def identify(**wishes: Any) -> bytes:
    body = json.dumps(wishes).encode()
    return b"IDENTIFY\n" + struct.pack(">I", len(body)) + body


class Raw:
    """One connection. Frames are read as (type, payload); a message also as (attempts, id, body)."""

    def __init__(self, daemon: Daemon, *, magic: bool = True, seconds: float = 60.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", daemon.tcp_port), timeout=seconds)
        if magic:
            self.send(b"  V2")

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while True:
            size, kind = struct.unpack(">II", self.exactly(8))
            payload = self.exactly(size - 4)
            if payload != b"_heartbeat_":
                return kind, payload

    def ok(self, data: bytes) -> None:
        """Send something that is to be answered OK."""
        self.send(data)
        assert self.frame() == (0, b"OK")

    def message(self) -> tuple[int, bytes, bytes]:
        """The next message: attempts, id, body."""
        kind, payload = self.frame()
        assert kind == 2, payload
        return int.from_bytes(payload[8:10], "big"), payload[10:26], payload[26:]

    def headed(self) -> tuple[bytes, bytes]:
        """The next message: headers (empty in a plain frame) and body."""
        kind, payload = self.frame()
        assert kind in (2, 3), payload
        if kind == 2:
            return b"", payload[26:]
        body = 30 + int.from_bytes(payload[26:30], "big")
        return payload[30:body], payload[body:]

    def error(self) -> str:
        """The next frame, which is an error that ends the conversation."""
        kind, payload = self.frame()
        assert kind == 1, payload
        assert self.ended()
        return payload.decode()

    def ended(self) -> bool:
        """Whether the server closes without another word."""
        try:
            while rest := self.socket.recv(65536):
                if rest != b"\0\0\0\x0f\0\0\0\0_heartbeat_":
                    return False
        except ConnectionError:
            return True
        return True

    def identify(self, behind: bytes = b"", **wishes: Any) -> bytes:
        """Introduce ourselves, with the bytes `behind` right behind it; what the server answers."""
        self.send(identify(**wishes) + behind)
        return self.frame()[1]

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> None:
        self.ok(f"SUB {topic} {channel}\n".encode())
        if ready:
            self.send(b"RDY %d\n" % ready)

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes, whatever they are."""
        parts = []
        while size:
            part = self.socket.recv(size)
            if not part:
                raise EOFError("the server closed within a frame")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def post(daemon: Daemon, path: str, body: bytes = b"", *, method: str = "POST") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(daemon.url + path, data=body, method=method), timeout=60) as got:
        return got.read()


def get(daemon: Daemon, path: str) -> bytes:
    with urllib.request.urlopen(daemon.url + path, timeout=60) as answer:
        return answer.read()


def topics(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """What /stats shows, by name of topic; its channels by their names."""
    found = json.loads(get(daemon, "/stats?format=json"))["topics"]
    for topic in found:
        topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"]}
    return {topic["topic_name"]: topic for topic in found}


def memory(daemon: Daemon) -> int:
    """Resident bytes of the process."""
    with open(f"/proc/{daemon.pid}/status") as lines:
        [line] = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024
