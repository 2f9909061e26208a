"""Whatever bytes arrive, and however they are cut: the same commands, the same answer, and never a surprise."""

from feeding import ID, cut, hear
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.wire.nsq import commands
from lapwing.wire.nsq.commands import MAGIC, Dpub, Fins, Identify, Mpub, Pub, batch
from lapwing.wire.nsq.connection import BrokerConnection, Limits

LIMITS = Limits(max_message=20, max_body=120, max_rdy=10, longest_line=100)

numbers = st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 5, 9, 13, 20, 21, 40, 120, 121, 2**31 - 1])
sizes = numbers.map(lambda number: number.to_bytes(4, "big", signed=True))
bodies = st.binary(min_size=1, max_size=20)
lines = st.sampled_from(
    [
        b"NOP\n", b"NOP\r\n", b"SUB t c\n", b"SUB t\n", b"CLS\n", b"RDY 5\n", b"RDY 11\n", b"RDY\n", b"RDY \n",
        b"FIN %b\n" % ID, b"FIN %b\r\n" % ID, b"FIN %b x\n" % ID, b"FIN x\n", b"REQ %b 5\n" % ID,
        b"REQ %b 5\n" % ID * 3, b"REQ %b 0 free\n" % ID, b"REQ 0123456789 bcdef 5\n", b"TOUCH %b\n" % ID,
        b"PUB t\n", b"PUB t\r\n", b"PUB t!\n", b"MPUB t\n", b"DPUB t 5\n", b"DPUB t x\n", b"IDENTIFY\n", b"AUTH\n",
        b"\n",
    ]
)  # fmt: skip
batches = st.lists(bodies, min_size=1, max_size=4).map(batch)
wholes = st.one_of(
    bodies.map(lambda body: Pub("t", body).encode()),
    bodies.map(lambda body: Dpub("t", 0, body).encode()),
    bodies.map(lambda body: Identify(body).encode()),
    batches.map(lambda body: Mpub("t", body).encode()),
    st.tuples(sizes, batches).map(lambda parts: b"MPUB t\n" + parts[0] + parts[1]),
    st.integers(1, 5).map(lambda count: Fins.of([ID] * count).block),
)
streams = st.lists(st.one_of(lines, wholes, sizes, batches, st.binary(max_size=8)), max_size=12).map(b"".join)
subscribed = st.booleans().map(lambda yes: MAGIC + b"SUB t c\n" if yes else MAGIC)
places = st.lists(st.integers(0, 100_000), max_size=20)


@settings(max_examples=examples(500))
@given(subscribed, streams, places)
def test_how_a_stream_is_cut_never_changes_what_is_heard(first, stream, places):
    assert hear(cut(first + stream, places), LIMITS) == hear([first + stream], LIMITS)


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_break_nothing_but_the_protocol(stream, greeted):
    stream = MAGIC + stream if greeted else stream
    heard = hear([stream], LIMITS)

    assert hear([stream[at : at + 1] for at in range(len(stream))], LIMITS) == heard


@settings(max_examples=examples(300))
@given(subscribed, streams, places)
def test_how_a_stream_is_cut_never_changes_the_last_word_either(first, stream, places):
    def last_word(pieces):
        connection = BrokerConnection(LIMITS)
        heard = hear(pieces, connection=connection)
        if heard.error or heard.hung_up:
            return heard.error
        error = connection.eof()
        return error and error.payload

    assert last_word(cut(first + stream, places)) == last_word([first + stream])


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_a_batch_gives_back_its_bodies(sent):
    assert commands.bodies(batch(sent)) == sent
