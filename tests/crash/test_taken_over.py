"""A node with a remote log that is stopped, replaced, started again or twice, as clients and people see it."""

import json
import os
import shutil
import signal
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from talking import Talk

import daemons
from daemons import Daemon


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator["Nodes"]:
    nodes = Nodes(tmp_path)
    yield nodes
    for node in nodes.started:
        node.kill()


class Nodes:
    """Processes that use one remote log, in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path / "remote"
        self.place.mkdir()
        self.started: list[Daemon] = []

    def flags(self, *flags: str) -> list[str]:
        return ["--durability=replicated", f"--remote=file://{self.place}", *flags]

    def start(self, data: str, *flags: str) -> Daemon:
        node = daemons.start_nsqd(self.path / data, *self.flags(*flags), env={})
        self.started.append(node)
        return node

    def refused(self, data: str, *flags: str) -> tuple[int, str]:
        """Start a node that ends by itself: its exit status, and its last line."""
        command = [
            *daemons.program("nsqd"), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
            f"--data-path={self.path / data}", *self.flags(*flags),
        ]  # fmt: skip
        status, text = daemons.failed_start(command)
        return status, text.splitlines()[-1]


def ask(node: Daemon, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"{node.url}{path}", data=body, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def publish(node: Daemon, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        assert ask(node, f"/pub?topic={topic}", body) == (200, b"OK")


def bodies(node: Daemon, topic: str) -> list[str]:
    return [each["body"] for each in json.loads(ask(node, f"/log/read?topic={topic}")[1])["messages"]]


def test_a_node_that_stopped_cleanly_is_followed_without_a_word(nodes: Nodes):
    first = nodes.start("a", "--node-id=7")
    publish(first, "orders", b"one", b"two")
    assert first.stop() == 0

    second = nodes.start("b", "--node-id=9")
    publish(second, "orders", b"three")
    found = json.loads(ask(second, "/log/read?topic=orders")[1])["messages"]
    assert [each["body"] for each in found] == ["one", "two", "three"]
    assert [int(each["id"], 16) for each in found] == [(7 << 54) + number for number in range(3)]


def test_the_same_node_starts_again_after_a_kill_without_taking_over(nodes: Nodes):
    first = nodes.start("a")
    ask(first, "/topic/create?topic=orders", b"")
    ask(first, "/channel/create?topic=orders&channel=c", b"")
    publish(first, "orders", b"one", b"two")
    first.kill()

    again = nodes.start("a")
    assert bodies(again, "orders") == ["one", "two"]
    publish(again, "orders", b"three")
    again.kill()
    shutil.rmtree(nodes.path / "a")
    elsewhere = nodes.start("b", "--take-over")
    assert bodies(elsewhere, "orders") == ["one", "two", "three"]


def test_a_start_elsewhere_is_refused_until_somebody_takes_over(nodes: Nodes):
    first = nodes.start("a")
    first.kill()

    status, line = nodes.refused("b")
    assert status == 1
    assert "127.0.0.1:0 (process" in line
    assert "has not released it; if that process is gone, start with --take-over" in line
    nodes.start("b", "--take-over")


def test_a_process_that_stood_still_acknowledges_nothing_after_it_was_replaced(nodes: Nodes):
    old = nodes.start("a")
    publish(old, "orders", b"before")
    talk = Talk(old.tcp_port)
    os.kill(old.pid, signal.SIGSTOP)
    new = nodes.start("b", "--take-over")
    publish(new, "orders", b"after")
    talk.send(b"PUB orders\n" + struct.pack(">I", 4) + b"lost")
    os.kill(old.pid, signal.SIGCONT)

    kind, payload = talk.frame()
    talk.close()
    assert kind == 1
    assert payload.startswith(b"E_PUB_FAILED")
    assert old.ended() == 3
    last = old.stderr.splitlines()[-1]
    assert "this node was replaced" in last
    assert "taken over by 127.0.0.1:0 (process" in last
    assert bodies(new, "orders") == ["before", "after"]


def test_an_idle_process_notices_that_it_was_replaced(nodes: Nodes):
    old = nodes.start("a")
    nodes.start("b", "--take-over")

    assert old.ended() == 3


def test_what_a_replaced_machine_never_acknowledged_is_kept_aside(nodes: Nodes):
    old = nodes.start("a")
    publish(old, "orders", b"before")
    os.kill(old.pid, signal.SIGSTOP)
    new = nodes.start("b", "--take-over")
    publish(new, "orders", b"after")
    old.kill()
    new.stop()

    returned = nodes.start("a")
    assert bodies(returned, "orders") == ["before", "after"]
    assert (nodes.path / "a.fenced-1" / "topics").is_dir()


def test_a_folder_whose_disk_is_not_mounted_passes_for_no_empty_one(nodes: Nodes):
    disk = nodes.path / "disk"
    node = nodes.start("a")
    publish(node, "orders", b"one")
    nodes.place.rename(disk)
    nodes.place.mkdir()

    status, answer = ask(node, "/pub?topic=orders", b"refused")
    assert status == 503
    assert b"is the disk mounted" in answer
    node.kill()
    status, line = nodes.refused("a")
    assert status == 1
    assert "is empty; is the disk mounted" in line

    assert list(nodes.place.iterdir()) == []
    nodes.place.rmdir()
    disk.rename(nodes.place)
    again = nodes.start("a")
    publish(again, "orders", b"two")
    assert bodies(again, "orders")[0] == "one"
    assert bodies(again, "orders")[-1] == "two"


def test_a_remote_log_inside_of_the_data_path_is_refused(nodes: Nodes):
    status, line = nodes.refused(".")

    assert status == 1
    assert "is inside of the data path" in line


def test_of_eight_that_claim_together_one_serves(nodes: Nodes):
    commands = [
        [
            *daemons.program("nsqd"), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
            f"--data-path={nodes.path / str(number)}", *nodes.flags(),
        ]
        for number in range(8)
    ]  # fmt: skip
    processes = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in commands]
    try:
        daemons.until(lambda: sum(each.poll() is not None for each in processes) >= 7)
        time.sleep(0.2)
        left = [each for each in processes if each.poll() is None]
        assert len(left) == 1
        assert {each.returncode for each in processes if each is not left[0]} <= {1, 3}
    finally:
        for each in processes:
            each.kill()
            each.communicate()


def test_a_data_path_of_before_becomes_the_remote_log(nodes: Nodes):
    (nodes.path / "a").mkdir()
    plain = daemons.start_nsqd(nodes.path / "a", env={})
    publish(plain, "orders", b"one")
    plain.stop()
    adopted = nodes.start("a")
    publish(adopted, "orders", b"two")
    adopted.kill()
    shutil.rmtree(nodes.path / "a")

    assert bodies(nodes.start("b", "--take-over"), "orders") == ["one", "two"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--durability=replicated"], "needs a place for the remote log: give --remote=URL"),
        (["--remote=file:///tmp"], "--remote has no effect with --durability=os"),
        (["--take-over"], "--take-over has no effect with --durability=os"),
        (["--remote-interval=1s"], "--remote-interval has no effect with --durability=os: give"),
        (["--remote-lag=1s", "--durability=fsync"], "--remote-lag has no effect with --durability=fsync"),
        (["--remote-batch-bytes=65536"], "--remote-batch-bytes has no effect with --durability=os"),
        (["--remote-checkpoint=1048576"], "--remote-checkpoint has no effect with --durability=os"),
        (["--durability=replicated", "--remote=ftp://x/y"], "no place for a remote log"),
        (["--durability=replicated", "--remote=file:///tmp", "--remote-lag=0s"], "--remote-lag must be at least 1s"),
    ],
)
def test_flags_that_cannot_work_are_refused(flags: list[str], sentence: str, tmp_path: Path):
    status, text = daemons.failed_start([*daemons.program("nsqd"), f"--data-path={tmp_path}", *flags])

    assert status == 1
    assert sentence in text.splitlines()[-1]


def test_while_the_engine_is_away_publishes_are_refused_and_consumers_served(nodes: Nodes):
    node = nodes.start("a", "--remote-lag=1s")
    ask(node, "/topic/create?topic=orders", b"")
    ask(node, "/channel/create?topic=orders&channel=c", b"")
    publish(node, "orders", b"one")
    away = nodes.place.with_name("away")
    nodes.place.rename(away)
    status, answer = ask(node, "/pub?topic=orders", b"two")
    assert status == 503
    assert b"NOT_REPLICATED" in answer
    assert ask(node, "/ping")[0] == 500
    assert bodies(node, "orders") == ["one"]  # what no record has is shown to nobody
    assert json.loads(ask(node, "/log/offsets?topic=orders")[1])["topics"][0]["next"] == 1
    assert json.loads(ask(node, "/stats?format=json")[1])["remote"]["problem"]
    consumer = Talk(node.tcp_port)
    consumer.send(b"SUB orders c\n")
    assert consumer.frame() == (0, b"OK")
    consumer.send(b"RDY 10\n")
    assert consumer.frame()[1].endswith(b"one")
    consumer.close()
    away.rename(nodes.place)

    daemons.until(lambda: ask(node, "/ping")[0] == 200)
    publish(node, "orders", b"three")
    assert bodies(node, "orders")[-1] == "three"


def test_topics_that_were_deleted_and_created_again_are_the_new_ones(nodes: Nodes):
    node = nodes.start("a")
    publish(node, "orders", b"old")
    publish(node, "gone", b"old")
    ask(node, "/topic/delete?topic=orders", b"")
    ask(node, "/topic/delete?topic=gone", b"")
    publish(node, "orders", b"new")
    node.kill()

    after = nodes.start("b", "--take-over")
    assert bodies(after, "orders") == ["new"]
    assert [topic["topic_name"] for topic in json.loads(ask(after, "/stats?format=json")[1])["topics"]] == ["orders"]


def test_records_that_are_too_long_and_checkpoints_lose_nothing(nodes: Nodes):
    flags = "--remote-batch-bytes=1048576", "--remote-checkpoint=1048576"
    node = nodes.start("a", *flags)
    ask(node, "/topic/create?topic=orders", b"")
    ask(node, "/channel/create?topic=orders&channel=c", b"")
    sent = []
    for number in range(40):
        size = 20_000 if number % 10 == 3 else 2000
        lines = [b"%d.%d %s" % (number, each, b"x" * size) for each in range(100)]
        assert ask(node, "/mpub?topic=orders", b"\n".join(lines)) == (200, b"OK")
        publish(node, "other", b"%d" % number)
        sent += [line.split()[0].decode() for line in lines]
    daemons.until(lambda: json.loads(ask(node, "/stats?format=json")[1])["remote"]["checkpoints"] >= 2)
    publish(node, "orders", b"last x")
    node.kill()
    shutil.rmtree(nodes.path / "a")

    after = nodes.start("b", "--take-over", *flags)
    found = []
    while len(found) < 4001:
        answer = json.loads(ask(after, f"/log/read?topic=orders&from={len(found)}&limit=1000")[1])
        found += [each["body"].split()[0] for each in answer["messages"]]
    assert found == [*sent, "last"]
    assert bodies(after, "other") == [str(number) for number in range(40)]
    assert len(list((nodes.place / "records").iterdir())) < 400  # checkpoints have replaced the others
    verified = subprocess.run(
        [*daemons.program("lapwing"), "remote", "verify", f"file://{nodes.place}"], capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stdout


def test_schedules_settings_and_pauses_are_taken_over(nodes: Nodes):
    node = nodes.start("a")
    ask(node, "/topic/create?topic=orders", b"")
    ask(node, "/channel/create?topic=orders&channel=c", b"")
    ask(node, "/channel/pause?topic=orders&channel=c", b"")
    request = urllib.request.Request(
        f"{node.url}/schedules/daily", data=b'{"topic": "orders", "body": "b", "every": "1d"}', method="PUT"
    )
    urllib.request.urlopen(request).close()
    publish(node, "orders", b"one")
    node.kill()

    after = nodes.start("b", "--take-over")
    assert b"daily" in ask(after, "/schedules")[1]
    found = json.loads(ask(after, "/stats?format=json")[1])["topics"][0]["channels"][0]
    assert found["paused"] is True
    assert found["depth"] >= 1


def test_a_copy_of_a_data_path_is_not_that_of_the_owner(nodes: Nodes):
    node = nodes.start("a")
    publish(node, "orders", b"one")
    shutil.copytree(nodes.path / "a", nodes.path / "copy")

    status, line = nodes.refused("copy")
    assert status == 1
    assert "has not released it" in line
    assert node.process.poll() is None
