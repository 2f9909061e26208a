"""The blocking driver of the HTTP client."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from lapwing.net.client import blocking as blocking_http_client
from lapwing.net.client.blocking import BlockingHttpClient
from lapwing.net.client.message import HttpFailed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n" % len(part) + part + b"\r\n" for part in (b"head", b"x" * 2_000_000, b"tail")
)  # fmt: skip


class Server:
    """Answers each request, of any number on a connection, with what `answers` gives; None closes the connection."""

    def __init__(self, answers: Callable[[int], bytes | None]) -> None:
        self._answers = answers
        self.requests: list[bytes] = []
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):  # the client may go in the middle of an answer
            while data := connection.recv(65536):
                self.requests.append(data)
                answer = self._answers(len(self.requests))
                if answer is None:
                    return
                connection.sendall(answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int], bytes | None]], Server]]:
    servers: list[Server] = []

    def start(answers: Callable[[int], bytes | None]) -> Server:
        servers.append(Server(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_connection_is_used_again(serve) -> None:
    server = serve(lambda _: OK)
    http = BlockingHttpClient()
    answers = [http.request("GET", server.url).body for _ in range(3)]
    http.close()

    assert answers == [b"OK"] * 3
    assert server.connections == 1


def test_a_get_is_repeated_and_a_post_is_not_when_the_connection_closes(serve) -> None:
    server = serve(lambda number: None if number in (2, 4) else OK)
    http = BlockingHttpClient()
    http.request("GET", server.url)
    http.request("GET", server.url)
    with pytest.raises(HttpFailed, match="closed without an answer"):
        http.request("POST", server.url, body=b"")
    http.close()

    assert len(server.requests) == 4


def test_an_answer_is_streamed_into_the_buffers_of_the_caller(serve) -> None:
    server = serve(lambda _: CHUNKS + b"0\r\n\r\n")
    http = BlockingHttpClient()
    buffer = bytearray(2_000_000)
    for _ in range(2):
        with http.open("GET", server.url) as exchange:
            head = exchange.read(4)
            exchange.fill(memoryview(buffer))
            tail = exchange.read(4)
            end = exchange.read(4)
    http.close()

    assert (exchange.status, head, bytes(buffer), tail, end) == (200, b"head", b"x" * 2_000_000, b"tail", b"")
    assert server.connections == 1  # an answer that was read to its end leaves the connection usable


def test_an_answer_that_is_not_read_to_its_end_costs_its_connection(serve) -> None:
    server = serve(lambda _: CHUNKS + b"0\r\n\r\n")
    http = BlockingHttpClient()
    for _ in range(2):
        with http.open("GET", server.url) as exchange:
            exchange.read(4)
    http.close()

    assert server.connections == 2


def test_an_answer_that_stops_is_an_error(serve) -> None:
    server = serve(lambda _: CHUNKS)
    http = BlockingHttpClient(request_timeout=30)  # as long as a busy machine may need for what does come
    with http.open("GET", server.url) as exchange:
        exchange.read(2_000_008)
        exchange._sock.settimeout(0.1)
        with pytest.raises(HttpFailed, match="no answer within 30 s"):
            exchange.read(1)


def test_a_redirect_that_comes_at_the_deadline_is_no_wish_for_an_answer_at_once(serve, monkeypatch) -> None:
    now = time.monotonic()
    clock = chain([now, now], repeat(now + 11))  # the redirect comes in time, and none is left for the answer to it
    monkeypatch.setattr(blocking_http_client, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    server = serve(lambda _: b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n")

    http = BlockingHttpClient(request_timeout=10, follow_redirects=True)
    with http, pytest.raises(HttpFailed, match="no answer within 10 s"):
        http.request("GET", server.url)


def test_a_whole_answer_is_bounded_and_has_a_deadline(serve) -> None:
    server = serve(lambda number: CHUNKS if number == 1 else b"HTTP/1.1 ")
    with pytest.raises(HttpFailed, match="more than 1000 bytes"):
        BlockingHttpClient(max_answer=1000).request("GET", server.url)
    with pytest.raises(HttpFailed, match="no answer within"):
        BlockingHttpClient(request_timeout=0.1).request("GET", server.url)
    with pytest.raises(HttpFailed, match="connection refused"):
        BlockingHttpClient().request("GET", "http://127.0.0.1:1/")


@pytest.mark.parametrize("call", ["request", "open"])
def test_a_head_that_comes_byte_by_byte_has_the_deadline_of_the_request(call: str) -> None:
    done = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            while not done.wait(0.02):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        began = time.monotonic()
        try:
            with pytest.raises(HttpFailed, match=r"no answer within 0\.2 s"):
                getattr(BlockingHttpClient(request_timeout=0.2), call)("GET", url)

            assert time.monotonic() - began < 5
        finally:
            done.set()
            thread.join()


def test_redirects_are_followed_where_that_is_wanted(serve) -> None:
    there = serve(lambda _: OK)
    away = f"HTTP/1.1 302 Found\r\nLocation: {there.url}\r\nContent-Length: 0\r\n\r\n".encode()
    server = serve(lambda _: away)

    with BlockingHttpClient(follow_redirects=True) as following, BlockingHttpClient() as plain:
        assert following.request("GET", server.url).body == b"OK"
        assert plain.request("GET", server.url).status == 302


def test_a_started_request_can_be_waited_for_with_select(serve) -> None:
    server = serve(lambda _: OK)
    with BlockingHttpClient() as http, http.start("GET", server.url) as exchange:
        body = exchange.read()

    assert (exchange.status, body) == (200, b"OK")
    assert json.dumps(exchange.headers) == '{"content-length": "2"}'
