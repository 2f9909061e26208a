"""`/stats`."""

import json
import re

import pytest
from doors import Node, settle

from lapwing.broker.stats import ChannelStats, Latency, TopicStats
from lapwing.net.server.answers import StreamedAnswer
from lapwing.nsqd.http.statspage import Snapshot, TextPage
from lapwing.sessions.nsq import Session, limits_of
from lapwing.wire.nsq.commands import Pub, Rdy, Sub

CLIENT_KEYS = [
    "client_id", "hostname", "version", "remote_address", "state", "ready_count", "in_flight_count", "message_count",
    "finish_count", "requeue_count", "connect_ts", "sample_rate", "deflate", "snappy", "user_agent", "topology_zone",
    "topology_region", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]  # fmt: skip


def session(node: Node, hostname: str = "c1.example", agent: str = "mycons/2.0") -> Session:
    made = Session(node.broker, limits_of(node.options), on_ready=lambda: None, hang_up=lambda: None)
    about = made.about
    about.client_id = about.hostname = hostname
    about.user_agent = agent
    about.remote_address = "127.0.0.1:58540"
    about.connected = node.clock.now() // 1_000_000_000
    return made


async def consuming(node: Node) -> Session:
    consumer = session(node)
    now = node.clock.now()
    await node.ask("POST", "/mpub?topic=t", b"a\nb\nc")
    consumer.handle(Sub("t", "c"), now=now)
    consumer.handle(Rdy(2), now=now)
    node.turn.end()
    return consumer


