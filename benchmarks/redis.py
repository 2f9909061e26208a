"""What nsqd costs behind its Redis door, beside redis-server in the same run.

    python benchmarks/redis.py              all parts
    python benchmarks/redis.py --quick      a tenth of the load
    python benchmarks/redis.py --check      exit code 1 when a limit is not kept

100-byte bodies, pipelines of 200 and COUNT 100. CPU times are those of the server process; of several rounds, in which
the two servers take turns, the cheapest counts. redis-server writes its append-only file with `appendfsync everysec`,
nsqd writes its log with its default durability (`os`).
"""

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from single import compiled

BODY = b"x" * 100
PIPELINE = 200
COUNT = 100
PROGRAM = Path(sys.executable).parent / "nsqd"
LISTENING = re.compile(r"Redis: listening on \S+:(\d+)")
TICKS = os.sysconf("SC_CLK_TCK")
ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@dataclass
class Server:
    """A running server."""

    name: str
    process: "subprocess.Popen[bytes]"
    port: int

    def cpu(self) -> float:
        """Seconds of CPU time so far, of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> int:
        """Bytes of memory that it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


def ask(connection: socket.socket, data: bytes, end: bytes, count: int = 1) -> bytes:
    """Send commands and read until `count` times `end` has come."""
    connection.sendall(data)
    parts: list[bytes] = []
    seen, tail = 0, b""
    while seen < count:
        piece = connection.recv(1 << 20)
        if not piece:
            raise SystemExit("the server hung up")
        seen += (tail + piece).count(end) - tail.count(end)
        tail = (tail + piece)[-len(end) :]
        parts.append(piece)
    return b"".join(parts)


@contextlib.contextmanager
def servers() -> Iterator[list[Server]]:
    """Both servers, each with a data path of its own."""
    if not shutil.which("redis-server"):
        raise SystemExit("redis-server is needed: install it (Debian: redis-server)")
    folder = tempfile.mkdtemp(prefix="lapwing-redis-bench-")
    running: list[Server] = []
    try:
        os.makedirs(f"{folder}/nsqd")
        os.makedirs(f"{folder}/redis")
        said = open(f"{folder}/said", "w+b")  # noqa: SIM115 - lives as long as the process
        flags = ["--tcp-address=127.0.0.1:0", "--http-address=", "--redis-address=127.0.0.1:0", "--redis-trim-unread"]
        process = subprocess.Popen([str(PROGRAM), *flags, f"--data-path={folder}/nsqd"], stderr=said)
        running.append(Server("lapwing", process, 0))
        deadline = time.monotonic() + 60
        while not (found := LISTENING.search(Path(said.name).read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"nsqd did not start: {Path(said.name).read_text()}")
            time.sleep(0.01)
        running[0].port = int(found[1])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        redis = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", f"{folder}/redis", "--save", "",
                 "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"]  # fmt: skip
        running.append(Server("redis", subprocess.Popen(redis, stdout=subprocess.DEVNULL), port))
        while True:
            with contextlib.suppress(OSError), running[1].connect() as connection:
                ask(connection, command(b"PING"), b"\r\n")
                break
            time.sleep(0.01)
        yield running
    finally:
        for server in running:
            server.process.kill()
            server.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


# --- loads ---------------------------------------------------------------------------------------------------------


