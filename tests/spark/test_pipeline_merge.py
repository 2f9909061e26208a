"""Small files merged into large ones: every row once, for readers who come at any moment and after any crash."""

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from lapwing.errors import LapwingError
from lapwing.spark.pipelines import manifest_table as tables
from lapwing.spark.pipelines import merge as merging
from lapwing.spark.pipelines import verify as v
from lapwing.spark.pipelines.compact import MergeSettings, compact
from lapwing.spark.pipelines.files import LocalFiles
from lapwing.spark.pipelines.manifest_table import ManifestTable
from lapwing.spark.pipelines.merge import merge
from lapwing.spark.pipelines.verify import proof_text

FOLDER = "topic=orders/date=2999-11-15/hour=10"
ORDER = ("node", "log_id", "sequence")


def rows(first, stop, node=1, log_id="log", body=b"x"):
    count = stop - first
    return pa.table({
        "node": pa.array([node] * count, pa.int32()),
        "log_id": pa.array([log_id] * count),
        "sequence": pa.array(range(first, stop), pa.int64()),
        "timestamp": pa.array([datetime(2026, 11, 15, 10, tzinfo=UTC)] * count, pa.timestamp("us", tz="UTC")),
        "body": pa.array([body] * count, pa.binary()),
    })  # fmt: skip


def writing(*parts, folder=FOLDER):
    def write(place):
        Path(place, folder).mkdir(parents=True)
        for index, part in enumerate(parts):
            parquet.write_table(part, f"{place}/{folder}/part-{index}.parquet")

    return write


def until(sequence):
    return {"orders": {"1": {"log_id": "log", "sequence": sequence}}}


def opened(path):
    made = ManifestTable(LocalFiles(path))
    made.open()
    return made


def filled(path, batches):
    table = opened(path)
    for batch in range(batches):
        table.add("q", batch, until(batch * 5 + 5), writing(rows(batch * 5, batch * 5 + 5)))
    return table


def settings(after=2):
    return MergeSettings(after, 1 << 20, ORDER)


class Killed(OSError):
    pass


def kill_before_exchange(files, monkeypatch):
    monkeypatch.setattr(files, "exchange", killed)


def kill_after_exchange(files, monkeypatch):
    real = files.exchange

    def dying(*arguments):
        assert real(*arguments)
        killed()

    monkeypatch.setattr(files, "exchange", dying)


def kill_while_deleting_one_by_one(files, monkeypatch):
    real = files.delete

    def dying(path):
        if path.endswith("00000003-0.parquet"):
            killed()
        real(path)

    monkeypatch.setattr(files, "exchange", lambda *_: False)
    monkeypatch.setattr(files, "delete", dying)


def killed(*_):
    raise Killed("killed here")


@pytest.mark.parametrize("kill", [kill_before_exchange, kill_after_exchange, kill_while_deleting_one_by_one])
def test_a_merge_that_is_interrupted_is_finished_by_the_next_who_opens(tmp_path, monkeypatch, kill):
    table = filled(tmp_path, 4)
    with monkeypatch.context() as patch:
        kill(table._files, patch)
        with pytest.raises(Killed):
            compact(None, table, settings())
    table._files.release()

    assert v.verify(str(tmp_path)).rows == 20  # also before anybody has opened it again
    again = opened(tmp_path)

    assert len(again.contents.parts) == 1
    assert len(list(LocalFiles(tmp_path).walk("topic=orders"))) == 1
    assert v.verify(str(tmp_path)).sound
    assert again.has("q", 3)
    again.add("q", 4, until(25), writing(rows(20, 25)))
    assert v.verify(str(tmp_path)).rows == 25


def test_who_lists_a_folder_while_files_are_merged_sees_every_row_once(tmp_path):
    table = opened(tmp_path)
    known: dict[str, int] = {}
    listings: list[frozenset[str]] = []
    over = threading.Event()

    def list_all_the_time():
        while not over.wait(0.0005):
            listings.append(frozenset(os.listdir(tmp_path / FOLDER)))

    table.add("q", 0, until(5), writing(rows(0, 5)))
    lister = threading.Thread(target=list_all_the_time)
    lister.start()
    try:
        for batch in range(1, 60):
            table.add("q", batch, until(batch * 5 + 5), writing(rows(batch * 5, batch * 5 + 5)))
            known |= {os.path.basename(part.path): part.rows for part in table.contents.parts.values()}
            if batch % 3 == 2:
                compact(None, table, settings())
                known |= {os.path.basename(part.path): part.rows for part in table.contents.parts.values()}
    finally:
        over.set()
        lister.join()

    seen = [sum(known[name] for name in listing) for listing in listings]
    assert seen == sorted(seen)  # never fewer rows than before, and never more than there were batches
    assert set(seen) <= set(range(5, 301, 5))
    assert v.verify(str(tmp_path)).rows == 300


