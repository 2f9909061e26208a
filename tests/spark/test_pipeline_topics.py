"""Pipelines from topic to topic on a real Spark and a real broker."""

import json

import pytest
from pipeline_runs import Runs
from test_pipeline_archive import redo_last_batch

from documents import block
from lapwing.errors import ConfigError, LapwingError
from lapwing.spark import reason
from lapwing.spark.pipelines.kinds import transform
from lapwing.spark.pipelines.run import command as run_command
from lapwing.spark.pipelines.run.home import PipelineHome

pytestmark = pytest.mark.spark


@pytest.fixture
def runs(spark, broker, tmp_path):
    return Runs(spark, broker, tmp_path)


def written(tmp_path, text, name="clean.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_sql_over_json_and_what_does_not_parse_goes_to_a_topic_of_its_own_with_the_reason(runs, broker, tmp_path):
    file = written(
        tmp_path,
        "kind: transform\ntopics: orders\nschema: id bigint, amount double\nto: gross\ndrift: reject\n"
        "sql: select id, amount * 2 as gross, _topic as source from input where amount > 1\n",
    )
    good = [json.dumps({"id": n, "amount": n}).encode() for n in range(5)]
    bad = [
        b"no json", b"[1]", b"\xff\xfe", b'{"id": "x", "amount": 1}', b'{"id": 1, "amount": 2, "extra": 1}', b"{}x",
        b'{"id": 7}{"id": 8}', b'{"id": 9}}', b"null", b" ", b"{'id': 1}",
    ]  # fmt: skip
    broker.publish("orders", *good, *bad)

    runs.once(file)
    redo_last_batch(runs, "clean")
    runs.once(file)

    assert sorted(json.loads(body)["gross"] for body in broker.bodies("gross")) == [4.0, 6.0, 8.0]
    assert json.loads(broker.bodies("gross")[0])["source"] == "orders"
    rejects = {message["headers"]["origin-sequence"]: message for message in broker.messages("orders.rejected")}
    reasons = {sequence: message["headers"]["reason"] for sequence, message in rejects.items()}
    assert reasons == {
        "5": "not JSON",
        "6": "JSON, but not an object",
        "7": "not UTF-8",
        "8": "id is no bigint",
        "9": "unknown field extra",
        "10": "not JSON",  # more behind the object
        "11": "not JSON",
        "12": "not JSON",
        "13": "JSON, but not an object",
        "14": "not JSON",
        "15": "not JSON",
    }
    assert rejects["5"]["body"] == "no json"
    assert broker.depth("orders", "clean") == 0


@pytest.mark.parametrize(
    "sql",
    [
        "select * except (amount) from (select *, amount / 0.5 as twice from input) where twice > 2 and id > 0",
        "select cast(id as string) as body, concat('k', id) as key, map('a', 'b') as headers from {input}",
        "select id from input where id in (select max(x) from values (0), (1) as t(x))",
        "select id from input watermark _timestamp delay of interval 1 hour limit 3",
    ],
)
def test_results_and_rejects_of_any_query_are_published(runs, broker, tmp_path, sql):
    file = written(
        tmp_path, f'kind: transform\ntopics: orders\nschema: id bigint, amount double\nto: out\nsql: "{sql}"\n'
    )
    broker.publish("orders", b'{"id": 1, "amount": 3}', b'{"id": 2, "amount": "x"}', b"no json")

    runs.once(file)

    assert len(broker.bodies("out")) >= 1
    assert sorted(message["headers"]["reason"] for message in broker.messages("orders.rejected")) == [
        "amount is no double", "not JSON",
    ]  # fmt: skip
    assert all("key" not in message["headers"] for message in broker.messages("orders.rejected"))


@pytest.mark.parametrize("named", [0, 5_000])
def test_rejects_are_published_also_where_the_query_leaves_nothing(runs, broker, tmp_path, monkeypatch, named):
    monkeypatch.setattr(transform, "_NAMED_REJECTS", named)
    file = written(
        tmp_path, "kind: transform\ntopics: orders\nschema: id bigint\nto: out\nsql: select id from input where false\n"
    )
    broker.publish("orders", b'{"id": 1}', b"no json", b'{"id": 2}', b'{"id": "x"}')

    progress = runs.once(file)
    redo_last_batch(runs, "clean")
    runs.once(file)

    assert (broker.bodies("out") if broker.ask("/log/offsets?topic=out")["topics"] else []) == []
    assert sorted(broker.bodies("orders.rejected")) == ["no json", '{"id": "x"}']
    assert progress.rejected == 2


def test_an_error_in_an_expression_is_not_met_by_what_does_not_concern_it(runs, broker, tmp_path):
    file = written(
        tmp_path,
        "kind: transform\ntopics: orders\nschema: id bigint, part bigint\nto: out\n"
        "sql: select id, if(part is null, raise_error('no part'), 10 div part) as share from input where id > 0\n",
    )
    broker.publish("orders", b'{"id": "x"}', b'{"id": 0, "part": 0}', b'{"id": 1, "part": 5}')

    runs.once(file)

    assert broker.bodies("out") == ['{"id":1,"share":2}']
    assert broker.bodies("orders.rejected") == ['{"id": "x"}']


def test_a_schema_is_inferred_once_and_pinned(runs, broker, tmp_path):
    file = written(
        tmp_path,
        "kind: transform\ntopics: orders\nto: out\nrejects: bad\nsql: select to_json(struct(*)) body from input\n",
    )
    with pytest.raises(ConfigError, match="no messages to infer a schema from"):
        runs.once(file)
    broker.publish("orders", b'{"id": 1, "who": {"name": "x"}}')
    runs.once(file)
    broker.publish("orders", b'{"id": "now a word"}', b'{"id": 3, "later": true}')
    runs.once(file)

    pins = json.loads((runs.data / "clean" / "checkpoint" / "lapwing.json").read_text())
    assert pins["schema_text"] == "id bigint, who struct<name:string>"
    assert [json.loads(body)["id"] for body in broker.bodies("out")] == [1, 3]
    assert broker.bodies("bad") == ['{"id": "now a word"}']


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("sql: select amuont from input", "clean.yaml:5: sql: .*`amuont` cannot be resolved. Did you mean one of"),
        ("sql: |\n  select amount\n  frm input where", "clean.yaml:7: sql: Syntax error at or near 'input'"),
        ("sql: selec amount from input", "clean.yaml:5: sql: Syntax error at or near 'selec'"),
        ("sql: select uper(amount) from input", "clean.yaml:5: sql: Cannot resolve routine `uper`$"),
        ("sql: select amount from orders", "`orders` cannot be found; the messages are the view `input`"),
        ("sql: select 1 as body", "clean.yaml: sql does not read from input"),
        ("sql: select amount as body from input", "clean.yaml: column body is double, string or binary expected"),
        ("sql: select 'x' as body, 1 as colour from input", "clean.yaml: unknown column colour"),
        ("sql: select count(*) as n from input", "watermark"),
        ("schema: amount dubble\nsql: select amount from input", "clean.yaml:4: schema: Unsupported data type .DUBBLE"),
        ("rejects: orders\nsql: select amount from input", "clean.yaml:5: rejects: orders is also read"),
    ],
)
def test_what_cannot_work_is_said_before_the_stream_starts(runs, broker, tmp_path, line, complaint):
    schema = "" if line.startswith("schema") else "schema: amount double\n"
    file = written(tmp_path, f"kind: transform\ntopics: orders\nto: out\n{schema}{line}\n")

    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?").replace("`", "[`]")):
        runs.once(file)


