"""Topics archived as Parquet on a real Spark and real brokers: every message once, and verify proves it."""

import json
import shutil
import time
import urllib.request
from pathlib import Path

import delta_tables
import pytest
from deltalake import DeltaTable
from pipeline_runs import Runs
from pyspark.sql import functions as F

from daemons import start_nsqlookupd, until
from documents import block
from lapwing.errors import ConfigError
from lapwing.spark import files
from lapwing.spark.pipelines.kinds import archive
from lapwing.spark.pipelines.run.command import RunCommand, remembered
from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest
from lapwing.spark.pipelines.settings import spec
from lapwing.spark.pipelines.settings import values as settings_module
from lapwing.spark.tables.verify import proof_text, published, verify

pytestmark = pytest.mark.spark


@pytest.fixture
def runs(spark, broker, tmp_path):
    return Runs(spark, broker, tmp_path)


def proof_of(runs):
    place = str(runs.data.parent / "archive")
    return verify(place, published=published((runs.broker.address,)))


def redo_last_batch(runs, name="archive"):
    """Make Spark believe that the last batch was not finished."""
    commits = runs.data / name / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_every_message_is_archived_once_over_runs_redone_batches_and_a_lost_checkpoint(spark, runs, broker, capsys):
    broker.publish("orders", *(b"order %d" % n for n in range(50)))
    broker.publish("payments", b"p0", b"\xff\x00")
    request = urllib.request.Request(
        f"{broker.daemon.url}/pub?topic=orders", data=b"with", headers={"X-Lapwing-Headers": json.dumps({"k": "v"})}
    )
    urllib.request.urlopen(request, timeout=60).close()

    first = runs.once("archive")

    assert (first.state, first.rows_in, first.rows_out, first.lag) == ("finished", 53, 53, 0)
    names = {"spark": spark}
    read = block("docs/reference/pipelines.md", "from deltalake import DeltaTable").text
    exec(read.replace('"lapwing-data/', f'"{runs.data.parent}/'), names)
    assert capsys.readouterr().out == "53\n"
    kept = {(row.topic, row.sequence): row for row in names["rows"].collect()}
    assert len(kept) == 53
    assert bytes(kept["payments", 1].body) == b"\xff\x00"
    assert kept["orders", 50].headers == {"k": "v"}
    facts = broker.messages("orders")[3]
    row = kept["orders", 3]
    assert (row.id, row.node, row.log_id) == (facts["id"], 1, broker.facts("orders")["log_id"])
    assert (row.date, row.hour) == (row.timestamp.date(), row.timestamp.hour)
    assert broker.depth("orders", "archive") == 0
    [shown] = broker.ask("/pipelines")["pipelines"]
    assert (shown["name"], shown["kind"], shown["state"], shown["lag"]) == ("archive", "archive", "finished", 0)

    redo_last_batch(runs)
    broker.publish("orders", *(b"more" for _ in range(7)))
    broker.publish("new", b"a topic that came later")
    second = runs.once("archive")

    proof = proof_of(runs)
    assert second.rows_out == second.rows_in == 61
    assert proof.sound
    assert {(log.topic, log.rows, log.waiting) for log in proof.logs} == {
        ("orders", 58, 0), ("payments", 2, 0), ("new", 1, 0)
    }  # fmt: skip

    shutil.copytree(runs.data / "archive" / "checkpoint", runs.data / "old")
    shutil.rmtree(runs.data / "archive" / "checkpoint")
    broker.publish("orders", b"after the checkpoint was lost")
    third = runs.once("archive")

    assert third.rows_out == 1
    assert proof_of(runs).sound
    assert delta_tables.read(spark, runs.data.parent / "archive").count() == 62
    with pytest.raises(ConfigError, match="was last written from another checkpoint"):
        runs.once("archive", checkpoint=str(runs.data / "old"))


def test_small_files_are_merged_and_the_proof_still_holds(spark, runs, broker):
    broker.publish("orders", *(b"%d" % n for n in range(40)))
    place = str(runs.data.parent / "archive")

    runs.once("archive", "topics=orders", "max_messages=8", "compact_after=3", "compression=zstd", "history=0s")

    proof = proof_of(runs)
    assert proof.sound
    assert proof.rows == 40
    assert proof.files <= 3
    assert len(list(Path(place).rglob("*.parquet"))) == proof.files
    for rows in (delta_tables.read(spark, place), archive.read(spark, place)):
        assert sorted(int(bytes(row.body)) for row in rows.select("body").collect()) == list(range(40))
    assert delta_tables.count(place) == 40


@pytest.mark.timeout(300)
def test_a_reader_of_an_archive_in_use_sees_every_message_once(spark, runs, broker):
    place = str(runs.data.parent / "archive")
    broker.publish("orders", b"0")
    runs.once("archive", "topics=orders")
    seen = [1]
    over = time.monotonic() + 200

    with runs.up("archive", "topics=orders", "trigger=100ms", "compact_after=3"):
        while merges(place) < 2 or seen[-1] < 20:
            assert time.monotonic() < over, seen
            broker.publish("orders", *(b"more" for _ in range(5)))
            rows = archive.read(spark, place)
            found = rows.agg(F.count("*"), F.countDistinct("sequence"), F.max("sequence")).first()
            assert found[0] == found[1] == found[2] + 1
            seen.append(found[0])

    assert seen == sorted(seen)
    assert proof_of(runs).sound


def merges(place):
    return sum(commit["operation"] == "OPTIMIZE" for commit in DeltaTable(place).history())


