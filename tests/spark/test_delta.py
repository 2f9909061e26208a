"""Delta tables to which batches are added once, whatever is interrupted, and the proof of what an archive holds."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from delta_tables import SCHEMA, Checkpoint, count, output, rows, until
from deltalake import DeltaTable
from pyspark.sql.types import DoubleType, FloatType, IntegerType, LongType, StringType, StructField, StructType

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.source.archived import Archive
from lapwing.spark.tables import delta
from lapwing.spark.tables import verify as v
from lapwing.spark.tables.verify import proof_text


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "archive")


def test_a_batch_counts_once_and_any_reader_sees_it(place):
    table = output(place)
    assert table.add([rows(0, 10), rows(10, 15, topic="a#b")], "q", 0, until(10)) == 15

    assert table.has("q", 0)
    assert not table.has("q", 1)
    assert not table.has("other", 0)
    again = output(place, checkpoint=Checkpoint(finished=0), remedy="nothing")
    assert again.has("q", 0)
    assert again.note.until == until(10)
    found = DeltaTable(place).to_pyarrow_table()
    assert sorted(zip(found["topic"].to_pylist(), found["sequence"].to_pylist(), strict=True)) == [
        *(("a#b", n) for n in range(10, 15)), *(("orders", n) for n in range(10))
    ]  # fmt: skip
    assert v.verify(place, topics=["orders"]).sound


@pytest.mark.parametrize("killed", ["write", "first move", "second move", "commit"])
def test_a_batch_that_a_crash_interrupts_is_added_whole_by_the_next_run(place, monkeypatch, killed):
    table = output(place)
    table.add([rows(0, 4)], "q", 0, until(4))
    moves = []

    def dying(*_, **__):
        raise OSError("killed here")

    def move(path, target):
        if len(moves) == ("first move", "second move").index(killed):
            raise OSError("killed here")
        moves.append(path)
        type(table._files).move(table._files, path, target)

    with monkeypatch.context() as patch:
        if killed == "write":
            patch.setattr(delta, "_facts", dying)
        elif killed == "commit":
            patch.setattr(delta, "_properties", dying)
        else:
            patch.setattr(table._files, "move", move)
        with pytest.raises((OSError, LapwingError), match="killed here"):
            table.add([rows(4, 6), rows(6, 8)], "q", 1, until(8))
    assert count(place) == 4

    again = output(place, checkpoint=Checkpoint(finished=0), remedy="nothing")
    assert not again.has("q", 1)
    again.add([rows(4, 6), rows(6, 8)], "q", 1, until(8))
    assert v.verify(place).rows == 8
    assert v.verify(place).sound
    again.vacuum()
    assert len(list(Path(place).rglob("*.parquet"))) == 3


def test_of_two_pipelines_that_write_one_table_one_is_stopped(place):
    first, second = output(place, checkpoint=Checkpoint("one")), output(place, checkpoint=Checkpoint("two"))
    first.add([rows(0, 5)], "one", 0, until(5))

    with pytest.raises(LapwingError, match="another pipeline writes here too; each needs its own place"):
        second.add([rows(0, 5)], "two", 0, until(5))
    with pytest.raises(ConfigError, match="from elsewhere"):
        output(place, checkpoint=Checkpoint("two"), foreign="from elsewhere")
    assert count(place) == 5


def test_a_table_whose_files_are_gone_and_a_place_with_other_files_are_refused(place):
    with pytest.raises(ConfigError, match=r"no batch after -1, and its checkpoint has finished batch 3: .* do this"):
        output(place, checkpoint=Checkpoint(finished=3), remedy="do this")
    Path(place).mkdir()
    Path(place, "letter.txt").touch()
    with pytest.raises(ConfigError, match="holds other files and is no Delta table"):
        output(place)


def test_small_files_are_merged_and_deleted_when_nobody_needs_them(place):
    table = output(place, merge_after=4)
    for batch in range(6):
        table.add([rows(5 * batch, 5 * batch + 5)], "q", batch, until(5 * batch + 5))
    assert len(DeltaTable(place).file_uris()) == 3
    assert read_note_of(place) == until(30)

    table.finish()
    assert len(DeltaTable(place).file_uris()) == len(list(Path(place).rglob("*.parquet"))) == 1
    assert v.verify(place).sound
    assert count(place) == 30
    assert output(place, checkpoint=Checkpoint(finished=5), remedy="nothing").has("q", 5)


def read_note_of(place):
    return delta.read_note(DeltaTable(place)).until


def test_many_batches_are_read_by_their_checkpoint(place):
    table = output(place)
    for batch in range(105):
        table.add([rows(batch, batch + 1)], "q", batch, until(batch + 1))

    assert list(Path(place, "_delta_log").glob("*.checkpoint.parquet"))
    assert output(place, checkpoint=Checkpoint(finished=104), remedy="nothing").has("q", 104)
    assert v.verify(place).rows == 105


def test_an_hour_is_over_a_while_after_it_has_ended():
    hour, day = {"topic": "t", "date": "2026-11-15", "hour": "10"}, {"date": "2026-11-14"}

    assert not delta.is_over(hour, datetime(2026, 11, 15, 11, 4, tzinfo=UTC))
    assert delta.is_over(hour, datetime(2026, 11, 15, 11, 6, tzinfo=UTC))
    assert delta.is_over(day, datetime(2026, 11, 15, 0, 6, tzinfo=UTC))
    assert not delta.is_over({}, datetime(2026, 11, 15, tzinfo=UTC))


# --- columns


def struct(**kinds):
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_new_and_wider_columns_go_through_and_others_are_refused_with_the_line(place):
    first = struct(id=IntegerType(), amount=FloatType(), name=StringType())
    table = output(place, schema=first, partitions=())
    old = pa.table({"id": pa.array([1], pa.int32()), "amount": pa.array([0.5], pa.float32()), "name": ["a"]})
    table.add([old], "q", 0, {})

    wider = struct(id=LongType(), amount=DoubleType(), name=StringType(), more=StringType())
    table = output(place, schema=wider, partitions=(), checkpoint=Checkpoint(finished=0), remedy="nothing")
    new = pa.table({"id": pa.array([2**40], pa.int64()), "amount": [0.25], "name": ["b"], "more": ["m"]})
    table.add([new], "q", 1, {})

    found = DeltaTable(place).to_pyarrow_table().sort_by("id")
    assert found.to_pylist() == [
        {"id": 1, "amount": 0.5, "name": "a", "more": None}, {"id": 2**40, "amount": 0.25, "name": "b", "more": "m"}
    ]  # fmt: skip
    for changed, said in (
        (struct(id=StringType()), "schema: id is string, and id is long in the table"),
        (struct(ID=LongType()), "schema: ID is long, and id is long in the table"),
        (struct(name=DoubleType()), "schema: name is double, and name is string in the table"),
    ):
        with pytest.raises(ConfigError, match=said):
            output(place, schema=changed, partitions=(), checkpoint=Checkpoint(finished=1))


# --- the proof


def test_a_proof_names_what_is_missing_and_what_is_there_twice(place):
    table = output(place)
    table.add([rows(0, 10)], "q", 0, until(10))
    table.add([rows(12, 20), rows(18, 25)], "q", 1, until(30))

    proof = v.verify(place, published={("orders", 1, "log"): (0, 42)})

    [log] = proof.logs
    assert log.missing == [(10, 12), (25, 30)]
    assert log.twice == [(18, 20)]
    assert log.waiting == 12
    assert not proof.sound
    text = proof_text(proof)
    assert "MISSING  topic orders, node 1, log log: 7 messages: 10 .. 11, 25 .. 29" in text
    assert "TWICE    topic orders, node 1, log log: 2 messages: 18 .. 19" in text


def test_a_proof_of_some_sequences_looks_at_those_only(place):
    output(place).add([rows(0, 40), rows(50, 100)], "q", 0, until(100))

    assert v.verify(place, span=(0, 40)).sound
    assert v.verify(place, span=(60, 100)).sound
    assert v.verify(place, span=(30, 60)).logs[0].missing == [(40, 50)]
    assert v.verify(place, span=(90, 110)).logs[0].missing == [(100, 110)]


def test_a_lost_or_cut_file_is_a_fault(place):
    output(place).add([rows(0, 10), rows(10, 20)], "q", 0, until(20))
    first, second = sorted(Path(place).rglob("*.parquet"))
    first.unlink()
    second.write_bytes(b"PAR1 and no more")

    proof = v.verify(place)

    assert len(proof.faults) == 2
    assert proof.logs[0].missing == [(0, 20)]


def test_a_log_that_was_made_anew_is_another_log(place):
    table = output(place)
    table.add([rows(0, 10)], "q", 0, until(10))
    table.add([rows(0, 3, log_id="new")], "q", 1, until(3, "new"))

    proof = v.verify(place)

    assert [(log.log_id, log.rows) for log in proof.logs] == [("log", 10), ("new", 3)]
    assert proof.sound


def test_logs_that_are_not_read_any_more_are_remembered_until_they_come_back(place):
    table = output(place)
    table.add([rows(0, 5)], "q", 0, until(5))
    both = {**until(5), "gone": {"1": {"log_id": "other", "sequence": 4}}}
    table.add([rows(0, 2, topic="gone")], "q", 1, both)
    table.add([], "q", 2, until(5))
    table.add([], "q", 3, until(5))
    assert delta.read_note(DeltaTable(place)).ended == [["gone", 1, "other", 4]]

    table.add([], "q", 4, both)
    assert delta.read_note(DeltaTable(place)).ended == []


def test_the_end_of_a_deleted_log_that_no_batch_has_read_is_lost_and_named(place):
    table = output(place)
    table.add([rows(0, 5)], "q", 0, until(5))
    table.add([rows(5, 7)], "q", 1, until(9))  # planned up to 9; the topic was deleted while it was read
    assert v.verify(place).logs[0].missing == [(7, 9)]
    table.add([], "q", 2, {})

    proof = v.verify(place)
    assert proof.sound
    assert proof.logs[0].lost == [(7, 9)]
    assert "deleted before they were archived: 2 messages: 7 .. 8" in proof_text(proof)


def test_a_gap_in_the_midst_of_a_deleted_log_is_missing(place):
    table = output(place)
    table.add([rows(0, 5)], "q", 0, until(5))
    table.add([rows(7, 9)], "q", 1, until(9))
    table.add([], "q", 2, {})

    proof = v.verify(place)
    assert not proof.sound
    assert proof.logs[0].missing == [(5, 7)]


def scoped(place, **scope):
    output(place, scope=scope).add([rows(0, 5)], "q", 0, until(5))
    return place


def test_logs_that_brokers_have_and_the_archive_lacks_make_it_incomplete(place):
    scoped(place, topics=[], pattern="[^#]*")
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


def test_logs_of_topics_that_the_archive_is_not_for_are_not_missed(place):
    scoped(place, topics=["orders"], pattern="")
    published = {("orders", 1, "log"): (0, 5), ("new", 1, "third"): (0, 1)}

    assert v.verify(place, published=published).sound
    assert not v.verify(place, topics=["new"], published=published).sound


def test_messages_that_retention_deleted_before_they_were_archived_are_missing(place):
    scoped(place, topics=["orders"], pattern="")
    proof = v.verify(place, published={("orders", 1, "log"): (8, 10)})

    assert proof.logs[0].missing == [(5, 8)]
    assert proof.logs[0].waiting == 2


def test_a_log_is_proven_from_where_the_pipeline_began_to_read_it(place):
    table = output(place)
    table.add([], "q", 0, until(40))  # start: latest
    assert v.verify(place).sound
    table.add([rows(42, 45)], "q", 1, until(45))

    assert v.verify(place).logs[0].missing == [(40, 42)]


def test_what_is_no_archive_is_named(place, tmp_path):
    with pytest.raises(ConfigError, match="no archive is there"):
        v.verify(place)
    output(tmp_path / "other", schema=struct(id=LongType()), partitions=())
    with pytest.raises(ConfigError, match="no archive is there"):
        v.verify(str(tmp_path / "other"))


def test_runs_are_found_in_any_order_of_rows():
    picked = random.Random(7)
    for _ in range(50):
        sequences = [picked.randrange(60) for _ in range(picked.randrange(1, 40))]
        found = v.runs(pa.array(sequences, pa.int64()))

        assert sorted(each for low, high in found for each in range(low, high)) == sorted(sequences)


def test_an_archive_knows_its_logs_by_the_bounds_of_files_and_else_by_their_rows(place):
    table = output(place)
    table.add([rows(0, 10)], "q", 0, until(10))
    archive = Archive(place)
    assert {log: (held.first, held.until) for log, held in archive.logs().items()} == {("orders", 1, "log"): (0, 10)}

    both = pa.concat_tables([rows(10, 12), rows(5, 9, node=2, log_id="two")])
    table.add([both], "q", 1, until(12))
    assert {log: (held.first, held.until) for log, held in archive.logs("orders").items()} == {
        ("orders", 1, "log"): (0, 12), ("orders", 2, "two"): (5, 9)
    }  # fmt: skip
    assert archive.logs("other") == {}
    assert SCHEMA.names[:2] == ["topic", "node"]
