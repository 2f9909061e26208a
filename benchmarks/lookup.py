"""What nsqlookupd costs: lookups per second, a peer's PING, a thousand idle peers.

    python benchmarks/lookup.py [--nodes 1000] [--topics 10] [--producers 100] [--seconds 5]

Starts a real nsqlookupd with default settings (its log goes to a file), connects that many peers with that many
topics each, and asks for a topic that some of them share. CPU times are the daemon's own, from its /metrics.
"""

import argparse
import asyncio
import json
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

OK = b"\0\0\0\2OK"


class Peer(asyncio.Protocol):
    """An nsqd that only registers and pings."""

    def __init__(self) -> None:
        self.received = 0
        self._awaited = 0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data.count(OK)
        if self._done is not None and self.received >= self._awaited and not self._done.done():
            self._done.set_result(None)

    async def say(self, lines: bytes, answers: int) -> None:
        """Send commands, and wait for as many OKs."""
        self._awaited = self.received + answers
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(lines)  # type: ignore[attr-defined]
        await self._done


class HttpClient(asyncio.Protocol):
    """Asks the same thing over and over on one connection."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._missing = 0
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            head = data.index(b"\r\n\r\n") + 4
            match = re.search(rb"Content-Length: (\d+)", data[:head])
            assert match is not None
            self._missing = head + int(match[1])
        self._missing -= len(data)
        if self._missing == 0:
            self.answered += 1
            self.transport.write(self._request)  # type: ignore[attr-defined]


def cpu(http: str) -> float:
    """CPU seconds that the daemon has used so far."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        match = re.search(r"^process_cpu_seconds_total (\S+)$", answer.read().decode(), re.MULTILINE)
    assert match is not None
    return float(match[1])


async def connect(tcp: str, number: int, topics: list[str]) -> Peer:
    host, _, port = tcp.rpartition(":")
    _, peer = await asyncio.get_running_loop().create_connection(Peer, host, int(port))
    identity = {"broadcast_address": f"node-{number}.example", "hostname": f"node-{number}", "tcp_port": 4150,
                "http_port": 4151, "version": "1.3.0", "topology_zone": "", "topology_region": ""}  # fmt: skip
    body = json.dumps(identity).encode()
    lines = b"".join(b"REGISTER %b c\n" % topic.encode() for topic in topics)
    await peer.say(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body + lines, len(topics))
    return peer


async def measure(tcp: str, http: str, arguments: argparse.Namespace) -> dict[str, float]:
    """All figures."""
    peers = []
    for number in range(arguments.nodes):
        first = "shared" if number < arguments.producers else f"own-{number}"
        others = [f"topic-{(number * 7 + at) % (arguments.nodes * 2)}" for at in range(1, arguments.topics)]
        peers.append(await connect(tcp, number, [first, *others]))
    figures: dict[str, float] = {"peers": len(peers)}

    before, started = cpu(http), time.perf_counter()
    await asyncio.sleep(arguments.seconds)
    figures["idle_cpu_percent_without_pings"] = 100 * (cpu(http) - before) / (time.perf_counter() - started)

    rounds = max(1, 20000 // len(peers))
    before = cpu(http)
    for _ in range(rounds):
        await asyncio.gather(*(peer.say(b"PING\n", 1) for peer in peers))
    figures["ping_cpu_us"] = 1e6 * (cpu(http) - before) / (rounds * len(peers))
    figures["idle_cpu_percent_with_a_ping_per_15_s"] = (
        figures["idle_cpu_percent_without_pings"] + 100 * len(peers) / 15 * figures["ping_cpu_us"] / 1e6
    )

    host, _, port = http.rpartition(":")
    request = b"GET /lookup?topic=shared HTTP/1.1\r\nHost: bench\r\nAccept: application/vnd.nsq; version=1.0\r\n\r\n"
    loop = asyncio.get_running_loop()
    askers = [(await loop.create_connection(lambda: HttpClient(request), host, int(port)))[1] for _ in range(8)]
    await asyncio.sleep(0.5)
    before, answered, started = cpu(http), sum(asker.answered for asker in askers), time.perf_counter()
    await asyncio.sleep(arguments.seconds)
    used, elapsed = cpu(http) - before, time.perf_counter() - started
    answered = sum(asker.answered for asker in askers) - answered
    figures["lookup_answers_per_second"] = answered / elapsed
    figures["lookup_cpu_us"] = 1e6 * used / answered
    figures["lookup_answers_per_second_per_core"] = answered / used
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--producers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile() as log:
        command = [
            sys.executable,
            "-m",
            "lapwing.cli.nsqlookupd",
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
        ]
        daemon = subprocess.Popen(command, stderr=log.file)
        try:
            found: dict[str, str] = {}
            while len(found) < 2:
                time.sleep(0.01)
                with open(log.name) as lines:
                    found = dict(re.findall(r"(TCP|HTTP): listening on (\S+)\n", lines.read()))
            figures = asyncio.run(measure(found["TCP"], found["HTTP"], arguments))
        finally:
            daemon.terminate()
            daemon.wait()
    for name, figure in figures.items():
        print(f"{name:42} {figure:12,.2f}")


if __name__ == "__main__":
    main()
