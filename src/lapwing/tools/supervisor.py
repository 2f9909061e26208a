"""Run programs as child processes: start, watch, restart and stop them in order."""

import asyncio
import contextlib
import ctypes
import enum
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.errors import LapwingError

LONGEST_PAUSE: Final = 30.0  # s between two starts of a program that keeps dying
STEADY: Final = 60.0  # s of running after which the pause is short again
LOG_LINES: Final = 12  # lines of its log shown when a program dies
LARGEST_LOG: Final = 16 << 20  # bytes; a larger one is renamed when the program starts
_LOOK: Final = 0.1  # s between looks at a program that is starting
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


class StartFailed(LapwingError):
    """A program that others need did not start."""


class State(enum.Enum):
    """The state of a program."""

    STARTING = "starting"
    RUNNING = "running"
    DEAD = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Service:
    """A program to run."""

    name: str
    command: tuple[str, ...]
    address: str = ""  # its address, for people
    ping: str = ""  # host:port whose /ping answers when it is up; empty: running is enough
    patience: float = 5.0  # s to end, before it is killed
    once: bool = False  # it ends by itself, and is not started again; the last line of its log is its progress


class Child:
    """One program and its current process."""

    def __init__(self, service: Service, log: Path, notify: Callable[[str], None], http: DaemonHttp) -> None:
        self.service = service
        self.log = log
        self.state = State.STARTING
        self.pid: int | None = None
        self.restarts = 0
        self.since = time.monotonic()
        self._notify = notify
        self._http = http
        self._wanted = True
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._over = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the program, and again whenever it dies."""
        self._life = asyncio.create_task(self._live(), name=f"lapwing-up-{self.service.name}")

    @property
    def address(self) -> str:
        """Its address, or its progress where it is run once."""
        return (last_lines(self.log, 1) or [""])[0] if self.service.once else self.service.address

    async def done(self) -> bool:
        """Wait until a program that is run once has ended; return whether it succeeded."""
        await self._over.wait()
        return self.state is State.DONE

    async def ready(self, seconds: float) -> bool:
        """Wait up to `seconds` for the program; return whether it is up. One that dies is not waited for."""
        deadline = time.monotonic() + seconds
        while not self._up.is_set():
            if time.monotonic() > deadline or self.state is State.DEAD or self._over.is_set():
                return False
            await asyncio.sleep(_LOOK / 2)
        return True

    async def _live(self) -> None:
        pause = 1.0
        try:
            while self._wanted:
                code = await self._once()
                if not self._wanted:
                    break
                if self.service.once:
                    self.state = State.FAILED if code else State.DONE
                    return
                lived = time.monotonic() - self.since
                pause = 1.0 if lived > STEADY else min(pause * 2, LONGEST_PAUSE) if self.restarts else 1.0
                self.state = State.DEAD
                self.restarts += 1
                self._report(code, pause)
                await asyncio.sleep(pause)
        finally:
            if self.state not in (State.DONE, State.FAILED):
                self.state = State.STOPPED
            self._over.set()

    async def _once(self) -> int:
        """Run the process once and return its exit code."""
        self.state, self.since = State.STARTING, time.monotonic()
        self._up.clear()
        with _opened(self.log) as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.service.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,  # Ctrl-C reaches only the supervisor, which stops all in order
                    preexec_fn=_die_with_parent if _prctl is not None else None,
                )
            except OSError as error:
                log.write(f"cannot be started: {error}\n".encode())
                return 127
        self.pid = self._process.pid
        watching = asyncio.create_task(self._watch())
        try:
            return await self._process.wait()
        finally:
            watching.cancel()
            self.pid = None

    async def _watch(self) -> None:
        while True:
            if await self._answers():
                break
            await asyncio.sleep(_LOOK)
        if self.state is State.STARTING:
            self.state = State.RUNNING
        self._up.set()

    async def _answers(self) -> bool:
        if not self.service.ping:
            return True
        try:
            await self._http.text(self.service.ping, "/ping")
        except CallFailed:
            return False
        return True

    def _report(self, code: int, pause: float) -> None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._notify(f"{self.service.name} {how}; starting it again in {pause:.0f} s. Its last lines ({self.log}):")
        for line in last_lines(self.log, LOG_LINES):
            self._notify(f"    {line}")

    async def stop(self) -> None:
        """Ask the program to end, and kill it after `patience` seconds, with all that it has started."""
        self._wanted = False
        process = self._process
        if self._life is None or self._over.is_set():
            return
        if process is None or process.returncode is not None:
            self._life.cancel()
        else:
            self.state = State.STOPPING
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(self.service.patience):
                    await self._over.wait()
            except TimeoutError:
                self._notify(f"{self.service.name} did not stop within {self.service.patience:.0f} s: killing it")
            _kill_group(process.pid)
        with contextlib.suppress(asyncio.CancelledError):
            await self._life

    def kill(self) -> None:
        """Kill the program with all that it has started, for good."""
        self._wanted = False
        if self._process is not None and self._process.returncode is None:
            _kill_group(self._process.pid)


class Supervisor:
    """Several programs, in groups that need the groups before them."""

    def __init__(self, groups: Sequence[Sequence[Service]], logs: Path, notify: Callable[[str], None],
                 http: DaemonHttp) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        def make(service: Service) -> Child:
            return Child(service, logs / f"{service.name}.log", notify, http)

        self._make = make
        self._groups = [[make(service) for service in group] for group in groups]

    @property
    def children(self) -> list[Child]:
        """Every program, in order."""
        return [child for group in self._groups for child in group]

    async def start(self, needed: int, seconds: float) -> None:
        """Start group after group; each of the first `needed` groups must be up before the next is started.

        Raises `StartFailed` with the end of the program's log.
        """
        for number, group in enumerate(self._groups):
            for child in group:
                child.start()
            if number >= needed:
                continue
            up = await asyncio.gather(*(child.ready(seconds) for child in group))
            for child, is_up in zip(group, up, strict=True):
                if not is_up:
                    words = "\n".join(f"    {line}" for line in last_lines(child.log, LOG_LINES))
                    raise StartFailed(f"{child.service.name} did not start; its last lines ({child.log}):\n{words}")

    def add(self, service: Service) -> Child:
        """Start one more program."""
        child = self._make(service)
        self._groups.append([child])
        child.start()
        return child

    def kill(self) -> None:
        """Kill all programs at once."""
        for child in self.children:
            child.kill()

    async def stop(self) -> None:
        """Stop all programs, the last groups first."""
        for group in reversed(self._groups):
            await asyncio.gather(*(child.stop() for child in group))


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


def _opened(log: Path) -> BinaryIO:
    """Open the log file; one that is too large is renamed first."""
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_suffix(".log.old"))
    return open(log, "ab")


def _kill_group(pid: int) -> None:
    """Kill a program and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


_prctl: Final = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it, macOS does not


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent, even one that is killed."""
    if _prctl is not None:
        _prctl(_DIE_WITH_PARENT, signal.SIGTERM)
