"""Requests of Redis clients: however they are cut, the same words, the same errors, and no memory beyond the limits."""

from dataclasses import dataclass, field

import pytest
from feeding import WAYS, cut
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.errors import HangUp, ProtocolError
from lapwing.wire.resp import inline
from lapwing.wire.resp.requests import LONGEST_LINE, Oversized, RequestLimits, RequestParser, XaddRun, split_run

LIMITS = RequestLimits(max_request=2000, max_entry=200)
NEXT = b"*1\r\n$4\r\nPING\r\n"


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@dataclass
class Heard:
    requests: list[list[bytes] | Oversized] = field(default_factory=list)
    error: str | None = None
    hung_up: bool = False


def hear(pieces: list[bytes], parser: RequestParser | None = None) -> Heard:
    """Return what the parser makes of the pieces, runs of XADDs one by one."""
    parser = parser or RequestParser(LIMITS)
    heard = Heard()
    try:
        for piece in pieces:
            parser.receive(piece)
            for each in iter(parser.next_request, None):
                if isinstance(each, XaddRun):
                    heard.requests.extend(split_run(each.block))
                else:
                    heard.requests.append(each)
    except ProtocolError as error:
        heard.error = str(error)
    except HangUp:
        heard.hung_up = True
    return heard


# --- whole, in pieces, and with the next one behind it -------------------------------------------------------------

WORDS = [
    [b"PING"],
    [b"ECHO", b"a\r\nb"],
    [b"ECHO", b""],
    [b"XADD", b"k", b"*", b"f", b"v"],
    [b"XADD", b"k", b"MAXLEN", b"5", b"*", b"f", b"v"],
    [b"XACK", b"k", b"g", *[b"1700000000000-%d" % number for number in range(20)]],
    [b"XADD", b"k", b"*", b"f", b"v" * 300],
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", WORDS, ids=lambda words: b"-".join(words[:3])[:20].decode())
def test_a_request_is_heard_however_it_is_cut(words, way):
    assert hear(way(request(*words))).requests == [words]
    assert hear(way(request(*words) + NEXT)).requests == [words, [b"PING"]]
    assert hear(way(b"\r\n*0\r\n*-1\r\n" + request(*words) + b"PING\r\n")).requests == [words, [b"PING"]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"PING\n", [b"PING"]),
        (b"  ECHO \t x  \r\n", [b"ECHO", b"x"]),
        (b'ECHO "a b\\x41\\n\\"\\q" \'it\\\'s "\'\n', [b"ECHO", b'a bA\n"q', b"it's \""]),
        (b'ECHO pre"fix"\n', [b"ECHO", b"prefix"]),
        (b"ECHO \"\" ''\n", [b"ECHO", b"", b""]),
        (b'ECHO "\\xzz"\n', [b"ECHO", b"xzz"]),
    ],
)
def test_an_inline_command_is_heard_however_it_is_cut(line, words, way):
    assert hear(way(line)).requests == [words]
    assert hear(way(line + NEXT)).requests == [words, [b"PING"]]


# --- garbage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"*1\r\n\r\n", "expected '$', got ''"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*2\r\n$4\r\nECHO\r\n$-1\r\n", "invalid bulk length"),
        (b"*2\r\n$4\r\nECHO\r\n$536870913\r\n", "invalid bulk length"),
        (b'ECHO "abc\r\n', "unbalanced quotes in request"),
        (b'ECHO "abc"d\r\n', "unbalanced quotes in request"),
        (b"ECHO 'abc\n", "unbalanced quotes in request"),
    ],
)
def test_garbage_is_named_after_what_came_before_it(data, what, way):
    heard = hear(way(NEXT + data + NEXT))

    assert heard.requests == [[b"PING"]]
    assert heard.error == f"ERR Protocol error: {what}"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"A" * (LONGEST_LINE + 2), "too big inline request"),
        (b"*" + b"1" * (LONGEST_LINE + 2), "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * (LONGEST_LINE + 2), "too big bulk count string"),
    ],
)
def test_a_line_without_an_end_is_not_gathered_for_ever(data, what):
    for pieces in ([data], [data[at : at + 1000] for at in range(0, len(data), 1000)]):
        assert hear(pieces).error == f"ERR Protocol error: {what}"


def test_nothing_is_understood_after_garbage():
    parser = RequestParser(LIMITS)
    hear([b"*x\r\n"], parser)

    assert hear([NEXT], parser) == Heard()
    assert parser.buffered == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("data", [b"POST / HTTP/1.1\r\n", b"Host: x\r\n", request(b"post", b"/")])
def test_a_browser_is_hung_up_on(data, way):
    heard = hear(way(NEXT + data))

    assert heard.requests == [[b"PING"]]
    assert heard.hung_up


