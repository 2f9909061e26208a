"""Messages published again, from a log and from an archive: once, however often the replay is started."""

import json

import pytest
from pipeline_runs import Runs

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.kinds.replay import ReplayPlan, ReplayRange, chunk_size
from lapwing.spark.pipelines.settings.kind_settings import ReplaySettings

pytestmark = pytest.mark.spark


@pytest.fixture
def broker(start_broker):
    """A broker of the test's own, as one remembers what was replayed."""
    return start_broker()


@pytest.fixture
def runs(spark, broker, tmp_path):
    return Runs(spark, broker, tmp_path)


def numbers(broker, topic):
    return [int(body) for body in broker.bodies(topic)]


def test_a_replay_from_the_log_is_filtered_changed_dry_run_and_safe_to_repeat(runs, broker, capsys):
    broker.publish("orders", *(b"%d" % n for n in range(30)))
    settings = ["topics=orders", "to=again", "where=cast(text as int) % 2 = 0", "sequences=10..20"]

    dry = runs.once("replay", *settings, "dry_run=true", "select=concat('1', text)")
    assert (dry.total, dry.lag) == (5, None)
    assert "5 messages to again" in capsys.readouterr().out
    assert "again" not in [topic["topic"] for topic in broker.ask("/log/offsets")["topics"]]

    first = runs.once("replay", *settings, "select=concat('1', text)", "chunk=3")
    second = runs.once("replay", *settings, "select=concat('1', text)")

    assert numbers(broker, "again") == [110, 112, 114, 116, 118]
    assert broker.messages("again")[0]["headers"]["origin"] == "orders/1/10"
    assert (first.state, first.rows_out) == ("finished", 5)
    assert (second.state, second.rows_out, second.lag) == ("finished", None, 0)


def test_a_replay_that_is_cut_off_goes_on_and_publishes_nothing_twice(runs, broker):
    broker.publish("orders", *(b"%d" % n for n in range(12)))
    settings = ["topics=orders", "to=again", "id=mine", "chunk=4"]
    runs.once("replay", *settings)
    plan = runs.data / "replay" / "replay-mine.json"
    kept = json.loads(plan.read_text())
    # as if it had been killed after its second chunk was published, before that was noted
    plan.write_text(json.dumps({**kept, "done": 1, "sent": 4}))
    broker.publish("orders", b"99")

    runs.once("replay", *settings)

    assert numbers(broker, "again") == list(range(12))
    with pytest.raises(ConfigError, match="the replay mine was begun with another where"):
        runs.once("replay", *settings, "where=1 = 1")


def test_a_replay_does_not_go_on_in_a_log_that_was_made_anew(runs, broker):
    broker.publish("orders", *(b"%d" % n for n in range(12)))
    settings = ["topics=orders", "to=again", "id=mine", "chunk=4"]
    runs.once("replay", *settings)
    plan = runs.data / "replay" / "replay-mine.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "done": 1, "sent": 4, "id": "other"}))
    plan.rename(plan.with_name("replay-other.json"))
    broker.ask("/topic/delete?topic=orders", b"")
    broker.publish("orders", *(b"%d" % n for n in range(100, 112)))

    running = runs.made("replay", "topics=orders", "to=again", "id=other", "chunk=4")

    assert not running.run(runs.spark, lambda progress: None)
    assert "topic orders, node 1: the topic was created again" in running.jobs[0].progress.error
    assert "now there is a new log" in running.jobs[0].progress.error
    assert numbers(broker, "again") == list(range(12))


def test_chunks_hold_a_second_of_messages_however_sparse_they_are():
    sparse = (ReplayRange("orders", 1, "", 0, 1_000_000, 1000),)

    assert chunk_size(ReplaySettings(rate=10), sparse) == 10_000
    assert chunk_size(ReplaySettings(chunk=500), sparse) == 500_000
    assert chunk_size(ReplaySettings(rate=10), ()) == 1
    assert len(ReplayPlan("x", {}, (), 300_000, sparse).chunks()) == 4


def test_a_replay_stops_after_its_chunk_and_keeps_to_its_rate(runs, broker):
    broker.publish("orders", *(b"%d" % n for n in range(60)))
    settings = ["topics=orders", "to=again", "rate=10"]

    with runs.up("replay", *settings) as running:
        from daemons import until

        until(lambda: (running.jobs[0].look().rows_out or 0) > 0, seconds=60)
    stopped = running.jobs[0].progress
    assert stopped.state == "stopped"
    assert 0 < stopped.rows_out < 60
    assert stopped.rows_out % 10 == 0
    runs.once("replay", "topics=orders", "to=again")

    assert numbers(broker, "again") == list(range(60))


def test_a_replay_from_an_archive_by_time(runs, broker):
    broker.publish("orders", b"0", b"1")
    middle = int(broker.messages("orders")[1]["timestamp"]) // 1_000_000 + 1
    import time

    from daemons import until

    until(lambda: time.time() * 1000 > middle + 1)
    broker.publish("orders", b"2", b"3")
    broker.publish("others", b"9")
    runs.once("archive")
    broker.ask("/topic/delete?topic=orders", b"")

    runs.once("replay", "topics=orders", "to=late", f"archive={runs.data.parent}/archive", f"since={middle}")
    runs.once("replay", "topics=orders", "to=early", f"archive={runs.data.parent}/archive", f"until={middle}")

    assert numbers(broker, "late") == [2, 3]
    assert numbers(broker, "early") == [0, 1]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("where=txet like 'x'", "where: .*`txet` cannot be resolved"),
        ("select=upper(", "select: Syntax error"),
        ("topics=nothing", "replay: no broker has the topic nothing"),
        ("where=cast(text as int) = 1", "replay: .*cannot be cast"),
        ("archive=/tmp", "/tmp: no archive is there"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_published(runs, broker, setting, complaint):
    broker.publish("orders", b"0", b"no number")
    with pytest.raises(ConfigError, match=complaint):
        runs.once("replay", "topics=orders", "to=again", setting)
