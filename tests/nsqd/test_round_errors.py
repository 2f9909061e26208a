"""An error on one connection in the middle of a round costs no other connection what it sent or is to be answered."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from doors import Node

from lapwing import kernel
from lapwing.log.segments.attributes import RecentRows, Rows
from lapwing.net.sockets import polled
from play import Stage

pytestmark = pytest.mark.skipif(
    not (kernel.COMPILED and polled.available), reason="intakes need the compiled kernel and Linux"
)

OK = b"\0\0\0\6\0\0\0\0OK"
PUB = b"PUB t\n\0\0\0\1x"
XADD = b"*5\r\n$4\r\nXADD\r\n$1\r\nt\r\n$1\r\n*\r\n$4\r\nbody\r\n$1\r\nx\r\n"


class Timer:
    """The time of a client's last command."""

    last_command = 0


class Peer:
    """What is noted of a Redis client."""

    active, command = 0, ""


class Owner:
    """A connection of a set, without a transport; `write` gets what its socket has not taken."""

    direct = True
    finishes = partial = None

    def __init__(self, sockets: polled.SocketSet, receiver: Any) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.fd = self.far.fileno()
        self.receiver = receiver
        self.published: dict[str, int] = {}
        self.timer: Timer | None = Timer()
        self.peer: Peer | None = Peer()
        sockets.add(self.fd, self)

    def write(self, data: bytes) -> None:
        raise BrokenPipeError

    def answer(self) -> bytes:
        try:
            return self.near.recv(1 << 16)
        except BlockingIOError:
            return b""

    def fill(self) -> None:
        """Have the socket take no more."""
        with suppress(BlockingIOError):
            while True:
                self.far.send(bytes(1 << 16))


class Doors:
    """A broker with a topic and a stream `t`, and the intakes of both protocols."""

    def __init__(self, path: Path) -> None:
        from lapwing.kernel._road import NsqIntake, RedisIntake, Round

        self.stage = Stage(path)
        broker = self.stage.broker
        self.round = broker.round = Round(broker.growth.followed)
        self.round.begin(self.stage.now, 0)
        self.topic = broker.topic("t")
        inlet = self.topic.let_in()
        assert inlet is not None
        most = {"max_count": 10, "max_size": 100, "max_body": 1000, "max_defer": 10**12}
        self.nsq = NsqIntake(self.round, **most, rows=Rows, waits=False)
        self.redis = RedisIntake(self.round, 100, lambda error: b"-ERR\r\n", False)
        self.redis.open(b"t", type("Stream", (), {"newest": 0})(), inlet)
        self.sockets = polled.SocketSet()
        self._owners: list[Owner] = []

    def owners(self, *receivers: Any) -> list[Owner]:
        self._owners += [Owner(self.sockets, receiver) for receiver in receivers]
        return self._owners

    def close(self) -> None:
        self.sockets.close()
        for owner in self._owners:
            owner.near.close()
            owner.far.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    made = Doors(tmp_path)
    yield made
    made.close()


def failures(found: list[Any]) -> list[Owner]:
    return [owner for owner, what in found if isinstance(what, Exception)]


def rests(found: list[Any]) -> dict[Owner, bytes]:
    return {owner: what for owner, what in found if isinstance(what, bytes)}


def test_a_publish_whose_answer_fails_ends_its_own_connection_alone(doors: Doors) -> None:
    owners = doors.owners(doors.nsq, doors.nsq, doors.nsq)
    owners[1].timer = None
    for owner in owners:
        owner.near.send(PUB + PUB + b"NOP\n")

    found = doors.sockets.receive()

    assert failures(found) == [owners[1]]
    assert {owner: rest for owner, rest in rests(found).items() if owner is not owners[1]} == {
        owners[0]: b"NOP\n", owners[2]: b"NOP\n"
    }  # fmt: skip
    assert [owner.answer() for owner in owners] == [2 * OK, b"", 2 * OK]
    assert doors.topic.log.end == 6


def test_an_entry_whose_answer_fails_ends_its_own_connection_alone(doors: Doors) -> None:
    owners = doors.owners(doors.redis, doors.redis, doors.nsq)
    owners[0].peer = None
    for owner, said in zip(owners, (XADD, XADD + b"PING\r\n", PUB + b"NOP\n"), strict=True):
        owner.near.send(said)

    found = doors.sockets.receive()

    assert failures(found) == [owners[0]]
    assert rests(found) == {owners[1]: b"PING\r\n", owners[2]: b"NOP\n"}
    answers = [owner.answer() for owner in owners]
    assert (answers[0], answers[2]) == (b"", OK)
    assert answers[1].startswith(b"$")
    assert doors.topic.log.end == 3


def test_a_socket_that_does_not_take_its_answer_ends_its_own_connection_alone(doors: Doors) -> None:
    owners = doors.owners(doors.nsq, doors.nsq, doors.nsq)
    owners[0].fill()
    for owner in owners:
        owner.near.send(PUB + b"NOP\n")

    found = doors.sockets.receive()

    assert failures(found) == [owners[0]]
    assert rests(found).keys() >= {owners[1], owners[2]}
    assert [owner.answer() for owner in owners[1:]] == [OK, OK]


