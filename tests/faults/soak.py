"""Run an nsqd for a while under load and faults, check every message, and write a report.

    python tests/faults/soak.py --time 10m --report build/soak

One fault after the other, at random moments, with publishers and consumers that never stop: kill -9 of nsqd, nsqlookupd
and nsqadmin, a process that is stopped for seconds, reads, writes, syncs and opens that fail, a full disk, a clock that
jumps, connections that break in mid-frame, stay half open or never read, too few descriptors, floods. Beside it,
simulated power losses, after every step of random histories. Exits with 1 if a rule was broken; the report says which.
"""

import argparse
import errno
import gc
import os
import platform
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from careful_load import CarefulLoad
from disk import OPENS, READS, SYNCS, WRITES, Faults
from load import Load

import daemons
from breaks import Breaks

TESTS = Path(__file__).parent.parent
UNITS = {"s": 1, "m": 60, "h": 3600}
SAVED = 3.0  # seconds after a write that failed, until which a kill may forget what was finished
POWER = "import sys; sys.path[:0] = {paths!r}; from soak import lose_power; lose_power({points}, {seed}, {folder!r})"


def seconds_of(text: str) -> float:
    """Parse `90s`, `10m` or `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time such as 90s, 10m or 1h expected, not {text}")
    return float(found[1]) * UNITS[found[2] or "s"]


@dataclass
class Soak:
    """One broker, its loads, and the faults that it has met."""

    nsqd: daemons.Daemon
    lookupd: daemons.Daemon
    admin: daemons.Daemon
    faults: Faults
    load: Load
    careful: CarefulLoad
    breaks: Breaks
    chance: random.Random
    began: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)  # seconds, and the kind of fault
    rates: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, acknowledged, delivered
    failed_calls: Counter[str] = field(default_factory=Counter)
    restarts: list[float] = field(default_factory=list)  # seconds until nsqd listened again
    broken: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)  # of nsqd, when a rule was broken
    _write_failed: float = 0.0

    def run(self, seconds: float, only: str = "") -> None:
        """Bring one fault after the other, or `only` those of one kind, until the time is over."""
        kinds: dict[Callable[[], bool | None], int] = {
            self.kill: 12, self.fail_reads: 6, self.fail_writes: 2, self.fill_disk: 2, self.fail_syncs: 1,
            self.fail_opens: 1, self.stand_still: 1, self.turn_clock: 2, self.break_connections: 1,
            self.leave_half_open: 1, self.never_read: 1, self.take_descriptors: 1, self.flood: 1,
            self.kill_lookupd: 1, self.kill_admin: 1,
        }  # fmt: skip
        if only:
            kinds = {kind: weight for kind, weight in kinds.items() if kind.__name__ in only.split(",")}
        while (now := time.monotonic() - self.began) < seconds:
            self.rates.append((now, self.load.acknowledged, self.checked))
            if sys.stderr.isatty():
                print(f"\r{now:6.0f} s  {self.checked:>12,} checked  {len(self.events)} faults", end="",
                      file=sys.stderr, flush=True)  # fmt: skip
            (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
            if kind() is not False:
                self.events.append((now, kind.__name__.replace("_", " ")))
            time.sleep(self.chance.uniform(0.1, 0.7))

    @property
    def checked(self) -> int:
        """How many deliveries were checked."""
        return sum(channel.total for channel in self.load.channels) + self.careful.checked

    # --- the process -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        time.sleep(max(self._write_failed + SAVED - time.monotonic(), 0))
        self.breaks.kill(self.nsqd)
        began = time.monotonic()
        self.nsqd.restart()
        self.restarts.append(time.monotonic() - began)

    def kill_lookupd(self) -> None:
        self.lookupd.kill()
        self.lookupd.restart()

    def kill_admin(self) -> None:
        self.admin.kill()
        self.admin.restart()

    def stand_still(self) -> None:
        os.kill(self.nsqd.pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 3.0))
        os.kill(self.nsqd.pid, signal.SIGCONT)

    def turn_clock(self) -> None:
        self.faults.shift_clock(self.chance.choice([0, 3600, -3600, 86_400, -5]))
        self.breaks.clocks.append(time.monotonic())

    def take_descriptors(self) -> None:
        """Let nsqd have no more descriptors than it has: neither a file nor a connection can be opened."""
        limit = resource.prlimit(self.nsqd.pid, resource.RLIMIT_NOFILE)
        self._write_failed = time.monotonic()
        used = len(os.listdir(f"/proc/{self.nsqd.pid}/fd"))
        resource.prlimit(self.nsqd.pid, resource.RLIMIT_NOFILE, (used, limit[1]))
        some = [socket.create_connection(("127.0.0.1", self.nsqd.tcp_port), timeout=5) for _ in range(20)]
        time.sleep(self.chance.uniform(0.1, 1.0))
        resource.prlimit(self.nsqd.pid, resource.RLIMIT_NOFILE, limit)
        for each in some:
            each.close()
        self._write_failed = time.monotonic()

    # --- the disk --------------------------------------------------------------------------------------------------

    def fail_reads(self) -> bool:
        return self._fail("reads", READS, errno.EIO)

    def fail_writes(self) -> bool:
        return self._fail("writes", WRITES, errno.EIO)

    def fill_disk(self) -> bool:
        return self._fail("writes to a full disk", WRITES, errno.ENOSPC)

    def fail_syncs(self) -> bool:
        return self._fail("syncs", SYNCS, errno.EIO)

    def fail_opens(self) -> bool:
        return self._fail("opens", OPENS, self.chance.choice([errno.EMFILE, errno.EIO]))

    def _fail(self, name: str, calls: int, error: int) -> bool:
        """Have calls fail until one has, and a moment longer; return whether one did."""
        before = self.faults.failed
        if calls != READS:
            self._write_failed = time.monotonic()
        with self.faults.failing(calls, error=error, every=self.chance.choice([1, 1, 5])):
            deadline = time.monotonic() + 2.5
            while self.faults.failed == before and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(self.chance.uniform(0.0, 0.8))
        if calls != READS:
            self._write_failed = time.monotonic()
        self.failed_calls[name] += self.faults.failed - before
        return self.faults.failed > before

    # --- connections -----------------------------------------------------------------------------------------------

    def _connect(self, words: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.nsqd.tcp_port), timeout=5)
        connection.sendall(words)
        return connection

    def break_connections(self) -> None:
        words = b"  V2SUB load c0\nRDY 100\nPUB load\n" + struct.pack(">I", 1000) + b"x" * 999
        for _ in range(50):
            torn = self._connect(words[: self.chance.randrange(1, len(words))])
            if self.chance.random() < 0.5:  # a reset instead of an end
                torn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            torn.close()

    def leave_half_open(self) -> None:
        """Begin commands and IDENTIFYs, and leave them unfinished for longer than the next faults take."""
        words = b"  V2MPUB load\n\0\0\x10\0\0\0\0\x05"
        some = [self._connect(words[: self.chance.randrange(1, len(words))]) for _ in range(50)]
        threading.Timer(5.0, lambda: [each.close() for each in some]).start()

    def never_read(self) -> None:
        """Take messages of a channel without reading or answering them."""
        some = [self._connect(b"  V2SUB load c0\nRDY 2500\n") for _ in range(3)]
        threading.Timer(3.0, lambda: [each.close() for each in some]).start()

    def flood(self) -> None:
        """Send garbage and large batches from many connections."""
        body = struct.pack(">I", 100) + (struct.pack(">I", 1000) + b"f" * 1000) * 100
        batch = b"  V2MPUB flood#ephemeral\n" + struct.pack(">I", len(body)) + body
        for number in range(100):
            try:
                connection = self._connect(random.Random(number).randbytes(2000) if number % 2 else batch)
            except OSError:  # it hangs up on garbage
                continue
            connection.close()

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for every message, and note which rules were broken."""
        try:
            self.load.finish(seconds=300)
        except AssertionError as error:
            self.broken.append(str(error))
            self._note_state()
        self.kill()
        if broken := self.careful.finish(seconds=180):
            self.broken += broken
            self._note_state()
        for what, url in (
            ("nsqd", f"{self.nsqd.url}/ping"),
            ("nsqlookupd", f"{self.lookupd.url}/lookup?topic=load"),
            ("nsqadmin", f"{self.admin.url}/api/topics/load"),
        ):
            try:
                daemons.until(lambda url=url: _answers(url), seconds=40, what=f"{url} of {what}")
            except AssertionError as error:
                self.broken.append(str(error))


    def _note_state(self) -> None:
        """Keep what nsqd shows of itself, for whoever looks for the reason."""
        paths = ["/ping", "/stats?format=json"]
        paths += [f"/channel/pending?topic=load&channel={each.name.decode()}" for each in self.load.channels]
        paths += [f"/channel/pending?topic={book.topic}&channel=c" for book in self.careful.books]
        for path in paths:
            try:
                with urllib.request.urlopen(f"{self.nsqd.url}{path}", timeout=10) as answer:
                    self.state.append(f"{path}\n{answer.read().decode()}\n")
            except (OSError, urllib.error.URLError) as error:
                self.state.append(f"{path}\n{error}\n")
        self.state += self.nsqd.lines


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


