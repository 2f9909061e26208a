"""Headers: framed beside plain frames, found again, and put into frames of type 3."""

import json
import struct
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import BASE, DRESSES, ODD_DRESSES, both

from example_counts import examples
from lapwing.errors import PublishRefused
from lapwing.kernel import (
    BAD_COUNT,
    BAD_HEADERS,
    BAD_SIZE,
    HEADERS_TOO_BIG,
    SHORT,
    SURPLUS,
    TOO_BIG,
    pure,
    strip_headers,
)

NOW = 0x0102030405060708


def item(headers: bytes, body: bytes) -> bytes:
    """One message of an HMPUB."""
    return struct.pack(">iI", 4 + len(headers) + len(body), len(headers)) + headers + body


def hmpub(*items: bytes, count: int | None = None) -> bytes:
    """The body of an HMPUB, which may lie about its count."""
    return struct.pack(">i", len(items) if count is None else count) + b"".join(items)


def headed(headers: bytes, body: bytes, identity: int, *, attempts: int = 1) -> bytes:
    """A frame of type 3, as the protocol draws it."""
    head = struct.pack(">IIqH16sI", 34 + len(headers) + len(body), 3, NOW, attempts, b"%016x" % identity, len(headers))
    return head + headers + body


def frame(kernel: ModuleType, *items: bytes, largest: int = 100, longest: int = 1000) -> tuple[bytes, bytes, int]:
    found: tuple[bytes, bytes, int] = kernel.frame_headed(hmpub(*items), BASE + 5, NOW, 10, largest, longest)
    return found


@pytest.mark.parametrize("dress", DRESSES)
def test_a_batch_is_framed_plain_with_its_headers_in_rows(kernel: ModuleType, dress: Any) -> None:
    body = hmpub(item(b'{"a":"1"}', b"one"), item(b"", b"two"), item(b' { "b" : "\xc3\xa4", "c":"" }\n', b"three"))
    frames, rows, count = kernel.frame_headed(dress(body), BASE + 5, NOW, 10, 100, 100)

    assert count == 3
    assert frames == kernel.frame_bodies([b"one", b"two", b"three"], BASE + 5, NOW)
    assert rows == b'[5,0,{"a":"1"}],[7,0,{ "b" : "\xc3\xa4", "c":"" }]'
    assert json.loads(b"[" + rows + b"]") == [[5, 0, {"a": "1"}], [7, 0, {"b": "ä", "c": ""}]]


def test_an_empty_object_is_no_headers(kernel: ModuleType) -> None:
    assert frame(kernel, item(b"{}", b"x"), item(b" { } ", b"y"))[1] == b""


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"1"}', b'{"a":"\\u00e4\\n\\"\\\\\\/\\b\\f\\r\\t"}', b'{"x-1.y_z!#$%&\'*+^`|~":""}',
        b'\t{\r"a"\n:"1" , "b":"2"}',
        b'{"' + b"n" * 64 + b'":"v"}', b'{"message-id":"' + b"i" * 128 + b'"}', '{"a":"\U0001f600"}'.encode(),
        *(b'{"a":"%b\\n%b"}' % (b"x" * number, b"y" * (40 - number)) for number in range(40)),
        *(b'{"a":"%b\xc3\xa4%b"}' % (b"x" * number, b"y" * (40 - number)) for number in range(40)),
    ],
)  # fmt: skip
def test_lawful_headers(kernel: ModuleType, text: bytes) -> None:
    assert kernel.count_headers(text) == len(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"x", b"[]", b"{", b"}", b'{"a"}', b'{"a":1}', b'{"a":null}', b'{"a":"1",}', b'{,"a":"1"}', b'{"a":"1"}x',
        b'{"A":"1"}', b'{"":"1"}', b'{"a b":"1"}', b'{"\\u0061":"1"}', '{"ä":"1"}'.encode(),
        b'{"a":"\n"}', b'{"a":"\\x"}',
        b'{"a":"\\u12"}', b'{"a":"\\u12g4"}', b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}',
        b'{"a":"1" "b":"2"}', b'{"a":{"b":"c"}}',
        b'{"' + b"n" * 65 + b'":"v"}', b'{"message-id":"' + b"i" * 129 + b'"}', b'{"a":"1"}{}',
        b'{"a":"', b'{"a":"\\', b"\x00",
        *(b'{"a":"%b\x1f%b"}' % (b"x" * number, b"y" * (40 - number)) for number in range(40)),
        *(b'{"a":"%b\xff%b"}' % (b"x" * number, b"y" * (40 - number)) for number in range(40)),
        *(b'{"a":"' + b"x" * number for number in range(40)),
    ],
)  # fmt: skip
def test_headers_that_are_not_lawful(kernel: ModuleType, text: bytes) -> None:
    assert kernel.count_headers(text) == -1
    if text:
        with pytest.raises(PublishRefused) as refused:
            frame(kernel, item(b'{"a":"1"}', b"x"), item(text, b"y"))
        assert (refused.value.code, refused.value.index) == (BAD_HEADERS, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\x00\x00", SHORT),
        (hmpub(count=0), BAD_COUNT),
        (hmpub(item(b"", b"x"), count=11), BAD_COUNT),
        (hmpub(item(b"", b"x"), count=2), SHORT),
        (hmpub(struct.pack(">i", 3) + b"abcd"), BAD_SIZE),
        (hmpub(struct.pack(">iI", 5, 1) + b"abcd"), BAD_SIZE),
        (hmpub(item(b"{}", b"")), BAD_SIZE),
        (hmpub(item(b"{}", b"x" * 11)), TOO_BIG),
        (hmpub(item(b"{" + b" " * 30 + b"}", b"x")), HEADERS_TOO_BIG),
        (hmpub(item(b"{}", b"x")[:-1]), SHORT),
        (hmpub(item(b"{}", b"x")) + b"y", SURPLUS),
    ],
)
def test_a_bad_batch_is_refused(kernel: ModuleType, body: bytes, code: int) -> None:
    with pytest.raises(PublishRefused) as refused:
        kernel.frame_headed(body, BASE, NOW, 10, 10, 20)
    assert refused.value.code == code


