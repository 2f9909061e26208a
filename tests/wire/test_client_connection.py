"""The client's end: frames in, whatever way they arrive."""

import pytest
from feeding import WAYS, cut
from hypothesis import given
from hypothesis import strategies as st

from lapwing import kernel
from lapwing.errors import ProtocolError
from lapwing.wire.nsq import frames
from lapwing.wire.nsq.connection import ClientConnection, ErrorFrame, Messages, Response

every_way = pytest.mark.parametrize("way", WAYS)


def hear(pieces, connection=None):
    """Frames, with neighbouring runs of messages joined; and the error that ended it, if any."""
    connection = connection or ClientConnection()
    said = []
    try:
        for piece in pieces:
            connection.receive(piece)
            for frame in connection.frames():
                if isinstance(frame, Messages) and said and isinstance(said[-1], Messages):
                    said[-1] = Messages(said[-1].messages + frame.messages)
                else:
                    said.append(frame)
    except ProtocolError as error:
        return said, str(error)
    return said, None


@every_way
def test_frames_of_all_kinds_come_out_in_order(way):
    stream = (
        frames.OK
        + kernel.frame_bodies([b"one", b"", b"three"], 5, 1_000)
        + frames.error(b"E_FIN_FAILED FIN x failed")
        + frames.HEARTBEAT
        + kernel.with_attempts(kernel.frame_one(b"again", 6, 2_000), 3)
        + frames.response(b"")
    )
    said, error = hear(way(stream))

    assert said == [
        Response(b"OK"),
        Messages(
            [
                (1_000, 1, b"0000000000000005", b"one"),
                (1_000, 1, b"0000000000000006", b""),
                (1_000, 1, b"0000000000000007", b"three"),
            ]
        ),
        ErrorFrame(b"E_FIN_FAILED FIN x failed"),
        Response(b"_heartbeat_"),
        Messages([(2_000, 3, b"0000000000000006", b"again")]),
        Response(b""),
    ]
    assert error is None


def test_a_run_of_messages_is_one_thing():
    connection = ClientConnection()
    connection.receive(kernel.frame_bodies([b"x" * 200] * 500, 0, 0))
    (run,) = connection.frames()

    assert len(run.messages) == 500


@every_way
@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "E_BAD_PROTOCOL the peer speaks HTTP: this is not the TCP port of an nsqd"),
        (b"\0\0\0\3abc", "E_BAD_PROTOCOL frame of 3 bytes, at least 4 needed"),
        (b"\0\0\0\0", "E_BAD_PROTOCOL frame of 0 bytes, at least 4 needed"),
        (b"\xff\xff\xff\xff", "E_BAD_PROTOCOL frame of 4294967295 bytes, at most 67108864 accepted"),
        (b"\0\0\0\4\0\0\0\3", "E_BAD_PROTOCOL message frame of 4 bytes whose headers do not fit"),
        (b"\0\0\0\4\0\0\0\4", "E_BAD_PROTOCOL frame type 4, expected 0 to 3"),
        (b"\0\0\0\5\0\0\0\2x", "E_BAD_PROTOCOL message frame of 5 bytes, at least 30 needed"),
    ],
)
@pytest.mark.parametrize("behind", [b"", frames.OK])
def test_garbage_is_named_after_what_came_before_it(way, stream, text, behind):
    said, error = hear(way(frames.OK + stream + behind))

    assert said == [Response(b"OK")]
    assert error == text


def test_a_frame_as_large_as_allowed_is_taken_and_no_larger():
    connection = ClientConnection(max_frame=10)
    connection.receive(frames.response(b"123456") + frames.response(b"1234567"))
    said, error = hear([], connection)
    frames_heard = connection.frames()

    assert (said, error) == ([], None)
    assert next(frames_heard) == Response(b"123456")
    with pytest.raises(ProtocolError, match="at most 10 accepted"):
        next(frames_heard)


def test_what_follows_an_upgrade_can_be_taken_away():
    connection = ClientConnection()
    connection.receive(frames.OK + b"\x16\x03")
    said = list(connection.frames())

    assert said == [Response(b"OK")]
    assert connection.take_rest() == b"\x16\x03"
    connection.receive(frames.HEARTBEAT)
    assert list(connection.frames()) == [Response(b"_heartbeat_")]


FRAMES = st.one_of(
    st.binary(max_size=20).map(frames.response),
    st.binary(max_size=20).map(frames.error),
    st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(lambda bodies: kernel.frame_bodies(bodies, 1, 2)),
    st.binary(max_size=12),
)


@given(st.lists(FRAMES, max_size=8).map(b"".join), st.lists(st.integers(0, 10_000), max_size=12))
def test_how_frames_are_cut_never_changes_what_is_heard(stream, places):
    assert hear(cut(stream, places)) == hear([stream])


@every_way
@pytest.mark.parametrize("behind", [b"", frames.OK])
def test_messages_with_headers_come_with_them(way, behind):
    bodies = kernel.frame_bodies([b"one", b"two"], 0, 7)
    stream = kernel.with_headers(bodies, b'[0,0,{"a":"1"}],[1,0,{"b":"2"}]')

    said, error = hear(way(stream + behind))

    rows = [row for each in said if isinstance(each, Messages) for row in each.messages]
    assert rows == [(7, 1, b"%016x" % 0, b"one", b'{"a":"1"}'), (7, 1, b"%016x" % 1, b"two", b'{"b":"2"}')]
    assert error is None
    assert (said[-1] == Response(b"OK")) is bool(behind)
