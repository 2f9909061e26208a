"""The loops over RESP: requests split, XADDs framed, entries and ids made, ids known again."""

from array import array
from types import ModuleType
from typing import Any

import pytest
from twins import BASE, DRESSES

from lapwing.kernel import pure

NOW = 1_700_000_000_123_456_789
MS = NOW // 1_000_000


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def xadd(key: bytes, *pairs: bytes) -> bytes:
    return request(b"XADD", key, b"*", *pairs)


# --- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_whole_request_is_split_into_its_words(kernel: ModuleType, dress: Any) -> None:
    data = request(b"ECHO", b"", b"\r\n$3\r\n")

    assert kernel.split_words(dress(data + b"*1"), 0, 10) == ([b"ECHO", b"", b"\r\n$3\r\n"], len(data))
    assert kernel.split_words(dress(b"PING\r\n" + data), 6, 3)[0] == [b"ECHO", b"", b"\r\n$3\r\n"]


def test_a_request_that_is_not_whole_is_left_for_later(kernel: ModuleType) -> None:
    data = request(b"ECHO", b"word")

    assert [kernel.split_words(data[:size], 0, 10) for size in range(len(data))] == [([], 0)] * len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"*0\r\n",
        b"*-1\r\n",
        b"*01\r\n$1\r\na\r\n",
        b"*+1\r\n$1\r\na\r\n",
        b"*1\r\n$01\r\na\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n+a\r\n",
        b"*1\r\n$1\r\nabc",
        b"*1\n$1\na\n",
        b"PING\r\n",
        b"*2147483647\r\n$1\r\na\r\n",
        b"*99999999999\r\n$1\r\na\r\n",
        b"*1\r\n$99999999999\r\na\r\n",
    ],
)
def test_an_unusual_request_is_left_to_the_careful_parser(kernel: ModuleType, data: bytes) -> None:
    assert kernel.split_words(data, 0, 2**31) == ([], 0)


def test_a_request_of_too_many_words_is_left_to_the_careful_parser(kernel: ModuleType) -> None:
    assert kernel.split_words(request(b"a", b"b"), 0, 1) == ([], 0)


# --- XADD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_run_of_xadds_ends_at_another_key_or_command(kernel: ModuleType, dress: Any) -> None:
    run = xadd(b"k", b"f", b"v") + request(b"xAdD", b"k", b"*", b"f", b"v", b"g", b"")

    assert kernel.xadd_run(dress(run + xadd(b"other", b"f", b"v")), 0, 100) == (2, len(run), b"k")
    assert kernel.xadd_run(dress(run + request(b"PING")), 0, 100) == (2, len(run), b"k")
    assert kernel.xadd_run(dress(b"PING\r\n" + run), 6, 100) == (2, 6 + len(run), b"k")
    assert kernel.xadd_run(dress(run), 3, 100) == (0, 3, b"")


@pytest.mark.parametrize(
    "data",
    [
        request(b"XADD", b"k", b"5-1", b"f", b"v"),
        request(b"XADD", b"k", b"MAXLEN", b"5", b"*", b"f", b"v"),
        request(b"XADD", b"k", b"NOMKSTREAM", b"*", b"f"),
        request(b"XADD", b"k", b"*", b"f", b"v", b"odd"),
        request(b"XADD", b"k", b"*"),
        request(b"XDEL", b"k", b"*", b"f", b"v"),
        request(b"XADDS", b"k", b"*", b"f", b"v"),
        xadd(b"k", b"f", b"v")[:-1],
        b"",
    ],
)
def test_anything_but_a_plain_whole_xadd_is_no_run(kernel: ModuleType, data: bytes) -> None:
    assert kernel.xadd_run(data, 0, 1000) == (0, 0, b"")


def test_a_run_ends_before_an_entry_that_is_too_big(kernel: ModuleType) -> None:
    small, big = xadd(b"k", b"f", b"v"), xadd(b"k", b"f", b"v" * 50)
    size = len(request(b"f", b"v" * 50))

    assert kernel.xadd_run(small + big, 0, size)[0] == 2
    assert kernel.xadd_run(small + big, 0, size - 1)[0] == 1


