"""Programs as child processes: started, watched, restarted when they die, and stopped in order."""

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
STEADY: Final = 60.0  # s of life after which a death is a new story
LAST_WORDS: Final = 12  # lines of its log shown when one dies
LARGEST_LOG: Final = 16 << 20  # bytes; a bigger one is put aside when the program starts
_LOOK: Final = 0.1  # s between looks at a program that is starting
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


class StartFailed(LapwingError):
    """A program without which the rest makes no sense did not start."""


class State(enum.Enum):
    """How a program is."""

    STARTING = "starting"
    RUNNING = "running"
    DEAD = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Service:
    """A program to run."""

    name: str
    command: tuple[str, ...]
    address: str = ""  # where people find it
    ping: str = ""  # host:port whose /ping says that it is up; empty: being alive is enough
    patience: float = 5.0  # s to end in, before it is killed
    once: bool = False  # ending by itself is not dying


class Child:
    """One program's process, and the ones after it."""

    def __init__(self, service: Service, log: Path, say: Callable[[str], None], http: DaemonHttp) -> None:
        self.service = service
        self.log = log
        self.state = State.STARTING
        self.pid: int | None = None
        self.restarts = 0
        self.since = time.monotonic()
        self._say = say
        self._http = http
        self._wanted = True
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._over = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run it, and to run it again whenever it dies."""
        self._life = asyncio.create_task(self._live(), name=f"lapwing-up-{self.service.name}")

    async def ready(self, seconds: float) -> bool:
        """Whether it is up, or comes up within `seconds`; a program that dies meanwhile is not waited for."""
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
                if code == 0 and self.service.once:
                    self._say(f"{self.service.name} has finished")
                    break
                lived = time.monotonic() - self.since
                pause = 1.0 if lived > STEADY else min(pause * 2, LONGEST_PAUSE) if self.restarts else 1.0
                self.state = State.DEAD
                self.restarts += 1
                self._report(code, pause)
                await asyncio.sleep(pause)
        finally:
            self.state = State.STOPPED
            self._over.set()

    async def _once(self) -> int:
        """One life; its exit code."""
        self.state, self.since = State.STARTING, time.monotonic()
        self._up.clear()
        with _opened(self.log) as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.service.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
                    preexec_fn=_die_with_parent,
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
        self._say(f"{self.service.name} {how}; starting it again in {pause:.0f} s. Its last lines ({self.log}):")
        for line in last_lines(self.log, LAST_WORDS):
            self._say(f"    {line}")

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not within its patience; nothing of it is left after that."""
        self._wanted = False
        process = self._process
        if self._life is None or self._over.is_set():
            return
        if process is None or process.returncode is not None:
            self._life.cancel()
        else:
            self.state = State.STOPPING
            _signal(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(self._over.wait(), self.service.patience)
            except TimeoutError:
                self._say(f"{self.service.name} did not stop within {self.service.patience:.0f} s: killing it")
            _signal_group(process.pid, signal.SIGKILL)
        with contextlib.suppress(asyncio.CancelledError):
            await self._life

    def kill(self) -> None:
        """End it now, with all that it started; it is not run again."""
        self._wanted = False
        if self._process is not None and self._process.returncode is None:
            _signal_group(self._process.pid, signal.SIGKILL)


class Supervisor:
    """A whole stack of programs: groups in the order in which they need each other."""

    def __init__(self, groups: Sequence[Sequence[Service]], logs: Path, say: Callable[[str], None],
                 http: DaemonHttp) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._say = say
        self._groups = [[Child(service, logs / f"{service.name}.log", say, http) for service in group]
                        for group in groups]

    @property
    def children(self) -> list[Child]:
        """Every program, in order."""
        return [child for group in self._groups for child in group]

    async def start(self, needed: int, seconds: float) -> None:
        """Start group after group; those of the first `needed` groups must come up before the next is started.

        Raises `StartFailed` with the program's last words.
        """
        for number, group in enumerate(self._groups):
            for child in group:
                child.start()
            if number >= needed:
                continue
            up = await asyncio.gather(*(child.ready(seconds) for child in group))
            for child, is_up in zip(group, up, strict=True):
                if not is_up:
                    words = "\n".join(f"    {line}" for line in last_lines(child.log, LAST_WORDS))
                    raise StartFailed(f"{child.service.name} did not start; its last lines ({child.log}):\n{words}")

    def kill(self) -> None:
        """End all at once: whoever asks twice does not want to wait."""
        for child in self.children:
            child.kill()

    async def stop(self) -> None:
        """Stop all, those that need others first."""
        for group in reversed(self._groups):
            await asyncio.gather(*(child.stop() for child in group))


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


def _opened(log: Path) -> BinaryIO:
    """The log file to go on with; one that has grown too large is put aside."""
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_suffix(".log.old"))
    return open(log, "ab")


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(pid: int, number: signal.Signals) -> None:
    """To what a program started itself, too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


_LIBC: Final = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Even a `lapwing up` that is killed leaves nothing running behind."""
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGTERM)