# --- power losses --------------------------------------------------------------------------------------------------


def lose_power(points: int, seed: int, folder: str) -> None:
    """Cut the power at so many points of random histories; print how many there were, and what was broken."""
    sys.path.insert(0, str(TESTS / "crash"))
    from replayed_power_loss import check_history

    done, histories = 0, 0
    while done < points:
        cases, problems = check_history(Path(folder) / f"power-{histories}", seed + histories, most=40)
        done, histories = done + cases, histories + 1
        for problem in problems:
            print(problem)
    print(f"{done} points of {histories} histories")


def start_power_losses(points: int, seed: int, folder: Path) -> "subprocess.Popen[str]":
    """Run `lose_power` beside everything else."""
    paths = [str(Path(__file__).parent), str(TESTS)]
    code = POWER.format(paths=paths, points=points, seed=seed, folder=str(folder))
    command = ["nice", "-n", "10", sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# --- the report ----------------------------------------------------------------------------------------------------


def plot(soak: Soak, path: Path) -> None:
    """Draw the messages over time, and the faults by kind, as SVG."""
    width, height, left, top = 900, 260, 90, 20
    kinds = [kind for kind, _ in Counter(name for _, name in soak.events).most_common()]
    end = max([at for at, *_ in soak.rates], default=1.0) or 1.0
    most = max([delivered for *_, delivered in soak.rates], default=1) or 1

    def x(at: float) -> float:
        return left + at / end * (width - left - 20)

    def line(values: list[tuple[float, int]], colour: str) -> str:
        places = " ".join(f"{x(at):.1f},{top + height * (1 - count / most):.1f}" for at, count in values)
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    parts = [
        line([(at, delivered) for at, _, delivered in soak.rates], "#1b6ca8"),
        line([(at, acknowledged) for at, acknowledged, _ in soak.rates], "#2a9d5c"),
        f'<text x="{left}" y="14" fill="#1b6ca8">delivered and checked</text>',
        f'<text x="{left + 160}" y="14" fill="#2a9d5c">acknowledged</text>',
    ]
    for share in (0, 0.5, 1):
        y = top + height * (1 - share)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share / 1e6:.0f} million</text>')
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
    for row, kind in enumerate(kinds):
        y = top + height + 24 + 16 * row
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" font-size="10">{kind}</text>')
        places = [x(at) for at, name in soak.events if name == kind]
        parts += [f'<circle cx="{place:.1f}" cy="{y}" r="2.5" fill="#c1440e"/>' for place in places]
    bottom = top + height + 30 + 16 * len(kinds)
    parts += [f'<text x="{x(end * share):.0f}" y="{bottom}">{end * share:.0f} s</text>' for share in (0, 0.5)]
    style = 'font-family="sans-serif" font-size="11" xmlns="http://www.w3.org/2000/svg"'
    path.write_text(f'<svg width="{width}" height="{bottom + 10}" {style}>{"".join(parts)}</svg>\n')


