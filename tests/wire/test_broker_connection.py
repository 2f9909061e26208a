"""The broker's end: every command, every refusal, however the bytes arrive."""

import gc
import time

import pytest
from feeding import ID, WAYS, hear, whole

from lapwing.errors import ProtocolError
from lapwing.wire.nsq.commands import (
    MAGIC,
    Auth,
    Cls,
    Dpub,
    Fins,
    Hmpub,
    Hpub,
    Identify,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Rej,
    Req,
    Reqs,
    Sub,
    Touch,
    batch,
)
from lapwing.wire.nsq.connection import BrokerConnection, HangUp, Limits
from lapwing.wire.nsq.parse_line import rejection
from lapwing.wire.nsq.state import LEGAL, State

SECOND = 1_000_000_000
SMALL = Limits(max_message=10, max_body=64, max_rdy=5, max_req_timeout=10 * SECOND)
SUBSCRIBED = MAGIC + b"SUB t c\n"
CLOSING = SUBSCRIBED + b"CLS\n"


def size(number):
    return number.to_bytes(4, "big", signed=True)


every_way = pytest.mark.parametrize("way", WAYS)

# (what comes first, the line and body, what it is)
LAWFUL = [
    (MAGIC, b"NOP\n", Nop()),
    (MAGIC, b"NOP\r\n", Nop()),
    (MAGIC, b"NOP a  b\n", Nop()),
    (MAGIC, b"IDENTIFY\n" + size(2) + b"{}", Identify(b"{}")),
    (MAGIC, b"IDENTIFY surplus\n" + size(2) + b"{}", Identify(b"{}")),
    (MAGIC, b"AUTH\n" + size(3) + b"a\nb", Auth(b"a\nb")),
    (MAGIC, b"SUB t c\n", Sub("t", "c")),
    (MAGIC, b"SUB t#ephemeral c#ephemeral surplus\r\n", Sub("t#ephemeral", "c#ephemeral")),
    (MAGIC, b"PUB t\n" + size(3) + b"a\nb", Pub("t", b"a\nb")),
    (MAGIC, b"PUB t surplus\r\n" + size(1) + b"\r", Pub("t", b"\r")),
    (MAGIC, b"PUB " + b"n" * 64 + b"\n" + size(10) + b"x" * 10, Pub("n" * 64, b"x" * 10)),
    (MAGIC, b"MPUB t\n" + size(15) + batch([b"a", b"bb"]), Mpub("t", batch([b"a", b"bb"]))),
    # a declared body that ends anywhere in the messages: the count decides
    *(
        (MAGIC, b"MPUB t\n" + size(declared) + batch([b"aaa", b"b"]), Mpub("t", batch([b"aaa", b"b"])))
        for declared in range(1, 16)
    ),
    (MAGIC, b"MPUB t x\r\n" + size(64) + batch([b"x"] * 12), Mpub("t", batch([b"x"] * 12))),
    (MAGIC, b"DPUB t 1500\n" + size(1) + b"x", Dpub("t", 1_500_000_000, b"x")),
    (MAGIC, b"DPUB t 10000\n" + size(1) + b"x", Dpub("t", 10 * SECOND, b"x")),
    (MAGIC, b"DPUB t \n" + size(1) + b"x", Dpub("t", 0, b"x")),
    (MAGIC, b"DPUB t 18446744073709551616\n" + size(1) + b"x", Dpub("t", 0, b"x")),
    (MAGIC, b"DPUB t " + b"1" + b"0" * 5000 + b"\n" + size(1) + b"x", Dpub("t", 0, b"x")),
    (SUBSCRIBED, b"RDY\n", Rdy(1)),
    (SUBSCRIBED, b"RDY \n", Rdy(0)),
    (SUBSCRIBED, b"RDY 0005 6\n", Rdy(5)),
    (SUBSCRIBED, b"RDY 18446744073709551618\n", Rdy(2)),
    (SUBSCRIBED, b"FIN %b\n" % ID, Fins(b"FIN %b\n" % ID)),
    (SUBSCRIBED, b"FIN %b\r\n" % ID, Fins(b"FIN %b\n" % ID)),
    (SUBSCRIBED, b"FIN %b surplus\n" % ID, Fins(b"FIN %b\n" % ID)),
    (SUBSCRIBED, b"FIN not-a-hex-number\n", Fins(b"FIN not-a-hex-number\n")),
    (SUBSCRIBED, b"REQ %b 2000\n" % ID, Req(ID, 2 * SECOND)),
    (SUBSCRIBED, b"REQ %b 10001 x\n" % ID, Req(ID, 10 * SECOND)),
    (SUBSCRIBED, b"REQ %b 18446744073709551615\n" % ID, Req(ID, 0)),
    (SUBSCRIBED, b"REQ %b \n" % ID, Req(ID, 0)),
    (SUBSCRIBED, b"REQ %b 2000 free\n" % ID, Req(ID, 2 * SECOND, free=True)),
    (SUBSCRIBED, b"REQ %b 0 free surplus\r\n" % ID, Req(ID, 0, free=True)),
    (SUBSCRIBED, b"REQ %b 0 Free\n" % ID, Req(ID, 0)),
    (SUBSCRIBED, b"REQ %b 0 error=a%%20b%%0A%%c3%%a9%%\n" % ID, Req(ID, 0, error="a b\n\u00e9%")),
    (SUBSCRIBED, b"REQ %b 0 error=%%ff\n" % ID, Req(ID, 0, error="\ufffd")),
    (SUBSCRIBED, b"REQ %b 0 error=\n" % ID, Req(ID, 0)),
    (SUBSCRIBED, b"REQ %b 0 error=%b\n" % (ID, b"x" * 9000), Req(ID, 0, error="x" * 4096)),
    (SUBSCRIBED, b"TOUCH %b\n" % ID, Touch(ID)),
    (SUBSCRIBED, b"CLS now\n", Cls()),
    (SUBSCRIBED, b"PUB t\n" + size(1) + b"x", Pub("t", b"x")),
    (CLOSING, b"RDY nonsense\n", Nop()),
    (CLOSING, b"FIN %b\n" % ID, Fins(b"FIN %b\n" % ID)),
    (CLOSING, b"REQ %b 1\n" % ID, Req(ID, 1_000_000)),
    (CLOSING, b"TOUCH %b\n" % ID, Touch(ID)),
    (CLOSING, b"MPUB t\n" + size(9) + batch([b"a"]), Mpub("t", batch([b"a"]))),
    (CLOSING, b"DPUB t 0\n" + size(1) + b"x", Dpub("t", 0, b"x")),
    (CLOSING, b"NOP\n", Nop()),
]

