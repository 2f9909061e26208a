"""The recorder and checker of the soak: it misses nothing that its consumers note."""

import time
from typing import Any

import numpy as np
from careful_load import Book
from load import ACKNOWLEDGED, MESSAGE, SIZE, Channel, Line, Load, Publisher, checks

from breaks import Breaks


class Sink:
    """A connection whose bytes nobody wants."""

    def sendall(self, data: bytes) -> None:
        """Take them."""


def line_with(numbers: "np.ndarray[Any, Any]") -> Line:
    """A connection on which messages of publisher 0 have come."""
    found = np.zeros(len(numbers), MESSAGE)
    found["size"], found["type"], found["attempts"], found["number"] = SIZE, 2, 1, numbers
    found["id"] = [b"%016x" % number for number in numbers]
    found["check"] = checks(0, numbers)
    line = Line.__new__(Line)
    line.data, line.socket = found.tobytes(), Sink()  # type: ignore[assignment]
    return line


def take(channel: Channel, numbers: "np.ndarray[Any, Any]") -> None:
    line = line_with(numbers)
    channel._take(line.messages(), line, b"")


def acknowledged(count: int) -> Publisher:
    publisher = Publisher(0, b"t", count=count, acknowledged=count)
    publisher.status.upto(count)[:count] = ACKNOWLEDGED
    return publisher


def test_a_look_at_what_is_missing_takes_nothing_from_a_consumer_that_notes_meanwhile() -> None:
    channel = Channel(b"c", b"t", {0: acknowledged(200_000)})
    take(channel, np.arange(1000))
    noted = channel.came[0].values  # as a consumer holds it while it notes
    assert channel.missing() == 199_000
    noted[1000:1010] = 1

    assert channel.missing() == 198_990


def test_messages_that_were_never_acknowledged_hold_no_publisher_up() -> None:
    load = Load.__new__(Load)
    publisher = acknowledged(1000)
    publisher.count += 10_000_000  # refused, one batch after the other, by a disk that fails
    load.publishers, load.channels = {0: publisher}, [Channel(b"c", b"t", {0: publisher})]

    assert load._close_enough()


def test_an_altered_message_and_one_that_nobody_published_are_noticed() -> None:
    for wrong in ({"check": 5}, {"number": 700, "check": int(checks(0, np.array([700]))[0])}, {"publisher": 9}):
        channel = Channel(b"c", b"t", {0: acknowledged(500)})
        line = line_with(np.arange(10))
        run = line.messages().copy()
        for field, value in wrong.items():
            run[field][3] = value
        channel._take(run, line, b"")

        assert channel.broken, wrong


def test_first_deliveries_out_of_order_are_noticed() -> None:
    channel = Channel(b"c", b"t", {0: acknowledged(500)})
    take(channel, np.array([1, 2, 5, 4]))

    assert "first delivery" in channel.broken[0]


def test_a_message_that_was_finished_and_saved_must_not_come_again() -> None:
    book = Book("t", Breaks())
    _, body = book.body()
    for _ in range(2):
        known = book.deliver(body, b"1", time.monotonic())
        assert known is not None
        known.finished = time.monotonic()

    assert "came again" in book.broken[0]


def test_a_message_whose_finish_a_kill_has_forgotten_may_come_until_it_is_finished_again() -> None:
    breaks = Breaks()
    book = Book("t", breaks)
    (number, body), connected = book.body(), time.monotonic()
    book.acknowledge([number])
    known = book.deliver(body, b"1", connected)
    assert known is not None
    known.finished = time.monotonic()
    breaks.kills.append((time.monotonic(), breaks.began))  # nothing was saved since the beginning
    for _ in range(2):  # the first answer to it was lost
        book.deliver(body, b"1", time.monotonic())

    assert (book.broken, book.missing()) == ([], [number])


def test_a_deferred_message_must_not_come_early() -> None:
    book = Book("t", Breaks())
    _, body = book.body(delay=60.0)
    book.deliver(body, b"1", time.monotonic())

    assert "early" in book.broken[0]
