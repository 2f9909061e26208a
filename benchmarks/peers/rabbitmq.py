"""RabbitMQ as a peer: a durable queue, persistent messages with publisher confirms, deliveries acknowledged by us."""

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings, Target
from peers import STAMP, Peer, free_port, running

_START: Final = 60.0  # seconds
_PREFETCH: Final = 500
_HEAD: Final = struct.Struct(">BHI")  # type, channel, size of the payload; one more byte ends the frame
_METHOD, _CONTENT, _BODY = 1, 2, 3
_END: Final = b"\xce"
_NO_ARGUMENTS: Final = struct.pack(">I", 0)
_PERSISTENT: Final = struct.pack(">HB", 0x1000, 2)  # the one property that is set: delivery-mode 2
_EXCHANGE: Final = b"\x05bench"

# (class, method) of AMQP 0-9-1
_START_OK, _TUNE_OK, _OPEN = (10, 11), (10, 31), (10, 40)
_CONNECTION_START, _TUNE, _OPENED = (10, 10), (10, 30), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPENED = (20, 10), (20, 11)
_EXCHANGE_DECLARE, _EXCHANGE_DECLARED = (40, 10), (40, 11)
_DECLARE, _DECLARED, _BIND, _BOUND = (50, 10), (50, 11), (50, 20), (50, 21)
_QOS, _QOS_OK, _CONSUME, _CONSUMING = (60, 10), (60, 11), (60, 20), (60, 21)
_PUBLISH, _DELIVER, _ACK = (60, 40), (60, 60), (60, 80)
_CONFIRM, _CONFIRMED = (85, 10), (85, 11)
_CLOSES: Final = ((10, 50), (20, 40))


@contextmanager
def server(home: str) -> Iterator[Target]:
    """A rabbitmq-server of its own: its name, cookie, files and epmd are not those of the machine's service."""
    (Path(home) / "plugins").write_text("[].\n")
    epmd, port = free_port(), free_port()
    environment = {
        **os.environ, "HOME": home, "RUNNING_UNDER_SYSTEMD": "1", "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": f"lapwing{os.getpid()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": home, "RABBITMQ_LOG_BASE": home, "RABBITMQ_CONFIG_FILE": f"{home}/none",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins", "RABBITMQ_CONF_ENV_FILE": f"{home}/none.conf",
        "RABBITMQ_NODE_PORT": str(port),
    }  # fmt: skip
    try:
        with running([program()], port, environment=environment, start=_START) as target:
            yield target
    finally:
        if found := shutil.which("epmd"):  # erl leaves it behind
            subprocess.run([found, "-port", str(epmd), "-kill"], capture_output=True, check=False)


def program() -> str:
    """The start script itself: Debian's wrapper on the path changes the user."""
    inner = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    return inner if os.path.exists(inner) else "rabbitmq-server"


def version() -> str:
    """The version of the installed server."""
    command = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("dpkg-query") else None
    return f"rabbitmq-server {done.stdout.partition('-')[0] if done and done.stdout else '(version unknown)'}"


