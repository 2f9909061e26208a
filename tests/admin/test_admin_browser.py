"""The pages in a real browser, in front of a fake cluster whose numbers the tests hold in their hands."""

import contextlib
import json
import re
import socket
import time
from pathlib import Path

import httpx
import pytest
from admin_browser import Ui
from admin_fakes import Channel, Topic, client
from admin_stage import Cluster
from playwright.sync_api import Page, expect

from daemons import Daemon, until
from lapwing.admin.access import hash_password

pytestmark = pytest.mark.browser

SCRIPT = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
PAGES = {
    "/": "Overview",
    "/topics": "Topics",
    "/topics/orders": "orders",
    "/topics/orders/billing": "billing",
    "/nodes": "Nodes (2)",
    "/counter": "Counter",
    "/lookup": "Lookup",
    "/messages?topic=orders": "Messages",
    "/map": "Map",
    "/clients": "Clients",
    "/pipelines": "Pipelines",
    "/dead": "Dead letters",
    "/settings": "Settings",
    "/audit": "Audit",
}


@pytest.fixture
def ui(cluster: Cluster, nsqadmin: Daemon, page: Page) -> Ui:
    return Ui(page, nsqadmin.url)


def cell(page: Page, table: str, row: str, label: str):
    """One cell, by the table's caption, what stands in its row and the column's name."""
    return (
        page.get_by_role("table", name=table).get_by_role("row").filter(has_text=row).locator(f"[data-label='{label}']")
    )


def hacked(page: Page) -> bool:
    return bool(page.evaluate("window.hacked === 1"))


# ---- every page ----


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_its_link_its_landmarks_and_fits_large_and_small_screens(ui, cluster, nsqadmin, path):
    if path == "/audit":  # a long detail without a space
        option = f"{nsqadmin.url}/config/nsqlookupd_http_addresses"
        for count in (4, 1):
            httpx.put(option, json=[cluster.lookupd.address] * count).raise_for_status()
    cluster.a.pipelines.append({"name": "lake", "topics": ["orders"], "channel": "billing", "state": "running"})
    ui.page.set_viewport_size({"width": 1440, "height": 900})
    page = ui.open(path)

    expect(page.locator("h1")).to_have_text(PAGES[path])
    expect(page).to_have_title(f"{PAGES[path]} · nsqadmin")
    for role in ("navigation", "main", "banner"):
        expect(page.get_by_role(role).first).to_be_attached()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a[href]")]
        .filter((e) => e.offsetParent && !(e.innerText || e.ariaLabel || e.title || e.closest("label")?.innerText))
        .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    over = "Math.max(0, ...[...document.querySelectorAll('.lw-scroll')].map((e) => e.scrollWidth - e.clientWidth))"
    assert page.evaluate(over) == 0, "a table does not fit 1440 pixels"
    page.set_viewport_size({"width": 360, "height": 740})
    until(
        lambda: page.evaluate("document.documentElement.scrollWidth") <= 360,
        what="a page that does not scroll sideways",
    )


def test_the_node_page_shows_topics_channels_and_clients(ui, cluster):
    page = ui.open(f"/nodes/{cluster.a.name}")

    expect(cell(page, f"Topics on {cluster.a.name}", "lonely", "Depth")).to_have_text("12,430")
    expect(cell(page, f"Channels on {cluster.a.name}", "billing", "Deferred")).to_have_text("1")
    expect(cell(page, f"Connections to {cluster.a.name}", "worker-2", "Attributes")).to_contain_text("TLS")


def test_the_overview_says_what_is_wrong_and_what_to_do(ui):
    page = ui.open("/")

    expect(page.get_by_text("Topic lonely has no channel: 12,430 messages are buffering.")).to_be_visible()
    expect(page.get_by_text("Create a channel or start a consumer")).to_be_visible()
    expect(page.get_by_text("2 of 2 nsqd up · 1 of 1 nsqlookupd up")).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()


