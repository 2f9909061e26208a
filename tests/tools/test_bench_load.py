"""The load generator's parts on a pair of sockets: what they send for what they receive."""

import socket
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from lapwing import kernel
from lapwing.client.address import Address
from lapwing.tools.bench import web
from lapwing.tools.bench.line import BenchError, Line, Wire
from lapwing.tools.bench.load import Budget, Consumer, Publisher, Tally, turn
from lapwing.tools.bench.report import percentiles
from lapwing.wire.nsq import frames

COMMAND = b"PUB t\n\x00\x00\x00\x02hi"


class Ends:
    """Our end of a connection as a `Line`, and the server's end."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        ours.setblocking(False)
        self.server.setblocking(False)
        line: Any = Line.__new__(Line)
        line.sock, line.address = ours, Address("server", 1)
        self.line: Line = line

    def sent(self) -> bytes:
        """What has arrived at the server."""
        data = b""
        try:
            while more := self.server.recv(1 << 20):
                data += more
        except BlockingIOError:
            return data
        return data


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.line.close()
    made.server.close()


def test_a_publisher_keeps_its_window_full_and_no_fuller(ends: Ends) -> None:
    publisher = Publisher(ends.line, COMMAND, Budget(10), window=3)
    publisher.begin()
    assert ends.sent() == COMMAND * 3

    ends.server.sendall(frames.OK * 2)
    publisher.readable()
    assert ends.sent() == COMMAND * 2
    assert publisher.acknowledged == 2
    assert len(publisher.latencies) == 2


def test_a_publisher_understands_torn_answers(ends: Ends) -> None:
    publisher = Publisher(ends.line, COMMAND, Budget(2), window=2)
    publisher.begin()
    for byte in frames.OK * 2:
        ends.server.sendall(bytes([byte]))
        publisher.readable()

    assert publisher.acknowledged == 2
    assert publisher.done


def test_a_refusal_ends_the_load_with_its_words(ends: Ends) -> None:
    publisher = Publisher(ends.line, COMMAND, Budget(None), window=2)
    publisher.begin()
    ends.server.sendall(frames.OK + frames.error(b"E_BAD_TOPIC no such luck"))

    with pytest.raises(BenchError, match="server:1 answered: E_BAD_TOPIC no such luck"):
        publisher.readable()


def test_a_server_that_hangs_up_is_named(ends: Ends) -> None:
    publisher = Publisher(ends.line, COMMAND, Budget(None), window=1)
    publisher.begin()
    ends.server.close()

    with pytest.raises(BenchError, match="server:1 closed the connection under load"):
        publisher.readable()


def test_a_consumer_finishes_what_is_whole_and_keeps_the_rest(ends: Ends) -> None:
    run = kernel.frame_bodies([b"one", b"two", b"three"], 5, 1)
    tally = Tally()
    consumer = Consumer(ends.line, tally, ready=7, size=10)
    consumer.begin()
    assert ends.sent() == b"RDY 7\n"

    for byte in run:
        ends.server.sendall(bytes([byte]))
        consumer.readable()
    assert tally.received == 3
    assert ends.sent() == b"".join(b"FIN %016x\n" % number for number in (5, 6, 7))


def test_a_consumer_answers_heartbeats_between_messages(ends: Ends) -> None:
    consumer = Consumer(ends.line, Tally(), ready=1, size=10)
    ends.server.sendall(kernel.frame_one(b"a", 1, 1) + frames.HEARTBEAT + kernel.frame_one(b"b", 2, 1))
    consumer.readable()

    assert ends.sent() == b"FIN 0000000000000001\nNOP\nFIN 0000000000000002\n"


def test_a_load_that_stands_still_is_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.tools.bench.load.STALL", 0.3)
    publisher = Publisher(ends.line, COMMAND, Budget(None), window=1)

    with pytest.raises(BenchError, match="nothing moved"):
        turn([publisher], lambda: publisher.done, moved=lambda: publisher.acknowledged)


def test_a_caller_sends_the_next_request_when_the_last_is_answered(ends: Ends) -> None:
    wire: Wire = ends.line
    caller = web.Caller(wire, iter([b"first", b"second"]))
    caller.begin()
    assert ends.sent() == b"first"

    for piece in (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 2\r\n\r\nO"):
        ends.server.sendall(piece)
        caller.readable()
        assert ends.sent() == b""
    ends.server.sendall(b"K")
    caller.readable()
    assert ends.sent() == b"second"

    ends.server.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(BenchError, match="503"):
        caller.readable()


def test_a_budget_is_shared_and_can_be_closed() -> None:
    budget = Budget(5)
    assert (budget.take(3), budget.take(3), budget.spent) == (3, 2, True)

    endless = Budget(None)
    assert (endless.take(1000), endless.spent) == (1000, False)
    endless.close()
    assert (endless.take(1), endless.spent, endless.granted) == (0, True, 1000)


def test_percentiles_are_of_all_times() -> None:
    found = percentiles(array("q", range(1_000_000, 101_000_000, 1_000_000)), "x")
    assert found is not None
    assert (found.p50, found.p99, found.max) == (51.0, 100.0, 100.0)
    assert percentiles(array("q"), "x") is None
