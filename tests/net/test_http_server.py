"""The HTTP server over real sockets: send bytes, expect bytes."""

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import replace

import pytest

from lapwing.net.server import answers
from lapwing.net.server.answers import Answer, Later, StreamedAnswer
from lapwing.net.server.http import HttpLimits, HttpServer
from lapwing.net.server.routes import Route, Router, TlsRequired
from lapwing.net.sockets.listen import bind

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
PING = GET % b"/ping"


class Site:
    """A server with one route of every kind."""

    def __init__(self, limits=None, table=None):
        self.laters = []
        self.gates = []
        self.bodies = []
        self.served_big = 0
        self.lines = []
        self.errors = []
        self.stream_closed = asyncio.Event()
        self.server = HttpServer(
            table or Router(self.routes()),
            limits=limits,
            log=self.lines.append,
            broken=lambda where, error: self.errors.append((where, error)),
        )
        self.listener = bind("127.0.0.1:0")

    def routes(self):
        yield Route("GET", "/ping", lambda request: answers.plain("OK"))
        yield Route(
            "POST",
            "/pub",
            self.publish,
            max_body=1000,
            too_big=answers.failure(413, "MSG_TOO_BIG"),
            cut_off=lambda request: answers.text(f"cut {len(request.body)}", 500),
            logged=False,
        )
        yield Route("GET", "/later", self.later)
        yield Route("GET", "/slow", self.slow)
        yield Route("GET", "/stream", lambda request: StreamedAnswer(pieces=self.pieces(request)))
        yield Route("GET", "/broken", self.broken)
        yield Route("GET", "/big", self.big)
        yield Route("GET", "/last", lambda request: replace(answers.text("bye"), close=True))
        yield Route("GET", "/header", lambda request: Answer(200, request.head.header(b"x-some") or b"none"))

    def big(self, request):
        self.served_big += 1
        return answers.text("x" * 300_000)

    def publish(self, request):
        self.bodies.append((request.query.get("topic"), request.body))
        return answers.OK

    def later(self, request):
        later = Later()
        self.laters.append((request.query.get("n"), later))
        return later

    async def slow(self, request):
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return answers.text("slow")

    async def pieces(self, request):
        try:
            for _ in range(int(request.query.get("count", "3"))):
                yield b"x" * int(request.query.get("size", "5"))
            if "fail" in request.query:
                raise ValueError("torn")
        finally:
            self.stream_closed.set()

    def broken(self, request):
        raise ValueError("no")


@contextlib.asynccontextmanager
async def site(limits=None, table=None):
    it = Site(limits, table)
    await it.listener.serve(it.server.protocol)
    try:
        yield it
    finally:
        it.listener.close()
        await it.server.shutdown(0)


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def answer(self):
        """Status, headers and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        status, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, body

    def reset(self):
        """Go away as a program that crashes does."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def rest(self):
        return await asyncio.wait_for(self.reader.read(), 60)


