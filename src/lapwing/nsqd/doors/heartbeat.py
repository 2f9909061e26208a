"""Heartbeats, and how long a client may send or read nothing, on the connection's one timer."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing.nsqd.clock import LATE, Clock

if TYPE_CHECKING:
    from lapwing.nsqd.doors.connection import Connection

_READ_FIRST: Final = 0.001  # seconds: long enough for the loop to look at its sockets once
_SECOND: Final = 1_000_000_000
_STUCK: Final = 60 * _SECOND  # for a client that reads nothing, where no heartbeats are sent


class ClientTimer:
    """The one timer of a connection: it waits for one thing at a time."""

    __slots__ = (
        "_client", "_clock", "_interval", "_next_heartbeat", "_silence", "_timer", "_unread", "last_command", "started",
    )  # fmt: skip

    def __init__(self, clock: Clock, client: Connection) -> None:
        self.last_command = 0  # time of the last whole command, ns
        self.started = False  # whether the interval of heartbeats is known
        self._clock = clock
        self._client = client
        self._silence = 0  # ns for which a client may send nothing; 0: for ever
        self._interval = 0  # of heartbeats, ns; 0: none are sent
        self._next_heartbeat = 0  # ns
        self._unread = (0, 0)  # bytes on their way at the last look
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, delay: int, action: Callable[[], None]) -> None:
        """Call `action` after `delay` ns, and do nothing else meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + delay / _SECOND
        self._timer = loop.call_at(due, self._ring, due, action)

    def _ring(self, due: float, action: Callable[[], None]) -> None:
        """Call `action`; if the loop was held up, only after sockets were read: the client may have sent meanwhile."""
        loop = asyncio.get_running_loop()
        if (loop.time() - due) * _SECOND > LATE:
            self._timer = loop.call_later(_READ_FIRST, action)
        else:
            action()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Stop for good: the client is gone."""
        self.stop()
        del self._client  # break the reference cycle with the connection

    # --- a client that sends nothing ---------------------------------------------------------------------------

    def allow_silence(self, silence: int) -> None:
        """Let the client send nothing for `silence` ns from its last command on; with 0, for ever."""
        self._silence = silence
        if self.started:
            self._wait(self._clock.now())

    def start(self, interval: int, *, now: int) -> None:
        """Send heartbeats every `interval` ns from now on; with 0, none."""
        self.started = True
        self._interval = interval
        self._next_heartbeat = now + interval
        self._wait(now)

    def resume(self) -> None:
        """Continue with the heartbeats: the client reads again."""
        self._wait(self._clock.now())

    def _wait(self, now: int) -> None:
        """Wake for the next heartbeat or the client's deadline, whichever comes first."""
        wakes = [self._next_heartbeat] if self._interval else []
        if self._silence:
            wakes.append(self.last_command + self._silence)
        if wakes:
            self.arm(max(min(wakes) - now, 1_000_000), self._tick)
        else:
            self.stop()

    def _tick(self) -> None:
        """Send a heartbeat if one is due, or give up a client that has sent nothing for too long."""
        now = self._clock.now()
        if self._client.waits_for_broker:
            self.last_command = now
        if self._silence and now >= self.last_command + self._silence:
            self._client.protocol.on_silence()
            return
        if self._interval and now >= self._next_heartbeat:
            self._next_heartbeat += self._interval
            if self._next_heartbeat <= now:
                self._next_heartbeat = now + self._interval
            self._client.protocol.send_heartbeat()
        self._wait(now)

    # --- a client that reads nothing ---------------------------------------------------------------------------

    def watch_reading(self, transport: asyncio.Transport) -> None:
        """Give the client up if it reads nothing in a whole interval, until `resume`."""
        self._unread = _on_their_way(transport)
        self.arm(self._interval or _STUCK, lambda: self._look(transport))

    def _look(self, transport: asyncio.Transport) -> None:
        if _on_their_way(transport) != self._unread:
            self.watch_reading(transport)
        else:
            self._client.on_stuck()


def _on_their_way(transport: asyncio.Transport) -> tuple[int, int]:
    """Return how many bytes have not reached the client: those that wait here, and those in the system's buffer."""
    handle = transport.get_extra_info("socket").fileno()
    try:
        unacknowledged = fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(4))
    except OSError:
        unacknowledged = b""  # not every system knows
    return transport.get_write_buffer_size(), int.from_bytes(unacknowledged, sys.byteorder)
