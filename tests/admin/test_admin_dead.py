"""Dead letters and pending messages on the pages, carried out by a real nsqd."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import httpx
import pytest
from admin_browser import Ui
from admin_stage import shown_soon
from playwright.sync_api import Page, expect

from daemons import Daemon, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NUMBERS = count()


class RawConsumer:
    """A consumer that answers only what a test has it answer."""

    def __init__(self, broker: Daemon, topic: str, channel: str, *, ready: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", broker.tcp_port), timeout=60)
        about = json.dumps({"feature_negotiation": True, "reject": True}).encode()
        self.connection.sendall(b"  V2IDENTIFY\n" + len(about).to_bytes(4, "big") + about)
        self.connection.sendall(f"SUB {topic} {channel}\nRDY {ready}\n".encode())
        self._file = self.connection.makefile("rb")
        self.held: dict[bytes, bytes] = {}  # body by id

    def take(self, number: int) -> None:
        """Wait until it holds so many messages."""
        while len(self.held) < number:
            frame = self._file.read(int.from_bytes(self._file.read(4), "big"))
            if frame[:4] == b"\0\0\0\2":
                self.held[frame[14:30]] = frame[30:]

    def reject(self, reason: str, error: str) -> None:
        """Reject all that it holds."""
        why = json.dumps({"reason": reason, "error": error}).encode()
        for message in self.held:
            self.connection.sendall(b"REJ " + message + b"\n" + len(why).to_bytes(4, "big") + why)
        self.held.clear()

    def close(self) -> None:
        self._file.close()
        self.connection.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as kept:
        yield kept


@pytest.fixture
def ui(page: Page, broker_admin: Daemon) -> Ui:
    return Ui(page, broker_admin.url)


def made(broker: Daemon, bodies: list[str]) -> str:
    """A new topic with a channel `billing` and these messages in it."""
    topic = f"shop{next(NUMBERS)}"
    httpx.post(f"{broker.url}/topic/create?topic={topic}").raise_for_status()
    httpx.post(f"{broker.url}/channel/create?topic={topic}&channel=billing").raise_for_status()
    for body in bodies:
        httpx.post(f"{broker.url}/pub?topic={topic}", content=body).raise_for_status()
    return topic


@pytest.fixture
def dead(broker: Daemon, broker_admin: Daemon) -> str:
    """A dead-letter topic with three letters for one reason and one for another."""
    topic = made(broker, ['{"order": 1}', '{"order": 2}', '{"order": 3}'])
    consumer = RawConsumer(broker, topic, "billing", ready=10)
    consumer.take(3)
    consumer.reject("bad total", "ValueError: the total is negative")
    httpx.post(f"{broker.url}/pub?topic={topic}", content="<b>not JSON</b>")
    consumer.take(1)
    consumer.reject("not JSON", "JSONDecodeError: line 1")
    until(lambda: letters(broker, f"{topic}.billing.dead") == 4, what="the dead letters")
    consumer.close()
    shown_soon(broker_admin, f"{topic}.billing.dead")
    return f"{topic}.billing.dead"


def letters(broker: Daemon, topic: str) -> int:
    found = httpx.get(f"{broker.url}/dead").json()["topics"]
    return next((each["letters"] for each in found if each["topic"] == topic), 0)


def channel_of(broker: Daemon, topic: str) -> dict[str, int]:
    stats = httpx.get(f"{broker.url}/stats?format=json&topic={topic}&channel=billing").json()
    return stats["topics"][0]["channels"][0]


def row(page: Page, table: str, text: str):
    return page.get_by_role("table", name=table).locator("tbody tr").filter(has_text=text)


def audited(audit, action: str, topic: str) -> list[dict[str, str]]:
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    return [entry for entry in entries if entry["action"] == action and entry["topic"] == topic]


# ---- dead letters ----


def test_dead_letters_are_grouped_shown_with_their_error_edited_and_redriven(ui, broker, dead, broker_audit):
    page = ui.open("/dead")
    row(page, "Dead-letter topics", dead).get_by_role("link").click()
    group = row(page, "Groups of dead letters", "the total is negative")
    expect(group.locator("[data-label='Letters']")).to_have_text("3")
    expect(row(page, "Groups of dead letters", "JSONDecodeError").locator("[data-label='Letters']")).to_have_text("1")
    ui.connected()
    group.click()  # shows these letters only, and the first of them whole
    expect(page.get_by_role("table", name=f"Letters of {dead}").locator("tbody tr")).to_have_count(3)
    side = page.locator(".lw-sheet")
    expect(side.locator(".lw-error-text")).to_contain_text("ValueError: the total is negative")
    expect(side.locator(".lw-json")).to_contain_text("order: 1")
    expect(side).to_contain_text("rejected")
    ui.press("Edit and redrive …")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill("")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text("A message needs a body.")
    dialog.get_by_label("Body").fill('{"order": 1, "total": 5}')
    page.keyboard.press("Control+Enter")
    ui.told("Redriving the letter to")

    expect(page.get_by_role("table", name=f"Letters of {dead}").locator("tbody tr")).to_have_count(2)
    expect(row(page, f"Redrives of {dead}", "redrive to the channel")).to_contain_text("done")
    assert letters(broker, dead) == 3
    topic = dead.partition(".")[0]
    consumer = RawConsumer(broker, topic, "billing", ready=1)
    consumer.take(1)
    consumer.close()
    assert list(consumer.held.values()) == [b'{"order": 1, "total": 5}']
    (entry,) = audited(broker_audit, "redrive_dead_letters", dead)
    assert (entry["outcome"], entry["detail"]) == ("", "letter 0 to channel, body edited")


def test_many_letters_are_redriven_after_a_preview_slowly_and_cancelled(ui, broker, dead, broker_audit):
    page = ui.open(f"/dead?topic={dead}&error=negative")
    ui.press("Redrive matching letters …")
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Redrive", exact=True)
    expect(confirm).to_be_disabled()
    dialog.get_by_label("Rate on each nsqd").fill("quickly")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("rate")
    dialog.get_by_label("Rate on each nsqd").fill("1/m")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("3 letters would be redriven.")).to_be_visible()
    expect(row(page, "Sample of the letters", "negative")).to_have_count(3)
    confirm.click()
    task = row(page, f"Redrives of {dead}", "redrive to the channel")
    expect(task).to_contain_text("running")
    expect(task).to_contain_text("error=negative")
    expect(task.locator("[data-label='Done']")).to_have_text("1")
    ui.press("Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the redrive").click()
    expect(task).to_contain_text("cancelled")

    assert letters(broker, dead) == 3
    assert channel_of(broker, dead.partition(".")[0])["depth"] == 1
    assert [entry["outcome"] for entry in audited(broker_audit, "cancel_redrive", dead)] == [""]
    assert "rate 1/m" in audited(broker_audit, "redrive_dead_letters", dead)[-1]["detail"]


def test_letters_are_purged_only_by_typing_the_name(ui, broker, dead):
    page = ui.open(f"/dead?topic={dead}&text=%3Cb%3E")
    expect(page.get_by_role("table", name=f"Letters of {dead}").locator("tbody tr")).to_have_count(1)
    ui.press("Purge matching letters …")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 letter would be lost for good.")).to_be_visible()
    expect(dialog.get_by_role("button", name="Purge", exact=True)).to_be_disabled()
    ui.confirm("Purge", typed=dead)
    expect(page.get_by_text("No dead letters.").first).to_be_visible()
    assert letters(broker, dead) == 3
    ui.open(f"/dead?topic={dead}")
    page.get_by_role("table", name=f"Letters of {dead}").locator("tbody button").first.click()
    ui.press("Purge …")
    ui.confirm("Purge")

    expect(page.get_by_role("table", name=f"Letters of {dead}").locator("tbody tr")).to_have_count(2)
    assert letters(broker, dead) == 2


def test_dead_letters_that_wait_are_an_alarm_with_its_own_advice(broker_admin, dead):
    def seen() -> bool:
        found = httpx.get(f"{broker_admin.url}/api/alarms").json()["alarms"]
        return any(alarm["text"] == f"4 dead letters wait in {dead}." for alarm in found)

    until(seen, seconds=60, what="the alarm")
    texts = [alarm["text"] for alarm in httpx.get(f"{broker_admin.url}/api/alarms").json()["alarms"]]
    assert not [text for text in texts if f"{dead}/dead has no consumers" in text]


def test_a_bad_filter_is_answered_with_a_sentence(ui, dead):
    page = ui.open(f"/dead?topic={dead}&field=customer")
    expect(page.get_by_role("alert").filter(has_text="A JSON field looks like /customer/id=17")).to_be_visible()
    ui.open(f"/dead?topic={dead}&pattern=%28")
    expect(page.get_by_role("alert").filter(has_text="pattern")).to_be_visible()


# ---- pending ----


def test_pending_messages_are_seen_taken_and_cancelled(ui, broker, broker_admin, broker_audit, stack):
    topic = made(broker, ["one", "two", "three"])
    httpx.post(f"{broker.url}/pub?topic={topic}&defer=600000", content="later").raise_for_status()
    consumer = RawConsumer(broker, topic, "billing", ready=3)
    stack.callback(consumer.close)
    consumer.take(3)
    shown_soon(broker_admin, topic)
    page = ui.open(f"/topics/{topic}/billing")
    table = f"Pending messages of {topic}/billing"
    rows = page.get_by_role("table", name=table).locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("tab", name="Deferred 1")).to_be_visible()
    rows.first.get_by_role("button").first.click()
    expect(page.get_by_role("dialog").locator(".lw-body")).to_have_text("one")
    page.get_by_role("dialog").get_by_role("button", name="Finish …").click()
    page.get_by_role("dialog").get_by_role("button", name="Finish", exact=True).click()
    ui.told("Finished 1 message")
    expect(rows).to_have_count(2)
    ui.press("Claim …")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Then").select_option("defer")
    dialog.get_by_role("textbox", name="Delay").fill("soon")
    dialog.get_by_role("button", name="Claim", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("invalid duration \"soon\"")
    dialog.get_by_role("textbox", name="Delay").fill("1h")
    dialog.get_by_role("button", name="Claim", exact=True).click()
    ui.told("Deferred 2 messages")
    expect(page.get_by_text("No consumer holds a message.")).to_be_visible()
    page.get_by_role("tab", name="Deferred 3").click()
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Actions for 3").click()
    page.get_by_role("menuitem", name="Cancel the message …").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the message").click()
    ui.told("Finished 1 message")

    expect(rows).to_have_count(2)
    assert channel_of(broker, topic)["deferred_count"] == 2
    entries = audited(broker_audit, "claim_messages", topic)
    assert [entry["outcome"] for entry in entries] == ["", "", ""]
    assert entries[1]["detail"] == "state in_flight, limit 100, action defer, delay 1h"


def test_a_reader_sees_letters_and_pending_messages_and_changes_nothing(page, broker, broker_reader, dead, stack):
    topic = made(broker, ["one"])
    consumer = RawConsumer(broker, topic, "billing", ready=1)
    stack.callback(consumer.close)
    consumer.take(1)
    shown_soon(broker_reader, topic)
    ui = Ui(page, broker_reader.url)
    ui.open(f"/dead?topic={dead}")
    page.get_by_role("table", name=f"Letters of {dead}").locator("tbody button").first.click()
    expect(page.locator(".lw-error-text")).to_be_visible()
    for name in ("Redrive", "Purge"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    ui.open(f"/topics/{topic}/billing")
    rows = page.get_by_role("table", name=f"Pending messages of {topic}/billing").locator("tbody tr")
    rows.first.get_by_role("button").first.click()
    expect(page.get_by_role("dialog").locator(".lw-body")).to_have_text("one")
    expect(page.get_by_role("dialog").get_by_role("button")).to_have_text(["Close"])
    expect(page.get_by_role("button", name="Claim …")).to_have_count(0)
    expect(page.get_by_role("button", name="Actions for 0")).to_have_count(0)
