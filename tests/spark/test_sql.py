"""SQL over topics: what an archive has and what only the brokers have yet, by DuckDB and by Spark."""

import importlib.util
import subprocess
import sys
from contextlib import closing

import pytest
from pipeline_runs import Runs

from documents import ROOT
from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.source.archived import archive_at
from lapwing.spark.sql import json_fields, spark_views
from lapwing.spark.sql.duckdb_views import DuckDb
from lapwing.spark.sql.topics import Topics


class Asked:
    """Topics that are asked as `lapwing sql` does it."""

    def __init__(self, place, *brokers, needed=True):
        self.place = str(place)
        self.topics = Topics(self.place, {"nsqd": ",".join(broker.address for broker in brokers)}, needed=needed)

    def duckdb(self, sql, *topics):
        with closing(DuckDb()) as database:
            named = database.tables(sql)
            for name, rows in self.topics.find(topics if named is None else named).items():
                database.add(name, rows)
            with database.query(sql, lambda: f"; there are {self.topics.names()}") as (columns, rows):
                return [dict(zip(columns, row, strict=True)) for row in rows]

    def spark(self, session, sql, *topics):
        columns, rows = spark_views.query(session.newSession(), self.place, self.topics.find(topics), sql)
        return [dict(zip(columns, row, strict=True)) for row in rows]


BODIES = [
    b'{"id": 1, "country": "NL", "total": 12.5, "paid": true, "lines": [{"sku": "a", "n": 2}]}',
    b'{"id": 2, "country": "DE", "total": 3, "note": null, "lines": []}',
    b"no JSON",
    b'{"id": 3, "country": "NL", "customer": {"name": "x", "since": 2020}}',
    b"\xff\xfe",
    b'{"country": "FR", "total": 7.25, "ID": 5}',
]


@pytest.mark.spark
@pytest.mark.parametrize("archived", [0, 4, 6], ids=["live", "both", "archive"])
def test_both_engines_give_the_same_rows_wherever_they_lie(spark, broker, tmp_path, archived):
    runs = Runs(spark, broker, tmp_path)
    place = tmp_path / "archive"
    if archived:
        broker.publish("orders", *BODIES[:archived])
        runs.once("archive", "topics=orders")
    if BODIES[archived:]:
        broker.publish("orders", *BODIES[archived:])
    asked = Asked(place, broker)
    every = "select * from orders order by _sequence"
    rows = asked.duckdb(every)

    assert [row["_sequence"] for row in rows] == list(range(len(BODIES)))
    assert [row["id"] for row in rows] == [1, 2, None, 3, None, None]
    assert [row["total"] for row in rows] == [12.5, 3.0, None, None, None, 7.25]
    assert rows[0]["lines"] == [{"n": 2, "sku": "a"}]
    assert rows[3]["customer"] == {"name": "x", "since": 2020}
    assert list(rows[0]) == [
        "country", "customer", "id", "lines", "note", "paid", "total",
        "_topic", "_node", "_sequence", "_id", "_timestamp", "_headers",
    ]  # fmt: skip
    for sql in (
        every,
        "select country, count(*) as n, sum(total) as total from orders group by country order by country nulls last",
        "select count(*) as n, max(_sequence) as last, min(_timestamp) as since from orders where _node = 1",
    ):
        assert asked.duckdb(sql) == asked.spark(spark, sql, "orders"), sql


def test_fields_and_their_types_are_those_of_all_sampled_bodies():
    found = json_fields.fields([
        b'{"a": 1, "b": null, "c": [1, null], "d": {"x": 1}, "e": true, "big": 18446744073709551615, "A": "x"}',
        b'{"a": 2.5, "c": ["x"], "d": {"y": "z"}, "e": 1, "f": {}, "": 1}', b"[1]", b"no", b"\xff", b"[" * 100_000,
        b'{"g": ' + b'{"g": ' * 20 + b"1" + b"}" * 21,
    ])  # fmt: skip
    deep: json_fields.Kind = json_fields.TEXT
    for _ in range(7):
        deep = {"g": deep}

    assert found == {
        "a": "double", "b": "string", "big": "string", "c": ["string"], "d": {"x": "bigint", "y": "string"},
        "e": "string", "f": "string", "g": deep,
    }  # fmt: skip


