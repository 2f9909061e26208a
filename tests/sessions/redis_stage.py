"""A broker with NSQ and Redis clients, and a clock that stands still until it is moved."""

from pathlib import Path
from typing import Any

from lapwing.errors import ProtocolError
from lapwing.sessions.redis.context import RedisContext
from lapwing.sessions.redis.session import RedisSession
from lapwing.wire.resp.requests import RequestLimits, RequestParser
from play import MS, Stage

NOW = 1_700_000_000_000 * MS


class RedisError(Exception):
    """An error line."""


class RedisClient:
    """One connection: what it says, and the replies as Python has them."""

    def __init__(self, stage: "RedisStage", protocol: int = 2) -> None:
        self.stage = stage
        self.parser = RequestParser(RequestLimits(stage.options.max_body_size, stage.options.max_msg_size))
        self.freed = 0
        self.gone = False
        self.session = RedisSession(stage.context, on_ready=_nothing, on_free=self._resume, hang_up=self._hang_up)
        self.session.protocol = protocol
        self.data = b""

    def _hang_up(self) -> None:
        self.gone = True

    def _resume(self) -> None:
        self.freed += 1

    def send(self, *commands: str | list[bytes]) -> "RedisClient":
        """Send commands in one write, and end the turn."""
        data = b"".join(encode(each) for each in commands)
        if not self._repeated(data):
            self.parser.receive(data)
            self.pump()
        self.stage.commit()
        return self

    def _repeated(self, data: bytes) -> bool:
        """Carry out a request that is like an earlier one, as the intake does."""
        session = self.session
        repeated = session.peer.repeated
        if repeated is None or not session.plain or session.replies.slots or self.parser.buffered:
            return False
        reply = repeated.answer(data, self.stage.now)
        if reply is not None:
            session.replies.add(reply)
        return reply is not None

    def pump(self) -> None:
        """Carry out what has come, as far as no command waits."""
        try:
            while not self.session.busy and (request := self.parser.next_request()) is not None:
                self.session.handle(request, now=self.stage.now)
        except ProtocolError as error:
            self.session.refuse(error)

    def raw(self) -> bytes:
        """The bytes that have come."""
        while True:
            self.data += b"".join(self.session.replies.ready)
            self.session.replies.ready.clear()
            piece = self.session.next_piece()
            if piece is None:
                break
            self.data += piece
        data, self.data = self.data, b""
        return data

    def replies(self) -> list[Any]:
        """The replies that have come, errors as `RedisError`."""
        data, found = self.raw(), []
        while data:
            reply, data = decode(data)
            found.append(reply)
        return found

    def ask(self, command: str | list[bytes]) -> Any:
        """The reply to one command; raises `RedisError`."""
        (reply,) = self.send(command).replies()
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def leave(self) -> None:
        """Disconnect."""
        self.session.leave()
        self.stage.commit()


class RedisStage(Stage):
    """A broker that Redis clients use too."""

    def __init__(self, path: Path | None = None, **options: Any) -> None:
        super().__init__(path, now=NOW, **options)

    def open(self) -> None:
        """Begin, with whatever is on the disk."""
        super().open()
        self.context = RedisContext(self.broker)

    def commit(self) -> None:
        """End the turn."""
        super().commit()
        if hasattr(self, "context"):
            self.context.wake(self.now)
            self.broker.growth.wake(self.now)

    def pass_time(self, span: int) -> None:
        """Move the clock, and do what is due."""
        super().pass_time(span)
        for session in list(self.context.sessions.values()):
            session.pass_time(self.now)
        self.commit()

    def redis(self, protocol: int = 2) -> RedisClient:
        """A new Redis client."""
        return RedisClient(self, protocol)


def encode(command: str | list[bytes]) -> bytes:
    """A command as RESP; a text is split at blanks."""
    words = [word.encode() for word in command.split()] if isinstance(command, str) else command
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def decode(data: bytes) -> tuple[Any, bytes]:
    """The first reply, and the bytes behind it."""
    reply, end = _decode_at(data, 0)
    return reply, data[end:]


def _decode_at(data: bytes, start: int) -> tuple[Any, int]:
    """The reply at `start`, and the position of its end."""
    end = data.index(b"\r\n", start)
    kind, text, end = data[start : start + 1], data[start + 1 : end], end + 2
    if kind == b"+":
        return text.decode(), end
    if kind == b"-":
        return RedisError(text.decode("latin-1")), end
    if kind == b":":
        return int(text), end
    if kind == b"_" or text == b"-1":
        return None, end
    if kind in (b"$", b"="):
        last = end + int(text)
        assert data[last : last + 2] == b"\r\n", data[start : start + 80]
        return data[end:last], last + 2
    assert kind in (b"*", b"%", b"~"), data[start : start + 80]
    items = []
    for _ in range(int(text) * (2 if kind == b"%" else 1)):
        item, end = _decode_at(data, end)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == b"%" else items), end


def fields(flat: list[Any]) -> dict[str, Any]:
    """A flat array of pairs as a dictionary."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _nothing() -> None:
    """The stage asks by itself."""
