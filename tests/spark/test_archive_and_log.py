"""`option("archive", path)`: an archive and the brokers' logs as one table, each message once."""

import json
import random
import threading
import time

import delta_tables
import pytest
from driven import DrivenQuery
from pipeline_runs import Runs

from daemons import until
from lapwing.errors import LapwingError
from lapwing.spark.data_source import columns
from lapwing.spark.options import OptionError, source_options
from lapwing.spark.source.batch_reader import LogBatchReader
from lapwing.spark.source.offsets import ENDED_LOG, HeldLog, LogPosition, LogRange, adopt, divide

RANGE = LogRange("t", 1, "l", 0, 100, "a:1")


def spans(ranges):
    return [(each.start, each.stop) for each in ranges]


@pytest.mark.parametrize(
    ("archived", "kept", "live", "old", "lost"),
    [
        ((0, 60), 0, [(60, 100)], [(0, 60)], []),
        ((0, 60), 40, [(60, 100)], [(0, 60)], []),
        ((0, 60), 70, [(70, 100)], [(0, 60)], [(60, 70)]),
        ((20, 60), 0, [(0, 20), (60, 100)], [(20, 60)], []),
        ((20, 60), 10, [(10, 20), (60, 100)], [(20, 60)], [(0, 10)]),
        ((0, 100), 0, [], [(0, 100)], []),
        ((200, 300), 0, [(0, 100)], [], []),
        (None, 0, [(0, 100)], [], []),
    ],
)
def test_a_range_is_read_from_the_archive_as_far_as_that_has_it(archived, kept, live, old, lost):
    held = HeldLog("l", 0, 100, address="a:1", archived=archived, kept=kept)
    found = divide([RANGE], {"t": {1: held}})

    assert (spans(found[0]), spans(found[1])) == (live, old)
    assert [each.text for each in found[2]] == [
        f"topic t, node 1 (a:1), log l, sequences [{a}, {b}): deleted by retention before they were archived"
        for a, b in lost
    ]


def test_a_log_that_has_ended_begins_where_the_query_was_in_it():
    old = HeldLog("old", 0, 50, archived=(0, 50))
    holdings = {"t": {1: HeldLog("new", 0, 5), ENDED_LOG + 1: old}}
    position = {"t": {1: LogPosition("old", 30)}}

    assert adopt(holdings, position)["t"][ENDED_LOG + 1].first == 30
    assert adopt(holdings, position)["t"][1].first == 0
    assert adopt(holdings, {})["t"][ENDED_LOG + 1].first == 0


def test_what_is_no_archive_is_refused(tmp_path, broker):
    base = {"nsqd": broker.address, "topic": "orders"}
    with pytest.raises(OptionError, match="option archive: there is no directory"):
        source_options({**base, "archive": str(tmp_path / "nowhere")}, streaming=False)
    with pytest.raises(OptionError, match="option archive is a path that every machine"):
        source_options({**base, "archive": "s3a://bucket/x"}, streaming=False)
    with pytest.raises(LapwingError, match=r"option archive: .*no archive is there"):
        rows(broker, tmp_path)


def rows(broker, place, **options):
    """All rows of a batch read, without Spark: (node, sequence, body)."""
    raw = {"nsqd": broker.address, "topic": "orders", "archive": str(place), **options}
    reader = LogBatchReader(source_options(raw, streaming=False), columns(raw))
    found = []
    for task in reader.partitions():
        for batch in reader.read(task):
            found += zip(*(batch.column(name).to_pylist() for name in ("node", "sequence", "body")), strict=True)
    return found


def numbers(found):
    return sorted(int(row[-1][:6]) for row in found)


def fill(broker, start, stop):
    for low in range(start, stop, 20):
        broker.publish("orders", *(b"%06d" % n + b"." * 300 for n in range(low, min(low + 20, stop))))


@pytest.fixture
def small(start_broker):
    """A broker that deletes segments of 4 KB as soon as every channel is done with them."""
    return start_broker("--max-bytes-per-file=4096")


