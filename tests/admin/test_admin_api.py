"""The JSON API of the real daemon, against the tables of NSQ's nsqadmin."""

import gzip
import json
import zlib
from collections.abc import Iterator

import httpx
import pytest
from admin_fakes import FakeLookupd
from admin_stage import Cluster

from daemons import Daemon
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import DaemonHttp

TOPIC_KEYS = [
    "node",
    "hostname",
    "topic_name",
    "depth",
    "memory_depth",
    "backend_depth",
    "message_count",
    "delivery_msg_count",
    "nodes",
    "channels",
    "paused",
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    "node",
    "hostname",
    "topic_name",
    "channel_name",
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
    "nodes",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT_KEYS = [
    "node",
    "remote_address",
    "version",
    "client_id",
    "hostname",
    "user_agent",
    "connect_ts",
    "connected",
    "in_flight_count",
    "ready_count",
    "finish_count",
    "requeue_count",
    "message_count",
    "sample_rate",
    "deflate",
    "snappy",
    "authed",
    "auth_identity",
    "auth_identity_url",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]
NODE_KEYS = [
    "remote_addresses",
    "remote_address",
    "hostname",
    "broadcast_address",
    "tcp_port",
    "http_port",
    "version",
    "topics",
    "out_of_date",
]


@pytest.fixture
def api(cluster: Cluster, nsqadmin: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=nsqadmin.url, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def direct_daemon(shared_cluster: Cluster, starting) -> Daemon:
    return starting(
        f"--nsqd-http-address={shared_cluster.a.address}", f"--nsqd-http-address={shared_cluster.b.address}"
    )


@pytest.fixture
def direct(cluster: Cluster, direct_daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=direct_daemon.url, trust_env=False) as http:
        yield http


def test_topics_are_sorted_and_those_only_in_nsqlookupd_are_among_them(api):
    assert api.get("/api/topics").json() == {"topics": ["bare", "idle", "lonely", "orders"], "message": ""}


def test_inactive_topics_come_with_their_channels(api):
    expected = {"topics": {"bare": None, "idle": ["later"]}, "message": ""}

    assert api.get("/api/topics?inactive=true").json() == expected
    assert "orders" in api.get("/api/topics?inactive=1").json()["topics"]  # exactly "true"


async def test_inactive_topics_of_our_own_nsqlookupd_take_two_requests():
    lookupd = FakeLookupd()
    lookupd.lapwing = True
    lookupd.registered = {f"t{number:04}": {"c"} for number in range(3000)}
    cluster_client = ClusterClient(DaemonHttp(), lookupds=[lookupd.address])
    try:
        found = await cluster_client.inactive_topics()
    finally:
        await cluster_client.http.aclose()
        lookupd.down()

    assert len(found.value) == 3000
    assert found.value["t0042"] == ["c"]
    assert lookupd.asked == 2


async def test_inactive_topics_of_both_kinds_of_nsqlookupd_are_joined():
    ours, theirs = FakeLookupd(), FakeLookupd()
    ours.lapwing = True
    ours.registered = {"a": {"x"}, "b": set()}
    theirs.registered = {"a": {"y"}, "c": {"z"}}
    cluster_client = ClusterClient(DaemonHttp(), lookupds=[ours.address, theirs.address])
    try:
        found = await cluster_client.inactive_topics()
    finally:
        await cluster_client.http.aclose()
        ours.down()
        theirs.down()

    assert (found.value, found.message) == ({"a": ["x", "y"], "b": None, "c": ["z"]}, "")


def test_a_topic_is_summed_over_its_nodes_with_keys_in_their_order(api, cluster):
    answer = api.get("/api/topics/orders")
    topic = answer.json()

    assert list(topic) == [*TOPIC_KEYS, "message"]
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert (topic["node"], topic["hostname"], topic["message_count"]) == ("*", "", 1500)
    assert [part["hostname"] for part in topic["nodes"]] == ["node-a", "node-b"]
    assert [part["node"] for part in topic["nodes"]] == [cluster.a.name, cluster.b.name]
    assert all(part["nodes"] is None for part in topic["nodes"])
    assert [channel["channel_name"] for channel in topic["channels"]] == ["audit#ephemeral", "billing"]
    billing = topic["channels"][1]
    assert list(billing) == CHANNEL_KEYS
    assert (billing["depth"], billing["memory_depth"], billing["backend_depth"]) == (150, 130, 20)
    assert billing["clients"] is None
    assert topic["nodes"][0]["channels"][1]["depth"] == 120  # a node's part stays the node's own


def test_latencies_are_weighted_by_their_counts(api):
    latency = api.get("/api/topics/orders/billing").json()["e2e_processing_latency"]

    assert (latency["host"], latency["topic"], latency["channel"], latency["count"]) == ("*", "orders", "billing", 1500)
    assert latency["percentiles"][0] == {
        "average": (40_000_000 * 1000 + 20_000_000 * 500) / 1500,
        "count": 1500,
        "max": 40_000_000,
        "min": 20_000_000,
        "quantile": 0.99,
    }


def test_a_channel_has_its_clients_sorted_by_node(api, cluster):
    channel = api.get("/api/topics/orders/billing").json()

    assert list(channel) == [*CHANNEL_KEYS, "message"]
    assert [each["client_id"] for each in sorted(channel["clients"], key=lambda each: each["client_id"])] == [
        "worker-1",
        "worker-2",
        "worker-3",
    ]
    assert [each["node"] for each in channel["clients"]] == sorted(each["node"] for each in channel["clients"])
    assert list(channel["clients"][0]) == CLIENT_KEYS
    assert channel["clients"][0]["connected"] % 1_000_000_000 == 0
    assert channel["clients"][0]["connected"] >= 3700 * 1_000_000_000


def test_names_in_the_path_are_percent_encoded(api):
    assert api.get("/api/topics/orders/audit%23ephemeral").json()["channel_name"] == "audit#ephemeral"


def test_a_topic_without_producers_is_empty_rather_than_an_error(api):
    idle = api.get("/api/topics/idle")

    assert (idle.status_code, idle.json()["nodes"], idle.json()["message"]) == (200, [], "")


def test_an_unknown_topic_is_what_nsqlookupd_says(api):
    unknown = api.get("/api/topics/nope")

    assert unknown.status_code == 502
    assert unknown.json() == {
        "message": "UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found "
        '"{\\"message\\": \\"TOPIC_NOT_FOUND\\"}"'
    }


def test_an_unknown_channel_is_not_found(api):
    assert api.get("/api/topics/orders/nope").status_code == 404


def test_nodes_tell_who_knows_them_and_who_is_out_of_date(api, cluster):
    nodes = api.get("/api/nodes").json()["nodes"]

    assert [list(node) for node in nodes] == [NODE_KEYS, NODE_KEYS]
    assert [(node["hostname"], node["out_of_date"]) for node in nodes] == [("node-a", False), ("node-b", True)]
    assert nodes[0]["remote_addresses"] == [f"{cluster.lookupd.address}/127.0.0.1:{cluster.a.port + 1}"]
    assert nodes[0]["topics"] == [{"topic": "lonely", "tombstoned": False}, {"topic": "orders", "tombstoned": False}]


def test_a_node_shows_its_topics_channels_and_clients(api, cluster):
    node = api.get(f"/api/nodes/{cluster.a.name}").json()

    assert list(node) == ["node", "topics", "total_messages", "total_clients", "message"]
    assert (node["node"], node["total_messages"], node["total_clients"]) == (cluster.a.name, 13430, 2)
    assert [topic["topic_name"] for topic in node["topics"]] == ["lonely", "orders"]
    assert len(node["topics"][1]["channels"][1]["clients"]) == 2


def test_an_unknown_node_is_never_contacted(api, cluster):
    before = cluster.a.asked

    assert api.get("/api/nodes/127.0.0.1:1").json() == {"message": "NODE_NOT_FOUND"}
    assert api.request("DELETE", "/api/nodes/127.0.0.1:1", json={"topic": "orders"}).status_code == 404
    assert cluster.a.asked - before < 20


def test_the_counter_is_per_channel_and_node(api, cluster):
    stats = api.get("/api/counter").json()["stats"]

    assert stats[f"orders:billing:{cluster.b.name}"] == {
        "node": cluster.b.name,
        "topic_name": "orders",
        "channel_name": "billing",
        "message_count": 500,
    }
    assert sum(each["message_count"] for each in stats.values()) == 1510


# ---- failures ----


def test_what_is_left_is_shown_with_a_warning_when_a_node_is_dead(api, cluster):
    cluster.b.down()
    try:
        topic = api.get("/api/topics/orders")
    finally:
        cluster.b.up()

    assert topic.status_code == 200
    assert topic.json()["message_count"] == 1000
    assert topic.json()["message"].startswith(f'WARNING: Get "http://{cluster.b.address}/stats?')


def test_nobody_answering_is_a_502(api, cluster):
    cluster.lookupd.down()
    try:
        topics = api.get("/api/topics")
    finally:
        cluster.lookupd.up()

    assert topics.status_code == 502
    assert topics.json()["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: Get ")


NONSENSE = [{"topics": [{"channels": [{"a": 1}]}]}, {"topics": {"a": 1}}, {"topics": [7]}, {"topics": 7}, [], 7]
OF_STATS = ["/api/topics/orders", "/api/topics/orders/billing", "/api/counter"]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
@pytest.mark.parametrize("mode", ["api", "direct"])
def test_nonsense_of_one_nsqd_is_a_warning_that_names_it(request, cluster, monkeypatch, mode, nonsense):
    http = request.getfixturevalue(mode)
    monkeypatch.setattr(cluster.a, "_stats", lambda query: nonsense)
    answers = {path: http.get(path) for path in OF_STATS + (["/api/topics", "/api/nodes"] if mode == "direct" else [])}
    alone = http.get(f"/api/nodes/{cluster.a.name}")

    for path, answer in answers.items():
        assert answer.status_code == 200, path
        assert f"{cluster.a.address}: its answer could not be understood" in answer.json()["message"], path
    assert answers["/api/topics/orders"].json()["message_count"] == 500
    assert alone.status_code == (404 if mode == "direct" else 502)


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
@pytest.mark.parametrize("mode", ["api", "direct"])
def test_nonsense_of_every_nsqd_is_a_502_that_names_them(request, cluster, monkeypatch, mode, nonsense):
    http = request.getfixturevalue(mode)
    for node in (cluster.a, cluster.b):
        monkeypatch.setattr(node, "_stats", lambda query: nonsense)
    paths = [*OF_STATS, f"/api/nodes/{cluster.a.name}", *(["/api/topics", "/api/nodes"] if mode == "direct" else [])]
    for path in paths:
        answer = http.get(path)

        assert answer.status_code == 502, path
        assert answer.json()["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: "), path
        assert f"{cluster.a.address}: its answer could not be understood" in answer.json()["message"], path


@pytest.mark.parametrize("nonsense", [{"producers": [7]}, {"producers": {"a": 1}}, {"producers": 7}, [], 7], ids=repr)
def test_nonsense_of_every_nsqlookupd_is_a_502_that_names_them(api, cluster, monkeypatch, nonsense):
    monkeypatch.setattr(cluster.lookupd, "answer", lambda *_: (200, nonsense))
    for path in ("/api/nodes", "/api/topics/orders", "/api/topics/orders/billing", "/api/counter"):
        answer = api.get(path)

        assert answer.status_code == 502, path
        assert f"{cluster.lookupd.address}: its answer could not be understood" in answer.json()["message"], path
    for path in ("/api/topics", "/api/topics?inactive=true"):
        assert api.get(path).status_code in (200, 502), path


# ---- changes ----


def test_creating_a_topic_tells_every_nsqlookupd_and_no_nsqd(api, cluster):
    assert api.post("/api/topics", json={"topic": "new"}).json() == {"message": ""}
    assert cluster.lookupd.calls == ["/topic/create?topic=new"]
    assert cluster.a.calls == cluster.b.calls == []


def test_creating_a_channel_goes_on_to_the_nodes_of_the_topic(api, cluster):
    api.post("/api/topics", json={"topic": "orders", "channel": "fresh"})

    assert cluster.lookupd.calls == ["/topic/create?topic=orders", "/channel/create?topic=orders&channel=fresh"]
    assert cluster.a.calls == cluster.b.calls == ["/channel/create?topic=orders&channel=fresh"]


@pytest.mark.parametrize("action", ["pause", "unpause", "empty"])
def test_actions_go_to_the_nodes_of_the_topic(api, cluster, action):
    assert api.post("/api/topics/orders", json={"action": action}).json() == {"message": ""}
    api.post("/api/topics/orders/billing", content=json.dumps({"action": action}), headers={"Content-Type": "text/x"})

    calls = [f"/topic/{action}?topic=orders", f"/channel/{action}?topic=orders&channel=billing"]
    assert cluster.a.calls == cluster.b.calls == calls
    assert cluster.lookupd.calls == []


def test_an_action_can_be_limited_to_one_node(api, cluster):
    api.post("/api/topics/orders", json={"action": "pause", "node": cluster.b.name})

    assert (cluster.a.calls, cluster.b.calls) == ([], ["/topic/pause?topic=orders"])


def test_one_failing_node_is_a_warning(api, cluster):
    cluster.b.topics["orders"].channels.clear()
    answer = api.post("/api/topics/orders/billing", json={"action": "pause"})

    assert answer.status_code == 200
    assert answer.json()["message"] == 'WARNING: got response 404 Not Found "{\\"message\\": \\"CHANNEL_NOT_FOUND\\"}"'


def test_deleting_tells_discovery_first_then_the_nodes(api, cluster):
    assert api.delete("/api/topics/orders/billing").json() == {"message": ""}
    assert api.delete("/api/topics/orders").json() == {"message": ""}

    calls = ["/channel/delete?topic=orders&channel=billing", "/topic/delete?topic=orders"]
    assert cluster.lookupd.calls == cluster.a.calls == cluster.b.calls == calls


def test_a_tombstone_hides_the_producer_then_deletes_the_topic_there(api, cluster):
    assert api.request("DELETE", f"/api/nodes/{cluster.b.name}", json={"topic": "orders"}).json() == {"message": ""}

    node = cluster.b.name.replace(":", "%3A")
    assert cluster.lookupd.calls == [f"/topic/tombstone?topic=orders&node={node}"]
    assert (cluster.a.calls, cluster.b.calls) == ([], ["/topic/delete?topic=orders"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/api/topics", b"", 400, "EOF"),
        ("POST", "/api/topics", b"{", 400, None),
        ("POST", "/api/topics", b"[" * 100_000, 400, "nested too deeply"),
        ("POST", "/api/topics", b"{}", 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":"bad name"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":7}', 400, None),
        ("POST", "/api/topics", b'{"topic":"t","channel":"b@d"}', 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics/orders", b'{"action":"explode"}', 400, "INVALID_ACTION"),
        ("POST", "/api/topics/orders/billing", b"{}", 400, "INVALID_ACTION"),
        ("DELETE", "/api/nodes/x:1", b"nope", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/x:1", b'{"topic":""}', 400, "INVALID_TOPIC"),
        ("GET", "/api/graphite", b"", 400, "INVALID_ARG_METRIC"),
        ("GET", "/api/graphite?metric=rate", b"", 400, "INVALID_ARG_TARGET"),
        ("GET", "/nope", b"", 404, "NOT_FOUND"),
        ("GET", "/api/nope", b"", 404, "NOT_FOUND"),
        ("PUT", "/api/topics", b"", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_code(api, method, path, body, status, message):
    answer = api.request(method, path, content=body)

    assert answer.status_code == status
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    if message is not None:
        assert answer.content == b'{"message":"%s"}' % message.encode()


# ---- direct mode ----


def test_direct_mode_asks_the_nsqds_themselves(direct, cluster):
    assert direct.get("/api/topics").json() == {"topics": ["lonely", "orders"], "message": ""}
    assert direct.get("/api/topics?inactive=true").json() == {"topics": {}, "message": ""}
    assert direct.get("/api/topics/orders").json()["message_count"] == 1500
    nodes = direct.get("/api/nodes").json()["nodes"]
    assert [node["hostname"] for node in nodes] == ["node-a", "node-b"]
    assert all(node["remote_addresses"] is None and node["out_of_date"] is False for node in nodes)


def test_direct_mode_creates_nothing_ahead_of_use(direct, cluster):
    assert direct.post("/api/topics", json={"topic": "new"}).status_code == 200
    assert direct.post("/api/topics", json={"topic": "new", "channel": "c"}).status_code == 502
    assert cluster.a.calls == []


def test_direct_mode_changes_only_the_nodes(direct, cluster):
    direct.delete("/api/topics/lonely")

    assert (cluster.a.calls, cluster.b.calls) == (["/topic/delete?topic=lonely"], [])


# ---- HTTP ----


def test_ping_is_plain(api):
    answer = api.get("/ping")

    assert (answer.text, "x-nsq-content-type" in answer.headers) == ("OK", False)


def test_allow_lists_the_methods(api):
    assert api.put("/api/topics/t").headers["allow"] == "DELETE, GET, OPTIONS, POST"
    options = api.options("/config/log_level")
    assert (options.status_code, options.headers["allow"], options.content) == (200, "GET, OPTIONS, PUT", b"")


@pytest.mark.parametrize(
    ("path", "proper"),
    [
        ("/api/topics/", "/api/topics"),
        ("//api//topics", "/api/topics"),
        ("/API/Topics/Orders", "/api/topics/Orders"),
        ("/nodes/", "/nodes"),
    ],
)
def test_another_spelling_of_a_path_is_redirected(api, path, proper):
    get = api.request("GET", httpx.URL(str(api.base_url)).copy_with(raw_path=(path + "?x=1").encode()))

    assert (get.status_code, get.headers["location"]) == (301, f"{proper}?x=1")


def test_a_change_to_another_spelling_is_redirected_with_its_method(api):
    assert api.post("/api/topics/", content=b"{}").status_code == 307


@pytest.mark.parametrize(
    ("accepted", "coding", "unpack"),
    [
        ("gzip, deflate", "gzip", gzip.decompress),
        ("deflate, gzip", "deflate", lambda body: zlib.decompress(body, -15)),
        ("identity", None, bytes),
    ],
)
def test_the_first_coding_named_wins(nsqadmin, cluster, accepted, coding, unpack):
    with httpx.stream("GET", f"{nsqadmin.url}/api/topics", headers={"Accept-Encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())

    assert answer.headers.get("content-encoding") == coding
    assert answer.headers.get("vary") == ("Accept-Encoding" if coding else None)
    assert json.loads(unpack(raw))["message"] == ""


def test_pages_are_html_and_static_files_plain(api):
    assert api.get("/topics").headers["content-type"].startswith("text/html")
    missing = api.get("/static/nope.js")
    assert (missing.status_code, missing.text) == (404, "NOT_FOUND")
    assert api.get("/static/..%2Fapp.py").status_code == 404
    assert api.get("/static/lapwing.css").headers["content-type"].startswith("text/css")


# ---- /config ----


def test_config_is_read_by_its_keys(api, cluster):
    assert api.get("/config/nsqlookupd_http_addresses").json() == [cluster.lookupd.address]
    assert api.get("/config/http_client_connect_timeout").json() == 2_000_000_000
    assert api.get("/config/statsd_prefix").text == "nsq.%s"
    assert api.get("/config/log_level").text == "2"
    assert api.get("/config/config").json() == {"message": "INVALID_OPTION"}


def test_config_changes_the_log_level_and_the_nsqlookupds(api, cluster):
    assert api.put("/config/log_level", content="debug").text == "1"
    assert api.put("/config/log_level", content="loud").json() == {"message": "INVALID_VALUE"}
    assert api.put("/config/log_level", content="info").text == "2"
    assert api.put("/config/base_path", content="/x").json() == {"message": "INVALID_OPTION"}
    assert api.put("/config/log_level", content=b"").status_code == 413
    one = [cluster.lookupd.address]
    assert api.put("/config/nsqlookupd_http_addresses", content=json.dumps(one)).json() == one
