"""Whatever bytes and numbers come in: both twins give the same back, or raise the same."""

import inspect
import struct
from array import array
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twins import BASE, DRESSES, ODD_DRESSES, TWINS, both, fins, room

from example_counts import examples
from lapwing.kernel import pure, pure_buffers

edges = st.sampled_from(
    [0, 1, 20, 21, 29, 30, 33, 34, 2**16, 2**31 - 31, 2**31 - 1, 2**31, 2**32, 2**54, 2**63 - 1, 2**63, 2**64, 1 << 80]
)
numbers = st.one_of(st.integers(-2, 400), edges, edges.map(lambda number: -number), st.integers())
bodies = st.lists(st.binary(max_size=40), max_size=8)
times = st.one_of(st.integers(-(2**63), 2**63 - 1), numbers)


def frame(size: int | None, kind: int, body: bytes, attempts: int) -> bytes:
    size = len(body) + 30 if size is None else size & 0xFFFFFFFF
    return struct.pack(">IIqH16s", size, kind, 1, attempts, b"0123456789abcdef") + body


sound = bodies.map(lambda some: pure.frame_bodies(some, BASE, 1))
lies = st.builds(
    frame,
    st.one_of(st.none(), st.integers(0, 120), edges, st.just(-1)),
    st.sampled_from([2, 2, 2, 0, 1, 3, 0x02000000]),
    st.binary(max_size=40),
    st.integers(0, 65535),
)
streams = st.lists(st.one_of(sound, lies, st.binary(max_size=20)), max_size=5).map(b"".join)
torn = st.builds(lambda data, begin, end: data[begin : len(data) - end], streams, st.integers(0, 3), st.integers(0, 40))
dressed = st.builds(lambda data, dress: dress(data), torn, st.sampled_from(DRESSES + ODD_DRESSES))

counts = st.one_of(st.integers(-1, 9), st.sampled_from([2**31 - 1, -(2**31)]))
sizes = st.one_of(st.integers(-1, 45), st.sampled_from([2**31 - 1, 2**31 - 30, -(2**31)]))
liars = st.builds(
    lambda count, parts, tail: (
        struct.pack(">i", count)
        + b"".join(struct.pack(">i", len(body) if size is None else size) + body for size, body in parts)
        + tail
    ),
    counts,
    st.lists(st.tuples(st.one_of(st.none(), st.none(), sizes), st.binary(max_size=40)), max_size=6),
    st.binary(max_size=5),
)
honest = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8).map(
    lambda some: struct.pack(">i", len(some)) + b"".join(struct.pack(">i", len(body)) + body for body in some)
)
batches = st.builds(
    lambda data, dress: dress(data), st.one_of(honest, liars, torn), st.sampled_from(DRESSES + ODD_DRESSES)
)

lines = st.one_of(
    st.integers(0, 9).map(fins),
    st.integers(0, 2**64 - 1).map(lambda identity: b"FIN %016x\n" % identity),
    st.binary(min_size=16, max_size=16).map(lambda text: b"FIN %b\n" % text),
    st.text("0123456789abcdefABCDEF +-_x\r\n", min_size=16, max_size=16).map(lambda text: b"FIN %b\n" % text.encode()),
    st.binary(max_size=25),
)
runs = st.builds(
    lambda parts, end, dress: dress(b"".join(parts)[: -end or None]),
    st.lists(lines, max_size=6),
    st.integers(0, 22),
    st.sampled_from(DRESSES + ODD_DRESSES),
)


def test_every_loop_has_a_compiled_twin() -> None:
    loops = {name for name, _ in inspect.getmembers(pure, inspect.isfunction) if not name.startswith("_")}
    plain = {"crc32c", "strip_headers", *vars(pure_buffers)}  # a library's, and one that is rarely called

    assert all(loops - plain <= vars(twin).keys() for twin in TWINS)
    assert "frame_mpub" in loops - plain



