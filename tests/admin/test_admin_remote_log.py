"""A node with a remote log, as nsqadmin shows it: with the real programs, in a browser."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from admin_browser import Ui, expect
from admin_stage import start_nsqadmin, warm_up
from playwright.sync_api import Page

from daemons import Daemon, start_nsqd, start_nsqlookupd, until

pytestmark = pytest.mark.slow


class Stage:
    """One nsqd with a remote log in a folder, an nsqlookupd, and nsqadmin."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self._stack, self._path = stack, path
        self.remote = path / "remote"
        self.remote.mkdir()
        self.lookupd = stack.enter_context(start_nsqlookupd())
        self.node = self.start("one")
        self.admin = warm_up(stack.enter_context(start_nsqadmin(f"--lookupd-http-address={self.lookupd.http}")))

    def start(self, name: str, *flags: str) -> Daemon:
        """Start a node that uses the remote log."""
        flags = (
            "--durability=replicated", f"--remote=file://{self.remote}", "--remote-lag=1s",
            "--broadcast-address=127.0.0.1", *flags,
        )  # fmt: skip
        node = start_nsqd(self._path / name, *flags, lookupd_tcp_addresses=(self.lookupd.tcp,), env={})
        self._stack.callback(node.kill)
        return node

    def publish(self) -> int:
        return httpx.post(f"{self.node.url}/pub?topic=orders", content=b"x", timeout=60).status_code

    def alarms(self) -> list[str]:
        return [each["text"] for each in httpx.get(f"{self.admin.url}/api/alarms").json()["alarms"]]

    def alarmed(self, what: str) -> None:
        until(lambda: any(what in each for each in self.alarms()), what=f"an alarm with {what!r}")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, tmp_path)


def test_the_page_of_a_node_shows_its_remote_log_and_an_alarm_while_that_is_away(stage: Stage, page: Page):
    assert stage.publish() == 200
    ui = Ui(page, stage.admin.url)
    ui.open(f"/nodes/{stage.node.http}")
    expect(page.get_by_text(re.compile(r"^epoch 1, record \d+, \d+ ms behind; \d+ requests, "))).to_be_visible()
    expect(page.get_by_text("replicated", exact=True).first).to_be_visible()

    stage.remote.rename(stage.remote.with_name("away"))
    assert stage.publish() == 503
    stage.alarmed("the remote log takes nothing")
    expect(page.get_by_text(re.compile(r"^epoch 1, record \d+, takes nothing; \d+ requests, "))).to_be_visible()
    ui.open("/")
    expect(page.get_by_text("Publishers get errors, consumers get what is replicated").first).to_be_visible()

    stage.remote.with_name("away").rename(stage.remote)
    until(lambda: not any("remote log" in each for each in stage.alarms()), what="the end of the alarm")


def test_a_node_that_was_replaced_while_it_stood_still_leaves_its_successor_on_the_page(stage: Stage, page: Page):
    assert stage.publish() == 200
    old = stage.node
    os.kill(old.pid, signal.SIGSTOP)
    stage.node = stage.start("two", "--take-over")
    os.kill(old.pid, signal.SIGCONT)
    assert old.ended() == 3
    assert stage.publish() == 200

    Ui(page, stage.admin.url).open(f"/nodes/{stage.node.http}")
    expect(page.get_by_text(re.compile(r"^epoch 2, record \d+, \d+ ms behind"))).to_be_visible()
