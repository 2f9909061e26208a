"""The channel of a query on the brokers: moved to what the query has finished, and by that query alone."""

import logging

import pytest
from driven import DrivenQuery

from daemons import until
from lapwing.spark.options import source_options
from lapwing.spark.source import channel_hold
from lapwing.spark.source.channel_hold import ChannelHold, ChannelInUse
from lapwing.spark.source.survey import survey


def cursor(broker):
    """Where the channel `lake` of the topic `orders` is."""
    return next(each["cursor"] for each in broker.facts("orders")["channels"] if each["channel"] == "lake")


@pytest.fixture
def broker(start_broker):
    """A broker of the test's own, as one remembers the readers of channels."""
    return start_broker()


def test_the_channel_moves_past_deferred_messages(broker, caplog):
    """The cursor of the channel itself has jumped over them by the time the query has read them."""
    broker.publish("orders", b"first")
    query = DrivenQuery([broker], channel="lake")
    query.catch_up()
    broker.ask("/pub?topic=orders&defer=600000", b"deferred")
    query.batch()
    broker.ask("/pub?topic=orders&defer=600000", b"another")  # not read yet when the batch is committed
    until(lambda: cursor(broker) == 3)
    query.catch_up()
    query.batch()

    assert query.bodies() == [b"another", b"deferred", b"first"]
    stats = broker.ask("/stats?format=json&topic=orders&channel=lake")["topics"][0]["channels"][0]
    assert (stats["depth"], stats["deferred_count"]) == (0, 0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(channel_hold, "_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(channel_hold, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(channel_hold, "_RENEW_SECONDS", 0.1)


def test_a_second_query_on_one_channel_is_refused_and_moves_nothing(broker, impatient):
    broker.publish("orders", b"1", b"2")
    first = DrivenQuery([broker], channel="lake", maxMessagesPerTrigger="1")
    first.batch()
    first.batch()
    second = DrivenQuery([broker], channel="lake", startingOffsets="latest")

    with pytest.raises(ChannelInUse, match=r"topic orders: the channel lake is moved by another query \(last sign of"):
        second.batch()
    assert cursor(broker) == 0
    first.catch_up()
    assert first.bodies() == [b"1", b"2"]
    other = DrivenQuery([broker], channel="another")
    assert len(other.catch_up()) == 2


def test_a_query_that_is_restarted_holds_its_channel_at_once(broker, impatient):
    broker.publish("orders", b"1")
    query = DrivenQuery([broker], channel="lake")
    query.catch_up()
    name = query.committed["#query"]
    query.restart()
    broker.publish("orders", b"2")
    query.catch_up()

    assert query.bodies() == [b"1", b"2"]
    assert query.committed["#query"] == name


def test_a_query_whose_channel_was_taken_meanwhile_warns_once(broker, caplog, monkeypatch):
    monkeypatch.setattr(channel_hold, "_RENEW_SECONDS", 3600)
    broker.publish("orders", b"1")
    options = source_options({"nsqd": broker.address, "topic": "orders", "channel": "lake"}, streaming=True)
    hold = ChannelHold(options)
    found = survey(options)
    hold.take(found)
    broker.daemon.kill()
    broker.daemon.restart()  # knows no reader any more
    broker.ask("/channel/reader?channel=lake&reader=another&topic=orders", b"")
    hold.renew()
    hold.renew()

    [warning] = [record.getMessage() for record in caplog.records]
    assert "the channel lake is moved by another query" in warning
    assert "its name is another" in warning


def test_a_query_without_a_channel_has_nothing_beside_its_offsets(broker):
    broker.publish("orders", b"1")
    query = DrivenQuery([broker])
    query.catch_up()

    assert list(query.committed) == ["orders"]