def pipelined(server: Server, messages: int) -> tuple[float, float]:
    """XADD in pipelines: us of CPU per entry, and entries per second."""
    block = command(b"XADD", b"piped", b"*", b"data", BODY) * PIPELINE
    with server.connect() as connection:
        before, began = server.cpu(), time.perf_counter()
        for _ in range(messages // PIPELINE):
            ask(connection, block, b"\r\n", 2 * PIPELINE)
        spent, took = server.cpu() - before, time.perf_counter() - began
        ask(connection, command(b"DEL", b"piped"), b"\r\n")
    return spent * 1e6 / messages, messages / took


def consumed(server: Server, messages: int) -> tuple[float, float]:
    """XREADGROUP COUNT 100 and XACK of all: us of CPU per entry, and entries per second."""
    block = command(b"XADD", b"read", b"*", b"data", BODY) * PIPELINE
    with server.connect() as connection:
        ask(connection, command(b"XGROUP", b"CREATE", b"read", b"g", b"$", b"MKSTREAM"), b"\r\n")
        for _ in range(messages // PIPELINE):
            ask(connection, block, b"\r\n", 2 * PIPELINE)
        read = command(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % COUNT, b"STREAMS", b"read", b">")
        before, began = server.cpu(), time.perf_counter()
        for _ in range(messages // COUNT):
            reply = ask(connection, read, BODY, COUNT)
            if not reply.endswith(b"\r\n"):
                reply += connection.recv(2)
            ids = ID.findall(reply)
            assert len(ids) == COUNT
            acked = ask(connection, command(b"XACK", b"read", b"g", *ids), b"\r\n")
            assert acked == b":%d\r\n" % COUNT
        spent, took = server.cpu() - before, time.perf_counter() - began
        ask(connection, command(b"DEL", b"read"), b"\r\n")
    return spent * 1e6 / messages, messages / took


def one_at_a_time(server: Server, messages: int, *, load: str) -> tuple[float, float]:
    """XADD one at a time on 16 connections: us of CPU per entry, and entries per second.

    The load is that of `single.py`: connections that do not wait for one another.
    """
    seconds = messages / 50_000
    before = server.cpu()
    done = subprocess.run(
        [load, "redis", str(server.port), "16", str(seconds), str(len(BODY))], check=True, stdout=subprocess.PIPE
    )
    spent = server.cpu() - before
    count, took = (float(word) for word in done.stdout.split())
    with server.connect() as connection:
        ask(connection, command(b"DEL", b"bench"), b"\r\n")
    return spent * 1e6 / count, count / took


def pending(server: Server, messages: int) -> tuple[float, float]:
    """Bytes of memory per pending entry, and per entry that is only there."""
    block = command(b"XADD", b"held", b"*", b"data", BODY) * PIPELINE
    with server.connect() as connection:
        ask(connection, command(b"XGROUP", b"CREATE", b"held", b"g", b"$", b"MKSTREAM"), b"\r\n")
        empty = server.memory()
        for _ in range(messages // PIPELINE):
            ask(connection, block, b"\r\n", 2 * PIPELINE)
        full = server.memory()
        read = command(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1000", b"STREAMS", b"held", b">")
        for _ in range(messages // 1000):
            ask(connection, read, BODY, 1000)
        held = server.memory()
        ask(connection, command(b"PING"), b"+PONG\r\n")
        ask(connection, command(b"DEL", b"held"), b"\r\n")
    return max(held - full, 0) / messages, max(full - empty, 0) / messages


# --- the table -----------------------------------------------------------------------------------------------------

Load = Callable[[Server, int], tuple[float, float]]

missed: list[str] = []


def compare(
    what: str, load: Load, messages: int, rounds: int, running: list[Server]
) -> dict[str, list[tuple[float, float]]]:
    """Run a load on both servers in turns."""
    found: dict[str, list[tuple[float, float]]] = {server.name: [] for server in running}
    for _ in range(rounds):
        for server in running:
            found[server.name].append(load(server, messages))
    return found


def cheapest(what: str, found: dict[str, list[tuple[float, float]]], limit: float) -> None:
    ours, theirs = (min(cost for cost, _ in found[name]) for name in ("lapwing", "redis"))
    our_rate, their_rate = (max(rate for _, rate in found[name]) for name in ("lapwing", "redis"))
    line(what, f"{ours:.2f} us", f"{theirs:.2f} us", ours / theirs if theirs else 0.0, limit,
         more=f"{our_rate:,.0f}/s and {their_rate:,.0f}/s")  # fmt: skip


def fastest(what: str, found: dict[str, list[tuple[float, float]]], limit: float) -> None:
    ours, theirs = (max(rate for _, rate in found[name]) for name in ("lapwing", "redis"))
    costs = [min(cost for cost, _ in found[name]) for name in ("lapwing", "redis")]
    line(what, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, limit, at_least=True,
         more=f"{costs[0]:.1f} us and {costs[1]:.1f} us")  # fmt: skip


def line(
    what: str, ours: str, theirs: str, ratio: float, limit: float, *, at_least: bool = False, more: str = ""
) -> None:
    held = ratio >= limit if at_least else ratio <= limit
    bound = f"{'>=' if at_least else '<='} {limit:g}"
    print(f"{what:<36}{ours:>12}{theirs:>12}{ratio:>8.2f}  {bound:<8}{'ok' if held else 'MISSED':<8}{more}")
    if not held:
        missed.append(what)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="a tenth of the load")
    options.add_argument("--check", action="store_true", help="exit with 1 when a limit is not kept")
    options.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    chosen = options.parse_args()
    scale = 10 if chosen.quick else 1
    with servers() as running:
        print(f"{'':<36}{'lapwing':>12}{'redis':>12}{'ratio':>8}  limit")
        piped = compare("", pipelined, 400_000 // scale, chosen.rounds, running)
        cheapest("XADD, pipeline of 200, CPU", piped, 0.6)
        read = compare("", consumed, 200_000 // scale, chosen.rounds, running)
        cheapest("XREADGROUP COUNT 100 + XACK, CPU", read, 0.6)
        with tempfile.TemporaryDirectory(prefix="lapwing-bench-") as folder:
            alone = partial(one_at_a_time, load=compiled("single", folder))
            single = compare("", alone, 100_000 // scale, chosen.rounds, running)
        fastest("XADD one at a time, 16 connections", single, 0.9)
        held = compare("", pending, 200_000 // scale, 1, running)
        (ours, entry), (theirs, their_entry) = held["lapwing"][0], held["redis"][0]
        line("memory of a pending entry, bytes", f"{ours:.0f}", f"{theirs:.0f}", ours, 150)
        line("memory of an entry, bytes", f"{entry:.0f}", f"{their_entry:.0f}", entry, 50)
    if missed and chosen.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
