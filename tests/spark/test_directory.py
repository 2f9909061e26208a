"""Brokers found through nsqlookupd: none is left out in silence, and nsqlookupd itself may be away."""

import json
import urllib.request

import pytest
from driven import DrivenQuery
from test_reading import Script, says

from daemons import start_nsqlookupd, until
from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerAway
from lapwing.spark.data_source import columns
from lapwing.spark.options import BrokerAccess, source_options
from lapwing.spark.source import batch_reader
from lapwing.spark.source.batch_reader import LogBatchReader


class Cluster:
    """An nsqlookupd with two brokers that have the topic `orders`."""

    def __init__(self, start_broker):
        self.lookupd = start_nsqlookupd()
        self.brokers = [start_broker(f"--lookupd-tcp-address={self.lookupd.tcp}") for _ in range(2)]
        for number, broker in enumerate(self.brokers):
            broker.publish("orders", *(b"%d-%d" % (number, n) for n in range(3)))
        self.until_known(2)

    def producers(self):
        with urllib.request.urlopen(f"{self.lookupd.url}/producers?topic=orders", timeout=60) as answer:
            return json.load(answer)

    def until_known(self, count):
        until(lambda: len(self.producers()["producers"]) == count, seconds=60, what=f"{count} known brokers")

    def query(self, **options):
        return DrivenQuery(lookupd=self.lookupd.http, **options)

    def batch(self, **options):
        raw = {"lookupd": self.lookupd.http, "topic": "orders", "retryTimeout": "500ms", **options}
        reader = LogBatchReader(source_options(raw, streaming=False), columns(raw))
        return sorted(
            body
            for task in reader.partitions()
            for batch in reader.read(task)
            for body in batch.column("body").to_pylist()
        )


@pytest.fixture
def cluster(start_broker):
    made = Cluster(start_broker)
    yield made
    made.lookupd.kill()


ALL = [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1", b"1-2"]


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_batch_does_not_leave_out_a_broker_that_is_down(cluster, caplog):
    down = cluster.brokers[1]
    down.daemon.kill()
    cluster.until_known(1)

    with pytest.raises(BrokerAway, match=rf"not all brokers answer: topic orders at {down.address}: .*producer/forget"):
        cluster.batch()
    assert cluster.batch(failOnDataLoss="false") == ALL[:3]
    assert any(line.startswith(f"{down.address} is away and passed over") for line in said(caplog))
    down.daemon.restart()
    assert cluster.batch() == ALL


def test_a_batch_does_not_wait_for_a_broker_that_an_operator_has_forgotten(cluster, caplog):
    cluster.brokers[1].daemon.kill()
    cluster.until_known(1)
    forget = f"{cluster.lookupd.url}/producer/forget?node={cluster.brokers[1].address}"
    urllib.request.urlopen(forget, data=b"", timeout=60).close()

    assert cluster.batch() == ALL[:3]
    assert any(f"these were read: node 1 ({cluster.brokers[0].address})" in line for line in said(caplog))


def test_a_batch_is_no_shorter_because_nsqlookupd_was_restarted_while_a_broker_was_down(cluster, monkeypatch):
    cluster.brokers[1].daemon.kill()
    cluster.lookupd.kill()
    cluster.lookupd.restart()
    cluster.until_known(1)
    monkeypatch.setattr(batch_reader, "_START_SECONDS", -60.0)  # as if the brokers had run for a minute before

    with pytest.raises(LapwingError, match=r"nsqlookupd was restarted \d+ s ago .* would be missing. It lists node 1 "):
        cluster.batch()
    assert cluster.batch(failOnDataLoss="false") == ALL[:3]


def test_a_stream_goes_on_while_nsqlookupd_is_away(cluster, caplog):
    query = cluster.query(retryTimeout="200ms", channel="lake")
    query.catch_up()
    cluster.lookupd.kill()
    cluster.brokers[0].publish("orders", b"later")
    query.catch_up()
    query.catch_up()

    assert query.bodies() == [*ALL, b"later"]
    assert [line for line in said(caplog) if "nsqlookupd" in line] == [
        f"nsqlookupd {cluster.lookupd.http}: connection refused; the brokers that are known are read"
    ]
    cluster.lookupd.restart()
    query.batch()
    assert said(caplog)[-1] == f"nsqlookupd {cluster.lookupd.http} is back"
    query.restart()
    cluster.lookupd.kill()
    with pytest.raises(BrokerAway, match="nsqlookupd"):  # a new process knows no broker yet
        query.batch()


def test_a_run_to_the_end_waits_for_a_node_that_only_the_checkpoint_knows(cluster, caplog):
    query = cluster.query()
    query.catch_up()
    down = cluster.brokers[1]
    down.publish("orders", b"1-3")
    down.daemon.kill()
    cluster.lookupd.kill()
    cluster.lookupd.restart()  # and has forgotten everybody
    cluster.until_known(1)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerAway, match=r"topic orders, node 2 was read up to 3, and no broker that is known has it"):
        query.batch()

    query.restart(acceptLoss="true")
    query.reader.prepareForTriggerAvailableNow()
    query.catch_up()
    del query.raw["acceptLoss"]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    cluster.brokers[0].publish("orders", b"0-3")
    query.catch_up()
    down.daemon.restart()
    cluster.until_known(2)
    query.restart()
    query.catch_up()
    assert query.bodies() == sorted([*ALL, b"0-3", b"1-3"])