def test_readers_of_the_manifest_and_proofs_go_on_while_files_are_added_merged_and_folded(tmp_path):
    table = filled(tmp_path, 1)
    over = threading.Event()
    found: list[int] = []
    troubles: list[str] = []

    def read_all_the_time():
        files = LocalFiles(tmp_path)
        while not over.wait(0.002):
            contents = tables.settled(files)
            rows = sum(part.rows for part in contents.parts.values())
            found.append(rows)
            if contents.until["orders"]["1"]["sequence"] != rows:
                troubles.append(f"{contents.number}: {rows} rows")

    reader = threading.Thread(target=read_all_the_time)
    reader.start()
    try:
        for batch in range(1, 110):
            table.add("q", batch, until(batch * 5 + 5), writing(rows(batch * 5, batch * 5 + 5)))
            compact(None, table, settings(4))
            if batch % 27 == 0:
                assert v.verify(str(tmp_path)).sound
    finally:
        over.set()
        reader.join()

    assert not troubles
    assert found == sorted(found)
    assert found[-1] >= 5


def test_a_file_that_somebody_else_puts_into_the_folder_stays(tmp_path, monkeypatch):
    table = filled(tmp_path, 3)
    link = os.link

    def busy(source, target, **options):
        (tmp_path / FOLDER / "other.txt").write_text("mine")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", busy)
    compact(None, table, settings(3))

    assert (tmp_path / FOLDER / "other.txt").read_text() == "mine"
    assert v.verify(str(tmp_path)).sound


def test_row_groups_come_in_order_bounded_in_size_and_none_spans_two_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_GROUP_BYTES", 20_000)
    sources = []
    for number, part in enumerate([rows(40, 50, node=2), rows(900, 1900), rows(0, 40, node=2), rows(0, 900)]):
        parquet.write_table(part, tmp_path / f"{number}.parquet", row_group_size=300)
        sources.append(str(tmp_path / f"{number}.parquet"))

    merge(sources, str(tmp_path / "all.parquet"), ORDER, "zstd")

    merged = parquet.ParquetFile(tmp_path / "all.parquet")
    groups = [merged.read_row_group(index) for index in range(merged.num_row_groups)]
    assert all(len(pc.unique(group["node"])) == 1 for group in groups)
    assert all(group.nbytes < 45_000 for group in groups)
    assert merged.read().select(["node", "sequence"]).to_pylist() == [
        *({"node": 1, "sequence": number} for number in range(1900)),
        *({"node": 2, "sequence": number} for number in range(50)),
    ]
    assert merged.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "lz4", "uncompressed"])
@pytest.mark.spark
def test_spark_reads_what_was_merged_as_what_it_wrote(spark, tmp_path, compression):
    shape = [
        "cast(1 as int) as node", "'log' as log_id", "id as sequence", "timestamp_micros(1 + id) as timestamp",
        "cast(string(id) as binary) as body", "map('k', string(id)) as headers", "array(1.5D, null) as numbers",
        "date'2026-11-15' as day", "timestamp_ntz'2026-11-15 10:00:00' as local", "cast(id as decimal(12, 2)) as price",
    ]  # fmt: skip
    written = []
    for start, kind in ((0, "TIMESTAMP_MICROS"), (10, "INT96")):
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        out = tmp_path / kind
        frame = spark.range(start, start + 10, numPartitions=1).selectExpr(*shape)
        frame.write.option("compression", compression).parquet(str(out))
        written += [str(path) for path in out.glob("*.parquet")]
    spark.conf.unset("spark.sql.parquet.outputTimestampType")

    for first in (written, written[::-1]):
        target = str(tmp_path / f"merged-{written.index(first[0])}.parquet")
        merge(first, target, ORDER, compression)

        merged = spark.read.parquet(target)
        assert merged.schema == spark.read.parquet(first[0]).schema
        assert sorted(merged.collect(), key=lambda row: row.sequence) == sorted(
            spark.read.parquet(*first).collect(), key=lambda row: row.sequence
        )


