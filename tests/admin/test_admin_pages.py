"""What a user of the pages meets: lists, searches, dialogs, charts, sizes of screens, lost servers."""

import re
from collections.abc import Iterator

import httpx
import pytest
from admin_browser import Ui
from admin_fakes import Channel, Topic
from admin_stage import Cluster, start_nsqadmin, warm_up
from playwright.sync_api import Browser, Page, expect

from daemons import Daemon

pytestmark = pytest.mark.browser


@pytest.fixture
def ui(page: Page, nsqadmin: Daemon, cluster: Cluster) -> Ui:
    return Ui(page, nsqadmin.url)


def rows(page: Page, table: str):
    return page.get_by_role("table", name=table).locator("tbody tr")


# ---- messages ----


def test_newest_first_holds_inside_a_batch_too(ui, cluster):
    topic = cluster.a.topics["orders"]
    for number in range(5):
        topic.publish(f"message {number}")
        topic.log[-1]["timestamp"] = topic.log[0]["timestamp"]
    page = ui.open("/messages?topic=orders")

    expect(rows(page, "Messages of orders").locator("th")).to_have_text(["4", "3", "2", "1", "0"])


def test_an_entry_of_a_redis_client_is_shown_as_its_fields(ui, cluster):
    cluster.a.topics["orders"].publish(
        "*4\r\n$4\r\nname\r\n$4\r\nSara\r\n$3\r\nage\r\n$2\r\n41\r\n", headers={"trace": "abc"}
    )
    page = ui.open("/messages?topic=orders")
    expect(rows(page, "Messages of orders").locator("[data-label='Body']")).to_have_text("name=Sara  age=41")
    rows(page, "Messages of orders").first.click()
    expect(page.get_by_role("tab", name="Fields")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".lw-fields")).to_have_text("nameSaraage41")
    expect(page.locator(".lw-message")).to_contain_text("trace")
    ui.press("Publish again")
    expect(page.get_by_role("dialog")).to_contain_text("The body has the fields of a Redis entry")
    page.get_by_role("dialog").get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert cluster.a.published[-1][1].startswith(b"*4\r\n$4\r\nname\r\n")


def test_a_click_anywhere_in_a_row_shows_the_message(ui, cluster):
    cluster.a.topics["orders"].publish("first")
    cluster.a.topics["orders"].publish("second")
    page = ui.open("/messages?topic=orders")
    rows(page, "Messages of orders").filter(has_text="first").locator("[data-label='Body']").click()

    expect(page.locator(".lw-body")).to_have_text("first")


def test_on_a_phone_the_message_opens_where_one_is(ui, cluster):
    for number in range(60):
        cluster.a.topics["orders"].publish(f"message {number}")
    ui.page.set_viewport_size({"width": 390, "height": 844})
    page = ui.open("/messages?topic=orders")
    expect(page.locator(".lw-sheet")).not_to_be_visible()
    last = rows(page, "Messages of orders").filter(has_text="message 0")
    last.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    last.locator("[data-label='Body']").click()

    expect(page.locator(".lw-body")).to_have_text("message 0")
    expect(page.locator(".lw-body")).to_be_in_viewport()
    assert page.evaluate("scrollY") == before
    ui.press("Close")
    expect(page.locator(".lw-sheet")).not_to_be_visible()


def test_publishing_is_on_the_first_screen_and_takes_no_mouse(ui, cluster):
    page = ui.open("/messages?topic=orders")
    expect(page.get_by_role("button", name="Publish a message")).to_be_in_viewport()
    ui.press("Publish a message")
    body = page.get_by_role("dialog").get_by_label("Body")
    expect(body).to_be_focused()
    body.fill("by keys")
    body.press("Control+Enter")
    ui.told("Published to orders")

    assert [each[1] for each in cluster.a.published] == [b"by keys"]


def test_a_topic_page_publishes_to_its_topic(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Publish")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Topic")).to_have_value("orders")
    dialog.get_by_label("Body").fill("hello")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert [each[:2] for each in cluster.a.published] == [("orders", b"hello")]


def test_a_message_is_published_again_with_its_headers(ui, cluster):
    cluster.a.topics["orders"].publish("once", headers={"trace": "abc"})
    page = ui.open("/messages?topic=orders")
    rows(page, "Messages of orders").first.click()
    ui.press("Publish again")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Body")).to_have_value("once")
    dialog.get_by_label("Body").fill("twice")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert [each[1] for each in cluster.a.published] == [b"twice"]
    assert [each[3] for each in cluster.a.published] == ['{"trace": "abc"}']


