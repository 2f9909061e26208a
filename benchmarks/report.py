"""lapwing beside the servers that are installed here, as tables and a picture in docs/performance.md.

    python benchmarks/report.py                                    half a million messages a load
    LAPWING_PEER_NSQD=/path/to/nsqd python benchmarks/report.py    NSQ's own nsqd too
    python benchmarks/report.py --count 50000 --stdout             quickly, and only printed

redis-server, nats-server and rabbitmq-server are measured if they are installed. Every server runs alone, on a
temporary folder, and writes messages to its files without waiting for the disk, but for RabbitMQ, which waits before it
confirms; NSQ's nsqd keeps them in memory as far as they fit.
"""

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import peers
from peers import nats, rabbitmq

import nsqd as ours
from lapwing import __version__
from lapwing.client.address import parse
from lapwing.errors import LapwingError
from lapwing.tools import processes
from lapwing.tools.bench import loads
from lapwing.tools.bench.latency import latency
from lapwing.tools.bench.report import Result

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PICTURE = "screens/performance.svg"
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"
NSQD = os.environ.get("LAPWING_PEER_NSQD", "")
NSQ_LOADS: dict[str, Callable[[loads.Target, loads.LoadSettings], Result]] = {
    "pub": loads.publish, "sub": loads.consume, "fanout": loads.fan_out, "latency": latency,
}  # fmt: skip
PEERS = ("redis", "nats", "rabbitmq")
TITLES = {
    "pub": "Publish: batches of 200, two connections",
    "sub": "Consume and acknowledge, what was published before",
    "fanout": "Fan-out to 8 channels, per delivered message",
    "latency": "From publish to delivery at 10,000 messages/s",
}


@dataclass(frozen=True)
class Row:
    """One server in one table."""

    server: str
    values: tuple[str, ...]
    command: str
    cost: float = 0.0  # us of CPU per message, for the picture


@contextlib.contextmanager
def other_nsqd(folder: str) -> Iterator[loads.Target]:
    """The nsqd that LAPWING_PEER_NSQD names, on two free ports."""
    from socket import socket

    with socket() as one, socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    command = [NSQD, f"--tcp-address=127.0.0.1:{ports[0]}", f"--http-address=127.0.0.1:{ports[1]}",
               f"--data-path={folder}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            peers.await_port(process, NSQD, ports[0])
            yield loads.Target(parse(f"127.0.0.1:{ports[0]}"), f"127.0.0.1:{ports[1]}", process.pid)
        finally:
            process.terminate()


@contextlib.contextmanager
def our_nsqd(folder: str) -> Iterator[loads.Target]:
    running = ours.Nsqd(folder)
    try:
        yield running.target
    finally:
        running.stop()


Start = Callable[[str], contextlib.AbstractContextManager[loads.Target]]


def nsqds() -> dict[str, Start]:
    """Servers that speak NSQ's protocol."""
    return {"lapwing": our_nsqd, **({"NSQ": other_nsqd} if NSQD else {})}


def others() -> list[str]:
    return [name for name in PEERS if shutil.which(f"{name}-server")]


def measure(load: str, count: int) -> list[Row]:
    """One table: the same load on every server that can take it."""
    channels = 8 if load == "fanout" else 1
    messages = count // channels if load == "fanout" else count
    seconds = 3.0 if load == "latency" else None
    settings = loads.LoadSettings("bench", count=messages, channels=channels, seconds=seconds)
    rows, first = [], None
    for name, start in nsqds().items():
        with tempfile.TemporaryDirectory(prefix="lapwing-report-") as folder, start(folder) as target:
            result = NSQ_LOADS[load](target, settings)
        first = first or result
        size = "" if load == "latency" else f" --count {messages}"
        more = f"{size} --channels 8" if load == "fanout" else size
        rows.append(row(name, result, f"lapwing bench {load}{more}"))
    for name in others() if load in ("pub", "sub") else ():
        assert first is not None
        result = peers.named(name)(first, settings)
        rows.append(row(name, result, f"python benchmarks/beside.py {name} {load} --count {count}"))
    return rows


def row(server: str, result: Result, command: str) -> Row:
    cost = result.server_us or 0.0
    if result.load == "latency" and result.latency is not None:
        times = result.latency
        return Row(server, (f"{times.p50:.2f} ms", f"{times.p99:.2f} ms", f"{times.max:.1f} ms"), command)
    return Row(server, (f"{result.rate:,.0f}/s", f"{cost:.2f} us"), command, cost)


def backlog(count: int) -> list[Row]:
    """Memory of messages that wait, and the time of a start with them."""
    settings = loads.LoadSettings("bench", count=count)
    command = f"python benchmarks/report.py --count {count}"
    rows = []
    for name, start in nsqds().items():
        with tempfile.TemporaryDirectory(prefix="lapwing-report-") as folder:
            with start(folder) as target:
                assert target.pid is not None
                before = processes.resident_bytes(target.pid)
                loads.publish(target, settings)
                each = (processes.resident_bytes(target.pid) - before) / count
            began = time.perf_counter()
            with start(folder):
                seconds = time.perf_counter() - began
        rows.append(Row(name, (f"{max(0.0, each):.0f} bytes", f"{seconds * 1000:.0f} ms"), command))
    rows += [Row(name, (f"{each:.0f} bytes", "not measured"), command) for name, each in held(settings, count)]
    return rows


def held(settings: loads.LoadSettings, count: int) -> Iterator[tuple[str, float]]:
    """Yield the memory of each waiting message in the other servers."""
    fillers: dict[str, tuple[contextlib.AbstractContextManager[loads.Target], Callable[[int], None]]] = {
        "redis": (peers.running(peers.redis_command), lambda port: peers.redis_fill(port, settings, count, 2)),
        "nats": (peers.running(nats.server_command), lambda port: _fill(nats.NatsLine(port), settings, count)),
        "rabbitmq": (rabbitmq.server(), lambda port: _fill(rabbitmq.AmqpLine(port), settings, count)),
    }
    for name in others():
        start, fill = fillers[name]
        with start as target:
            assert target.pid is not None
            before = processes.resident_bytes(target.pid)
            fill(target.tcp.port)
            yield name, max(0.0, (processes.resident_bytes(target.pid) - before) / count)


def _fill(line: nats.NatsLine | rabbitmq.AmqpLine, settings: loads.LoadSettings, count: int) -> None:
    try:
        line.declare()
        line.publish(count, settings)
    finally:
        line.close()


def table(title: str, headings: tuple[str, ...], rows: list[Row]) -> str:
    lines = [f"### {title}", "", f"| server | {' | '.join(headings)} | command |", "|" + "---|" * (len(headings) + 2)]
    lines += [f"| {row.server} | {' | '.join(row.values)} | `{row.command}` |" for row in rows]
    return "\n".join(lines) + "\n"


def machine() -> str:
    model = next((row.partition(":")[2].strip() for row in Path("/proc/cpuinfo").read_text().splitlines()
                  if row.startswith("model name")), platform.machine())  # fmt: skip
    facts = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(row.split()[1]) for row in facts if row.startswith("MemTotal"))
    load = os.getloadavg()[0]
    return (f"{os.cpu_count()} cores ({model}), {memory >> 20} GiB, {platform.system()} {platform.release()}; "
            f"load average {load:.1f} at the start")  # fmt: skip