def test_xadds_are_framed_as_a_publish_of_their_bodies(kernel: ModuleType) -> None:
    block = xadd(b"k", b"data", b"plain") + xadd(b"k", b"name", b"Sara", b"age", b"33")

    frames, count, size = kernel.frame_xadds(block, BASE | 7, NOW, b"data")

    bodies = [b"plain", request(b"name", b"Sara", b"age", b"33")]
    assert frames == pure.frame_bodies(bodies, BASE | 7, NOW)
    assert (count, size) == (2, sum(map(len, bodies)))


@pytest.mark.parametrize(
    "pairs",
    [
        (b"data", b""),  # an empty body is no message
        (b"data", request(b"a", b"b")),  # would be read as pairs
        (b"Data", b"x"),
        (b"data", b"x", b"data", b"x"),
    ],
)
def test_an_entry_that_would_be_misread_as_a_plain_body_is_kept_as_pairs(
    kernel: ModuleType, pairs: tuple[bytes, ...]
) -> None:
    frames, _, _ = kernel.frame_xadds(xadd(b"k", *pairs), BASE, NOW, b"data")

    assert frames == pure.frame_one(request(*pairs), BASE, NOW)


def test_only_a_run_of_xadds_is_framed(kernel: ModuleType) -> None:
    for block in (b"PING\r\n", xadd(b"k", b"f", b"v") + b"x", xadd(b"k", b"f", b"v")[:-2]):
        with pytest.raises(ValueError):
            kernel.frame_xadds(block, BASE, NOW, b"data")
    assert kernel.frame_xadds(b"", BASE, NOW, b"data") == (b"", 0, 0)


# --- entries -------------------------------------------------------------------------------------------------------


def test_frames_become_entries(kernel: ModuleType) -> None:
    pairs = request(b"name", b"Sara")
    frames = pure.frame_bodies([b"plain", pairs, b"*2\r\n", pairs + b"x"], BASE | 9, NOW)

    reply, count, end = kernel.entry_replies(frames, 0, len(frames), 9, b"data")

    def entry(sequence: int, words: bytes) -> bytes:
        return b"*2\r\n" + request(b"%d-%d" % (MS, sequence))[4:] + words

    expected = [
        entry(9, request(b"data", b"plain")),
        entry(10, pairs),
        entry(11, request(b"data", b"*2\r\n")),
        entry(12, request(b"data", pairs + b"x")),
    ]
    assert (reply, count, end) == (b"".join(expected), 4, len(frames))


def test_an_odd_number_of_words_is_no_pairs(kernel: ModuleType) -> None:
    assert kernel.is_pairs(request(b"a", b"b"))
    assert not kernel.is_pairs(request(b"a", b"b", b"c"))
    assert not kernel.is_pairs(request(b"a", b"b") + b"\n")
    assert not kernel.is_pairs(b"*0\r\n")
    assert not kernel.is_pairs(b"*02\r\n$1\r\na\r\n$1\r\nb\r\n")


def test_a_time_before_1970_is_shown_as_zero(kernel: ModuleType) -> None:
    frames = pure.frame_one(b"x", BASE, -5)

    assert kernel.entry_replies(frames, 0, len(frames), 0, b"d")[0].startswith(b"*2\r\n$3\r\n0-0\r\n")
    assert list(kernel.publish_times(frames, 0, len(frames))[0]) == [0]


def test_entries_end_at_a_torn_frame(kernel: ModuleType) -> None:
    frames = pure.frame_bodies([b"one", b"two"], BASE, NOW)

    assert kernel.entry_replies(frames[:-1], 0, 1 << 40, 0, b"d")[1:] == (1, 37)
    assert kernel.entry_replies(frames, 0, 40, 0, b"d")[1:] == (1, 37)
    assert kernel.entry_replies(frames, 1, 400, 0, b"d") == (b"", 0, 1)


# --- ids -----------------------------------------------------------------------------------------------------------


