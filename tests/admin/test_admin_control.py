"""Settings, policies and seeks on the pages, carried out by a real nsqd."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from admin_browser import Ui
from admin_stage import shown_soon
from playwright.sync_api import Page, expect

from daemons import Daemon
from lapwing.admin.pages.seek import target_of
from lapwing.admin.pages.settings import parse_pairs, parse_priority

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def ui(page: Page, broker_admin: Daemon) -> Ui:
    return Ui(page, broker_admin.url)


@pytest.fixture
def orders(broker: Daemon) -> Iterator[str]:
    """A topic with the channel billing and five messages in it."""
    httpx.post(f"{broker.url}/topic/create?topic=orders").raise_for_status()
    httpx.post(f"{broker.url}/channel/create?topic=orders&channel=billing").raise_for_status()
    for number in range(5):
        httpx.post(f"{broker.url}/pub?topic=orders", content=f"order {number}")
    yield "orders"
    httpx.post(f"{broker.url}/topic/delete?topic=orders")


def depth(broker: Daemon) -> int:
    stats = httpx.get(f"{broker.url}/stats?format=json&topic=orders&channel=billing").json()
    return stats["topics"][0]["channels"][0]["depth"]


def settings(broker: Daemon) -> dict[str, dict[str, object]]:
    return httpx.get(f"{broker.url}/channel/settings?topic=orders&channel=billing").json()["settings"]


def row(page: Page, table: str, text: str):
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=text)


def test_a_setting_is_changed_and_removed_again(ui, broker_admin, broker, orders, broker_audit):
    shown_soon(broker_admin, orders)
    page = ui.open("/topics/orders/billing")
    page.locator("main").get_by_role("link", name="Settings", exact=True).click()
    table = "Settings of orders/billing"
    expect(row(page, table, "max_attempts").locator("[data-label='From']")).to_have_text("default")
    ui.connected()
    row(page, table, "max_attempts").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("lots")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("max_attempts")
    dialog.get_by_label("Value").fill("5")
    page.keyboard.press("Enter")
    expect(row(page, table, "max_attempts").locator("[data-label='Value']")).to_have_text("5")
    expect(row(page, table, "max_attempts").locator("[data-label='From']")).to_have_text("channel")
    assert settings(broker)["max_attempts"] == {"value": 5, "from": "channel"}
    ui.connected()
    row(page, table, "max_attempts").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()

    expect(row(page, table, "max_attempts").locator("[data-label='From']")).to_have_text("default")
    assert settings(broker)["max_attempts"] == {"value": 0, "from": "default"}
    lines = broker_audit.read_text().splitlines()
    assert sum('"action": "change_settings"' in line and '"channel": "billing"' in line for line in lines) == 3
    assert sum("max_attempts=5" in line and '"outcome": ""' in line for line in lines) == 1


def test_a_policy_is_made_changed_and_deleted(ui, broker_admin, broker, orders):
    shown_soon(broker_admin, orders)
    page = ui.open("/settings")
    ui.press("New policy")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("slow")
    dialog.get_by_label("Topics").fill("ord*")
    dialog.get_by_label("Settings").fill("max_in_flight=50\nnonsense")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("A setting looks like max_attempts=5")
    dialog.get_by_label("Settings").fill("max_in_flight=50")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "Policies", "slow")).to_contain_text("max_in_flight=50")
    expect(row(page, "Policies", "slow")).to_contain_text("1 channels")
    assert settings(broker)["max_in_flight"]["value"] == 50
    ui.connected()
    ui.row_action("slow", "Change …")
    page.get_by_role("dialog").get_by_label("Priority").fill("7")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(row(page, "Policies", "slow").locator("[data-label='Priority']")).to_have_text("7")
    ui.connected()
    ui.row_action("slow", "Delete …")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_text("There are no policies.")).to_be_visible()
    assert httpx.get(f"{broker.url}/policies").json() == {"policies": []}


def test_a_schedule_is_made_run_paused_changed_and_deleted(ui, broker_admin, broker, orders):
    shown_soon(broker_admin, orders)
    page = ui.open("/schedules")
    expect(page.get_by_text("There are no schedules.")).to_be_visible()
    ui.press("New schedule")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly")
    dialog.get_by_label("Topic").fill("orders")
    dialog.get_by_label("Body of each message").fill("report")
    dialog.get_by_label("When").select_option("cron")
    dialog.get_by_label("Times (5m").fill("61 * * * *")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no cron expression")
    dialog.get_by_label("Times (5m").fill("0 9 * * *")
    dialog.get_by_label("Time zone").fill("Europe/Berlin")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "Schedules", "nightly")).to_contain_text("cron 0 9 * * * Europe/Berlin")
    expect(row(page, "Schedules", "nightly").locator("[data-label='State']")).to_have_text("active")
    times = page.get_by_label("Next times").locator("pre").inner_text().splitlines()
    assert len(times) == 10
    for action, state in (("Pause", "paused"), ("Resume", "active")):
        ui.connected()
        ui.row_action("nightly", action)
        page.get_by_role("dialog").get_by_role("button", name=action).click()
        expect(row(page, "Schedules", "nightly").locator("[data-label='State']")).to_have_text(state)
    ui.connected()
    ui.row_action("nightly", "Run now")
    page.get_by_role("dialog").get_by_role("button", name="Run").click()
    ui.told("Run: nightly")
    assert depth(broker) == 6
    ui.connected()
    ui.row_action("nightly", "Change …")
    page.get_by_role("dialog").get_by_label("When").select_option("every")
    page.get_by_role("dialog").get_by_label("Times (5m").fill("1h")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(row(page, "Schedules", "nightly")).to_contain_text("every 1h")
    ui.connected()
    ui.row_action("nightly", "Delete …")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_text("There are no schedules.")).to_be_visible()
    assert httpx.get(f"{broker.url}/schedules").json() == {"schedules": []}


def test_a_seek_shows_what_it_would_do_before_it_does_it(ui, broker_admin, broker, orders):
    shown_soon(broker_admin, orders)
    page = ui.open("/topics/orders/billing")
    ui.press("Seek")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Seek", exact=True)).to_be_disabled()
    dialog.get_by_label("To").select_option("latest")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_text("5 messages that nobody has finished will not be delivered.")).to_be_visible()
    assert depth(broker) == 5
    dialog.get_by_role("button", name="Seek", exact=True).click()
    toast = page.locator(".lw-toast").filter(visible=True)
    expect(toast).to_contain_text("Moved the cursor of orders/billing.")
    assert depth(broker) == 0
    toast.get_by_role("button", name="Undo").click()
    ui.told("Moved the cursor of orders/billing back")
    assert depth(broker) == 5
    expect(page.locator(".lw-toast")).to_have_count(0)
    httpx.post(f"{broker.url}/channel/seek?topic=orders&channel=billing", json={"to": "latest"}).raise_for_status()
    ui.press("Seek")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To").select_option("sequence")
    dialog.get_by_label("Duration, time or sequence").fill("2")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("3 messages will be delivered again.")).to_be_visible()
    dialog.get_by_label("Duration, time or sequence").fill("3")
    expect(dialog.get_by_role("button", name="Seek", exact=True)).to_be_disabled()  # that was not previewed
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("2 messages will be delivered again.")).to_be_visible()
    dialog.get_by_role("button", name="Seek", exact=True).click()
    expect(toast).to_contain_text("Moved the cursor of orders/billing.")

    assert depth(broker) == 2


def test_a_message_that_nsqd_refuses_stays_in_the_dialog(ui, broker_admin, broker, orders):
    shown_soon(broker_admin, orders)
    page = ui.open("/topics/orders")
    ui.press("Publish")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill("kept")
    dialog.get_by_label("Headers").fill("trace: abc")
    dialog.get_by_label("Delay in seconds").fill("9999999")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("INVALID_DEFER")
    expect(dialog.get_by_label("Body")).to_have_value("kept")
    dialog.get_by_label("Delay in seconds").fill("")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    ui.told("Published to orders")

    assert depth(broker) == 6


def test_a_reader_sees_settings_and_changes_nothing(page, broker_reader, broker, orders):
    shown_soon(broker_reader, orders)
    ui = Ui(page, broker_reader.url)
    ui.open("/settings?topic=orders&channel=billing")
    expect(row(page, "Settings of orders/billing", "max_attempts")).to_be_visible()
    expect(page.locator(".lw-pick")).to_have_count(0)
    expect(page.get_by_role("button", name="New policy")).to_have_count(0)
    ui.open("/topics/orders/billing")
    expect(page.get_by_role("button", name="Seek")).to_have_count(0)


@pytest.mark.parametrize(
    ("kind", "text", "target"),
    [
        ("earliest", "", "earliest"),
        ("back", " 2h ", {"back": "2h"}),
        ("time", "2026-11-15T09:30:00Z", {"time": "2026-11-15T09:30:00Z"}),
        ("sequence", "42", {"sequence": 42}),
    ],
)
def test_a_target_is_written_as_nsqd_expects_it(kind, text, target):
    assert target_of(kind, text) == target


@pytest.mark.parametrize(("kind", "text"), [("back", ""), ("sequence", "x"), ("sequence", "")])
def test_a_target_that_is_none_is_said_to_be_none(kind, text):
    with pytest.raises(ValueError, match="sequence"):
        target_of(kind, text)


def test_settings_of_a_policy_are_lines():
    assert parse_pairs("max_attempts=5\n\n retry_first = 1s \nexpired_to_dead=true") == {
        "max_attempts": 5,
        "retry_first": "1s",
        "expired_to_dead": True,
    }


def test_a_setting_of_a_policy_is_given_once():
    with pytest.raises(ValueError, match=r"^max_attempts is given twice: leave one out\.$"):
        parse_pairs("max_attempts=5\nmax_attempts = 6")


def test_a_priority_is_a_whole_number():
    assert [parse_priority(text) for text in ("", " 7 ", "-3")] == [0, 7, -3]
    with pytest.raises(ValueError, match=r"^The priority is a whole number, such as 10, not 1\.5\.$"):
        parse_priority("1.5")


def test_the_audit_shows_what_the_command_changed(ui, broker, orders):
    command = ["channel", "pause", "orders/billing", f"--nsqd-http-address={broker.http}"]
    subprocess.run([sys.executable, "-m", "lapwing.cli.main", *command], timeout=60, check=True, capture_output=True)
    page = ui.open("/audit")

    entry = row(page, "Changes", "pause channel").filter(has_text="orders/billing").first
    expect(entry.locator("[data-label='With']")).to_have_text("lapwing")
    expect(entry.locator("[data-label='Who']")).to_contain_text("@")
    expect(entry.locator("[data-label='Node']")).not_to_be_empty()
    expect(entry).to_contain_text("done")
