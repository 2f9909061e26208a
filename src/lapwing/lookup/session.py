"""The session of one nsqd: commands in, the bytes of answers out."""

from collections.abc import Callable

from lapwing.errors import ProtocolError
from lapwing.lookup.registry import PeerFull, Producer, Registry, RegistryFull
from lapwing.wire.nsq import lookup
from lapwing.wire.nsq.connection import HangUp
from lapwing.wire.nsq.lookup import Command, Identify, LookupConnection, Ping, Register, Unregister


class LookupSession:
    """The session of one connection. `producer` is set by IDENTIFY."""

    __slots__ = ("_log", "_registry", "_welcome", "_wire", "answered", "over", "producer", "remote")

    def __init__(self, registry: Registry, welcome: bytes, remote: str, log: Callable[[str], None]) -> None:
        """`welcome` is the answer to IDENTIFY, `log` is called with lines for the log."""
        self._registry = registry
        self._welcome = welcome
        self._log = log
        self._wire = LookupConnection()
        self.remote = remote
        self.producer: Producer | None = None
        self.answered = 0  # commands
        self.over = False  # the peer broke the protocol: send what was answered, and hang up

    def receive(self, data: bytes, *, now: int) -> bytes:
        """Return the answer to these bytes; nothing after the session is over."""
        if self.over:
            return b""
        answers: list[bytes] = []
        self._wire.receive(data)
        try:
            for command in self._wire.commands():
                answers.append(self._answer(command, now))  # noqa: PERF401  an error must not lose those before it
        except ProtocolError as error:
            answers.append(self._refuse(error))
        except HangUp as error:
            self.over = True
            self._log(f"CLIENT({self.remote}): {error}")
        self.answered += len(answers)
        return answers[0] if len(answers) == 1 else b"".join(answers)

    def eof(self) -> bytes:
        """Return the answer to a peer that stops sending."""
        error = None if self.over else self._wire.eof()
        return b"" if error is None else self._refuse(error)

    def close(self) -> None:
        """Remove the producer: the connection is gone."""
        self.over = True
        if self.producer is not None:
            self._registry.leave(self.producer)
            self._log(f"CLIENT({self.remote}): closing")
            self.producer = None

    def _refuse(self, error: ProtocolError) -> bytes:
        self.over = True
        self._log(f"CLIENT({self.remote}): {error}")
        return lookup.answer(error.payload)

    def _answer(self, command: Command, now: int) -> bytes:
        producer = self.producer
        if isinstance(command, Ping):
            if producer is not None:
                producer.last_update = now
        elif isinstance(command, Identify):
            self.producer = self._registry.join(self.remote, command.peer, now=now)
            peer = command.peer
            self._log(
                f"CLIENT({self.remote}): IDENTIFY Address:{peer.broadcast_address} TCP:{peer.tcp_port} "
                f"HTTP:{peer.http_port} Version:{peer.version}"
            )
            return self._welcome
        elif isinstance(command, Register) and producer is not None:
            try:
                self._registry.register(producer, command.topic, command.channel)
            except (RegistryFull, PeerFull) as error:
                raise ProtocolError("E_REGISTER_FAILED", str(error)) from error
            self._log(f"DB: client({self.remote}) REGISTER topic:{command.topic} channel:{command.channel}")
        elif isinstance(command, Unregister) and producer is not None:
            self._registry.unregister(producer, command.topic, command.channel)
            self._log(f"DB: client({self.remote}) UNREGISTER topic:{command.topic} channel:{command.channel}")
        return lookup.OK
