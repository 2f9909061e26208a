"""Feature negotiation: what is asked, what is granted, what is refused."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.errors import ProtocolError
from lapwing.wire.nsq.identify import Identity, Terms, negotiate, parse
from lapwing.wire.nsq.json import JsonKind, MemberReader, compact_json, read_members

MS = 1_000_000
TERMS = Terms(version="1.3.0")


def answer(identity, terms=TERMS):
    return json.loads(negotiate(identity, terms)[1])


@pytest.mark.parametrize(
    ("body", "identity"),
    [
        (b"{}", Identity()),
        (b"null", Identity()),
        (b" \r\n\t{ }\n", Identity()),
        (b'{"client_id":"c","hostname":"h"}', Identity(client_id="c", hostname="h")),
        (b'{"Client_ID":"c","USER_AGENT":"u"}', Identity(client_id="c", user_agent="u")),
        ('{"u\u017fer_agent":"u"}'.encode(), Identity(user_agent="u")),
        (b'{"msg_timeout":5,"msg_timeout":6}', Identity(msg_timeout=6)),
        (b'{"msg_timeout":5,"MSG_TIMEOUT":null}', Identity(msg_timeout=5)),
        (b'{"msg_timeout":null,"tls_v1":null,"client_id":null}', Identity()),
        (b'{"short_id":1.5,"long_id":[{}],"x":{"msg_timeout":true}}', Identity()),
        (b'{"msg_timeout":-0,"sample_rate":-2147483648}', Identity(sample_rate=-(2**31))),
        (b'{"msg_timeout":9223372036854775807}', Identity(msg_timeout=2**63 - 1)),
        (b'{"client_id":"\xff","hostname":"\\ud800x\\u00e9"}', Identity(client_id="\ufffd", hostname="\ufffdx\u00e9")),
        (b'{"x":' + b"1" * 10_000 + b"}", Identity()),
    ],
)
def test_an_identity_is_read_as_go_reads_it(body, identity):
    assert parse(body) == identity


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"[]", b"5", b'"x"', b"true", b"{} {}", b"{}x", b"\xef\xbb\xbf{}", b"{'a':1}", b'{"a":1,}',
        b'{"client_id":5}', b'{"client_id":true}', b'{"client_id":1.5}', b'{"client_id":["c"]}', b'{"client_id":"\n"}',
        b'{"msg_timeout":"5000"}', b'{"msg_timeout":5000.0}', b'{"msg_timeout":5e3}', b'{"msg_timeout":true}',
        b'{"msg_timeout":{}}', b'{"msg_timeout":05}', b'{"msg_timeout":+5}', b'{"msg_timeout":1_000}',
        b'{"msg_timeout":9223372036854775808}', b'{"msg_timeout":-9223372036854775809}',
        b'{"msg_timeout":' + b"9" * 10_000 + b"}", b'{"sample_rate":2147483648}',
        b'{"msg_timeout":"x","msg_timeout":5}',
        b'{"tls_v1":1}', b'{"tls_v1":"true"}', b'{"x":NaN}', b'{"x":Infinity}', b'{"x":-Infinity}',
        b"[" * 100_000, b'{"x":' * 50_000, "{}".encode("utf-16"), b"\0", b'{"msg_timeout":\xd9\xa1}',
    ],
)  # fmt: skip
def test_what_go_cannot_decode_is_refused(body):
    with pytest.raises(ProtocolError, match=r"^E_BAD_BODY IDENTIFY failed to decode JSON body$"):
        parse(body)


def random_json() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )


@settings(max_examples=examples(50))
@given(
    st.dictionaries(st.text() | st.sampled_from(["msg_timeout", "hostname"]), random_json(), max_size=5),
    st.integers(0, 3),
    st.floats(0, 1, exclude_max=True),
)
def test_every_object_of_json_is_understood_and_no_part_of_one(document, indent, share):
    text = json.dumps(document, indent=indent or None, ensure_ascii=indent % 2 == 0)
    found = read_members(text.encode("utf-8", "replace"), {"msg_timeout": JsonKind.INT64}, lenient={"msg_timeout"})

    asked = document.get("msg_timeout")
    if type(asked) is int and -(2**63) <= asked < 2**63:
        assert found == {"msg_timeout": asked}
    with pytest.raises(ValueError):
        read_members(text[: int(len(text) * share)].encode("utf-8", "replace"), {})


@given(st.binary(max_size=60))
def test_what_python_reads_is_read(body):
    try:
        expected = isinstance(json.loads(body.decode("utf-8", "replace")), dict | None)
    except ValueError:
        expected = False
    try:
        read_members(body, {})
        read = True
    except ValueError:
        read = False

    assert read == expected or b"N" in body or b"I" in body  # Python knows NaN and Infinity


@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % b",".join(b'"k%06d":1' % number for number in range(100_000)),
        b"{%b}" % b",".join(b'"k\\\\%05d":1' % number for number in range(100_000)),
        b'{"x":[%b1]}' % (b"1," * 500_000),
        b'{"x":[%b1]}' % (b"[1]," * 100_000),
        b'{"x":[%b1]}' % (b'{"":{}},' * 100_000),
        b'{"x":"%b"}' % (b"\\u0041" * 200_000),
        b'{"client_id":"%b"}' % (b"\\n" * 500_000),
        b'{"%b":1}' % (b"\\n" * 500_000),
        b"{%b}" % (b" " * 1_000_000),
    ],
    ids=lambda body: body[:12].decode(),
)
def test_the_largest_body_is_read_in_small_slices(body, no_collector):
    reader = MemberReader(body, {"client_id": JsonKind.TEXT})
    longest, done = 0.0, False
    while not done:
        began = time.process_time()
        done = reader.advance()
        longest = max(longest, time.process_time() - began)

    assert longest < 0.1  # a few ms on an idle machine, however long the body is


def test_of_a_text_1_kib_is_kept():
    ending = "é" * 2_000_000
    found = parse(json.dumps({"client_id": "x" + ending, "hostname": "\n" * 3000}, ensure_ascii=False).encode())

    assert found.client_id == "x" + "é" * 511
    assert found.hostname == "\n" * 1024


@given(st.binary(max_size=60))
def test_no_body_breaks_anything_but_the_protocol(body):
    with suppress(ProtocolError):
        assert isinstance(parse(body), Identity)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"heartbeat_interval": -2}, "heartbeat interval (-2)"),
        ({"heartbeat_interval": 999}, "heartbeat interval (999)"),
        ({"heartbeat_interval": 60001}, "heartbeat interval (60001)"),
        ({"output_buffer_timeout": -2}, "output buffer timeout (-2)"),
        ({"output_buffer_timeout": 24}, "output buffer timeout (24)"),
        ({"output_buffer_timeout": 30001}, "output buffer timeout (30001)"),
        ({"output_buffer_size": -2}, "output buffer size (-2)"),
        ({"output_buffer_size": 63}, "output buffer size (63)"),
        ({"output_buffer_size": 65537}, "output buffer size (65537)"),
        ({"sample_rate": -1}, "sample rate (-1)"),
        ({"sample_rate": 100}, "sample rate (100)"),
        ({"msg_timeout": -1}, "msg timeout (-1)"),
        ({"msg_timeout": 999}, "msg timeout (999)"),
        ({"msg_timeout": 900001}, "msg timeout (900001)"),
        ({"msg_timeout": 1, "sample_rate": 100}, "sample rate (100)"),
        ({"sample_rate": 100, "output_buffer_size": 1}, "output buffer size (1)"),
        ({"output_buffer_size": 1, "output_buffer_timeout": 1}, "output buffer timeout (1)"),
        ({"output_buffer_timeout": 1, "heartbeat_interval": 1}, "heartbeat interval (1)"),
    ],
)
def test_a_value_out_of_bounds_is_refused_the_first_one_first(asked, text):
    with pytest.raises(ProtocolError) as refused:
        negotiate(Identity(**asked), TERMS)

    assert refused.value.payload == f"E_BAD_BODY IDENTIFY {text} is invalid".encode()


def test_values_in_bounds_hold_in_nanoseconds():
    settings, payload = negotiate(
        Identity(
            client_id="c", hostname="h", user_agent="u", topology_region="r", topology_zone="z",
            heartbeat_interval=1000, output_buffer_timeout=25, output_buffer_size=64, sample_rate=99,
            msg_timeout=900000,
        ),
        TERMS,
    )  # fmt: skip

    assert payload == b"OK"
    assert (settings.client_id, settings.hostname, settings.user_agent) == ("c", "h", "u")
    assert (settings.topology_region, settings.topology_zone) == ("r", "z")
    assert settings.heartbeat_interval == 1000 * MS
    assert (settings.output_buffer_size, settings.output_buffer_timeout) == (64, 25 * MS)
    assert (settings.sample_rate, settings.msg_timeout) == (99, 900_000 * MS)


def test_what_is_not_asked_for_stays_as_it_was():
    first, _ = negotiate(Identity(client_id="c", heartbeat_interval=5000, msg_timeout=2000, sample_rate=5), TERMS)
    second, _ = negotiate(Identity(), TERMS, first)

    assert second.heartbeat_interval == 5000 * MS
    assert second.msg_timeout == 2000 * MS
    assert (second.client_id, second.sample_rate) == ("", 0)


def test_before_identify_a_client_is_called_after_its_address():
    settings = TERMS.settings("10.0.0.9")

    assert (settings.client_id, settings.hostname) == ("10.0.0.9", "10.0.0.9")
    assert settings.heartbeat_interval == 30_000 * MS


def test_heartbeats_and_buffers_can_be_turned_off():
    settings, _ = negotiate(Identity(heartbeat_interval=-1, output_buffer_timeout=-1), TERMS)
    unbuffered, _ = negotiate(Identity(output_buffer_size=-1, output_buffer_timeout=500), TERMS)

    assert settings.heartbeat_interval == 0
    assert (settings.output_buffer_size, settings.output_buffer_timeout) == (16384, 0)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout) == (1, 0)


def test_the_negotiated_answer_is_exact_to_the_byte():
    _, payload = negotiate(Identity(feature_negotiation=True), TERMS)

    assert payload == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
        b'"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
    )


def test_the_answer_speaks_of_the_broker_and_is_safe_in_html():
    terms = Terms(version="1.3.0", topology_region="r", topology_zone="z<1&2>", auth_required=True, max_deflate_level=3)
    _, payload = negotiate(Identity(feature_negotiation=True, topology_zone="mine"), terms)

    assert payload.endswith(b'"topology_region":"r","topology_zone":"z\\u003c1\\u00262\\u003e"}')
    assert json.loads(payload)["auth_required"] is True
    assert json.loads(payload)["deflate_level"] == 3


def test_features_are_granted_only_where_both_sides_want_them():
    wanted = Identity(feature_negotiation=True, tls_v1=True, deflate=True, deflate_level=3)

    assert answer(wanted)["tls_v1"] is False
    assert answer(wanted, Terms(version="1", tls=True))["tls_v1"] is True
    assert answer(wanted)["deflate"] is True
    assert answer(wanted)["deflate_level"] == 3
    assert answer(wanted, Terms(version="1", deflate=False))["deflate"] is False
    assert answer(wanted, Terms(version="1", deflate=False))["deflate_level"] == 6
    assert answer(Identity(feature_negotiation=True, snappy=True))["snappy"] is True
    assert answer(Identity(feature_negotiation=True, snappy=True), Terms(version="1", snappy=False))["snappy"] is False


@pytest.mark.parametrize(("asked", "granted"), [(0, 6), (-5, 6), (1, 1), (6, 6), (9, 6)])
def test_a_deflate_level_is_lowered_to_what_is_allowed(asked, granted):
    settings, _ = negotiate(Identity(feature_negotiation=True, deflate=True, deflate_level=asked), TERMS)

    assert settings.deflate_level == granted


def test_without_negotiation_no_feature_is_granted():
    settings, payload = negotiate(Identity(tls_v1=True, snappy=True, deflate=True), Terms(version="1", tls=True))

    assert payload == b"OK"
    assert (settings.tls, settings.snappy, settings.deflate) == (False, False, False)


def test_two_compressions_at_once_are_refused():
    both = Identity(feature_negotiation=True, snappy=True, deflate=True)
    with pytest.raises(ProtocolError) as refused:
        negotiate(both, TERMS)

    assert refused.value.payload == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert answer(both, Terms(version="1", snappy=False))["deflate"] is True


def test_a_client_says_what_a_broker_reads():
    identity = Identity(client_id="c<", feature_negotiation=True, heartbeat_interval=-1, msg_timeout=5)

    assert parse(identity.encode()) == identity
    assert Identity().encode() == b"{}"


@pytest.mark.parametrize(
    ("document", "written"),
    [
        ({"a": [1, True, None]}, b'{"a":[1,true,null]}'),
        ("<&>\u2028\u2029", b'"\\u003c\\u0026\\u003e\\u2028\\u2029"'),
        ("\b\f\n\r\t\x01\x7f", b'"\\u0008\\u000c\\n\\r\\t\\u0001\x7f"'),
        ("\\b \\f \"", b'"\\\\b \\\\f \\""'),
        ("caf\u00e9", '"caf\u00e9"'.encode()),
    ],
)
def test_json_is_written_as_go_writes_it(document, written):
    assert compact_json(document) == written


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.booleans(), st.integers())))
def test_json_as_written_reads_back(document):
    assert json.loads(compact_json(document)) == document


def test_members_are_read_by_their_kind():
    kinds = {"name": JsonKind.TEXT, "small": JsonKind.INT32, "on": JsonKind.FLAG}
    members = read_members(b'{"NAME":"n","small":7,"on":false,"other":"x"}', kinds)

    assert members == {"name": "n", "small": 7, "on": False}


def test_reject_is_granted_to_those_who_ask():
    assert answer(Identity(feature_negotiation=True, reject=True))["reject"] is True
    assert "reject" not in answer(Identity(feature_negotiation=True))
    assert negotiate(Identity(reject=True), TERMS)[0].reject is False


def test_max_attempts_of_the_channel_is_in_the_answer_if_it_was_named():
    identity = Identity(feature_negotiation=True, topic="t", channel="c")

    assert json.loads(negotiate(identity, TERMS, max_attempts=0)[1])["max_attempts"] == 0
    assert "max_attempts" not in answer(identity)


def test_a_channel_that_chooses_delays_says_so_behind_all_others():
    payload = negotiate(Identity(feature_negotiation=True), TERMS, max_attempts=3, retries=True)[1]

    assert payload.endswith(b',"max_attempts":3,"retries":true}')
    assert b"retries" not in negotiate(Identity(feature_negotiation=True), TERMS, max_attempts=0)[1]


@pytest.mark.parametrize("body", [b'{"reject":1}', b'{"reject":"yes","topic":5,"channel":{}}'])
def test_a_client_that_means_something_else_by_our_members_is_not_refused(body):
    assert parse(body) == Identity()