def test_a_place_that_cannot_be_written_or_a_broker_that_is_away_is_said_before_spark_starts(runs, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(ConfigError, match="cannot write there"):
        runs.made("archive", f"out={blocked}/archive")
    runs.broker.daemon.kill()
    with pytest.raises(ConfigError, match=r"no nsqd answers: .* is it running\?"):
        runs.made("archive", "retry=0s")


def test_an_archive_whose_files_are_gone_is_not_begun_again_behind_them(runs, broker):
    broker.publish("orders", b"1", b"2")
    runs.once("archive")
    place = runs.data.parent / "archive"
    place.rename(place.with_name("elsewhere"))  # or its disk is not mounted
    broker.publish("orders", b"3")

    with pytest.raises(ConfigError, match=r"archive has no batch after -1, and its checkpoint has finished batch 1"):
        runs.once("archive")
    shutil.rmtree(place)
    place.with_name("elsewhere").rename(place)
    runs.once("archive")
    assert proof_of(runs).sound
    assert archive.read(runs.spark, str(place)).count() == 3


def test_a_log_that_was_wiped_stops_the_archive_unless_told_to_go_on(runs, broker):
    broker.publish("orders", b"1", b"2", b"3")
    runs.once("archive", "topics=orders")
    broker.ask("/topic/delete?topic=orders", b"")
    broker.publish("orders", b"new 1")

    command = RunCommand(["archive"], ["topics=orders"], {"nsqd": [broker.address]}, once=True)
    running = command.running(runs.data)
    assert not running.run(runs.spark, lambda progress: None)
    complaint = running.jobs[0].progress.error
    assert running.jobs[0].progress.lag is None

    assert "now there is a new log" in complaint
    resume = f"lapwing pipeline resume archive --accept-loss --data {runs.data}"
    assert complaint.endswith(f"(`{resume}` continues from here)")
    assert remembered(runs.data, "archive", once=True).specs == command.specs
    resumed = remembered(runs.data, "archive", once=True, accept_loss=True)
    assert resumed.running(runs.data).run(runs.spark, lambda progress: None)
    broker.publish("orders", b"new 2")
    runs.once("archive", "topics=orders")
    proof = proof_of(runs)
    assert proof.sound
    assert [(log.rows, log.ended) for log in sorted(proof.logs, key=lambda log: log.rows)] == [(2, False), (3, True)]


def test_an_archive_of_all_topics_goes_on_without_one_that_was_deleted(runs, broker):
    broker.publish("orders", b"1")
    broker.publish("gone", b"1", b"2")
    broker.publish("lapwing_bench_1_2", b"x")
    runs.once("archive")
    broker.ask("/topic/delete?topic=gone", b"")
    broker.ask("/topic/delete?topic=lapwing_bench_1_2", b"")
    broker.publish("orders", b"2")
    runs.once("archive")

    proof = proof_of(runs)
    assert proof.sound
    assert {(log.topic, log.rows, log.ended) for log in proof.logs} == {("orders", 2, False), ("gone", 2, True)}
    assert f"DELETED  topic gone, node 1, log {proof.logs[0].log_id}: the topic was deleted" in proof_text(proof)
    assert proof_text(proof).endswith("complete: every message of these ranges is there exactly once")


def test_an_archive_on_a_file_system_that_only_spark_can_reach(spark, runs, broker, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "is_local", lambda place: "://" not in place)
    monkeypatch.setattr(files, "plain_place", lambda place: place)
    monkeypatch.setattr(settings_module, "plain_place", lambda place: place)
    place = (tmp_path / "far").as_uri()
    settings = ["topics=orders#ephemeral", f"out={place}", "max_messages=4", "compact_after=3"]
    broker.ask("/topic/create?topic=orders%23ephemeral", b"")
    broker.publish("orders%23ephemeral", *(b"%d" % n for n in range(10)))

    runs.once("archive", *settings)
    broker.publish("orders%23ephemeral", b"10")
    runs.once("archive", *settings)

    rows = archive.read(spark, place).select("sequence", "topic").collect()
    assert sorted(rows) == [(n, "orders#ephemeral") for n in range(11)]
    proof = verify(place)
    assert (proof.sound, proof.rows, proof.place) == (True, 11, place)
    name = DeltaTable(place).file_uris()[0].rpartition("/")[2]
    next((tmp_path / "far").rglob(name)).unlink()
    [fault] = verify(place).faults
    assert name in fault


def test_brokers_are_found_through_nsqlookupd(spark, start_broker, tmp_path):
    with start_nsqlookupd() as lookupd:
        flags = f"--lookupd-tcp-address={lookupd.tcp}"
        brokers = [start_broker(flags), start_broker(flags)]
        for number, each in enumerate(brokers):
            each.publish("orders", *(b"%d" % number for _ in range(number + 2)))
        nodes = f"{lookupd.url}/nodes"
        until(lambda: urllib.request.urlopen(nodes, timeout=60).read().count(b'"orders"') == 2, seconds=60)
        settings = [f"lookupd={lookupd.http}", "topics=orders"]
        [found] = spec.load("archive", settings)
        running = PipelineRun([found], RunRequest(tmp_path / "pipelines", once=True))
        running.check()

        assert running.run(spark, lambda progress: None)

    proof = verify(str(tmp_path / "archive"))
    assert [(log.node, log.rows) for log in proof.logs] == [(1, 2), (2, 3)]


def test_a_broker_that_stays_away_ends_the_pipeline_with_one_line(runs, broker):
    broker.publish("orders", b"1")
    running = runs.made("archive", "topics=orders", "retry=1s")
    broker.daemon.kill()

    assert not running.run(runs.spark, lambda progress: None)

    complaint = running.jobs[0].progress.error
    assert "connection refused" in complaint
    assert "tried for 1 s" in complaint
    assert "\n" not in complaint
