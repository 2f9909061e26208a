"""Stopped or killed, nsqd comes back as it was."""

import itertools
import math
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rawtalk import Raw, dpub, get, mpub, post, pub, topics

import daemons
from measuring import shortest

Ending = Callable[[daemons.Daemon], object]
ENDINGS = {"stopped": daemons.Daemon.stop, "killed": daemons.Daemon.kill}
numbers = itertools.count()
every_ending = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS.keys())


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[daemons.Daemon]:
    with daemons.start_nsqd(tmp_path, "--checkpoint-interval=20ms") as daemon:
        yield daemon


def stamped(path: Path) -> int:
    """When a file that is written now says it was, in ns."""
    path.touch()
    return path.stat().st_mtime_ns


def journaled(daemon: daemons.Daemon, data_path: Path, topic: str) -> None:
    """Wait until what was done to a topic's channels until now is in its journal, with one message more."""
    journal = data_path / "topics" / f"t-{topic}" / "journal"
    done = time.time_ns()
    # the times of files move in steps: what is written within this one would look older
    daemons.until(lambda: stamped(data_path / "tick") > done, what="the next step")
    post(daemon, f"/pub?topic={topic}", b"mark")
    daemons.until(lambda: journal.stat().st_mtime_ns > done, what=f"a journal of {topic}")


def again(daemon: daemons.Daemon, end: Ending) -> None:
    end(daemon)
    daemon.restart()


def test_what_was_emptied_stays_so_however_soon_nsqd_is_killed(tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path, "--checkpoint-interval=1h") as nsqd:
        with Raw(nsqd) as raw:
            raw.ok(mpub("channel", [b"x"] * 5))
            raw.ok(dpub("channel", 60_000, b"later"))
            raw.ok(mpub("topic", [b"x"] * 5))
            raw.subscribe("channel", "c", ready=2)
            raw.message()
            post(nsqd, "/channel/empty?topic=channel&channel=c")
            post(nsqd, "/topic/empty?topic=topic")
            nsqd.kill()
        nsqd.restart()

        found = topics(nsqd)
        channel = found["channel"]["channels"]["c"]
        assert (channel["depth"], channel["deferred_count"], found["topic"]["depth"]) == (0, 0, 0)


def test_who_waits_for_a_log_to_grow_delays_no_stop(nsqd: daemons.Daemon) -> None:
    post(nsqd, "/pub?topic=t", b"x")

    def stop() -> float:
        answers: list[bytes] = []
        if nsqd.process.poll() is not None:
            nsqd.restart()
        waiting = threading.Thread(target=lambda: answers.append(get(nsqd, "/log/offsets?after=t:1&wait_ms=30000")))
        waiting.start()
        daemons.until(lambda: b"HttpConnection._wait_for()" in get(nsqd, "/debug/pprof/goroutine"), what="a wait")
        began = time.monotonic()
        nsqd.stop()
        waiting.join(60)
        assert b'"next":1' in answers[0]
        return time.monotonic() - began

    assert shortest(stop, limit=1.5) < 1.5


@every_ending
def test_topics_channels_and_pauses_come_back(nsqd: daemons.Daemon, end: Ending) -> None:
    with Raw(nsqd) as raw:
        raw.ok(mpub("plain", [b"x"] * 3))
        raw.ok(mpub("resting", [b"x"] * 4))
        raw.ok(pub("gone#ephemeral", b"x"))
    post(nsqd, "/channel/create?topic=plain&channel=open")
    post(nsqd, "/channel/create?topic=plain&channel=shut")
    post(nsqd, "/channel/create?topic=plain&channel=gone%23ephemeral")
    post(nsqd, "/channel/create?topic=resting&channel=c")
    post(nsqd, "/channel/pause?topic=plain&channel=shut")
    post(nsqd, "/topic/pause?topic=resting")
    post(nsqd, "/pub?topic=resting", b"held back")
    post(nsqd, "/topic/create?topic=bare")
    again(nsqd, end)
    found = topics(nsqd)

    assert set(found) == {"plain", "resting", "bare"}
    assert {name: channel["paused"] for name, channel in found["plain"]["channels"].items()} == {
        "open": False,
        "shut": True,
    }
    assert found["plain"]["channels"]["open"]["depth"] == 3
    assert (found["resting"]["paused"], found["resting"]["depth"]) == (True, 1)
    assert found["resting"]["channels"]["c"]["depth"] == 4


