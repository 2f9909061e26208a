"""A second recorder and checker, for few messages of which everything is known: when, how often, and under which id.

Messages that fail, become dead letters and are redriven; deferred ones; staged batches; and entries of a Redis stream.
Each has a number. A rule that was broken is a line in `broken`.
"""

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from load import LOST, Line

from breaks import Breaks
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader, encode

FAILURES = 2  # after which a message is given up
DEAD = "fails.c.dead"
PART = 20  # messages in a part of a staged batch
RUN = 100  # XADDs in one write
PAUSE = 0.02  # seconds between two publishes of one kind
FOLLOWED = 0.85  # of a delay: a clock that was set is followed by a tenth of the time that passes


@dataclass(slots=True)
class Sent:
    """What is known of one message."""

    sent: float
    due: float = 0.0
    acknowledged: bool = False
    id: bytes = b""
    attempts: int = 0
    failures: int = 0
    connected: float = 0.0  # when the connection began on which it came last
    came: float = 0.0  # last
    finished: float = 0.0
    history: list[str] = field(default_factory=list)


@dataclass
class Book:
    """The messages of one topic, by number."""

    topic: str
    breaks: Breaks
    messages: dict[int, Sent] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    deliveries: int = 0
    refused: set[bytes] = field(default_factory=set)  # ids of FINs that came too late

    def body(self, delay: float = 0.0) -> tuple[int, bytes]:
        """Begin a message; return its number and its body."""
        number, now = len(self.messages), time.monotonic()
        self.messages[number] = Sent(now, now + delay * FOLLOWED if delay else 0.0)
        return number, b"%b %d %d" % (self.topic.encode(), number, number * 7919 % 10007)

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """Note that messages were acknowledged."""
        for number in numbers:
            self.messages[number].acknowledged = True

    def deliver(self, body: bytes, identity: bytes, connected: float, attempts: int | None = None) -> Sent | None:
        """Note that a message came on a connection since `connected`, and check it; return what is known of it."""
        now = time.monotonic()
        self.deliveries += 1
        words = body.split()
        number = int(words[1]) if len(words) == 3 and words[1].isdigit() else -1
        known = self.messages.get(number)
        if known is None or body != b"%b %d %d" % (self.topic.encode(), number, number * 7919 % 10007):
            self._break(f"{body[:60]!r} was never published")
            return None
        if known.id not in (b"", identity):
            self._break(f"message {number} is there twice, as {known.id!r} and {identity!r}")
        known.id = identity
        if known.due and now < known.due:
            self._break(f"message {number} came {known.due - now:.2f} s early: {self.breaks.around(known.sent, now)}")
        known.history.append(f"{attempts} at {now - self.breaks.began:.2f}")
        saved = not self.breaks.forgotten(known.came, known.connected)
        if known.finished and identity not in self.refused and saved:
            ago = now - known.finished
            near = self.breaks.around(known.finished, now)
            self._break(f"message {number} was finished {ago:.2f} s ago, and came again: {known.history}; {near}")
        known.finished = 0.0  # until it is finished again
        if attempts is not None:
            if attempts <= known.attempts and saved:
                self._break(f"message {number} has {attempts} attempts, and had {known.attempts}")
            known.attempts = attempts
        known.came, known.connected = now, connected
        return known

    def _break(self, text: str) -> None:
        self.broken.append(f"{self.topic}: {text}")

    def missing(self) -> list[int]:
        """Return the acknowledged messages that are not finished."""
        return [number for number, each in list(self.messages.items()) if each.acknowledged and not each.finished]


