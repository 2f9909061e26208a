"""Snappy and deflate, either end, whole and in crumbs."""

import contextlib
import os
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.wire.nsq.compression import (
    PIECE,
    STREAM_ID,
    CompressionError,
    DeflateCodec,
    SnappyCodec,
    masked_crc,
)

OK_FRAME = bytes.fromhex("00000006000000004f4b")
CODECS = [SnappyCodec, DeflateCodec]


@pytest.mark.parametrize("codec", CODECS)
@given(sent=st.lists(st.binary(max_size=300), max_size=6), cut=st.integers(1, 50))
def test_what_one_end_encodes_the_other_decodes_however_it_arrives(codec, sent, cut):
    ours, theirs = codec(), codec()
    stream = b"".join(ours.encode(data) for data in sent)

    received = b"".join(theirs.decode(stream[i : i + cut]) for i in range(0, len(stream), cut))

    assert received == b"".join(sent)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", [bytes(3_000_000), os.urandom(200_000)], ids=["zeros", "noise"])
def test_large_bodies_pass_through(codec, body):
    ours, theirs = codec(), codec()

    assert theirs.decode(ours.encode(body)) == body


def test_the_first_snappy_ok_is_the_one_every_client_has_seen():
    assert SnappyCodec().encode(OK_FRAME).hex() == "ff060000734e61507059" + "010e000026982bcf" + OK_FRAME.hex()


def test_the_stream_identifier_is_sent_once():
    codec = SnappyCodec()

    assert codec.encode(b"a").startswith(STREAM_ID)
    assert STREAM_ID not in codec.encode(b"b")


def test_our_snappy_is_read_by_a_reader_of_the_framing_format():
    body = b"lapwing " * 20_000

    assert bytes(cramjam.snappy.decompress(SnappyCodec().encode(body))) == body


def test_we_read_what_a_writer_of_the_framing_format_wrote():
    body = b"lapwing " * 20_000

    assert SnappyCodec().decode(bytes(cramjam.snappy.compress(body))) == body


def test_padding_and_skippable_snappy_chunks_carry_nothing():
    codec = SnappyCodec()
    skipped = b"\xfe\x03\x00\x00abc" + b"\x80\x01\x00\x00x"

    assert codec.decode(STREAM_ID + skipped + SnappyCodec().encode(b"hello")) == b"hello"


def _chunk(kind, content, crc=None):
    payload = (masked_crc(content) if crc is None else crc).to_bytes(4, "little") + content
    return bytes([kind]) + len(payload).to_bytes(3, "little") + payload


@pytest.mark.parametrize(
    "stream",
    [
        _chunk(1, b"no identifier"),
        b"\xff\x05\x00\x00sNaPp",
        b"\xff\x06\x00\x00sNaPpX",
        STREAM_ID + _chunk(1, b"hello", crc=1),
        STREAM_ID + _chunk(0, b"\xff\xff\xff\xff\xff"),
        STREAM_ID + b"\x02\x00\x00\x00",
        STREAM_ID + b"\x01\x03\x00\x00abc",
        STREAM_ID + b"\x00\xff\xff\xff",
        STREAM_ID + b"\xfe\xff\xff\xff",
        STREAM_ID + _chunk(1, bytes(65537)),
        STREAM_ID + _chunk(0, bytes(cramjam.snappy.compress_raw(bytes(65537)))),
    ],
    ids=["no-id", "short-id", "other-id", "crc", "garbage", "type", "short", "long", "skip", "plain", "packed"],
)
def test_a_snappy_stream_that_is_not_one_is_refused(stream):
    with pytest.raises(CompressionError):
        SnappyCodec().decode(stream)


def test_broken_deflate_is_refused():
    with pytest.raises(CompressionError):
        DeflateCodec().decode(b"\xff\xff\xff\xff")


def test_bytes_after_the_end_of_a_deflate_stream_are_refused():
    ended = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = ended.compress(b"hello") + ended.flush()
    codec = DeflateCodec()

    assert codec.decode(stream) == b"hello"
    with pytest.raises(CompressionError):
        codec.decode(b"more")


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_fills_the_memory(codec):
    bomb = codec().encode(bytes(8 << 20))

    with pytest.raises(CompressionError):
        codec(output_limit=1 << 20).decode(bomb)


@pytest.mark.parametrize("codec", CODECS)
def test_pieces_are_never_larger_than_they_say_and_lose_nothing(codec):
    body = bytes(5 << 20)
    pieces = list(codec().pieces(codec().encode(body)))

    assert max(map(len, pieces)) <= PIECE
    assert b"".join(pieces) == body


@settings(max_examples=examples(200))
@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_decoded_but_nothing_else(noise):
    for codec in (SnappyCodec(), DeflateCodec()):
        with contextlib.suppress(CompressionError):
            codec.decode(noise)
