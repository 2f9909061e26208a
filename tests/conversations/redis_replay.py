"""Plays a recorded conversation with a Redis server against ours, and compares every reply by type and value.

A case is a list of steps, each for one connection ("conn", default "a", opened when first named):

  send    one command, a list of words             pipe      several commands in one write
  raw     bytes in hex, or a list of those         expect / expects   one reply / several, in order
  silent_ms   nothing comes for that long          close     the server closes
  half_close  end our side                         drop      close the connection
  sleep_ms    wait                                 after_ms  the reply does not come before

A word is a string (latin-1), {"hex": ".."} or {"rep": [".", n]}. In a string {id:a}, {ms:a}, {seq:a} and {client:x}
stand for what a wildcard has bound. Replies are written with their RESP type, ["$", "text"]; the wildcards are those of
`_scalar` and `match`.

Some cases are about time, as recorded on a machine that does nothing else. `held_up` is by how much this one is slower:
where that is long, a failure may be the machine's, and the case is played again.
"""

import re
import socket
import time
from typing import Any

PATIENCE = 20.0  # seconds for a reply
HELD_UP = 0.1  # seconds
TRIES = 10
_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)\Z")
_ID = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})\Z")
_BOUND = re.compile(r"\{(id|ms|seq|client):(\w+)\}")


class Late(Exception):
    """No reply came in time."""


class Closed(Exception):
    """The server has closed the connection."""


