"""SQL over an archive: topics are tables, the fields of JSON bodies are columns."""

import importlib.util

import pytest
from pipeline_runs import Runs

from documents import ROOT
from lapwing.errors import ConfigError
from lapwing.spark.tables import archive_views
from lapwing.spark.tables.archive_views import first_rows, select

pytestmark = pytest.mark.spark


def test_topics_are_tables_and_the_fields_of_bodies_are_columns(spark, broker, tmp_path):
    runs = Runs(spark, broker, tmp_path)
    broker.publish("orders.eu", b'{"id": 1, "country": "NL"}', b'{"id": 2, "country": "DE"}', b"no JSON")
    broker.publish("lines", b"hello", b"world")
    spec = importlib.util.spec_from_file_location("ship_logs", ROOT / "examples" / "ship_logs.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    line = '10.0.0.1 - - [16/Nov/2026:07:00:00 +0000] "GET / HTTP/1.1" 200 512'
    broker.publish("access", example.parsed(line), example.parsed(line))
    runs.once("archive")
    place = str(runs.data.parent / "archive")
    countries = "select country, count(*) as n from `orders.eu` where country is not null group by country order by 1"

    assert first_rows(select(spark, place, countries), 10) == [{"country": "DE", "n": 1}, {"country": "NL", "n": 1}]
    assert first_rows(select(spark, place, "select body, _sequence from lines order by 2"), 1) == [
        {"body": "hello", "_sequence": 0}
    ]
    assert first_rows(select(spark, place, example.QUERY), 9) == [{"status": 200, "requests": 2, "bytes": 1024}]
    with pytest.raises(ConfigError, match=r"the topics are: access, lines, `orders\.eu`"):
        select(spark, place, "select * from nothing")
    with pytest.raises(ConfigError, match="no archive is there"):
        select(spark, str(tmp_path / "elsewhere"), "select 1")


def test_what_spark_refuses_is_one_line(spark, broker, tmp_path):
    runs = Runs(spark, broker, tmp_path)
    place = str(runs.data.parent / "archive")
    broker.publish("orders", b'{"id": 3}')
    runs.once("archive", "topics=orders")

    assert archive_views.query(spark, place, "select count(*) as n from orders", 10) == (["n"], [{"n": 1}])
    with pytest.raises(ConfigError, match=r"^sql: .*[Dd]ivision by zero") as refused:
        archive_views.query(spark, place, "select 1 / (id - id) from orders", 10)
    assert "\n" not in str(refused.value)
