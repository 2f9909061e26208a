"""Run an nsqd for a while under load and faults, check every message, and write a report.

    python tests/faults/soak.py --time 10m --report build/soak

kill -9, a process that is stopped for seconds, reads, writes and syncs that fail, a clock that jumps: one after the
other, at random moments, with publishers and consumers that never stop. Then simulated power losses, each at a random
point of a random history. Exits with 1 if a rule was broken; the report says which.
"""

import argparse
import errno
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from disk import READS, SYNCS, WRITES, Faults
from load import Load

import daemons

TESTS = Path(__file__).parent.parent
LOSSES_PER_HISTORY = 3  # power losses in one history of tests/crash/test_power_lost.py
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(text: str) -> float:
    """Parse `90s`, `10m` or `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time such as 90s, 10m or 1h expected, not {text}")
    return float(found[1]) * UNITS[found[2] or "s"]


@dataclass
class Soak:
    """One broker, its load, and the faults that it has met."""

    nsqd: daemons.Daemon
    faults: Faults
    load: Load
    chance: random.Random
    began: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)  # seconds, and the kind of fault
    rates: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, acknowledged, delivered
    failed_calls: Counter[str] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        """Bring one fault after the other until the time is over."""
        kinds: list[Callable[[], None]] = [
            self.kill, self.kill, self.kill, self.fail_reads, self.fail_writes, self.fail_syncs, self.fail_reads,
            self.stand_still, self.turn_clock,
        ]  # fmt: skip
        while (now := time.monotonic() - self.began) < seconds:
            self.rates.append((now, self.load.acknowledged, sum(channel.total for channel in self.load.channels)))
            if sys.stderr.isatty():
                print(f"\r{now:6.0f} s  {self.rates[-1][1]:>12,} acknowledged  {len(self.events)} faults", end="",
                      file=sys.stderr, flush=True)
            kind = self.chance.choice(kinds)
            self.events.append((now, kind.__name__.replace("_", " ")))
            kind()
            time.sleep(self.chance.uniform(0.2, 1.5))

    def kill(self) -> None:
        self.nsqd.kill()
        self.nsqd.restart()

    def fail_reads(self) -> None:
        self._fail("reads", READS, errno.EIO)

    def fail_writes(self) -> None:
        self._fail("writes", WRITES, self.chance.choice([errno.ENOSPC, errno.EIO]))

    def fail_syncs(self) -> None:
        self._fail("syncs", SYNCS, errno.EIO)

    def _fail(self, name: str, calls: int, error: int) -> None:
        before = self.faults.failed
        with self.faults.failing(calls, error=error, every=self.chance.choice([1, 1, 5])):
            time.sleep(self.chance.uniform(0.05, 2.0))
        self.failed_calls[name] += self.faults.failed - before

    def stand_still(self) -> None:
        os.kill(self.nsqd.pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 3.0))
        os.kill(self.nsqd.pid, signal.SIGCONT)

    def turn_clock(self) -> None:
        self.faults.shift_clock(self.chance.choice([0, 3600, -3600, 86_400, -5]))


def lose_power(points: int) -> tuple[int, str]:
    """Run histories that end in power losses: how many losses there were, and what pytest says at the end."""
    histories = -(-points // LOSSES_PER_HISTORY)
    command = [sys.executable, "-m", "pytest", "-q", "-q", "--no-header", str(TESTS / "crash" / "test_power_lost.py")]
    done = subprocess.run(
        [*command, "--timeout=7200", "-r", "f", "-o", "addopts="], capture_output=True, text=True, check=False,
        env={**os.environ, "LAPWING_CRASH_ROUNDS": str(histories)},
    )  # fmt: skip
    return histories * LOSSES_PER_HISTORY, "" if done.returncode == 0 else done.stdout[-3000:]


def plot(soak: Soak, path: Path) -> None:
    """Draw the messages over time, with a mark for every fault."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    times = [each[0] for each in soak.rates]
    axes.plot(times, [each[1] / 1e6 for each in soak.rates], label="acknowledged")
    axes.plot(times, [each[2] / 1e6 for each in soak.rates], label="delivered, all channels")
    for kind, colour in (("kill", "tab:red"), ("fail reads", "tab:purple"), ("fail writes", "tab:brown")):
        axes.vlines([at for at, name in soak.events if name == kind], 0, 1, transform=axes.get_xaxis_transform(),
                    colors=colour, alpha=0.25, linewidth=1, label=kind)
    axes.set_xlabel("seconds")
    axes.set_ylabel("million messages")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=110)


def report(soak: Soak, complaint: str, points: int, power: str, seconds: float) -> str:
    """Describe the run in Markdown."""
    kinds = Counter(name for _, name in soak.events)
    delivered = sum(channel.total for channel in soak.load.channels)
    again = sum(channel.again for channel in soak.load.channels)
    rows = [
        ("run", f"{seconds:.0f} s on {os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}"),
        ("messages acknowledged", f"{soak.load.acknowledged:,}"),
        ("messages delivered and checked", f"{delivered:,} ({again:,} of them again)"),
        *((f"fault: {name}", f"{count}") for name, count in sorted(kinds.items())),
        *((f"calls that failed: {name}", f"{count:,}") for name, count in sorted(soak.failed_calls.items())),
        ("power losses", f"{points}"),
        ("lost, invented, altered, early, out of order", complaint or "none"),
        ("broken by power losses", power or "none"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), ""])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--time", type=seconds_of, default=600.0, help="length of the run under load, such as 10m")
    options.add_argument("--power-losses", type=int, default=500, metavar="N", help="simulated power losses (500)")
    options.add_argument("--durability", choices=["os", "fsync"], default="os")
    options.add_argument("--seed", type=int, default=0, help="the same faults in the same order (0: any)")
    options.add_argument("--report", type=Path, default=Path("build/soak"), help="folder for report.md and plot.png")
    chosen = options.parse_args()
    chosen.report.mkdir(parents=True, exist_ok=True)
    chance = random.Random(chosen.seed or None)
    with tempfile.TemporaryDirectory(prefix="lapwing-soak-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        faults = Faults(Path(folder), data)
        flags = (f"--durability={chosen.durability}", "--max-bytes-per-file=16777216", "--msg-timeout=10s")
        with daemons.start_nsqd(data, *flags, env=faults.env) as nsqd:
            nsqd.kill()
            nsqd.restart()  # from here on at the same addresses
            soak = Soak(nsqd, faults, Load(nsqd.tcp_port), chance)
            soak.run(chosen.time)
            faults.shift_clock(0)
            try:
                soak.load.finish(seconds=300)
                complaint = ""
            except AssertionError as error:
                complaint = str(error)
    points, power = lose_power(chosen.power_losses) if chosen.power_losses else (0, "")
    text = report(soak, complaint, points, power, chosen.time)
    (chosen.report / "report.md").write_text(text)
    plot(soak, chosen.report / "plot.png")
    print(text)
    sys.exit(1 if complaint or power else 0)


if __name__ == "__main__":
    main()