def test_the_topic_page_has_every_column(ui):
    page = ui.open("/topics/orders")

    total = page.get_by_role("table", name="orders on each nsqd").get_by_role("row").filter(has_text="Total")
    expect(total.locator("[data-label='Messages']")).to_have_text("1,500")
    expect(cell(page, "Channels of orders", "billing", "Memory + disk")).to_have_text("130 + 20")
    expect(cell(page, "Channels of orders", "billing", "99th")).to_have_text("33.3ms")


def test_the_channel_page_shows_who_is_connected(ui):
    page = ui.open("/topics/orders/billing")

    expect(cell(page, "Connections to orders/billing", "worker-1", "Ready count")).to_have_text("200")
    expect(cell(page, "Connections to orders/billing", "worker-1", "Connected")).to_have_text("1h 1m")


# ---- live ----


def test_numbers_change_without_a_reload(ui, cluster):
    page = ui.open("/topics")
    expect(cell(page, "Topics", "orders", "Messages")).to_have_text("1,500")
    cluster.a.topics["orders"].messages += 500

    expect(cell(page, "Topics", "orders", "Messages")).to_have_text("2,000")


def test_the_counter_counts_up(ui, cluster):
    page = ui.open("/counter")
    expect(page.locator(".lw-counter")).to_have_text("1,510")
    cluster.b.topics["orders"].channels["billing"].messages += 90

    expect(page.locator(".lw-counter")).to_have_text("1,600")


def test_what_is_left_is_shown_with_a_warning_when_a_node_dies(ui, cluster):
    page = ui.open("/topics/orders")
    cluster.b.down()
    try:
        expect(page.get_by_role("alert").first).to_contain_text(f"nsqd {cluster.b.name} does not answer")
        total = page.get_by_role("table", name="orders on each nsqd").get_by_role("row").filter(has_text="Total")
        expect(total.locator("[data-label='Messages']")).to_have_text("1,000")
        ui.open("/")
        alarm = page.locator(".lw-alarms").get_by_text(f"nsqd {cluster.b.name} does not answer")
        expect(alarm).to_contain_text("connection refused")
        ui.open("/nodes")
        row = page.get_by_role("table", name="Nodes").get_by_role("row").filter(has_text="node-b")
        expect(row).to_contain_text("no answer since")
        expect(row.locator("[data-label='Depth']")).to_have_text("30")  # the last that was known, in grey
        expect(row).to_have_class(re.compile("lw-row-lost"))
        ui.open(f"/nodes/{cluster.b.name}")
        expect(page.get_by_text("This nsqd does not answer since")).to_contain_text("connection refused")
        expect(page.locator(".lw-tile").filter(has_text="Topics").locator("dd")).to_have_text("1")
        expect(page.locator(".lw-tiles").first).to_have_class(re.compile("lw-lost"))
        expect(cell(page, f"Topics on {cluster.b.name}", "orders", "Messages")).to_have_text("500")
    finally:
        cluster.b.up()

    expect(page.get_by_text("Some figures are missing")).not_to_be_visible()
    expect(page.locator(".lw-tiles").first).not_to_have_class(re.compile("lw-lost"))


def test_a_topic_whose_node_is_away_is_not_said_to_be_gone(ui, cluster):
    cluster.b.topics["afar"] = Topic(depth=3, channels={"c": Channel(depth=3)})
    page = ui.open("/topics")
    expect(cell(page, "Topics", "afar", "In channels")).to_have_text("3")
    cluster.b.down()
    try:
        expect(page.get_by_role("row").filter(has_text="afar")).to_contain_text("does not answer")
        expect(cell(page, "Topics", "afar", "In channels")).to_have_text("\N{EN DASH}")
        for path in ("/topics/afar", "/topics/afar/c"):
            ui.open(path)
            expect(page.get_by_text("These are the last figures of those that do not answer.")).to_be_visible()
            row = page.get_by_role("row").filter(has_text="no answer since")
            expect(row).to_have_class(re.compile("lw-row-lost"))
            expect(row.locator("[data-label='Depth']")).to_have_text("3")
            expect(page.get_by_text("can be deleted")).to_have_count(0)
    finally:
        cluster.b.up()