def test_a_number_that_is_not_whole_is_not_rounded(start_broker, tmp_path):
    broker = start_broker()
    odd = b'{"id": 5.7}', b'{"id": 99999999999999999999}'
    broker.publish("orders", *[b'{"id": 1}'] * 1500, *odd, *[b'{"id": 2}'] * 1500)

    rows = Asked(tmp_path / "none", broker).duckdb("select id, count(*) as n from orders group by id order by id")
    assert rows == [{"id": 1, "n": 1500}, {"id": 2, "n": 1500}, {"id": None, "n": 2}]


def test_a_topic_without_an_archive_is_read_as_often_as_a_query_wants_it(start_broker, tmp_path):
    brokers = [start_broker(), start_broker()]
    for number, broker in enumerate(brokers):
        broker.publish("orders.eu", *(b'{"id": %d}' % (10 * number + n) for n in range(5)))
    asked = Asked(tmp_path / "none", *brokers)

    pairs = "select count(*) as n, count(distinct a._node) as nodes from {0} a join {0} b using (id) where id < 14"
    assert asked.duckdb(pairs.format('"orders.eu"')) == [{"n": 9, "nodes": 2}]
    assert asked.duckdb(pairs.format("orders.eu")) == [{"n": 9, "nodes": 2}]
    assert asked.duckdb("summarize orders.eu", "orders.eu")[0]["max"] == "14"
    assert asked.topics.names() == ["orders.eu"]
    assert asked.duckdb("select 1 as one") == [{"one": 1}]


def test_each_message_comes_once_whatever_retention_deletion_and_merging_have_left(spark, broker, tmp_path):
    runs = Runs(spark, broker, tmp_path)
    place = tmp_path / "archive"
    broker.publish("orders", *(b'{"id": %d}' % n for n in range(5)))
    runs.once("archive", "topics=orders")
    broker.ask("/topic/delete?topic=orders", b"")
    broker.publish("orders", *(b'{"id": %d}' % n for n in range(5, 8)))  # a new log, whose sequences begin at 0 again
    runs.once("archive", "pattern=.*", "compact_after=2")
    broker.publish("orders", b'{"id": 8}')
    broker.ask("/topic/create?topic=empty", b"")
    asked = Asked(place, broker)

    assert asked.duckdb("select id from orders order by id") == [{"id": n} for n in range(9)]
    assert asked.duckdb("select count(*) as n from empty") == [{"n": 0}]
    again = Asked(place, needed=False)
    again.topics = Topics(str(place), {"nsqd": "127.0.0.1:1"}, needed=False)
    assert again.duckdb("select count(*) as n from orders") == [{"n": 8}]
    assert again.spark(spark, "select count(*) as n from orders", "orders") == [{"n": 8}]


def test_rows_that_are_archived_while_a_query_is_planned_are_not_doubled(spark, broker, tmp_path):
    runs = Runs(spark, broker, tmp_path)
    broker.publish("orders", b'{"id": 1}')
    runs.once("archive", "topics=orders")
    broker.publish("orders", b'{"id": 2}')
    asked = Asked(tmp_path / "archive", broker)
    found = asked.topics.find(["orders"])
    runs.once("archive", "topics=orders")

    with closing(DuckDb()) as database:
        archive_at(asked.place).logs()  # takes in the new version
        database.add("orders", found["orders"])
        with database.query("select id from orders order by id") as (_, rows):
            assert list(rows) == [[1], [2]]


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("selct 1", 'syntax error at or near "selct"'),
        ("select * from nothing", "Table with name nothing does not exist; there are ['orders']"),
        ("select nme from orders", 'Referenced column "nme" not found'),
        ('select * from orders where name = "x"', "puts a text in single quotes"),
        ("", "there is none; an example: lapwing sql"),
        ("select 1; select 2", "one query is expected, and here are several"),
        ("select cast('x' as int)", "Could not convert string 'x' to INT32"),
        ("select * from delta_scan('x')", "extension"),
    ],
)
def test_a_mistake_is_named(start_broker, tmp_path, sql, complaint):
    broker = start_broker()
    broker.publish("orders", b'{"name": "x"}')

    with pytest.raises(ConfigError) as caught:
        Asked(tmp_path / "none", broker).duckdb(sql)
    assert complaint in str(caught.value)


