"""Files that a running pipeline keeps for `list`, `status` and `stop`: a lock with its process, and its progress."""

import fcntl
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lapwing.errors import ConfigError

_LOCK: Final = "lock"
_STATUS: Final = "status.json"
_RUN: Final = "run.json"
_SILENT_SECONDS: Final = 60.0  # a pipeline writes its status every second
_UNKNOWN: Final = {"lag": None, "input_rate": 0, "processed_rate": 0}  # of a pipeline that does not report


@dataclass(frozen=True)
class PipelineHome:
    """The folder of one pipeline."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def enter(self) -> "PipelineLock":
        """Take the pipeline for this process; raises `ConfigError` when it is running already."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode() or "?"
            os.close(lock)
            raise ConfigError(
                f"the pipeline {self.name} is running already (process {holder.strip()}); "
                f"`lapwing pipeline stop {self.name}` stops it"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        return PipelineLock(self, lock)

    def running(self) -> int | None:
        """Return the process that runs it, or None."""
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.read(lock, 32).decode().strip()
            return int(said) if said.isdigit() else None
        finally:
            os.close(lock)
        return None

    def remember(self, run: dict[str, Any]) -> None:
        """Keep the arguments of a run, so that `resume` can repeat it."""
        self.path.mkdir(parents=True, exist_ok=True)
        _replace(self.path / _RUN, json.dumps(run))

    def remembered(self) -> dict[str, Any]:
        """Return the arguments of the last run; raises `ConfigError` when there was none."""
        try:
            found = json.loads((self.path / _RUN).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path}: no run to resume; start it with `lapwing pipeline run`") from error
        return dict(found)

    def status(self) -> dict[str, Any]:
        """Return what it last reported; `dead` when its process is gone, `silent` when it does not report.

        Nobody knows the lag of either.
        """
        try:
            found = json.loads((self.path / _STATUS).read_text())
        except (OSError, ValueError):
            found = {}
        status: dict[str, Any] = {"name": self.name, **(found if isinstance(found, dict) else {})}
        pid = self.running()
        status["pid"] = pid
        age = time.time() - float(status["updated_ms"]) / 1000 if status.get("updated_ms") else 0.0
        if pid is not None and age > _SILENT_SECONDS and status.get("state") in ("running", "stopping"):
            status |= {"state": "silent", **_UNKNOWN}
            status["error"] = f"process {pid} has not reported for {age:.0f} s; end it and start it again"
        if pid is None and status.get("state") in ("starting", "running", "stopping"):
            status |= {"state": "dead", **_UNKNOWN}
            status["error"] = status.get("error") or "the process has ended; `lapwing pipeline resume` continues it"
        return status

    def stop(self, *, wait: float) -> bool:
        """Ask the process to stop after its batch, and wait; whether it is gone."""
        pid = self.running()
        if pid is None:
            return True
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + wait
        while self.running() == pid:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


@dataclass
class PipelineLock:
    """The right of this process to run the pipeline."""

    home: PipelineHome
    lock: int

    def write_status(self, status: dict[str, Any]) -> None:
        """Write the status that other commands read."""
        _replace(self.home.path / _STATUS, json.dumps(status))

    def leave(self) -> None:
        """Let another process run the pipeline."""
        os.close(self.lock)


def homes(data: Path) -> list[PipelineHome]:
    """Return all pipelines that have run with this data directory."""
    if not data.is_dir():
        return []
    return [PipelineHome(path) for path in sorted(data.iterdir()) if (path / _LOCK).exists()]


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(0o600)  # the arguments of a run may have a password
    draft.write_text(text)
    draft.replace(path)