def test_nothing_is_well_before_anybody_has_answered(starting, page):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        daemon = starting(f"--lookupd-http-address=127.0.0.1:{silent.getsockname()[1]}")
        Ui(page, daemon.url).open("/")

        expect(page.get_by_text("No problems")).to_have_count(0)
        expect(page.get_by_role("alert").first).to_contain_text("Some figures are missing")


def test_more_alarms_than_are_shown_are_counted(ui, cluster):
    cluster.a.topics |= {f"t{number:03}": Topic(depth=1) for number in range(120)}
    page = ui.open("/")
    page.get_by_role("button", name=re.compile(r"Show 1\d\d more")).click()

    expect(page.locator(".lw-alarms li")).to_have_count(100)
    expect(page.get_by_role("button", name=re.compile(r"2\d more: GET"))).to_be_disabled()


# ---- actions ----


def test_a_topic_is_paused_and_unpaused(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Pause topic")
    ui.confirm("Pause")
    expect(page.get_by_role("button", name="Unpause topic")).to_be_visible()
    assert cluster.a.topics["orders"].paused
    ui.press("Unpause topic")
    ui.confirm("Unpause")

    expect(page.get_by_role("button", name="Unpause topic")).not_to_be_visible()
    assert cluster.a.calls == ["/topic/pause?topic=orders", "/topic/unpause?topic=orders"]


def test_what_cannot_be_undone_needs_its_name_typed(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Empty queue")
    confirm = page.get_by_role("dialog").get_by_role("button", name="Empty", exact=True)
    expect(confirm).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("order")
    page.keyboard.press("Enter")
    expect(confirm).to_be_disabled()
    assert cluster.a.calls == []
    ui.confirm("Empty", typed="orders")

    ui.told("Emptied topic orders")
    assert cluster.a.calls == ["/topic/empty?topic=orders"]


def test_escape_leaves_everything_as_it_was(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Delete topic")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert cluster.a.calls == []


def test_a_topic_is_deleted_and_one_is_back_at_the_list(ui, cluster):
    page = ui.open("/topics/lonely")
    ui.press("Delete topic")
    ui.confirm("Delete", typed="lonely")

    expect(page.locator("h1")).to_have_text("Topics")
    assert cluster.lookupd.calls == cluster.a.calls == ["/topic/delete?topic=lonely"]


def test_what_somebody_else_has_deleted_is_said_to_be_gone(ui, cluster):
    ui.open("/topics/lonely")
    ui.press("Delete topic")
    del cluster.a.topics["lonely"]
    ui.confirm("Delete", typed="lonely")

    ui.told("This topic does not exist any more")


def test_a_channel_is_paused_emptied_and_deleted(ui, cluster):
    page = ui.open("/topics/orders/billing")
    ui.press("Pause channel")
    ui.confirm("Pause")
    expect(page.get_by_role("button", name="Unpause channel")).to_be_visible()
    ui.press("Empty queue")
    ui.confirm("Empty", typed="billing")
    ui.told("Emptied channel orders/billing")
    ui.press("Delete channel")
    ui.confirm("Delete", typed="billing")

    expect(page.locator("h1")).to_have_text("orders")
    query = "topic=orders&channel=billing"
    assert cluster.b.calls == [f"/channel/pause?{query}", f"/channel/empty?{query}", f"/channel/delete?{query}"]


def test_one_node_alone_can_be_changed(ui, cluster):
    ui.open("/topics/orders")
    ui.row_action("node-b", "Pause here")
    ui.confirm("Pause")
    ui.told(f"Paused topic orders on {cluster.b.name}")
    ui.row_action("node-b", "Tombstone")
    ui.confirm("Tombstone", typed="orders")
    ui.told("orders is gone from")

    assert cluster.a.calls == []
    assert cluster.b.calls == ["/topic/pause?topic=orders", "/topic/delete?topic=orders"]
    assert "orders" in cluster.b.tombstoned


def test_a_rows_menu_is_walked_by_keys(ui):
    page = ui.open("/topics/orders")
    opener = page.get_by_role("button", name="Actions for node-a")
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Pause here")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Empty here")).to_be_focused()
    page.keyboard.press("Escape")

    expect(page.get_by_role("menu")).to_have_count(0)
    expect(opener).to_be_focused()


def test_a_topic_and_a_channel_are_created(ui, cluster):
    page = ui.open("/topics")
    ui.press("New topic")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("bad name!")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("1 to 64")
    dialog.get_by_label("Topic").fill("fresh")
    dialog.get_by_label("Channel").fill("first")
    dialog.get_by_role("button", name="Create").click()
    ui.told("Created fresh/first")

    assert cluster.lookupd.registered["fresh"] == {"first"}


def test_an_inactive_topic_is_deleted_under_lookup(ui, cluster):
    page = ui.open("/lookup")
    expect(page.get_by_role("table", name="Inactive topics").get_by_role("row").filter(has_text="bare")).to_have_count(
        1
    )
    ui.row_action("bare", "Delete")
    ui.confirm("Delete", typed="bare")

    expect(page.get_by_role("table", name="Inactive topics").get_by_role("row").filter(has_text="bare")).to_have_count(
        0
    )
    assert "bare" not in cluster.lookupd.registered


def test_many_inactive_topics_of_a_slow_nsqlookupd_are_waited_for_on_the_page(ui, cluster):
    cluster.lookupd.registered = {f"idle{number:03}": set() for number in range(150)}
    cluster.lookupd.slow = 0.05
    try:
        page = ui.open("/lookup")
        expect(page.get_by_text("150 rows")).to_be_visible()
    finally:
        cluster.lookupd.slow = 0.0


def test_every_action_is_in_the_audit(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Pause topic")
    ui.confirm("Pause")
    ui.told("Paused topic orders")
    ui.open("/audit")

    first = page.get_by_role("table", name="Changes").get_by_role("row").nth(1)
    expect(first).to_contain_text("pause topic")
    expect(first).to_contain_text("127.0.0.1")
    expect(first).to_contain_text("done")


def test_a_change_that_one_node_missed_says_so_in_the_audit(ui, cluster):
    page = ui.open("/topics/orders")
    cluster.b.down()
    try:
        ui.press("Pause topic")
        ui.confirm("Pause")
        ui.told("connection refused")
    finally:
        cluster.b.up()
    ui.open("/audit")

    first = page.get_by_role("table", name="Changes").get_by_role("row").nth(1)
    expect(first.locator("[data-label='Outcome']")).to_have_text("incomplete")
    expect(first.locator("[data-label='Detail']")).to_contain_text(f"{cluster.b.name}/topic/pause")


# ---- messages ----


def test_messages_are_browsed_and_seen_whole(ui, cluster):
    topic = cluster.a.topics["orders"]
    for number in range(5):
        topic.publish(json.dumps({"order": number, "items": [{"sku": "A"}]}), headers={"trace": "abc"})
    page = ui.open("/messages?topic=orders&start=sequence&at=2")
    rows = page.get_by_role("table", name="Messages of orders").locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="3", exact=True).click()

    expect(page.locator(".lw-json")).to_contain_text('sku: "A"')
    expect(page.locator(".lw-message")).to_contain_text("trace")
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator(".lw-body")).to_contain_text("000000  7b 22 6f 72 64 65 72")
    page.get_by_role("tab", name="Text").click()
    expect(page.locator(".lw-body")).to_have_text('{"order": 3, "items": [{"sku": "A"}]}')


