"""A process that has imported a daemon and forks it for every test that starts one.

A daemon that is forked takes a fifth of the processor time of one that is started, as nothing is imported again. It
is a process of its own all the same, with its own number, memory and files, and ends as any other.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

# program: the modules that it loads until it listens; the first one has its `main`
IMPORTED = {
    "nsqd": ("lapwing.cli.nsqd", "lapwing.net.event_loop", "lapwing.nsqd.daemon"),
    "nsqlookupd": ("lapwing.cli.nsqlookupd", "lapwing.net.event_loop", "lapwing.lookup.daemon"),
    "nsqadmin": ("lapwing.cli.nsqadmin", "lapwing.admin.daemon", "uvicorn", "lapwing.admin.pages.site"),
}
AVAILABLE = hasattr(os, "pidfd_open")  # Linux alone can wait for the child of somebody else
_READ_AT_IMPORT = ("LAPWING_PURE", "PYTHON", "LD_", "MALLOC_")  # variables that have an effect before `main`
_REQUEST = 1 << 17


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_IMPORT)}


class Forked:
    """A forked daemon, used as one uses `subprocess.Popen`."""

    def __init__(self, parent: "Parent", pid: int, stderr: int) -> None:
        self._parent = parent
        self.pid = pid
        self.returncode: int | None = None
        self.stderr = os.fdopen(stderr, errors="replace")

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)  # the number is still its own, as nobody has asked for its status
            try:
                waiting = select.poll()
                waiting.register(ended, select.POLLIN)
                if not waiting.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            finally:
                os.close(ended)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Parent:
    """The process that forks, as the tests see it. It ends all its daemons when the tests end, however they do."""

    def __init__(self, program: str) -> None:
        self._settings = _settings()
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, "-u", __file__, program, str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)

    def fits(self) -> bool:
        """Whether a daemon that is started now would see the settings that this process was started with."""
        return self._settings == _settings()

    def start(self, arguments: list[str]) -> Forked:
        """Fork a daemon whose stdout is lost and whose stderr can be read."""
        reading, writing = os.pipe()
        try:
            request = {"argv": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
            pid = self._ask(request, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert pid is not None
        return Forked(self, pid, reading)

    def status(self, pid: int) -> int | None:
        """Return the exit status as `subprocess` has it, or None while it runs."""
        return self._ask({"ended": pid})

    def close(self) -> None:
        """End the process, and with it all daemons that still run."""
        self._channel.close()
        self._process.wait(30)

    def _ask(self, request: dict[str, object], *descriptors: int) -> int | None:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(_REQUEST)
        if not answer:
            raise RuntimeError("the process that forks daemons has ended")
        found: int | None = json.loads(answer)
        return found


@functools.cache
def parent(program: str) -> Parent:
    """Return the process that forks this program; the first call starts it."""
    started = Parent(program)
    atexit.register(started.close)
    return started


def _serve(channel: socket.socket) -> bool:
    """Answer requests until the tests have ended; return whether this is a forked process."""
    running: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _REQUEST, 1)
        if not data:
            break
        request = json.loads(data)
        if (asked := request.get("ended")) is not None:
            pid, status = os.waitpid(asked, os.WNOHANG)
            running.discard(pid)
            channel.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            continue
        pid = os.fork()
        if not pid:
            channel.close()
            _become(request, descriptors[0])
            return True
        os.close(descriptors[0])
        running.add(pid)
        channel.send(json.dumps(pid).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return False


def _become(request: dict[str, object], stderr: int) -> None:
    """Give the forked process all that a started one would have been given."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (nothing, 1), (stderr, 2)):
        os.dup2(source, target)
    os.closerange(3, 64)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["directory"]))
    sys.argv[:] = request["argv"]  # type: ignore[assignment]


def main() -> None:
    """Import the daemon, then fork; a forked process leaves through here as its program would."""
    program, channel = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then hang up
    sys.path.remove(str(Path(__file__).parent))
    first, *_ = [import_module(module) for module in IMPORTED[program]]
    gc.freeze()
    if _serve(socket.socket(fileno=int(channel))):
        sys.exit(first.main())


if __name__ == "__main__":
    main()
