"""Blocks of the range reader as Arrow columns, and Arrow rows as the bodies of MPUBs."""

import datetime
import io
import json
import os
import struct
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing import kernel
from lapwing.kernel import pure
from lapwing.spark.sink.batches import BadRow, batches
from lapwing.spark.source import blocks
from lapwing.spark.source.blocks import (
    _PIECE,
    BARE,
    HEAD,
    PLACE,
    PLACED,
    QUARANTINED,
    BadBlock,
    Elsewhere,
    RangeBlock,
    arrow_schema,
    join,
    read_blocks,
    to_batch,
)

ALL = ["topic", "node", "sequence", "id", "timestamp", "attempts", "body", "headers"]
STAMP = 1_700_000_000_123_456_789


@pytest.fixture(autouse=True, scope="module", params=["as they come", "together"])
def way(request):
    """Both ways to cut columns out of frames: as they come, and as a small block; by either kernel."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as they come":
            patch.setattr(blocks, "SMALL", 0)
        yield


@pytest.fixture(autouse=True, scope="module", params=["compiled", "pure"])
def cutter(request):
    """The kernel that cuts."""
    if request.param == "compiled" and not kernel.COMPILED:
        pytest.skip("the kernel is not compiled here")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(blocks, "kernel", pure)
        yield


class Sent(NamedTuple):
    """Messages just as the broker has them."""

    first: int
    count: int
    frames: bytes
    extras: bytes = b""


def block(*bodies, first=5, extras=b""):
    frames = kernel.frame_bodies(bodies, (7 << 54) + first, STAMP)
    return Sent(first, len(bodies), bytes(frames), extras)


def encoded(found):
    """As the broker sends them."""
    return HEAD.pack(BARE, found.count, found.first, len(found.frames), len(found.extras)) + found.frames + found.extras


def blocks_of(data):
    """What an answer of these bytes holds."""
    stream = io.BytesIO(data)

    def fill(view):
        if stream.readinto(view) < len(view):
            raise BadBlock("the answer ended")

    return list(read_blocks(stream.read, fill))


def batch_of(found, columns, topic="t"):
    """A block sent, received and cut."""
    (received,) = blocks_of(encoded(found))
    return to_batch(received, topic, 7, arrow_schema(columns))


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20), st.integers(0, 2**40))
def test_every_column_of_every_message(bodies, first):
    rows = batch_of(block(*bodies, first=first), ALL, "orders").to_pylist()

    assert [row["body"] for row in rows] == bodies
    assert [row["sequence"] for row in rows] == list(range(first, first + len(bodies)))
    assert [row["id"] for row in rows] == [f"{(7 << 54) + first + n:016x}" for n in range(len(bodies))]
    assert {(row["topic"], row["node"], row["attempts"]) for row in rows} == {("orders", 7, 1)}
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.UTC)
    assert {row["timestamp"] for row in rows} == {moment}


def test_headers_stand_at_their_messages():
    extras = json.dumps([[6, {"k": "v"}]]).encode()
    rows = batch_of(block(b"x", b"y", b"z", extras=extras), ["headers"]).to_pylist()

    assert [row["headers"] for row in rows] == [[], [("k", "v")], []]


def test_half_of_a_surrogate_pair_in_a_header_is_replaced():
    extras = rb'[[5,{"a":"\ud800","b":"\ud83d\ude00"}]]'
    rows = batch_of(block(b"x", b"y", extras=extras), ["headers"]).to_pylist()

    assert [dict(row["headers"]) for row in rows] == [{"a": "?", "b": "\U0001f600"}, {}]



def test_fields_of_redis_entries_are_a_map():
    pairs = b"*4\r\n$4\r\nname\r\n$4\r\nSara\r\n$1\r\na\r\n$1\r\n\xff\r\n"
    found = block(pairs, b"plain", b'{"name": "Ann"}', b'{"n": 1}', b"*2\r\nnot pairs")
    rows = batch_of(found, ["sequence", "fields"]).to_pylist()

    assert [row["fields"] for row in rows] == [[("name", "Sara"), ("a", "\ufffd")], None, [("name", "Ann")], None, None]


def test_only_the_columns_asked_for_in_their_order():
    found = batch_of(block(b"x"), ["sequence", "topic"])
    assert found.to_pylist() == [{"sequence": 5, "topic": "t"}]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5), max_size=4))
def test_blocks_follow_one_another(groups):
    sent = [block(*bodies, first=number * 10) for number, bodies in enumerate(groups)]

    found = blocks_of(b"".join(encoded(each) for each in sent))

    assert [(each.first, each.count) for each in found] == [(each.first, each.count) for each in sent]
    rows = [to_batch(each, "t", 7, arrow_schema(["body"])).column(0).to_pylist() for each in found]
    assert rows == groups


def test_messages_longer_than_a_piece_are_cut_too():
    sizes = (10, _PIECE - 34, _PIECE, 3 * _PIECE, 7, 9 * _PIECE)
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]

    assert batch_of(block(*bodies), ["body"]).column(0).to_pylist() == bodies


@given(st.data())
def test_whatever_pieces_cut_in_two_the_columns_are_whole(data):
    bodies = data.draw(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=30))
    with mock.patch("lapwing.spark.source.blocks._PIECE", data.draw(st.integers(1, 300))):
        rows = batch_of(block(*bodies), ["body", "id"]).to_pylist()

    assert [row["body"] for row in rows] == bodies
    assert [row["id"] for row in rows] == [f"{(7 << 54) + 5 + n:016x}" for n in range(len(bodies))]


def test_a_quarantined_range_says_how_much_and_why():
    (found,) = blocks_of(HEAD.pack(QUARANTINED, 12, 5, 0, 3) + b"why")
    assert (found.first, found.count, found.quarantined) == (5, 12, "why")


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_believed(data):
    try:
        for found in blocks_of(BARE + data):
            to_batch(found, "t", 7, arrow_schema(ALL[:-1]))
    except (BadBlock, struct.error):
        return


def test_frames_that_are_not_whole_are_refused():
    good = block(b"hello", b"world")
    for frames in (good.frames[:-1], good.frames[:39], good.frames + b"x", good.frames[:39] * 3, b""):
        with pytest.raises(BadBlock):
            batch_of(Sent(5, 2, frames), ["body"])


@pytest.mark.parametrize(("count", "size"), [(2**32 - 1, 2**31 - 1), (3, 101), (1, 2**31), (1, 2**32 - 1)])
def test_sizes_that_cannot_be_are_refused_before_memory_is_taken(count, size):
    with pytest.raises(BadBlock):
        blocks_of(HEAD.pack(BARE, count, 5, size, 0))


@given(st.lists(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4), min_size=1, max_size=6))
def test_small_blocks_that_are_cut_together_have_the_same_rows_as_each_by_itself(groups):
    found = []
    for number, bodies in enumerate(groups):
        extras = json.dumps([[5, {"n": str(number)}]]).encode() if number % 2 else b""
        one = block(*bodies, extras=extras)
        found.append((RangeBlock(5, len(bodies), bare=one.frames, extras=extras), f"t{number}", number))
    schema = arrow_schema(ALL)

    rows = join(found, schema).to_pylist()
    assert rows == [row for one, topic, node in found for row in to_batch(one, topic, node, schema).to_pylist()]


# from the broker's own files


def placed(path, chunks, count, *, first=5, offset=0, size=None, extras=b""):
    """A block that says where its messages lie."""
    name = os.fsencode(path)
    checks = b"".join(struct.pack("<II", len(chunk), kernel.crc32c(chunk)) for chunk in chunks)
    size = sum(map(len, chunks)) if size is None else size
    head = HEAD.pack(PLACED, count, first, size, len(extras)) + PLACE.pack(offset, len(chunks), len(name))
    return head + name + checks + extras


@pytest.fixture
def in_file(tmp_path):
    """Three chunks in a file, behind a few bytes of something else."""
    chunks = [block(*(b"%d" % n * 9 for n in range(at, at + 4)), first=5 + at).frames for at in (0, 4, 8)]
    path = tmp_path / "segment.log"
    path.write_bytes(b"before" + b"".join(chunks) + b"behind")
    return path, chunks


def test_messages_are_cut_from_a_file(in_file):
    path, chunks = in_file
    extras = json.dumps([[6, {"k": "v"}]]).encode()
    (found,) = blocks_of(placed(path, chunks, 12, offset=6, extras=extras))
    rows = to_batch(found, "t", 7, arrow_schema(ALL)).to_pylist()

    assert [row["body"] for row in rows] == [b"%d" % n * 9 for n in range(12)]
    assert [row["sequence"] for row in rows] == list(range(5, 17))
    assert [row["id"] for row in rows] == [f"{(7 << 54) + n:016x}" for n in range(5, 17)]
    assert [row["headers"] for row in rows] == [[], [("k", "v")], *([[]] * 10)]


def test_a_file_that_is_not_the_brokers_is_left_alone(in_file, tmp_path):
    path, chunks = in_file
    whole = path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    others = [tmp_path / "nowhere", tmp_path, tmp_path / "pipe", "/dev/zero", b"x\0y", b""]
    for other in others:
        with pytest.raises(Elsewhere):
            blocks_of(placed(other, chunks, 12, offset=6))
    with pytest.raises(Elsewhere, match="shorter"):
        blocks_of(placed(path, chunks, 12, offset=13))
    for at in (6, len(whole) // 2, len(whole) - 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Elsewhere, match="other bytes"):
            blocks_of(placed(path, chunks, 12, offset=6))


def test_a_place_that_makes_no_sense_is_refused(in_file):
    path, chunks = in_file
    for count, size in ((11, None), (13, None), (2, None), (12, 12 * 34), (12, 100_000)):
        with pytest.raises(BadBlock):
            blocks_of(placed(path, chunks, count, offset=6, size=size))
    with pytest.raises(BadBlock):
        blocks_of(placed(path, [chunks[0] + chunks[1][:20]], 4, offset=6))
    huge = HEAD.pack(PLACED, 10, 5, 1000, 0)
    for facts in ((0, 11, 5), (0, 0, 5), (0, 2**32 - 1, 5), (0, 1, 2**32 - 1)):
        with pytest.raises(BadBlock):
            blocks_of(huge + PLACE.pack(*facts))


@given(st.binary(max_size=200))
def test_garbage_places_are_refused(data):
    with pytest.raises((BadBlock, Elsewhere, struct.error)):
        blocks_of(HEAD.pack(PLACED, 1, 5, 100, 0) + data)


# and back


def bodies_of(batch):
    frames, count = kernel.frame_mpub(batch.body, 0, 0, 10**6, 10**6)
    messages, _ = kernel.decode_messages(frames, 0, len(frames))
    assert count == batch.count
    return [body for *_, body in messages]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=50), st.integers(30, 500))
def test_rows_become_batches_in_order_and_within_the_limit(bodies, limit):
    rows = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    found = list(batches(rows, "t", limit))

    assert [body for batch in found for body in bodies_of(batch)] == bodies
    assert all(len(batch.body) <= limit or batch.count == 1 for batch in found)
    assert {batch.topic for batch in found} == {"t"}


def test_a_slice_of_a_larger_batch_is_only_that_slice():
    rows = pa.record_batch({"body": pa.array(["a", "bb", "ccc", "dddd"])}).slice(1, 2)
    assert [bodies_of(batch) for batch in batches(rows, "t", 1000)] == [[b"bb", b"ccc"]]


def test_rows_are_sorted_out_by_topic_and_keep_their_order():
    rows = pa.record_batch({"topic": ["a", "b", "a"], "body": ["1", "2", "3"]})
    assert [(batch.topic, bodies_of(batch)) for batch in batches(rows, None, 1000)] == [
        ("a", [b"1", b"3"]), ("b", [b"2"]),
    ]  # fmt: skip


def test_headers_keys_and_delays_stand_at_their_messages_in_every_batch():
    headers = pa.array([[], [("k", "v")], None], pa.map_(pa.string(), pa.string()))
    rows = pa.record_batch(
        {"body": ["1", "2", "3"], "headers": headers, "key": ["x", None, None], "defer_ms": [None, None, 9]}
    )

    (whole,) = batches(rows, "t", 1000)
    assert whole.extras == [[0, 0, {"key": "x"}], [1, 0, {"k": "v"}], [2, 9, {}]]
    assert [batch.extras for batch in batches(rows, "t", 1)] == [
        [[0, 0, {"key": "x"}]], [[0, 0, {"k": "v"}]], [[0, 9, {}]],
    ]  # fmt: skip


def test_long_headers_end_a_batch_before_it_is_more_than_a_broker_takes():
    headers = pa.array([[("k", "é" * 15_000)]] * 500, pa.map_(pa.string(), pa.string()))
    rows = pa.record_batch({"body": [f"{n}" for n in range(500)], "headers": headers})
    found = list(batches(rows, "t", 1 << 20))

    assert [body for batch in found for body in bodies_of(batch)] == [b"%d" % n for n in range(500)]
    assert [len(batch.extras) for batch in found] == [batch.count for batch in found]
    assert max(len(batch.staged()) for batch in found) < 4 << 20
    assert min(batch.count for batch in found[:-1]) > 30


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["x", None]}, "row 1 for topic t: the column body is null"),
        ({"body": ["x", ""]}, "row 1 for topic t: the body is empty"),
        ({"body": ["x", "y"], "defer_ms": [0, -1]}, "row 1: defer_ms is -1"),
    ],
)
def test_rows_that_are_no_message_are_named(columns, said):
    with pytest.raises(BadRow, match=said):
        list(batches(pa.record_batch(columns), "t", 1000))


def test_topics_that_are_none_are_named():
    for topic, said in ((None, "row 0: the column topic is null"), ("a b", "row 0: 'a b' is no name for a topic")):
        rows = pa.record_batch({"body": ["x"], "topic": pa.array([topic], pa.string())})
        with pytest.raises(BadRow, match=said):
            list(batches(rows, None, 1000))
