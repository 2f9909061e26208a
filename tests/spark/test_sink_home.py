"""Exactly once with nsqlookupd: every batch of a sink goes to one broker, whatever brokers join, leave or are away."""

import json

import pytest
from queries import Copy
from test_directory import Cluster

from daemons import until
from lapwing.errors import LapwingError
from lapwing.spark.brokers.http import BrokerAway
from lapwing.spark.options import BrokerAccess
from lapwing.spark.sink import home as homes
from lapwing.spark.sink.home import sink_home


@pytest.fixture
def cluster(start_broker):
    made = Cluster(start_broker)
    yield made
    made.lookupd.kill()


def ask(cluster, batch, sink="query-1", nsqd=(), **more):
    """The broker of a batch, as a driver that has just been started finds it: by nsqlookupd, or in a list."""
    homes._homes.clear()
    lookupd = () if nsqd else (cluster.lookupd.http,)
    access = BrokerAccess(nsqd=tuple(broker.address for broker in nsqd), lookupd=lookupd, retry_seconds=0.3)
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
    commit(other, 7)
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


def test_batches_that_no_broker_has_are_an_error_that_names_the_remedy(cluster):
    with pytest.raises(BrokerAway, match=r"no broker that nsqlookupd lists has .* before batch 2.*acceptDoubles=true"):
        ask(cluster, 2, known_from=2)
    with pytest.raises(LapwingError, match=r"none of .* has .* before batch 2.*option nsqd.*acceptDoubles=true"):
        ask(cluster, 2, known_from=2, nsqd=cluster.brokers)

    assert ask(cluster, 2, known_from=2, nsqd=cluster.brokers[:1], accept_doubles=True) is cluster.brokers[0]
    assert ask(cluster, 2, known_from=2, accept_doubles=True) in cluster.brokers


def test_a_list_in_any_order_and_nsqlookupd_find_the_same_broker(cluster):
    one, other = cluster.brokers
    for batch, home in ((0, one), (1, other)):
        sink = f"query-{batch}"
        commit(home, batch, sink)
        for nsqd in ((one, other), (other, one), (home,), ()):
            for again in (batch, batch + 1):
                assert ask(cluster, again, sink, known_from=2, nsqd=nsqd) is home


def test_a_broker_that_lacks_the_batch_before_is_not_taken_while_another_is_away(cluster):
    old, new = cluster.brokers
    commit(old, 3)
    commit(new, 8)  # the query was moved there
    new.daemon.stop()
    with pytest.raises(BrokerAway, match=new.address):
        ask(cluster, 9, known_from=2, nsqd=cluster.brokers)

    assert ask(cluster, 4, known_from=2, nsqd=cluster.brokers) is old
    new.daemon.restart()
    assert ask(cluster, 9, known_from=2, nsqd=cluster.brokers) is new


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
def test_a_batch_in_doubt_is_published_once_though_the_query_moves_between_a_list_and_nsqlookupd(
    spark, cluster, tmp_path
):
    one, other = (broker.address for broker in cluster.brokers)
    copy = Copy(spark, tmp_path, one, other)
    copy.add("a")
    copy.run()
    bodies = ["a"]
    for options in ({"lookupd": cluster.lookupd.http}, {"nsqd": f"{one},{other}"}):
        copy.add(bodies[-1] * 2)
        bodies.append(bodies[-1] * 2)
        copy.run()
        copy.forget_last_commit()
        copy.options = {"topic": "copy", "retryTimeout": "5s", **options}
        copy.run()

    assert sorted(body for broker in having(cluster, "copy") for body in broker.bodies("copy")) == bodies
    [home] = having(cluster, "copy")
    copy.options = {"topic": "copy", "nsqd": next(broker.address for broker in cluster.brokers if broker is not home)}
    copy.add("moved")
    with pytest.raises(Exception, match=r"acceptDoubles=true"):
        copy.run()
    copy.options["acceptDoubles"] = "true"
    copy.run()
    assert sorted(body for broker in having(cluster, "copy") for body in broker.bodies("copy")) == [*bodies, "moved"]


@pytest.mark.spark
def test_a_batch_write_with_a_name_and_a_number_happens_once_in_the_cluster(spark, cluster):
    for batch in ("1", "1", "2", "1"):
        spark.createDataFrame([("x",)], "body string").write.format("lapwing").mode("append").options(
            lookupd=cluster.lookupd.http, topic="once", sinkId="nightly", batchId=batch
        ).save()

    assert [broker.bodies("once") for broker in having(cluster, "once")] == [["x", "x"]]
