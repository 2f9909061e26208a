"""How long one client may be silent, or read nothing: heartbeats and deadlines, on the connection's one timer."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import Final, Protocol

from lapwing.nsqd.clock import Clock

_SECOND: Final = 1_000_000_000
_DEAF: Final = 60 * _SECOND  # for a client that may read nothing, where there are no heartbeats to go by


class Client(Protocol):
    """Whose patience it is."""

    @property
    def excused(self) -> bool:
        """Whether its silence is our fault: it waits for us."""

    def beat(self) -> None:
        """A heartbeat is due."""

    def silent(self) -> None:
        """It has said nothing for too long."""

    def deaf(self) -> None:
        """It has read nothing for too long."""


class Patience:
    """What one client is given time for; only one thing at a time."""

    __slots__ = ("_beat", "_client", "_clock", "_interval", "_silence", "_timer", "_unread", "begun", "heard")

    def __init__(self, clock: Clock, client: Client) -> None:
        self.heard = 0  # when the last whole command came, ns
        self.begun = False  # whether it is known how often heartbeats are sent
        self._clock = clock
        self._client = client
        self._silence = 0  # ns that a client may say nothing; 0: for ever
        self._interval = 0  # of heartbeats, ns
        self._beat = 0  # when the next one is due, ns
        self._unread = (0, 0)  # bytes that were under way when that was looked at last
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, delay: int, action: Callable[[], None]) -> None:
        """Do that after `delay` ns, and nothing else meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay / _SECOND, action)

    def stop(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def part(self) -> None:
        """Wait for nothing ever again: the client is gone."""
        self.stop()
        del self._client  # which has us: a cycle would stay for as long as nobody looks for garbage

    # --- a client that says nothing ----------------------------------------------------------------------------

    def allow(self, silence: int) -> None:
        """Let the client say nothing for `silence` ns from its last command on; with 0, for ever."""
        self._silence = silence
        if self.begun:
            self._wait(self._clock.now())

    def begin(self, interval: int, *, now: int) -> None:
        """Send heartbeats that often from now on; with 0, none."""
        self.begun = True
        self._interval = interval
        self._beat = now + interval
        self._wait(now)

    def resume(self) -> None:
        """Go on with the heartbeats: the client reads again."""
        self._wait(self._clock.now())

    def _wait(self, now: int) -> None:
        """Wake for the next heartbeat or the client's deadline, whichever comes first."""
        wakes = [self._beat] if self._interval else []
        if self._silence:
            wakes.append(self.heard + self._silence)
        if wakes:
            self.arm(max(min(wakes) - now, 1_000_000), self._tick)
        else:
            self.stop()

    def _tick(self) -> None:
        """A heartbeat is due, or the client has been silent for too long."""
        now = self._clock.now()
        if self._client.excused:
            self.heard = now
        if self._silence and now >= self.heard + self._silence:
            self._client.silent()
            return
        if self._interval and now >= self._beat:
            self._beat += self._interval
            if self._beat <= now:
                self._beat = now + self._interval
            self._client.beat()
        self._wait(now)

    # --- a client that reads nothing ---------------------------------------------------------------------------

    def watch(self, transport: asyncio.Transport) -> None:
        """See to it that the client reads, until `resume`: one that takes nothing in a whole interval is deaf."""
        self._unread = _underway(transport)
        self.arm(self._interval or _DEAF, lambda: self._look(transport))

    def _look(self, transport: asyncio.Transport) -> None:
        if _underway(transport) != self._unread:
            self.watch(transport)
        else:
            self._client.deaf()


def _underway(transport: asyncio.Transport) -> tuple[int, int]:
    """How many bytes have not reached the client yet: those that wait here, and those with the kernel."""
    handle = transport.get_extra_info("socket").fileno()
    try:
        unacknowledged = fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(4))
    except OSError:
        unacknowledged = b""  # not every system tells
    return transport.get_write_buffer_size(), int.from_bytes(unacknowledged, sys.byteorder)