@settings(max_examples=examples(200))
@given(data=dressed, start=numbers, stop=numbers)
def test_the_twins_find_and_decode_the_same_frames(data: Any, start: int, stop: int) -> None:
    for name in ("scan_frames", "decode_messages", "fins_of"):
        both(name, data, start, stop)


@settings(max_examples=examples(200))
@given(data=dressed, start=numbers, stop=numbers, row=numbers, rows=st.integers(0, 8), size=st.integers(0, 600))
def test_the_twins_fill_the_same_columns(data: Any, start: int, stop: int, row: int, rows: int, size: int) -> None:
    both("decode_columns", data, start, stop, row, *room(rows, size))
    both("decode_columns", data, 0, 1 << 40, 0, *room(rows, size))


@settings(max_examples=examples(200))
@given(data=dressed, start=numbers, stop=numbers, most=numbers, room=numbers)
@example(data=pure.frame_one(b"x", 0, 0) * 2, start=35, stop=70, most=9, room=2**63 - 1)
def test_the_twins_take_the_same_slice(data: Any, start: int, stop: int, most: int, room: int) -> None:
    both("take_frames", data, start, stop, most, room)


@settings(max_examples=examples(200))
@given(data=batches, first=numbers, now=times, most=numbers, largest=numbers)
def test_the_twins_frame_the_same_batches(data: Any, first: int, now: int, most: int, largest: int) -> None:
    both("frame_mpub", data, first, now, most, largest)


@settings(max_examples=examples(200))
@given(data=honest, first=numbers, now=st.integers(-(2**63), 2**63 - 1))
def test_what_the_twins_frame_both_take_apart_again(data: bytes, first: int, now: int) -> None:
    _, (frames, count), *_ = both("frame_mpub", data, first, now, 100, 100)
    _, (messages, end), *_ = both("decode_messages", frames, 0, len(frames))

    assert (len(messages), end) == (count, len(frames))
    assert [(message[0], int(message[2], 16)) for message in messages] == [
        (now, (first + at) & (2**64 - 1)) for at in range(count)
    ]
    assert b"".join(struct.pack(">i", len(body)) + body for *_, body in messages) == data[4:]


@settings(max_examples=examples(200))
@given(some=bodies, dress=st.sampled_from(DRESSES + ODD_DRESSES), first=numbers, now=times)
def test_the_twins_frame_the_same_bodies(some: list[bytes], dress: Any, first: int, now: int) -> None:
    both("frame_bodies", [dress(body) for body in some], first, now)
    for body in some:
        both("frame_one", dress(body), first, now)


@settings(max_examples=examples(200))
@given(data=batches, at=st.one_of(st.just(4), numbers), count=numbers, largest=numbers)
def test_the_twins_find_the_same_whole_messages(data: Any, at: int, count: int, largest: int) -> None:
    both("mpub_run", data, at, count, largest)


@settings(max_examples=examples(200))
@given(block=runs, start=numbers, base=st.one_of(st.just(BASE), numbers))
def test_the_twins_find_the_same_fins(block: Any, start: int, base: int) -> None:
    both("fin_run", block, start)
    both("fin_sequences", block, base)


@settings(max_examples=examples(100))
@given(data=dressed, attempts=numbers)
def test_the_twins_say_the_same_attempts(data: Any, attempts: int) -> None:
    both("with_attempts", data, attempts)


@settings(max_examples=examples(100))
@given(data=streams, attempts=st.lists(numbers, max_size=4))
def test_the_twins_say_the_same_attempts_of_each(data: bytes, attempts: list[int]) -> None:
    both("with_each_attempts", data, attempts)


