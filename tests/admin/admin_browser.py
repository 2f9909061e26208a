"""A real browser: Debian's Chromium, driven by Playwright, and what a user does with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from daemons import until

expect.set_options(timeout=20_000)  # a busy machine is slow, not wrong

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-rasterization",
    "--disable-software-rasterizer",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; a machine without it is told how to get it."""
    if not CHROMIUM.exists():
        raise AssertionError(f"{CHROMIUM} is missing: run `make system`, which installs Debian's chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


class Ui:
    """What a user does."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        expect(self.page.locator("h1")).to_be_visible()
        self.connected()
        return self.page

    def connected(self) -> None:
        """Wait until clicks are heard. Asked from out here: the page's policy forbids to evaluate anything in it."""
        until(lambda: self.page.evaluate("window.did_handshake === true"), what="the connection")

    def press(self, name: str) -> None:
        button = self.page.get_by_role("button", name=name, exact=True)
        expect(button).to_have_count(1)  # a dialog that closes may still have one of that name
        button.click()

    def confirm(self, button: str, *, typed: str = "") -> None:
        dialog = self.page.get_by_role("dialog")
        if typed:
            dialog.get_by_role("textbox").fill(typed)
        dialog.get_by_role("button", name=button, exact=True).click()
        expect(dialog).to_have_count(0)

    def row_action(self, row: str, action: str) -> None:
        self.page.get_by_role("button", name=f"Actions for {row}").first.click()
        self.page.get_by_role("menuitem", name=action).click()

    def told(self, text: str) -> None:
        expect(self.page.locator(".q-notification").filter(has_text=text).first).to_be_visible()
