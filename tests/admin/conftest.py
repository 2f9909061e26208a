"""What the tests of nsqadmin share: a fake cluster, and the real daemon in front of it."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the stage is found under any way of running

from admin_browser import chromium
from admin_fakes import FakeLookupd, FakeNsqd
from admin_stage import Cluster, fill, start_nsqadmin, warm_up
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, ViewportSize

from daemons import Daemon, nsqd

SIZE: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    a, b = FakeNsqd("node-a", lapwing=True), FakeNsqd("node-b", version="1.2.1")
    cluster = Cluster(a, b, FakeLookupd(a, b))
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    fill(shared_cluster)
    return shared_cluster


@pytest.fixture(scope="session")
def nsqadmin(shared_cluster: Cluster) -> Iterator[Daemon]:
    """One in lookup mode for all tests."""
    fill(shared_cluster)
    with start_nsqadmin(f"--lookupd-http-address={shared_cluster.lookupd.address}") as daemon:
        yield warm_up(daemon)


@pytest.fixture(scope="session")
def guarded(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests with an ACL, a base path, notifications and an audit file: others than ann only read."""
    fill(shared_cluster)
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with start_nsqadmin(
        f"--lookupd-http-address={shared_cluster.lookupd.address}",
        "--admin-user=ann",
        "--trusted-proxy=127.0.0.1/32",
        "--base-path=/nsq/",
        f"--audit-file={audit}",
        f"--notification-http-endpoint=http://{shared_cluster.lookupd.address}/notify",
        "--allow-config-from-cidr=10.0.0.0/8",
    ) as daemon:
        daemon.audit = audit
        yield warm_up(daemon, "/nsq")


@pytest.fixture(scope="module")
def starting() -> Iterator[Callable[..., Daemon]]:
    """Starts more of them; all are ended with the module."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(start_nsqadmin(*flags))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all, so that the assets are loaded once."""
    made = browser.new_context(viewport=SIZE, color_scheme="light")
    made.set_default_timeout(20_000)
    yield made
    made.close()


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[str]:
    """An empty page of the same site as every nsqadmin: a tab that waits there keeps its process and its scripts."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/" else 204)  # it is asked for an icon too
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def tab(context: BrowserContext) -> Page:
    """One for all tests: a new one takes three times the processor time of a visit."""
    return context.new_page()


@pytest.fixture
def page(tab: Page, elsewhere: str) -> Iterator[Page]:
    """A tab as it is when new, that fails the test when the browser complains about anything."""
    complaints: list[str] = []

    def note(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            complaints.append(said.text)

    def note_error(error: Error) -> None:
        complaints.append(str(error))

    tab.on("console", note)
    tab.on("pageerror", note_error)
    yield tab
    tab.evaluate("sessionStorage.clear()")
    tab.goto(elsewhere)
    tab.remove_listener("console", note)
    tab.remove_listener("pageerror", note_error)
    tab.set_extra_http_headers({})
    tab.emulate_media(color_scheme="light")
    tab.set_viewport_size(SIZE)
    assert complaints == []


# ---- a real nsqd, for what the fakes do not have ----


@pytest.fixture(scope="session")
def broker() -> Iterator[Daemon]:
    """One for all tests: each uses topics of its own."""
    with nsqd() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def broker_audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker") / "audit.jsonl"


@pytest.fixture(scope="session")
def broker_admin(broker: Daemon, broker_audit: Path) -> Iterator[Daemon]:
    """An nsqadmin in front of it."""
    with start_nsqadmin(f"--nsqd-http-address={broker.http}", f"--audit-file={broker_audit}") as daemon:
        yield warm_up(daemon)


@pytest.fixture(scope="session")
def broker_reader(broker: Daemon) -> Iterator[Daemon]:
    """Another one, where nobody may change anything."""
    with start_nsqadmin(f"--nsqd-http-address={broker.http}", "--read-only") as daemon:
        yield warm_up(daemon)
