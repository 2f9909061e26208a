"""What the client tells its caller went wrong: always with the address, and with what to do about it.

ClientError
├── Unreachable       no connection could be made; tried again by itself where that makes sense
│   └── Refused           the server answered, and said no (AUTH, TLS, IDENTIFY, SUB): trying again will not help
├── ConnectionLost    a connection ended; what was not answered may or may not have happened
├── PublishFailed     the server refused a publish; nothing of it was stored
├── PublishTimeout    no confirmation before the deadline; it may or may not have been stored
└── Stopped           the producer or consumer was stopped before
"""

from lapwing.errors import LapwingError


class ClientError(LapwingError):
    """What the client tells its caller went wrong."""


class Unreachable(ClientError):
    """No connection could be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class Refused(Unreachable):
    """The server answered and said no: trying the same again will not help."""


class ConnectionLost(ClientError):
    """A connection ended; what was not answered may or may not have happened."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class PublishFailed(ClientError):
    """The server refused a publish; nothing of it was stored."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.code = reason.partition(" ")[0]


class PublishTimeout(ClientError, TimeoutError):
    """No confirmation before the deadline; the message may or may not have been stored."""


class Stopped(ClientError):
    """The producer or consumer was stopped before."""
