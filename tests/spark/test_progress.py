"""How pipelines report their progress."""

import json
import os
import time

import pytest

from daemons import until
from lapwing.cli.pipeline import status
from lapwing.spark.options import BrokerAccess
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.run.progress import PipelineProgress, ProgressReporter, from_spark

RECORD = PipelineProgress("lake", "archive", ("orders",), "lake", state="running")


def test_brokers_that_do_not_take_a_report_are_away_until_they_do(broker):
    messenger = ProgressReporter((broker.address, "127.0.0.1:1"), BrokerAccess())
    broker.daemon.kill()
    try:
        messenger.send(RECORD)
        until(lambda: len(messenger.away) == 2)
        broker.daemon.restart()
        messenger.send(RECORD)
        until(lambda: len(messenger.away) == 1)

        assert messenger.away == ("127.0.0.1:1: connection refused",)
        assert [each["name"] for each in broker.ask("/pipelines")["pipelines"]] == ["lake"]
    finally:
        messenger.close()


def test_a_record_says_when_the_last_batch_ended():
    told = {"batchId": 3, "durationMs": {"addBatch": 5, "triggerExecution": 9}, "sources": []}
    first = from_spark(RECORD, told)
    again = from_spark(first, told)

    assert time.time() - first.batch_at_ms / 1000 < 60
    assert again.batch_at_ms == first.batch_at_ms


def test_a_process_that_is_gone_or_does_not_report_is_not_called_running(tmp_path):
    home = PipelineHome(tmp_path / "lake")
    presence = home.enter()
    presence.write_status({"state": "running", "updated_ms": (time.time() - 5) * 1000})
    assert (home.status()["state"], home.status()["pid"]) == ("running", os.getpid())
    presence.write_status({"state": "running", "lag": 0, "updated_ms": (time.time() - 90) * 1000})
    assert (home.status()["state"], home.status()["lag"]) == ("silent", None)
    assert "has not reported for 90 s" in home.status()["error"]
    presence.leave()

    assert (home.status()["state"], home.status()["lag"]) == ("dead", None)
    assert json.loads((tmp_path / "lake" / "status.json").read_text())["state"] == "running"


def test_status_shows_no_batch_before_the_first_one_and_no_lag_of_the_dead(tmp_path, capsys):
    for name, last in (("new", -1), ("old", 7)):
        presence = PipelineHome(tmp_path / name).enter()
        presence.write_status({"kind": "table", "state": "running", "batch_id": last, "batch_ms": 2000, "lag": 0})
        presence.leave()

    with pytest.raises(SystemExit):
        status(data=tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[0][:5] == ["new", "table", "dead", "0", "?"]
    assert rows[1][:7] == ["old", "table", "dead", "7", "2s", "0", "?"]
