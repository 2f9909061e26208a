"""Topics as typed tables: Parquet and databases, each message once."""

import json
import os
import re
import shutil
import sqlite3

import delta_tables
import postgresql
import pytest
from deltalake import DeltaTable
from pipeline_runs import Runs
from postgresql import POSTGRESQL_JAR, SQLITE_JAR
from queries import forget_last_commit

from lapwing.errors import ConfigError
from lapwing.spark.files import HadoopFiles
from lapwing.spark.pipelines.kinds import archive
from lapwing.spark.pipelines.run import upkeep
from lapwing.spark.pipelines.run.command import RunCommand
from lapwing.spark.pipelines.settings import spec
from lapwing.spark.tables import jdbc as jdbc_store
from lapwing.spark.tables.verify import verify

pytestmark = pytest.mark.spark

SCHEMA = "schema=id bigint, amount double, at bigint, tags array<string>"


@pytest.fixture
def runs(spark, broker, tmp_path):
    return Runs(spark, broker, tmp_path)


def order(number, **more):
    at = 1_790_000_000_000 + (number or 0) * 3_600_000
    return json.dumps({"id": number, "amount": (number or 0) / 2, "at": at, "tags": ["a"], **more}).encode()


def test_json_becomes_parquet_by_event_time_each_message_once(spark, runs, broker, caplog):
    broker.publish("orders", *(order(n) for n in range(30)), b"nonsense", order(30, amount="much"), b'{"id": 31}')
    settings = [SCHEMA, "topics=orders", "time=timestamp_millis(at)", "partition=day"]
    first = runs.once("table", *settings)

    rows = delta_tables.read(spark, runs.data.parent / "table")
    assert (first.rows_in, first.rows_out, first.rejected) == (33, 30, 3)
    assert sorted(row.id for row in rows.collect()) == list(range(30))
    assert {str(row.date) for row in rows.select("date").distinct().collect()} == {"2026-09-21", "2026-09-22"}
    kinds = dict(rows.dtypes)
    assert (kinds["id"], kinds["amount"], kinds["tags"], kinds["_sequence"]) == (
        "bigint", "double", "array<string>", "bigint",
    )  # fmt: skip
    rejected = {each["body"]: each["headers"] for each in broker.messages("orders.rejected")}
    assert {each["reason"] for each in rejected.values()} == {
        "not JSON", "amount is no double", "no time: timestamp_millis(at)"
    }  # fmt: skip
    assert {each["pipeline"] for each in rejected.values()} == {"table"}

    forget_last_commit(runs.data / "table" / "checkpoint")
    broker.publish("orders", order(40))
    second = runs.once("table", *settings)
    assert (second.rows_in, second.rows_out, second.rejected) == (34, 31, 3)
    assert delta_tables.read(spark, runs.data.parent / "table").count() == 31
    assert len(broker.messages("orders.rejected")) == 3
    with pytest.raises(ConfigError, match="written from another checkpoint"):
        runs.once("table", *settings, f"out={runs.data.parent / 'table'}", "name=other")


def test_columns_csv_a_start_by_time_and_what_cannot_work(spark, runs, broker):
    broker.publish("lines", b"1|x|2.5", b"2|y|much", b"3|z", b"4|\xff|1", b"5|w|7")
    settings = ["format=csv", "schema=id bigint, name string, price double", "topics=lines", "parse_options=sep=|"]
    settings += ["columns=key=id;label=upper(name);cents=cast(price * 100 as int)", "partition=none"]
    runs.once("table", *settings, "start=2001-01-01T00:00:00Z")

    rows = delta_tables.read(spark, runs.data.parent / "table").orderBy("key").collect()
    assert [tuple(row) for row in rows] == [(1, "X", 250), (5, "W", 700)]
    reasons = [each["headers"]["reason"] for each in broker.messages("lines.rejected")]
    assert reasons == ["not CSV of this schema", "not CSV of this schema", "not UTF-8"]
    wrong = {
        ("format=csv",): "CSV has no names; set schema",
        ("format=avro", "schema=infer"): "definition is missing",
        ("columns=a=no_such + 1", SCHEMA): "columns: a: .*no_such",
        ("time=at", SCHEMA): r"time: at is bigint; use timestamp_millis\(at\)",
        ("schema=id bigint, date string",): r"divides the files by date, and the table has a column date; .*my_date",
        ("schema=id bigint, ID string",): "id and ID differ only in case",
    }
    for given, complaint in wrong.items():
        with pytest.raises(ConfigError, match=complaint):
            runs.once("table", "topics=orders", "name=wrong", *given)