@pytest.fixture
def forgetful(cluster):
    """An nsqlookupd that was started lately and knows the first broker alone."""
    host, _, port = cluster.brokers[0].address.rpartition(":")
    known = {"broadcast_address": host, "http_port": int(port), "topics": ["orders"], "tombstoned": [], "active": True}
    script = Script()
    script.steps = [says(200, producers=[known], departed=[], started_ms_ago=5000)]
    yield script.address
    script.close()


@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_restarted_query_reads_a_broker_that_nsqlookupd_has_forgotten(cluster, forgetful, to_the_end):
    query = cluster.query(channel="lake")
    query.catch_up()
    for number, broker in enumerate(cluster.brokers):
        broker.publish("orders", b"%d-3" % number)
    query.restart(lookupd=forgetful)
    if to_the_end:
        query.reader.prepareForTriggerAvailableNow()

    query.catch_up()
    assert query.bodies() == sorted([*ALL, b"0-3", b"1-3"])


def test_a_broker_that_is_down_and_forgotten_is_named_and_read_when_it_is_back(cluster, forgetful, caplog):
    query = cluster.query()
    query.catch_up()
    down = cluster.brokers[1]
    down.publish("orders", b"1-3")
    cluster.brokers[0].publish("orders", b"0-3")
    down.daemon.kill()
    query.restart(lookupd=forgetful)
    query.catch_up()
    assert f"{down.address} is away, its messages wait: {down.address}: connection refused" in said(caplog)

    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(BrokerAway, match=rf"node 2 was read up to 3, and .*{down.address}: connection refused"):
        query.batch()
    query.restart()
    query.catch_up()
    down.daemon.restart()
    query.catch_up()
    assert query.bodies() == sorted([*ALL, b"0-3", b"1-3"])


def test_a_forgotten_address_that_another_broker_has_now_is_not_read(cluster, forgetful, start_broker):
    query = cluster.query()
    query.catch_up()
    stranger = start_broker()
    stranger.publish("orders", b"strange")
    query.committed = json.loads(json.dumps(query.committed).replace(cluster.brokers[1].address, stranger.address))
    query.restart(lookupd=forgetful)

    query.catch_up()
    assert query.bodies() == ALL


def test_nsqs_own_nsqlookupd_is_asked_for_its_nodes():
    node = {"broadcast_address": "10.0.0.1", "http_port": 4151, "topics": ["a", "b"], "tombstones": [False, True]}
    lookupd = Script()
    lookupd.steps = [says(404, message="NOT_FOUND"), says(200, producers=[node])]
    directory = Directory(BrokerAccess(lookupd=(lookupd.address,)))
    try:
        assert directory.find(["a"]) == ["10.0.0.1:4151"]
        assert directory.find(["b"]) == []
        assert directory.find(pattern="[ab]") == directory.find() == ["10.0.0.1:4151"]
        assert [path for path, _ in lookupd.asked][:3] == ["/producers", "/nodes", "/nodes"]
        assert directory.remembers_ms == 0
    finally:
        lookupd.close()


def test_a_broker_that_left_one_nsqlookupd_and_is_with_another_is_connected():
    def producer(topics):
        return {"broadcast_address": "h", "http_port": 1, "topics": topics, "tombstoned": [], "active": True}

    here, there = Script(), Script()
    here.steps = [says(200, producers=[], departed=[producer(["old"])], started_ms_ago=5)]
    there.steps = [says(200, producers=[producer(["new"])], departed=[], started_ms_ago=7)]
    directory = Directory(BrokerAccess(lookupd=(here.address, there.address)))
    try:
        assert directory.find(["new"]) == ["h:1"]
        assert directory.find(["old"], departed=True) == []
        assert directory.remembers_ms == 7
    finally:
        here.close()
        there.close()


def test_a_query_moves_between_a_list_and_nsqlookupd_with_a_batch_begun(cluster):
    query = DrivenQuery(cluster.brokers, channel="lake")
    query.batch()
    start = query.committed
    query.planned = start, query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
    del query.raw["nsqd"]
    query.restart(lookupd=cluster.lookupd.http)
    assert sorted(row[3] for row in query.batch()) == ALL

    for number, broker in enumerate(cluster.brokers):
        broker.publish("orders", b"%d-3" % number)
    start = query.committed
    query.planned = start, query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
    del query.raw["lookupd"]
    query.restart(nsqd=cluster.brokers[0].address)
    with pytest.raises(BrokerAway, match=r"topic orders, node 2, log \w+, sequences \[3, 4\): no broker has it"):
        query.batch()
    query.restart(nsqd=f"{cluster.brokers[1].address},{cluster.brokers[0].address}")
    query.catch_up()
    assert query.bodies() == sorted([*ALL, b"0-3", b"1-3"])
    assert [broker.depth("orders", "lake") for broker in cluster.brokers] == [0, 0]
