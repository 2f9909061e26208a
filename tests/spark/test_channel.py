"""The channel of a query on the brokers: moved to what the query has finished."""

import logging

from driven import DrivenQuery

from daemons import until


def cursor(broker):
    """Where the channel `lake` of the topic `orders` is."""
    return next(each["cursor"] for each in broker.facts("orders")["channels"] if each["channel"] == "lake")


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