def test_a_table_has_every_field_whatever_its_name_is(spark, runs, broker):
    broker.publish("odd", b'{"_foo": "x", "a.b": 3, "_time": "noon", "Date": "today"}')
    schema = "schema=_foo string, `a.b` int, _time string, Date string"
    runs.once("table", "topics=odd", schema, "partition=none")

    [row] = delta_tables.read(spark, runs.data.parent / "table").collect()
    assert tuple(row) == ("x", 3, "noon", "today", "odd", 1, 0, row["_timestamp"])


def test_a_dry_run_shows_schema_rows_and_rejects_and_writes_nothing(runs, broker):
    broker.publish("orders", order(1), order(2), b"nonsense")
    command = RunCommand(["table"], [SCHEMA, "topics=orders"], {"nsqd": [broker.address], "dry_run": True})
    lines = list(command.unchecked(runs.data).preview(runs.spark))
    transform = RunCommand(
        ["transform"], ["topics=orders", "sql=select id, amount from input", "to=x"],
        {"nsqd": [broker.address], "dry_run": True},
    )  # fmt: skip

    assert command.is_preview
    assert lines[0].startswith("table: id bigint, amount double, at bigint, tags array<string>, _topic string")
    assert json.loads(lines[1])["id"] in (1, 2)
    assert lines[-2:] == ["rejected 1: not JSON", "2 rows from the newest messages; nothing was written"]
    assert next(transform.unchecked(runs.data).preview(runs.spark)) == "transform: id bigint, amount double"
    assert not runs.data.exists()
    assert not (runs.data.parent / "table").exists()


def test_a_table_is_reset_compacted_and_removed(spark, runs, broker):
    broker.publish("orders", *(order(n) for n in range(12)))
    place = runs.data.parent / "table"
    command = RunCommand(
        ["table"], [SCHEMA, "topics=orders", "max_messages=3", "compact_after=100"], {"nsqd": [broker.address]},
        once=True,
    )  # fmt: skip

    def run():
        assert command.running(runs.data).run(spark, lambda progress: None)

    run()
    assert delta_tables.read(spark, place).count() == 12
    before = len(DeltaTable(str(place)).file_uris())
    assert upkeep.compact_now(str(place)) <= before
    assert delta_tables.read(spark, place).count() == 12

    lines = upkeep.reset(runs.data, "table", with_output=True)
    assert any("starts over" in line for line in lines)
    assert not place.exists()
    run()
    assert delta_tables.read(spark, place).count() == 12
    assert broker.depth("orders", "table") is not None
    lines = upkeep.remove(runs.data, "table")
    assert f"deleted the channel orders/table at {broker.address}" in lines
    assert broker.depth("orders", "table") is None
    assert broker.ask("/pipelines")["pipelines"] == []
    assert not (runs.data / "table").exists()
    assert place.exists()
    with pytest.raises(ConfigError, match="no pipeline table has run"):
        upkeep.remove(runs.data, "table")


def test_small_files_of_an_archive_are_merged_at_once(runs, broker):
    broker.publish("orders", *(b"%d" % n for n in range(20)))
    runs.once("archive", "topics=orders", "max_messages=4", "compact_after=100", "compression=zstd")
    place = str(runs.data.parent / "archive")

    merged = upkeep.compact_now(place)
    assert merged > 1 or len(DeltaTable(place).file_uris()) == 1
    assert verify(place).sound
    assert archive.read(runs.spark, place).count() == 20
    assert upkeep.compact_now(place) == 0
    with pytest.raises(ConfigError, match="is no archive and no table"):
        upkeep.compact_now(str(runs.data))


