"""Errors of the client; the text has the address and what to do.

ClientError
├── Unreachable       no connection could be made; tried again by itself where that makes sense
│   └── Refused           the server refused (AUTH, TLS, IDENTIFY, SUB): trying again will not help
├── ConnectionLost    a connection ended; unanswered commands may or may not have been carried out
├── PublishFailed     the server refused a publish; nothing of it was stored
├── PublishTimeout    no confirmation before the deadline; it may or may not have been stored
└── Stopped           the producer or consumer was stopped before
"""

from lapwing.errors import LapwingError


class ClientError(LapwingError):
    """The base of all errors of the client."""


class _ServerError(ClientError):
    """An error of one server."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class Unreachable(_ServerError):
    """No connection could be made."""


class Refused(Unreachable):
    """The server refused: trying the same again will not help."""


class ConnectionLost(_ServerError):
    """A connection ended; unanswered commands may or may not have been carried out."""


class PublishFailed(_ServerError):
    """The server refused a publish; nothing of it was stored."""

    @property
    def code(self) -> str:
        """The server's own word for the reason, such as `E_BAD_MESSAGE`."""
        return self.reason.partition(" ")[0]


class PublishTimeout(ClientError, TimeoutError):
    """No confirmation before the deadline; the message may or may not have been stored."""


class Stopped(ClientError):
    """The producer or consumer was stopped before."""