nested = b"*2\r\n$1\r\na\r\n$0\r\n\r\n"
words = st.one_of(st.sampled_from([b"XADD", b"xadd", b"k", b"*", b"data", b"5-1", b"", nested]), st.binary(max_size=9))
requests = st.lists(words, max_size=8).map(
    lambda some: b"*%d\r\n" % len(some) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in some)
)
plain = st.lists(words, min_size=1, max_size=3).map(
    lambda some: (
        b"*%d\r\n$4\r\nXADD\r\n$1\r\nk\r\n$1\r\n*\r\n" % (3 + 2 * len(some))
        + b"".join(b"$4\r\ndata\r\n$%d\r\n%b\r\n" % (len(word), word) for word in some)
    )
)
talk = st.lists(st.one_of(plain, plain, requests, st.binary(max_size=6)), max_size=4).map(b"".join)
spoilt = st.builds(
    lambda data, at, byte, end, dress: dress((data[:at] + byte + data[at + len(byte) :])[: -end or None]),
    talk,
    st.integers(0, 90),
    st.sampled_from([b"", b"", b"0", b"9", b"\r", b"$", b"*"]),
    st.sampled_from([0, 0, 1, 5]),
    st.sampled_from(DRESSES + ODD_DRESSES),
)
names = st.sampled_from([b"data", b"", bytearray(b"data"), memoryview(b"d-a-t-a-")[::2], "data"])


@settings(max_examples=examples(300))
@given(data=spoilt, start=numbers, most=numbers, first=numbers, now=times, name=names)
def test_the_twins_read_the_same_requests(data: Any, start: int, most: int, first: int, now: int, name: Any) -> None:
    for place in (0, start):
        both("split_words", data, place, most)
        both("xadd_run", data, place, most)
        both("take_words", data, place, most, first, 48)
        both("take_words", data, place, 1 << 62, most, 0)
    both("take_words", data, 4, 1 << 62, 1 << 62, 48)
    both("is_pairs", data)
    both("frame_xadds", data, first, now, name)


@settings(max_examples=examples(200))
@given(data=dressed, start=numbers, stop=numbers, first=numbers, name=names)
def test_the_twins_answer_the_same_entries(data: Any, start: int, stop: int, first: int, name: Any) -> None:
    both("entry_replies", data, start, stop, first, name)
    both("entry_replies", data, 0, 1 << 40, first, name)
    both("publish_times", data, start, stop)


@settings(max_examples=examples(200))
@given(bodies=st.lists(requests, max_size=4), first=numbers, now=st.integers(-(2**63), 2**63 - 1))
def test_the_twins_show_the_same_pairs(bodies: list[bytes], first: int, now: int) -> None:
    both("entry_replies", pure.frame_bodies(bodies, BASE, now), 0, 1 << 40, first, b"data")


@settings(max_examples=examples(200))
@given(
    ids=st.lists(
        st.one_of(
            st.builds(lambda ms, sequence: b"%d-%d" % (ms, sequence), st.integers(98, 102), st.integers(0, 9)),
            st.builds(lambda ms, sequence: b"%d-%d" % (ms, sequence), numbers, numbers),
            st.text("0123456789-+ x", max_size=24).map(str.encode),
            st.sampled_from([None, "100-1", bytearray(b"100-1")]),
        ),
        max_size=9,
    ),
    start=numbers,
    first=st.one_of(st.integers(0, 9), numbers),
    times=st.lists(st.one_of(st.integers(98, 102), st.integers(-(2**63), 2**63 - 1)), max_size=9),
    ms=numbers,
    count=st.integers(-2, 9),
)
def test_the_twins_know_the_same_ids(
    ids: list[Any], start: int, first: int, times: list[int], ms: int, count: int
) -> None:
    both("known_sequences", ids, start, first, array("q", times))
    both("known_sequences", ids, 0, first, array("q", times))
    words = [bytes(each, "ascii") if isinstance(each, str) else bytes(each or b"") for each in ids]
    head = b"$4\r\nXACK\r\n$1\r\ns\r\n$1\r\ng\r\n"
    request = b"*%d\r\n%b" % (len(words) + 3, head) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in words)
    for data in (request, request[: start % (len(request) + 1)], request + b"x", head):
        both("acked_sequences", data, head, first, array("q", times))
    both("id_replies", ms, first, count)