TAXED = """\
from pyspark.sql.functions import udf
from lapwing.spark.pipelines.python import pipeline

RATES = {"de": 2}

def gross(amount, country):
    return amount * RATES[country]

@udf("double")
def with_tax(amount, country):
    return gross(amount, country)

@pipeline(topics="orders", to="gross", schema="amount double, country string", rejects="none")
def taxed(orders):
    return orders.select(with_tax("amount", "country").alias("gross"))
"""


def test_a_udf_of_a_pipeline_file_works_and_what_it_raises_is_shown_with_its_line(runs, broker, tmp_path):
    file = written(tmp_path, TAXED, "taxed.py")
    broker.publish("orders", b'{"amount": 10, "country": "de"}')
    runs.once(file)
    assert broker.bodies("gross") == ['{"gross":20.0}']
    broker.publish("orders", b'{"amount": 10, "country": "xx"}')
    running = runs.made(file)

    assert not running.run(runs.spark, lambda progress: None)
    assert running.jobs[0].progress.error.endswith("taxed.py:7: KeyError: 'xx'")
    assert PipelineHome(runs.data / "taxed").status()["error"] == running.jobs[0].progress.error
    [shown] = [each for each in broker.ask("/pipelines")["pipelines"] if each["name"] == "taxed"]
    assert (shown["state"], shown["error"]) == ("failed", running.jobs[0].progress.error)
    assert reason(running.jobs[0]._query.exception()) == running.jobs[0].progress.error
    dry = run_command.RunCommand([str(file)], [], {"nsqd": [broker.address], "dry_run": True})
    with pytest.raises(LapwingError, match=r"^taxed: .*taxed\.py:7: KeyError: 'xx'$"):
        list(dry.unchecked(runs.data).preview(runs.spark))


def test_a_pipeline_file_that_needs_a_session_to_be_read_gets_one_before_the_run(spark, tmp_path, monkeypatch):
    file = written(tmp_path, TAXED, "taxed.py")
    context = spark.sparkContext
    monkeypatch.setattr(type(context), "_active_spark_context", None)  # as in a process that has just begun
    started = []

    def start(master, conf, jars):
        started.append((master, conf, jars))
        monkeypatch.setattr(type(context), "_active_spark_context", context)

    monkeypatch.setattr(run_command, "start_session", start)
    database = "kind: table\nname: shop\ntopics: [orders]\nschema: n int\nstore: jdbc\nurl: jdbc:sqlite:x\ntable: t\n"
    other = written(tmp_path, f"{database}jars: [/tmp/driver.jar]\n", "shop.yaml")
    found = run_command.RunCommand([str(file), str(other)], master="local[3]", conf={"a": "b"}).specs

    assert [each.name for each in found] == ["taxed", "shop"]
    assert started == [("local[3]", {"a": "b"}, ["/tmp/driver.jar"])]


