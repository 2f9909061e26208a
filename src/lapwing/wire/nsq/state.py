"""The states of a connection, and the commands that are legal in each."""

from enum import IntEnum
from typing import Final

from lapwing.wire.nsq.commands import Auth, Cls, Command, Dpub, Fin, Identify, Mpub, Nop, Pub, Rdy, Req, Sub, Touch


class State(IntEnum):
    """The values are those that statistics show."""

    MAGIC = -1  # not even the magic is there
    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_ALWAYS: Final[frozenset[type[Command]]] = frozenset({Nop, Pub, Mpub, Dpub})

LEGAL: Final[dict[State, frozenset[type[Command]]]] = {
    State.MAGIC: frozenset(),
    State.INIT: _ALWAYS | {Identify, Auth, Sub},
    State.SUBSCRIBED: _ALWAYS | {Rdy, Fin, Req, Touch, Cls},
    State.CLOSING: _ALWAYS | {Rdy, Fin, Req, Touch},  # a late RDY is lawful, and ignored
}

NEXT: Final[dict[type[Command], State]] = {Sub: State.SUBSCRIBED, Cls: State.CLOSING}
