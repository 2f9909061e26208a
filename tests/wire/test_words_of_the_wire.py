"""The small things that commands and frames are made of: numbers, quoting, ids, frames."""

from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing import ids
from lapwing.errors import ProtocolError
from lapwing.wire.nsq import commands, frames
from lapwing.wire.nsq.parse_line import decimal, nanoseconds, signed
from lapwing.wire.nsq.quoting import percent_decoded, percent_encoded, quoted


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b"", 0), (b"0", 0), (b"007", 7), (b"2500", 2500), (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551617", 1), (b"9" * 16000, (10**16000 - 1) % 2**64),
        (b"-1", None), (b"+5", None), (b" 12", None), (b"12 ", None), (b"1_000", None), (b"0x10", None), (b"1.0", None),
        (b"1e3", None), ("\u0661".encode(), None), ("\u00b2".encode(), None), (b"\xb2", None), (b"1\0", None),
    ],
)  # fmt: skip
def test_a_number_is_ascii_digits_and_nothing_else(raw, number):
    assert decimal(raw) == number


@given(st.integers(min_value=0, max_value=10**200))
def test_a_number_counts_modulo_two_to_the_64(number):
    assert decimal(b"%d" % number) == number % 2**64


def test_numbers_wrap_into_signed_ones():
    assert signed(2**63 - 1) == 2**63 - 1
    assert signed(2**63) == -(2**63)
    assert signed(2**64 - 1) == -1
    assert nanoseconds(1500) == 1_500_000_000
    assert nanoseconds(2**64 - 1) == -1_000_000
    assert nanoseconds(2**63 // 1_000_000 + 1) < 0


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"", '""'),
        (b"bad$t", '"bad$t"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        (b"\x00\x1b\x7f", '"\\x00\\x1b\\x7f"'),
        (b"\xff\xc3\x28\xe2\x82", '"\\xff\\xc3(\\xe2\\x82"'),
        (b"\xed\xa0\x80", '"\\xed\\xa0\\x80"'),
        ("caf\u00e9 \U0001f426 \ufffd".encode(), '"caf\u00e9 \U0001f426 \ufffd"'),
        ("\u0085\u00a0\u00ad\u2028\ufeff\U000e0001".encode(), '"\\u0085\\u00a0\\u00ad\\u2028\\ufeff\\U000e0001"'),
    ],
)
def test_a_name_is_quoted_as_go_quotes_it(name, shown):
    assert ProtocolError("E", quoted(name)).payload == b"E " + shown.encode()


@given(st.binary(max_size=80))
def test_no_name_is_beyond_quoting(name):
    shown = ProtocolError("E", quoted(name)).payload

    assert shown.decode().isprintable()


@given(st.integers(0, 1023), st.integers(0, 2**54 - 1))
def test_an_id_is_its_node_and_sequence(node, sequence):
    message_id = ids.encode(node, sequence)

    assert len(message_id) == ids.LENGTH
    assert ids.decode(message_id) == (node, sequence)
    assert int(message_id, 16) - ids.base(node) == sequence


@given(st.integers(0, 1023), st.integers(0, 2**54 - 2))
def test_ids_rise_with_the_sequence(node, sequence):
    assert ids.encode(node, sequence) < ids.encode(node, sequence + 1)


@pytest.mark.parametrize(
    "message_id",
    [b"", b"0123456789abcde", b"0123456789abcdef0", b"0123456789ABCDEF", b"0x23456789abcdef", b"0123456789abcd_f",
     b" 123456789abcdef", b"-123456789abcdef"],
)  # fmt: skip
def test_what_is_no_id_has_no_sequence(message_id):
    with pytest.raises(ValueError):
        ids.decode(message_id)


def test_a_host_without_a_node_number_gets_the_one_nsq_gives_it():
    assert ids.default_node("localhost") == 16  # the CRC-32 of its MD5, modulo 1024
    assert 0 <= ids.default_node("caf\u00e9") < ids.NODES


def test_frames_are_the_bytes_that_clients_wait_for():
    assert frames.response(b"OK") == frames.OK == b"\0\0\0\6\0\0\0\0OK"
    assert frames.HEARTBEAT.hex() == "0000000f000000005f6865617274626561745f"
    assert frames.CLOSE_WAIT == b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT"
    assert frames.error(ProtocolError("E_BAD_PROTOCOL").payload) == bytes.fromhex(
        "00000012 00000001 455f4241445f50524f544f434f4c"
    )


def test_a_client_writes_the_lines_that_brokers_read():
    message_id = b"0123456789abcdef"

    assert commands.Identify(b"{}").encode() == b"IDENTIFY\n\0\0\0\2{}"
    assert commands.Auth(b"s").encode() == b"AUTH\n\0\0\0\1s"
    assert commands.Sub("t", "c").encode() == b"SUB t c\n"
    assert commands.Pub("t", b"x").encode() == b"PUB t\n\0\0\0\1x"
    assert commands.Mpub.of("t", [b"a", b"bb"]).encode() == b"MPUB t\n\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bb"
    assert commands.Dpub("t", 1_500_000_000, b"x").encode() == b"DPUB t 1500\n\0\0\0\1x"
    assert commands.Rdy(7).encode() == b"RDY 7\n"
    assert commands.Fin(message_id).encode() == b"FIN 0123456789abcdef\n"
    assert commands.Fins.of([message_id] * 2).encode() == b"FIN 0123456789abcdef\n" * 2
    assert commands.Req(message_id, 90_000_000).encode() == b"REQ 0123456789abcdef 90\n"
    assert commands.Touch(message_id).encode() == b"TOUCH 0123456789abcdef\n"
    assert commands.Cls().encode() == b"CLS\n"
    assert commands.Nop().encode() == b"NOP\n"


def test_every_word_has_its_command():
    assert {word.decode().capitalize() for word in commands.WORDS} == {
        command.__name__ for command in commands.WORDS.values()
    }


@given(st.binary())
def test_words_are_percent_encoded_as_in_urls(text):
    assert percent_encoded(text) == quote_from_bytes(text, safe="").encode()
    assert percent_decoded(percent_encoded(text)) == text


@given(st.binary() | st.text("%0aAfFg").map(str.encode))
def test_words_are_percent_decoded_as_in_urls(word):
    assert percent_decoded(word) == unquote_to_bytes(word)
