"""nsqd's HTTP API through each of its doors: plain, TLS, a Unix socket; and where TLS is required."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import certificates
import daemons


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.self_signed(tmp_path_factory.mktemp("tls"))


def get(address: str, target: str, trust: Path | None = None, method: str = "GET") -> tuple[int, bytes]:
    if trust is None:
        connection = http.client.HTTPConnection(address, timeout=60)
    else:
        connection = http.client.HTTPSConnection(address, timeout=60, context=ssl.create_default_context(cafile=trust))
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def tls_only(pair: tuple[Path, Path]) -> Iterator[daemons.Daemon]:
    flags = (f"--tls-cert={pair[0]}", f"--tls-key={pair[1]}", "--https-address=127.0.0.1:0", "--tls-required=true")
    with daemons.nsqd(*flags) as nsqd:
        daemons.until(lambda: "HTTPS" in nsqd.addresses)
        yield nsqd


def test_where_tls_is_required_plain_http_only_says_where_to_go(
    tls_only: daemons.Daemon, pair: tuple[Path, Path]
) -> None:
    port = int(tls_only.https.rpartition(":")[2])
    refusal = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'.encode()

    assert get(tls_only.http, "/ping") == (403, refusal)
    assert get(tls_only.http, "/no/such/path", method="DELETE") == (403, refusal)
    assert get(tls_only.https, "/ping", pair[0]) == (200, b"OK")


def test_http_is_served_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    daemon = daemons.start_nsqd(tmp_path, http_address=path)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(path)
            client.sendall(b"GET /info HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    finally:
        daemon.kill()

    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["http_port"] == -1


def test_what_http_published_is_there_after_a_crash(tmp_path: Path) -> None:
    daemon = daemons.start_nsqd(tmp_path)
    try:
        for number in range(20):
            assert post(daemon, "/pub?topic=t", b"%d" % number) == (200, b"OK")
        post(daemon, "/channel/create?topic=t&channel=c")
        post(daemon, "/channel/pause?topic=t&channel=c")
        post(daemon, "/topic/create?topic=empty")
        daemon.kill()
        daemon.restart()
        topics = json.loads(get(daemon.http, "/stats?format=json")[1])["topics"]
    finally:
        daemon.kill()

    assert [topic["topic_name"] for topic in topics] == ["empty", "t"]
    channel = topics[1]["channels"][0]
    assert (channel["channel_name"], channel["depth"], channel["paused"]) == ("c", 20, True)


def post(daemon: daemons.Daemon, target: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(daemon.http, timeout=60)
    try:
        connection.request("POST", target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
