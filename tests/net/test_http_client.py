"""The asyncio driver of the HTTP client."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

import certificates
from http_double import HttpDouble, LoopbackServer, reply
from lapwing.net.client.asynchronous import NSQ_ACCEPT, HttpClient
from lapwing.net.client.message import HttpFailed


def client(**settings: Any) -> HttpClient:
    usual = {"headers": {"Accept": NSQ_ACCEPT}, "follow_redirects": True, "upgrade_to_tls": True}
    return HttpClient(**usual | settings)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.self_signed(tmp_path_factory.mktemp("tls"))


async def test_the_json_of_an_answer_is_given_back() -> None:
    async with HttpDouble(lambda *_: reply({"channels": ["a"]})) as server:
        found = await client().ask(f"http://{server.address}/channels?topic=t")

    method, target, headers, body = server.requests[0]
    assert found == {"channels": ["a"]}
    assert (method, target, body) == ("GET", "/channels?topic=t", b"")
    assert headers["accept"] == "application/vnd.nsq; version=1.0"
    assert headers["host"] == server.address


async def test_a_document_is_posted() -> None:
    async with HttpDouble(lambda *_: reply({})) as server:
        await client().ask(f"http://u:p%40@{server.address}/auth", {"a": ["b"]})

    method, _, headers, body = server.requests[0]
    assert (method, body) == ("POST", b'{"a": ["b"]}')
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Basic dTpwQA=="


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[1,2]",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]",
    ],
)
async def test_an_answer_may_come_in_any_form_of_http(answer: bytes) -> None:
    async with HttpDouble(lambda *_: answer) as server:
        assert await client().ask(f"http://{server.address}/") == [1, 2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply({}, "404 Not Found"), "status 404"),
        (reply({"message": "no"}, "403 Forbidden"), "status 403"),
        (reply(b"not json"), "not JSON: Expecting value"),
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP answer"),
        (b"", "closed without an answer"),
        (reply(b" " * 3000), "more than 2000 bytes"),
        (reply({}, "302 Found", "Location: /again\r\n"), "redirected more than 5 times"),
        (reply({}, "302 Found", "Location: ftp://x/\r\n"), "not an HTTP URL"),
    ],
)
async def test_what_is_no_usable_answer_is_an_error_that_says_why(answer: bytes, why: str) -> None:
    async with HttpDouble(lambda *_: answer) as server:
        with pytest.raises(HttpFailed) as caught:
            await client(max_answer=2000).ask(f"http://secret:word@{server.address}/auth?secret=abc")

    assert why in str(caught.value)
    assert "abc" not in str(caught.value)
    assert "word" not in str(caught.value)


async def test_silence_ends_with_the_patience() -> None:
    async with HttpDouble(lambda *_: None) as server:
        with pytest.raises(HttpFailed, match=r"no answer within 0\.05 s"):
            await client(request_timeout=0.05).ask(f"http://{server.address}/")


async def test_nobody_there_is_an_error() -> None:
    with pytest.raises(HttpFailed):
        await client().ask("http://127.0.0.1:1/")


async def test_redirects_are_followed() -> None:
    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        return reply({"at": target}) if target == "/there" else reply(b"", "301 Moved", "Location: /there\r\n")

    async with HttpDouble(answer) as server:
        assert await client().ask(f"http://{server.address}/here") == {"at": "/there"}


async def test_a_daemon_that_wants_tls_is_asked_over_tls(pair: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    async with (
        HttpDouble(lambda *_: reply({"secure": True}), tls=context) as secure,
        HttpDouble(lambda *_: reply({"message": "TLS_REQUIRED", "https_port": secure.port}, "403 Forbidden")) as plain,
    ):
        found = await client(ca_file=str(pair[0])).ask(f"http://{plain.address}/channels?topic=t")
        with pytest.raises(HttpFailed):
            await client().ask(f"http://{plain.address}/channels?topic=t")  # nobody vouches for it

    assert found == {"secure": True}
    assert secure.requests[0][1] == "/channels?topic=t"


async def test_cancelling_a_question_cancels_it() -> None:
    arrived = asyncio.Event()
    async with HttpDouble(lambda *_: arrived.set()) as server:
        question = asyncio.ensure_future(client().ask(f"http://{server.address}/"))
        await arrived.wait()
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question


async def next_head(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request; empty at the end."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


class KeepingServer(LoopbackServer):
    """Serves any number of requests per connection; closes one without an answer at the requests of `hang_up_at`."""

    hang_up_at: tuple[int, ...] = ()

    def __init__(self, answer: bytes = reply({})) -> None:
        super().__init__()
        self.answer = answer
        self.connections: list[asyncio.StreamWriter] = []
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        while head := await next_head(reader):
            self.requests.append(head)
            if len(self.requests) in self.hang_up_at:
                return
            writer.write(self.answer)


async def test_a_connection_is_used_again() -> None:
    async with KeepingServer() as server, client() as http:
        for _ in range(3):
            await http.request("GET", server.url)

    assert (len(server.requests), len(server.connections)) == (3, 1)


async def test_a_get_is_repeated_when_the_kept_connection_had_been_closed() -> None:
    async with KeepingServer() as server, client() as http:
        server.hang_up_at = (2,)
        await http.request("GET", server.url)
        answer = await http.request("GET", server.url)

    assert answer.status == 200
    assert (len(server.requests), len(server.connections)) == (3, 2)


async def test_a_post_is_never_repeated_by_itself() -> None:
    async with KeepingServer() as server, client() as http:
        server.hang_up_at = (2,)
        await http.request("GET", server.url)
        with pytest.raises(HttpFailed, match="closed without an answer"):
            await http.request("POST", server.url)

    assert len(server.requests) == 2


async def test_surplus_bytes_end_a_connection() -> None:
    async with KeepingServer(reply({}) + b"HTTP/1.1 200 OK\r\n") as server, client() as http:
        assert (await http.request("GET", server.url)).json() == {}
        assert (await http.request("GET", server.url)).json() == {}

    assert len(server.connections) == 2


async def test_a_secret_does_not_follow_a_redirect_to_another_server() -> None:
    async with HttpDouble(lambda *_: reply({})) as other:
        away = reply(b"", "302 Found", f"Location: http://{other.address}/there\r\n")
        async with HttpDouble(lambda *_: away) as server:
            await client().request("GET", f"http://{server.address}/", headers={"Authorization": "Bearer s3cret"})

    assert server.requests[0][2]["authorization"] == "Bearer s3cret"
    assert "authorization" not in other.requests[0][2]


async def test_a_post_that_is_redirected_becomes_a_get_unless_the_server_forbids_it() -> None:
    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        if target == "/there":
            return reply({"method": method, "body": body.decode()})
        return reply(b"", "302 Found" if target == "/302" else "307 Temporary Redirect", "Location: /there\r\n")

    async with HttpDouble(answer) as server, client() as http:
        changed = await http.request("POST", f"http://{server.address}/302", body=b"x")
        kept = await http.request("POST", f"http://{server.address}/307", body=b"x")

    assert changed.json() == {"method": "GET", "body": ""}
    assert kept.json() == {"method": "POST", "body": "x"}


async def test_no_more_connections_are_open_than_allowed() -> None:
    busy = most = 0

    class Counting(LoopbackServer):
        async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal busy, most
            while await next_head(reader):
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(0)
                busy -= 1
                writer.write(reply({}))

    async with Counting() as server, client(max_connections=3) as http:
        await asyncio.gather(*(http.request("GET", f"http://{server.address}/") for _ in range(30)))

    assert most <= 3


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1/", "connection refused"),
        ("ftp://127.0.0.1/", "not an HTTP URL"),
        ("http://[::1/", "not an HTTP URL"),
        ("http://x:0/", "not an HTTP URL"),
        (f"http://{'x' * 300}.invalid/", "label"),
    ],
)
async def test_an_url_that_cannot_be_called_is_an_error_that_says_why(url: str, why: str) -> None:
    async with client() as http:
        with pytest.raises(HttpFailed, match=why):
            await http.request("GET", url)


async def test_headers_cannot_smuggle_in_others() -> None:
    async with client() as http:
        with pytest.raises(HttpFailed, match="cannot be sent"):
            await http.request("GET", "http://127.0.0.1:1/", headers={"X": "a\r\nY: b"})