def test_a_binary_message_is_published_again_as_it_is(ui, cluster):
    cluster.a.topics["orders"].publish("binary")
    cluster.a.topics["orders"].log[0].update(body=None, body_base64="//4A")
    page = ui.open("/messages?topic=orders")
    rows(page, "Messages of orders").first.click()
    ui.press("Publish again")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The body is binary (3 B) and is published as it is.")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert [each[1] for each in cluster.a.published] == [b"\xff\xfe\x00"]


def test_a_search_says_how_far_it_came_goes_on_and_highlights(ui, cluster):
    topic = cluster.a.topics["orders"]
    topic.publish(f"{'x' * 300} a Needle here")
    for number in range(20_100):
        topic.publish(f"hay {number}")
    page = ui.open("/messages?topic=orders&text=needle")
    expect(page.get_by_text("0 messages of 20,000 searched contain “needle”, back to")).to_be_visible()
    page.get_by_role("link", name="Search older messages").click()
    expect(page.get_by_text("1 message of 101 searched contain “needle”. The search has reached")).to_be_visible()
    row = rows(page, "Messages of orders")
    expect(row).to_have_count(1)
    expect(row.locator("mark")).to_have_text("Needle")
    expect(row.locator("mark")).to_be_visible()
    ui.connected()
    row.click()

    expect(page.locator(".lw-body mark")).to_have_text("Needle")


def test_older_messages_are_a_page_away(ui, cluster):
    for number in range(150):
        cluster.a.topics["orders"].publish(f"message {number}")
    page = ui.open("/messages?topic=orders")
    expect(rows(page, "Messages of orders")).to_have_count(100)
    page.get_by_role("link", name="Older").click()
    expect(rows(page, "Messages of orders")).to_have_count(50)
    expect(rows(page, "Messages of orders").first).to_contain_text("message 49")
    page.get_by_role("link", name="Newest").click()

    expect(rows(page, "Messages of orders").first).to_contain_text("message 149")


# ---- sizes, charts, badges ----


def test_the_node_page_fits_too_and_shows_its_resources_and_options(ui, cluster):
    ui.page.set_viewport_size({"width": 1440, "height": 900})
    page = ui.open(f"/nodes/{cluster.a.name}")

    def tile(name: str):
        return page.locator(".lw-tile").filter(has_text=name).locator("dd")

    expect(tile("NSQ version")).to_have_text("1.3.0")
    expect(tile("lapwing version")).to_have_text("0.1.0")
    expect(tile("Memory")).to_have_text("48 MiB")
    expect(tile("Free disk")).to_have_text("70 GiB of 100 GiB")
    expect(tile("File handles")).to_have_text("41 of 1,024")
    expect(tile("Durability")).to_have_text("os")
    expect(tile("Data path")).to_have_text("/var/lib/node-a")
    options = rows(page, f"Options of {cluster.a.name}")
    expect(options).to_have_count(1)
    expect(options.first).to_contain_text("--data-path")
    page.get_by_role("button", name="Show all 3").click()
    expect(options).to_have_count(3)
    expect(options.first).to_contain_text("set")
    page.get_by_role("button", name="Show only those that differ").click()
    expect(options).to_have_count(1)
    over = "[...document.querySelectorAll('.lw-scroll')].map((e) => e.scrollWidth - e.clientWidth)"
    assert set(page.evaluate(over)) == {0}


def test_a_plain_nsqd_shows_no_resources(ui, cluster):
    page = ui.open(f"/nodes/{cluster.b.name}")
    expect(rows(page, f"Topics on {cluster.b.name}")).to_have_count(1)

    expect(page.locator(".lw-tile").filter(has_text="Free disk")).not_to_be_visible()
    expect(page.get_by_text("Options in force")).not_to_be_visible()


SERIES = """async (title) => {
  const { echarts } = await import("nicegui-echart");
  const figure = [...document.querySelectorAll(".lw-chart")].find((each) => each.innerText.includes(title));
  const series = echarts.getInstanceByDom(figure.querySelector(".lw-plot")).getOption().series;
  return Object.fromEntries(series.map((s) => [s.name, s.data.filter((d) => (d.value ?? d)[1] !== null).length]));
}"""


def test_a_series_of_zeros_draws_no_line_over_the_one_below(ui, cluster):
    page = ui.open("/topics/lonely?span=300")
    figure = page.locator(".lw-chart").filter(has_text="Waiting messages")
    expect(figure).to_contain_text("in the topic 12,430")
    drawn = page.evaluate(SERIES, "Waiting messages")

    assert drawn["in channels"] == 0
    assert drawn["in the topic"] > 0


def test_the_badge_has_the_colour_of_the_worst_alarm(starting, page, cluster):
    Ui(page, warm_up(starting(f"--lookupd-http-address={cluster.lookupd.address}")).url).open("/topics")
    badge = page.locator(".lw-badge")
    expect(badge).to_have_text("1")  # a topic without a channel
    expect(badge).to_have_class(re.compile("lw-warning"))
    cluster.a.health = "NOK - no space left on device"

    expect(badge).to_have_class(re.compile("lw-error"))
    cluster.a.health = "OK"
    expect(badge).not_to_have_class(re.compile("lw-error"))


