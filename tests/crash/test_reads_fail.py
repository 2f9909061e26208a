"""A device that answers EIO for a while under a consumer: nothing is lost, and health names the reason."""

import os
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

from test_nsqd_killed import Talk

import daemons

COUNT = 20_000
SHIM = Path(__file__).with_name("failing_reads.c")


def compiled(folder: Path) -> Path:
    """The shim, built by the compiler that the kernel needs as well."""
    library = folder / "failing_reads.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    return library


def ping(nsqd: daemons.Daemon) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{nsqd.url}/ping", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def publish(port: int) -> None:
    talk = Talk(port)
    talk.send(b"SUB t c\n")
    talk.frame()
    for first in range(0, COUNT, 500):
        bodies = [b"%d " % number + b"x" * 200 for number in range(first, first + 500)]
        content = struct.pack(">I", 500) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)
        talk.send(b"MPUB t\n" + struct.pack(">I", len(content)) + content)
        assert talk.frame() == (0, b"OK")
    talk.close()


def consume(talk: Talk, seen: set[int]) -> None:
    """Finish messages until all were seen."""
    talk.send(b"SUB t c\nRDY 100\n")
    while len(seen) < COUNT:
        kind, payload = talk.frame()
        if kind == 2:
            seen.add(int(payload[26:].split()[0]))
            talk.send(b"FIN %s\n" % payload[10:26])
        elif payload == b"_heartbeat_":
            talk.send(b"NOP\n")


def test_a_device_that_does_not_answer_for_a_moment_costs_no_message(tmp_path: Path) -> None:
    data, flag = tmp_path / "data", tmp_path / "failing"
    data.mkdir()
    env = {"LD_PRELOAD": os.fspath(compiled(tmp_path)), "FAIL_READS_OF": ".log", "FAIL_READS_WHILE": os.fspath(flag)}
    with daemons.start_nsqd(data, "--max-bytes-per-file=262144", env=env) as nsqd:
        publish(nsqd.tcp_port)
        nsqd.stop()
        nsqd.restart()
        seen: set[int] = set()
        talk = Talk(nsqd.tcp_port)
        consumer = threading.Thread(target=consume, args=(talk, seen), daemon=True)
        consumer.start()
        daemons.until(lambda: len(seen) > COUNT // 10, what="the first messages")
        flag.touch()
        daemons.until(lambda: ping(nsqd)[0] == 500, what="bad health")
        status, reason = ping(nsqd)
        segments = len(list(data.glob("topics/t-t/*.log")))
        flag.unlink()
        consumer.join(60)
        daemons.until(lambda: ping(nsqd) == (200, "OK"), what="good health")
        daemons.until(lambda: len(list(data.glob("topics/t-t/*.log"))) < segments, what="trimmed segments")
        talk.close()

    assert status == 500
    assert "cannot be read: Input/output error" in reason
    assert "channel t/c" in reason
    assert seen == set(range(COUNT))