@every_ending
def test_what_was_in_flight_is_ready_again_with_its_attempts(nsqd: daemons.Daemon, tmp_path: Path, end: Ending) -> None:
    with Raw(nsqd) as raw:
        raw.ok(mpub("t", [b"%d" % number for number in range(6)]))
        raw.subscribe("t", "c", ready=3)
        held = [raw.message() for _ in range(3)]
        raw.send(b"RDY 0\nFIN %s\nREQ %s 0\n" % (held[0][1], held[1][1]))
        daemons.until(lambda: topics(nsqd)["t"]["channels"]["c"]["requeue_count"] == 1, what="the requeue")
        journaled(nsqd, tmp_path, "t")
        again(nsqd, end)
    shown = topics(nsqd)["t"]["channels"]["c"]
    with Raw(nsqd) as raw:
        raw.subscribe("t", "c", ready=10)
        came = {body: attempts for attempts, _, body in (raw.message() for _ in range(6))}

    assert shown["depth"] == 6
    assert set(came) == {b"1", b"2", b"3", b"4", b"5", b"mark"}
    assert came[b"1"] == came[b"2"] == 2
    assert came[b"5"] == came[b"mark"] == 1


@every_ending
def test_what_was_deferred_still_is_and_comes_at_its_time(nsqd: daemons.Daemon, tmp_path: Path, end: Ending) -> None:
    def lateness(ms: int) -> float:
        """Defer two messages over a restart; return how late the last came, in s: inf if the restart took too long."""
        topic = f"t{next(numbers)}"
        with Raw(nsqd) as raw:
            raw.ok(pub(topic, b"again"))
            raw.subscribe(topic, "c")
            began = time.monotonic()
            raw.ok(dpub(topic, ms, b"later"))
            raw.send(b"RDY 1\n")
            _, message_id, _ = raw.message()
            raw.send(b"REQ %s %d\nRDY 0\n" % (message_id, ms))
            daemons.until(lambda: topics(nsqd)[topic]["channels"]["c"]["requeue_count"] == 1, what="both deferred")
            journaled(nsqd, tmp_path, topic)
            again(nsqd, end)
        shown = topics(nsqd)[topic]["channels"]["c"]
        if time.monotonic() - began > ms / 1000:
            return math.inf
        with Raw(nsqd) as raw:
            raw.subscribe(topic, "c", ready=10)
            came = {}
            while len(came) < 3:
                attempts, _, body = raw.message()
                came[body] = (attempts, time.monotonic() - began)

        assert (shown["depth"], shown["deferred_count"]) == (1, 2)
        assert [came[body][0] for body in (b"mark", b"later", b"again")] == [1, 1, 2]
        assert min(came[b"later"][1], came[b"again"][1]) >= ms / 1000 - 0.01
        return max(came[b"later"][1], came[b"again"][1]) - ms / 1000

    delays = iter([3000, 3000, 10_000, 30_000])  # a busy machine may need longer for a restart

    assert shortest(lambda: lateness(next(delays)), limit=2, tries=4) < 2


@every_ending
def test_a_topic_that_was_deleted_stays_deleted(nsqd: daemons.Daemon, tmp_path: Path, end: Ending) -> None:
    for topic in ("stays", "goes"):
        post(nsqd, f"/pub?topic={topic}", b"x")
        post(nsqd, f"/channel/create?topic={topic}&channel=c")
    post(nsqd, "/channel/delete?topic=stays&channel=c")
    post(nsqd, "/topic/delete?topic=goes")
    again(nsqd, end)

    assert {name: list(topic["channels"]) for name, topic in topics(nsqd).items()} == {"stays": []}
    assert not (tmp_path / "topics" / "t-goes").exists()


def test_without_its_metadata_it_finds_the_topics_by_their_logs(nsqd: daemons.Daemon, tmp_path: Path) -> None:
    post(nsqd, "/pub?topic=t", b"still here")
    post(nsqd, "/channel/create?topic=t&channel=c")
    nsqd.stop()
    (tmp_path / "nsqd.dat").unlink()
    nsqd.restart()
    with Raw(nsqd) as raw:
        raw.subscribe("t", "c", ready=1)

        assert raw.message()[2] == b"still here"
    assert (tmp_path / "nsqd.dat").exists()


