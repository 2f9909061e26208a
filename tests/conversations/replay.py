"""Plays a recorded conversation against a real nsqd: sends its bytes, and compares every byte that comes back.

Some cases are about time, as recorded on a machine that does nothing else. `held_up` is by how much this one is slower:
where that is long, a failure may be the machine's, and the case is played again.
"""

import http.client
import json
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from lapwing.wire.nsq.compression import Codec, DeflateCodec, SnappyCodec

HEARTBEAT = bytes.fromhex("0000000f000000005f6865617274626561745f")
TOKEN = re.compile(r"\{(id|ts|rep|any):([^}]*)\}|([0-9a-f]{2})")
FIVE_MINUTES = 300 * 10**9
PATIENCE = 20.0  # seconds for what has to come at all
HELD_UP = 0.1  # seconds
TRIES = 10


def played(replay: Callable[[], "Replay"], case: dict[str, Any]) -> None:
    """Play a case; once more, on a replay made anew, if it failed where the machine was held up."""
    for _ in range(TRIES - 1):
        one = replay()
        try:
            return one.play(case)
        except AssertionError:
            if one.held_up < HELD_UP:
                raise
    return replay().play(case)


class Wire:
    """One socket, plain or inside TLS and a compression; what was received and not yet used waits in `rest`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket: socket.socket = socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.codec: Codec | None = None
        self.rest = b""
        self.closed = False

    def start(self, layer: str) -> None:
        if layer == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            assert not self.rest, "bytes before the handshake"
            self.socket = context.wrap_socket(self.socket)
        else:
            self.codec = SnappyCodec() if layer == "snappy" else DeflateCodec()
            self.rest = self.codec.decode(self.rest) if self.rest else b""

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(self.codec.encode(data) if self.codec else data)
        except OSError:
            self.closed = True

    def more(self, until: float) -> bool:
        """Wait for more bytes; False when there were none by then, or never will be."""
        if self.closed:
            return False
        left = until - time.monotonic()
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if not pending and (left <= 0 or not select.select([self.socket], [], [], left)[0]):
            return False
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return False
        self.rest += self.codec.decode(data) if self.codec else data
        return True


class Replay:
    """One case, with what it remembers of ids and timestamps."""

    def __init__(self, tcp: tuple[str, int], web: tuple[str, int] | None) -> None:
        self.tcp = tcp
        self.web = web
        self.known: dict[str, bytes] = {}
        self.wires: dict[str, Wire] = {}
        self.held_up = 0.0  # seconds that a step took longer than it waits by itself, at most
        self._sent = 0.0  # when the last bytes were sent

    def play(self, case: dict[str, Any]) -> None:
        try:
            for number, step in enumerate(case["steps"]):
                began = time.monotonic()
                try:
                    self.step(step, f"{case['name']} step {number}")
                finally:
                    waits = sum(step.get(wait, 0) for wait in ("sleep_ms", "silent_ms", "after_ms"))
                    self.held_up = max(self.held_up, time.monotonic() - began - waits / 1000)
        finally:
            for wire in self.wires.values():
                wire.socket.close()

    def step(self, step: dict[str, Any], where: str) -> None:
        if "sleep_ms" in step:
            time.sleep(step["sleep_ms"] / 1000)
            return
        if "http" in step:
            self.request(step["http"], where)
            return
        name = step.get("conn", "a")
        if name not in self.wires:
            self.wires[name] = Wire(self.tcp)
        wire = self.wires[name]
        began = time.monotonic()
        if "start" in step:
            wire.start(step["start"])
        if "send" in step:
            self._sent = time.monotonic()
            wire.send(self.bytes_of(step["send"]))
        if step.get("half_close"):
            wire.socket.shutdown(socket.SHUT_WR)
        until = time.monotonic() + PATIENCE
        if step.get("skip_heartbeats"):
            self.skip_heartbeats(wire, until)
        if "expect" in step:
            self.expect(wire, step["expect"], until, where)
            waited = (time.monotonic() - self._sent) * 1000
            assert waited >= step.get("after_ms", 0), f"{where}: came after {waited:.0f} ms, too early"
        if "expect_json" in step:
            self.expect_json(wire, step["expect_json"], until, where)
        if "silent_ms" in step:
            quiet = wire.more(time.monotonic() + step["silent_ms"] / 1000)
            assert not quiet, f"{where}: {wire.rest!r} instead of silence"
            assert not wire.rest, f"{where}: {wire.rest!r} instead of silence"
            assert not wire.closed, f"{where}: closed instead of silence"
        if step.get("close"):
            while wire.more(until):
                if step.get("skip_heartbeats"):
                    self.skip_heartbeats(wire, time.monotonic())
            assert wire.closed, f"{where}: still open"
            assert not wire.rest, f"{where}: {wire.rest!r} before the close"
        if "within_ms" in step:
            took = (time.monotonic() - began) * 1000
            assert took <= step["within_ms"], f"{where}: took {took:.0f} ms, too late"
        if step.get("drop"):
            wire.socket.close()
            del self.wires[name]

    def request(self, wanted: dict[str, Any], where: str) -> None:
        assert self.web is not None
        connection = http.client.HTTPConnection(*self.web, timeout=PATIENCE)
        connection.request(wanted["method"], wanted["path"])
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == wanted.get("status", 200), f"{where}: status {answer.status}"

    def skip_heartbeats(self, wire: Wire, until: float) -> None:
        while True:
            while len(wire.rest) < len(HEARTBEAT) and HEARTBEAT.startswith(wire.rest):
                if not wire.more(until):
                    return
            if not wire.rest.startswith(HEARTBEAT):
                return
            wire.rest = wire.rest[len(HEARTBEAT) :]

    def bytes_of(self, text: str) -> bytes:
        """The bytes that a `send` stands for."""
        out = bytearray()
        for kind, argument, octet in TOKEN.findall(text):
            if octet:
                out += bytes.fromhex(octet)
            elif kind == "rep":
                value, _, count = argument.partition(":")
                out += bytes.fromhex(value) * int(count)
            else:
                out += self.known[f"{kind}:{argument}"]
        return bytes(out)

    def expect(self, wire: Wire, text: str, until: float, where: str) -> None:
        """Read exactly as many bytes as `text` stands for, and compare each piece."""
        for kind, argument, octet in TOKEN.findall(text):
            if octet:
                self.compare(wire, bytes.fromhex(octet), until, where)
            elif kind == "rep":
                value, _, count = argument.partition(":")
                self.compare(wire, bytes.fromhex(value) * int(count), until, where)
            elif kind == "any":
                self.take(wire, int(argument), until, where)
            else:
                self.token(kind, argument, self.take(wire, 16 if kind == "id" else 8, until, where), where)

    def token(self, kind: str, name: str, seen: bytes, where: str) -> None:
        known = self.known.setdefault(f"{kind}:{name}", seen)
        assert seen == known, f"{where}: {kind} {seen!r}, expected {known!r}"
        if kind == "id":
            assert re.fullmatch(rb"[0-9a-f]{16}", seen), f"{where}: id {seen!r}"
        else:
            assert abs(int.from_bytes(seen, "big") - time.time_ns()) < FIVE_MINUTES, f"{where}: timestamp {seen.hex()}"

    def compare(self, wire: Wire, wanted: bytes, until: float, where: str) -> None:
        seen = self.take(wire, len(wanted), until, where)
        assert seen == wanted, f"{where}: {seen!r}, then {wire.rest!r}; expected {wanted!r}"

    def take(self, wire: Wire, count: int, until: float, where: str) -> bytes:
        while len(wire.rest) < count:
            assert wire.more(until), f"{where}: {wire.rest!r} and no more, {count} bytes expected"
        seen, wire.rest = wire.rest[:count], wire.rest[count:]
        return seen

    def expect_json(self, wire: Wire, wanted: dict[str, Any], until: float, where: str) -> None:
        head = self.take(wire, 8, until, where)
        size, kind = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        assert kind == wanted["frame"], f"{where}: frame type {kind}"
        seen = json.loads(self.take(wire, size - 4, until, where))
        assert seen.keys() == wanted["equals"].keys(), f"{where}: keys {sorted(seen)}"
        for key, value in wanted["equals"].items():
            assert value == "*" or seen[key] == value, f"{where}: {key} is {seen[key]!r}, expected {value!r}"
