"""A program on a terminal of its own."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Starts a program as a terminal's foreground process; what it writes, and keys for it."""

    def __init__(self, command, *, cwd, env, columns=160):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            command, cwd=cwd, env={**env, "TERM": "xterm"}, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.raw = ""

    @property
    def text(self) -> str:
        """All that was written, without colours and movements of the cursor."""
        return CONTROL.sub("", self.raw)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, pattern: str, seconds: float) -> re.Match[str]:
        """Wait for words."""
        over = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < over, f"no {pattern!r} in {self.text[-2000:]!r}"
            assert self._read(0.5), f"ended without {pattern!r}: {self.text[-2000:]!r}"
        return found

    def end(self, seconds: float) -> int:
        """Wait for the end; the exit status."""
        over = time.monotonic() + seconds
        while self._read(0.5):
            assert time.monotonic() < over, f"still running: {self.text[-2000:]!r}"
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        """Take what there is; False at the end."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the last process that had the terminal open is gone
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
