"""Feeding a stream to one end of a conversation in every way a network might."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq import parse_mpub
from lapwing.wire.nsq.commands import Command, Fins, Mpub, Req, Reqs
from lapwing.wire.nsq.connection import BrokerConnection, HangUp, Limits

ID = b"0123456789abcdef"


@dataclass
class Heard:
    """What one end made of a stream."""

    said: list[Any] = field(default_factory=list)
    error: bytes | None = None
    hung_up: bool = False


def whole(stream: bytes) -> list[bytes]:
    return [stream]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def in_threes(stream: bytes) -> list[bytes]:
    return [stream[at : at + 3] for at in range(0, len(stream), 3)]


WAYS: list[Callable[[bytes], list[bytes]]] = [whole, bytewise, in_threes]


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """The stream in pieces that end at `places`."""
    marks = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(marks)]


def hear(pieces: list[bytes], limits: Limits | None = None, connection: BrokerConnection | None = None) -> Heard:
    """What the broker's end makes of the pieces, batches framed as a topic would; FINs are joined, REQs parted.

    How they fall into runs, and whether the parser or the kernel refuses a batch, depends on how the pieces fall; the
    commands and the answers must not.
    """
    connection = connection or BrokerConnection(limits or Limits())
    heard = Heard()
    try:
        for piece in pieces:
            connection.receive(piece)
            for command in connection.commands():
                if isinstance(command, Mpub):
                    _frame(command, connection.limits)
                _join(heard.said, command)
    except ProtocolError as error:
        heard.error = error.payload
    except HangUp:
        heard.hung_up = True
    return heard


def _frame(command: Mpub, limits: Limits) -> None:
    try:
        kernel.frame_mpub(command.body, 0, 0, limits.max_count, limits.max_message)
    except PublishRefused as refused:
        raise parse_mpub.refusal("MPUB", refused, len(command.body), limits) from refused


def _join(said: list[Command], command: Command) -> None:
    if isinstance(command, Fins) and said and isinstance(said[-1], Fins):
        said[-1] = Fins(said[-1].block + command.block)
    elif isinstance(command, Reqs):
        said += [Req(message_id, command.delay) for message_id in command.ids]
    else:
        said.append(command)


def answers(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames in `stream`, as (type, payload)."""
    while stream:
        size = int.from_bytes(stream[:4], "big")
        yield int.from_bytes(stream[4:8], "big"), stream[8 : 4 + size]
        stream = stream[4 + size :]
