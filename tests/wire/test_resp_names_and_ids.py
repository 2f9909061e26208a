"""Ids of entries, keys as topic names, and entries as bodies: each way there and back."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing import names
from lapwing.wire.resp import bodies, ids, keys
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import GREATEST, GREATEST_PART, LEAST, NewId

INVALID = "ERR Invalid stream ID specified as stream command argument"


# --- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "entry"),
    [(b"5-7", (5, 7)), (b"5", (5, 0)), (b"0-0", LEAST), (b"007-+1", (7, 1)), (b"%d-%d" % GREATEST, GREATEST)],
)
def test_an_id_is_two_numbers(word, entry):
    assert ids.parse(word) == entry
    assert ids.parse(ids.encode(entry)) == entry


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"x",
        b"5-",
        b"-5",
        b"5--1",
        b"5-x",
        b"1-2-3",
        b"0x7-1",
        b"7-1 ",
        b"18446744073709551616",
        b"0" * 200,
        b"$",
        b"+",
        b"-",
        b">",
        b"*",
        b"5-*",
    ],
)
def test_anything_else_is_no_id(word):
    with pytest.raises(ErrorReply) as refused:
        ids.parse(word)

    assert refused.value.line == INVALID


def test_an_edge_of_a_range_without_its_number_takes_the_whole_millisecond():
    assert ids.parse_start(b"5") == (5, 0)
    assert ids.parse_end(b"5") == (5, GREATEST_PART)
    assert (ids.parse_start(b"-"), ids.parse_end(b"+")) == (LEAST, GREATEST)
    assert (ids.parse_start(b"+"), ids.parse_end(b"-")) == (GREATEST, LEAST)


def test_an_exclusive_edge_leaves_its_id_out():
    assert ids.parse_start(b"(5-7") == (5, 8)
    assert ids.parse_start(b"(5-%d" % GREATEST_PART) == (6, 0)
    assert ids.parse_end(b"(5-7") == (5, 6)
    assert ids.parse_end(b"(5-0") == (4, GREATEST_PART)


@pytest.mark.parametrize(
    ("parse", "word", "line"),
    [
        (ids.parse_start, b"(-", INVALID),
        (ids.parse_end, b"(+", INVALID),
        (ids.parse_start, b"(%d-%d" % GREATEST, "ERR invalid start ID for the interval"),
        (ids.parse_end, b"(0-0", "ERR invalid end ID for the interval"),
        (ids.parse_new, b"5-**", INVALID),
    ],
)
def test_an_id_in_the_wrong_place_is_named(parse, word, line):
    with pytest.raises(ErrorReply) as refused:
        parse(word)

    assert refused.value.line == line


def test_a_new_id_may_be_left_to_the_server():
    assert ids.parse_new(b"*") == NewId()
    assert ids.parse_new(b"5-*") == NewId(5)
    assert ids.parse_new(b"5") == NewId(5, 0)
    assert ids.parse_new(b"5-6") == NewId(5, 6)


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        (b"orders", "orders"),
        (b"orders:new", "orders_3a_new"),
        (b"a_b-c.d", "a_b-c.d"),
        (b"a_5f_b", "a_5f_5f_b"),
        (b"_3a:", "_5f_3a_3a_"),
        (b"{t}:x", "_7b_t_7d__3a_x"),
        (b"caf\xc3\xa9", "caf_c3__a9_"),
        (b"x#ephemeral", "x_23_ephemeral"),
        (b"_db3_x", "_5f_db3_x"),
        (b"_db16_x", "_db16_x"),
    ],
)
def test_a_key_is_a_topic_that_people_can_read(key, topic):
    assert keys.topic_of(key) == topic
    assert keys.key_of(topic) == (key, 0)


def test_databases_are_prefixes():
    assert keys.topic_of(b"a:b", 3) == "_db3_a_3a_b"
    assert keys.key_of("_db3_a_3a_b") == (b"a:b", 3)
    assert keys.key_of("_db16_x") == (b"_db16_x", 0)


@pytest.mark.parametrize("topic", ["a_41_b", "_db3_", "x#ephemeral", "a_5f_b"])
def test_a_topic_that_no_key_gives_has_no_key(topic):
    assert keys.key_of(topic) is None


def test_a_key_that_fits_no_name_has_no_topic():
    assert keys.topic_of(b"") is None
    assert keys.topic_of(b"x" * 65) is None
    assert keys.topic_of(b":" * 17) is None
    assert keys.topic_of(b"x" * 64, 1) is None
    assert keys.topic_of(b"x" * 64) == "x" * 64


some_keys = st.one_of(
    st.binary(min_size=1, max_size=20), st.text("_3af5:b.db1", min_size=1, max_size=30).map(str.encode)
)


@settings(max_examples=examples(500))
@given(some_keys, st.integers(0, 15))
@example(b"_3a_3a_:", 0)
def test_every_key_that_has_a_topic_comes_back_from_it(key, database):
    topic = keys.topic_of(key, database)

    if topic is not None:
        assert names.valid(topic)
        assert keys.key_of(topic) == (key, database)
    channel = keys.channel_of(key)
    if channel is not None:
        assert keys.group_of(channel) == key


# --- bodies --------------------------------------------------------------------------------------------------------

PAIRS = b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"


def test_one_pair_of_the_body_field_is_the_plain_value():
    assert bodies.to_body([b"data", b"hello"]) == b"hello"
    assert bodies.to_pairs(b"hello") == [b"data", b"hello"]
    assert bodies.to_body([b"__data__", b"hello"], b"__data__") == b"hello"


def test_other_entries_are_the_array_of_their_words():
    assert bodies.to_body([b"a", b"b"]) == PAIRS
    assert bodies.to_pairs(PAIRS) == [b"a", b"b"]
    assert bodies.to_body([b"data", b""]) == b"*2\r\n$4\r\ndata\r\n$0\r\n\r\n"


def test_a_body_of_an_nsq_producer_is_one_pair_unless_it_is_pairs():
    for body in (b"*2\r\n", PAIRS + b" ", PAIRS[:-1], b"*3" + PAIRS[2:] + b"$1\r\nc\r\n", b"", b"{}"):
        assert bodies.to_pairs(body) == [b"data", body]


def test_fields_as_json_are_an_object_of_strings():
    body = bodies.to_body([b"name", b"Sara", b"caf\xc3\xa9", b"1"], as_json=True)

    assert body == '{"name":"Sara","café":"1"}'.encode()
    assert bodies.to_pairs(body, as_json=True) == [b"name", b"Sara", b"caf\xc3\xa9", b"1"]


@pytest.mark.parametrize("words", [[b"a", b"\xff"], [b"a", b"1", b"a", b"2"]])
def test_fields_that_json_cannot_keep_are_kept_as_pairs(words):
    assert bodies.to_body(words, as_json=True).startswith(b"*")


@pytest.mark.parametrize("body", [b'{"a":1}', b'{"a":"1","a":"2"}', b"{}", b'{"a":"1"', b'[["a","b"]]', b'{"a":["b"]}'])
def test_json_that_is_no_object_of_strings_is_a_plain_body(body):
    assert bodies.to_pairs(body, as_json=True) == [b"data", body]


values = st.one_of(
    st.binary(max_size=9),
    st.sampled_from([b"data", b"", PAIRS, b'{"a":"b"}', b'{"data":"x"}']),
    st.text(max_size=5).map(str.encode),
)


@settings(max_examples=examples(500))
@given(st.lists(values, min_size=1, max_size=4), st.booleans(), st.sampled_from([b"data", b"x", b""]))
def test_an_entry_comes_back_exactly(words, as_json, field):
    entry = [*words, *reversed(words)]
    body = bodies.to_body(entry, field, as_json=as_json)

    assert body
    assert bodies.to_pairs(body, field, as_json=as_json) == entry


@settings(max_examples=examples(200))
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=4))
def test_an_object_of_an_nsq_producer_is_shown_as_pairs(fields):
    body = json.dumps(fields).encode()

    assert bodies.to_pairs(body, as_json=True) == [word.encode() for pair in fields.items() for word in pair]


def test_pairs_and_fields_are_those_of_entries_only() -> None:
    body = bodies.to_body([b"a", b"1", b"b", b"\xff", b"a", b"2"])

    assert bodies.pairs_of(body) == [(b"a", b"1"), (b"b", b"\xff"), (b"a", b"2")]
    assert bodies.fields_of(body) == {"a": ["1", "2"], "b": "\\xff"}
    for plain in (b"hello", b"*2\r\n$1\r\na\r\n", body + b"x", b'{"a": "1"}', b"*"):
        assert bodies.pairs_of(plain) == []
        assert bodies.fields_of(plain) == {}
