"""The daemons' answers as one picture."""

import pytest

from lapwing.admin.pages.clients import client_attributes
from lapwing.client.cluster import (
    Node,
    client_object,
    join_address,
    latency_of_node,
    locality,
    node_of_info,
    nodes_of_lookup,
    sum_latency,
    topics_of_stats,
    version_key,
)


def producer(host="a", **more):
    return {
        "remote_address": f"10.0.0.9:{len(host)}",
        "hostname": host,
        "broadcast_address": host,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        **more,
    }


def test_a_node_that_two_nsqlookupds_know_is_one_node():
    answers = {
        "l1:4161": {"producers": [producer(topics=["x"], tombstones=[False])]},
        "l2:4161": {"producers": [producer(topics=["x", "y"], tombstones=[True, False])]},
    }
    [node] = nodes_of_lookup(answers)

    assert node.remote_addresses == ("l1:4161/10.0.0.9:1", "l2:4161/10.0.0.9:1")
    assert node.to_json()["topics"] == [{"topic": "x", "tombstoned": True}, {"topic": "y", "tombstoned": False}]


def test_nodes_are_sorted_and_the_older_ones_marked():
    answers = {"l": {"producers": [producer("b"), producer("a", version="1.2.9"), producer("c", version="odd")]}}

    assert [(node.hostname, node.out_of_date) for node in nodes_of_lookup(answers)] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.2.1", "1.3.0"),
        ("1.9.0", "1.10.0"),
        ("1.3.0-alpha", "1.3.0"),
        ("1.3.0-alpha.2", "1.3.0-alpha.10"),
        ("junk", "0.0.1"),
    ],
)
def test_versions_compare_as_semantic_ones(older, newer):
    assert version_key(older) < version_key(newer)


def test_an_ipv6_node_has_brackets():
    assert join_address("::1", 4151) == "[::1]:4151"
    assert Node("h", "::1", 4150, 4151, "").name == "[::1]:4151"


def test_a_configured_node_is_asked_where_the_operator_said():
    node = node_of_info(
        "proxy:80", {"broadcast_address": "inner", "http_port": 4151, "tcp_port": 4150, "hostname": "h"}
    )

    assert (node.name, node.contact) == ("inner:4151", "proxy:80")


def test_missing_numbers_count_as_nothing():
    node = Node("h", "b", 4150, 4151, "")
    topic = topics_of_stats([(node, {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c"}]}]})], now=0)[
        "t"
    ]

    assert (topic["depth"], topic["channels"][0]["client_count"]) == (0, 0)


def test_a_redis_client_counts_between_two_reads_too():
    node = Node("h", "b", 4150, 4151, "")

    def clients(idle, waiting):
        named = [{"name": "ann", "in_flight_count": 0, "idle_seconds": idle, "oldest_seconds": 0.0}]
        raw = {"channel_name": "c", "client_count": waiting, "clients": [], "consumers": named}
        stats = {"topics": [{"topic_name": "t", "channels": [raw]}]}
        return topics_of_stats([(node, stats)], now=0)["t"]["channels"][0]["client_count"]

    assert [clients(0.0, 1), clients(0.1, 0), clients(3600.0, 0)] == [1, 1, 0]


def test_each_node_has_an_active_consumer_where_a_channel_is_set_to_one():
    nodes = [Node("h", "b", 4150, port, "") for port in (4151, 4251, 4351)]
    clients = [[{"active": True}, {"active": False}], [{"active": True}], [{}]]
    more = [{"active_consumer": "nsq:a:1"}, {"active_consumer": ""}, {}]  # nobody asks on the second; the third is old

    def summed(*places):
        raws = [(nodes[at], {"channel_name": "c", "clients": clients[at], **more[at]}) for at in places]
        stats = [(node, {"topics": [{"topic_name": "t", "channels": [raw]}]}) for node, raw in raws]
        return topics_of_stats(stats, now=0)["t"]["channels"][0]

    assert summed(0, 1, 2)["active_consumers"] == summed(0)["active_consumers"] == ["nsq:a:1"]
    assert summed(1)["active_consumers"] == []
    assert "active_consumers" not in summed(2)
    labels = [client_attributes(client) for client in summed(0)["clients"] + summed(2)["clients"]]
    assert [[label[0] for label in each] for each in labels] == [["Active"], ["Standby"], []]


def test_topology_counts_are_there_only_when_they_are_something():
    node = Node("h", "b", 4150, 4151, "")
    raw = {"channel_name": "c", "zone_local_msg_count": 7, "global_msg_count": 3}
    channel = topics_of_stats([(node, {"topics": [{"topic_name": "t", "channels": [raw]}]})], now=0)["t"]["channels"][0]

    assert (channel["delivery_msg_count"], channel["zone_local_msg_count"], channel["global_msg_count"]) == (10, 7, 3)
    assert "region_local_msg_count" not in channel


def test_the_extremes_of_a_summed_latency_are_extremes():
    parts = [
        latency_of_node({"count": count, "percentiles": [{"quantile": 0.9, "value": value}]})
        for count, value in ((10, 100), (30, 20), (0, 0))
    ]
    [point] = sum_latency(parts, topic="t", channel="c")["percentiles"]

    assert point == {"average": 40.0, "count": 40, "max": 100, "min": 0, "quantile": 0.9}


def test_without_percentiles_the_sum_has_none():
    assert sum_latency([latency_of_node(None)], topic="t", channel="")["percentiles"] is None


@pytest.mark.parametrize(
    ("zone", "region", "near"), [("z", "r", "zone"), ("other", "r", "region"), ("z", "other", ""), ("", "", "")]
)
def test_a_client_is_near_its_nsqd_by_zone_or_region(zone, region, near):
    node = Node("h", "b", 4150, 4151, "", zone="z", region="r")
    client = client_object(node, {"topology_zone": zone, "topology_region": region}, now=0)

    assert locality(client) == near