def test_ids_are_bulk_strings(kernel: ModuleType) -> None:
    assert kernel.id_replies(5, 9, 2) == b"$3\r\n5-9\r\n$4\r\n5-10\r\n"
    assert kernel.id_replies(MS, 0, 1) == b"$15\r\n%d-0\r\n" % MS
    assert kernel.id_replies(0, 0, 0) == b""
    assert kernel.id_replies(2**64 - 1, 2**64 - 1, 1) == b"$41\r\n%d-%d\r\n" % (2**64 - 1, 2**64 - 1)


def test_publish_times_are_in_milliseconds(kernel: ModuleType) -> None:
    frames = pure.frame_one(b"a", BASE, NOW) + pure.frame_one(b"b", BASE + 1, NOW + 1_000_000)

    times, end = kernel.publish_times(frames, 0, len(frames))

    assert (times, end) == (array("q", [MS, MS + 1]), len(frames))


def test_an_id_is_known_when_its_time_is_that_of_its_sequence(kernel: ModuleType) -> None:
    times = array("q", [100, 100, 101])
    words = [b"XACK", b"k", b"g", b"100-50", b"101-52", b"100-51"]

    assert kernel.known_sequences(words, 3, 50, times) == ([50, 52, 51], [])


@pytest.mark.parametrize(
    ("most", "room", "words"),
    [(9, 99, [b"a", b"", b"bc"]), (2, 99, [b"a", b""]), (0, 99, []), (9, 10, [b"a", b""]), (9, 5, [b"a"]), (9, -1, [])],
)
def test_whole_words_are_taken_as_long_as_there_is_room(
    kernel: ModuleType, most: int, room: int, words: list[bytes]
) -> None:
    data = b"x$1\r\na\r\n$0\r\n\r\n$2\r\nbc\r\n$9\r\nnot"
    end = 1 + sum(len(word) + 6 for word in words)

    assert kernel.take_words(data, 1, most, room, 4) == (words, end, sum(len(word) + 4 for word in words))


HEAD = b"$4\r\nxack\r\n$1\r\nk\r\n$1\r\ng\r\n"


def test_an_xack_of_known_ids_is_taken_as_it_came(kernel: ModuleType) -> None:
    request = b"*5\r\n" + HEAD + b"$6\r\n100-50\r\n$6\r\n101-52\r\n"

    assert kernel.acked_sequences(request, HEAD, 50, array("q", [100, 100, 101])) == [50, 52]


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"*5\r\n",
        b"*3\r\n" + HEAD,
        b"*4\r\n" + HEAD + b"$6\r\n101-50\r\n",  # another time
        b"*4\r\n" + HEAD + b"$6\r\n100-53\r\n",  # not delivered lately
        b"*4\r\n" + HEAD + b"$6\r\n100-50",  # not whole
        b"*4\r\n" + HEAD + b"$6\r\n100-50\r\n*1\r\n$4\r\nPING\r\n",  # not alone
        b"*5\r\n" + HEAD + b"$6\r\n100-50\r\n$1\r\nx\r\n",
        b"*4\r\n" + HEAD.upper() + b"$6\r\n100-50\r\n",
        b"*2147483647\r\n" + HEAD + b"$6\r\n100-50\r\n",
    ],
)
def test_any_other_request_is_no_xack_of_known_ids(kernel: ModuleType, request_: bytes) -> None:
    assert kernel.acked_sequences(request_, HEAD, 50, array("q", [100, 100, 101])) == []


@pytest.mark.parametrize(
    "word",
    [
        b"101-50",
        b"100-49",
        b"100-53",
        b"100",
        b"100-",
        b"-50",
        b"0100-50",
        b"100-050",
        b"100-50x",
        b"x",
        b"",
        b"+1-50",
        b"100-18446744073709551666",
        b"18446744073709551716-50",
        b"99999999999999999999999-50",
    ],
)
def test_any_other_word_needs_a_closer_look(kernel: ModuleType, word: bytes) -> None:
    assert kernel.known_sequences([word, b"100-51"], 0, 50, array("q", [100, 100, 101])) == ([51], [word])
