"""Dead letters in archives and in views, with their reason, error, failures and times as columns."""

import asyncio
import re
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from pipeline_runs import Runs
from queries import forget_last_commit

from daemons import until
from lapwing import Consumer
from lapwing.spark.sql.duckdb_views import DuckDb
from lapwing.spark.sql.topics import Topics


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

    raw = {"topicPattern": r".+\.dead", "includeHeaders": "true", "archive": str(tmp_path / "dead")}
    letters = spark.read.format("lapwing").options(**raw, nsqd=broker.address).load()
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
    assert sorted((row.headers["dead-channel"], row.headers["dead-reason"]) for row in letters.collect()) == [
        ("billing", "attempts"), ("billing", "attempts"), ("billing", "rejected"), ("mail", "attempts"),
    ]  # fmt: skip
    shown = session.table("letters").where("dead_at > '2020-01-01'").collect()
    assert sorted((row.origin_channel, row.failures) for row in shown) == [
        ("billing", 0), ("billing", 1), ("billing", 1), ("mail", 1),
    ]  # fmt: skip
    assert session.table("orders").count() == 1
    assert found == [["work_billing", "attempts", 2], ["work_billing", "rejected", 1]]
