"""The recorder and checker of the soak: it misses nothing that its consumers note."""

from typing import Any

import numpy as np
from load import ACKNOWLEDGED, MESSAGE, SIZE, Channel, Line, Load, Publisher, checks


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
