"""Publishes are written to the end of a log, and answered, where they are received."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from lapwing.kernel import pure
from lapwing.net import polled

pytestmark = pytest.mark.skipif(not polled.available, reason="the compiled set of sockets needs Linux and a C compiler")

OK = b"\0\0\0\6\0\0\0\0OK"
LINE = b"PUB t\n"
FIRST = 7 << 54 | 100
NOW = 12345


def pub(body: bytes) -> bytes:
    return LINE + len(body).to_bytes(4, "big") + body


def mpub(*bodies: bytes) -> bytes:
    inner = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return b"MPUB t\n" + (4 + len(inner)).to_bytes(4, "big") + len(bodies).to_bytes(4, "big") + inner


class Timer:
    """The time of a client's last command."""

    last_command = 0


class Owner:
    """A connection of the set, as a transport would be; `far` is the client."""

    def __init__(self, room: "Room") -> None:
        self.near, self.far = socket.socketpair()
        self.fd = self.near.fileno()
        self.publishes = room.publishes
        self.direct = True
        self.published: dict[str, int] | None = None
        self.timer = Timer()
        self.written = b""
        room.sockets.add(self.fd, self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self.written += data


class Room:
    """A set of sockets, and the tail of a file that begins with four bytes."""

    def __init__(self, path: Path, line: bytes = LINE) -> None:
        from lapwing.net._sockets import LogTail, Publishes, SocketSet

        path.write_bytes(b"head")
        self.path = path
        self.file = os.open(path, os.O_RDWR)
        self.sockets = SocketSet()
        self.publishes: Publishes = Publishes(line, lambda: None, max_count=100, max_size=1000, max_body=10_000)
        self.tail: LogTail = LogTail(self.publishes, "t")
        self.owners: list[Owner] = []

    def owner(self) -> Owner:
        self.owners.append(Owner(self))
        return self.owners[-1]

    def aim(self, *, room: int = 10_000, file: int | None = None, stays: bool = False) -> None:
        self.tail.aim(self.file if file is None else file, 4, room, FIRST, 0, stays, NOW)

    def receive(self) -> tuple[list[object], list[object]]:
        found, ran = self.sockets.receive(self.tail)
        return list(found), list(ran)

    def close(self) -> None:
        self.sockets.close()
        os.close(self.file)
        for owner in self.owners:
            owner.near.close()
            owner.far.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "log")
    yield made
    made.close()


def bodies(frames: bytes) -> list[bytes]:
    starts = pure.scan_frames(frames, 0, len(frames))[0]
    return [frames[start + pure.HEAD : stop] for start, stop in pairwise(starts)]


@pytest.mark.parametrize("stays", [False, True])
def test_publishes_of_several_sockets_are_written_in_order_and_answered(room: Room, stays: bool) -> None:
    one, two = room.owner(), room.owner()
    room.aim(stays=stays)
    one.far.send(pub(b"a") + pub(b"b"))
    two.far.send(pub(b"c"))
    nothing = room.receive()
    frames, count, senders = room.tail.take()

    assert nothing == ([], [])
    assert count == 3
    assert senders == {one: 2, two: 1}
    assert room.path.read_bytes() == b"head" + frames
    stamps = {frames[start + 8 : start + 16] for start in pure.scan_frames(frames, 0, len(frames))[0][:-1]}
    expected = b"".join(pure.frame_one(body, FIRST + at, 0) for at, body in enumerate([b"a", b"b", b"c"]))
    for stamp in stamps:
        frames = frames.replace(stamp, bytes(8))
    assert frames == expected
    assert one.far.recv(100) == OK * 2
    assert two.far.recv(100) == OK


def test_publishes_of_an_owner_that_counts_are_counted_there(room: Room) -> None:
    one, two = room.owner(), room.owner()
    two.published = {"t": 5, "other": 1}
    for owner in (one, two):
        room.aim()
        owner.far.send(pub(b"a") + pub(b"b"))
        room.receive()
        senders = room.tail.take()[2]

        assert senders == ({one: 2} if owner is one else {})

    assert two.published == {"t": 7, "other": 1}
    assert (one.timer.last_command, two.timer.last_command) == (0, NOW)