BUSY = """\
import pathlib
from pyspark.sql.functions import udf
from lapwing.spark.pipelines.python import pipeline

@udf("string")
def upper(text):
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("Python worker failed to connect back.")
    return text.upper()

@pipeline(topics="orders", to="upper", format="text", rejects="none")
def busy(orders):
    return orders.select(upper("body").alias("body"))
"""


def test_a_query_whose_worker_does_not_start_in_time_is_started_again(runs, broker, tmp_path, caplog):
    broker.publish("orders", b"a", b"b")
    progress = runs.once(written(tmp_path, BUSY, "busy.py"))

    assert sorted(broker.bodies("upper")) == ["A", "B"]
    assert (progress.state, progress.rows_in) == ("finished", 2)
    assert "busy: this machine was too busy to start a worker in time; the query is started again" in caplog.text


def test_a_python_function_that_does_not_work_says_where(runs, broker, tmp_path):
    head = "from lapwing.spark.pipelines.python import pipeline\n@pipeline(topics='orders', to='o', format='text')\n"
    wrong = {
        "def f(x):\n    return x.selekt('body')\n": "mine.py:4: Attribute `selekt` is not supported",
        "def f(x):\n    return 1\n": "mine.py: the function has to return a streaming DataFrame, not 1",
        "def f(x):\n    return x.select('bdoy')\n": "mine.py:4: .*`bdoy` cannot be resolved",
    }
    for text, complaint in wrong.items():
        with pytest.raises(ConfigError, match=complaint):
            runs.once(written(tmp_path, head + text, "mine.py"))


def test_a_pipeline_written_in_python(runs, broker, tmp_path):
    file = written(
        tmp_path,
        "from lapwing.spark.pipelines.python import pipeline\n"
        "@pipeline(topics='orders', to='large', format='text')\n"
        "def large(orders):\n    return orders.where('length(body) > 3').selectExpr('upper(body) as body')\n",
        "mine.py",
    )
    broker.publish("orders", b"abc", b"abcdef")

    runs.once(file)

    assert broker.bodies("large") == ["ABCDEF"]


def test_repetitions_are_left_out_and_messages_without_a_key_are_not(runs, broker, tmp_path):
    text = block("docs/reference/pipelines.md", "# once.py").text
    file = written(tmp_path, text, "once.py")
    bodies = [b'{"order_id": 1, "n": 1}', b'{"order_id": 2, "n": 2}', b'{"order_id": 1, "n": 3}', b'{"n": 4}']
    broker.publish("orders", *bodies, b'{"n": 5}', b"no json")
    runs.once(file)
    broker.publish("orders", b'{"order_id": 2, "n": 6}', b'{"order_id": 3, "n": 7}')

    runs.once(file)
    redo_last_batch(runs, "once")
    runs.once(file)

    kept = broker.bodies("orders.once")
    assert "no json" in kept
    assert sorted(json.loads(body)["n"] for body in kept if body != "no json") == [1, 2, 4, 5, 7]


def test_windows_are_published_once_and_what_comes_too_late_is_counted(runs, broker, tmp_path):
    text = block("docs/reference/pipelines.md", "# minutes.yaml").text.replace(
        "interval 10 seconds", "interval 0 seconds"
    )
    file = written(tmp_path, text, "minutes.yaml")
    events = [(60, "de", 1), (70, "de", 3), (119, "de", 3), (61, "fr", 5), (120, "de", 9)]
    broker.publish("orders", *(sale(*event) for event in events), b"no json", b'{"amount": 1}')
    runs.once(file)
    broker.publish("orders", sale(90, "de", 100), sale(540, "de", 1), b"[]")
    progress = runs.once(file)
    redo_last_batch(runs, "minutes")
    runs.once(file)

    told = [json.loads(body) for body in broker.bodies("orders.perminute")]
    found = {(row["country"], row["window_start"][14:19]): row for row in told}
    assert len(told) == 3
    first = found["de", "01:00"]
    assert (first["orders"], first["revenue"], first["customers"], first["p95"]) == (3, 7.0, 1, 3.0)
    assert found["fr", "01:00"]["orders"] == found["de", "02:00"]["orders"] == 1
    assert sorted(broker.bodies("orders.rejected")) == ["[]", "no json"]
    assert (progress.late, progress.rows_in) == (1, 3)


def sale(at, country, amount):
    return json.dumps({"id": 7, "at": at * 1000, "country": country, "amount": amount}).encode()
