"""RabbitMQ as a peer: a durable queue, persistent messages with publisher confirms, deliveries acknowledged by us."""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings, Target
from lapwing.tools.bench.report import Result
from peers import free_port, over_line, running

_START: Final = 60.0  # seconds
_PREFETCH: Final = 500
_HEAD: Final = struct.Struct(">BHI")  # type, channel, size of the payload; one more byte ends the frame
_METHOD, _CONTENT, _BODY = 1, 2, 3
_END: Final = b"\xce"
_PERSISTENT: Final = struct.pack(">HB", 0x1000, 2)  # the one property that is set: delivery-mode 2
_QUEUE: Final = b"\x05bench"

# (class, method) of AMQP 0-9-1
_START_OK, _TUNE_OK, _OPEN = (10, 11), (10, 31), (10, 40)
_CONNECTION_START, _TUNE, _OPENED = (10, 10), (10, 30), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPENED = (20, 10), (20, 11)
_DECLARE, _DECLARED = (50, 10), (50, 11)
_QOS, _QOS_OK, _CONSUME, _CONSUMING = (60, 10), (60, 11), (60, 20), (60, 21)
_PUBLISH, _DELIVER, _ACK = (60, 40), (60, 60), (60, 80)
_CONFIRM, _CONFIRMED = (85, 10), (85, 11)
_CLOSES: Final = ((10, 50), (20, 40))


def rabbitmq(ours: Result, settings: LoadSettings) -> Result:
    """The same load on a rabbitmq-server."""
    with server() as target:
        result = over_line(ours, settings, target, AmqpLine(target.tcp.port))
        return replace(result, server="rabbitmq", durability="durable queue, persistent messages, confirms")


@contextmanager
def server() -> Iterator[Target]:
    """A rabbitmq-server of its own: its name, cookie, files and epmd are not those of the machine's service."""
    with tempfile.TemporaryDirectory(prefix="lapwing-rabbitmq-") as home:
        (Path(home) / "plugins").write_text("[].\n")
        epmd = free_port()
        environment = {
            **os.environ, "HOME": home, "RUNNING_UNDER_SYSTEMD": "1", "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": f"lapwing{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": home, "RABBITMQ_LOG_BASE": home, "RABBITMQ_CONFIG_FILE": f"{home}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins", "RABBITMQ_CONF_ENV_FILE": f"{home}/none.conf",
        }  # fmt: skip

        def command(folder: str, port: int) -> list[str]:
            environment["RABBITMQ_NODE_PORT"] = str(port)
            return [program()]

        try:
            with running(command, environment=environment, start=_START) as target:
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
        self._sock = socket.create_connection(("127.0.0.1", port), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._later: list[tuple[tuple[int, int], bytes]] = []  # received, and not looked at yet
        self._sock.sendall(b"AMQP\x00\x00\x09\x01")
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
        self._sock.close()

    def declare(self) -> None:
        """Create the queue, and ask for confirms."""
        self._send(_DECLARE, b"\x00\x00" + _QUEUE + b"\x02" + struct.pack(">I", 0))  # durable
        self._expect(_DECLARED)
        self._send(_CONFIRM, b"\x00")
        self._expect(_CONFIRMED)

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish with at most a window of unconfirmed messages."""
        body = b"x" * settings.size
        header = struct.pack(">HHQ", 60, 0, len(body)) + _PERSISTENT
        one = (_frame(_METHOD, struct.pack(">HH", *_PUBLISH) + b"\x00\x00\x00" + _QUEUE + b"\x00")
               + _frame(_CONTENT, header) + _frame(_BODY, body))  # fmt: skip
        batch = one * settings.batch
        window = settings.batch * max(2, settings.window)
        sent, floor = 0, 0
        above: set[int] = set()  # tags that were confirmed one at a time, beyond `floor`
        while (confirmed := floor + len(above)) < messages:
            while sent < messages and sent - confirmed + settings.batch <= window:
                count = min(settings.batch, messages - sent)
                self._sock.sendall(batch if count == settings.batch else one * count)
                sent += count
            for method, payload in self._receive():
                tag, several = struct.unpack(">QB", payload)
                if method != _ACK:
                    raise BenchError(f"rabbitmq-server refused message {tag}")
                if several:
                    floor = max(floor, tag)
                else:
                    above.add(tag)
            above = {tag for tag in above if tag > floor}

    def prepare(self) -> None:
        """Do nothing: a consumer is started by `consume`."""

    def consume(self, messages: int) -> None:
        """Receive and acknowledge everything, half a window at a time."""
        self._send(_QOS, struct.pack(">IHB", 0, _PREFETCH, 0))
        self._expect(_QOS_OK)
        self._send(_CONSUME, b"\x00\x00" + _QUEUE + b"\x03one\x00" + struct.pack(">I", 0))
        self._expect(_CONSUMING)
        received = acknowledged = 0
        while received < messages:
            received += sum(1 for method, _ in self._receive() if method == _DELIVER)
            if received - acknowledged >= _PREFETCH // 2 or received >= messages:
                self._send(_ACK, struct.pack(">QB", received, 1))
                acknowledged = received

    def _send(self, method: tuple[int, int], arguments: bytes, *, channel: int = 1) -> None:
        self._sock.sendall(_frame(_METHOD, struct.pack(">HH", *method) + arguments, channel=channel))

    def _expect(self, method: tuple[int, int]) -> bytes:
        """Return the arguments of the next such method; the frames behind it stay."""
        while True:
            frames = self._receive()
            for index, (found, payload) in enumerate(frames):
                if found == method:
                    self._later = frames[index + 1 :]
                    return payload

    def _receive(self) -> list[tuple[tuple[int, int], bytes]]:
        """Return the methods that arrived, without the contents of messages."""
        if self._later:
            frames, self._later = self._later, []
            return frames
        more = self._sock.recv(1 << 18)
        if not more:
            raise BenchError("rabbitmq-server hung up")
        data, at, frames = self._data + more, 0, []
        while len(data) - at > _HEAD.size:
            kind, _, size = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size + 1
            if end > len(data):
                break
            start, at = at + _HEAD.size, end
            if kind == _METHOD:
                method = (data[start] << 8 | data[start + 1], data[start + 2] << 8 | data[start + 3])
                frames.append((method, data[start + 4 : end - 1]))
                if method in _CLOSES:
                    raise BenchError(f"rabbitmq-server closed the connection: {data[start + 7 : end - 1]!r}")
        self._data = data[at:]
        return frames


def _frame(kind: int, payload: bytes, *, channel: int = 1) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + _END