def test_a_call_that_stays_takes_what_another_thread_sends_meanwhile(room: Room) -> None:
    """The client publishes again when it has its answer: it can, as the call that waits for it lets threads run."""
    one, deadline, most = room.owner(), time.monotonic() + 30, 0

    def publish_again() -> None:
        while one.far.recv(100):
            one.far.send(pub(b"next"))

    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(publish_again)
        one.far.send(pub(b"first"))
        while most < 2 and time.monotonic() < deadline:  # a busy machine may not run the client in time
            room.aim(stays=True)
            room.receive()
            most = max(most, room.tail.take()[1])
        one.near.shutdown(socket.SHUT_WR)
        client.result(30)

    assert most >= 2


class WaitingOwner(Owner):
    """A client whose next publish, if it is `eager`, is there before the broker waits for it.

    `looked` has the numbers of the waits that began by looking for the next publish.
    """

    def __init__(self, room: "Room") -> None:
        self.room = room
        self.eager = False
        self.looked: list[int] = []
        super().__init__(room)

    @property
    def published(self) -> dict[str, int] | None:
        """Nothing: asked for while a publish is answered, and so before the wait for the next one."""
        self.note()
        if self.eager:
            self.far.send(pub(b"next"))
        return None

    @published.setter
    def published(self, _: object) -> None: ...

    def note(self) -> None:
        tail = self.room.tail
        if tail.looks > len(self.looked):
            self.looked.append(tail.waits)
        assert tail.looks == len(self.looked), "a wait was missed"

    def publish_until(self, waits: int) -> None:
        """Publish and have the broker wait; a call that comes too late after the last answer does not wait at all."""
        while self.room.tail.waits < waits:
            self.room.aim(stays=True)
            self.far.send(pub(b"first"))
            self.room.receive()
            self.note()
            self.room.tail.take()
            self.far.recv(1 << 20)


def test_the_more_often_looking_fails_the_fewer_waits_begin_with_it(room: Room) -> None:
    client = WaitingOwner(room)
    room.owners.append(client)
    client.publish_until(waits=260)

    assert client.looked == [1, 3, 7, 15, 31, 63, 127, 191, 255]


def test_every_wait_begins_with_looking_while_that_succeeds(room: Room) -> None:
    client = WaitingOwner(room)
    room.owners.append(client)
    client.eager = True
    client.publish_until(waits=20)

    assert client.looked[:20] == list(range(1, 21))


def test_looking_that_succeeds_is_done_more_often_again(room: Room) -> None:
    client = WaitingOwner(room)
    room.owners.append(client)
    client.publish_until(waits=7)
    client.eager = True
    client.publish_until(waits=25)

    assert [wait for wait in client.looked if wait <= 25] == [1, 3, 7, 15, 19, 21, 22, 23, 24, 25]


@pytest.mark.parametrize(
    ("data", "direct", "space"),
    [
        (pub(b"a"), False, 10_000),
        (pub(b"a"), True, 34),
        (pub(b"a") * 65, True, 10_000),
        (pub(b"x" * 900) * 12, True, 10_000),
    ],
    ids=["an answer waits", "no room", "many answers", "too much"],
)
def test_other_publishes_go_the_ordinary_way(room: Room, data: bytes, direct: bool, space: int) -> None:
    owner = room.owner()
    owner.direct = direct
    room.aim(room=space)
    owner.far.send(data)

    assert room.receive() == ([], [room.publishes])
    assert room.publishes.take()[0] == [data]
    assert room.tail.take() == (b"", 0, {})
    assert room.path.read_bytes() == b"head"


