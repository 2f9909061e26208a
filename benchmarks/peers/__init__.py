"""The same loads on another server, which is started for as long as it takes."""

import shutil
import socket
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final, Protocol

from lapwing.client.address import Address
from lapwing.errors import ConfigError
from lapwing.tools.bench.latency import steadily
from lapwing.tools.bench.line import BenchError, Wire
from lapwing.tools.bench.load import Tally
from lapwing.tools.bench.loads import LoadSettings, Target, Watch, measured
from lapwing.tools.bench.report import Result, percentiles

NAMES: Final = ("redis", "nats", "rabbitmq")
STAMP: Final = 8  # bytes of a body with its due time, where latency is measured
_START: Final = 10.0  # seconds
_STOP: Final = 30.0  # seconds
_CHUNK: Final = 2000  # messages that are published before every group of a fan-out reads them


class PeerLine(Protocol):
    """A blocking connection to a peer."""

    consuming: dict[str, int]  # how it consumes, for the report
    sock: socket.socket

    def declare(self, groups: int) -> None:
        """Create what is published to, for so many groups of consumers that each get every message."""

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish, and wait for every confirmation."""

    def prepare(self, group: int) -> None:
        """Get ready to consume for a group."""

    def consume(self, messages: int) -> None:
        """Consume, and acknowledge."""

    def stored(self) -> int:
        """Return how many messages the server holds, or -1 if it cannot answer yet."""

    def publication(self, size: int) -> tuple[bytes, bytes]:
        """Return the bytes before and behind the first `STAMP` bytes of a body, to publish one message."""

    def follow(self) -> None:
        """Ask for every message as it is published."""

    def arrived(self) -> list[int]:
        """Receive once, acknowledge whole messages, and return their stamps."""

    def close(self) -> None:
        """Hang up."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server to be measured beside ours."""

    name: str
    durability: str
    server: Callable[[str], AbstractContextManager[Target]]  # runs on the files of a folder
    line: Callable[[int], PeerLine]  # connects to a port


def named(name: str) -> Peer:
    """Return this peer. Raises `ConfigError` if it is unknown or not installed."""
    if name not in NAMES:
        raise ConfigError(f"peer {name} is not known: {', '.join(NAMES)} expected")
    if shutil.which(f"{name}-server") is None:
        raise ConfigError(f"{name}-server is not installed: apt-get install {name}-server")
    peer: Peer = import_module(f"peers.{name}").PEER
    return peer


def installed() -> list[str]:
    """Return the names of the peers that can be measured here."""
    return [name for name in NAMES if shutil.which(f"{name}-server")]


def run(name: str, load: str, settings: LoadSettings) -> Result:
    """Run a load on a peer: pub, sub, fanout or latency."""
    peer = named(name)
    with tempfile.TemporaryDirectory(prefix="lapwing-peer-") as folder, peer.server(folder) as target:
        result = _LOADS[load](peer, target, settings)
    return replace(result, server=name, durability=peer.durability)


def _publish(peer: Peer, target: Target, settings: LoadSettings) -> Result:
    watch, messages = Watch(target.pid), settings.count or 0
    with _line(peer, target) as line:
        line.declare(1)
        with watch:
            line.publish(messages, settings)
    shown = {"connections": 1, "pipeline": settings.batch * settings.window}
    return measured("pub", target, settings, watch, messages, shown, None)


def _consume(peer: Peer, target: Target, settings: LoadSettings) -> Result:
    watch, messages = Watch(target.pid), settings.count or 0
    with _line(peer, target) as line:
        line.declare(1)
        line.publish(messages, settings)
        line.prepare(0)
        with watch:
            line.consume(messages)
    return measured("sub", target, settings, watch, messages, {"consumers": 1, **line.consuming}, None)


