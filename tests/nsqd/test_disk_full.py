"""A disk that refuses: publishers and /ping are told, nothing acknowledged is lost, and it heals by itself."""

import os
import resource
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from rawtalk import Raw, dpub, get, mpub, post, pub, topics

import daemons

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[daemons.Daemon]:
    with daemons.start_nsqd(tmp_path) as daemon:
        yield daemon


def refuse_writes(daemon: daemons.Daemon) -> None:
    """From now on no file of the process may grow, as on a full disk."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (1, UNLIMITED))


def take_writes(daemon: daemons.Daemon) -> None:
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


def health(daemon: daemons.Daemon) -> tuple[int, str]:
    try:
        return 200, get(daemon, "/ping").decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def drained(daemon: daemons.Daemon, count: int) -> list[bytes]:
    """So many messages of topic t, consumed and finished."""
    with Raw(daemon) as raw:
        raw.subscribe("t", "c", ready=100)
        bodies = []
        for _ in range(count):
            _, message_id, body = raw.message()
            raw.send(b"FIN %s\n" % message_id)
            bodies.append(body)
        return bodies


def test_every_publisher_is_told_and_ping_too(nsqd: daemons.Daemon) -> None:
    post(nsqd, "/topic/create?topic=t")
    post(nsqd, "/channel/create?topic=t&channel=c")
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"before"))
    refuse_writes(nsqd)
    told = []
    for command in (pub("t", b"x"), mpub("t", [b"x", b"y"]), dpub("t", 1000, b"x")):
        with Raw(nsqd) as raw:
            raw.send(command)
            told.append(raw.error().split()[:3])
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(nsqd, "/pub?topic=t", b"x")
    refused.value.close()
    status, text = health(nsqd)

    assert told == [
        ["E_PUB_FAILED", "PUB", "failed"],
        ["E_MPUB_FAILED", "MPUB", "failed"],
        ["E_DPUB_FAILED", "DPUB", "failed"],
    ]
    assert refused.value.code == 503
    assert status == 500
    assert text.startswith("NOK - ")
    assert drained(nsqd, 1) == [b"before"]  # consumers are served all the while


def test_nothing_acknowledged_is_lost_and_it_heals_by_itself(nsqd: daemons.Daemon) -> None:
    post(nsqd, "/topic/create?topic=t")
    post(nsqd, "/channel/create?topic=t&channel=c")
    bodies = [b"%d" % number for number in range(50)]
    with Raw(nsqd) as raw:
        for body in bodies:
            raw.ok(pub("t", body))
    refuse_writes(nsqd)
    with Raw(nsqd) as raw:
        raw.send(pub("t", b"refused"))
        assert raw.error().startswith("E_PUB_FAILED")
    take_writes(nsqd)
    daemons.until(lambda: health(nsqd) == (200, "OK"), what="health without anybody's doing")
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"after"))
    nsqd.kill()
    nsqd.restart()

    assert topics(nsqd)["t"]["channels"]["c"]["depth"] == 51
    assert drained(nsqd, 51) == [*bodies, b"after"]


def test_one_that_is_stopped_with_a_full_disk_ends_well(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"before"))
        refuse_writes(nsqd)
        raw.send(pub("t", b"x"))
        assert raw.error().startswith("E_PUB_FAILED")

    assert nsqd.stop() == 0
    nsqd.restart()
    assert drained(nsqd, 1) == [b"before"]


def test_publishes_stop_before_the_disk_is_full() -> None:
    with daemons.nsqd(f"--min-free-bytes={1 << 62}") as nsqd, Raw(nsqd) as raw:
        raw.send(pub("t", b"x"))

        assert raw.error().startswith("E_PUB_FAILED PUB failed ")
        assert health(nsqd)[0] == 500


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk to fill")
def test_a_real_disk_filled_to_the_brim(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets not even root mount a small disk to fill")
    try:
        fill_and_drain(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill_and_drain(data_path: Path) -> None:
    body = bytes(20_000)
    with daemons.start_nsqd(data_path, "--min-free-bytes=0", "--max-bytes-per-file=200000") as nsqd:
        post(nsqd, "/topic/create?topic=t")
        post(nsqd, "/channel/create?topic=t&channel=c")
        acknowledged = 0
        with Raw(nsqd) as raw:
            for _ in range(200):
                raw.send(pub("t", body))
                kind, said = raw.frame()
                if kind:
                    break
                acknowledged += 1
        assert said.startswith(b"E_PUB_FAILED")
        assert acknowledged > 50
        nsqd.kill()
        nsqd.restart()
        assert topics(nsqd)["t"]["channels"]["c"]["depth"] == acknowledged
        assert drained(nsqd, acknowledged) == [body] * acknowledged

        def takes_again() -> bool:
            with Raw(nsqd) as raw:
                raw.send(pub("t", b"again"))
                return raw.frame() == (0, b"OK")

        daemons.until(takes_again, what="room, as finished segments go")
        assert drained(nsqd, 1) == [b"again"]
        assert health(nsqd) == (200, "OK")
