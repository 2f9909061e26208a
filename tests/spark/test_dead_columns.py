"""`option("dead", "true")`: dead letters with their reason, error, failures and times as columns."""

import asyncio
import re
import urllib.request
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pipeline_runs import Runs
from queries import forget_last_commit

from daemons import until
from lapwing import Consumer
from lapwing.spark.data_source import DEAD_COLUMNS, columns
from lapwing.spark.options import source_options
from lapwing.spark.source.batch_reader import LogBatchReader
from lapwing.spark.source.dead_columns import add_columns, base_columns
from lapwing.spark.sql.duckdb_views import DuckDb
from lapwing.spark.sql.topics import Topics

LETTER = {
    "dead-topic": "orders", "dead-channel": "billing", "dead-node": "1", "dead-log": "l", "dead-sequence": "7",
    "dead-id": "0a", "dead-reason": "attempts", "dead-error": "KeyError: 'x'", "dead-failures": "5",
    "dead-deliveries": "6", "dead-published": "2026-11-15T10:00:00Z", "dead-first-failed": "2026-11-15T10:00:01.5Z",
    "dead-at": "2026-11-15T10:01:00Z", "dead-consumer": "worker-1",
}  # fmt: skip


def test_headers_of_letters_become_typed_columns_and_other_messages_have_none():
    names = ["body", *(field.name for field in DEAD_COLUMNS)]
    kind = pa.map_(pa.string(), pa.string())
    odd = {**LETTER, "dead-failures": "many", "dead-at": "noon", "dead-count": "3"}
    rows = pa.array([list(LETTER.items()), [], list(odd.items())], kind)
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b", b"c"]), rows], names=["body", "headers"])
    [found] = add_columns(iter([batch]), names)
    letter, plain, strange = found.to_pylist()

    assert base_columns(names) == ["body", "headers"]
    assert base_columns(["body", "headers", "reason"]) == ["body", "headers"]
    assert letter == {
        "body": b"a", "reason": "attempts", "error": "KeyError: 'x'", "failures": 5, "deliveries": 6, "deaths": 1,
        "consumer": "worker-1", "origin_topic": "orders", "origin_channel": "billing", "origin_node": "1",
        "origin_sequence": 7, "origin_id": "0a", "published_at": datetime(2026, 11, 15, 10, tzinfo=UTC),
        "first_failed_at": datetime(2026, 11, 15, 10, 0, 1, 500_000, tzinfo=UTC),
        "dead_at": datetime(2026, 11, 15, 10, 1, tzinfo=UTC),
    }  # fmt: skip
    assert {value for name, value in plain.items() if name != "body"} == {None}
    assert (strange["failures"], strange["dead_at"], strange["deaths"]) == (None, None, 3)


def bury(broker, channel="billing", *, rejected=False):
    """Have a consumer of topic work_CHANNEL fail at a message, or reject it, so that it becomes a dead letter."""
    topic = f"work_{channel}"
    broker.ask(f"/topic/create?topic={topic}", b"")
    broker.ask(f"/channel/create?topic={topic}&channel={channel}", b"")
    url = f"{broker.daemon.url}/channel/settings?topic={topic}&channel={channel}"
    request = urllib.request.Request(url, data=b'{"max_attempts": 1}', method="PATCH")
    urllib.request.urlopen(request, timeout=60).close()
    broker.publish(topic, b"x")

    async def consume():
        async with Consumer(topic, channel, nsqd=broker.daemon.tcp) as consumer:
            async for message in consumer:
                message.reject("bad order") if rejected else message.fail("KeyError: 'x'")
                break

    before = letters_of(broker, f"{topic}.{channel}.dead")
    asyncio.run(consume())
    until(lambda: letters_of(broker, f"{topic}.{channel}.dead") == before + 1, what="the dead letter")


def letters_of(broker, topic):
    return sum(each["next"] for each in broker.ask(f"/log/offsets?topic={topic}")["topics"])


def test_a_dead_letter_topic_is_read_with_these_columns(broker):
    bury(broker)
    raw = {"nsqd": broker.address, "topic": "work_billing.billing.dead", "dead": "true", "includeBody": "false"}
    reader = LogBatchReader(source_options(raw, streaming=False), columns(raw))
    [row] = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]

    assert "headers" not in row
    assert (row["topic"], row["reason"], row["error"], row["origin_channel"], row["failures"]) == (
        "work_billing.billing.dead", "attempts", "KeyError: 'x'", "billing", 1,
    )  # fmt: skip


def sql_of(page):
    """The SQL of a document."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return re.findall(r"^```sql\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.spark
def test_dead_letters_are_archived_once_and_counted_by_channel_and_reason(spark, broker, tmp_path):
    runs = Runs(spark, broker, tmp_path)
    bury(broker)
    bury(broker, rejected=True)
    bury(broker, "mail")
    broker.publish("orders", b"alive")
    dead = ["name=dead", r"pattern=.+\.dead"]
    runs.once("archive", *dead)
    forget_last_commit(runs.data / "dead" / "checkpoint")
    bury(broker)
    second = runs.once("archive", *dead)

    raw = {"topicPattern": r".+\.dead", "dead": "true", "archive": str(tmp_path / "dead"), "nsqd": broker.address}
    letters = spark.read.format("lapwing").options(**raw).load()
    query = (
        "select _headers['dead-topic'] as topic, _headers['dead-reason'] as reason, count(*) as letters "
        'from "work_billing.billing.dead" group by all order by letters desc'
    )
    with closing(DuckDb()) as database:
        topics = Topics(str(tmp_path / "dead"), {"nsqd": broker.address}, needed=True)
        for name, rows in topics.find(database.tables(query)).items():
            database.add(name, rows)
        with database.query(query) as (_, counted):
            found = list(counted)
    runs.once("archive", "topics=orders")
    session = spark.newSession()
    for view in sql_of("reference/spark.md"):
        session.sql(view.replace("127.0.0.1:4151", broker.address).replace("/lake", str(tmp_path)))
    assert second.rows_out == second.rows_in == 4
    assert sorted((row.origin_channel, row.reason, row.failures) for row in letters.collect()) == [
        ("billing", "attempts", 1), ("billing", "attempts", 1), ("billing", "rejected", 0), ("mail", "attempts", 1),
    ]  # fmt: skip
    assert session.table("letters").where("reason = 'attempts'").count() == 3
    assert session.table("orders").count() == 1
    assert found == [["work_billing", "attempts", 2], ["work_billing", "rejected", 1]]