def report(soak: Soak, losses: str, power: list[str], seconds: float) -> str:
    """Describe the run in Markdown."""
    kinds = Counter(name for _, name in soak.events)
    again = sum(channel.again for channel in soak.load.channels)
    disk = sum(kinds[name] for name in ("fail reads", "fail writes", "fill disk", "fail syncs", "fail opens"))
    careful = soak.careful
    slowest = f"{max(soak.restarts, default=0):.1f} s at most" if soak.restarts else "none"
    rows = [
        ("run", f"{seconds:.0f} s on {os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}"),
        ("messages acknowledged", f"{soak.load.acknowledged:,} in batches, "
         f"{sum(each.acknowledged for book in careful.books for each in book.messages.values()):,} one by one"),
        ("deliveries checked", f"{soak.checked:,} ({again:,} of them again)"),
        ("kill -9", f"{kinds['kill']} of nsqd, {kinds['kill lookupd']} of nsqlookupd, "
         f"{kinds['kill admin']} of nsqadmin; nsqd is back after {slowest}"),
        ("disk faults", f"{disk}, of which {kinds['fail reads']} on reads"),
        *((f"fault: {name}", f"{count}") for name, count in sorted(kinds.items())),
        *((f"calls that failed: {name}", f"{count:,}") for name, count in sorted(soak.failed_calls.items())),
        *((name, f"{count:,}") for name, count in sorted(careful.counts.items())),
        *((f"deliveries of `{book.topic}`", f"{book.deliveries:,}") for book in careful.books),
        ("power losses", losses),
        ("lost, invented, altered, doubled, early, out of order", "<br>".join(soak.broken[:20]) or "none"),
        ("broken by power losses", "<br>".join(power[:20]) or "none"),
    ]  # fmt: skip
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])
    head = f"# A soak\n\n{time.strftime('%Y-%m-%d')}, `make soak`"
    return f"{head}\n\n{table}\n\n![messages and faults over time](plot.svg)\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--time", type=seconds_of, default=600.0, help="length of the run under load, such as 10m")
    options.add_argument("--power-losses", type=int, default=600, metavar="N", help="simulated power losses (600)")
    options.add_argument("--durability", choices=["os", "fsync"], default="os")
    options.add_argument("--seed", type=int, default=0, help="the same faults in the same order (0: any)")
    options.add_argument("--only", default="", metavar="FAULTS", help="only these, such as kill,fail_reads")
    options.add_argument("--report", type=Path, default=Path("build/soak"), help="folder for the report and its plot")
    chosen = options.parse_args()
    gc.disable()  # millions of notes on messages are kept to the end, and would be looked through again and again
    chosen.report.mkdir(parents=True, exist_ok=True)
    seed = chosen.seed or time.time_ns() % 1_000_000
    with tempfile.TemporaryDirectory(prefix="lapwing-soak-", ignore_cleanup_errors=True) as folder:
        power = start_power_losses(chosen.power_losses, seed, Path(folder)) if chosen.power_losses else None
        soak = run(Path(folder), chosen.time, chosen.durability, chosen.only, random.Random(seed))
        said = power.communicate()[0].splitlines() if power is not None else ["none"]
    losses, problems = said[-1] if said else "none", said[:-1]
    if power is not None and power.returncode:
        problems = said
    text = report(soak, losses, problems, chosen.time)
    (chosen.report / "report.md").write_text(text)
    plot(soak, chosen.report / "plot.svg")
    if soak.state:
        (chosen.report / "state.txt").write_text("".join(soak.state))
    print(text)
    sys.exit(1 if soak.broken or problems else 0)