@pytest.mark.spark
def test_archive_and_log_are_one_table_also_for_logs_that_were_deleted(spark, small, tmp_path):
    runs = Runs(spark, small, tmp_path)
    place = runs.data.parent / "archive"
    fill(small, 0, 200)
    runs.once("archive", "topics=orders")
    until(lambda: small.facts("orders")["first"] > 100, seconds=60)
    fill(small, 200, 250)
    assert sorted(rows(small, place)) == [(1, n, b"%06d" % n + b"." * 300) for n in range(250)]
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW whole USING lapwing "
        f"OPTIONS (topic 'orders', archive '{place}', nsqd '{small.address}')"
    )
    assert tuple(spark.sql("select count(*), count(distinct sequence) from whole").first()) == (250, 250)
    early = int(time.time() * 1000) - 3_600_000
    assert numbers(rows(small, place, startingTimestamp=str(early))) == list(range(250))

    query = DrivenQuery([small], archive=str(place), channel="lake", maxMessagesPerTrigger="70")
    first = query.batch() + query.batch() + query.batch()  # the first one only records where the query begins
    assert [row[2] for row in first] == list(range(140))
    query.restart()
    query.catch_up()
    assert numbers(query.rows) == list(range(250))
    assert small.depth("orders", "lake") == 0

    small.ask("/topic/delete?topic=orders", b"")
    fill(small, 250, 270)
    query.raw |= {"topicPattern": "orders"}
    del query.raw["topic"]
    query.restart()
    query.catch_up()
    assert numbers(query.rows) == list(range(270))
    runs.once("archive", "topics=orders", "accept_loss=true")
    assert numbers(rows(small, place)) == [*range(200), *range(250, 270)]


@pytest.mark.spark
def test_messages_that_an_archive_lacks_in_its_midst_are_data_loss(spark, small, tmp_path):
    runs = Runs(spark, small, tmp_path)
    place = runs.data.parent / "archive"
    fill(small, 0, 40)
    runs.once("archive", "topics=orders")
    small.ask("/channel/create?topic=orders&channel=other", b"")
    small.ask("/channel/delete?topic=orders&channel=archive", b"")
    fill(small, 40, 200)
    small.ask("/channel/empty?topic=orders&channel=other", b"")
    until(lambda: small.facts("orders")["first"] > 100, seconds=60)
    first = small.facts("orders")["first"]
    runs.once("archive", "topics=orders", "accept_loss=true")

    with pytest.raises(Exception, match=f": {first - 40} messages are not in the archive"):
        rows(small, place)
    assert numbers(rows(small, place, failOnDataLoss="false")) == [*range(40), *range(first, 200)]


@pytest.mark.spark
def test_counts_are_exact_at_any_moment_while_files_are_merged_and_retention_deletes(spark, small, tmp_path):
    runs = Runs(spark, small, tmp_path)
    place = runs.data.parent / "archive"
    fill(small, 0, 40)
    published = 40
    stop = threading.Event()

    def publish():
        nonlocal published
        while not stop.is_set():
            fill(small, published, published + 20)
            published += 20
            stop.wait(0.05)

    settings = ["topics=orders", "trigger=100ms", "compact_after=3", "max_messages=200"]
    with runs.up("archive", *settings):
        until(lambda: list(place.glob("topic=*/**/*.parquet")), seconds=60)  # files of unfinished batches come and go
        thread = threading.Thread(target=publish)
        thread.start()
        chance = random.Random(1)
        seen = []
        try:
            for _ in range(10):
                before = published
                found = numbers(rows(small, place))
                assert found == list(range(len(found)))
                assert len(found) >= before
                seen.append(small.facts("orders")["first"])
                stop.wait(chance.random() / 2)
        finally:
            stop.set()
            thread.join()
        until(lambda: small.facts("orders")["first"] > 0, seconds=60)
        assert numbers(rows(small, place)) == list(range(published))
    assert seen == sorted(seen)


@pytest.mark.spark
def test_a_table_and_a_transform_begin_with_the_archive(spark, small, tmp_path):
    runs = Runs(spark, small, tmp_path)
    bodies = [b'{"n": %d, "pad": "%s"}' % (n, b"." * 300) for n in range(70)]
    small.publish("orders", *bodies[:30])
    small.publish("orders", *bodies[30:60])
    runs.once("archive", "topics=orders")
    until(lambda: small.facts("orders")["first"] > 0, seconds=60)
    small.publish("orders", *bodies[60:])
    settings = ["topics=orders", "schema=n int", f"archive={runs.data.parent / 'archive'}"]
    table = runs.once("table", *settings, "partition=none")
    transform = runs.once("transform", *settings, "sql=select n * 2 as twice from input", "to=doubled")

    assert [done.rows_in for done in (table, transform)] == [70, 70]
    found = delta_tables.read(spark, runs.data.parent / "table")
    assert sorted(row.n for row in found.collect()) == list(range(70))
    assert sorted(json.loads(body)["twice"] for body in small.bodies("doubled")) == list(range(0, 140, 2))
