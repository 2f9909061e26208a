"""Which dead letters a filter means, and what is no filter."""

import json
import time

import pytest

from lapwing.broker.failures import dead_filter
from lapwing.broker.settings import times
from lapwing.errors import SettingRefused

SECOND = 1_000_000_000
NOW = times.parse("2030-01-31T12:00:00Z")
HEADERS = {
    "dead-id": "1",
    "dead-topic": "orders",
    "dead-channel": "billing",
    "dead-reason": "attempts",
    "dead-error": "KeyError: 'customer'",
    "dead-at": "2030-01-31T11:30:00.000000001Z",
}
BODY = json.dumps({"customer": {"id": 17, "tags": ["a", None]}, "a/b": True}).encode()


def means(document, body=BODY, headers=HEADERS, sequence=5):
    return dead_filter.parse(document, now=NOW).matches(sequence, headers, body)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"topic": "orders", "channel": "billing", "reason": "attempts"},
        {"error": "KeyError"},
        {"text": '"id": 17'},
        {"pattern": "i.{1,3} 1[0-9]"},
        {"fields": {"/customer/id": 17}},
        {"fields": {"/customer/tags/0": "a", "/customer/tags/1": None, "/a~1b": True}},
        {"since": "1h"},
        {"since": "2030-01-31T11:30:00Z", "until": "2030-01-31T11:30:01Z"},
        {"sequences": [4, 5]},
        {"since": 0},
    ],
)
def test_what_is_meant(document):
    assert means(document)


@pytest.mark.parametrize(
    "document",
    [
        {"topic": "order"},
        {"channel": "bill"},
        {"reason": "expired"},
        {"error": "ValueError"},
        {"text": "18"},
        {"pattern": "^x"},
        {"fields": {"/customer/id": "17"}},
        {"fields": {"/a~1b": 1}},
        {"fields": {"/customer": 17}},
        {"fields": {"/customer/tags/2": None}},
        {"fields": {"/customer/tags/x": None}},
        {"since": "10m"},
        {"until": "1h"},
        {"sequences": [4]},
    ],
)
def test_what_is_not_meant(document):
    assert not means(document)


def test_a_body_that_is_no_json_has_no_fields():
    for body in (b"\xff", b"", b"[" * 100_000):
        assert not means({"fields": {"/a": None}}, body)


def test_a_filter_survives_being_written_down():
    document = {
        "topic": "orders",
        "pattern": "a+",
        "fields": {"/a": 1},
        "since": "2030-01-31T11:30:00Z",
        "sequences": [1, 2],
    }
    found = dead_filter.parse(document)

    assert found.document() == document
    assert dead_filter.parse(json.loads(json.dumps(found.document()))) == found


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"body": "x"}, "body is no part of a filter: use topic, channel, reason, error, text, pattern, fields, since"),
        ({"text": 5}, "text: a string of at most 1024 characters expected"),
        ({"text": "x" * 1025}, "text: a string of at most 1024 characters expected"),
        ({"reason": "bored"}, "reason: one of attempts, rejected, expired, overflow expected"),
        ({"pattern": "(" * 1000}, "pattern: a regular expression as RE2 knows them expected: missing )"),
        ({"pattern": "("}, "pattern: a regular expression as RE2 knows them expected: "),
        ({"pattern": "((a{100}){100}){100}"}, "pattern: a regular expression as RE2 knows them expected: "),
        ({"fields": {"customer": 1}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": {"/a": [1]}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": [1]}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": {f"/{n}": n for n in range(17)}}, "fields: 1 to 16 JSON pointers with the value of each"),
        ({"since": "yesterday"}, 'since: a time such as "2030-01-31T12:00:00Z", Unix seconds, or a duration'),
        ({"fields": []}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"text": []}, "text: a string of at most 1024 characters expected"),
        ({"pattern": "\ud800"}, "pattern: text expected: half of a surrogate pair is no character"),
        ({"text": "\ud800"}, "text: text expected: half of a surrogate pair is no character"),
        ({"fields": {"/a": float("nan")}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": {"/a": float("inf")}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": {"/a": 10**5000}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        ({"fields": {}}, "fields: 1 to 16 JSON pointers with the value of each expected, such as"),
        *(({key: ""}, f"{key}: a value expected; leave it out for all letters") for key in dead_filter.KEYS),
        *(({key: None}, f"{key}: a value expected; leave it out for all letters") for key in dead_filter.KEYS),
        ({"until": 0}, "until: a time after 1970 expected; leave it out for all letters"),
        ({"until": 1e-9}, "until: a time after 1970 expected; leave it out for all letters"),
        ({"until": "0"}, "until: a time after 1970 expected; leave it out for all letters"),
        ({"until": "1970-01-01T00:00:00Z"}, "until: a time after 1970 expected; leave it out for all letters"),
        ({"until": "-1h"}, "until: a duration before now expected, such as 1h, and none below 0"),
        ({"since": "-1h"}, "since: a duration before now expected, such as 1h, and none below 0"),
        ({"sequences": []}, "sequences: a list of 1 to 10000 sequences of dead letters expected"),
        ({"sequences": [-1]}, "sequences: a list of 1 to 10000 sequences of dead letters expected"),
        ({"sequences": list(range(10_001))}, "sequences: a list of 1 to 10000 sequences of dead letters expected"),
    ],
)
def test_what_is_no_filter_is_refused_with_one_sentence(document, sentence):
    with pytest.raises(SettingRefused) as caught:
        dead_filter.parse(document, now=NOW)

    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    assert "b'" not in str(caught.value)


def test_a_regular_expression_that_would_run_for_ever_does_not():
    began = time.process_time()

    assert not means({"pattern": "(a+)+$"}, b"a" * 100_000 + b"!")
    assert time.process_time() - began < 2