def test_a_batch_of_several_messages_goes_the_ordinary_way(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", b"MPUB t\n")
    owner = room.owner()
    room.aim()
    owner.far.send(mpub(b"a"))
    assert room.receive() == ([], [])
    owner.far.send(mpub(b"b", b"c"))
    assert room.receive() == ([], [room.publishes])
    frames, count, _ = room.tail.take()
    room.close()

    assert (bodies(frames), count) == ([b"a"], 1)


def test_what_the_disk_refuses_goes_the_ordinary_way_and_is_not_answered(room: Room) -> None:
    owner = room.owner()
    owner.far.send(pub(b"a"))
    room.aim()
    room.receive()
    room.tail.take()
    owner.far.recv(100)
    closed = os.open(room.path, os.O_RDONLY)  # it takes no writes
    room.aim(file=closed)
    owner.far.send(pub(b"b"))
    found, ran = room.receive()
    os.close(closed)

    assert (found, ran) == ([], [room.publishes])
    assert room.tail.failed
    assert room.publishes.take() == ([pub(b"b")], [(owner, 1, 1)])
    assert room.tail.take() == (b"", 0, {})
    owner.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        owner.far.recv(100)


def test_an_answer_that_the_socket_does_not_take_is_left_to_its_owner(room: Room) -> None:
    owner = room.owner()
    owner.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    owner.near.setblocking(False)
    filled = 0
    while True:
        try:
            filled += owner.near.send(bytes(512))
        except BlockingIOError:
            break
    room.aim()
    owner.far.send(pub(b"a"))
    room.receive()

    assert owner.written == OK
    assert room.tail.take()[1] == 1


def test_written_frames_must_be_taken_before_the_tail_is_aimed_again(room: Room) -> None:
    owner = room.owner()
    room.aim()
    owner.far.send(pub(b"a"))
    room.receive()

    with pytest.raises(ValueError, match="were not taken"):
        room.aim()


KEY = b"t"


def xadd(body: bytes, key: bytes = KEY) -> bytes:
    words = [b"XADD", key, b"*", b"data", body]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class StreamRoom(Room):
    """The same for a stream of Redis."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.publishes = polled.Additions()
        self.xadds = polled.XaddTail(self.publishes, KEY, 1000)
        self.tail = self.xadds

    def aim(self, *, room: int = 10_000, file: int | None = None, stays: bool = False) -> None:
        super().aim(room=room, file=file, stays=stays)
        self.xadds.aim_entries(100, 1 << 61, b"data")


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[StreamRoom]:
    made = StreamRoom(tmp_path / "log")
    yield made
    made.close()


def test_entries_are_written_with_their_ids_and_never_before_the_last_one(streams: StreamRoom) -> None:
    owner = streams.owner()
    streams.aim()
    owner.far.send(xadd(b"a") + xadd(b"b"))
    assert streams.receive() == ([], [])
    owner.far.send(xadd(b"c"))
    assert streams.receive() == ([], [])
    frames, count, senders = streams.tail.take()

    assert (count, senders) == (3, {owner: 3})
    assert frames == b"".join(pure.frame_one(body, FIRST + at, 1 << 61) for at, body in enumerate([b"a", b"b", b"c"]))
    assert streams.path.read_bytes() == b"head" + frames
    assert owner.far.recv(1000) == pure.id_replies((1 << 61) // 1_000_000, 100, 3)
    assert streams.xadds.newest == 1 << 61


@pytest.mark.parametrize(
    "data",
    [xadd(b"a", b"other"), xadd(b"a")[:-1], b"PING\r\n", xadd(b"a") + b"*1\r\n$4\r\nPING\r\n", xadd(b"a" * 5000)],
    ids=["another stream", "half", "inline", "more behind it", "long"],
)
def test_other_commands_go_to_the_owner(streams: StreamRoom, data: bytes) -> None:
    owner = streams.owner()
    streams.aim()
    owner.far.send(data)

    assert streams.receive() == ([(owner, data)], [])
    assert streams.tail.take() == (b"", 0, {})


def test_entries_that_the_disk_refuses_go_to_the_owner(streams: StreamRoom) -> None:
    owner = streams.owner()
    closed = os.open(streams.path, os.O_RDONLY)
    streams.aim(file=closed)
    owner.far.send(xadd(b"a"))
    found = streams.receive()
    os.close(closed)

    assert found == ([(owner, xadd(b"a"))], [])
    assert streams.tail.failed
    assert streams.tail.take() == (b"", 0, {})


def test_entries_beyond_the_largest_body_go_to_the_owner(streams: StreamRoom) -> None:
    owner = streams.owner()
    streams.aim()
    owner.far.send(xadd(b"a") + xadd(b"a" * 1000))

    assert streams.receive() == ([(owner, xadd(b"a") + xadd(b"a" * 1000))], [])
    assert streams.tail.take() == (b"", 0, {})


def test_entries_of_several_fields_are_written_as_the_kernel_frames_them(streams: StreamRoom) -> None:
    owner = streams.owner()
    streams.aim()
    words = [b"XADD", KEY, b"*", b"name", b"Sara", b"data", b""]
    pairs = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    data = pairs + xadd(b"") + xadd(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n")
    owner.far.send(data)
    streams.receive()

    assert streams.tail.take()[0] == pure.frame_xadds(data, FIRST, 1 << 61, b"data")[0]
