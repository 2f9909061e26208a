"""Exactly once with nsqlookupd: every batch of a sink goes to one broker, whatever brokers join, leave or are away."""

import json

import pytest
from queries import Copy
from test_directory import Cluster

from daemons import until
from lapwing.spark import sink_home as homes
from lapwing.spark.http import BrokerAway
from lapwing.spark.options import BrokerAccess
from lapwing.spark.sink_home import sink_home


@pytest.fixture
def cluster(start_broker):
    made = Cluster(start_broker)
    yield made
    made.lookupd.kill()


def ask(cluster, batch, sink="query-1", **more):
    """The broker of a batch, as a driver that has just been started finds it."""
    homes._homes.clear()
    access = BrokerAccess(lookupd=(cluster.lookupd.http,), retry_seconds=0.3)
    address = sink_home(access, sink, batch, **more)
    return next(broker for broker in cluster.brokers if broker.address == address)


def commit(broker, batch, sink="query-1"):
    broker.ask("/stage/commit", json.dumps({"sink": sink, "batch": batch, "keys": []}).encode())


def having(cluster, topic):
    """The brokers that have the topic."""
    return [broker for broker in cluster.brokers if broker.ask(f"/log/offsets?topic={topic}")["topics"]]


def test_new_sinks_are_spread_over_the_brokers_and_each_has_one(cluster):
    found = [ask(cluster, 0, sink=f"query-{n}") for n in range(30)]

    assert {broker.address for broker in found} == {broker.address for broker in cluster.brokers}
    assert found == [ask(cluster, 0, sink=f"query-{n}") for n in range(30)]


def test_the_broker_that_has_published_a_batch_gets_all_others(cluster):
    first = ask(cluster, 0)
    other = next(broker for broker in cluster.brokers if broker is not first)
    commit(other, 0)  # as if it had been alone then

    assert ask(cluster, 0) is other
    assert ask(cluster, 7, known_from=2) is other

    first.daemon.stop()
    assert ask(cluster, 8, known_from=2) is other


def test_a_broker_that_may_have_published_the_batch_is_waited_for(cluster):
    home = ask(cluster, 0)
    commit(home, 0)
    home.daemon.stop()
    until(lambda: len(cluster.producers()["producers"]) == 1, what="the broker to leave nsqlookupd")

    with pytest.raises(BrokerAway, match=rf"the batches of query-1.*{home.address}"):
        ask(cluster, 0)

    home.daemon.restart()
    assert ask(cluster, 0) is home


def test_batches_that_no_listed_broker_has_are_an_error_that_names_the_remedy(cluster):
    with pytest.raises(BrokerAway, match=r"no broker .* has the batches before batch 2.*option nsqd"):
        ask(cluster, 2, known_from=2)


@pytest.mark.spark
def test_a_batch_that_spark_does_again_goes_to_the_same_broker_though_others_have_joined(
    spark, cluster, start_broker, tmp_path
):
    copy = Copy(spark, tmp_path, lookupd=cluster.lookupd.http)
    copy.add("a", "b")
    copy.run()
    for _ in range(2):
        cluster.brokers.append(start_broker(f"--lookupd-tcp-address={cluster.lookupd.tcp}"))
        cluster.brokers[-1].publish("orders", b"x")
    cluster.until_known(4)
    copy.forget_last_commit()
    copy.add("c")
    copy.run()
    copy.forget_last_commit()
    copy.run()

    held = [
        broker for broker in cluster.brokers if any(t["topic"] == "copy" for t in broker.ask("/log/offsets")["topics"])
    ]
    assert [sorted(broker.bodies("copy")) for broker in held] == [["a", "b", "c"]]


@pytest.mark.spark
def test_a_batch_write_with_a_name_and_a_number_happens_once_in_the_cluster(spark, cluster):
    for batch in ("1", "1", "2", "1"):
        spark.createDataFrame([("x",)], "body string").write.format("lapwing").mode("append").options(
            lookupd=cluster.lookupd.http, topic="once", sinkId="nightly", batchId=batch
        ).save()

    assert [broker.bodies("once") for broker in having(cluster, "once")] == [["x", "x"]]
