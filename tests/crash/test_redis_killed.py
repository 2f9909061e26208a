"""nsqd killed again and again under Redis clients: no acknowledged entry is lost, and names keep what they hold."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daemons
from breaks import Breaks
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader, encode

ROUNDS = min(int(os.environ.get("LAPWING_CRASH_ROUNDS", "3")), 50)
LOST = (OSError, EOFError)


class Talk:
    """One connection of a Redis client."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._reader = ReplyReader()
        self._found: list[Any] = []

    def ask(self, *commands: str) -> list[Any]:
        self._socket.sendall(b"".join(encode(*command.split()) for command in commands))
        while len(self._found) < len(commands):
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            self._reader.receive(data)
            self._found += self._reader.replies()
        replies, self._found = self._found, []
        return replies

    def close(self) -> None:
        self._socket.close()


@dataclass
class Load:
    """Producers and consumers that write down what was acknowledged, what came, and when."""

    port: int
    added: dict[bytes, bytes] = field(default_factory=dict)  # id to body
    read: dict[bytes, list[tuple[str, float]]] = field(default_factory=dict)  # id to consumers and times
    finished: dict[bytes, float] = field(default_factory=dict)
    kept: dict[bytes, tuple[str, float]] = field(default_factory=dict)  # never acknowledged
    complaints: list[Any] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)  # nothing more is added
    done: threading.Event = field(default_factory=threading.Event)  # nothing more is read
    quiet: int = 0  # reads in a row that found nothing after `over`

    def start(self) -> None:
        work: list[tuple[Callable[..., None], str]] = [(self.produce, "p"), (self.consume, "a"), (self.consume, "b")]
        self.threads = [threading.Thread(target=self._insist, args=each, daemon=True) for each in work]
        for thread in self.threads:
            thread.start()

    def _insist(self, work: Callable[[Talk, str], None], name: str) -> None:
        """Do it on one connection after the other."""
        while not self.done.is_set() and not (name == "p" and self.over.is_set()):
            try:
                talk = Talk(self.port)
            except OSError:
                time.sleep(0.01)  # it is being started
                continue
            try:
                work(talk, name)
            except LOST:
                continue
            finally:
                talk.close()

    def produce(self, talk: Talk, _: str) -> None:
        while not self.over.is_set():
            if len(self.added) > len(self.read) + 500:
                time.sleep(0.01)  # until the consumers have caught up
                continue
            bodies = [f"{random.getrandbits(64):x}" for _ in range(random.choice([1, 3, 20]))]
            for body, reply in zip(bodies, talk.ask(*[f"XADD s * data {body}" for body in bodies]), strict=True):
                if isinstance(reply, bytes):
                    self.added[reply] = body.encode()
                else:
                    self.complaints.append(reply)

    def consume(self, talk: Talk, name: str) -> None:
        while not self.done.is_set():
            (reply,) = talk.ask(f"XREADGROUP GROUP g {name} COUNT 10 BLOCK 50 STREAMS s >")
            if isinstance(reply, ErrorReply):
                self.complaints.append(reply)
                return
            if not reply:
                self.quiet += self.over.is_set()
                continue
            self.quiet = 0
            now = time.monotonic()
            entries = reply[0][1]
            for entry, _ in entries:
                self.read.setdefault(entry, []).append((name, now))
            kept = [entry for entry, _ in entries if int(entry.split(b"-")[1]) % 7 == 0]
            self.kept.update((entry, (name, now)) for entry in kept)
            rest = [entry.decode() for entry, _ in entries if entry not in self.kept]
            if rest and isinstance(talk.ask(f"XACK s g {' '.join(rest)}")[0], int):
                now = time.monotonic()
                self.finished.update((entry.encode(), now) for entry in rest)


def test_nothing_that_was_answered_is_lost_and_names_keep_what_they_hold(tmp_path: Path) -> None:
    breaks = Breaks()
    with daemons.start_nsqd(tmp_path, "--redis-address=127.0.0.1:0") as daemon:
        port = int(daemon.addresses["Redis"].rpartition(":")[2])
        setup = Talk(port)
        setup.ask("XGROUP CREATE s g $ MKSTREAM")
        setup.close()
        load = Load(port)
        load.start()
        breaks.watch(daemon)
        for _ in range(ROUNDS):
            time.sleep(random.uniform(0.3, 2.5))  # the load must have done something
            breaks.kill(daemon)
            daemon.restart()
        load.over.set()
        daemons.until(lambda: load.quiet > 20, what="everything read")
        load.done.set()
        for thread in load.threads:
            thread.join(60)
        talk = Talk(port)
        there, pending = talk.ask("XRANGE s - +", "XPENDING s g - + 1000000")
        talk.close()

    def saved(at: float) -> bool:
        """Whether the journal had it before the next kill."""
        return all(at < then for kill, then in breaks.kills if kill > at)

    assert not load.complaints
    assert len(load.added) > 20 * ROUNDS
    assert {entry: pairs[1] for entry, pairs in there}.items() >= load.added.items()
    assert load.read.keys() >= load.added.keys()
    owners = {entry: consumer.decode() for entry, consumer, *_ in pending}
    for entry, at in load.finished.items():
        if saved(at):
            assert entry not in owners
            assert max(when for _, when in load.read[entry]) <= at, "an acknowledged entry came again"
    for entry, (name, at) in load.kept.items():
        last, when = load.read[entry][-1]
        assert owners.get(entry) == last, f"{entry!r} is not pending with the consumer that got it last"
        if saved(at):
            assert (last, when) == (name, at), "an entry that somebody holds was given to another one"