def test_a_message_with_very_deep_json_is_shown_too(ui, cluster):
    cluster.a.topics["orders"].publish('{"deep": ' + "[" * 3000 + "]" * 3000 + "}")
    page = ui.open("/messages?topic=orders&start=sequence&at=0")
    page.get_by_role("button", name="0", exact=True).click()

    expect(page.locator(".lw-json")).to_contain_text("deeper levels are in the text")


def test_messages_are_filtered_by_what_they_contain(ui, cluster):
    for number in range(50):
        cluster.a.topics["orders"].publish(f"message {number}")
    page = ui.open("/messages?topic=orders&text=message%2033")

    expect(page.get_by_role("table", name="Messages of orders").locator("tbody tr")).to_have_count(1)


def test_the_live_tail_follows_pauses_and_keeps_its_rows(ui, cluster):
    topic = cluster.a.topics["orders"]
    topic.publish("before")
    page = ui.open("/messages?topic=orders")
    rows = page.get_by_role("table", name="Messages of orders").locator("tbody tr")
    expect(rows).to_have_count(1)
    ui.press("Follow live")
    topic.publish("during")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("during")
    ui.press("Pause")
    expect(page.get_by_text("paused", exact=False).first).to_be_visible()
    topic.publish("while paused")
    expect(page.get_by_text("paused, 1 new")).to_be_visible()
    expect(rows).to_have_count(2)
    ui.press("Resume")

    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("while paused")
    expect(rows.last).to_contain_text("before")