UNLAWFUL = [
    (b"  V1", b"", b"E_BAD_PROTOCOL"),
    (b"GET ", b"/", b"E_BAD_PROTOCOL"),
    (MAGIC, b"\n", b"E_INVALID invalid command "),
    (MAGIC, b"\r\n", b"E_INVALID invalid command "),
    (MAGIC, b" NOP\n", b"E_INVALID invalid command "),
    (MAGIC, b"nop\n", b"E_INVALID invalid command nop"),
    (MAGIC, b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    (MAGIC, b"PUB\tt\n", b"E_INVALID invalid command PUB\tt"),
    (MAGIC, b"\xff\xfe x\n", b"E_INVALID invalid command \xff\xfe"),
    # what may not be said now; nothing else of the command is looked at
    (MAGIC, b"RDY x\n", b"E_INVALID cannot RDY in current state"),
    (MAGIC, b"FIN\n", b"E_INVALID cannot FIN in current state"),
    (MAGIC, b"FIN %b\n" % ID, b"E_INVALID cannot FIN in current state"),
    (MAGIC, b"REQ\n", b"E_INVALID cannot REQ in current state"),
    (MAGIC, b"TOUCH\n", b"E_INVALID cannot TOUCH in current state"),
    (MAGIC, b"CLS\n", b"E_INVALID cannot CLS in current state"),
    (MAGIC, b"REJ %b\n" % ID, b"E_INVALID invalid command REJ"),
    (SUBSCRIBED, b"REJ %b\n" % ID, b"E_INVALID invalid command REJ"),
    (SUBSCRIBED, b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    (SUBSCRIBED, b"AUTH x\n", b"E_INVALID cannot AUTH in current state"),
    (SUBSCRIBED, b"SUB\n", b"E_INVALID cannot SUB in current state"),
    (CLOSING, b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    (CLOSING, b"AUTH\n", b"E_INVALID cannot AUTH in current state"),
    (CLOSING, b"SUB t c\n", b"E_INVALID cannot SUB in current state"),
    (CLOSING, b"CLS\n", b"E_INVALID cannot CLS in current state"),
    # IDENTIFY, AUTH
    (MAGIC, b"IDENTIFY\n" + size(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
    (MAGIC, b"IDENTIFY\n" + size(-7), b"E_BAD_BODY IDENTIFY invalid body size -7"),
    (MAGIC, b"IDENTIFY\n" + size(65), b"E_BAD_BODY IDENTIFY body too big 65 > 64"),
    (MAGIC, b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
    (MAGIC, b"AUTH\n" + size(0), b"E_BAD_BODY AUTH invalid body size 0"),
    (MAGIC, b"AUTH\n" + size(65), b"E_BAD_BODY AUTH body too big 65 > 64"),
    # SUB
    (MAGIC, b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    (MAGIC, b"SUB bad!\n", b"E_INVALID SUB insufficient number of parameters"),
    (MAGIC, b"SUB t! c!\n", b'E_BAD_TOPIC SUB topic name "t!" is not valid'),
    (MAGIC, b"SUB  c\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    (MAGIC, b"SUB t c!\n", b'E_BAD_CHANNEL SUB channel name "c!" is not valid'),
    (MAGIC, b"SUB t \n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
    # PUB: the topic is refused before the size is read, the size before the body
    (MAGIC, b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    (MAGIC, b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (MAGIC, b"PUB \xff\x00\"\xc3\xa9\n", b'E_BAD_TOPIC PUB topic name "\\xff\\x00\\"\xc3\xa9" is not valid'),
    (MAGIC, b"PUB " + b"n" * 65 + b"\n", b'E_BAD_TOPIC PUB topic name "' + b"n" * 65 + b'" is not valid'),
    (MAGIC, b"PUB t\n" + size(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    (MAGIC, b"PUB t\n" + size(-(2**31)), b"E_BAD_MESSAGE PUB invalid message body size -2147483648"),
    (MAGIC, b"PUB t\n" + size(11), b"E_BAD_MESSAGE PUB message too big 11 > 10"),
    (MAGIC, b"PUB t\n" + size(2**31 - 1), b"E_BAD_MESSAGE PUB message too big 2147483647 > 10"),
    # MPUB
    (MAGIC, b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (MAGIC, b"MPUB t!\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid'),
    (MAGIC, b"MPUB t\n" + size(0), b"E_BAD_BODY MPUB invalid body size 0"),
    (MAGIC, b"MPUB t\n" + size(-1), b"E_BAD_BODY MPUB invalid body size -1"),
    (MAGIC, b"MPUB t\n" + size(65), b"E_BAD_BODY MPUB body too big 65 > 64"),
    (MAGIC, b"MPUB t\n" + size(20) + size(0), b"E_BAD_BODY MPUB invalid message count 0"),
    (MAGIC, b"MPUB t\n" + size(4) + size(-1), b"E_BAD_BODY MPUB invalid message count -1"),
    (MAGIC, b"MPUB t\n" + size(64) + size(13), b"E_BAD_BODY MPUB invalid message count 13"),
    (MAGIC, b"MPUB t\n" + size(8) + size(1) + size(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (MAGIC, b"MPUB t\n" + size(30) + size(1) + size(-1), b"E_BAD_MESSAGE MPUB invalid message(0) body size -1"),
    (
        MAGIC,
        b"MPUB t\n" + size(13) + size(2) + size(1) + b"a" + size(-1),
        b"E_BAD_MESSAGE MPUB invalid message(1) body size -1",
    ),
    (MAGIC, b"MPUB t\n" + size(20) + size(1) + size(11), b"E_BAD_MESSAGE MPUB message too big 11 > 10"),
    (MAGIC, b"MPUB t\n" + size(10) + batch([b"a"]), b"E_BAD_BODY MPUB body size 10 does not match its 9 bytes"),
    # DPUB
    (MAGIC, b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    (MAGIC, b"DPUB t! x\n", b'E_BAD_TOPIC DPUB topic name "t!" is not valid'),
    (MAGIC, b"DPUB t 1_000\n", b"E_INVALID DPUB could not parse timeout 1_000"),
    (MAGIC, b"DPUB t +5\n", b"E_INVALID DPUB could not parse timeout +5"),
    (MAGIC, b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    (MAGIC, b"DPUB t \t12\n", b"E_INVALID DPUB could not parse timeout \t12"),
    (MAGIC, b"DPUB t \xd9\xa1\n", b"E_INVALID DPUB could not parse timeout \xd9\xa1"),
    (MAGIC, b"DPUB t 10001\n", b"E_INVALID DPUB timeout 10001 out of range 0-10000"),
    (
        MAGIC,
        b"DPUB t 18446744073709551615\n",
        b"E_INVALID DPUB timeout 18446744073709551615 out of range 0-10000",
    ),
    (MAGIC, b"DPUB t 1\n" + size(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    (MAGIC, b"DPUB t 1\n" + size(11), b"E_BAD_MESSAGE DPUB message too big 11 > 10"),
    # RDY
    (SUBSCRIBED, b"RDY 6\n", b"E_INVALID RDY count 6 out of range 0-5"),
    (SUBSCRIBED, b"RDY 18446744073709551615\n", b"E_INVALID RDY count -1 out of range 0-5"),
    (SUBSCRIBED, b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    (SUBSCRIBED, b"RDY 1_0\n", b"E_INVALID RDY could not parse count 1_0"),
    (SUBSCRIBED, b"RDY \xc2\xb2\n", b"E_INVALID RDY could not parse count \xc2\xb2"),
    # FIN, REQ, TOUCH
    (SUBSCRIBED, b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    (SUBSCRIBED, b"FIN abc\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN 0123456789abcdef0\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN 0123456789abcd f\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN 0123456789abcde\r\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN 0123\nFIN 01234567\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"REQ %b\n" % ID, b"E_INVALID REQ insufficient number of params"),
    (SUBSCRIBED, b"REQ abc x\n", b"E_INVALID invalid message ID"),
    (SUBSCRIBED, b"REQ %b 5.0\n" % ID, b"E_INVALID REQ could not parse timeout 5.0"),
    (SUBSCRIBED, b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    (SUBSCRIBED, b"TOUCH \n", b"E_INVALID invalid message ID"),
]


@every_way
@pytest.mark.parametrize(("first", "stream", "command"), LAWFUL)
@pytest.mark.parametrize("behind", [b"", b"NOP\n"])
def test_a_lawful_command_is_understood(way, first, stream, command, behind):
    heard = hear(way(first + stream + behind), SMALL)

    expected = [command, Nop()] if behind else [command]
    assert heard.said[-len(expected) :] == expected
    assert heard.error is None
    assert not heard.hung_up


@every_way
@pytest.mark.parametrize(("first", "stream", "payload"), UNLAWFUL)
@pytest.mark.parametrize("behind", [b"", b"NOP\n", b"NOP\n" * 20])
def test_what_is_wrong_is_answered_in_the_words_of_the_protocol(way, first, stream, payload, behind):
    heard = hear(way(first + stream + behind), SMALL)

    assert heard.error == payload
    assert Nop() not in heard.said


@every_way
def test_what_came_before_garbage_is_handed_out_first(way):
    heard = hear(way(MAGIC + b"NOP\nPUB t\n" + size(1) + b"xgarbage\nNOP\n"))

    assert heard.said == [Nop(), Pub("t", b"x")]
    assert heard.error == b"E_INVALID invalid command garbage"


@pytest.mark.parametrize("garbage", [b"garbage\n", b"PUB t\n" + size(-1), b"x" * 16384])
def test_after_an_error_nothing_more_is_understood(garbage):
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC + garbage + b"NOP\n")
    with pytest.raises((ProtocolError, HangUp)):
        list(connection.commands())
    connection.receive(b"PUB t\n" + size(1) + b"xPUB t\n")

    assert list(connection.commands()) == []
    assert connection.eof() is None
    assert connection.take_rest() == b""


@every_way
def test_a_long_conversation_is_the_same_however_it_arrives(way):
    said = [
        Identify(b"{}"), Auth(b"secret"), Pub("t", b"one"), Pub("t", b"two"), Mpub.of("t", [b"a", b"bb"]), Nop(),
        Sub("t", "c"), Rdy(5), Fins.of([ID] * 4), Touch(ID), Req(ID, 5_000_000), Dpub("u", SECOND, b"later"), Cls(),
        Fins.of([ID]), Pub("t", b"three"), Nop(),
    ]  # fmt: skip

    heard = hear(way(MAGIC + b"".join(command.encode() for command in said)))

    assert heard.said == said
    assert heard.error is None


def test_a_run_of_fins_is_one_command():
    connection = BrokerConnection(Limits())
    run = Fins.of(b"%016x" % number for number in range(1000))
    connection.receive(SUBSCRIBED + run.block + b"NOP\n")

    assert list(connection.commands()) == [Sub("t", "c"), run, Nop()]


def test_a_run_of_reqs_is_one_command():
    connection = BrokerConnection(Limits())
    ids = [b"%016x" % number for number in range(1000)]
    connection.receive(SUBSCRIBED + Reqs(ids, SECOND).encode() + b"NOP\n")

    assert list(connection.commands()) == [Sub("t", "c"), Reqs(ids, SECOND), Nop()]


def test_a_run_of_reqs_ends_where_a_line_differs_in_more_than_its_id():
    connection = BrokerConnection(Limits())
    plain, longer, free = b"REQ %b 1\n" % ID, b"REQ %b 12\n" % ID, b"REQ %b 1 free\n" % ID
    connection.receive(SUBSCRIBED + plain * 2 + longer * 2 + free * 2 + plain + longer[:22])

    ms = SECOND // 1000
    assert list(connection.commands()) == [
        Sub("t", "c"), Reqs([ID] * 2, ms), Reqs([ID] * 2, 12 * ms), Req(ID, ms, free=True), Req(ID, ms, free=True),
        Req(ID, ms),
    ]  # fmt: skip


def test_a_run_of_reqs_ends_before_an_id_that_is_none():
    connection = BrokerConnection(Limits())
    connection.receive(SUBSCRIBED + b"REQ %b 0\n" % ID * 3 + b"REQ %b 0\n" % (b"_" * 16) + b"REQ %b 0\n" % ID * 2)
    commands = connection.commands()

    assert [next(commands), next(commands)] == [Sub("t", "c"), Reqs([ID] * 3, 0)]


def test_fins_cut_in_the_middle_lose_nothing():
    connection = BrokerConnection(Limits())
    run = Fins.of(b"%016x" % number for number in range(10)).block
    connection.receive(SUBSCRIBED + run[:50])
    first = list(connection.commands())
    connection.receive(run[50:])

    assert first == [Sub("t", "c"), Fins(run[:42])]
    assert list(connection.commands()) == [Fins(run[42:])]


def test_a_lone_big_receive_is_handed_out_without_a_copy():
    connection = BrokerConnection(Limits())
    connection.receive(SUBSCRIBED)
    list(connection.commands())
    run = Fins.of([ID] * 1000).block
    connection.receive(run)
    (command,) = connection.commands()

    assert command.block is run


@every_way
def test_the_longest_line_is_16384_bytes_with_its_line_feed(way):
    heard = hear(way(MAGIC + b"N" * 16383 + b"\n"))

    assert heard.error == b"E_INVALID invalid command " + b"N" * 16383


@every_way
@pytest.mark.parametrize("behind", [b"", b"\n", b"N" * 70000])
def test_a_longer_line_is_hung_up_on_without_a_word(way, behind):
    heard = hear(way(MAGIC + b"NOP\n" + b"N" * 16384 + behind))

    assert heard.hung_up
    assert heard.error is None
    assert heard.said == [Nop()]


@pytest.mark.parametrize("length", range(4))
def test_an_incomplete_magic_says_nothing(length):
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC[:length])

    assert list(connection.commands()) == []
    assert connection.eof() is None
    assert connection.state is State.MAGIC


# (what has come when the client stops, the answer)
CUT_SHORT = [
    (b"", None),
    (b"NO", None),
    (b"PUB t", None),
    (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n" + size(5), b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n" + size(5) + b"abcd", b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n" + size(5) + b"abcde", None),
    (b"DPUB t 0\n\0", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 0\n" + size(2) + b"a", b"E_BAD_MESSAGE DPUB failed to read message body"),
    (b"IDENTIFY\n\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n" + size(2) + b"{", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n\0", b"E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n" + size(2) + b"x", b"E_BAD_BODY AUTH failed to read body"),
    (b"MPUB t\n\0\0", b"E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n" + size(4), b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n" + size(4) + b"\0", b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n" + size(4) + size(1), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (b"MPUB t\n" + size(4) + size(1) + b"\0", b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (b"MPUB t\n" + size(4) + size(1) + size(5) + b"a", b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"MPUB t\n" + size(40) + size(2) + size(1) + b"a\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (b"MPUB t\n" + size(40) + size(2) + size(1) + b"a" + size(2), b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"MPUB t\n" + size(400) + size(40) + size(1) + b"a", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
]


@every_way
@pytest.mark.parametrize(("stream", "payload"), CUT_SHORT)
def test_a_client_that_stops_in_mid_command_is_told_what_was_missing(way, stream, payload):
    connection = BrokerConnection(Limits())
    heard = hear(way(MAGIC + stream), connection=connection)
    error = connection.eof()

    assert heard.error is None
    assert (error and error.payload) == payload


@every_way
@pytest.mark.parametrize(
    ("content", "payload"),
    [
        (size(40) + size(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (batch([b"a"] * 40), b"E_BAD_BODY MPUB body size 1000 does not match its 204 bytes"),
    ],
)
def test_a_mistake_in_a_batch_is_answered_though_more_bytes_were_announced(way, content, payload):
    assert hear(way(MAGIC + b"MPUB t\n" + size(1000) + content)).error == payload


@every_way
def test_a_body_beyond_every_limit_is_followed_no_further(way):
    limits = Limits(max_message=30, max_body=64)
    stream = b"MPUB t\n" + size(4) + size(3) + (size(30) + b"x" * 30) * 3

    assert hear(way(MAGIC + stream), limits).error == b"E_BAD_BODY MPUB body too big 90 > 64"


@every_way
def test_bodies_may_fill_the_limit_though_their_sizes_and_count_are_not_declared(way):
    limits = Limits(max_message=32, max_body=64)
    command = Mpub.of("t", [b"x" * 32, b"y" * 32])
    stream = b"MPUB t\n" + size(64) + command.body

    assert hear(way(MAGIC + stream + b"NOP\n"), limits).said == [command, Nop()]


def test_a_declared_body_that_is_far_too_short_costs_no_more_than_an_honest_one():
    bodies = [b"x"] * 200_000
    honest = Mpub.of("t", bodies)
    began = time.process_time()
    heard = hear([MAGIC + b"MPUB t\n" + size(1) + honest.body])
    spent = time.process_time() - began

    assert heard.said == [honest]
    assert spent < 1


def test_a_big_batch_with_a_mistake_is_refused_like_a_small_one():
    body = batch([b"a"] * 99 + [b""])
    stream = MAGIC + b"MPUB t\n" + size(len(body)) + body

    for way in WAYS:
        assert hear(way(stream)).error == b"E_BAD_MESSAGE MPUB invalid message(99) body size 0"


@every_way
def test_where_tls_is_required_only_identify_is_heard_before_it(way):
    limits = Limits(tls_required=True)

    assert hear(way(MAGIC + Identify(b"{}").encode()), limits).said == [Identify(b"{}")]
    for line, word in [(b"NOP", b"NOP"), (b"PUB t", b"PUB"), (b"WHAT is", b"WHAT"), (b"", b""), (b"AUTH", b"AUTH")]:
        heard = hear(way(MAGIC + line + b"\n" + size(1) + b"x"), limits)
        assert heard.error == b"E_INVALID cannot " + word + b" in current state (TLS required)"


def test_a_pub_known_from_elsewhere_still_needs_tls_where_that_is_required():
    stream = MAGIC + Pub("well_known", b"x").encode()

    assert hear([stream, stream[4:]]).said == [Pub("well_known", b"x")] * 2
    assert hear([stream], Limits(tls_required=True)).error == b"E_INVALID cannot PUB in current state (TLS required)"


def test_once_tls_is_there_everything_is_heard():
    connection = BrokerConnection(Limits(tls_required=True))
    connection.receive(MAGIC + Identify(b"{}").encode())
    list(connection.commands())
    connection.secure()
    connection.receive(b"SUB t c\nFIN %b\n" % ID + Pub("t", b"x").encode())

    assert list(connection.commands()) == [Sub("t", "c"), Fins.of([ID]), Pub("t", b"x")]


def test_nobody_subscribes_with_heartbeats_off():
    connection = BrokerConnection(Limits())
    connection.heartbeats = False
    connection.receive(MAGIC + b"SUB\n")

    with pytest.raises(ProtocolError, match=r"^E_INVALID cannot SUB with heartbeats disabled$"):
        list(connection.commands())


def test_mpub_is_authorized_before_its_body_and_after_its_topic():
    asked = []

    def refuse(*question):
        asked.append(question)
        raise ProtocolError("E_UNAUTHORIZED", "no")

    def said(stream):
        connection = BrokerConnection(Limits())
        connection.authorize = refuse
        return hear(whole(MAGIC + stream), connection=connection)

    assert said(b"MPUB t!\n").error == b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid'
    assert asked == []
    assert said(b"MPUB t\n").error == b"E_UNAUTHORIZED no"
    assert asked == [("MPUB", "t", "")]


def test_mpub_is_authorized_once_however_slowly_its_body_comes():
    asked = []
    connection = BrokerConnection(Limits())
    connection.authorize = lambda *question: asked.append(question)
    command = Mpub.of("t", [b"a", b"b"])
    for piece in [MAGIC, *(bytes([byte]) for byte in command.encode())]:
        connection.receive(piece)
        said = list(connection.commands())

    assert said == [command]
    assert len(asked) == 1


def test_a_consumer_of_commands_may_stop_and_go_on_later():
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC + b"NOP\nSUB t c\nCLS\n")
    first = next(iter(connection.commands()))
    connection.receive(b"NOP\n")

    assert first == Nop()
    assert connection.state is State.INIT
    assert list(connection.commands()) == [Sub("t", "c"), Cls(), Nop()]
    assert connection.state is State.CLOSING


def test_what_follows_an_upgrade_can_be_taken_away():
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC + Identify(b"{}").encode() + b"\x16\x03\x01")
    said = []
    for command in connection.commands():
        said.append(command)
        rest = connection.take_rest()
    connection.receive(b"NOP\n")

    assert said == [Identify(b"{}")]
    assert rest == b"\x16\x03\x01"
    assert list(connection.commands()) == [Nop()]


def test_nothing_big_is_kept_once_it_is_handed_out():
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC + Pub("t", b"x" * 100_000).encode() + b"NO")
    list(connection.commands())

    assert connection.take_rest() == b"NO"


def test_a_size_is_refused_before_its_body_takes_any_memory():
    connection = BrokerConnection(Limits())
    connection.receive(MAGIC + b"PUB t\n" + size(1024 * 1024 + 1))

    with pytest.raises(ProtocolError, match="too big"):
        list(connection.commands())


def test_over_long_lines_raise_what_is_neither_answer_nor_bug():
    connection = BrokerConnection(Limits(longest_line=8))
    connection.receive(MAGIC + b"12345678")

    with pytest.raises(HangUp):
        list(connection.commands())


def test_every_state_knows_what_is_lawful():
    assert set(LEGAL) == set(State)


# --- REJ, once it is negotiated ---------------------------------------------------------------------------------


def rejecting(limits=SMALL):
    connection = BrokerConnection(limits)
    connection.grant(reject=True)
    return connection


@every_way
@pytest.mark.parametrize("before", [SUBSCRIBED, CLOSING])
def test_a_granted_reject_is_understood(before, way):
    body = b'{"reason":"no"}'
    stream = before + b"REJ %b\n" % ID + size(len(body)) + body + b"NOP\n"

    assert hear(way(stream), connection=rejecting()).said[-2:] == [Rej(ID, body), Nop()]


@every_way
@pytest.mark.parametrize(
    ("before", "stream", "answer"),
    [
        (MAGIC, b"REJ %b\n" % ID, b"E_INVALID cannot REJ in current state"),
        (SUBSCRIBED, b"REJ\n", b"E_INVALID REJ insufficient number of params"),
        (SUBSCRIBED, b"REJ x\n", b"E_INVALID invalid message ID"),
        (SUBSCRIBED, b"REJ %b\n" % ID + size(0), b"E_BAD_BODY REJ invalid body size 0"),
        (SUBSCRIBED, b"REJ %b\n" % ID + size(65), b"E_BAD_BODY REJ body too big 65 > 64"),
    ],
)
def test_a_reject_that_is_none_is_refused(before, stream, answer, way):
    assert hear(way(before + stream), connection=rejecting()).error == answer


def test_a_reject_is_never_long():
    stream = SUBSCRIBED + b"REJ %b\n" % ID + size(65537)

    assert hear([stream], connection=rejecting(Limits())).error == b"E_BAD_BODY REJ body too big 65537 > 65536"


@pytest.mark.parametrize(
    "command", [Req(ID, 0, free=True), Req(ID, 5 * SECOND, error="KeyError: 'a b'\n\u00e9"), Rej.of(ID, "bad", "e")]
)
def test_what_a_client_says_of_a_failure_arrives(command):
    connection = rejecting(Limits())

    assert hear([SUBSCRIBED + command.encode()], connection=connection).said[-1] == command


def test_reason_and_error_of_a_reject():
    assert rejection(Rej.of(ID, "bad", "why").body) == ("bad", "why")
    assert rejection(b"{}") == ("", "")
    assert rejection(Rej.of(ID, "\u00e9" * 5000).body) == ("\u00e9" * 2048, "")
    for body in (b"[]", b"{", b'{"reason": 5}'):
        with pytest.raises(ProtocolError, match=r"^E_BAD_BODY REJ failed to decode JSON body$"):
            rejection(body)


# --- HPUB and HMPUB, once they are negotiated -------------------------------------------------------------------


def with_headers(limits=SMALL):
    connection = BrokerConnection(limits)
    connection.grant(headers=True)
    return connection


@every_way
@pytest.mark.parametrize("before", [MAGIC, SUBSCRIBED, CLOSING])
@pytest.mark.parametrize("behind", [b"", b"NOP\n"])
@pytest.mark.parametrize(
    "command",
    [
        Hpub.of("t", b'{"a":"1"}', b"body"),
        Hpub.of("t", b"", b"x", delay=5 * SECOND),
        Hpub.of("t", b'{"a":"' + b"x" * 16000 + b'"}', b"x" * 10),
        Hmpub.of("t", [(b'{"a":"1"}', b"one"), (b"", b"two")]),
    ],
)
def test_a_granted_publish_with_headers_is_understood(way, before, behind, command):
    heard = hear(way(before + command.encode() + behind), connection=with_headers())

    expected = [command, Nop()] if behind else [command]
    assert heard.said[-len(expected) :] == expected


@every_way
@pytest.mark.parametrize("word", [b"HPUB", b"HMPUB"])
def test_a_publish_with_headers_that_was_not_granted_is_no_command(way, word):
    heard = hear(way(MAGIC + word + b" t\n" + size(5) + b"xxxxx"), SMALL)

    assert heard.error == b"E_INVALID invalid command " + word


@every_way
def test_headers_are_granted_behind_tls_only_where_that_is_required(way):
    connection = with_headers(Limits(tls_required=True))

    heard = hear(way(MAGIC + b"HPUB t\n"), connection=connection)

    assert heard.error == b"E_INVALID cannot HPUB in current state (TLS required)"


@pytest.mark.parametrize(
    ("stream", "payload"),
    [
        (b"HPUB t\n" + size(10 + 4 + 16384 + 1), b"E_BAD_MESSAGE HPUB message too big 16399 > 10"),
        (b"HMPUB t\n" + size(65), b"E_BAD_BODY HMPUB body too big 65 > 64"),
        (b"HMPUB t\n" + size(-1), b"E_BAD_BODY HMPUB invalid body size -1"),
    ],
)
def test_a_publish_with_headers_is_limited_before_it_is_read(stream, payload):
    assert hear([MAGIC + stream], connection=with_headers()).error == payload


def test_the_end_inside_a_publish_with_headers_is_answered():
    connection = with_headers()
    hear([MAGIC + b"HMPUB t\n" + size(9) + b"xx"], connection=connection)

    assert connection.eof().payload == b"E_BAD_BODY HMPUB failed to read body"


def test_a_connection_keeps_nothing_of_a_command_that_is_handed_out():
    connection = BrokerConnection(Limits())
    for data in (MAGIC + b"IDENTIFY\n" + size(2) + b"{}", b"MPUB t\n" + size(9) + size(1) + size(1) + b"x"):
        connection.receive(data)
        command = next(connection.commands())

        assert all(each is not command for each in gc.get_referents(connection))