@pytest.mark.skipif(bool(postgresql.missing(POSTGRESQL_JAR)), reason=postgresql.missing(POSTGRESQL_JAR))
def test_a_database_has_each_message_once_or_the_last_of_each_key(spark, runs, broker):
    broker.publish("orders", *(order(n) for n in range(20)), b"nonsense")
    with postgresql.running() as server:
        common = [SCHEMA, "topics=orders", "store=jdbc", f"url={server.url}", "user=postgres", "password=secret"]
        adding = [*common, "table=orders", "name=adding"]
        first = runs.once("table", *adding)
        assert (first.rows_out, first.rejected) == (20, 1)
        forget_last_commit(runs.data / "adding" / "checkpoint")
        broker.publish("orders", order(20), order(3, amount=99.5))
        runs.once("table", *adding)

        assert server.sql("select count(*), count(distinct _sequence), sum(amount) from orders") == "22|22|204.5"
        assert server.sql("select tags, amount from orders where id = 20") == '["a"]|10'
        keyed = [*common, "table=public.latest", "name=keyed", "key=id", "columns=id=id;amount=amount"]
        assert runs.once("table", *keyed).rows_out == 21
        broker.publish("orders", order(4, amount=1.0), order(4, amount=7.0))
        runs.once("table", *keyed)
        assert server.sql("select amount from latest where id in (3, 4) order by id") == "99.5\n7"
        assert server.sql("select count(*) from latest") == "21"
        assert server.sql("select pipeline from lapwing_batches order by 1") == "adding\nkeyed"
        for folder in ("adding", "keyed"):
            kept = (runs.data / folder / "checkpoint" / "lapwing.json").read_text()
            assert "secret" not in kept
        for folder in ("adding", "keyed"):
            shutil.rmtree(runs.data / folder / "checkpoint")
        runs.once("table", *keyed)
        assert server.sql("select count(*) from latest") == "21"
        with pytest.raises(ConfigError, match=r"orders has rows .* would have them twice.* where pipeline = 'adding'"):
            runs.once("table", *adding)
        server.sql("delete from orders; delete from lapwing_batches where pipeline = 'adding'")
        assert runs.once("table", *adding).rows_out == 24
        timed = [*common[1:], "table=latest", "name=timed", "key=id", "columns=id=id"]
        refused = runs.once("table", *timed, "schema=id bigint, at bigint", "time=timestamp_millis(nullif(at, at))")
        assert (refused.rows_out, refused.rejected) == (0, 25)
        server.sql("create table narrow (id int, amount real)")
        changing = [*common[1:], "table=narrow", "name=changing", "columns=id=id;amount=amount;more=more"]
        runs.once("table", *changing, "schema=id bigint, amount double, more string")
        kinds = "select string_agg(data_type, ',' order by column_name) from information_schema.columns "
        assert server.sql(f"{kinds} where table_name = 'narrow'") == "double precision,bigint,text"
        with pytest.raises(ConfigError, match=r"columns: amount is float8 in the table narrow and would be text; give"):
            runs.once("table", *changing, "schema=id bigint, amount string, more string")
        assert server.sql("select count(*) from narrow") == "24"
        nowhere = f"url={server.url.removesuffix('postgres')}nowhere"
        with pytest.raises(ConfigError, match=r"url: .*nowhere"):
            runs.once("table", *common, "table=x", "name=bad", "retry=0s", nowhere)


@pytest.mark.skipif(not SQLITE_JAR.exists(), reason="Debian's libxerial-sqlite-jdbc-java is not installed")
def test_a_file_of_sqlite_has_each_message_once(runs, broker, tmp_path):
    broker.publish("orders", *(order(n) for n in range(10)))
    path = tmp_path / "shop.db"
    settings = [SCHEMA, "topics=orders", "store=jdbc", f"url=jdbc:sqlite:{path}", "table=orders", "key=id"]
    settings += ["name=my.shop-1"]
    runs.once("table", *settings)
    broker.publish("orders", order(3, amount=50.0))
    runs.once("table", *settings)

    with sqlite3.connect(path) as database:
        rows = database.execute("select id, amount from orders order by id").fetchall()
    assert rows == [(n, 50.0 if n == 3 else n / 2) for n in range(10)]

    broker.publish("orders", order(None), b'{"amount": 1.0}')
    runs.once("table", *settings)
    with sqlite3.connect(path) as database:
        assert database.execute("select count(*) from orders").fetchall() == [(10,)]
    assert [each["headers"]["reason"] for each in broker.messages("orders.rejected")] == ["no key: id"] * 2
    with pytest.raises(ConfigError, match="key: the table has no column number; it has id, amount"):
        runs.once("table", *settings, "key=number")
    broker.publish("orders", order(11, country="it"))
    runs.once("table", *settings, f"{SCHEMA}, country string")
    with sqlite3.connect(path) as database:
        assert database.execute("select id, country from orders where id > 8").fetchall() == [(9, None), (11, "it")]


