"""nsqd killed, stopped, or with a clock that jumps: acknowledged messages arrive, in order and not early."""

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from careful_load import CarefulLoad
from disk import Faults, compiler
from load import Line, Load

import daemons
from breaks import Breaks

FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=2s")
KILLS = int(os.environ.get("LAPWING_KILLS", "3"))


def wait_for_progress(load: Load, messages: int = 5000) -> None:
    least = load.acknowledged + messages
    daemons.until(lambda: load.acknowledged > least, seconds=60, what="progress")


def has_delivered(load: CarefulLoad, least: dict[str, int]) -> bool:
    return all(book.deliveries > least[book.topic] for book in load.books)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, durability: str) -> None:
    chance = random.Random(1)
    # no timeouts: a FIN that comes too late for one is not a finished message
    flags = (f"--durability={durability}", "--max-bytes-per-file=1048576", "--msg-timeout=60s")
    with daemons.start_nsqd(tmp_path, *flags) as nsqd:
        nsqd.kill()
        nsqd.restart()  # from here on at the same addresses
        load = Load(nsqd.tcp_port)
        for _ in range(KILLS):
            wait_for_progress(load, chance.randrange(1, 10_000))
            nsqd.kill()
            nsqd.restart()
        load.finish()
        damage = [line for line in nsqd.lines if "ERROR" in line]

    assert not damage


def test_dead_letters_deferred_messages_staged_batches_and_streams_survive_kills(tmp_path: Path) -> None:
    breaks = Breaks()
    with daemons.start_nsqd(tmp_path, "--redis-address=127.0.0.1:0", "--msg-timeout=60s") as nsqd:
        nsqd.kill()
        nsqd.restart()  # from here on at the same addresses
        redis = int(nsqd.addresses["Redis"].rpartition(":")[2])
        breaks.watch(nsqd)
        load = CarefulLoad(nsqd.tcp_port, nsqd.http_port, redis, breaks)
        for _ in range(min(KILLS, 4)):
            least = {book.topic: book.deliveries + 20 for book in load.books}
            daemons.until(lambda least=least: has_delivered(load, least), seconds=60, what="20 messages of each kind")
            breaks.kill(nsqd)
            nsqd.restart()
        broken = load.finish()

    assert not broken, broken[:10]
    assert load.counts["redrives"]


def test_a_process_that_stands_still_for_longer_than_the_timeouts_loses_nothing(tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path, *FLAGS) as nsqd:
        load = Load(nsqd.tcp_port)
        for _ in range(2):
            wait_for_progress(load)
            os.kill(nsqd.pid, signal.SIGSTOP)
            time.sleep(2.5)  # the fault itself: longer than --msg-timeout
            os.kill(nsqd.pid, signal.SIGCONT)
        wait_for_progress(load)
        load.finish()


@pytest.mark.skipif(compiler() is None, reason="the clock is turned by a C library: install a C compiler")
def test_a_clock_that_jumps_loses_nothing_and_brings_nothing_early(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    faults = Faults(tmp_path, data)
    with daemons.start_nsqd(data, *FLAGS, env=faults.env) as nsqd:
        load = Load(nsqd.tcp_port)
        wait_for_progress(load)
        line = Line(nsqd.tcp_port)
        sent = time.monotonic()
        line.socket.sendall(b"SUB later c\nRDY 1\nDPUB later 3000\n" + struct.pack(">I", 4) + b"late")
        for shift in (86_400, -86_400, 3600, 0):
            faults.shift_clock(shift)
            wait_for_progress(load)
        while (frame := line.frame()) is None or frame[:4] != b"\0\0\0\2":
            if frame is None:
                line.receive()
        waited = time.monotonic() - sent
        line.socket.close()
        load.finish()

    assert frame.endswith(b"late")
    assert waited > 2.6  # a clock that was set is followed by a tenth of the time that passes


@pytest.mark.skipif(compiler() is None, reason="the clock is turned by a C library: install a C compiler")
def test_a_clock_that_is_set_before_a_kill_brings_nothing_early(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    faults = Faults(tmp_path, data)
    with daemons.start_nsqd(data, env=faults.env) as nsqd:
        nsqd.kill()
        nsqd.restart()  # from here on at the same addresses
        line = Line(nsqd.tcp_port)
        sent = time.monotonic()
        line.socket.sendall(b"SUB later c\nDPUB later 4000\n" + struct.pack(">I", 4) + b"late")
        while line.data.count(b"OK") < 2:
            line.receive()
        line.socket.close()
        journal = data / "topics" / "t-later" / "journal"
        size = journal.stat().st_size
        daemons.until(lambda: journal.stat().st_size > size, seconds=60, what="a checkpoint")
        faults.shift_clock(3600)
        nsqd.kill()
        nsqd.restart()
        line = Line(nsqd.tcp_port)
        line.socket.sendall(b"SUB later c\nRDY 1\n")
        while b"late" not in line.data:
            line.receive()
        waited = time.monotonic() - sent
        line.socket.close()

    assert waited > 3.5  # a clock that was set is followed by a tenth of the time that passes


def test_connections_that_break_in_mid_frame_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(2)
    with daemons.start_nsqd(tmp_path, *FLAGS) as nsqd:
        load = Load(nsqd.tcp_port)
        for _ in range(200):
            torn = socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=60)
            words = b"  V2SUB load c0\nRDY 100\nPUB load\n" + struct.pack(">I", 1000) + b"x" * 999
            torn.sendall(words[: chance.randrange(1, len(words))])
            if chance.random() < 0.5:  # a reset instead of an end
                torn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            torn.close()
        wait_for_progress(load)
        load.finish()


def test_half_open_connections_floods_silent_consumers_and_no_descriptors_lose_nothing(tmp_path: Path) -> None:
    half = b"  V2MPUB load\n\0\0\x10\0\0\0\0\x05"
    body = struct.pack(">I", 100) + (struct.pack(">I", 1000) + b"f" * 1000) * 100
    flood = b"  V2MPUB flood#ephemeral\n" + struct.pack(">I", len(body)) + body
    with daemons.start_nsqd(tmp_path, *FLAGS) as nsqd, contextlib.ExitStack() as stack:
        load = Load(nsqd.tcp_port)
        wait_for_progress(load)

        def connect(words: bytes) -> None:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=60))
            connection.sendall(words)

        for number in range(50):
            connect(half[: 1 + number % len(half)])
            connect(flood if number % 2 else random.Random(number).randbytes(2000))
        for _ in range(3):
            connect(b"  V2SUB load c0\nRDY 2500\n")  # it reads nothing, and answers for nothing
        limit = resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{nsqd.pid}/fd"))
        resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (used, limit[1]))
        for _ in range(20):
            connect(b"  V2")  # the system takes them, nsqd cannot
        wait_for_progress(load)  # clients that are connected are served
        resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, limit)
        line = Line(nsqd.tcp_port)
        line.socket.sendall(b"SUB load late#ephemeral\n")
        while b"OK" not in line.data:
            line.receive()
        line.socket.close()
        stack.close()  # silent consumers would take what they left again and again
        wait_for_progress(load)
        load.finish()