def test_a_text_ends_where_its_length_says_though_the_body_may_look_like_more(kernel: ModuleType) -> None:
    for number in range(40):
        text = b'{"a":"' + b"x" * number
        with pytest.raises(PublishRefused) as refused:
            frame(kernel, item(text, b'"}' + b"y" * 40))
        assert refused.value.code == BAD_HEADERS
        assert frame(kernel, item(text + b'"}', b'"}' + b"y" * 40))[1] == b"[5,0," + text + b'"}]'


def test_sequences_are_counted_in_decimal(kernel: ModuleType) -> None:
    for first in (0, 9, 99, 98_999, 2**54 - 2):
        rows = kernel.frame_headed(hmpub(*[item(b'{"a":"1"}', b"x")] * 4), BASE + first, NOW, 10, 100, 100)[1]
        expected = [(first + number) % 2**54 for number in range(4)]
        assert rows == b",".join(b'[%d,0,{"a":"1"}]' % sequence for sequence in expected)


def test_frames_get_the_headers_of_their_rows(kernel: ModuleType) -> None:
    frames, rows, _ = frame(kernel, item(b'{"a":"}]"}', b"one"), item(b"", b"two"), item(b'{"b":"\\"}"}', b"three"))

    joined = headed(b'{"a":"}]"}', b"one", BASE + 5) + kernel.frame_one(b"two", BASE + 6, NOW)
    assert kernel.with_headers(frames, rows) == joined + headed(b'{"b":"\\"}"}', b"three", BASE + 7)
    again = kernel.with_attempts(kernel.frame_one(b"three", BASE + 7, NOW), 9)
    assert kernel.with_headers(again, rows) == headed(b'{"b":"\\"}"}', b"three", BASE + 7, attempts=9)
    assert kernel.with_headers(kernel.frame_one(b"x", BASE + 9, NOW), rows) == kernel.frame_one(b"x", BASE + 9, NOW)
    assert kernel.with_headers(frames, b"") == frames
    assert kernel.with_headers(frames, b"[5,7,{}]") == frames


def test_a_frame_with_headers_is_decoded_and_stripped(kernel: ModuleType) -> None:
    two = headed(b'{"a":"1"}', b"one", BASE + 5) + headed(b'{"b":"2"}', b"", BASE + 6, attempts=300)
    plain = kernel.frame_one(b"x", BASE, NOW)

    messages, end = kernel.decode_headed(b"??" + two + plain, 2, 1000)

    assert end == 2 + len(two)
    assert messages[0] == (NOW, 1, b"%016x" % (BASE + 5), b"one", b'{"a":"1"}')
    assert messages[1] == (NOW, 300, b"%016x" % (BASE + 6), b"", b'{"b":"2"}')
    assert kernel.decode_headed(plain, 0, 1000) == ([], 0)
    assert kernel.decode_headed(two[:40], 0, 1000) == ([], 0)
    assert kernel.fins_of(two + plain, 0, 1000)[1] == 3
    first = headed(b'{"a":"1"}', b"one", BASE + 5)
    assert strip_headers(first) == (kernel.frame_one(b"one", BASE + 5, NOW), b'{"a":"1"}')
    assert strip_headers(plain) == (plain, b"")
    with pytest.raises(ValueError, match="no whole message"):
        strip_headers(first[:-1])


def test_rows_are_found_by_their_sequence(kernel: ModuleType) -> None:
    rows = b'[3,0,{"a":"]["}],[5,77,{}],[9,0,{"b":"\\\\"}]'

    assert kernel.find_rows(rows, 0, 100) == [(3, 0, b'{"a":"]["}'), (5, 77, b"{}"), (9, 0, b'{"b":"\\\\"}')]
    assert kernel.find_rows(b"[1,9223372036854775807,{}]", 0, 9) == [(1, 2**63 - 1, b"{}")]
    assert kernel.find_rows(rows, 4, 9) == [(5, 77, b"{}")]
    sequences, places = kernel.row_places(rows)
    assert list(sequences) == [3, 5, 9]
    assert rows[places[1] : places[2] - 1] == b"[5,77,{}]"
    assert places[-1] == len(rows) + 1