class CarefulLoad:
    """All of it, on one broker that may come and go."""

    def __init__(self, tcp: int, http: int, redis: int, breaks: Breaks) -> None:
        self._tcp, self._http, self._redis = tcp, http, redis
        self.fails, self.later, self.staged, self.stream = (
            Book(topic, breaks) for topic in ("fails", "later", "staged", "stream")
        )
        self.books = [self.fails, self.later, self.staged, self.stream]
        self.errors: list[BaseException] = []
        self.counts: Counter[str] = Counter()
        self._published, self._consumed = threading.Event(), threading.Event()
        for book in (self.fails, self.later, self.staged):
            self._ask("POST", f"/topic/create?topic={book.topic}")
            self._ask("POST", f"/channel/create?topic={book.topic}&channel=c")
        # the longest delay is that of a message whose dead-letter topic cannot be written to
        settings = {"max_attempts": FAILURES, "retry_first": "10ms", "retry_max": "1s"}
        self._ask("PATCH", "/channel/settings?topic=fails&channel=c", json.dumps(settings).encode())
        talk = Talk(redis)
        talk.ask(("XGROUP", "CREATE", "stream", "g", "0", "MKSTREAM"))
        talk.close()
        self._producing = [
            self._start(work, self._published)
            for work in (self._publish_failing, self._publish_later, self._publish_staged, self._add, self._redrive)
        ]
        consuming: list[Callable[[], None]] = [
            lambda: self._consume(self.fails), lambda: self._consume(self.later), lambda: self._consume(self.staged),
            self._read_group,
        ]  # fmt: skip
        self._consuming = [self._start(work, self._consumed) for work in consuming]

    def _start(self, work: Callable[[], None], over: threading.Event) -> threading.Thread:
        thread = threading.Thread(target=self._insist, args=(work, over), daemon=True)
        thread.start()
        return thread

    def _insist(self, work: Callable[[], None], over: threading.Event) -> None:
        while not over.is_set():
            try:
                work()
            except (*LOST, urllib.error.URLError, ErrorReply):
                over.wait(0.05)
            except BaseException as error:
                self.errors.append(error)
                raise

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self._http}{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text

    # --- publishing ------------------------------------------------------------------------------------------------

    def _publish_failing(self) -> None:
        self._publish(self.fails, lambda: 0)

    def _publish_later(self) -> None:
        self._publish(self.later, lambda: 500 + len(self.later.messages) * 37 % 4000)

    def _publish(self, book: Book, delay: Callable[[], int]) -> None:
        line = Line(self._tcp)
        try:
            while not self._published.wait(PAUSE):
                milliseconds, topic = delay(), book.topic.encode()
                number, body = book.body(milliseconds / 1000)
                words = b"DPUB %b %d\n" % (topic, milliseconds) if milliseconds else b"PUB %b\n" % topic
                line.socket.sendall(words + struct.pack(">I", len(body)) + body)
                if _answer(line) == b"OK":
                    book.acknowledge([number])
        finally:
            line.socket.close()

    def _publish_staged(self) -> None:
        """Stage and commit one batch after the other, each until it is answered."""
        book = self.staged
        while not self._published.wait(5 * PAUSE):
            parts = [[book.body() for _ in range(PART)] for _ in range(2)]
            numbers = [number for part in parts for number, _ in part]
            batch = numbers[0]
            while True:
                try:
                    for index, part in enumerate(parts):
                        bodies = b"".join(struct.pack(">I", len(body)) + body for _, body in part)
                        path = f"/stage?sink=soak&topic={book.topic}&batch={batch}&key=k&part={index}"
                        self._ask("POST", path, struct.pack(">II", 0, PART) + bodies)
                    order = {"sink": "soak", "batch": batch, "keys": [["k", 2]]}
                    self._ask("POST", "/stage/commit", json.dumps(order).encode())
                    break
                except (*LOST, urllib.error.URLError):
                    time.sleep(0.05)
            book.acknowledge(numbers)
            self.counts["staged batches"] += 1

    def _add(self) -> None:
        talk, book = Talk(self._redis), self.stream
        try:
            while not self._published.wait(PAUSE):
                some = [book.body() for _ in range(RUN)]
                replies = talk.ask(*[("XADD", book.topic, "*", "data", body) for _, body in some])
                book.acknowledge(
                    number for (number, _), reply in zip(some, replies, strict=True) if isinstance(reply, bytes)
                )
                if len(book.messages) % (50 * RUN) == 0:
                    talk.ask(("XTRIM", book.topic, "MAXLEN", "~", "20000"))
        finally:
            talk.close()

    def _redrive(self) -> None:
        while not self._published.wait(1.0):
            self.redrive()

    def redrive(self) -> None:
        """Return the dead letters to their channel, unless that is under way."""
        try:
            self._ask("POST", f"/dead/redrive?topic={DEAD}", b"{}")
            self.counts["redrives"] += 1
        except urllib.error.HTTPError as error:
            error.close()  # one runs already, the disk fails, or there was no dead letter yet

    # --- consuming -------------------------------------------------------------------------------------------------

    def _consume(self, book: Book) -> None:
        line, connected = Line(self._tcp), time.monotonic()
        try:
            line.socket.sendall(b"SUB %b c\nRDY 200\n" % book.topic.encode())
            while not self._consumed.is_set():
                frame = line.frame()
                if frame is None:
                    line.receive()
                elif frame[:4] == b"\0\0\0\2":
                    line.socket.sendall(self._take(book, frame[4:], connected))
                elif frame[4:] == b"_heartbeat_":
                    line.socket.sendall(b"NOP\n")
                elif frame[4:].startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
                    book.refused.add(frame[4:].split()[2])
        finally:
            line.socket.close()

    def _take(self, book: Book, message: bytes, connected: float) -> bytes:
        attempts, identity = int.from_bytes(message[8:10], "big"), message[10:26]
        known = book.deliver(message[26:], identity, connected, attempts)
        if known is not None and book is self.fails and identity[-1:] in b"0123" and known.failures < FAILURES:
            known.failures += 1
            self.counts["failures"] += 1
            return b"REQ %b 0\n" % identity
        if known is not None:
            known.finished = time.monotonic()
            book.refused.discard(identity)
        return b"FIN %b\n" % identity

    def _read_group(self) -> None:
        talk, book, connected = Talk(self._redis), self.stream, time.monotonic()
        start = b"0"  # what this name holds already
        try:
            while not self._consumed.is_set():
                words = ["XREADGROUP", "GROUP", "g", "one", "COUNT", "500", "BLOCK", "500", "STREAMS", "stream"]
                (reply,) = talk.ask((*words, start))
                if isinstance(reply, Exception):
                    raise reply
                entries = reply[0][1] if reply else []
                if not entries and start == b"0":
                    start = b">"
                found = [(entry, pairs[1]) for entry, pairs in entries if pairs]
                known = [each for entry, body in found if (each := book.deliver(body, entry, connected)) is not None]
                if found and isinstance(talk.ask(("XACK", "stream", "g", *[entry for entry, _ in found]))[0], int):
                    for each in known:
                        each.finished = time.monotonic()
        finally:
            talk.close()

    # --- the end ---------------------------------------------------------------------------------------------------

    @property
    def checked(self) -> int:
        """How many deliveries were checked."""
        return sum(book.deliveries for book in self.books)

    def finish(self, seconds: float = 120.0) -> list[str]:
        """Wait until every acknowledged message is finished; return which rules were broken."""
        self._published.set()
        for thread in self._producing:
            thread.join(60)
        deadline = time.monotonic() + seconds
        while any(book.missing() for book in self.books) and time.monotonic() < deadline:
            self.redrive()
            time.sleep(0.3)
        self._consumed.set()
        broken = [text for book in self.books for text in book.broken]
        broken += [f"{book.topic}: lost {book.missing()[:20]}" for book in self.books if book.missing()]
        return broken + [repr(error) for error in self.errors]


class Talk:
    """One connection of a Redis client."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._reader = ReplyReader()

    def ask(self, *commands: tuple[str | bytes, ...]) -> list[Any]:
        """Send commands in one write; return their replies."""
        self._socket.sendall(b"".join(encode(*words) for words in commands))
        found: list[Any] = []
        while len(found) < len(commands):
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            self._reader.receive(data)
            found += self._reader.replies()
        return found

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _answer(line: Line) -> bytes:
    """Return the next answer that is not a heartbeat."""
    while True:
        frame = line.frame()
        if frame is None:
            line.receive()
        elif frame[4:] == b"_heartbeat_":
            line.socket.sendall(b"NOP\n")
        else:
            return frame[4:]