def test_damaged_metadata_loses_no_topic_and_is_named(nsqd: daemons.Daemon, tmp_path: Path) -> None:
    post(nsqd, "/pub?topic=t", b"still here")
    post(nsqd, "/channel/create?topic=t&channel=c")
    nsqd.stop()
    text = (tmp_path / "nsqd.dat").read_text()
    (tmp_path / "nsqd.dat").write_text(text.replace('"t"', '"s"'))
    nsqd.restart()
    with Raw(nsqd) as raw:
        raw.subscribe("t", "c", ready=1)

        assert raw.message()[2] == b"still here"
    assert set(topics(nsqd)) == {"t"}
    assert "nsqd.dat.damaged" in nsqd.stderr


@pytest.mark.parametrize("content", [b"", b'{"topics":[', b"[]"])
def test_metadata_that_cannot_be_read_is_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nsqd.dat").write_bytes(content)
    status, said = run(tmp_path)

    assert status == 1
    assert "failed to load metadata" in said


def test_metadata_of_nsq_is_understood(tmp_path: Path) -> None:
    text = (
        '{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true},{"name":"bad name"}]},'
        '{"name":"u","paused":false,"channels":null},{"name":"also bad","channels":[]}],"version":"1.3.0"}'
    )
    (tmp_path / "nsqd.dat").write_text(text)
    with daemons.start_nsqd(tmp_path) as nsqd:
        found = topics(nsqd)

    assert set(found) == {"t", "u"}
    assert found["t"]["paused"]
    assert {name: channel["paused"] for name, channel in found["t"]["channels"].items()} == {"c": True}


def run(data_path: Path, *flags: str) -> tuple[int, str]:
    """Run an nsqd that is not going to start: its exit status and what it says."""
    doors = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    command = [*daemons.program("nsqd"), *doors, f"--data-path={data_path}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


def test_a_data_path_is_used_by_one_at_a_time(nsqd: daemons.Daemon, tmp_path: Path) -> None:
    status, said = run(tmp_path)

    assert status == 1
    assert "FATAL: failed to instantiate nsqd - failed to lock data-path" in said
    assert "possibly in use by another instance of nsqd" in said
    assert not Path("/proc/locks").exists() or str(nsqd.pid) in said
    assert get(nsqd, "/ping") == b"OK"


def test_a_data_path_must_exist(tmp_path: Path) -> None:
    status, said = run(tmp_path / "nowhere")

    assert status == 1
    assert "failed to lock data-path" in said


def test_a_port_in_use_is_named(nsqd: daemons.Daemon, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for flag, address in (("--tcp-address", nsqd.tcp), ("--http-address", nsqd.http)):
        status, said = run(tmp_path / "other", f"{flag}={address}")

        assert status == 1
        assert f"FATAL: failed to instantiate nsqd - listen ({address}) failed" in said


def test_sighup_changes_nothing(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"before"))
        nsqd.process.send_signal(signal.SIGHUP)
        daemons.until(lambda: "SIGHUP" in nsqd.stderr, what="a word about SIGHUP")
        raw.ok(pub("t", b"after"))

    assert topics(nsqd)["t"]["depth"] == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_closes_all_connections_and_ends_well(nsqd: daemons.Daemon, number: signal.Signals) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"x"))
        nsqd.process.send_signal(number)

        assert raw.ended()
        assert nsqd.process.wait(60) == 0


def test_told_to_stop_twice_it_does_not_wait(nsqd: daemons.Daemon) -> None:
    post(nsqd, "/pub?topic=t", b"x")
    with socket.create_connection(("127.0.0.1", nsqd.http_port)) as waiting:
        waiting.sendall(b"GET /debug/pprof/profile?seconds=20 HTTP/1.1\r\nHost: h\r\n\r\n")
        get(nsqd, "/ping")  # by now the one before is under way, and a stop has something to wait for
        nsqd.process.send_signal(signal.SIGTERM)
        daemons.until(lambda: "stopping" in nsqd.stderr, what="the stop")
        nsqd.process.send_signal(signal.SIGTERM)

        assert nsqd.process.wait(60) == 1
    nsqd.restart()
    assert topics(nsqd)["t"]["depth"] == 1


def test_it_outlives_its_data_directory(nsqd: daemons.Daemon, tmp_path: Path) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("t", b"x"))
        raw.subscribe("t", "c")
        while tmp_path.exists():  # nsqd may write a file meanwhile
            shutil.rmtree(tmp_path, ignore_errors=True)
        raw.ok(pub("t", b"y"))
        raw.send(b"RDY 2\n")

        assert [raw.message()[2] for _ in range(2)] == [b"x", b"y"]
    assert get(nsqd, "/stats")
    assert nsqd.stop() == 0
