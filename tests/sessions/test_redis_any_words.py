"""Whatever words a client sends: each command is answered once, with RESP, and nothing raises."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_stage import NOW, RedisStage, decode, encode

from example_counts import examples
from lapwing.wire.resp import commands
from play import MS

T0 = NOW // MS

ids = st.sampled_from(
    [b"%d-%d" % (T0, number) for number in range(4)] + [b"0", b"$", b">", b"-", b"+", b"*", b"5-1", b"(0"]
)
options = st.sampled_from(
    b"COUNT BLOCK STREAMS GROUP NOACK CLAIM MAXLEN MINID ~ = LIMIT NOMKSTREAM KEEPREF DELREF ACKED IDMP IDS FAIL "
    b"SILENT FATAL FORCE JUSTID IDLE TIME RETRYCOUNT LASTID MKSTREAM ENTRIESREAD ENTRIESADDED MAXDELETEDID FULL MATCH "
    b"TYPE AUTH SETNAME ON OFF SKIP ID USER MAXCOUNT MAXSIZE IDMP-DURATION IDMPAUTO".split()
)
numbers = st.sampled_from([b"0", b"1", b"2", b"10", b"-1", b"9223372036854775807", b"99999999999999999999", b"x", b""])
names = st.sampled_from([b"s", b"t", b"g", b"h", b"c", b"d", b"data", b"f", b"v"])
words = st.one_of(names, names, ids, options, numbers, st.binary(max_size=6))
silent = {"quit", "client|reply", "client|kill"}
known = [spec.name.split("|") for spec in commands.all_specs() if spec.name not in silent]
named = st.sampled_from([[part.encode() for part in parts] for parts in known])
streams = st.sampled_from([[part.encode() for part in parts] for parts in known if parts[0].startswith("x")])
loose = st.builds(lambda name, rest: [*name, *rest], st.one_of(named, streams, streams), st.lists(words, max_size=9))
meant = st.sampled_from(
    [
        encoded.encode().split()
        for encoded in (
            "XADD s * f v",
            "XADD t MAXLEN 2 * data x",
            "XADD t 9999999999999-* data x",
            "XGROUP CREATE s g 0 MKSTREAM",
            "XGROUP CREATE t h $ MKSTREAM",
            "XGROUP SETID s g 0",
            "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
            "XREADGROUP GROUP h d STREAMS t >",
            "XREADGROUP GROUP g c STREAMS s 0",
            f"XACK s g {T0}-0",
            f"XDEL s {T0}-1",
            f"XCLAIM s g d 0 {T0}-0 {T0}-1 FORCE",
            "XAUTOCLAIM s g d 0 0",
            f"XNACK s g FAIL IDS 1 {T0}-0",
            "XTRIM s MAXLEN 1 DELREF",
            "XINFO STREAM s FULL",
            "XINFO GROUPS t",
            "XPENDING s g - + 10",
            "MULTI",
            "EXEC",
            "DEL s",
            "HELLO 3",
        )
    ]
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(meant, meant, loose), max_size=14))
def test_every_command_is_answered_once_whatever_its_words_are(said: list[list[bytes]]) -> None:
    stage = RedisStage(max_body_size=100_000, max_msg_size=50_000)
    client = stage.redis()
    expected = 0
    for command in said:
        client.send(command)
        if client.session.wait is not None:
            client.session.end_wait(client.session.wait.on_timeout or b"*-1\r\n")
        expected += 1
        stage.pass_time(MS)
    stage.checkpoint(trim=True)

    data, count = client.raw(), 0
    while data:
        _, data = decode(data)
        count += 1
    assert count == expected
    for topic in stage.broker.topics_in_use():
        for channel in topic.channels.values():
            assert channel.depth >= 0
            held = [sequence for holder in channel.ledger.holders for sequence in holder.in_flight]
            assert len(held) == len(set(held)), "a message has two holders"


def test_commands_that_are_not_in_the_table_are_answered_too() -> None:
    client = RedisStage().redis()
    client.send(*[encode("X" * length) and [b"X" * length] for length in range(1, 40)])

    assert len(client.replies()) == 39