async def test_keys_stand_in_their_order() -> None:
    node = Node()
    await consuming(node)
    found = await node.json("/stats?format=json")

    topic = found["topics"][0]
    channel = topic["channels"][0]
    assert list(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert list(topic) == [
        "topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes", "paused",
        "e2e_processing_latency",
    ]  # fmt: skip
    assert list(channel) == [
        "channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count", "message_count",
        "global_msg_count", "requeue_count", "timeout_count", "client_count", "clients", "paused",
        "e2e_processing_latency",
    ]  # fmt: skip
    assert list(channel["clients"][0]) == CLIENT_KEYS


async def test_a_consumer_is_shown_with_what_it_holds() -> None:
    node = Node()
    await consuming(node)
    channel = (await node.json("/stats?format=json&topic=t"))["topics"][0]["channels"][0]

    client = channel["clients"][0]
    assert (channel["depth"], channel["in_flight_count"], channel["client_count"]) == (1, 2, 1)
    assert (client["state"], client["ready_count"], client["in_flight_count"], client["message_count"]) == (3, 2, 2, 2)
    assert client["remote_address"] == "127.0.0.1:58540"


async def test_the_active_consumer_is_shown_where_a_channel_has_one() -> None:
    node = Node()
    await consuming(node)
    setting = "/channel/settings?topic=t&channel=c"
    assert (await node.ask("PATCH", setting, b'{"active": "single"}'))[0] == 200
    other = session(node, "c2.example")
    other.handle(Sub("t", "c"), now=node.clock.now())
    other.handle(Rdy(2), now=node.clock.now())
    node.turn.end()

    channel = (await node.json("/stats?format=json&topic=t"))["topics"][0]["channels"][0]
    assert channel["active_consumer"] == "nsq:c1.example:58540"
    assert [list(client) for client in channel["clients"]] == [[*CLIENT_KEYS, "active"]] * 2
    assert [client["active"] for client in channel["clients"]] == [True, False]
    assert [client["in_flight_count"] for client in channel["clients"]] == [2, 0]
    assert (await node.ask("PATCH", setting, b'{"active": "one"}'))[0] == 400


async def test_producers_are_all_who_published_with_all_they_published_to() -> None:
    node = Node()
    producer = session(node, "p1.example", "myprod/1.0")
    now = node.clock.now()
    for topic in ("b", "a", "a"):
        producer.handle(Pub(topic, b"x"), now=now)
    node.turn.end()

    everything = await node.json("/stats?format=json&include_mem=0")
    one = await node.json("/stats?format=json&topic=b")
    other = await node.json("/stats?format=json&topic=none")
    without = await node.json("/stats?format=json&include_clients=false")
    assert everything["producers"][0]["pub_counts"] == [{"topic": "a", "count": 2}, {"topic": "b", "count": 1}]
    assert "memory" not in everything
    assert one["producers"][0]["pub_counts"] == [{"topic": "b", "count": 1}]
    assert (other["topics"], other["producers"]) == (None, None)
    assert without["producers"] is None


async def test_what_an_auth_server_said_is_shown_only_if_it_said_it() -> None:
    node = Node()
    consumer = await consuming(node)
    about = consumer.about
    about.authed, about.auth_identity, about.tls, about.tls_cipher = True, "joe", True, "TLS_AES_128_GCM_SHA256"
    about.tls_version = "TLS1.3"
    client = (await node.json("/stats?format=json"))["topics"][0]["channels"][0]["clients"][0]

    assert list(client)[15:17] == ["authed", "auth_identity"]
    assert "auth_identity_url" not in client
    assert client["tls_cipher_suite"] == "Unknown 4865"
    assert client["tls_negotiated_protocol_is_mutual"] is True


async def test_percentiles_are_null_unless_asked_for() -> None:
    plain, asked = Node(), Node(e2e_processing_latency_percentiles=(0.99, 0.5))
    for node in (plain, asked):
        await node.ask("POST", "/topic/create?topic=t")
        await node.ask("POST", "/topic/create?topic=u")
        await node.ask("POST", "/channel/create?topic=t&channel=c")

    latencies = [
        (topic["e2e_processing_latency"], [channel["e2e_processing_latency"] for channel in topic["channels"]])
        for node in (plain, asked)
        for topic in (await node.json("/stats?format=json"))["topics"]
    ]
    nothing = {"count": 0, "percentiles": None}
    zeros = {"count": 0, "percentiles": [{"quantile": 0.99, "value": 0}, {"quantile": 0.5, "value": 0}]}
    assert latencies == [(nothing, [nothing]), (nothing, []), (zeros, [zeros]), (nothing, [])]


@pytest.mark.parametrize("form", ["json", "text"])
async def test_many_topics_are_sent_in_pieces_that_make_the_same_page(form: str) -> None:
    node = Node()
    for number in range(450):
        await node.ask("POST", f"/topic/create?topic=t{number:03}")
    node.broker.existing("t007").create_channel("c", now=node.clock.now())
    streamed = await settle(node.request("GET", f"/stats?format={form}&include_mem=0"))
    text = (await node.ask("GET", f"/stats?format={form}&include_mem=0"))[1]
    filtered = (await node.ask("GET", f"/stats?format={form}&include_mem=0&channel=c"))[1]

    assert isinstance(streamed, StreamedAnswer)
    if form == "json":
        names = [topic["topic_name"] for topic in json.loads(text)["topics"]]
        assert [topic["topic_name"] for topic in json.loads(filtered)["topics"]] == ["t007"]
    else:
        names = re.findall(r"\n   \[(\S+) +\] depth", text)
        assert re.findall(r"\n   \[(\S+) +\] depth", filtered) == ["t007"]
        assert "]\n\n\n" not in text
    assert names == [f"t{number:03}" for number in range(450)]


async def test_the_text_is_laid_out_as_nsq_lays_it_out() -> None:
    node = Node()
    started = 1_794_736_793 * 1_000_000_000
    latency = Latency(5, ((0.99, 10_100_000), (0.5, 999)))
    consumer = await consuming(node)
    producer = session(node, "p1.example", "myprod/1.0")
    producer.publish_counts = {"orders": 5}
    for each in (consumer, producer):
        each.about.connected = started // 1_000_000_000 + 20
    channel = ChannelStats("billing", 0, 0, 3, 1, 5, 0, 0, 5, 1, 0, 1, (consumer.stats(),), False, latency, 5)
    idle = ChannelStats("archive", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (), True, Latency(0, None), 0)
    topics = [
        TopicStats("orders", (channel,), 0, 0, 5, 10, False, latency, 0, 0, 5),
        TopicStats("audit", (idle,), 1, 0, 1, 1, True, Latency(0, None), 0, 0, 1),
    ]
    now = started + 25_411_666_465
    snapshot = Snapshot("1.3.0", "go1.19.8", "OK", started, now, {"heap_objects": 32064}, [producer.stats()])
    page = TextPage()

    text = page.opening(snapshot, some=True) + page.topics(snapshot, topics, first=True)
    assert (text + page.closing(snapshot, some=True)).decode() == (
        "nsqd v1.3.0 (built w/go1.19.8)\n"
        "start_time 2026-11-15T09:59:53Z\n"
        "uptime 25.411666465s\n"
        "\n"
        "Health: OK\n"
        "\n"
        "Memory:\n"
        "   heap_objects             \t32064\n"
        "\n"
        "Topics:\n"
        "   [orders         ] depth: 0     be-depth: 0     msgs: 5        e2e%: 10.1ms, 999.0ns\n"
        "      [billing                  ] depth: 0     be-depth: 0     inflt: 3    def: 1    re-q: 1     "
        "timeout: 0     msgs: 5        e2e%: 10.1ms, 999.0ns\n"
        "        [V2 c1.example:58540 mycons/2.0] state: 3 inflt: 2    rdy: 2    fin: 0        re-q: 0        "
        "msgs: 2        connected: 5s\n"
        "\n"
        "*P [audit          ] depth: 1     be-depth: 0     msgs: 1        e2e%: \n"
        "   *P [archive                  ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 0        e2e%: \n"
        "\n"
        "Producers:\n"
        "   [V2 p1.example:58540 myprod/1.0] msgs: 5        topics: orders=5 connected: 5s\n"
    )


async def test_health_is_told_in_its_own_words() -> None:
    node = Node()
    node.broker.keeper.problem = "t.log: write at offset 0 failed: No space left on device"

    assert (await node.json("/stats?format=json"))["health"] == f"NOK - {node.broker.keeper.problem}"
    assert f"\nHealth: NOK - {node.broker.keeper.problem}\n" in (await node.ask("GET", "/stats"))[1]


async def test_an_unknown_topic_has_no_producers_in_either_form() -> None:
    node = Node()
    session(node).handle(Pub("t", b"x"), now=node.clock.now())
    node.turn.end()

    assert "Producers:\n" in (await node.ask("GET", "/stats"))[1]
    assert (await node.json("/stats?format=json&topic=other"))["producers"] is None
    assert (await node.ask("GET", "/stats?topic=other"))[1].endswith("Topics: None\n\nProducers: None\n")
