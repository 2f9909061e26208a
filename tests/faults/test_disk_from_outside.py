"""nsqd on a disk that fails from outside: what was acknowledged arrives, and health says what is wrong."""

import errno
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from disk import OPENS, READS, SYNCS, WRITES, Faults, compiler
from load import Load

import daemons

pytestmark = pytest.mark.skipif(compiler() is None, reason="the faults are a C library: install a C compiler")

FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=2s", "--mem-queue-size=100")


def ping(nsqd: daemons.Daemon) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{nsqd.url}/ping", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("calls", "error", "every", "durability"),
    [
        (READS, errno.EIO, 1, "os"),
        (READS, errno.EIO, 3, "os"),
        (WRITES, errno.ENOSPC, 1, "os"),
        (WRITES, errno.EIO, 7, "os"),
        (SYNCS, errno.EIO, 1, "fsync"),
        (OPENS, errno.EMFILE, 1, "os"),
    ],
    ids=["unreadable", "some reads", "full", "some writes", "no sync", "no descriptors"],
)
def test_a_disk_that_fails_for_a_while_loses_nothing(
    tmp_path: Path, calls: int, error: int, every: int, durability: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    faults = Faults(tmp_path, data)
    with daemons.start_nsqd(data, *FLAGS, f"--durability={durability}", env=faults.env) as nsqd:
        load = Load(nsqd.tcp_port)
        daemons.until(lambda: load.acknowledged > 20_000, seconds=60, what="20,000 messages")
        for _ in range(3):
            before = faults.failed
            with faults.failing(calls, error=error, every=every):
                daemons.until(lambda before=before: faults.failed > before + 3, seconds=60, what="a fault")
            acknowledged = load.acknowledged
            daemons.until(lambda least=acknowledged: load.acknowledged > least + 2000, seconds=60, what="progress")
        load.finish()
        daemons.until(lambda: ping(nsqd) == (200, "OK"), seconds=60, what="good health")
