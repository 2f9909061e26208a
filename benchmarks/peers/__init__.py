"""The same load on another server, which is started for as long as it takes."""

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from lapwing.client.address import Address
from lapwing.errors import ConfigError
from lapwing.tools.bench.line import BenchError
from lapwing.tools.bench.loads import LoadSettings, Target, Watch, measured
from lapwing.tools.bench.report import Result

Beside = Callable[[Result, LoadSettings], Result]

_START: Final = 10.0  # seconds
_PIPELINE: Final = 200
_ENTRY: Final = re.compile(rb"\$\d+\r\n(\d{13}-\d+)\r\n")


def named(name: str) -> Beside:
    """Return the function that runs a load on this peer. Raises `ConfigError` if it is unknown or not installed."""
    if name == "redis":
        _program("redis-server", "redis-server")
        _program("redis-benchmark", "redis-tools")
        return redis
    if name == "nats":
        from peers.nats import nats

        _program("nats-server", "nats-server")
        return nats
    if name == "rabbitmq":
        from peers.rabbitmq import rabbitmq

        _program("rabbitmq-server", "rabbitmq-server")
        return rabbitmq
    raise ConfigError(f"peer {name} is not known: redis, nats or rabbitmq expected")


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not installed: apt-get install {package}")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Callable[[str, int], list[str]], *, environment: dict[str, str] | None = None, start: float = _START
) -> Iterator[Target]:
    """A server on a free port of the loopback with a temporary folder, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="lapwing-peer-") as folder:
        port = free_port()
        arguments = command(folder, port)
        with subprocess.Popen(
            arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                await_port(process, arguments[0], port, start)
                yield Target(Address("127.0.0.1", port), "", process.pid)
            finally:
                process.terminate()
                try:
                    process.wait(10)
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


class PeerLine(Protocol):
    """A connection to a peer's queue."""

    consuming: dict[str, int]  # how it consumes, for the report

    def declare(self) -> None:
        """Create the queue."""

    def publish(self, messages: int, settings: LoadSettings) -> None:
        """Publish, and wait for every confirmation."""

    def prepare(self) -> None:
        """Get ready to consume."""

    def consume(self, messages: int) -> None:
        """Consume, and acknowledge."""

    def close(self) -> None:
        """Hang up."""


def over_line(ours: Result, settings: LoadSettings, target: Target, line: PeerLine) -> Result:
    """Run a load over one connection. Raises `ConfigError` for a load that is neither pub nor sub."""
    watch = Watch(target.pid)
    try:
        line.declare()
        if ours.load == "pub":
            with watch:
                line.publish(ours.messages, settings)
            shown = {"connections": 1, "pipeline": settings.batch * settings.window}
        elif ours.load == "sub":
            line.publish(ours.messages, settings)
            line.prepare()
            with watch:
                line.consume(ours.messages)
            shown = {"consumers": 1, **line.consuming}
        else:
            raise ConfigError("this peer can be measured with the loads pub and sub")
    finally:
        line.close()
    return measured(ours.load, target, settings, watch, ours.messages, shown, None)


def redis(ours: Result, settings: LoadSettings) -> Result:
    """Streams in redis, written to its append-only file without waiting for the disk, as `durability os` does."""
    with running(redis_command) as target:
        watch = Watch(target.pid)
        if ours.load == "pub":
            with watch:
                redis_fill(target.tcp.port, settings, ours.messages, settings.publishers)
            shown = {"connections": settings.publishers, "pipeline": _PIPELINE}
        elif ours.load == "sub":
            redis_fill(target.tcp.port, settings, ours.messages, 2)
            with watch:
                _redis_drain(target.tcp.port, ours.messages)
            shown = {"consumers": 1, "count": _PIPELINE}
        else:
            raise ConfigError("redis can be measured with the loads pub and sub")
        result = measured(ours.load, target, settings, watch, ours.messages, shown, None)
        return replace(result, server="redis", durability="os: appendonly, appendfsync no")


def redis_command(folder: str, port: int) -> list[str]:
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
            "--appendonly", "yes", "--appendfsync", "no"]


def redis_fill(port: int, settings: LoadSettings, messages: int, connections: int) -> None:
    command = ["redis-benchmark", "-p", str(port), "-n", str(messages), "-P", str(_PIPELINE), "-c", str(connections),
               "-q", "XADD", "bench", "*", "body", "x" * settings.size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"redis-benchmark failed: {done.stderr.strip() or done.stdout.strip()}")


def _redis_drain(port: int, messages: int) -> None:
    """Read everything as a consumer group and acknowledge it, `_PIPELINE` at a time."""
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_resp(b"XGROUP", b"CREATE", b"bench", b"group", b"0"))
        sock.recv(1 << 16)
        left = messages
        read = _resp(b"XREADGROUP", b"GROUP", b"group", b"one", b"COUNT", b"%d" % _PIPELINE, b"STREAMS", b"bench", b">")
        sock.sendall(read)
        data = b""
        while left > 0:
            more = sock.recv(1 << 18)
            if not more:
                raise BenchError("redis hung up")
            data += more
            wanted = min(_PIPELINE, left)
            if data.count(b"\r\nbody\r\n") < wanted or not data.endswith(b"\r\n"):
                continue
            ids = _ENTRY.findall(data)
            left -= len(ids)
            # the answer to an acknowledgement comes before that to the read behind it, and says nothing new
            sock.sendall(_resp(b"XACK", b"bench", b"group", *ids) + (read if left > 0 else b""))
            data = b""


def _resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def ratio_text(result: Result, peer: Result) -> str:
    """Return how the peer compares with us."""
    lines = [f"against {peer.server}:"]
    if result.rate:
        lines.append(f"  messages/s     {result.rate / peer.rate:.2f} times the peer's" if peer.rate else "")
    if result.server_us and peer.server_us is not None:
        lines.append(f"  server CPU     the peer needs {peer.server_us / result.server_us:.2f} times ours per message")
    return "\n".join(line for line in lines if line)
