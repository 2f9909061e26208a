"""Clients of other people, each in a process of its own: told what to do, asked what they saw."""

import json
import os
import selectors
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
SECONDS = 60.0


@dataclass(slots=True)
class Job:
    """Publish everything below to the topic, then consume and finish all of it."""

    host: str
    port: int
    topic: str
    lookupd: str = ""  # discover through this nsqlookupd's HTTP address rather than connect
    tls: bool = False
    ca: str = ""  # certificates to trust
    compression: str = ""  # snappy or deflate
    secret: str = ""
    singles: list[str] = field(default_factory=lambda: ["one", "zwei", "三"])  # a PUB each
    batch: list[str] = field(default_factory=lambda: [f"batch {number}" for number in range(10)])  # an MPUB
    big: int = 100_000  # bytes of "BIG", a PUB
    delay: int = 400  # ms that "later" is deferred for, by DPUB
    requeue: int = 100  # ms that "again" is requeued for, the first time it comes
    touches: int = 0  # how often "slow" is touched before it is finished
    touch_every: int = 400  # ms
    heartbeat: int = 30  # seconds; it is cut off if it answers none for twice as long
    msg_timeout: int = 60  # seconds, where a client sets it
    published: bool = False  # everything is in the topic already
    modules: str = ""  # where nsqjs is installed


class Party:
    """One client at work. `report` is what it saw; it stays connected until the end of the `with` block."""

    def __init__(self, command: list[str], job: Job) -> None:
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self.report: dict[str, Any] = {}

    def kill(self) -> None:
        """End it, if it has not ended by itself."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Party":
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(SECONDS) else b""
        if not line:
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace")
            raise AssertionError(f"{self._process.args[1]} reported nothing within {SECONDS} s:\n{said[-4000:]}")
        self.report = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _, said = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        if kind is None and "error" not in self.report:
            assert self._process.returncode == 0, said.decode(errors="replace")[-4000:]


def command(client: str) -> list[str]:
    """How to run a client's script."""
    if client == "nsqjs":
        return ["node", str(HERE / "nsqjs" / "client.js")]
    return [sys.executable, str(HERE / "scripts" / f"{client}_client.py")]
