"""What an nsqd and an nsqlookupd say to each other, both ends."""

import json

import pytest
from feeding import WAYS, cut
from hypothesis import given
from hypothesis import strategies as st

from lapwing.errors import ProtocolError
from lapwing.wire.nsq.connection import HangUp
from lapwing.wire.nsq.lookup import (
    MAGIC,
    OK,
    Identify,
    LookupClient,
    LookupConnection,
    PeerInfo,
    Ping,
    Register,
    Unregister,
    answer,
    parse_peer,
)

PEER = PeerInfo(broadcast_address="10.0.0.7", hostname="a", http_port=4151, tcp_port=4150, version="1.3.0")
HELLO = MAGIC + Identify(PEER).encode()

every_way = pytest.mark.parametrize("way", WAYS)


def size(number):
    return number.to_bytes(4, "big", signed=True)


def hear(pieces, connection=None):
    connection = connection or LookupConnection()
    said = []
    try:
        for piece in pieces:
            connection.receive(piece)
            said.extend(connection.commands())
    except ProtocolError as error:
        return said, error.payload
    except HangUp:
        return said, "hung up"
    return said, None


def identify(**members):
    body = json.dumps(members).encode()
    return b"IDENTIFY\n" + size(len(body)) + body


@every_way
def test_an_nsqd_introduces_itself_and_registers_what_it_has(way):
    commands = [Identify(PEER), Register("t"), Register("t", "c"), Ping(), Unregister("t", "c"), Unregister("t")]
    stream = MAGIC + b"".join(command.encode() for command in commands)

    assert hear(way(stream)) == (commands, None)


def test_the_bytes_are_those_of_the_protocol():
    assert Identify(PEER).encode() == (
        b'IDENTIFY\n\0\0\0\x8a{"broadcast_address":"10.0.0.7","hostname":"a","http_port":4151,"tcp_port":4150,'
        b'"topology_region":"","topology_zone":"","version":"1.3.0"}'
    )
    assert answer(PEER.welcome()) == (
        b'\0\0\0\x62{"broadcast_address":"10.0.0.7","hostname":"a","http_port":4151,"tcp_port":4150,"version":"1.3.0"}'
    )
    assert Register("t", "c").encode() == b"REGISTER t c\n"
    assert OK == b"\0\0\0\2OK"


@every_way
@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"PING\r\n", Ping()),
        (b" \t PING x y \r\n", Ping()),
        (b"REGISTER t c d\n", Register("t", "c")),
        (b"REGISTER t \n", Register("t")),
        (b"REGISTER t  c\n", Register("t")),
        (b"UNREGISTER t#ephemeral c#ephemeral\n", Unregister("t#ephemeral", "c#ephemeral")),
    ],
)
def test_a_line_is_trimmed_and_split_at_single_spaces(way, line, command):
    assert hear(way(HELLO + line + b"PING\n")) == ([Identify(PEER), command, Ping()], None)


@every_way
@pytest.mark.parametrize(
    ("stream", "payload"),
    [
        (b"  V2", b"E_BAD_PROTOCOL"),
        (MAGIC + b"\n", b"E_INVALID invalid command "),
        (MAGIC + b"ping\n", b"E_INVALID invalid command ping"),
        (MAGIC + b"REGISTER\n", b"E_INVALID client must IDENTIFY"),
        (MAGIC + b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (HELLO + b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (HELLO + b"UNREGISTER \n", b"E_INVALID UNREGISTER insufficient number of params"),
        (HELLO + b"REGISTER bad! bad!\n", b"E_BAD_TOPIC REGISTER topic name 'bad!' is not valid"),
        (HELLO + b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (HELLO + b"UNREGISTER t bad!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'bad!' is not valid"),
        (HELLO + b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (MAGIC + b"IDENTIFY\n" + size(0), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (MAGIC + b"IDENTIFY\n" + size(2) + b"[]", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (MAGIC + b"IDENTIFY\n" + size(-1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (MAGIC + b"IDENTIFY\n" + size(2**31 - 1), b"E_BAD_BODY IDENTIFY body too big 2147483647 > 65536"),
        (MAGIC + identify(), b"E_BAD_BODY IDENTIFY missing fields"),
        (
            MAGIC + identify(broadcast_address="a", tcp_port=1, http_port=0, version="1"),
            b"E_BAD_BODY IDENTIFY missing fields",
        ),
        (
            MAGIC + identify(broadcast_address="a", tcp_port="1", http_port=1, version="1"),
            b"E_BAD_BODY IDENTIFY failed to decode JSON body",
        ),
    ],
)
def test_what_is_wrong_is_answered_and_ends_it(way, stream, payload):
    said, error = hear(way(stream + b"PING\n"))

    assert error == payload
    assert Ping() not in said


def test_a_ping_is_heard_before_identify():
    assert hear([MAGIC + b"PING\n"]) == ([Ping()], None)


def test_an_endless_line_is_hung_up_on():
    assert hear([MAGIC, b"x" * 16384]) == ([], "hung up")


@pytest.mark.parametrize(
    ("stream", "payload"),
    [
        (b"  V", None),
        (MAGIC + b"PIN", None),
        (MAGIC + b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (MAGIC + b"IDENTIFY\n\0\0\0\5{", b"E_BAD_BODY IDENTIFY failed to read body"),
        (HELLO, None),
    ],
)
def test_an_nsqd_that_stops_in_mid_command_is_told_what_was_missing(stream, payload):
    connection = LookupConnection()
    hear([stream], connection)
    error = connection.eof()

    assert (error and error.payload) == payload


@every_way
def test_answers_come_out_in_order(way):
    client = LookupClient()
    payloads = []
    for piece in way(answer(PEER.welcome()) + OK + answer(b"") + OK):
        client.receive(piece)
        payloads += client.answers()

    assert payloads == [PEER.welcome(), b"OK", b"", b"OK"]
    assert parse_peer(payloads[0]) == PEER


@pytest.mark.parametrize("length", [-1, 5 * 1024 * 1024 + 1, 2**31 - 1])
def test_an_answer_of_impossible_length_is_refused_at_once(length):
    client = LookupClient()
    client.receive(OK + size(length))
    answers = client.answers()

    assert next(answers) == b"OK"
    with pytest.raises(ProtocolError, match=f"answer of {length} bytes"):
        next(answers)


@pytest.mark.parametrize("payload", [b"E_INVALID", b"OK", b"", b'{"tcp_port":"x"}'])
def test_an_answer_that_is_no_introduction_says_so(payload):
    with pytest.raises(ValueError):
        parse_peer(payload)


PIECES = st.sampled_from(
    [Identify(PEER).encode(), b"PING\n", b"REGISTER t c\n", b"UNREGISTER t\r\n", b"IDENTIFY\n", b"REGISTER ", b"\n"]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=5)), max_size=8), st.lists(st.integers(0, 1000), max_size=8))
def test_how_lines_are_cut_never_changes_what_is_heard(parts, places):
    stream = MAGIC + b"".join(parts)

    assert hear(cut(stream, places)) == hear([stream])
