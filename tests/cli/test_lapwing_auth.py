"""Commands and tools on an nsqd that requires AUTH, on TCP and HTTP alike."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from commanding import PROGRAM, environment, lapwing, lapwing_json

from daemons import Daemon, nsqd
from lapwing import LogReader
from lapwing.client.http import CallFailed

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"], "admin": True}
BILLING = {"topic": "^orders$", "channels": ["^$", "^billing$"], "permissions": ["subscribe"], "admin": True}
READING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}


class AuthServer(BaseHTTPRequestHandler):
    """Grants everything to `boss`, reading to `reader`, one channel to `biller`, nothing to others."""

    def do_GET(self) -> None:
        secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
        grants = {"boss": [EVERYTHING], "reader": [READING], "biller": [BILLING]}.get(secret)
        body = json.dumps({"ttl": 60, "identity": secret, "identity_url": "", "authorizations": grants or []}).encode()
        self.send_response(200 if grants else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Daemon]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), AuthServer)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with nsqd(f"--auth-http-address=127.0.0.1:{server.server_address[1]}") as daemon:
        lapwing("pub", "orders", "one", "two", "--auth-secret", "boss", daemon=daemon)
        lapwing("channel", "create", "orders/billing", "--auth-secret", "boss", daemon=daemon)
        lapwing("pub", "orders", "later", "--defer", "30m", "--auth-secret", "boss", daemon=daemon)
        yield daemon
    server.shutdown()
    server.server_close()


def test_without_a_secret_the_error_names_the_flag(guarded: Daemon) -> None:
    for words in (("peek", "orders"), ("topic", "pause", "orders"), ("settings", "orders")):
        said = lapwing(*words, daemon=guarded, code=1).stderr

        assert "--auth-secret or LAPWING_AUTH_SECRET" in said, words
    assert "auth_secret" in lapwing("pub", "orders", "x", "--timeout", "30s", daemon=guarded, code=1).stderr


def test_with_a_secret_everything_works(guarded: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPWING_AUTH_SECRET", "boss")

    assert [message["body"] for message in lapwing_json("peek", "orders", daemon=guarded)][:2] == ["one", "two"]
    assert lapwing_json("topics", daemon=guarded)[0]["topic"] == "orders"
    assert lapwing("sub", "orders", "billing", "-n", "1", daemon=guarded).stdout == "one\n"
    assert "paused" in lapwing("channel", "pause", "orders/billing", daemon=guarded).stdout
    assert "unpaused" in lapwing("channel", "unpause", "orders/billing", daemon=guarded).stdout
    lapwing("pub", "orders", "three", "-H", "a=b", daemon=guarded)
    assert lapwing_json("peek", "orders", "-n", "1", daemon=guarded)[0]["headers"] == {"a": "b"}
    assert lapwing("bench", "pub", "--count", "200", "--nsqd-tcp-address", guarded.tcp, "--nsqd-http-address",
                   guarded.http).stdout  # fmt: skip


def test_check_names_the_node_that_refuses(guarded: Daemon) -> None:
    said = lapwing("check", daemon=guarded, code=2).stdout

    assert said.startswith(f"CRITICAL: nsqd {guarded.http} does not answer: got response 401 ")


def test_a_secret_that_is_not_enough_is_refused_by_name(guarded: Daemon) -> None:
    secret = ("--auth-secret", "reader")

    assert lapwing("peek", "orders", *secret, daemon=guarded).stdout
    assert "refused: UNAUTHORIZED" in lapwing("topic", "pause", "orders", *secret, daemon=guarded, code=1).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("settings", "orders/billing", "max_attempts=3"),
        ("seek", "orders/billing", "latest", "--dry-run"),
        ("pending", "list", "orders/billing"),
        ("pending", "defer", "orders/billing", "--state", "deferred", "--by", "30m", "--yes"),
        ("channel", "pause", "orders/billing"),
        ("channel", "unpause", "orders/billing"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_one_channel_can_be_administered_with_permissions_for_it_alone(guarded: Daemon, words: tuple[str, ...]) -> None:
    lapwing(*words, "--auth-secret", "biller", daemon=guarded)


def test_nsq_stat_sends_the_secret(guarded: Daemon) -> None:
    flags = ("-topic=orders", "-channel=billing", "-interval=50ms", "-count=1", f"-nsqd-http-address={guarded.http}")
    done = subprocess.run([str(Path(PROGRAM).parent / "nsq_stat"), *flags], capture_output=True, text=True, timeout=60,
                          env=environment(LAPWING_AUTH_SECRET="boss"), check=False)  # fmt: skip

    assert done.returncode == 0, done.stderr


async def test_a_log_reader_sends_the_secret(guarded: Daemon) -> None:
    async with LogReader("orders", nsqd_http=guarded.http, auth_secret="reader") as reader:
        messages = await reader.read(2, sequence=0)
    async with LogReader("orders", nsqd_http=guarded.http, auth_secret="nobody") as reader:
        with pytest.raises(CallFailed, match="AUTH_FAILED"):
            await reader.read()

    assert [message.body for message in messages] == [b"one", b"two"]