# --- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_request_beyond_the_limit_is_skipped_and_the_next_one_heard(way):
    big = request(b"XADD", b"k", b"*", b"f", b"v" * 3000)

    assert hear(way(big + NEXT)).requests == [Oversized(b"XADD"), [b"PING"]]
    assert hear(way(request(b"v" * 3000, b"k") + NEXT)).requests == [Oversized(b""), [b"PING"]]


def test_many_small_words_count_with_what_they_take_in_memory():
    assert hear([request(b"XACK", b"k", b"g", *[b"1"] * 500)]).requests == [Oversized(b"XACK")]


@pytest.mark.parametrize("size", [3000, 300_000_000])
def test_what_is_skipped_is_never_kept(size):
    parser = RequestParser(LIMITS)
    hear([b"*5\r\n$4\r\nXADD\r\n$1\r\nk\r\n$1\r\n*\r\n$1\r\nf\r\n$%d\r\n" % size], parser)
    kept = []
    for _ in range(50):
        hear([b"v" * 50], parser)
        kept.append(parser.buffered)

    assert max(kept) - min(kept) < 50


def test_a_lying_number_of_words_takes_no_memory():
    parser = RequestParser(LIMITS)
    hear([b"*2147483647\r\n$1\r\na\r\n"], parser)

    assert parser.buffered < 200


@pytest.mark.parametrize("way", WAYS)
def test_before_authentication_requests_are_short(way):
    def stranger() -> RequestParser:
        return RequestParser(LIMITS, authenticated=False)

    assert hear(way(request(*[b"a"] * 10)), stranger()).requests == [[b"a"] * 10]
    assert hear(way(b"*11\r\n"), stranger()).error == "ERR Protocol error: unauthenticated multibulk length"
    assert hear(way(b"*1\r\n$16385\r\n"), stranger()).error == "ERR Protocol error: unauthenticated bulk length"


# --- runs of XADDs -------------------------------------------------------------------------------------------------


def test_xadds_to_one_key_come_as_one_run():
    parser = RequestParser(LIMITS)
    adds = [request(b"XADD", b"k", b"*", b"f", b"%d" % number) for number in range(5)]
    parser.receive(b"".join(adds) + request(b"XADD", b"other", b"*", b"f", b"v") + NEXT)

    assert list(iter(parser.next_request, None)) == [
        XaddRun(b"k", 5, b"".join(adds)),
        XaddRun(b"other", 1, request(b"XADD", b"other", b"*", b"f", b"v")),
        [b"PING"],
    ]


def test_a_caller_may_leave_and_come_back():
    parser = RequestParser(LIMITS)
    parser.receive(NEXT + request(b"ECHO", b"x") + NEXT[:5])
    first = parser.next_request()
    parser.receive(NEXT[5:])

    assert [first, *iter(parser.next_request, None)] == [[b"PING"], [b"ECHO", b"x"], [b"PING"]]


# --- anything at all -----------------------------------------------------------------------------------------------

words = st.one_of(st.sampled_from([b"XADD", b"k", b"*", b"f", b"PING", b""]), st.binary(max_size=250))
pieces = st.one_of(
    st.lists(words, min_size=1, max_size=6).map(lambda some: request(*some)),
    st.sampled_from(
        [b"PING\r\n", b'ECHO "a', b"*", b"*2\r\n", b"$3\r\n", b"\r\n", b"*-1\r\n", b"$", b"*1\r\n$9999\r\n"]
    ),
    st.binary(max_size=8),
)
talks = st.lists(pieces, max_size=8).map(b"".join)


@settings(max_examples=examples(500))
@given(talks, st.lists(st.integers(0, 10_000), max_size=20))
def test_how_a_talk_is_cut_never_changes_what_is_heard(talk, places):
    assert hear(cut(talk, places)) == hear([talk])


@settings(max_examples=examples(300))
@given(st.binary(max_size=40))
def test_any_line_is_words_or_unbalanced(line):
    found = inline.split(line)

    assert found is None or all(isinstance(word, bytes) for word in found)


# --- requests of very many words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "oversized"), [(50_000, False), (90_000, True)])
def test_the_words_of_a_long_request_are_not_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch, count: int, oversized: bool
) -> None:
    """Else a piece of it takes so long that everybody waits."""
    lines: list[str] = []
    plain = RequestParser._line

    def noting(self: RequestParser, too_long: str) -> bytes | None:
        lines.append(too_long)
        return plain(self, too_long)

    monkeypatch.setattr(RequestParser, "_line", noting)
    words = [b"XACK", b"k", b"g", *[b"1700000000000-%d" % number for number in range(count)]]
    data = request(*words) + NEXT
    pieces = cut(data, range(256 * 1024, len(data), 256 * 1024))

    heard = hear(pieces, RequestParser(RequestLimits(max_request=5_000_000)))

    assert heard.requests == [Oversized(b"XACK") if oversized else words, [b"PING"]]
    assert len(lines) <= 3 * len(pieces)