def test_a_message_is_published_with_headers_and_delay(ui, cluster):
    page = ui.open("/messages?topic=orders")
    ui.press("Publish a message")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text("A message needs a body.")
    dialog.get_by_label("Body").fill("hello")
    dialog.get_by_label("Headers").fill("trace: abc\nsource: me")
    dialog.get_by_label("Delay in seconds").fill("1.5")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert cluster.a.published == [("orders", b"hello", "1500", '{"trace": "abc", "source": "me"}')]


# ---- what comes from strangers ----


def test_a_client_and_a_body_that_look_like_script_are_shown_as_text(ui, cluster):
    strange = client(9, client_id=SCRIPT, hostname=SCRIPT, user_agent=SCRIPT, authed=True, auth_identity=SCRIPT)
    cluster.a.topics["orders"].channels["billing"].clients.append(strange)
    cluster.a.topics["orders"].publish(SCRIPT, headers={SCRIPT: SCRIPT})
    cluster.a.health = f"NOK - {SCRIPT}"
    told = {"name": SCRIPT, "topics": ["orders"], "channel": "billing", "state": SCRIPT, "error": SCRIPT}
    cluster.a.pipelines.append({**told, "updated_ms": int(time.time() * 1000)})
    page = ui.page
    for path in ("/topics/orders/billing", "/clients", "/", "/pipelines"):
        ui.open(path)
        expect(page.get_by_text(SCRIPT, exact=False).first).to_be_attached()
        assert not hacked(page), path
    ui.open("/messages?topic=orders")
    page.get_by_role("table", name="Messages of orders").locator("tbody button").first.click()
    expect(page.locator(".lw-body")).to_have_text(SCRIPT)
    expect(page.locator(".lw-message dd").filter(has_text=SCRIPT)).to_be_visible()
    ui.open("/topics/%3Cimg%20src=x%20onerror=window.hacked%3D1%3E")

    expect(page.locator("h1")).to_have_text("<img src=x onerror=window.hacked=1>")
    assert not hacked(page)


def test_a_saved_table_cannot_run_formulas(ui, cluster):
    cluster.a.topics["orders"].channels["billing"].clients = [
        client(1, user_agent='=HYPERLINK("http://x")', hostname="a,b")
    ]
    page = ui.open("/clients")
    expect(cell(page, "Connections", "a,b", "User agent")).to_be_visible()
    with page.expect_download() as saving:
        ui.press("CSV")
    csv = Path(saving.value.path()).read_text(encoding="utf-8")
    with page.expect_download() as saving:
        ui.press("JSON")
    rows = json.loads(Path(saving.value.path()).read_text(encoding="utf-8"))

    assert '"\'=HYPERLINK(""http://x"")"' in csv
    assert '"a,b:50001"' in csv
    assert {row["User agent"] for row in rows} >= {'=HYPERLINK("http://x")'}


