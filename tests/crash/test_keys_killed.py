"""nsqd killed again and again while it delivers by key: no two messages of a key at a time, and effects in order."""

import json
import os
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from talking import LOST, Talk

import daemons
from asking import ask

KILLS = int(os.environ.get("LAPWING_KILLS", "3"))
KEYS = 20
SETTINGS = {"order": "key", "key_from": "json:/key"}
SICK = 0.3  # share of deliveries that fail


class Load:
    """A producer and consumers that fail often; they wait while nsqd is shut, and hold nothing then."""

    def __init__(self, daemon: daemons.Daemon) -> None:
        self._daemon = daemon
        self.open = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.life = 0  # of nsqd
        self.out: dict[int, int] = {}  # by key: the message that a consumer has
        self.acknowledged: dict[int, list[int]] = {key: [] for key in range(KEYS)}
        self.effects: dict[int, dict[int, None]] = {key: {} for key in range(KEYS)}  # finished, in order
        self.violations: list[str] = []
        self.failed = 0
        work: list[Callable[[], None]] = [self._publish, self._consume, self._consume, self._consume]
        self._threads = [threading.Thread(target=self._insist, args=(each,), daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def _insist(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            if not self.open.wait(0.05):
                continue
            try:
                work()
            except LOST:
                time.sleep(0.01)  # it was killed

    def _publish(self) -> None:
        talk = Talk(self._daemon.tcp_port)
        try:
            while self.open.is_set():
                key, number = random.randrange(KEYS), time.monotonic_ns()
                body = json.dumps({"key": key, "number": number}).encode()
                talk.send(b"PUB t\n" + struct.pack(">I", len(body)) + body)
                assert talk.frame() == (0, b"OK")
                self.acknowledged[key].append(number)
        finally:
            talk.close()

    def _consume(self) -> None:
        life = self.life
        mine: dict[int, int] = {}
        talk = Talk(self._daemon.tcp_port)
        try:
            talk.send(b"SUB t c\n")
            talk.frame()
            talk.send(b"RDY 5\n")
            while self.open.is_set():
                kind, payload = talk.frame()
                if kind != 2:
                    talk.send(b"NOP\n")
                    continue
                message = json.loads(payload[26:])
                key, number = message["key"], message["number"]
                with self._lock:
                    if self.life != life:
                        return
                    if key in self.out:
                        self.violations.append(f"{number} of key {key} came while {self.out[key]} was out")
                    self.out[key] = mine[key] = number
                if random.random() < 0.2:
                    time.sleep(random.random() / 100)
                if random.random() < 0.01:
                    return  # disconnects with what it has
                fails = random.random() < SICK
                with self._lock:
                    if self.life != life:
                        return
                    del self.out[key], mine[key]
                    if not fails:
                        self._note_effect(key, number)
                    # within the lock: what nsqd sends as the answer to this must not be read before it is noted
                    self.failed += fails
                    delay = random.choice((0, 0, 20))
                    talk.send(b"REQ %b %d\n" % (payload[10:26], delay) if fails else b"FIN %b\n" % payload[10:26])
        finally:
            with self._lock:
                for key in mine:
                    if self.life == life:
                        self.out.pop(key, None)
            talk.close()

    def _note_effect(self, key: int, number: int) -> None:
        done = self.effects[key]
        if number not in done:
            missing = [each for each in self.acknowledged[key] if each < number and each not in done]
            if missing:
                self.violations.append(f"{number} of key {key} was finished before {missing}")
            done[number] = None

    def killed(self) -> None:
        with self._lock:
            self.life += 1
            self.out.clear()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.mark.slow
def test_order_by_key_holds_over_kills(tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path, "--max-bytes-per-file=65536", "--msg-timeout=60s") as nsqd:
        nsqd.kill()
        nsqd.restart()
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert ask(nsqd, "POST", target)[0] == 200
        assert ask(nsqd, "PATCH", "/channel/settings?topic=t&channel=c", SETTINGS)[0] == 200
        load = Load(nsqd)
        for _ in range(KILLS):
            load.open.set()
            before = load.failed
            daemons.until(lambda before=before: load.failed > before + 20, seconds=60, what="failures")
            time.sleep(random.uniform(0, 0.3))  # it may die at any moment
            nsqd.kill()
            load.killed()
            load.open.clear()
            nsqd.restart()
        load.open.set()
        daemons.until(lambda: load.failed > before + 40, seconds=60, what="failures")
        load.open.clear()
        load.end()

    assert not load.violations, load.violations[:5]
    assert sum(map(len, load.effects.values())) > 20 * KILLS
