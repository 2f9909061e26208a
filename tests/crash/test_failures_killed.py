"""nsqd killed again and again amid dead-lettering and redriving: no message is lost, and none is there twice."""

import os
import random
import struct
import threading
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from talking import LOST, Talk

import daemons
from asking import ask

KILLS = int(os.environ.get("LAPWING_KILLS", "3"))
DEAD = "t.c.dead"
SETTINGS = {"max_attempts": 2, "retry_first": "5ms", "retry_max": "50ms"}
SICK = 0.6  # share of deliveries that fail


class Load:
    """A producer, consumers that fail often, and an operator who redrives all the time; they wait while it is shut."""

    def __init__(self, daemon: daemons.Daemon) -> None:
        self._daemon = daemon
        self.open = threading.Event()
        self._over = threading.Event()
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()  # a FIN was sent
        self.failed = 0
        self.redrives = 0
        work: list[Callable[[], None]] = [self._publish, self._consume, self._consume, self._redrive]
        self._threads = [threading.Thread(target=self._insist, args=(each,), daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def _insist(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            if not self.open.wait(0.05):
                continue
            try:
                work()
            except (*LOST, urllib.error.URLError):
                time.sleep(0.01)  # it was killed

    def _publish(self) -> None:
        talk = Talk(self._daemon.tcp_port)
        try:
            while self.open.is_set():
                bodies = [b"%016x" % random.getrandbits(64) for _ in range(5)]
                content = struct.pack(">I", len(bodies)) + b"".join(struct.pack(">I", len(b)) + b for b in bodies)
                talk.send(b"MPUB t\n" + struct.pack(">I", len(content)) + content)
                assert talk.frame() == (0, b"OK")
                self.acknowledged.update(bodies)
        finally:
            talk.close()

    def _consume(self) -> None:
        talk = Talk(self._daemon.tcp_port)
        try:
            talk.send(b"SUB t c\n")
            talk.frame()
            talk.send(b"RDY 20\n")
            while self.open.is_set():
                kind, payload = talk.frame()
                if kind != 2:
                    talk.send(b"NOP\n")
                elif random.random() < SICK:
                    talk.send(b"REQ %b 0\n" % payload[10:26])
                    self.failed += 1
                else:
                    talk.send(b"FIN %b\n" % payload[10:26])
                    self.finished.add(payload[26:])
        finally:
            talk.close()

    def _redrive(self) -> None:
        while self.open.is_set():
            status, _ = ask(self._daemon, "POST", f"/dead/redrive?topic={DEAD}", {})
            self.redrives += status == 200
            time.sleep(0.02)  # letters gather meanwhile

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


def pages(daemon: daemons.Daemon, path: str, name: str) -> list[dict[str, Any]]:
    """Return every entry of a listing."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        status, answer = ask(daemon, "GET", f"{path}&limit=10000{after}")
        assert status == 200, answer
        found += answer[name]
        if answer["next"] is None:
            return found
        after = f"&after={answer['next']}"


def letters(daemon: daemons.Daemon) -> list[str]:
    """Return the ids of the messages that are dead letters."""
    if not any(each["topic"] == DEAD for each in ask(daemon, "GET", "/dead")[1]["topics"]):
        return []
    return [each["id"] for each in pages(daemon, f"/dead/letters?topic={DEAD}&body=false", "letters")]


def check(daemon: daemons.Daemon) -> None:
    """Check that no message is twice in the channel and the dead-letter topic."""
    pending = [each["id"] for each in pages(daemon, "/channel/pending?topic=t&channel=c", "entries")]
    dead = letters(daemon)  # after the others: a redrive may be under way, and moves letters into the channel
    assert len(pending) == len(set(pending))
    assert len(dead) == len(set(dead))
    assert not set(pending) & set(dead)


def drained(daemon: daemons.Daemon) -> list[tuple[bytes, bytes]]:
    """Finish everything that the channel has; return the id and the body of each delivery."""
    found: list[tuple[bytes, bytes]] = []

    def channel() -> dict[str, int]:
        found: dict[str, int] = ask(daemon, "GET", "/stats?format=json&topic=t")[1]["topics"][0]["channels"][0]
        return found

    def left() -> int:
        found = channel()
        return found["depth"] + found["deferred_count"] + found["in_flight_count"]

    daemons.until(lambda: not channel()["in_flight_count"], what="the end of moves to the dead-letter topic")
    wanted = left()
    talk = Talk(daemon.tcp_port)
    talk.send(b"SUB t c\n")
    talk.frame()
    talk.send(b"RDY 2500\n")
    while len(found) < wanted:
        kind, payload = talk.frame()
        if kind == 2:
            found.append((payload[10:26], payload[26:]))
            talk.send(b"FIN %b\n" % payload[10:26])
        else:
            talk.send(b"NOP\n")
    daemons.until(lambda: not left(), what="an empty channel")
    talk.close()
    return found


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_message_is_finished_pending_or_a_dead_letter(tmp_path: Path, durability: str) -> None:
    flags = (f"--durability={durability}", "--max-bytes-per-file=65536", "--msg-timeout=30s")
    with daemons.start_nsqd(tmp_path, *flags) as nsqd:
        nsqd.kill()
        nsqd.restart()
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert ask(nsqd, "POST", target)[0] == 200
        assert ask(nsqd, "PATCH", "/channel/settings?topic=t&channel=c", SETTINGS)[0] == 200
        load = Load(nsqd)
        for _ in range(KILLS if durability == "os" else max(KILLS // 5, 1)):
            load.open.set()
            before = load.failed, load.redrives
            daemons.until(lambda before=before: load.failed > before[0] + 50 and load.redrives > before[1], seconds=60,
                          what="failures and a redrive")  # fmt: skip
            time.sleep(random.uniform(0, 0.1))  # it may die at any moment
            nsqd.kill()
            load.open.clear()
            nsqd.restart()
            check(nsqd)
        load.open.set()
        time.sleep(0.1)  # it may end at any moment
        load.open.clear()
        load.end()
        ask(nsqd, "POST", f"/dead/cancel?topic={DEAD}")
        assert ask(nsqd, "PATCH", "/channel/settings?topic=t&channel=c", {"max_attempts": 0})[0] == 200
        rest = drained(nsqd)
        dead = letters(nsqd)
        assert ask(nsqd, "POST", f"/dead/redrive?topic={DEAD}", {})[0] == 200
        daemons.until(lambda: ask(nsqd, "GET", f"/dead/redrive?topic={DEAD}")[1]["state"] == "done", seconds=60)
        redriven = drained(nsqd)
        damage = [line for line in nsqd.lines if "ERROR" in line or "corrupt" in line]

    assert not damage
    assert len(rest) == len({each for each, _ in rest})
    assert not {each.decode() for each, _ in rest} & set(dead)
    assert sorted(each.decode() for each, _ in redriven) == sorted(dead)  # each once
    left = {body for _, body in (*rest, *redriven)}
    lost = load.acknowledged - load.finished - left
    assert not lost, f"{len(lost)} of {len(load.acknowledged)} are lost"
    assert load.failed > KILLS
