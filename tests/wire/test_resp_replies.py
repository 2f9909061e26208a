"""Replies of a Redis server, as a client has them: whole, in pieces, and with the next one behind."""

from typing import Any

import pytest
from feeding import WAYS

from lapwing.errors import ProtocolError
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader, encode

CASES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", "OK"),
    (b"-ERR no\r\n", ErrorReply("ERR no")),
    (b":-5\r\n", -5),
    (b"$0\r\n\r\n", b""),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b"*0\r\n", []),
    (b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", [1, [b"x"]]),
    (b"%1\r\n$1\r\na\r\n#t\r\n", {b"a": True}),
    (b"~2\r\n,1.5\r\n(12345678901234567890\r\n", [1.5, 12345678901234567890]),
    (b"=7\r\ntxt:abc\r\n", b"abc"),
    (b"!6\r\nERR no\r\n", ErrorReply("ERR no")),
    (b"|1\r\n+k\r\n+v\r\n:3\r\n", 3),
]


def read(pieces: list[bytes]) -> list[Any]:
    reader = ReplyReader()
    found = []
    for piece in pieces:
        reader.receive(piece)
        found += reader.replies()
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "reply"), CASES)
def test_a_reply_is_read_however_it_is_cut(data: bytes, reply: Any, way: Any) -> None:
    assert read(way(data)) == [reply]
    assert read(way(data + b"+next\r\n")) == [reply, "next"]


@pytest.mark.parametrize(
    "data", [b"?\r\n", b"$x\r\n", b":x\r\n", b"+" + b"x" * 70_000, b"*1\r\n" * 40, b"%1\r\n*0\r\n:1\r\n"]
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read([data])


def test_a_reply_beyond_the_limit_is_refused_before_it_comes() -> None:
    reader = ReplyReader(max_reply=1000)
    reader.receive(b"$2000\r\nabc")

    with pytest.raises(ProtocolError, match="over 1000 bytes"):
        list(reader.replies())


def test_a_command_is_an_array_of_its_words() -> None:
    assert encode("XLEN", b"k", 5) == b"*3\r\n$4\r\nXLEN\r\n$1\r\nk\r\n$1\r\n5\r\n"