@pytest.mark.parametrize(
    "rows", [b"x", b"[1,2]", b"[1,2,{}", b"[1,2,{]", b'[1,2,{"]', b"[-1,2,{}]", b"[01,2,{}]", b"[1,2,{}],,",
             b"[1,9223372036854775808,{}]"]
)
def test_what_is_no_row_is_refused(kernel: ModuleType, rows: bytes) -> None:
    with pytest.raises(ValueError):
        kernel.find_rows(rows, 0, 10)


def test_message_ids_are_those_of_the_last_such_header(kernel: ModuleType) -> None:
    rows = (
        b'[1,0,{"message-id":"one"}],[2,0,{"a":"message-id"}],[3,0,{"message-id":"x","b":"","message-id":"\\u0061\\"b"}],'
        b'[4,0,{"b":"message-id","message-id":""}]'
    )

    assert kernel.message_ids(rows) == [(1, b"one"), (3, b'a"b')]


def test_values_are_those_of_the_header_that_is_asked_for(kernel: ModuleType) -> None:
    rows = b'[1,0,{"a":"key","key":"one"}],[2,5,{"keys":"no"}],[3,0,{"key":""}],[7,0,{"key":"\\u00fc"}]'

    assert kernel.header_values(rows, b"key") == [(1, b"one"), (7, "ü".encode())]
    assert kernel.header_column(rows, b"key", 1, 4) == ([b"one", None, None, None], 3)
    assert kernel.header_column(rows, b"key", 5, 3) == ([None, None, "ü".encode()], 2)
    assert kernel.header_column(b"", b"key", 5, 2) == ([None, None], 0)


def test_a_place_is_found_among_rising_numbers(kernel: ModuleType) -> None:
    numbers = array("q", [2, 4, 4, 1 << 60])

    assert [kernel.place_among(numbers, each, 0) for each in (-1, 2, 3, 4, 5)] == [0, 0, 1, 1, 3]
    assert [kernel.place_among(numbers, each, 0) for each in (1 << 60, 1 << 62)] == [3, 4]
    assert kernel.place_among(numbers, 2, 3) == 3
    assert kernel.place_among(array("q"), 2, 0) == 0


texts = st.one_of(
    st.dictionaries(st.sampled_from(["a", "b-c", "message-id", "A"]), st.text(max_size=40), max_size=3).map(
        lambda found: json.dumps(found, ensure_ascii=len(found) % 2 == 0).encode("utf-8", "surrogatepass")
    ),
    st.text('{}":,\\u0a \n', max_size=12).map(str.encode),
    st.binary(max_size=12),
)
batches = st.lists(st.tuples(texts, st.binary(max_size=9)), max_size=4).map(
    lambda pairs: hmpub(*(item(text, body) for text, body in pairs))
)
torn = st.builds(
    lambda data, cut, junk: data[: len(data) - cut] + junk,
    batches,
    st.integers(0, 5),
    st.one_of(st.just(b""), st.binary(max_size=5)),
)
rows = st.one_of(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), texts), max_size=4).map(
        lambda found: b",".join(b"[%d,%d,%b]" % each for each in found)
    ),
    st.binary(max_size=20),
)
frames = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9)), max_size=5).map(
    lambda found: b"".join(pure.frame_one(body, BASE + sequence, 1) for sequence, body in found)
)


@settings(max_examples=examples(200))
@given(body=torn, first=st.integers(0, 2**64), dress=st.sampled_from(DRESSES + ODD_DRESSES))
def test_the_twins_frame_the_same_headers(body: bytes, first: int, dress: Any) -> None:
    both("frame_headed", dress(body), first, 1, 10, 20, 120)


@settings(max_examples=examples(200))
@given(text=texts, dress=st.sampled_from(DRESSES + ODD_DRESSES))
def test_the_twins_agree_on_what_is_lawful(text: bytes, dress: Any) -> None:
    both("count_headers", dress(text))


@settings(max_examples=examples(200))
@given(found=rows, data=st.one_of(frames, st.binary(max_size=60)), start=st.integers(-1, 9), stop=st.integers(-1, 9))
def test_the_twins_read_the_same_rows(found: bytes, data: bytes, start: int, stop: int) -> None:
    both("find_rows", found, start, stop)
    both("row_places", found)
    both("message_ids", found)
    both("header_values", found, b"b-c")
    both("header_column", found, b"b-c", start, 4)
    answer = both("with_headers", data, found)
    if answer[0] == "gave":
        both("decode_headed", answer[1], max(start, 0), len(answer[1]))
        both("decode_headed", answer[1][: start * 9], 0, stop * 30)
