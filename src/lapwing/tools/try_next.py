"""Suggestions for somebody who has just started the demo."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from lapwing.tools.demo import DEAD, ORDERS
from lapwing.tools.stack import PORTS, Plan

_QUERY: Final = f"select country, count(*) as orders, sum(total) as sum from {ORDERS} group by country"


def losing(plan: Plan, pid: int) -> list[str]:
    """Return lines to print: the commands that lose the machine of the first nsqd, which another one follows."""
    data, remote = _relative(plan.data / "nsqd"), f"file://{plan.remote_folder(0)}"
    return [
        "Lose the machine of nsqd, with its disk; the next process takes over what it had acknowledged:",
        f"  mv {data} {data}.lost",
        f"  kill -9 {pid}",
        f"  lapwing remote status {shlex.quote(remote)}   # the owner, and its epoch: one more than before",
    ]


def suggestions(plan: Plan, *, room: int = 0) -> list[str]:
    """Return lines to print: the page, and commands that show what lapwing can do.

    `room` is the width of the terminal, or 0; where a comment does not fit beside its command, all stand above.
    """
    lines = []
    if plan.admin:
        lines += [f"Open http://{plan.address('admin')}/ : topics, rates, messages, dead letters, alarms.", ""]
    lines.append("Try in another terminal:")
    prepare = preparation(plan)
    if prepare:
        lines.append(f"  {prepare}")
    port = "" if plan.ports["nsqd_redis"] == PORTS["nsqd_redis"] else f" -p {plan.ports['nsqd_redis']}"
    rows = [
        (f"lapwing tail {ORDERS}", "follow the orders; nothing is consumed"),
        (f"lapwing channels {ORDERS}", "billing and shipping are NSQ consumers, analytics is a Redis group"),
        (f"lapwing pending list {ORDERS}/billing", "orders that failed, and when they are tried again"),
        (f"lapwing dead show {DEAD}", "orders that failed five times, and why; the first come after 30 s"),
        (f"lapwing dead redrive {DEAD}", "send them back to billing; after a minute they are paid"),
        (f"redis-cli{port} XREVRANGE {ORDERS} + - COUNT 1", "the same topic for Redis clients"),
        (f"lapwing replay {ORDERS}/shipping --back 1m", "deliver the last minute again"),
        ("lapwing check --lag-warning 1000", "health in one line, with an exit code"),
    ]
    if "archive" in plan.pipelines:
        verify = f"lapwing pipeline verify {_relative(plan.data / 'archive')}"
        rows.append((verify, "the Parquet files: complete, and how many"))
        rows.append((f'lapwing sql{_archive(plan)} "{_QUERY}"', "SQL over the topic: its archive, and what came since"))
    width = max(len(command) for command, _ in rows if len(command) <= 60)
    longest = max(len(meaning) for command, meaning in rows if len(command) <= 60)
    above = bool(room) and width + longest + 6 > room
    for command, meaning in rows:
        if above or len(command) > width:
            lines += [f"  # {meaning}", f"  {command}"]
        else:
            lines.append(f"  {command:<{width}}  # {meaning}")
    lines.append("Then kill -9 a program: it is started again, and nothing is lost.")
    return lines


def preparation(plan: Plan) -> str:
    """Return what makes the shell find lapwing and its commands find the daemons, or an empty text."""
    parts = []
    if shutil.which("lapwing") is None:
        parts.append(f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
    http, tcp = plan.nsqd_addresses("http"), plan.nsqd_addresses("tcp")
    if http != ["127.0.0.1:4151"] or tcp != ["127.0.0.1:4150"]:
        parts += [f"LAPWING_NSQD_HTTP='{' '.join(http)}'", f"LAPWING_NSQD_TCP='{' '.join(tcp)}'"]
    return f"export {' '.join(parts)}" if parts else ""


def _archive(plan: Plan) -> str:
    place = _relative(plan.data / "archive")
    return "" if place == "lapwing-data/archive" else f" --archive {place}"


def _relative(path: Path) -> str:
    """Return the path as one would write it here."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
