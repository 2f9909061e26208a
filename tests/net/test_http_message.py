"""The sans-IO core of the HTTP client: any bytes, in any pieces."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.net.client.message import MAX_HEAD, AnswerParser, HttpAnswer, HttpFailed, HttpRequest, parse_url

ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "until the end": b"HTTP/1.0 200 OK\r\n\r\nhello",
}


def parse(pieces: list[bytes], *, method: str = "GET", max_answer: int = 1000) -> AnswerParser:
    parser = AnswerParser(method, max_answer=max_answer)
    for piece in pieces:
        parser.feed(piece)
    if not parser.complete:
        parser.end()
    return parser


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_an_answer_is_read_whole_and_byte_by_byte(answer: bytes) -> None:
    for pieces in ([answer], [bytes((byte,)) for byte in answer]):
        parser = parse(pieces)

        assert (parser.status, bytes(parser.body)) == (200, b"hello")


@pytest.mark.parametrize("name", ["length", "chunks", "interim"])
def test_bytes_behind_an_answer_are_not_part_of_it_and_end_the_connection(name: str) -> None:
    alone, followed = parse([ANSWERS[name]]), parse([ANSWERS[name] + b"HTTP/1.1 200"])

    assert bytes(followed.body) == b"hello"
    assert (alone.keep_alive, followed.keep_alive) == (True, False)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
)  # fmt: skip
def test_an_answer_without_a_body_is_complete_with_its_head(head: bytes) -> None:
    parser = AnswerParser()
    parser.feed(head)

    assert parser.complete
    assert parser.keep_alive


def test_the_answer_to_a_head_request_has_no_body() -> None:
    parser = AnswerParser("HEAD")
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")

    assert parser.complete


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "closed in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "closed in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "not the size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", "longer than its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000, "has no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer coding 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", "more than 1000 bytes"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001, "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "not a header"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "status 101 was not asked for"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD, "head of the answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD + b"\r\n\r\n", "head of the answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD, "head of the answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * MAX_HEAD, "trailers"),
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP answer"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "speaks TLS"),
    ],
)
def test_garbage_and_excess_are_refused_with_the_reason(answer: bytes, why: str) -> None:
    with pytest.raises(HttpFailed, match=why):
        parse([answer])


@pytest.mark.parametrize("body", [b"[" + b"[]," * 3_000_000 + b"[]]", b"[" + b"1," * 11_000_000 + b"1]"])
def test_json_of_more_values_than_any_daemon_has_is_refused_before_it_takes_memory(body: bytes) -> None:
    answer = HttpAnswer(parse_url("http://127.0.0.1:4151/stats"), 200, "OK", {}, body)

    with pytest.raises(HttpFailed, match=r"more than .* values"):
        answer.json()


pieces = st.lists(
    st.one_of(
        st.binary(max_size=50),
        st.sampled_from([b"HTTP/1.1 200 OK\r\n", b"\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n",
                         b"3\r\nabc\r\n", b"0\r\n\r\n"]),
    ),
    max_size=8,
)  # fmt: skip


def outcome(stream: list[bytes]) -> tuple[object, ...]:
    try:
        parser = parse(stream, max_answer=100)
    except HttpFailed as error:
        return (str(error),)
    return parser.status, bytes(parser.body), parser.keep_alive


@settings(max_examples=examples(300))
@given(pieces)
def test_any_bytes_give_the_same_answer_or_an_error_however_they_are_cut(stream: list[bytes]) -> None:
    with contextlib.suppress(HttpFailed):
        whole = outcome([b"".join(stream)])
        single = outcome([bytes((byte,)) for byte in b"".join(stream)])
        if len(whole) == 3:
            assert single == whole


def test_bytes_read_past_the_parser_count_like_fed_ones() -> None:
    parser = AnswerParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n")
    room = parser.direct
    parser.passed(5)
    after = parser.direct
    parser.feed(b"\r\n0\r\n\r\n")

    assert (room, after, parser.complete, parser.keep_alive) == (5, 0, True, True)


def test_a_request_names_its_host_and_the_length_of_its_body() -> None:
    sent = HttpRequest("POST", parse_url("http://h:4151/pub?topic=t"), {"X": "y"}, b"body").encode()

    assert sent == b"POST /pub?topic=t HTTP/1.1\r\nHost: h:4151\r\nX: y\r\nContent-Length: 4\r\n\r\nbody"


def test_the_usual_port_is_left_out_of_the_host() -> None:
    assert b"Host: [::1]\r\n" in HttpRequest("GET", parse_url("https://[::1]/")).encode()
    assert b"Host: [::1]:80\r\n" in HttpRequest("GET", parse_url("https://[::1]:80/")).encode()


def test_spaces_and_other_letters_are_escaped() -> None:
    assert parse_url("http://h/a b?x=ä%20").target == "/a%20b?x=%C3%A4%20"
    assert parse_url("http://bücher.example/").origin.host == "xn--bcher-kva.example"
