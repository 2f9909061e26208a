"""Asking other daemons."""

import asyncio
import ssl
from pathlib import Path

import pytest
from others import HttpDouble, reply

import certificates
from lapwing.nsqd.http_client import AskFailed, HttpClient


def asker(**settings: object) -> HttpClient:
    return HttpClient(**{"connect": 2.0, "whole": 5.0} | settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.self_signed(tmp_path_factory.mktemp("tls"))


async def test_the_json_of_an_answer_is_given_back() -> None:
    async with HttpDouble(lambda *_: reply({"channels": ["a"]})) as server:
        found = await asker().ask(f"http://{server.address}/channels?topic=t")

    method, target, headers, body = server.requests[0]
    assert found == {"channels": ["a"]}
    assert (method, target, body) == ("GET", "/channels?topic=t", b"")
    assert headers["accept"] == "application/vnd.nsq; version=1.0"
    assert headers["host"] == server.address


async def test_a_document_is_posted() -> None:
    async with HttpDouble(lambda *_: reply({})) as server:
        await asker().ask(f"http://u:p%40@{server.address}/auth", {"a": ["b"]})

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
        assert await asker().ask(f"http://{server.address}/") == [1, 2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply({}, "404 Not Found"), "status 404"),
        (reply({"message": "no"}, "403 Forbidden"), "status 403"),
        (reply(b"not json"), "Expecting value"),
        (b"SSH-2.0-OpenSSH\r\n", ""),
        (b"", "closed without an answer"),
        (reply(b" " * 3000), "more than 2000 bytes"),
        (reply({}, "302 Found", "Location: /again\r\n"), "sent from one place to the next"),
        (reply({}, "302 Found", "Location: ftp://x/\r\n"), "not an HTTP URL"),
    ],
)
async def test_what_is_no_usable_answer_is_an_error_that_says_why(answer: bytes, why: str) -> None:
    async with HttpDouble(lambda *_: answer) as server:
        with pytest.raises(AskFailed) as caught:
            await asker(largest=2000).ask(f"http://secret:word@{server.address}/auth?secret=abc")

    assert why in str(caught.value)
    assert "abc" not in str(caught.value)
    assert "word" not in str(caught.value)


async def test_silence_ends_with_the_patience() -> None:
    async with HttpDouble(lambda *_: None) as server:
        with pytest.raises(AskFailed, match=r"no answer within 0\.05 s"):
            await asker(whole=0.05).ask(f"http://{server.address}/")


async def test_nobody_there_is_an_error() -> None:
    with pytest.raises(AskFailed):
        await asker().ask("http://127.0.0.1:1/")


async def test_redirects_are_followed() -> None:
    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        return reply({"at": target}) if target == "/there" else reply(b"", "301 Moved", "Location: /there\r\n")

    async with HttpDouble(answer) as server:
        assert await asker().ask(f"http://{server.address}/here") == {"at": "/there"}


async def test_a_daemon_that_wants_tls_is_asked_over_tls(pair: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    async with (
        HttpDouble(lambda *_: reply({"secure": True}), tls=context) as secure,
        HttpDouble(lambda *_: reply({"message": "TLS_REQUIRED", "https_port": secure.port}, "403 Forbidden")) as plain,
    ):
        found = await asker(root_ca=str(pair[0])).ask(f"http://{plain.address}/channels?topic=t")
        with pytest.raises(AskFailed):
            await asker().ask(f"http://{plain.address}/channels?topic=t")  # nobody vouches for it

    assert found == {"secure": True}
    assert secure.requests[0][1] == "/channels?topic=t"


async def test_cancelling_a_question_cancels_it() -> None:
    async with HttpDouble(lambda *_: None) as server:
        question = asyncio.ensure_future(asker().ask(f"http://{server.address}/"))
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