def _fan_out(peer: Peer, target: Target, settings: LoadSettings) -> Result:
    """Publish, and have every group read it, a few batches at a time; counted per delivered message."""
    watch, messages = Watch(target.pid), settings.count or 0
    lines = [peer.line(target.tcp.port) for _ in range(settings.channels)]
    try:
        lines[0].declare(settings.channels)
        for group, line in enumerate(lines):
            line.prepare(group)
        with watch:
            for published in range(0, messages, _CHUNK):
                chunk = min(_CHUNK, messages - published)
                lines[0].publish(chunk, settings)
                for line in lines:
                    line.consume(chunk)
    finally:
        for line in lines:
            line.close()
    shown = {"channels": len(lines), "consumers": len(lines), **lines[0].consuming}
    return measured("fanout", target, settings, watch, messages * len(lines), shown, None)


class _Stopwatch:
    """A consumer of a peer that reads the due time from each body."""

    blocked = False

    def __init__(self, wire: Wire, line: PeerLine, tally: Tally) -> None:
        self.line = wire
        self.latencies = array("q")
        self._line, self._tally = line, tally
        wire.sock = line.sock

    def begin(self) -> None:
        self._line.follow()

    def writable(self) -> None:
        """Do nothing: acknowledgements are sent at once."""

    def readable(self) -> None:
        stamps = self._line.arrived()
        now = time.perf_counter_ns()
        self.latencies.extend([now - stamp for stamp in stamps])
        self._tally.received += len(stamps)


def _latency(peer: Peer, target: Target, settings: LoadSettings) -> Result:
    """Publish `rate` messages a second for `seconds`, and time each delivery from when its message was due."""
    total, tally, watch = int(settings.rate * (settings.seconds or 5.0)), Tally(), Watch(target.pid)
    publishing = Wire(target.tcp, peer.name)
    with _line(peer, target) as publisher, _line(peer, target) as consumer:
        publisher.declare(1)
        head, tail = publisher.publication(settings.size)
        publishing.close()
        publishing.sock = publisher.sock
        publishing.sock.setblocking(False)
        stopwatch = _Stopwatch(Wire(target.tcp, peer.name), consumer, tally)
        with watch:
            steadily(publishing, stopwatch, tally, head, tail, total, settings)
    times = percentiles(stopwatch.latencies, "due to delivered")
    return measured("latency", target, settings, watch, tally.received, {"rate": settings.rate}, times)


_LOADS: Final = {"pub": _publish, "sub": _consume, "fanout": _fan_out, "latency": _latency}


@contextmanager
def _line(peer: Peer, target: Target) -> Iterator[PeerLine]:
    line = peer.line(target.tcp.port)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def filled(peer: Peer, target: Target, settings: LoadSettings) -> Iterator[None]:
    """Publish what nobody consumes; the connection stays until the block ends."""
    with _line(peer, target) as line:
        line.declare(1)
        line.publish(settings.count or 0, settings)
        yield


def restart(peer: Peer, folder: str, messages: int) -> float:
    """Start a server on the files of another and return the seconds until it can name its messages."""
    began = time.perf_counter()
    with peer.server(folder) as target, _line(peer, target) as line:
        while (stored := line.stored()) < messages:
            if time.perf_counter() - began > 120:
                raise BenchError(f"{peer.name} has {stored} of {messages} messages after its restart")
            time.sleep(0.01)
        return time.perf_counter() - began


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    arguments: list[str], port: int, *, environment: dict[str, str] | None = None, start: float = _START
) -> Iterator[Target]:
    """A server that listens on a port of the loopback, until the block ends."""
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            await_port(process, arguments[0], port, start)
            yield Target(Address("127.0.0.1", port), "", process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()


def await_port(process: "subprocess.Popen[bytes]", name: str, port: int, seconds: float = _START) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{name} did not start on port {port}: run it by hand to see why") from error
            time.sleep(0.02)


def ratio_text(result: Result, peer: Result) -> str:
    """Return how the peer compares with us."""
    lines = [f"against {peer.server}:"]
    if result.load == "latency" and result.latency and peer.latency:
        lines.append(f"  p99            {peer.latency.p99 / result.latency.p99:.2f} times ours")
    elif result.rate and peer.rate:
        lines.append(f"  messages/s     {result.rate / peer.rate:.2f} times the peer's")
    if result.server_us and peer.server_us is not None:
        lines.append(f"  server CPU     the peer needs {peer.server_us / result.server_us:.2f} times ours per message")
    return "\n".join(lines)
