"""lapwing beside the servers that are installed here, as tables and a picture in docs/explanation/performance.md.

    python benchmarks/report.py                                    half a million messages a load
    LAPWING_PEER_NSQD=/path/to/nsqd python benchmarks/report.py    NSQ's own nsqd too
    python benchmarks/report.py --count 50000 --stdout             quickly, and only printed
    python benchmarks/report.py --only backlog --stdout            one table: pub, sub, fanout, latency or backlog

redis-server, nats-server and rabbitmq-server are measured if they are installed. Every server runs alone, on a
temporary folder, and writes messages to its files without waiting for the disk, but for RabbitMQ, which waits before it
confirms; NSQ's nsqd keeps them in memory as far as they fit. RabbitMQ gets a tenth of the messages, as it needs
a hundred times as long.
"""

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import peers
from peers import rabbitmq

import nsqd as ours
from lapwing import __version__, kernel
from lapwing.client.address import parse
from lapwing.errors import LapwingError
from lapwing.tools import processes
from lapwing.tools.bench import loads
from lapwing.tools.bench.latency import latency
from lapwing.tools.bench.report import Result

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "performance.md"
PICTURE = "screens/performance.svg"
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"
NSQD = os.environ.get("LAPWING_PEER_NSQD", "")
NSQ_LOADS: dict[str, Callable[[loads.Target, loads.LoadSettings], Result]] = {
    "pub": loads.publish, "sub": loads.consume, "fanout": loads.fan_out, "latency": latency,
}  # fmt: skip
SLOW = {"rabbitmq": 10}  # a server gets so many times fewer messages
TITLES = {
    "pub": "Publish: batches of 200, two connections",
    "sub": "Consume and acknowledge, what was published before",
    "fanout": "Fan-out to 8 channels, per delivered message",
    "latency": "From publish to delivery at 10,000 messages/s",
    "backlog": "A backlog of {count:,} messages",
}
NOTES = {
    "fanout": "A channel is a group of a stream in Redis, a durable consumer in NATS, a queue of an exchange in "
              "RabbitMQ. Consumers of lapwing and NSQ read while messages are published, those of the others after "
              "every 2,000.",
    "latency": "Each message is published by itself, and its time counts from when it was due. A server that cannot "
               "take the rate falls behind, and so its times are long.",
    "backlog": "The server was stopped with SIGTERM; the start is the time from the command until the server answers, "
               "those of Redis, NATS and RabbitMQ with the number of their messages.",
}  # fmt: skip
HEADINGS = {"latency": ("p50", "p99", "longest"), "backlog": ("memory per message", "start with it")}
COSTS = ("messages", "server CPU per message")


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


def measure(load: str, count: int) -> list[Row]:
    """One table: the same load on every server."""
    if load == "backlog":
        return backlog(count)
    rows = []
    for name, start in nsqds().items():
        settings = sized(load, count)
        with tempfile.TemporaryDirectory(prefix="lapwing-report-") as folder, start(folder) as target:
            result = NSQ_LOADS[load](target, settings)
        size = " --seconds 3" if load == "latency" else f" --count {settings.count}"
        more = " --channels 8" if load == "fanout" else ""
        rows.append(row(name, result, f"lapwing bench {load}{size}{more}"))
    for name in peers.installed():
        settings = sized(load, count // SLOW.get(name, 1))
        size = "" if load == "latency" else f" --count {settings.count}"
        rows.append(row(name, peers.run(name, load, settings), f"python benchmarks/beside.py {name} {load}{size}"))
    return rows


def sized(load: str, count: int) -> loads.LoadSettings:
    """The settings of a load with so many messages, or deliveries."""
    channels = 8 if load == "fanout" else 1
    seconds = 3.0 if load == "latency" else None
    return loads.LoadSettings("bench", count=count // channels, channels=channels, seconds=seconds)


def row(server: str, result: Result, command: str) -> Row:
    cost = result.server_us or 0.0
    if result.load == "latency" and result.latency is not None:
        times = result.latency
        return Row(server, (f"{times.p50:.2f} ms", f"{times.p99:.2f} ms", f"{times.max:.1f} ms"), command)
    return Row(server, (f"{result.rate:,.0f}/s", f"{cost:.2f} us"), command, cost)


def backlog(count: int) -> list[Row]:
    """Memory of messages that wait, and the time of a start with them."""
    settings = loads.LoadSettings("bench", count=count)
    command = f"python benchmarks/report.py --only backlog --stdout --count {count}"
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
        rows.append(Row(name, (f"{max(0.0, each):.0f} bytes", f"{seconds * 1000:,.0f} ms"), command))
    for name in peers.installed():
        peer, settings = peers.named(name), sized("backlog", count // SLOW.get(name, 1))
        assert settings.count is not None
        with tempfile.TemporaryDirectory(prefix="lapwing-report-") as folder:
            with peer.server(folder) as target:
                assert target.pid is not None
                before = processes.resident_bytes(target.pid)
                with peers.filled(peer, target, settings):
                    each = (processes.resident_bytes(target.pid) - before) / settings.count
            seconds = peers.restart(peer, folder, settings.count)
        fewer = f" (with {settings.count:,})" if name in SLOW else ""
        rows.append(Row(name, (f"{max(0.0, each):.0f} bytes{fewer}", f"{seconds * 1000:,.0f} ms{fewer}"), command))
    return rows


def table(load: str, count: int, rows: list[Row]) -> str:
    headings = HEADINGS.get(load, COSTS)
    lines = [f"### {TITLES[load].format(count=count)}", ""]
    lines += [NOTES[load], ""] if load in NOTES else []
    lines += [f"| server | {' | '.join(headings)} | command |", "|" + "---|" * (len(headings) + 2)]
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
    commands = [[f"{name}-server", "--version"] for name in peers.installed() if name != "rabbitmq"]
    for command in [*commands, *([[NSQD, "--version"]] if NSQD else [])]:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
        found.append(text.partition(" sha=")[0])
    found += [rabbitmq.version()] if "rabbitmq" in peers.installed() else []
    missing = [name for name in peers.NAMES if name not in peers.installed()]
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


def report(count: int, only: str) -> tuple[str, dict[str, list[Row]]]:
    here, which = machine(), versions()
    tables = {load: measure(load, count) for load in TITLES if only in ("", load)}
    command = f"{'LAPWING_PEER_NSQD=nsqd ' if NSQD else ''}python benchmarks/report.py --count {count}"
    head = f"## Beside others\n\nMachine: {here}.\n\nServers: {which}.\n\n200-byte messages. All of it: `{command}`.\n"
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        head += "\nThe machine was busy with other work: CPU times compare, while rates, latencies and starts do not.\n"
    parts = [head, f"![CPU time per message]({PICTURE})\n"]
    parts += [table(load, count, rows) for load, rows in tables.items()]
    return "\n".join(parts), tables


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=500_000)
    options.add_argument("--stdout", action="store_true", help="print the report, and leave the page alone")
    options.add_argument("--only", choices=tuple(TITLES), default="", help="measure one table; needs --stdout")
    chosen = options.parse_args()
    if chosen.only and not chosen.stdout:
        options.error("--only leaves tables out, so it is only printed: add --stdout")
    if not kernel.COMPILED:
        sys.exit("this is the pure Python kernel, whose figures mean nothing beside other servers: unset LAPWING_PURE, "
                 "install a C compiler, and run make clean setup")  # fmt: skip
    try:
        text, tables = report(chosen.count, chosen.only)
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