class Wire:
    """One connection that reads whole replies, each in its only spelling."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self._until = 0.0

    def send(self, data: bytes) -> None:
        self.socket.settimeout(PATIENCE)
        try:
            self.socket.sendall(data)
        except OSError:
            return  # closed: what comes next is the reply before, or the end

    def reply(self, within: float = PATIENCE) -> Any:
        """The next reply, as [type, value]."""
        self._until = time.monotonic() + within
        return self._node()

    def more(self, within: float) -> None:
        self._until = time.monotonic() + within
        self._fill()

    def _fill(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise Late
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Closed from None
        if not data:
            raise Closed
        self.rest += data

    def _line(self) -> bytes:
        while b"\r\n" not in self.rest:
            self._fill()
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def _take(self, count: int) -> str:
        while len(self.rest) < count + 2:
            self._fill()
        data, end, self.rest = self.rest[:count], self.rest[count : count + 2], self.rest[count + 2 :]
        assert end == b"\r\n", f"no line end behind {data[:40]!r}"
        return data.decode("latin-1")

    def _node(self) -> Any:
        line = self._line()
        assert line, "an empty line"
        kind, rest = chr(line[0]), line[1:]
        if kind in "+-,(":
            return [kind, rest.decode("latin-1")]
        if kind == "_":
            assert not rest
            return ["_"]
        if kind == "#":
            return [kind, {b"t": True, b"f": False}[rest]]
        assert _NUMBER.match(rest), f"number {rest!r}"
        number = int(rest)
        if kind == ":":
            return [kind, number]
        if number == -1 and kind in "$*":
            return [kind, None]
        if kind in "$=":
            return [kind, self._take(number)]
        if kind in "*~>":
            return [kind, [self._node() for _ in range(number)]]
        assert kind == "%", f"type {kind!r}"
        return ["%", [[self._node(), self._node()] for _ in range(number)]]


def encode(words: list[Any], known: dict[str, Any]) -> bytes:
    """One command as RESP."""
    parts = [_word(word, known) for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _word(word: Any, known: dict[str, Any]) -> bytes:
    if isinstance(word, dict):
        return bytes.fromhex(word["hex"]) if "hex" in word else word["rep"][0].encode("latin-1") * word["rep"][1]

    def fill(found: re.Match[str]) -> str:
        value = known[found[2]]
        return str(value).split("-")[{"ms": 0, "seq": 1}[found[1]]] if found[1] in ("ms", "seq") else str(value)

    return _BOUND.sub(fill, word).encode("latin-1")


def _scalar(want: Any, got: Any, known: dict[str, Any]) -> bool:
    """Whether a string or a number is what was recorded."""
    if not isinstance(want, dict):
        return want == got and type(want) is type(got)
    if got is None:
        return False
    match want:
        case {"any": _}:
            return True
        case {"id": name}:
            if not isinstance(got, str) or not _ID.match(got):
                return False
            if "after" in want and name not in known and _pair(got) <= _pair(known[want["after"]]):
                return False
            return known.setdefault(name, got) == got
        case {"bind": name}:
            return known.setdefault(name, got) == got
        case {"int": [low, high]}:
            return str(got).lstrip("-").isdigit() and low <= int(got) <= high
        case {"now_ms": around}:
            return abs(int(got) - time.time() * 1000) <= around
        case {"re": pattern}:
            return re.fullmatch(pattern, got) is not None
        case {"hex": digits}:
            return bytes.fromhex(digits).decode("latin-1") == got
        case {"rep": [text, count]}:
            return text * count == got
    raise ValueError(f"wildcard {want}")


def _pair(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))


def match(want: Any, got: Any, known: dict[str, Any]) -> bool:
    """Whether a reply is what was recorded; binds what its wildcards name."""
    match want:
        case {"any": _}:
            return True
        case {"oneof": choices}:
            return any(match_reply(each, got, known) for each in choices)
        case {"has": fields}:
            return _has(fields, want.get("t", got[0]), got, known)
        case {"unordered": items}:
            return _unordered(items, got, known)
        case dict():
            raise ValueError(f"wildcard {want}")
    return match_reply(want, got, known)


def match_reply(want: Any, got: Any, known: dict[str, Any]) -> bool:
    if isinstance(want, dict):
        return match(want, got, known)
    if want[0] != got[0]:
        return False
    if want[0] == "_":
        return True
    if want[0] not in "*~>%":
        return _scalar(want[1], got[1], known)
    if want[1] is None or got[1] is None:
        return want[1] is got[1]
    if len(want[1]) != len(got[1]):
        return False
    if want[0] == "%":
        return all(
            match(each[0], other[0], known) and match(each[1], other[1], known)
            for each, other in zip(want[1], got[1], strict=True)
        )
    return all(match(each, other, known) for each, other in zip(want[1], got[1], strict=True))


def _has(fields: Any, kind: str, got: Any, known: dict[str, Any]) -> bool:
    if got[0] != kind:
        return False
    if kind == "%":
        pairs = got[1]
    elif kind == "*" and got[1] is not None and len(got[1]) % 2 == 0:
        pairs = list(zip(got[1][::2], got[1][1::2], strict=True))
    else:
        return False
    there = {key[1]: value for key, value in pairs if key[0] in "$+"}
    return all(name in there and match(each, there[name], known) for name, each in fields)


def _unordered(items: Any, got: Any, known: dict[str, Any]) -> bool:
    if got[0] not in "*~" or got[1] is None or len(got[1]) != len(items):
        return False
    left = list(got[1])
    for each in items:
        place = next((at for at, candidate in enumerate(left) if match(each, candidate, known)), None)
        if place is None:
            return False
        del left[place]
    return True


def play(case: dict[str, Any], address: tuple[str, int], password: str | None = None) -> None:
    """Play a case; once more if it failed where the machine was held up."""
    for _ in range(TRIES - 1):
        replay = RedisReplay(address, password)
        try:
            return replay.play(case)
        except AssertionError:
            if replay.held_up < HELD_UP:
                raise
    return RedisReplay(address, password).play(case)


class RedisReplay:
    """One case, with what its wildcards have bound."""

    def __init__(self, address: tuple[str, int], password: str | None = None) -> None:
        self.address = address
        self.password = password
        self.known: dict[str, Any] = {}
        self.wires: dict[str, Wire] = {}
        self.held_up = 0.0  # seconds that a step took longer than it waits by itself, at most

    def play(self, case: dict[str, Any]) -> None:
        self._tidy(case)
        try:
            for number, step in enumerate(case["steps"]):
                began = time.monotonic()
                try:
                    self._step(step, f"{case['name']} step {number} {str(step.get('send', step))[:200]}")
                finally:
                    waits = sum(step.get(wait, 0) for wait in ("sleep_ms", "silent_ms", "after_ms"))
                    self.held_up = max(self.held_up, time.monotonic() - began - waits / 1000)
        finally:
            for wire in self.wires.values():
                wire.socket.close()
            self._tidy(case)

    def _tidy(self, case: dict[str, Any]) -> None:
        """Delete the keys that a case uses."""
        if case["keys"]:
            self._ask("DEL", *case["keys"])

    def _ask(self, *command: str) -> Any:
        """Ask on a connection of its own."""
        wire = Wire(self.address)
        for each in [("AUTH", self.password), command] if self.password else [command]:
            wire.send(encode(list(each), {}))
            kind, answer = wire.reply()
            assert kind in "+:$", answer
        wire.socket.close()
        return answer

    def _drop(self, name: str) -> None:
        """Close a connection, and wait until the server knows: it may see what others send first."""
        wire = self.wires.pop(name)
        host, port = wire.socket.getsockname()
        wire.socket.close()
        deadline = time.monotonic() + PATIENCE
        while f" addr={host}:{port} " in self._ask("CLIENT", "LIST"):
            assert time.monotonic() < deadline, f"{name} is still connected"

    def _step(self, step: dict[str, Any], where: str) -> None:
        if "sleep_ms" in step and "send" not in step:
            time.sleep(step["sleep_ms"] / 1000)  # as recorded: the server's own clock has to pass
            return
        name = step.get("conn", "a")
        if name not in self.wires:
            self.wires[name] = Wire(self.address)
        wire = self.wires[name]
        began = time.monotonic()
        wire.send(self._bytes(step))
        if step.get("half_close"):
            wire.socket.shutdown(socket.SHUT_WR)
        for want in [step["expect"]] if "expect" in step else step.get("expects", []):
            try:
                got = wire.reply()
            except (Late, Closed) as error:
                have = wire.rest[:200]
                raise AssertionError(f"{where}: {type(error).__name__}, wanted {want}; have {have!r}") from None
            assert match(want, got, self.known), f"{where}:\nwanted {want}\n   got {got}"
        if "after_ms" in step:
            assert (time.monotonic() - began) * 1000 >= step["after_ms"] - 20, f"{where}: too early"
        if "silent_ms" in step:
            self._silent(wire, step["silent_ms"] / 1000, where)
        if step.get("close"):
            self._closed(wire, where)
        if step.get("drop"):
            self._drop(name)

    def _bytes(self, step: dict[str, Any]) -> bytes:
        if "raw" in step:
            parts = step["raw"] if isinstance(step["raw"], list) else [step["raw"]]
            return b"".join(_word(part, {}) if isinstance(part, dict) else bytes.fromhex(part) for part in parts)
        commands = [step["send"]] if "send" in step else step.get("pipe", [])
        return b"".join(encode(command, self.known) for command in commands)

    @staticmethod
    def _silent(wire: Wire, seconds: float, where: str) -> None:
        try:
            if not wire.rest:
                wire.more(seconds)
        except Late:
            return
        except Closed:
            raise AssertionError(f"{where}: closed, silence wanted") from None
        raise AssertionError(f"{where}: silence wanted, got {wire.rest[:300]!r}")

    @staticmethod
    def _closed(wire: Wire, where: str) -> None:
        try:
            while not wire.rest:
                wire.more(PATIENCE)
        except Closed:
            return
        except Late:
            raise AssertionError(f"{where}: not closed") from None
        raise AssertionError(f"{where}: the end wanted, got {wire.rest[:300]!r}")