def test_a_proof_of_a_place_that_needs_spark_says_so(tmp_path):
    with pytest.raises(LapwingError, match="s3a://bucket/archive needs Spark to be read"):
        v.verify("s3a://bucket/archive")
    filled(tmp_path, 2)
    assert v.verify(tmp_path.as_uri()).rows == 10


def test_logs_that_are_not_read_any_more_are_remembered_over_snapshots(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_FOLD_AFTER", 3)
    table = filled(tmp_path, 1)
    both = {**until(5), "gone": {"1": {"log_id": "other", "sequence": 4}}}
    table.add("q", 1, both, writing(rows(0, 2), folder="topic=gone"))
    table.add("q", 2, until(5), lambda place: os.makedirs(place))
    table.add("q", 3, until(5), lambda place: os.makedirs(place))

    contents, _ = tables.load(LocalFiles(tmp_path))
    assert contents.ended == [["gone", 1, "other", 4]]
    table.add("q", 4, both, lambda place: os.makedirs(place))
    assert table.contents.ended == []


def test_the_end_of_a_deleted_log_that_no_batch_has_read_is_lost_and_named(tmp_path):
    table = filled(tmp_path, 1)
    table.add("q", 1, until(9), writing(rows(5, 7)))  # planned up to 9; the topic was deleted while it was read
    assert v.verify(str(tmp_path)).logs[0].missing == [(7, 9)]
    table.add("q", 2, {}, lambda place: os.makedirs(place))

    proof = v.verify(str(tmp_path))
    assert proof.sound
    assert proof.logs[0].lost == [(7, 9)]
    assert "deleted before they were archived: 2 messages: 7 .. 8" in proof_text(proof)


def test_a_gap_in_the_midst_of_a_deleted_log_is_missing(tmp_path):
    table = filled(tmp_path, 1)
    table.add("q", 1, until(9), writing(rows(7, 9)))
    table.add("q", 2, {}, lambda place: os.makedirs(place))

    proof = v.verify(str(tmp_path))
    assert not proof.sound
    assert proof.logs[0].missing == [(5, 7)]


def scoped(path, **scope):
    table = opened(path)
    table.add("q", 0, until(5), writing(rows(0, 5)), scope=scope)
    return str(path)


def test_logs_that_brokers_have_and_the_archive_lacks_make_it_incomplete(tmp_path):
    place = scoped(tmp_path, topics=[], pattern="[^#]*")
    published = {
        ("orders", 1, "log"): (0, 5), ("orders", 2, "other"): (3, 9), ("new", 1, "third"): (0, 1),
        ("empty", 1, "fourth"): (0, 0), ("e#ephemeral", 1, "fifth"): (0, 4),
    }  # fmt: skip
    proof = v.verify(place, published=published)

    assert not proof.sound
    assert [(log.topic, log.node, log.archived, log.waiting) for log in proof.logs] == [
        ("orders", 1, True, 0), ("new", 1, False, 1), ("orders", 2, False, 6)
    ]  # fmt: skip
    text = proof_text(proof)
    assert "NOT ARCHIVED  topic orders, node 2, log other: 6 messages; no batch has begun with this log" in text
    assert text.endswith("NOT COMPLETE")
    assert v.verify(place, topics=["orders"], published={("orders", 1, "log"): (0, 5)}).sound


def test_logs_of_topics_that_the_archive_is_not_for_are_not_missed(tmp_path):
    place = scoped(tmp_path, topics=["orders"], pattern="")
    published = {("orders", 1, "log"): (0, 5), ("new", 1, "third"): (0, 1)}

    assert v.verify(place, published=published).sound
    assert not v.verify(place, topics=["new"], published=published).sound


def test_messages_that_retention_deleted_before_they_were_archived_are_missing(tmp_path):
    place = scoped(tmp_path, topics=["orders"], pattern="")
    proof = v.verify(place, published={("orders", 1, "log"): (8, 10)})

    assert proof.logs[0].missing == [(5, 8)]
    assert proof.logs[0].waiting == 2


def test_a_log_is_proven_from_where_the_pipeline_began_to_read_it(tmp_path):
    table = opened(tmp_path)
    table.add("q", 0, until(40), lambda place: os.makedirs(place))  # start: latest
    assert v.verify(str(tmp_path)).sound
    table.add("q", 1, until(45), writing(rows(42, 45)))

    assert v.verify(str(tmp_path)).logs[0].missing == [(40, 42)]