def test_a_log_that_cannot_even_take_back_what_was_appended_fails_its_own_publishes_alone(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = doors.stage.broker.topic("other")
    assert other.let_in() is not None
    kind = type(doors.topic.log)
    flush = kind.flush  # type: ignore[attr-defined]

    def refuse(log: Any) -> None:
        if log is doors.topic.log:
            raise MemoryError
        flush(log)

    monkeypatch.setattr(kind, "flush", refuse)
    monkeypatch.setattr(kind, "take_back", refuse)
    first, second = doors.owners(doors.nsq, doors.nsq)
    first.near.send(PUB)
    second.near.send(b"PUB other\n\0\0\0\1x")

    assert not failures(doors.sockets.receive())

    assert (first.answer(), second.answer()) == (b"", OK)
    assert [owner for owner, _, _ in doors.nsq.news()[1]] == [first]
    assert other.log.end == 1
    second.near.send(b"PUB other\n\0\0\0\1x")
    doors.sockets.receive()
    assert (second.answer(), other.log.end) == (OK, 2)


async def test_the_connections_get_their_bytes_although_the_node_could_not_be_told_what_was_taken() -> None:
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    connections = polled.PolledConnections(loop, taken=lambda: 1 // 0)
    received: list[bytes] = []
    there = asyncio.Event()
    near, far = socket.socketpair()
    far.setblocking(False)

    class Recorder(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)
            there.set()

    transport = polled.PolledTransport(connections, far, Recorder())
    near.send(b"hello")
    await asyncio.wait_for(there.wait(), 60)

    assert received == [b"hello"]
    assert isinstance(reports[0]["exception"], ZeroDivisionError)
    transport.abort()
    await asyncio.sleep(0)
    connections.close()
    near.close()


async def test_a_connection_that_cannot_wait_for_a_sync_ends_alone() -> None:
    from lapwing.nsqd.doors.intakes import Intakes
    from lapwing.sessions.nsq import limits_of

    class Transport:
        """A transport whose connection notes what it waits for, or cannot."""

        def __init__(self, *, fails: bool = False) -> None:
            self.fails, self.waits, self.aborted = fails, 0, False
            self.peer = self

        def await_sync(self, *_: Any) -> object:
            if self.fails:
                raise MemoryError
            self.waits += 1
            return object()

        def publish_failed(self, *_: Any) -> None:
            self.await_sync()

        def abort(self) -> None:
            self.aborted = True

    node = Node(durability="fsync")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    intakes = Intakes(node.turn, limits_of(node.options), waits=True)
    topic = node.broker.topic("t")
    first, second, third = Transport(), Transport(fails=True), Transport()

    class Taken:
        """What an intake has taken of the three, and what could not be written."""

        def news(self) -> tuple[list[Any], list[Any], list[Any]]:
            waiting = [(each, topic, "PUB", 1, 1, number) for number, each in enumerate((first, second, third))]
            return waiting, [(second, "PUB", OSError()), (third, "PUB", OSError())], []

    intakes.nsq = Taken()  # type: ignore[assignment]
    intakes.taken()

    assert [each.aborted for each in (first, second, third)] == [False, True, False]
    assert [each.waits for each in (first, second, third)] == [1, 0, 2]
    assert [sequence for _, receipts in node.broker.work.unsynced for _, sequence in receipts] == [0, 2]


@pytest.mark.parametrize("before", [0, 2], ids=["flush", "write"])
def test_a_write_that_fails_when_its_messages_are_in_the_file_is_not_written_again(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    (owner,) = doors.owners(doors.nsq)
    add = RecentRows.add

    def refuse(rows: RecentRows, runs: Any) -> None:
        monkeypatch.setattr(RecentRows, "add", add)
        raise MemoryError

    for number in range(before):
        owner.near.send(b"DPUB t 7000\n\0\0\0\1%d" % number)
        doors.sockets.receive()
    monkeypatch.setattr(RecentRows, "add", refuse)
    owner.near.send(b"DPUB t 8000\n\0\0\0\1x")
    doors.sockets.receive()
    assert len(doors.nsq.news()[1]) == 1
    owner.near.send(b"DPUB t 9000\n\0\0\0\1y")
    doors.sockets.receive()

    log = doors.topic.log
    bodies = [body for _, _, _, body in kernel.decode_messages(frames_of(log), 0, len(frames_of(log)))[0]]
    assert bodies == [*(b"%d" % number for number in range(before)), b"x", b"y"]
    assert [extra.defer // 10**9 for extra in log.extras(0, log.end)] == [*(7 for _ in range(before)), 8, 9]
    doors.stage.kill()
    again = doors.stage.broker.topic("t").log
    assert frames_of(again) == frames_of(log)
    assert [extra.defer // 10**9 for extra in again.extras(0, again.end)] == [*(7 for _ in range(before)), 8, 9]


def frames_of(log: Any) -> bytes:
    return b"".join(bytes(block) for _, _, block in log.blocks(log.first, log.end, 1 << 20))
