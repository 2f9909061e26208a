"""nsqadmin in front of an nsqd that requires a secret."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from admin_stage import start_nsqadmin, warm_up

from daemons import Daemon, nsqd, program, until
from lapwing.admin.access import hash_password

pytestmark = pytest.mark.slow

EVERYTHING = ["publish", "subscribe"]


class AuthServer(BaseHTTPRequestHandler):
    """Knows two secrets: one for everything, one that may only publish."""

    def do_GET(self) -> None:
        secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
        permissions = {"open sesame": EVERYTHING, "half": ["publish"]}.get(secret)
        everywhere = {"topic": ".*", "channels": [".*"], "permissions": permissions, "admin": permissions == EVERYTHING}
        granted = [everywhere] if permissions else []
        body = json.dumps({"ttl": 60, "identity": "admin", "authorizations": granted}).encode()
        self.send_response(200 if permissions else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Daemon]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), AuthServer)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with nsqd(f"--auth-http-address=127.0.0.1:{server.server_port}") as daemon:
        yield daemon
    server.shutdown()
    server.server_close()


def alarms(admin: Daemon) -> list[str]:
    return [alarm["text"] for alarm in httpx.get(f"{admin.url}/api/alarms").json()["alarms"]]


def test_the_secret_of_a_file_opens_the_cluster_and_is_shown_nowhere(guarded: Daemon, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    flags = (f"--nsqd-http-address={guarded.http}", f"--auth-secret-file={tmp_path / 'secret'}")
    with warm_up(start_nsqadmin(*flags, env={})) as admin:  # not forked: it has a command line of its own
        created = httpx.post(f"{admin.url}/api/topics", json={"topic": "t", "channel": "c", "node": guarded.http})
        shown = httpx.get(f"{admin.url}/api/topics/t/c")
        pages = httpx.get(f"{admin.url}/audit").text + httpx.get(f"{admin.url}/config/auth_secret_file").text
        deleted = httpx.delete(f"{admin.url}/api/topics/t")

        assert (created.status_code, created.json()["message"]) == (200, "")
        assert (shown.status_code, shown.json()["message"]) == (200, "")
        assert deleted.json() == {"message": ""}
        assert "open sesame" not in pages + admin.stderr + Path(f"/proc/{admin.pid}/cmdline").read_text()


def test_the_secret_may_come_from_the_environment(guarded: Daemon) -> None:
    command = [*program("nsqadmin"), "--http-address=127.0.0.1:0", f"--nsqd-http-address={guarded.http}"]
    with Daemon(command, doors=("HTTP",), env={"LAPWING_AUTH_SECRET": "open sesame"}) as admin:
        answer = httpx.get(f"{admin.url}/api/topics")

    assert (answer.status_code, answer.json()["message"]) == (200, "")


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("", "requires a secret: start nsqadmin with --auth-secret-file"),
        ("wrong", "does not accept nsqadmin's secret"),
    ],
)
def test_a_missing_or_wrong_secret_is_named_with_what_to_do(guarded: Daemon, secret: str, words: str) -> None:
    command = [*program("nsqadmin"), "--http-address=127.0.0.1:0", f"--nsqd-http-address={guarded.http}"]
    with Daemon(command, doors=("HTTP",), env={"LAPWING_AUTH_SECRET": secret}) as admin:
        until(lambda: any(words in text for text in alarms(admin)), what="the alarm")


def test_a_secret_that_lacks_a_permission_is_named_with_the_permission(guarded: Daemon) -> None:
    command = [*program("nsqadmin"), "--http-address=127.0.0.1:0", f"--nsqd-http-address={guarded.http}"]
    with Daemon(command, doors=("HTTP",), env={"LAPWING_AUTH_SECRET": "half"}) as admin:
        httpx.post(f"{admin.url}/api/topics", json={"topic": "kept", "node": guarded.http})
        refused = httpx.post(f"{admin.url}/api/topics/kept", json={"action": "pause"}).json()["message"]

    assert "UNAUTHORIZED" in refused
    assert "admin" in refused


def test_an_open_nsqadmin_with_a_secret_is_warned_of(guarded: Daemon, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame")
    (tmp_path / "broken").write_text("two\nlines")
    flags = (f"--nsqd-http-address={guarded.http}", f"--auth-secret-file={tmp_path / 'secret'}")
    (tmp_path / "passwords").write_text(f"ann:{hash_password('x')}")
    with start_nsqadmin(*flags) as admin, start_nsqadmin(*flags, f"--password-file={tmp_path / 'passwords'}") as login:
        assert any("everybody who reaches nsqadmin" in line for line in admin.lines)
        assert not any("everybody who reaches nsqadmin" in line for line in login.lines)
    for path, words in (("broken", "control characters"), ("missing", "No such file")):
        with pytest.raises(RuntimeError, match=words):
            start_nsqadmin(f"--nsqd-http-address={guarded.http}", f"--auth-secret-file={tmp_path / path}")
