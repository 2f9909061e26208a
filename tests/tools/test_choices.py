"""The small decisions of the tools: where to send, what to pass on, how to split and pace, what to print."""

import random

import pytest

from lapwing.errors import LapwingError
from lapwing.tools.hostpool import EpsilonGreedy, HostPool, RoundRobin, pool_of
from lapwing.tools.nsq_stat import HEADER, Counts, line_of
from lapwing.tools.nsq_to_http import headers_of
from lapwing.tools.selection import Fate, Selection, write_json
from lapwing.tools.status import Status
from lapwing.tools.to_nsq import Splitter, Throttle


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (b"one\ntwo\nthree", [b"one", b"two", b"three"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"\n\none\n\n\ntwo\n\n", [b"one", b"two"]),
        (b"x", [b"x"]),
        (b"", []),
        (b"\n", []),
    ],
)
def test_input_is_split_at_the_delimiter_and_keeps_its_last_byte(text, messages, size):
    splitter = Splitter(b"\n")
    found = [message for at in range(0, len(text), size) for message in splitter.feed(text[at : at + size])]

    assert found + splitter.end() == messages


def test_a_throttle_lets_so_many_through_a_second():
    throttle, now = Throttle(4, 0.0), 0.0
    for _ in range(9):
        now += throttle.take(now)

    assert now == pytest.approx(2.0)


def test_a_throttle_saves_up_at_most_one_second():
    throttle = Throttle(4, 0.0)

    assert [throttle.take(100.0) for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_round_robin_starts_with_the_second():
    pool = RoundRobin("abc")

    assert [pool.choose(0) for _ in range(5)] == ["b", "c", "a", "b", "c"]


def test_a_failing_host_rests_longer_each_time_and_success_revives_it():
    pool = HostPool("ab")
    pool.failed("a", 0.0)

    assert [pool.choose(1.0) for _ in range(3)] == ["b", "b", "b"]
    assert "a" in {pool.choose(30.0), pool.choose(30.0)}
    assert {pool.choose(89.0) for _ in range(4)} == {"b"}
    assert "a" in {pool.choose(90.0), pool.choose(90.0)}
    pool.succeeded("a", 0.1, 90.0)
    assert {pool.choose(91.0) for _ in range(4)} == {"a", "b"}


def test_when_all_hosts_are_dead_all_are_tried_again():
    pool = HostPool("ab")
    pool.failed("a", 0.0)
    pool.failed("b", 0.0)

    assert {pool.choose(1.0), pool.choose(1.0)} == {"a", "b"}


def test_epsilon_greedy_prefers_the_fast():
    pool = EpsilonGreedy(["slow", "fast"], random.Random(5))
    for now in range(50):
        pool.succeeded("slow", 1.0, now)
        pool.succeeded("fast", 0.01, now)
    chosen = [pool.choose(60.0) for _ in range(500)]

    assert chosen.count("fast") > 450


def test_a_word_that_names_no_mode_gives_no_pool():
    assert pool_of("multicast", "ab") is None


@pytest.mark.parametrize(
    ("flags", "body", "result"),
    [
        ({"field": "a"}, b'{"a":1,"b": 2}', b'{"a":1,"b": 2}'),
        ({"field": "a"}, b'{"b":2}', Fate.DROP),
        ({"field": "a", "value": "x"}, b'{"b":2}', Fate.RETRY),
        ({"field": "a", "value": "x"}, b'{"a":"x"}', b'{"a":"x"}'),
        ({"field": "a", "value": "x"}, b'{"a":"y"}', Fate.DROP),
        ({"field": "a", "value": "1.0"}, b'{"a":1}', b'{"a":1}'),
        ({"field": "a", "value": "x"}, b'{"a":1}', Fate.DROP),
        ({"field": "a", "value": "true"}, b'{"a":true}', Fate.DROP),
        ({"field": "a", "value": "null"}, b'{"a":null}', Fate.DROP),
        ({"field": "a"}, b'{"a":null}', b'{"a":null}'),
        ({"whitelist": ("b", "a", "z")}, b'{ "a": 1, "b": [1.50, {"y": 1, "x": "<&>"}], "c": 3 }',
         b'{"a":1,"b":[1.5,{"x":"\\u003c\\u0026\\u003e","y":1}]}'),
        ({"whitelist": ("z",)}, b'{"a":1}', b"{}"),
    ],
)  # fmt: skip
def test_json_flags_select_messages_and_fields(flags, body, result):
    assert Selection(**flags).apply(body) == result


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[1]", b'"a"', b"null", b'{"a":NaN}', b'{"a":1} x', b'{"a":1e999}', b"[" * 99999]
)
def test_what_is_not_a_json_object_is_told(body):
    with pytest.raises(ValueError):
        Selection(field="a").apply(body)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"), (0.0, "0"), (-0.0, "-0"), (1.5, "1.5"), (-2.25, "-2.25"), (0.1, "0.1"),
        (12345678901234567890.0, "12345678901234567000"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
        (1.5e300, "1.5e+300"), (0.000001, "0.000001"), (0.0000001, "1e-7"), (1.25e-9, "1.25e-9"), (100.0, "100"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_go_writes_them(number, text):
    assert write_json(number) == text


def test_the_status_line_comes_one_message_late_the_first_time():
    lines = []
    status = Status(3, "aggregate", lines.append)
    counts = []
    for _ in range(10):
        status.done(0.001)
        counts.append(len(lines))

    assert counts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert lines[0] == "[aggregate]: finished 3 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"


def test_a_stat_line_has_its_columns():
    before = Counts(depth=11, message_count=0)
    now = Counts(
        depth=11, backend_depth=4, in_flight_count=2, deferred_count=1, requeue_count=5, timeout_count=6,
        message_count=13, client_count=3,
    )  # fmt: skip
    line = line_of(now, before, 2.0)

    assert line == "      6       6 |      11       7       4     2     1 |       5       6           13       3\n"
    assert all(len(row) == len(line) - 1 for row in HEADER.splitlines())


@pytest.mark.parametrize("text", ["novalue", "name:", ": value", ""])
def test_a_header_has_a_name_and_a_value(text):
    with pytest.raises(LapwingError, match="--header value format"):
        headers_of((text,))


def test_headers_are_taken_apart():
    assert headers_of(("X-A: b:c", "Y:z")) == [("X-A", "b:c"), ("Y", "z")]