def run(folder: Path, seconds: float, durability: str, only: str, chance: random.Random) -> Soak:
    """Start the programs and their load, and bring faults."""
    data = folder / "data"
    data.mkdir()
    faults, breaks = Faults(folder, data), Breaks()
    flags = (
        f"--durability={durability}", "--max-bytes-per-file=16777216", "--msg-timeout=10s",
        "--redis-address=127.0.0.1:0",
    )  # fmt: skip
    with daemons.start_nsqlookupd() as lookupd:
        lookupd.kill()
        lookupd.restart()  # from here on at the same addresses
        with (
            daemons.start_nsqadmin(f"--lookupd-http-address={lookupd.http}") as admin,
            daemons.start_nsqd(data, *flags, lookupd_tcp_addresses=(lookupd.tcp,), env=faults.env) as nsqd,
        ):
            nsqd.kill()
            nsqd.restart()
            redis = int(nsqd.addresses["Redis"].rpartition(":")[2])
            careful = CarefulLoad(nsqd.tcp_port, nsqd.http_port, redis, breaks)
            breaks.watch(nsqd)
            load = Load(nsqd.tcp_port, channels=4, saved=lambda: breaks.kills[-1][1] if breaks.kills else breaks.began)
            soak = Soak(nsqd, lookupd, admin, faults, load, careful, breaks, chance)
            soak.run(seconds, only)
            soak.finish()
    return soak


if __name__ == "__main__":
    main()
