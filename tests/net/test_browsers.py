"""Pages of other sites cannot use a browser against a daemon; programs are not asked who they are."""

import pytest

from lapwing.net.server import answers
from lapwing.net.server.answers import Answer
from lapwing.net.server.browsers import BrowserGuard
from lapwing.net.server.requests import Caller, Head, Request
from lapwing.net.server.routes import Route, Router

ROUTES = [Route(method, "/x", lambda _: answers.text("OK")) for method in ("GET", "POST", "PUT", "DELETE")]


def status(method: str, host: str, *names: str, **headers: str) -> int:
    guard = BrowserGuard(Router(ROUTES), names=("node.example", *names), program="nsqd")
    pairs = [(b"host", host.encode())] + [
        (name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()
    ]
    head = Head(method, b"/x", pairs, old=False, close=False)
    head.route, head.parameter = guard.resolve(head)
    answer = head.route.respond(Request(head, b"", Caller(), 0.0))
    assert isinstance(answer, Answer)
    return answer.status


@pytest.mark.parametrize("host", ["127.0.0.1:4151", "nsqd-3.prod.internal:4151", "evil.example", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_program_calls_a_daemon_by_any_name(method: str, host: str) -> None:
    assert status(method, host) == 200
    assert status(method, host, user_agent="curl/8", accept="*/*", content_type="text/plain") == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("sign", ["accept_language", "referer"])
@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:4151", 200),
        ("10.1.2.3:4151", 200),
        ("[::1]:4151", 200),
        ("localhost:4151", 200),
        ("db.localhost", 200),
        ("broker", 200),
        ("node.example:4151", 200),
        ("NODE.example.", 200),
        ("nsqd.example", 403),
        ("evil.example:4151", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_a_browser_has_to_call_it_by_a_name_of_its_own(method: str, sign: str, host: str, answered: int) -> None:
    assert status(method, host, **{sign: "x"}) == answered


def test_the_operator_names_further_hosts() -> None:
    assert status("GET", "nsqd.example", "nsqd.example", accept_language="en") == 200
    assert status("GET", "any.example", "*", accept_language="en") == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("origin", ["http://evil.example", "https://evil.example:4151", "null", "http://127.0.0.1:9999"])
def test_a_page_of_another_site_changes_nothing(method: str, origin: str) -> None:
    assert status(method, "127.0.0.1:4151", origin=origin) == 403
    assert status(method, "127.0.0.1:4151", sec_fetch_site="cross-site") == 403
    assert status(method, "127.0.0.1:4151", sec_fetch_site="same-site") == 403


def test_its_own_pages_and_those_of_named_hosts_may() -> None:
    assert status("POST", "127.0.0.1:4151", origin="http://127.0.0.1:4151", sec_fetch_site="same-origin") == 200
    assert status("POST", "127.0.0.1:4151", sec_fetch_site="none") == 200
    assert status("POST", "127.0.0.1:4151", "tool.example", origin="https://tool.example") == 200


def test_reading_across_sites_is_left_to_the_browser() -> None:
    assert status("GET", "127.0.0.1:4151", origin="http://evil.example", sec_fetch_site="cross-site") == 200
