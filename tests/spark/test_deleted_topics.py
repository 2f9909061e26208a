"""Topics that are deleted or created again under a query."""

import pytest
from driven import DrivenQuery

from lapwing.spark.source.losses import DataLoss

pytestmark = pytest.mark.spark


def delete(broker, topic):
    broker.ask(f"/topic/delete?topic={topic}", b"")


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_query_over_a_pattern_goes_on_without_a_deleted_topic(broker, caplog):
    broker.publish("orders", b"1")
    broker.publish("gone", b"2")
    query = DrivenQuery([broker], topicPattern="[^#]*", channel="lake")
    query.catch_up()
    broker.publish("gone", b"never read")
    delete(broker, "gone")
    broker.publish("orders", b"3")
    query.catch_up()
    query.restart()
    query.catch_up()

    assert query.bodies() == [b"1", b"2", b"3"]
    lines = [line for line in said(caplog) if "gone" in line]
    assert len(lines) == 1
    assert "topic gone, node 1: the topic was deleted" in lines[0]
    assert "up to 1" in lines[0]
    assert broker.depth("orders", "lake") == 0


def test_a_topic_that_was_created_again_is_read_from_its_first_message(broker, caplog):
    broker.publish("orders", b"old")
    query = DrivenQuery([broker], topicPattern="[^#]*", channel="lake")
    query.catch_up()
    delete(broker, "orders")
    broker.publish("orders", b"new", b"newer")
    query.catch_up()
    query.restart()
    query.catch_up()

    assert [row[3] for row in query.rows] == [b"old", b"new", b"newer"]
    assert sum("topic orders, node 1" in line and "new log" in line for line in said(caplog)) == 1


def test_a_topic_that_was_deleted_between_looks_comes_back_as_a_new_one(broker, caplog):
    broker.publish("orders", b"old")
    query = DrivenQuery([broker], topicPattern="[^#]*")
    query.catch_up()
    delete(broker, "orders")
    query.catch_up()
    broker.publish("orders", b"new")
    query.catch_up()

    assert [row[3] for row in query.rows] == [b"old", b"new"]
    assert "orders" in query.committed


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_between_plan_and_read_is_passed_over(broker, caplog, again):
    broker.publish("orders", b"1")
    broker.publish("gone", b"2")
    query = DrivenQuery([broker], topicPattern="[^#]*")
    start = query.reader.initialOffset()
    limit = query.reader.getDefaultReadLimit()
    query.reader.latestOffset(start, limit)
    end = query.reader.latestOffset(start, limit)
    tasks = query.reader.partitions(start, end)
    delete(broker, "gone")
    if again:
        broker.publish("gone", b"another")
    read = [body for task in tasks for batch in query.reader.read(task) for body in batch.column("body").to_pylist()]

    assert read == [b"1"]
    assert any("topic gone, node 1" in line for line in said(caplog))


def test_a_run_to_the_end_goes_on_without_a_deleted_topic(broker, caplog):
    broker.publish("orders", b"1")
    broker.publish("gone", b"2")
    query = DrivenQuery([broker], topicPattern="[^#]*")
    query.catch_up()
    broker.publish("gone", b"3")
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    delete(broker, "gone")
    query.catch_up()

    assert query.bodies() == [b"1", b"2"]
    assert "gone" not in query.committed


def test_a_named_topic_that_was_deleted_ends_the_query_until_the_loss_is_accepted(broker, caplog):
    broker.publish("orders", b"1")
    query = DrivenQuery([broker], topic="orders,other")
    query.catch_up()
    delete(broker, "orders")
    broker.publish("other", b"2")
    for _ in range(2):
        query.restart()
        with pytest.raises(DataLoss, match=r"topic orders, node 1: the topic was deleted.*with acceptLoss=true"):
            query.batch()
        query.planned = None
    query.restart(acceptLoss="true")
    query.catch_up()
    assert query.bodies() == [b"1", b"2"]
    assert any("topic orders, node 1" in line for line in said(caplog))

    del query.raw["acceptLoss"]
    query.restart()
    query.catch_up()
    delete(broker, "other")
    with pytest.raises(DataLoss):
        query.batch()


def test_an_accepted_loss_does_not_excuse_the_next(broker):
    broker.publish("orders", b"1")
    broker.publish("other", b"2")
    query = DrivenQuery([broker], topic="orders,other")
    query.catch_up()
    delete(broker, "orders")
    query.restart(acceptLoss="true")
    query.catch_up()
    delete(broker, "other")

    with pytest.raises(DataLoss, match="topic other"):
        query.batch()


def test_a_topic_that_is_not_asked_for_any_more_is_no_loss(broker, caplog):
    broker.publish("orders", b"1")
    broker.publish("other", b"2")
    query = DrivenQuery([broker], topic="orders,other")
    query.catch_up()
    query.restart(topic="orders")
    broker.publish("orders", b"3")
    broker.publish("other", b"4")
    query.catch_up()
    query.restart(topic="orders,other")
    query.catch_up()

    assert query.bodies() == [b"1", b"2", b"3", b"4"]
    assert said(caplog) == []