class AmqpLine:
    """One blocking connection with one channel."""

    def __init__(self, port: int) -> None:
        self.consuming = {"prefetch": _PREFETCH}
        self.sock = socket.create_connection(("127.0.0.1", port), 60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._published = self._received = self._acknowledged = self._wanted = 0
        self._later: list[tuple[tuple[int, int], bytes]] = []  # received, and not looked at yet
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(_CONNECTION_START)
        login = b"\x00guest\x00guest"
        plain = b"\x05PLAIN" + struct.pack(">I", len(login)) + login
        self._send(_START_OK, struct.pack(">I", 0) + plain + b"\x05en_US", channel=0)
        channels, frame, _ = struct.unpack(">HIH", self._expect(_TUNE))
        self._send(_TUNE_OK, struct.pack(">HIH", channels, frame, 0), channel=0)
        self._send(_OPEN, b"\x01/\x00\x00", channel=0)
        self._expect(_OPENED)
        self._send(_CHANNEL_OPEN, b"\x00")
        self._expect(_CHANNEL_OPENED)

    def close(self) -> None:
        self.sock.close()

    def declare(self, groups: int) -> None:
        """Create an exchange with a queue for each group, and ask for confirms."""
        self._send(_EXCHANGE_DECLARE, b"\x00\x00" + _EXCHANGE + b"\x06fanout\x02" + _NO_ARGUMENTS)  # durable
        self._expect(_EXCHANGE_DECLARED)
        for group in range(groups):
            self._send(_DECLARE, b"\x00\x00" + _queue(group) + b"\x02" + _NO_ARGUMENTS)  # durable
            self._expect(_DECLARED)
            self._send(_BIND, b"\x00\x00" + _queue(group) + _EXCHANGE + b"\x00\x00" + _NO_ARGUMENTS)
            self._expect(_BOUND)
        self._send(_CONFIRM, b"\x00")
        self._expect(_CONFIRMED)

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish with at most a window of unconfirmed messages."""
        one = _publication(b"x" * settings.size)
        batch = one * settings.batch
        window = settings.batch * max(2, settings.window)
        first = self._published
        self._published += messages
        sent, floor = first, first
        above: set[int] = set()  # tags that were confirmed one at a time, beyond `floor`
        while (confirmed := floor + len(above)) < self._published:
            while sent < self._published and sent - confirmed + settings.batch <= window:
                count = min(settings.batch, self._published - sent)
                self.sock.sendall(batch if count == settings.batch else one * count)
                sent += count
            for method, payload in self._receive():
                if method == _DELIVER:  # this connection consumes too
                    self._received += 1
                    continue
                tag, several = struct.unpack(">QB", payload)
                if method != _ACK:
                    raise BenchError(f"rabbitmq-server refused message {tag}")
                if several:
                    floor = max(floor, tag)
                else:
                    above.add(tag)
            above = {tag for tag in above if tag > floor}

    def prepare(self, group: int) -> None:
        """Consume from the queue of a group."""
        self._send(_QOS, struct.pack(">IHB", 0, _PREFETCH, 0))
        self._expect(_QOS_OK)
        self._send(_CONSUME, b"\x00\x00" + _queue(group) + b"\x03one\x00" + _NO_ARGUMENTS)
        self._expect(_CONSUMING)

    def consume(self, messages: int) -> None:
        """Receive and acknowledge so many, half a window at a time."""
        self._wanted += messages
        while self._received < self._wanted:
            if self._received - self._acknowledged >= _PREFETCH // 2:
                self._acknowledge()
            self._received += sum(1 for method, _ in self._receive() if method == _DELIVER)
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._received > self._acknowledged:
            self._send(_ACK, struct.pack(">QB", self._received, 1))
            self._acknowledged = self._received

    def stored(self) -> int:
        self._send(_DECLARE, b"\x00\x00" + _queue(0) + b"\x01" + _NO_ARGUMENTS)  # passive
        answer = self._expect(_DECLARED)
        messages: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
        return messages

    def publication(self, size: int) -> tuple[bytes, bytes]:
        whole = _publication(bytes(size))
        return whole[: -size - len(_END)], bytes(size - STAMP) + _END

    def follow(self) -> None:
        self.prepare(0)

    def arrived(self) -> list[int]:
        bodies: list[bytes] = []
        self._receive(bodies)
        self._received += len(bodies)
        self._acknowledge()
        return [int.from_bytes(body[:STAMP], "big") for body in bodies]

    def _send(self, method: tuple[int, int], arguments: bytes, *, channel: int = 1) -> None:
        self.sock.sendall(_frame(_METHOD, struct.pack(">HH", *method) + arguments, channel=channel))

    def _expect(self, method: tuple[int, int]) -> bytes:
        """Return the arguments of the next such method; the frames behind it stay."""
        while True:
            frames = self._receive()
            for index, (found, payload) in enumerate(frames):
                if found == method:
                    self._later = frames[index + 1 :]
                    return payload

    def _receive(self, bodies: list[bytes] | None = None) -> list[tuple[tuple[int, int], bytes]]:
        """Return the methods that arrived; the contents of messages are added to `bodies` or left out."""
        if self._later:
            frames, self._later = self._later, []
            return frames
        more = self.sock.recv(1 << 18)
        if not more:
            raise BenchError("rabbitmq-server hung up")
        data, at, frames = self._data + more, 0, []
        while len(data) - at > _HEAD.size:
            kind, _, size = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size + 1
            if end > len(data):
                break
            start, at = at + _HEAD.size, end
            if kind == _BODY and bodies is not None:
                bodies.append(data[start : end - 1])
            elif kind == _METHOD:
                method = (data[start] << 8 | data[start + 1], data[start + 2] << 8 | data[start + 3])
                frames.append((method, data[start + 4 : end - 1]))
                if method in _CLOSES:
                    raise BenchError(f"rabbitmq-server closed the connection: {data[start + 7 : end - 1]!r}")
        self._data = data[at:]
        return frames


def _frame(kind: int, payload: bytes, *, channel: int = 1) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END


def _queue(group: int) -> bytes:
    name = b"bench%d" % group
    return bytes([len(name)]) + name


def _publication(body: bytes) -> bytes:
    header = struct.pack(">HHQ", 60, 0, len(body)) + _PERSISTENT
    return (_frame(_METHOD, struct.pack(">HH", *_PUBLISH) + b"\x00\x00" + _EXCHANGE + b"\x00\x00")
            + _frame(_CONTENT, header) + _frame(_BODY, body))  # fmt: skip


PEER = Peer("rabbitmq", "durable queue, persistent messages, confirms", server, AmqpLine)