def versions() -> str:
    found = [f"lapwing {__version__} on Python {platform.python_version()}"]
    commands = [[f"{name}-server", "--version"] for name in others() if name != "rabbitmq"]
    for command in [*commands, *([[NSQD, "--version"]] if NSQD else [])]:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
        found.append(text.partition(" sha=")[0])
    found += [rabbitmq.version()] if "rabbitmq" in others() else []
    missing = [name for name in PEERS if name not in others()]
    left_out = f". Not installed, so not measured: {', '.join(f'{name}-server' for name in missing)}" if missing else ""
    return "; ".join(found) + left_out


def picture(tables: dict[str, list[Row]], path: Path) -> None:
    """Bars of the CPU time per message."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3))
    for axis, load in zip(axes, ("pub", "sub"), strict=True):
        rows = tables[load]
        bars = axis.barh([row.server for row in rows], [row.cost for row in rows], color="#4477aa")
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.invert_yaxis()
        axis.set_xlabel("us of server CPU per message")
        axis.set_title({"pub": "publish", "sub": "consume"}[load])
        axis.margins(x=0.2)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def report(count: int) -> tuple[str, dict[str, list[Row]]]:
    here, which = machine(), versions()
    tables = {load: measure(load, count) for load in TITLES}
    waiting = backlog(count)
    costs = ("messages", "server CPU per message")
    command = f"{'LAPWING_PEER_NSQD=nsqd ' if NSQD else ''}python benchmarks/report.py --count {count}"
    head = f"## Beside others\n\nMachine: {here}.\n\nServers: {which}.\n\n200-byte messages. All of it: `{command}`.\n"
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        head += "\nThe machine was busy with other work: CPU times compare, while rates, latencies and starts do not.\n"
    parts = [head, f"![CPU time per message]({PICTURE})\n"]
    times = ("p50", "p99", "longest")
    parts += [table(TITLES[load], times if load == "latency" else costs, rows) for load, rows in tables.items()]
    parts.append(table(f"A backlog of {count:,} messages", ("memory per message", "start with it"), waiting))
    return "\n".join(parts), tables


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=500_000)
    options.add_argument("--stdout", action="store_true", help="print the report, and leave the page alone")
    chosen = options.parse_args()
    try:
        text, tables = report(chosen.count)
    except LapwingError as error:
        sys.exit(str(error))
    if chosen.stdout:
        print(text)
        return
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
    picture(tables, PAGE.parent / PICTURE)


if __name__ == "__main__":
    main()
