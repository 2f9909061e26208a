"""Messages as the list and the view show them: pure."""

from lapwing.admin.pages.message_rows import (
    editable,
    fixed_body,
    keep_line_ends,
    pairs_of,
    preview,
    shortened,
    shown_body,
)

PAIRS = b"*4\r\n$4\r\nname\r\n$4\r\nSara\r\n$3\r\nage\r\n$2\r\n\xff1\r\n"


def test_the_fields_of_a_redis_entry_are_pairs():
    assert pairs_of(PAIRS) == [["name", "Sara"], ["age", "\\xff1"]]
    assert shown_body(PAIRS) == "name=Sara  age=\\xff1"
    assert pairs_of(PAIRS + b"x") is None
    assert pairs_of(b"*1\r\n$1\r\na\r\n") is None


def test_a_form_changes_text_only():
    assert editable(b"hello") == "hello"
    assert editable(b"\xff") is None
    assert editable(PAIRS) is None
    assert fixed_body(PAIRS) == f"The body has the fields of a Redis entry ({len(PAIRS)} B)"
    assert fixed_body(b"\xff") == "The body is binary (1 B)"


def test_a_preview_shows_where_the_text_is():
    assert preview("x" * 500, "") == "x" * 240
    assert preview("x" * 500 + "needle", "NEEDLE").endswith("needle")
    assert shown_body(b"\x00\xff") == "binary: 00 ff"


def test_a_long_body_is_cut_and_keeps_its_size():
    shown = shortened({"body": "é" * 300_000})

    assert shown["body"].endswith("… 37,856 characters more")
    assert shown["size"] == 600_000
    assert shortened({"body": PAIRS.replace(b"\xff", b"4").decode()})["pairs"][1] == ["age", "41"]


def test_an_edited_text_keeps_its_line_ends():
    """A text field of a browser makes them all LF."""
    assert keep_line_ends("a\r\nb\r\n", "a\nc\n") == "a\r\nc\r\n"
    assert keep_line_ends("a\r\nb", "a\r\nc") == "a\r\nc"
    assert keep_line_ends("a\nb", "a\nc") == "a\nc"
    assert keep_line_ends("a\r\nb\nc", "a\nc") == "a\nc"
    assert keep_line_ends("a", "") == ""
