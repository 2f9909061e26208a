"""Kills of a broker, and what it had saved before each of them."""

import threading
import time
import urllib.request
from http.client import HTTPException

import daemons


class Breaks:
    """When the broker was killed, which excuses something for a moment, and when its clock was set, which does not."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.saved = self.began  # the journal has what clients did before
        self.kills: list[tuple[float, float]] = []  # when, and what was saved then
        self.clocks: list[float] = []

    def kill(self, nsqd: daemons.Daemon) -> None:
        """Kill nsqd, and note what it had saved."""
        self.kills.append((time.monotonic(), self.saved))
        nsqd.kill()
        self.kills.append((time.monotonic(), self.kills[-1][1]))

    def watch(self, nsqd: daemons.Daemon) -> None:
        """Follow what nsqd has saved, from now on: a busy machine may give it no time for a checkpoint."""
        threading.Thread(target=self._watch, args=(nsqd,), daemon=True).start()

    def _watch(self, nsqd: daemons.Daemon) -> None:
        while True:
            began, kills = time.monotonic(), len(self.kills)
            try:
                for _ in range(3):  # a checkpoint lies between two answers that are 0.4 s apart
                    with urllib.request.urlopen(f"{nsqd.url}/ping", timeout=30):
                        time.sleep(0.4)
            except (OSError, KeyError, HTTPException):  # it starts, its disk fails, or another has its port
                time.sleep(0.1)
                continue
            if kills == len(self.kills):
                self.saved = began - 0.1

    def forgotten(self, moment: float, connected: float) -> bool:
        """Return whether what a client did at `moment`, on a connection since `connected`, may not have been saved.

        The kill that ended the connection forgets what was not in the journal, and never got what was sent later.
        """
        saved = next((saved for kill, saved in self.kills if kill > connected), None)
        return saved is not None and moment > saved

    def around(self, sent: float, came: float) -> str:
        """Describe when a message was sent and came, and which breaks lie near, in seconds of the run."""
        kills = [moment for moment, _ in self.kills]
        times = {"sent": [sent], "clock set": self.clocks, "killed": kills, "came": [came]}
        near = {what: [moment for moment in some if sent - 5 < moment <= came] for what, some in times.items()}
        return ", ".join(f"{what} {[round(each - self.began, 2) for each in some]}" for what, some in near.items())
