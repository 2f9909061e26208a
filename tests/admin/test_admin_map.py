"""The map: which boxes it has, and what flows between them."""

from admin_browser import Ui
from admin_fakes import FakeNsqd
from admin_stage import Cluster
from playwright.sync_api import Page, expect

from daemons import Daemon
from lapwing.admin.history import FlowRates, History
from lapwing.admin.map_graph import MOST_CLIENTS, MOST_TOPICS, draw_map, published_by_host
from lapwing.client.cluster import SUM, DeadTopic, Json
from lapwing.client.cluster_view import ClusterView, CountRates


def channel(topic: str, name: str, **more: object) -> Json:
    about = {"topic_name": topic, "channel_name": name, "depth": 0, "in_flight_count": 0, "paused": False}
    return {**about, "clients": [], "consumers": [], **more}


def topic(name: str, *channels: Json, depth: int = 0) -> Json:
    return {"topic_name": name, "node": SUM, "depth": depth, "channels": list(channels)}


def view(*topics: Json, pipelines: tuple[Json, ...] = ()) -> ClusterView:
    return ClusterView(at=1000.0, topics={each["topic_name"]: each for each in topics}, pipelines=pipelines)


def history(topics: dict[str, float], channels: dict[tuple[str, str], tuple[float, float]]) -> History:
    made = History()
    made.topic_flow = {name: FlowRates(flow) for name, flow in topics.items()}
    made.channel_flow = {key: FlowRates(*flow) for key, flow in channels.items()}
    return made


def producer(host: str, count: int, name: str = "orders") -> Json:
    return {"hostname": host, "remote_address": f"{host}:1", "pub_counts": [{"topic": name, "count": count}]}


def test_messages_flow_from_hosts_through_topics_and_channels_to_readers_and_dead_letters():
    clients = [{"hostname": host} for host in ("w1", "w1", "w2")]
    billing = channel("orders", "billing", depth=5, in_flight_count=2, clients=clients)
    lake = channel("orders", "lake")
    dead = {"orders.billing.dead": DeadTopic("orders.billing.dead", 3, {}, {})}
    moved = {"name": "archive", "kind": "archive", "channel": "lake", "topics": ["orders"], "state": "running"}
    made = draw_map(
        view(topic("orders", billing, lake), pipelines=(moved | {"updated_ms": 1_000_000},)),
        history({"orders": 50.0}, {("orders", "billing"): (50.0, 40.0), ("orders", "lake"): (50.0, 50.0)}),
        {"orders": {"web": 50.0}}, dead, [], topic="orders",
    )  # fmt: skip

    assert {(each.kind, each.name, each.fact) for each in made.nodes.values()} == {
        ("producer", "web", ""), ("topic", "orders", "50/s"), ("channel", "billing", "7 unfinished"),
        ("channel", "lake", ""), ("consumer", "w1", "2 connections"), ("consumer", "w2", "1 connection"),
        ("pipeline", "archive", "archive"), ("dead", "orders.billing.dead", "3 dead letters"),
    }  # fmt: skip
    assert sorted(made.edges) == [
        ("c orders/billing", "d orders.billing.dead", 0.0), ("c orders/billing", "r w1", 20.0),
        ("c orders/billing", "r w2", 20.0), ("c orders/lake", "s archive", 50.0), ("p web", "t orders", 50.0),
        ("t orders", "c orders/billing", 50.0), ("t orders", "c orders/lake", 50.0),
    ]  # fmt: skip


def test_a_large_cluster_shows_its_busiest_topics_and_few_hosts_each():
    hosts = {f"h{number}": 1.0 for number in range(MOST_CLIENTS + 3)}
    topics = [topic(f"t{number:02}") for number in range(MOST_TOPICS + 5)]
    made = draw_map(view(*topics), history({"t29": 9.0}, {}), {"t29": hosts}, {}, [])

    assert made.left_out == 5
    assert "t t29" in made.nodes
    assert [each.name for each in made.nodes.values() if each.kind == "producer"][-1] == "3 other hosts"
    assert sum(flow for _, to, flow in made.edges if to == "t t29") == 9.0


def test_the_cluster_has_one_box_for_the_hosts_of_a_channel():
    clients = [{"hostname": host} for host in ("w1", "w1", "w2")]
    made = draw_map(view(topic("orders", channel("orders", "billing", clients=clients))), History(), {}, {}, [])

    assert [(each.name, each.fact) for each in made.nodes.values() if each.kind == "consumer"] == [
        ("2 hosts", "3 connections")
    ]


def test_what_comes_by_http_is_a_producer_of_its_own():
    made = draw_map(view(topic("orders")), history({"orders": 100.0}, {}), {"orders": {"web": 30.0}}, {}, [])

    assert ("p http", "t orders", 70.0) in made.edges


def test_the_rate_of_a_producer_needs_two_views_and_the_same_connection():
    counts = CountRates()
    published_by_host([producer("web", 100)], counts, 1000.0)
    both = [producer("web", 150), producer("new", 9)]

    assert published_by_host(both, counts, 1010.0) == {"orders": {"web": 5.0, "new": 0.0}}
    assert published_by_host(both, counts, 1010.0) == {"orders": {"web": 5.0, "new": 0.0}}  # drawn twice
    assert published_by_host([producer("web", 20)], counts, 1020.0) == {"orders": {"web": 0.0}}


def publishes(node: FakeNsqd) -> None:
    node.producers = [producer("shop.example", 400)]


def test_the_page_shows_boxes_that_lead_to_their_pages(cluster: Cluster, nsqadmin: Daemon, page: Page) -> None:
    publishes(cluster.a)
    ui = Ui(page, nsqadmin.url)
    ui.open("/map")
    boxes = page.get_by_role("region", name="Map")
    for name in ("topic orders", "topic lonely", "channel billing"):
        expect(boxes.get_by_role("link", name=name)).to_be_visible()
    expect(boxes.get_by_text("shop.example")).to_be_visible()
    expect(boxes.get_by_text("3 hosts")).to_be_visible()
    page.get_by_role("main").get_by_role("combobox").select_option("lonely")
    expect(boxes.get_by_role("link", name="topic orders")).to_have_count(0)
    boxes.get_by_role("link", name="topic lonely").click()

    expect(page.locator("h1")).to_have_text("lonely")