def test_notes_alone_are_not_called_alarms(starting, page, cluster):
    del cluster.a.topics["lonely"]
    cluster.a.topics["orders"].paused = True
    daemon = starting(f"--lookupd-http-address={cluster.lookupd.address}")  # which knows of no pipeline that failed
    Ui(page, warm_up(daemon).url).open("/")

    expect(page.get_by_text("Topic orders is paused")).to_be_visible()
    expect(page.get_by_role("heading", name="Notes")).to_be_visible()
    expect(page.get_by_role("heading", name="No problems")).to_be_visible()
    expect(page.locator(".lw-badge")).not_to_be_visible()


# ---- dialogs, names that are not there ----


def test_enter_submits_every_dialog(ui, cluster):
    page = ui.open("/topics/orders")
    ui.press("Pause topic")
    expect(page.get_by_role("dialog").get_by_role("button", name="Pause")).to_be_focused()
    page.keyboard.press("Enter")
    ui.told("Paused topic orders")
    ui.press("Empty queue")
    page.get_by_role("dialog").get_by_role("textbox").fill("orders")
    page.keyboard.press("Enter")
    ui.told("Emptied topic orders")
    ui.press("New channel")
    page.get_by_role("dialog").get_by_label("Channel").fill("fresh")
    page.keyboard.press("Enter")
    ui.told("Created orders/fresh")

    assert [call.partition("?")[0] for call in cluster.b.calls] == ["/topic/pause", "/topic/empty", "/channel/create"]


@pytest.mark.parametrize("path", ["/topics/nosuch", "/topics/orders/nosuch"])
def test_what_does_not_exist_offers_no_actions(ui, cluster, path):
    page = ui.open(path)
    expect(page.get_by_text(re.compile("There is no (topic|channel)"))).to_be_visible()

    main = page.locator("main.lw-main")
    expect(main.get_by_role("button").filter(visible=True)).to_have_count(0)
    expect(main.get_by_role("table").filter(visible=True)).to_have_count(0)


def test_a_path_that_does_not_exist_is_a_page_that_leads_back(nsqadmin):
    asked = httpx.get(f"{nsqadmin.url}/nothing/<b>", headers={"Accept": "text/html"})
    script = httpx.get(f"{nsqadmin.url}/nothing")
    api = httpx.get(f"{nsqadmin.url}/api/nothing", headers={"Accept": "text/html"})

    assert (asked.status_code, asked.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "&lt;b&gt;" in asked.text or "%3Cb%3E" in asked.text
    assert all(f'href="{path}"' in asked.text for path in ("/", "/topics", "/dead", "/pipelines", "/audit"))
    assert '<nav class="lw-nav" aria-label="Pages">' in asked.text
    assert (script.status_code, script.json()) == (404, {"message": "NOT_FOUND"})
    assert (api.status_code, api.json()) == (404, {"message": "NOT_FOUND"})


# ---- lost servers ----


@pytest.fixture
def forgiving(browser: Browser) -> Iterator[Page]:
    """A tab that may complain: its server is killed."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


def test_a_page_that_lost_nsqadmin_is_grey_and_says_since_when(cluster, forgiving):
    with warm_up(start_nsqadmin(f"--lookupd-http-address={cluster.lookupd.address}")) as daemon:
        Ui(forgiving, daemon.url).open("/topics/orders")
        daemon.kill()

        notice = forgiving.get_by_role("alert").filter(has_text="nsqadmin does not answer since")
        expect(notice).to_contain_text(re.compile(r"since \d\d:\d\d:\d\d UTC"))
        expect(forgiving.locator("body")).to_have_class(re.compile("lw-cut-off"))


def test_a_topic_of_a_lost_node_keeps_its_last_figures_beside_those_of_the_others(ui, cluster):
    cluster.b.topics["orders"].channels["late"] = Channel(depth=7, messages=7)
    cluster.b.topics["only"] = Topic(messages=3)
    page = ui.open("/topics/orders")
    table = page.get_by_role("table", name="orders on each nsqd")
    expect(table.locator("tbody tr")).to_have_count(3)
    cluster.b.down()
    try:
        lost = table.locator(".lw-row-lost")
        expect(lost).to_contain_text(re.compile(r"no answer since \d\d:\d\d:\d\d"))
        expect(lost.locator("[data-label='Messages']")).to_have_text("500")
        expect(table.locator(".lw-total [data-label='Messages']")).to_have_text("1,000")
    finally:
        cluster.b.up()

    expect(table.locator(".lw-row-lost")).to_have_count(0)