def test_a_broker_that_is_away_is_named(start_broker, tmp_path):
    here, gone = start_broker(), start_broker()
    here.publish("orders", *(b"%d" % n for n in range(10)))
    gone.publish("orders", b"x")
    found = Asked(tmp_path / "none", here, gone).topics.find(["orders"])
    gone.daemon.kill()

    with pytest.raises(LapwingError, match="not all brokers answer"):
        Asked(tmp_path / "none", here, gone).duckdb("select * from orders")
    with pytest.raises(LapwingError, match=r"no archive is there.* And no broker answers: .*is it running"):
        Asked(tmp_path / "none", gone, needed=False).duckdb("select * from orders")
    with closing(DuckDb()) as database, pytest.raises(LapwingError, match=f"{gone.address}.*tried for"):
        database.add("orders", found["orders"])


def test_strange_names_and_fields_do_no_harm(start_broker, tmp_path):
    broker = start_broker()
    broker.publish("select", b'{"a\\"b": 1, "it\'s": 2, "_node": 3, "from": "x", "; drop": [{"`": 1}]}')

    rows = Asked(tmp_path / "none", broker).duckdb('select * exclude (_timestamp, _id) from "select"')
    assert rows == [{
        "; drop": [{"`": 1}], 'a"b': 1, "from": "x", "it's": 2,
        "_topic": "select", "_node": 1, "_sequence": 0, "_headers": {},
    }]  # fmt: skip


def test_the_command_answers_without_spark(start_broker, tmp_path):
    broker = start_broker()
    broker.publish("orders", *(b'{"id": %d, "name": "n%d"}' % (n, n % 2) for n in range(150)))

    def run(*arguments, code=0):
        program = (
            "import sys\nfrom lapwing.cli.main import main\n"
            "try:\n    main()\nfinally:\n    assert 'pyspark' not in sys.modules\n"
        )
        command = [sys.executable, "-c", program, "sql", f"--nsqd={broker.address}", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        return done

    counted = "select name, count(*) as n from orders group by name order by name"
    assert run(counted).stdout == "name   n\nn0    75\nn1    75\n"
    assert run(counted, "--csv").stdout == "name,n\nn0,75\nn1,75\n"
    assert run(counted, "--json").stdout == '[{"name": "n0", "n": 75},\n {"name": "n1", "n": 75}]\n'
    assert run("select id from `orders` where id < 0", "--json").stdout == "[]\n"
    assert run("show tables").stdout == "topic\norders\n"
    assert len(run("select id from orders", "--csv").stdout.splitlines()) == 151
    shown = run("select id from orders")
    assert len(shown.stdout.splitlines()) == 101
    assert shown.stderr == "only the first 100 rows are shown; --rows shows more\n"
    assert run("select id fro orders", code=2).stderr.startswith("lapwing: sql: syntax error")
    assert run("select * from none_such", code=2).stderr == (
        "lapwing: sql: Table with name none_such does not exist; the topics are: orders\n"
    )


@pytest.mark.spark
def test_the_query_of_the_example_and_what_spark_refuses(spark, broker, tmp_path):
    spec = importlib.util.spec_from_file_location("ship_logs", ROOT / "examples" / "ship_logs.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    line = '10.0.0.1 - - [16/Nov/2026:07:00:00 +0000] "GET / HTTP/1.1" 200 512'
    broker.publish("access", example.parsed(line), example.parsed(line))
    broker.publish("lines", b"hello", b"world")
    asked = Asked(tmp_path / "none", broker)

    assert asked.duckdb(example.QUERY) == [{"status": 200, "requests": 2, "bytes": 1024}]
    assert asked.spark(spark, example.QUERY, "access") == [{"status": 200, "requests": 2, "bytes": 1024}]
    lines = "select body, _sequence from lines order by 2 limit 1"
    assert asked.duckdb(lines) == asked.spark(spark, lines, "lines") == [{"body": "hello", "_sequence": 0}]
    with pytest.raises(ConfigError, match=r"^sql: .*nothing"):
        asked.spark(spark, "select * from nothing")
    with pytest.raises(ConfigError, match=r"^sql: .*[Dd]ivision by zero") as refused:
        asked.spark(spark, "select 1 / (status - status) from access", "access")
    assert "\n" not in str(refused.value)
