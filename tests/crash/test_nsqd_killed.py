"""nsqd killed again and again under load: every message that was acknowledged arrives."""

import os
import random
import struct
import threading
import time
from pathlib import Path

import pytest
from talking import LOST, Talk

import daemons

KILLS = int(os.environ.get("LAPWING_KILLS", "3"))


class Load:
    """Producers that write down what was acknowledged, and consumers that write down what came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()  # nothing more is published
        self._done = threading.Event()  # nothing more is consumed
        self.acknowledged: set[bytes] = set()
        self.received: dict[bytes, int] = {}
        self.complaints: list[bytes] = []
        tasks = [(self._publish, b"single"), (self._publish_batches, b"batch"), (self._consume,), (self._consume,)]
        self._threads = [threading.Thread(target=self._insist, args=task, daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def _insist(self, work, *args) -> None:
        """Do it on one connection after the other."""
        while not self._done.is_set() and not (args and self._over.is_set()):
            try:
                talk = Talk(self._port)
            except OSError:
                time.sleep(0.01)  # it is being started
                continue
            try:
                work(talk, *args)
            except LOST:
                continue
            finally:
                talk.close()

    def _publish(self, talk: Talk, name: bytes) -> None:
        while not self._over.is_set():
            body = b"%s %x" % (name, random.getrandbits(64))
            talk.send(b"PUB load\n" + struct.pack(">I", len(body)) + body)
            self._answered(talk, {body})

    def _publish_batches(self, talk: Talk, name: bytes) -> None:
        while not self._over.is_set():
            bodies = [b"%s %x" % (name, random.getrandbits(64)) for _ in range(20)]
            content = struct.pack(">I", len(bodies))
            content += b"".join(struct.pack(">I", len(body)) + body for body in bodies)
            talk.send(b"MPUB load\n" + struct.pack(">I", len(content)) + content)
            self._answered(talk, set(bodies))

    def _answered(self, talk: Talk, bodies: set[bytes]) -> None:
        kind, payload = talk.frame()
        if (kind, payload) == (0, b"OK"):
            self.acknowledged |= bodies
        else:
            self.complaints.append(payload)

    def _consume(self, talk: Talk) -> None:
        talk.send(b"SUB load c\n")
        talk.frame()
        talk.send(b"RDY 100\n")
        while not self._done.is_set():
            kind, payload = talk.frame()
            if kind == 2:
                body = payload[26:]
                self.received[body] = self.received.get(body, 0) + 1
                if random.random() < 0.9:  # the others are given back, or in flight when it dies
                    talk.send(b"FIN %s\n" % payload[10:26])
                else:
                    talk.send(b"REQ %s 0\n" % payload[10:26])
            elif payload == b"_heartbeat_":
                talk.send(b"NOP\n")

    def finish(self) -> None:
        """Publish no more, and wait until all that was acknowledged has come."""
        self._over.set()
        self._threads[0].join(60)
        self._threads[1].join(60)
        daemons.until(lambda: self.acknowledged <= self.received.keys(), seconds=60, what="every acknowledged message")
        self._done.set()

    def end(self) -> None:
        """Wait until every client has left, once nsqd is gone."""
        for thread in self._threads:
            thread.join(60)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_acknowledged_message_arrives_though_nsqd_is_killed(tmp_path: Path, durability: str) -> None:
    flags = (f"--durability={durability}", "--max-bytes-per-file=65536", "--msg-timeout=2s")
    with daemons.start_nsqd(tmp_path, *flags) as nsqd:
        nsqd.kill()
        nsqd.restart()
        load = Load(nsqd.tcp_port)
        for _ in range(KILLS):
            before = len(load.acknowledged)
            daemons.until(lambda before=before: len(load.acknowledged) > before + 100, what="progress")
            time.sleep(random.uniform(0, 0.2))  # it may die at any moment
            nsqd.kill()
            nsqd.restart()
        load.finish()
        damage = [line for line in nsqd.lines if "ERROR" in line or "corrupt" in line]
    load.end()

    assert not load.complaints
    assert len(load.acknowledged) > KILLS * 100
    assert not damage