# ---- looks and keys ----


def test_dark_and_light_follow_the_system_or_the_user(ui):
    page = ui.open("/")
    assert "body--light" in (page.locator("body").get_attribute("class") or "")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("body.body--dark")).to_be_attached()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(13, 19, 18)"
    page.get_by_role("button", name="Theme: as the system").click()
    expect(page.locator("body.body--light")).to_be_attached()
    page.reload()
    expect(page.locator("body.body--light")).to_be_attached()
    page.context.clear_cookies()


def test_the_menu_opens_on_a_small_screen(ui):
    ui.page.set_viewport_size({"width": 360, "height": 740})
    page = ui.open("/")
    nodes = page.get_by_role("navigation", name="Pages").get_by_text("Nodes")
    expect(nodes).not_to_be_visible()
    page.get_by_role("button", name="Menu").click()
    nodes.click()

    expect(page.locator("h1")).to_have_text("Nodes (2)")


def test_a_rows_menu_is_in_reach_on_a_small_screen(ui, cluster):
    ui.page.set_viewport_size({"width": 360, "height": 740})
    ui.open("/topics/orders")
    ui.row_action("node-b", "Pause here")
    ui.confirm("Pause")
    ui.told("Paused topic orders on")

    assert cluster.b.calls == ["/topic/pause?topic=orders"]


def test_the_longest_names_fit_a_small_screen(ui, cluster):
    topic, channel = "w" * 64, "w" * 54 + "#ephemeral"
    cluster.a.topics[topic] = Topic(messages=10**15, channels={channel: Channel(depth=10**15, clients=[client(1)])})
    ui.page.set_viewport_size({"width": 360, "height": 740})
    for path in ("/", "/topics", f"/topics/{topic}", f"/topics/{topic}/{channel.replace('#', '%23')}", "/clients"):
        page = ui.open(path)
        expect(page.get_by_text("w" * 54).first).to_be_attached()
        until(
            lambda: ui.page.evaluate("document.documentElement.scrollWidth") <= 360,
            what=f"{path} that does not scroll sideways",
        )


def test_keys_search_help_and_go(ui):
    page = ui.open("/")
    page.keyboard.press("/")
    page.keyboard.type("ord bil")
    expect(page.get_by_role("option")).to_have_count(1)  # the first letters fit more than one
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("billing")
    ui.connected()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")

    def on_nodes() -> bool:
        page.keyboard.press("g")
        page.keyboard.press("n")  # in vain where it comes more than 1.5 s later, as on a busy machine
        with contextlib.suppress(AssertionError):
            expect(page.locator("h1")).to_have_text("Nodes (2)", timeout=5000)
        return page.locator("h1").inner_text() == "Nodes (2)"

    until(on_nodes, what="the page of nodes")


def test_a_search_goes_where_the_last_letter_leads(ui):
    page = ui.open("/")
    page.keyboard.press("/")
    page.keyboard.type("orders/billing")
    page.keyboard.press("Enter")  # before the answer to the last letters is there
    expect(page.locator("h1")).to_have_text("billing")
    ui.connected()
    page.keyboard.press("/")
    page.keyboard.type("nowhere")

    expect(page.get_by_role("search").get_by_role("status")).to_have_text("Nothing has this name.")


def test_the_span_of_the_charts_stands_in_the_address(ui):
    page = ui.open("/topics/orders")
    ui.press("5 min")
    expect(page.get_by_role("button", name="5 min")).to_have_attribute("aria-pressed", "true")
    assert page.url.endswith("?span=300")
    page.reload()

    expect(page.get_by_role("button", name="5 min")).to_have_attribute("aria-pressed", "true")


