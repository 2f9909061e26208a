"""Compare servers that get one message at a time: every publish waits for its answer, connections are independent.

    python benchmarks/single.py                          our nsqd, and redis-server and nats-server where installed
    python benchmarks/single.py --nsqd OTHER/bin/nsqd    another nsqd beside ours (an older version, or NSQ's own)
    python benchmarks/single.py --connections 1 16 --seconds 5 --rounds 3
    python benchmarks/single.py --floor                  each server's CPU also as a multiple of the least possible

The load generator is `single.c`, compiled here: a thread per connection, so that a server sees producers that do not
wait for one another. The floor is `floor.c`, which does the system calls of a publish and no more. All servers run in
turns, `--rounds` times; the round with the least CPU per message counts. The table that is printed is Markdown.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lapwing.tools.processes import cpu_seconds

OURS = Path(sys.executable).parent / "nsqd"
FLOOR = "floor"


@dataclass(frozen=True)
class Server:
    """One program to measure, and how it is started on a port and a folder."""

    name: str
    protocol: str
    command: Callable[[int, str], list[str]]


@dataclass(frozen=True)
class Outcome:
    """One round of one server."""

    rate: float  # messages a second
    cpu: float  # us of the server per message


def nsqd(program: str, name: str) -> Server:
    def command(port: int, folder: str) -> list[str]:
        return [program, f"--tcp-address=127.0.0.1:{port}", f"--http-address=127.0.0.1:{free_port()}",
                f"--data-path={folder}"]
    return Server(name, "nsq", command)


def nsqd_xadd(program: str, name: str) -> Server:
    def command(port: int, folder: str) -> list[str]:
        return [program, f"--tcp-address=127.0.0.1:{free_port()}", f"--http-address=127.0.0.1:{free_port()}",
                f"--redis-address=127.0.0.1:{port}", f"--data-path={folder}"]
    return Server(name, "redis", command)


def redis(program: str) -> Server:
    def command(port: int, folder: str) -> list[str]:
        return [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
                "--appendonly", "yes", "--appendfsync", "everysec"]
    return Server("redis-server XADD, AOF everysec", "redis", command)


def nats(program: str) -> Server:
    return Server("nats-server, in memory", "nats", lambda port, folder: [program, "-a", "127.0.0.1", "-p", str(port)])


def floor(program: str) -> Server:
    return Server(FLOOR, "nsq", lambda port, folder: [program, str(port), folder])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def compiled(name: str, folder: str) -> str:
    """Compile a C program that lies beside this one. Exits with a sentence where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(f"{name}.c needs a C compiler: install gcc")
    program = f"{folder}/{name}"
    subprocess.run([compiler, "-O2", "-pthread", "-o", program, str(Path(__file__).with_name(f"{name}.c"))], check=True)
    return program


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"{process.args!r} did not start")


def measure(server: Server, load: str, *, connections: int, seconds: float, body: int) -> Outcome:
    """Run one server under one load, on a data path of its own."""
    with tempfile.TemporaryDirectory(prefix="lapwing-bench-", ignore_cleanup_errors=True) as folder:
        port = free_port()
        process = subprocess.Popen(server.command(port, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port, process)
            run = [load, server.protocol, str(port), str(connections)]
            subprocess.run([*run, "0.3", str(body)], check=True, stdout=subprocess.DEVNULL)
            before = cpu_seconds(process.pid)
            done = subprocess.run([*run, str(seconds), str(body)], check=True, stdout=subprocess.PIPE, text=True)
            used = cpu_seconds(process.pid) - before
        finally:
            process.terminate()
            process.wait(30)
    count, lasted = done.stdout.split()
    return Outcome(int(count) / float(lasted), used / int(count) * 1e6)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 1000], metavar="N")
    options.add_argument("--seconds", type=float, default=3.0, help="length of one run")
    options.add_argument("--rounds", type=int, default=3, help="runs of each server; the cheapest counts")
    options.add_argument("--body", type=int, default=200, help="bytes of a message")
    options.add_argument("--nsqd", action="append", default=[], metavar="PATH", help="another nsqd to measure in turns")
    options.add_argument("--floor", action="store_true", help="compare each server with the least possible")
    options.add_argument("--without-peers", action="store_true", help="leave out redis-server and nats-server")
    chosen = options.parse_args()
    servers = [nsqd(str(OURS), "lapwing, PUB"), nsqd_xadd(str(OURS), "lapwing, XADD")]
    servers += [nsqd(path, path) for path in chosen.nsqd]
    if not chosen.without_peers:
        peers = {"redis-server": redis, "nats-server": nats}
        servers += [make(found) for name, make in peers.items() if (found := shutil.which(name))]
    with tempfile.TemporaryDirectory(prefix="lapwing-bench-") as folder:
        load = compiled("single", folder)
        if chosen.floor:
            servers.insert(0, floor(compiled("floor", folder)))
        print_row("connections", *(server.name for server in servers))
        print_row(*["---"] * (len(servers) + 1))
        for connections in chosen.connections:
            outcomes: dict[str, list[Outcome]] = {server.name: [] for server in servers}
            for _ in range(chosen.rounds):
                for server in servers:
                    outcomes[server.name].append(
                        measure(server, load, connections=connections, seconds=chosen.seconds, body=chosen.body)
                    )
            best = {name: min(rounds, key=lambda outcome: outcome.cpu) for name, rounds in outcomes.items()}
            print_row(f"{connections:,}", *(cell(name, best) for name in best))


def cell(name: str, best: dict[str, Outcome]) -> str:
    """Return CPU and rate of one server, and how many times the floor its CPU is, where there is one."""
    text = f"{best[name].cpu:.1f} us, {best[name].rate:,.0f}/s"
    return f"{text}, {best[name].cpu / best[FLOOR].cpu:.2f}" if FLOOR in best and name != FLOOR else text


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