@pytest.mark.skipif(not SQLITE_JAR.exists(), reason="Debian's libxerial-sqlite-jdbc-java is not installed")
def test_rows_that_a_task_has_staged_twice_are_not_copied(runs, broker, tmp_path, monkeypatch, caplog):
    broker.publish("orders", *(order(n) for n in range(3)))
    path = tmp_path / "shop.db"
    stage, repeated = jdbc_store.JdbcStore._stage, []

    def stage_again(self, rows):
        if rows.count() and not repeated:
            repeated.append(True)
            rows = rows.union(rows)
        stage(self, rows)

    monkeypatch.setattr(jdbc_store.JdbcStore, "_stage", stage_again)
    runs.once("table", SCHEMA, "topics=orders", "store=jdbc", f"url=jdbc:sqlite:{path}", "table=orders")

    with sqlite3.connect(path) as database:
        assert database.execute("select count(*) from orders").fetchall() == [(3,)]
    assert "table: 6 rows were staged instead of 3; again" in caplog.text


def test_a_file_elsewhere_is_replaced_in_one_step(spark, tmp_path, monkeypatch):
    files = HadoopFiles(f"file://{tmp_path}", spark)
    files.write("a/pins", b"1")

    class Undeletable:
        """A file system whose process dies where it would delete."""

        def __init__(self, system):
            self.system = system

        def __getattr__(self, name):
            assert name != "delete"
            return getattr(self.system, name)

    monkeypatch.setattr(files, "_system", Undeletable(files._system))
    files.write("a/pins", b"3")
    assert files.read("a/pins") == b"3"


def test_pipelines_with_similar_names_do_not_share_tables_of_a_database():
    names = {jdbc_store.identifier("orders", name, "staging") for name in ("a.b", "a-b", "a_b", "a" * 90, "a" * 91)}

    assert len(names) == 5
    assert all(re.fullmatch("[a-z0-9_]{1,63}", name) for name in names)


# --- files of pipelines


def test_a_file_has_environment_variables_and_several_pipelines(broker, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPIC", "orders")
    monkeypatch.setenv("COUNT", "7")
    monkeypatch.delenv("NOWHERE", raising=False)
    path = tmp_path / "both.yaml"
    path.write_text(
        "kind: table\nname: one\ntopics: ['${TOPIC}']\nmax_messages: ${COUNT}\nchannel: ${NOWHERE:-lake}\n"
        "columns: {price: \"concat('$${', id)\"}\n---\nkind: archive\nname: two\ntopics: ['${TOPIC}.x']\n---\n"
    )
    one, two = spec.load(str(path))

    assert (one.name, one.settings.topics, one.settings.max_messages, one.settings.channel) == (
        "one", ("orders",), 7, "lake",
    )  # fmt: skip
    assert one.settings.columns == {"price": "concat('${', id)"}
    assert (two.name, two.settings.kind, two.settings.topics) == ("two", "archive", ("orders.x",))
    path.write_text("kind: archive\ntopics: orders\nout: ${NOWHERE}/x\n")
    with pytest.raises(ConfigError, match=r"both.yaml:3: out: the environment variable NOWHERE is not set"):
        spec.load(str(path))
    path.write_text("kind: archive\nname: a\n---\nkind: archive\n")
    with pytest.raises(ConfigError, match="a file with several pipelines needs a name for each"):
        spec.load(str(path))
    assert os.environ["TOPIC"] == "orders"
