"""The headers of a message as lines of a form, and back."""

import pytest

from lapwing.admin.pages.publish import parse_headers, show_headers


def test_headers_are_lines():
    assert show_headers({"trace": "abc", "note": "a: b"}) == "trace: abc\nnote: a: b"
    assert parse_headers(" trace :abc \n\nnote: a: b") == {"trace": "abc", "note": "a: b"}


@pytest.mark.parametrize(
    "value",
    ["", "é", "x\nother: y", " spaces ", '"quoted"', '"', "a\r\x0b\x1c\x85\u2028b", "\x00", "\ud800", "a\\nb", "'"],
)
def test_every_value_comes_back_as_it_was(value):
    assert parse_headers(show_headers({"a": value, "b": "c"})) == {"a": value, "b": "c"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "A header looks like name: value, not 'x'."),
        ("Upper: x", "Header name 'Upper': 1 to 64 lower-case letters"),
        ("a: " + "x" * 17_000, "The headers take 17008 bytes, at most 16384 are allowed."),
    ],
)
def test_a_header_that_nsqd_would_refuse_is_named(text, told):
    with pytest.raises(ValueError) as refusal:
        parse_headers(text)

    assert str(refusal.value).startswith(told)