@contextlib.asynccontextmanager
async def client(it):
    reader, writer = await asyncio.open_connection("127.0.0.1", it.listener.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until(holds):
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


async def test_an_answer_has_date_length_and_type():
    async with site() as it, client(it) as c:
        c.send(PING)
        status, headers, body = await c.answer()

    assert (status, body) == (200, b"OK")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert re.fullmatch(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers["date"])
    assert "x-nsq-content-type" not in headers
    assert "connection" not in headers


async def test_requests_one_byte_at_a_time():
    async with site() as it, client(it) as c:
        for byte in POST % (b"/pub?topic=a", 3, b"abc") + PING:
            c.send(bytes((byte,)))
            await c.writer.drain()
        first, second = await c.answer(), await c.answer()

    assert it.bodies == [("a", b"abc")]
    assert (first[0], first[1]["x-nsq-content-type"], first[2]) == (200, "nsq; version=1.0", b"OK")
    assert second[2] == b"OK"


async def test_a_head_seen_before_gives_the_same_with_any_length():
    bodies = [b"x" * size for size in (3, 3, 0, 700, 1000, 1, 3)]
    async with site() as it, client(it) as c:
        for body in bodies:
            c.send(POST % (b"/pub?topic=a", len(body), body))
            assert (await c.answer())[0] == 200
        c.send(POST % (b"/pub?topic=a", 1001, b"x" * 1001))
        status, headers, _ = await c.answer()

    assert [body for _, body in it.bodies] == bodies
    assert (status, headers["connection"]) == (413, "close")


async def test_a_known_head_whose_body_comes_later_waits_for_it():
    async with site() as it, client(it) as c:
        for _ in range(3):
            c.send(POST % (b"/pub?topic=a", 6, b"abc"))
            await asyncio.sleep(0.02)
            c.send(b"def")
            assert (await c.answer())[0] == 200

    assert it.bodies == [("a", b"abcdef")] * 3


async def test_pipelined_requests_are_answered_in_order():
    async with site() as it, client(it) as c:
        c.send(b"".join(GET % b"/later?n=%d" % n for n in range(3)) + PING + GET % b"/slow" + PING)
        await until(lambda: len(it.laters) == 3)
        for n, later in reversed(it.laters):
            later.complete(answers.text(n))
        await until(lambda: it.gates)
        it.gates[0].set()
        bodies = [(await c.answer())[2] for _ in range(6)]

    assert bodies == [b"0", b"1", b"2", b"OK", b"slow", b"OK"]


async def test_nothing_is_carried_out_behind_a_coroutine_before_it_is_done():
    async with site() as it, client(it) as c:
        c.send(GET % b"/slow" + POST % (b"/pub?topic=a", 1, b"x"))
        await until(lambda: it.gates)
        await asyncio.sleep(0.02)

        assert it.bodies == []
        it.gates[0].set()
        assert [(await c.answer())[2] for _ in range(2)] == [b"slow", b"OK"]
        assert len(it.bodies) == 1


async def test_a_thousand_pipelined_laters_are_all_answered():
    async with site() as it, client(it) as c:
        c.send(b"".join(GET % b"/later?n=%d" % n for n in range(1000)))
        answered = 0
        while answered < 1000:
            await until(lambda: it.laters)
            waiting, it.laters = it.laters, []
            for n, later in waiting:
                later.complete(answers.text(n))
            for _ in waiting:
                assert (await c.answer())[2] == str(answered).encode()
                answered += 1


async def test_requests_wait_while_the_client_does_not_read_their_answers():
    async with site() as it, client(it) as silent, client(it) as other:
        silent.writer.transport.pause_reading()
        silent.send(GET % b"/big" * 400)
        await until(lambda: it.served_big > 0)
        for _ in range(50):  # the server has all the time it needs
            other.send(PING)
            await other.answer()
        unread = it.served_big
        silent.writer.transport.resume_reading()
        bodies = [(await silent.answer())[2] for _ in range(400)]

    assert unread < 40
    assert set(bodies) == {b"x" * 300_000}


async def test_a_later_completed_after_the_client_left_is_harmless():
    async with site() as it:
        async with client(it) as c:
            c.send(GET % b"/later")
            await until(lambda: it.laters)
            c.reset()
        await until(lambda: not it.server.connections)
        it.laters[0][1].complete(answers.OK)


async def test_a_client_that_leaves_cancels_its_coroutine():
    async with site() as it:
        async with client(it) as c:
            c.send(GET % b"/slow")
            await until(lambda: it.gates)
            c.reset()
        await until(lambda: not it.server.connections)


async def test_chunked_bodies_with_trailers():
    head = b"POST /pub?topic=a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with site() as it, client(it) as c:
        c.send(head + b"3;x=y\r\nabc\r\n4\r\ndefg\r\n0\r\nT: 1\r\n\r\n" + PING)
        assert [(await c.answer())[2] for _ in range(2)] == [b"OK", b"OK"]

    assert it.bodies == [("a", b"abcdefg")]


async def test_a_chunked_body_over_the_limit_is_refused_while_it_comes():
    async with site() as it, client(it) as c:
        c.send(
            b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n%b\r\n" % (b"x" * 500) * 3
        )
        status, headers, body = await c.answer()

        assert (status, body, headers["connection"]) == (413, b'{"message":"MSG_TOO_BIG"}', "close")
        assert it.bodies == []


async def test_a_length_over_the_limit_is_refused_before_the_body_and_the_answer_survives_a_sender_in_full_flow():
    async with site() as it, client(it) as c:
        c.send(POST % (b"/pub?topic=a", 5_000_000, b""))
        for _ in range(50):
            c.send(b"x" * 100_000)
        status, headers, body = await c.answer()

    assert (status, body, headers["connection"]) == (413, b'{"message":"MSG_TOO_BIG"}', "close")


async def test_more_framing_than_content_is_refused():
    async with site() as it, client(it) as c:
        c.send(b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;")
        for _ in range(20):
            c.send(b"y" * 8192)
            await c.writer.drain()
        assert (await c.answer())[0] == 400


async def test_100_continue_only_when_the_body_is_wanted():
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    async with site() as it:
        async with client(it) as c:
            c.send(head % (b"/pub?topic=a", 3))
            assert (await c.answer())[0] == 100
            c.send(b"abc")
            assert (await c.answer())[2] == b"OK"
        for path, length, status in ((b"/pub", 1001, 413), (b"/nope", 3, 404), (b"/ping", 3, 405)):
            async with client(it) as c:
                c.send(head % (path, length))
                assert (await c.answer())[0] == status
                assert await c.rest() == b""
        async with client(it) as c:
            c.send(b"POST /pub HTTP/1.1\r\nHost: x\r\nExpect: the-moon\r\nContent-Length: 1\r\n\r\n")
            assert (await c.answer())[0] == 417


async def test_http_1_0_is_answered_in_kind_and_closed():
    async with site() as it:
        async with client(it) as c:
            c.send(b"GET /ping HTTP/1.0\r\n\r\n")
            answer = await c.rest()
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nOK")
        async with client(it) as c:
            c.send(b"GET /stream HTTP/1.0\r\n\r\n")
            assert (await c.rest()).partition(b"\r\n\r\n")[2] == b"x" * 15


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"  V2", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00", b"400 Bad Request"),
        (b"GET /ping\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /ping HTTP/2.0\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
        (b"GET /ping HTTP/1.1\r\n\r\n", b"400 Bad Request: missing required Host header"),
        (b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", b"400 Bad Request"),
        (
            b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
            b"400 Bad Request",
        ),
        (b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400 Bad Request"),
    ],
)
async def test_bad_http_is_told_so_in_plain_text_and_closed(raw, text):
    async with site() as it, client(it) as c:
        c.send(raw)
        status, headers, body = await c.answer()

        assert status == int(text[:3])
        assert (headers["content-type"], headers["connection"], body) == ("text/plain; charset=utf-8", "close", text)
        assert await c.rest() == b""


async def test_bad_http_behind_good_requests_is_answered_after_them():
    async with site() as it, client(it) as c:
        c.send(GET % b"/slow" + PING + b"garbage\r\n\r\n")
        await until(lambda: it.gates)
        it.gates[0].set()

        assert [(await c.answer())[0] for _ in range(3)] == [200, 200, 400]
        assert await c.rest() == b""


async def test_headers_have_limits_in_number_and_in_size():
    async with site(HttpLimits(head_bytes=1000, headers=10)) as it:
        for raw in (
            b"GET /ping HTTP/1.1\r\n" + b"A: b\r\n" * 13,
            b"GET /ping HTTP/1.1\r\nA: " + b"b" * 2000,
            b"GET /" + b"b" * 2000,
        ):
            async with client(it) as c:
                c.send(raw)
                assert (await c.answer())[0] == 431


@pytest.mark.parametrize(
    "beginning",
    [b"GET /ping HTTP/1.1\r\nHost:", b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"],
    ids=["head", "chunked body"],
)
async def test_what_came_before_in_the_same_breath_counts_for_no_limit(beginning):
    rest = b" x\r\n\r\n" if beginning.endswith(b"Host:") else b"abc\r\n0\r\n\r\n"
    async with site(HttpLimits(head_bytes=500)) as it, client(it) as c:
        c.send(PING * 3000 + beginning)
        statuses = {(await c.answer())[0] for _ in range(3000)}
        c.send(rest)
        last, *_ = await c.answer()

    assert (statuses, last) == ({200}, 200)


async def test_deadlines_for_head_body_and_idling():
    limits = HttpLimits(head_seconds=100, body_seconds=100, idle_seconds=100)
    async with site(limits) as it, client(it) as head, client(it) as body, client(it) as idle, client(it) as used:
        head.send(b"GET /ping HT")
        body.send(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        used.send(PING)

        assert (await used.answer())[0] == 200  # what the others sent before is received by now
        it.server.now += 101  # as if it had waited; it looks once a second
        assert (await head.answer())[0] == 408
        assert (await body.answer())[0] == 408
        assert await idle.rest() == b""
        assert await used.rest() == b""


async def test_a_client_that_does_not_take_its_answer_is_cut_off():
    async with site(HttpLimits(stall_seconds=0.5)) as it, client(it) as c:
        c.writer.transport.pause_reading()
        c.send(GET % b"/stream?count=1000&size=100000")
        await asyncio.wait_for(it.stream_closed.wait(), 60)
        await until(lambda: not it.server.connections)


async def test_a_waiting_coroutine_is_no_idling():
    async with site(HttpLimits(idle_seconds=100, head_seconds=100)) as it, client(it) as c:
        c.send(GET % b"/slow")
        await until(lambda: it.gates)
        it.server.now += 101  # as if it had waited
        looked = it.server.now
        await until(lambda: it.server.now > looked)
        it.gates[0].set()
        assert (await c.answer())[2] == b"slow"


async def test_one_connection_too_many_is_refused_with_503():
    async with site(HttpLimits(connections=1)) as it, client(it) as first:
        first.send(PING)
        await first.answer()
        async with client(it) as second:
            status, headers, body = await second.answer()
            assert (status, headers["connection"], body) == (503, "close", b"too many connections\n")
        first.send(PING)
        assert (await first.answer())[0] == 200


async def test_a_body_cut_off_is_told_to_the_route():
    async with site() as it, client(it) as c:
        c.send(b"POST /pub?topic=a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        c.writer.write_eof()
        status, headers, body = await c.answer()

    assert (status, headers["connection"], body) == (500, "close", b"cut 3")
    assert it.bodies == []


async def test_a_client_that_has_said_all_still_gets_its_answers():
    async with site() as it, client(it) as c:
        c.send(GET % b"/slow" + PING)
        c.writer.write_eof()
        await until(lambda: it.gates)
        it.gates[0].set()

        assert [(await c.answer())[2] for _ in range(2)] == [b"slow", b"OK"]
        assert await c.rest() == b""


async def test_connection_close_is_honoured_and_what_follows_is_ignored():
    raw = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with site() as it:
        for _ in range(2):  # the second time its head is known
            async with client(it) as c:
                c.send(raw + PING)
                assert (await c.answer())[1]["connection"] == "close"
                assert await c.rest() == b""


async def test_a_route_may_end_the_connection():
    async with site() as it, client(it) as c:
        c.send(GET % b"/last" + PING)

        assert (await c.answer())[1]["connection"] == "close"
        assert await c.rest() == b""


async def test_head_requests_get_no_body():
    async with site() as it, client(it) as c:
        c.send(b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await c.reader.readuntil(b"\r\n\r\n")
        c.send(PING)

        assert head.startswith(b"HTTP/1.1 405 ")
        assert (await c.answer())[2] == b"OK"


async def test_a_request_for_an_upgrade_is_an_ordinary_one():
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"
    async with site() as it, client(it) as c:
        c.send(b"POST /pub?topic=a HTTP/1.1\r\nHost: x\r\n" + upgrade + b"Content-Length: 3\r\n\r\nabc")
        assert (await c.answer())[2] == b"OK"
        c.send(
            b"POST /pub?topic=b HTTP/1.1\r\nHost: x\r\n"
            + upgrade
            + b"Transfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await c.answer())[2] == b"OK"
        c.send(b"GET /ping HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n" + PING)
        assert [(await c.answer())[2] for _ in range(2)] == [b"OK", b"OK"]

    assert it.bodies == [("a", b"abc"), ("b", b"de")]


async def test_a_stream_is_chunked_and_keeps_its_place_in_the_order():
    async with site() as it, client(it) as c:
        c.send(PING + GET % b"/stream" + PING)
        bodies = [(await c.answer())[2] for _ in range(3)]

    assert bodies == [b"OK", b"x" * 15, b"OK"]


async def test_a_stream_goes_no_faster_than_its_reader():
    async with site() as it, client(it) as c:
        c.send(GET % b"/stream?count=100&size=100000")
        await asyncio.sleep(0.3)
        assert not it.stream_closed.is_set()
        assert len((await c.answer())[2]) == 10_000_000


async def test_a_stream_that_fails_is_seen_to_be_torn():
    async with site() as it, client(it) as c:
        c.send(GET % b"/stream?fail=1")
        with pytest.raises((ValueError, asyncio.IncompleteReadError, ConnectionError)):
            await c.answer()

    assert it.errors[0][0] == "GET /stream?fail=1"


async def test_an_error_in_a_route_is_500_and_reported():
    async with site() as it, client(it) as c:
        c.send(GET % b"/broken")
        status, _, body = await c.answer()

    assert (status, body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert it.errors[0][0] == "GET /broken"


async def test_every_request_is_logged_but_for_routes_that_opt_out():
    async with site() as it, client(it) as c:
        c.send(GET % b"/ping?x=1" + POST % (b"/pub?topic=a", 1, b"x") + GET % b"/nope")
        for _ in range(3):
            await c.answer()

    assert re.fullmatch(r"200 GET /ping\?x=1 \(127\.0\.0\.1:\d+\) [\d.]+(ns|µs|ms|s)", it.lines[0])
    assert it.lines[1].startswith("404 GET /nope (127.0.0.1:")
    assert len(it.lines) == 2


async def test_headers_are_found_whatever_their_case():
    async with site() as it, client(it) as c:
        for _ in range(2):
            c.send(b"GET /header HTTP/1.1\r\nhost: x\r\nx-sOME: thing\r\n\r\n")
            assert (await c.answer())[2] == b"thing"


async def test_tls_required_answers_all_requests_alike():
    async with site(table=TlsRequired(4152)) as it, client(it) as c:
        c.send(PING + POST % (b"/pub?topic=a", 1, b"x"))
        for _ in range(2):
            assert (await c.answer())[::2] == (403, b'{"message": "TLS_REQUIRED", "https_port": 4152}')


async def test_shutdown_lets_answers_finish_and_closes_the_idle():
    async with site() as it, client(it) as idle, client(it) as busy:
        idle.send(PING)
        await idle.answer()
        busy.send(GET % b"/slow")
        await until(lambda: it.gates)
        ending = asyncio.ensure_future(it.server.shutdown(10))
        assert await idle.rest() == b""
        it.gates[0].set()
        status, headers, _ = await busy.answer()

        assert (status, headers["connection"]) == (200, "close")
        await asyncio.wait_for(ending, 60)
        assert not it.server.connections
