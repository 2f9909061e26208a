"""However the bytes of requests are cut, and whatever was asked before, the answers are the same; no bytes break it."""

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.net.server import answers
from lapwing.net.server.answers import Later
from lapwing.net.server.http import HttpLimits, HttpServer
from lapwing.net.server.routes import Route, Router

REQUESTS = [
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\nGET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
    b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n\r\n\r\nx",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\nhello, world",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0005\r\n\r\n12345",
    b"POST /echo?a=2 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc",
    b"POST /echo?a=3 HTTP/1.1\r\nhost: x\r\nCONTENT-LENGTH: 3\r\n\r\nabc",
    b"POST /echo?a=4 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
    b"POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nz",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi",
]
LAST = [
    b"",
    b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /ping HTTP/1.0\r\n\r\n",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    b"POST /echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
    b"garbage\r\n\r\n",
    b"GET /ping HTTP/1.1\r\n\r\n",
]


class Transport:
    """Takes what is written, and knows nothing of sockets."""

    def __init__(self):
        self.written = b""
        self.closed = False

    def get_extra_info(self, name):
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high):
        pass

    def write(self, data):
        self.written += data

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.closed = True

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = True

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def server():
    return HttpServer(
        Router(
            [
                Route("GET", "/ping", lambda request: answers.plain("OK")),
                Route("POST", "/echo", echo, max_body=100, too_big=answers.failure(413, "TOO_BIG")),
                Route("POST", "/later", later),
            ]
        ),
        limits=HttpLimits(head_bytes=4000),
    )


def echo(request):
    return answers.text(f"{request.query.get('a')}:{request.body.decode('latin-1')}")


def later(request):
    answer = Later()
    asyncio.get_running_loop().call_soon(answer.complete, answers.text("later"))
    return answer


async def talk(serving, pieces):
    transport = Transport()
    connection = serving.protocol()
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    for _ in range(3):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return undated(transport.written), transport.closed


def undated(data):
    return b"\r\n".join(line for line in data.split(b"\r\n") if not line.startswith(b"Date: "))


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges) if stop > start]


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(REQUESTS), max_size=6), st.sampled_from(LAST), st.lists(st.integers(0, 2000), max_size=8)
)
def test_the_answers_do_not_depend_on_how_the_bytes_arrive_or_what_came_before(requests, last, places):
    data = b"".join(requests) + last

    async def both():
        bytewise = await talk(server(), [data[at : at + 1] for at in range(len(data))])
        serving = server()
        for request in REQUESTS:
            await talk(serving, [request])
        return bytewise, await talk(serving, cut(data, places))

    bytewise, warm = asyncio.run(both())
    assert warm == bytewise


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([*REQUESTS, *LAST]),
            st.sampled_from(
                [b"\r\n", b"\r\n\r\n", b"POST /echo HTTP/1.1\r\n", b"Content-Length: ", b"Host: x\r\n", b"7"]
            ),
        ),
        max_size=12,
    )
)
def test_no_bytes_at_all_break_the_server(pieces):
    asyncio.run(talk(server(), pieces))