def test_a_filtered_and_sorted_table_has_its_own_address(ui):
    page = ui.open("/topics")
    page.get_by_role("searchbox", name="Filter Topics").fill("o")
    page.get_by_role("columnheader", name="Messages").get_by_role("button").click()
    table = page.get_by_role("table", name="Topics")
    expect(table.get_by_role("rowheader")).to_contain_text(["lonely", "orders"])
    assert "topics.q=o" in page.url
    page.reload()

    expect(page.get_by_role("searchbox", name="Filter Topics")).to_have_value("o")
    expect(page.get_by_role("columnheader", name="Messages")).to_have_attribute("aria-sort", "descending")


# ---- other ways of running it ----


def test_signing_out_ends_every_open_page(cluster, starting, context, tmp_path_factory):
    passwords = tmp_path_factory.mktemp("login") / "passwords"
    passwords.write_text(f"ann:{hash_password('secret')}\n")
    daemon = starting(f"--lookupd-http-address={cluster.lookupd.address}", f"--password-file={passwords}")
    left, right = context.new_page(), context.new_page()
    left.goto(daemon.url + "/topics?own=true")
    left.set_viewport_size({"width": 360, "height": 740})
    assert left.evaluate("document.documentElement.scrollWidth") <= 360
    left.get_by_label("User").fill("ann")
    left.get_by_label("Password").fill("secret")
    left.get_by_role("button", name="Sign in").click()
    expect(left.locator("h1")).to_have_text("Topics")
    assert left.evaluate("document.documentElement.scrollWidth") <= 360
    Ui(left, daemon.url).connected()
    Ui(right, daemon.url).open("/")
    right.get_by_role("button", name="Sign out").click()

    expect(left.get_by_label("Password")).to_be_visible()
    assert left.url.startswith(f"{daemon.url}/login")
    left.close()
    right.close()
    context.clear_cookies()


def test_a_change_made_on_a_page_is_announced_with_where_it_was_made(cluster, guarded, page):
    cluster.lookupd.notified.clear()
    page.set_extra_http_headers({"X-Forwarded-User": "ann"})
    ui = Ui(page, guarded.url + "/nsq")
    ui.open("/topics/orders")
    ui.press("Pause topic")
    ui.confirm("Pause")
    until(lambda: cluster.lookupd.notified, what="the notification")

    told = cluster.lookupd.notified[0]
    assert (told["action"], told["topic"], told["url"]) == ("pause_topic", "orders", f"{guarded.url}/nsq/topics/orders")
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d+", told["remote_ip"])


def test_plain_nsq_hides_what_it_lacks(cluster, starting, page):
    daemon = starting(f"--nsqd-http-address={cluster.b.address}")
    ui = Ui(page, daemon.url)
    ui.open("/")
    for name in ("Pipelines", "Dead letters", "Settings"):
        expect(page.get_by_role("navigation", name="Pages").get_by_text(name)).to_have_count(0)
    ui.open("/messages")
    expect(page.get_by_text("keep no log that can be read")).to_be_visible()
    expect(page.get_by_label("Headers")).not_to_be_visible()
    ui.open("/lookup")
    expect(page.get_by_text("there is no nsqlookupd to show")).to_be_visible()
    ui.open("/topics/orders")
    expect(
        page.get_by_role("table", name="orders on each nsqd").get_by_role("row").filter(has_text="Total")
    ).to_contain_text("500")


def test_a_reader_below_a_base_path_sees_everything_and_changes_nothing(cluster, guarded, page):
    ui = Ui(page, guarded.url + "/nsq")
    ui.open("/topics/orders")
    expect(page.get_by_role("link", name="Messages")).to_have_count(2)
    for name in ("Delete topic", "Pause topic", "Empty queue", "New channel"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("link", name="billing").click()
    expect(page.locator("h1")).to_have_text("billing")
    expect(cell(page, "Connections to orders/billing", "worker-1", "Ready count")).to_have_text("200")
    assert page.url == f"{guarded.url}/nsq/topics/orders/billing"
