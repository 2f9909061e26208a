"""A recorder and a checker: publishers that note what was acknowledged, consumers that note what came, and the rules.

Every message says who published it, which number it has and a check over both, in a body of a fixed size: so that a
slice of the log is an array, and millions of messages are checked in a few calls of numpy.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MESSAGE = np.dtype(
    [("size", ">u4"), ("type", ">u4"), ("time", ">i8"), ("attempts", ">u2"), ("id", "S16"),
     ("publisher", ">u4"), ("number", ">u8"), ("check", ">u8")]
)  # fmt: skip
FIN = np.dtype([("word", "S4"), ("id", "S16"), ("end", "S1")])
BODY = np.dtype([("size", ">u4"), ("publisher", ">u4"), ("number", ">u8"), ("check", ">u8")])
FRAME = MESSAGE.itemsize
SIZE = FRAME - 4
BATCH = 200
AHEAD = 200_000  # messages that publishers may be ahead of the slowest channel
WINDOW = 4  # batches that are not answered yet
READY = 2500
JOURNAL = 2.0  # seconds after which a finished message does not come again, checkpoints being every 250 ms
UNKNOWN, ACKNOWLEDGED = 1, 2
LOST = (OSError, EOFError)


def checks(publisher: int, numbers: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """A number that only this publisher and this message's number give."""
    salt = np.uint64(publisher * 0x632BE59BD9B4E019 % 2**64)
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))


class Numbers:
    """An array by message number that grows as it is written to."""

    def __init__(self, kind: type) -> None:
        self.values = np.zeros(1 << 16, dtype=kind)

    def upto(self, count: int) -> "np.ndarray[Any, Any]":
        """The array with room for `count` numbers at least."""
        if count > len(self.values):
            grown = np.zeros(max(count, 2 * len(self.values)), dtype=self.values.dtype)
            grown[: len(self.values)] = self.values
            self.values = grown
        return self.values


class Line:
    """A connection to a broker, with whole frames taken off what has come."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.data = b""
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(b"  V2")
        except OSError:
            self.socket.close()  # the broker was killed in between
            raise

    def receive(self) -> None:
        """Take what comes next; raises `EOFError` at the end."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        self.data = self.data + data if self.data else data

    def frame(self) -> bytes | None:
        """The type and payload of the next frame, if it is whole."""
        if len(self.data) < 4:
            return None
        end = 4 + int.from_bytes(self.data[:4], "big")
        if len(self.data) < end:
            return None
        frame, self.data = self.data[4:end], self.data[end:]
        return frame

    def messages(self) -> "np.ndarray[Any, Any]":
        """The run of whole messages at the front of what has come."""
        found = np.frombuffer(self.data, MESSAGE, len(self.data) // FRAME)
        others = np.flatnonzero((found["size"] != SIZE) | (found["type"] != 2))
        run = found[: others[0]] if len(others) else found
        self.data = self.data[len(run) * FRAME :]
        return run


@dataclass
class Publisher:
    """Publishes numbered messages, and notes of each whether it was acknowledged."""

    name: int
    topic: bytes
    status: Numbers = field(default_factory=lambda: Numbers(np.uint8))
    count: int = 0
    acknowledged: int = 0  # messages
    refusals: list[bytes] = field(default_factory=list)
    may_publish: Callable[[], bool] = lambda: True

    def batch(self) -> tuple[int, bytes]:
        """The next batch: its first number, and the MPUB."""
        first = self.count
        self.count += BATCH
        bodies = np.empty(BATCH, BODY)
        numbers = np.arange(first, self.count)
        bodies["size"], bodies["publisher"], bodies["number"] = BODY.itemsize - 4, self.name, numbers
        bodies["check"] = checks(self.name, numbers)
        content = struct.pack(">I", BATCH) + bodies.tobytes()
        self.status.upto(self.count)[first : self.count] = UNKNOWN
        return first, b"MPUB %b\n" % self.topic + struct.pack(">I", len(content)) + content

    def publish(self, line: Line, over: threading.Event) -> None:
        """Publish until `over`, with a few batches under way."""
        waiting: list[int] = []
        while waiting or not over.is_set():
            while not waiting and not over.is_set() and not self.may_publish():
                time.sleep(0.005)
            while len(waiting) < WINDOW and not over.is_set() and self.may_publish():
                first, command = self.batch()
                waiting.append(first)
                line.socket.sendall(command)
            if not waiting:
                continue
            line.receive()
            while (frame := line.frame()) is not None:
                if frame[4:] == b"OK":
                    first = waiting.pop(0)
                    self.status.upto(0)[first : first + BATCH] = ACKNOWLEDGED
                    self.acknowledged += BATCH
                elif frame[4:] == b"_heartbeat_":
                    line.socket.sendall(b"NOP\n")
                else:
                    self.refusals.append(frame[4:])


@dataclass
class Channel:
    """Consumes a channel, and notes how often each message came and when it was finished."""

    name: bytes
    topic: bytes
    publishers: dict[int, Publisher]
    requeue_every: int = 97  # one message in that many is given back once
    abandon_every: int = 4099  # and one in that many is left to its timeout
    came: dict[int, Numbers] = field(default_factory=dict)
    finished: dict[int, Numbers] = field(default_factory=dict)  # the second after which each was finished, from 1 on
    total: int = 0
    again: int = 0
    late: int = 0  # deliveries of what was finished
    refused: int = 0  # FINs and REQs that came after the timeout, whose messages rightly come again
    broken: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    subscribed: threading.Event = field(default_factory=threading.Event)
    saved: Callable[[], float] | None = None  # up to when FINs were saved as the broker was last killed
    _received: float = 0.0  # when something came last, seconds from `began` on

    def consume(self, line: Line, over: threading.Event) -> None:
        """Consume until `over`. The broker may not know, or not have saved, what was finished last before a crash."""
        for finished in self.finished.values():
            saved = self._received - JOURNAL if self.saved is None else self.saved() - self.began - 1
            finished.values[finished.values > max(saved, 0)] = 0
        line.socket.sendall(b"SUB %b %b\n" % (self.topic, self.name))
        while line.frame() is None:
            line.receive()
        self.subscribed.set()
        line.socket.sendall(b"RDY %d\n" % READY)
        last = b""  # the id of the newest first delivery on this connection
        while not over.is_set():
            line.receive()
            self._received = time.monotonic() - self.began
            while True:
                run = line.messages()
                if len(run):
                    last = self._take(run, line, last)
                frame = line.frame()
                if frame is None:
                    break
                if frame[4:] == b"_heartbeat_":
                    line.socket.sendall(b"NOP\n")
                elif frame[4:].startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
                    self.refused += 1
                elif frame[:4] == b"\0\0\0\1":
                    self.broken.append(f"{self.name!r}: {frame[4:]!r}")

    def _take(self, run: "np.ndarray[Any, Any]", line: Line, last: bytes) -> bytes:
        fresh = run["id"][run["attempts"] == 1]
        if len(fresh):
            if fresh[0] <= last or np.any(fresh[1:] <= fresh[:-1]):
                at = int(np.argmax(fresh <= np.concatenate(([last], fresh[:-1]))))
                before = bytes(fresh[at - 1]) if at else last
                self.broken.append(f"{self.name!r}: first delivery of {bytes(fresh[at])!r} after that of {before!r}")
            last = bytes(fresh[-1])
        answers = []
        for name in np.unique(run["publisher"]):
            part = run[run["publisher"] == name] if len(self.publishers) > 1 else run
            answers.append(self._note(int(name), part))
        line.socket.sendall(b"".join(answers))
        self.total += len(run)
        return last

    def _note(self, name: int, part: "np.ndarray[Any, Any]") -> bytes:
        publisher = self.publishers.get(name)
        numbers = part["number"].astype(np.int64)
        if publisher is None or np.any(part["check"] != checks(name, numbers)) or numbers.max() >= publisher.count:
            self.broken.append(f"{self.name!r}: a message that nobody has published")
            return b""
        count = int(numbers.max()) + 1
        came = self.came.setdefault(name, Numbers(np.uint8)).upto(count)
        finished = self.finished.setdefault(name, Numbers(np.uint16)).upto(count)
        before = came[numbers]
        self.again += int(np.count_nonzero(before))
        self.late += int(np.count_nonzero(finished[numbers]))
        came[numbers] = np.minimum(before, 254) + 1  # no number stands twice in one run of a consumer
        first = before == 0
        given_back = first & (numbers % self.requeue_every == 0)
        abandoned = first & (numbers % self.abandon_every == 1)
        done = ~(given_back | abandoned)
        finished[numbers[done]] = min(int(self._received) + 1, 65535)
        lines = np.empty(int(np.count_nonzero(done)), FIN)
        lines["word"], lines["id"], lines["end"] = b"FIN ", part["id"][done], b"\n"
        return lines.tobytes() + b"".join([b"REQ %b 0\n" % each for each in part["id"][given_back].tolist()])

    def missing(self) -> int:
        """How many acknowledged messages have not come."""
        total = 0
        for name, publisher in self.publishers.items():
            acknowledged = publisher.status.values[: publisher.count] == ACKNOWLEDGED
            if name in self.came:  # not grown here: the consumer notes in the array that it has
                came = self.came[name].values[: publisher.count]
                acknowledged[: len(came)] &= came == 0
            total += int(np.count_nonzero(acknowledged))
        return total


class Load:
    """Publishers and consumers of one topic on one broker, which may come and go."""

    def __init__(
        self,
        port: int,
        *,
        topic: bytes = b"load",
        publishers: int = 2,
        channels: int = 2,
        saved: Callable[[], float] | None = None,
    ) -> None:
        self._port = port
        self.publishers = {number: Publisher(number, topic) for number in range(publishers)}
        self.channels = [Channel(b"c%d" % each, topic, self.publishers, saved=saved) for each in range(channels)]
        self._published = threading.Event()
        self._consumed = threading.Event()
        self.errors: list[BaseException] = []
        self._consuming = [self._start(each.consume, self._consumed) for each in self.channels]
        for channel in self.channels:  # a channel gets what is published after it was created
            assert channel.subscribed.wait(30), "the broker takes no subscription"
        for publisher in self.publishers.values():
            publisher.may_publish = self._close_enough
        self._publishing = [self._start(each.publish, self._published) for each in self.publishers.values()]

    def _start(self, work: Callable[[Line, threading.Event], None], over: threading.Event) -> threading.Thread:
        thread = threading.Thread(target=self._insist, args=(work, over), daemon=True)
        thread.start()
        return thread

    def _insist(self, work: Callable[[Line, threading.Event], None], over: threading.Event) -> None:
        """Do the work on one connection after the other."""
        while not over.is_set():
            try:
                line = Line(self._port)
            except OSError:
                over.wait(0.02)  # the broker is being started
                continue
            try:
                work(line, over)
            except LOST:
                over.wait(0.02)  # a disk that fails refuses every publish for a while
                continue
            except BaseException as error:
                self.errors.append(error)
                raise
            finally:
                line.socket.close()

    def _close_enough(self) -> bool:
        # without what a kill or a failing disk took before it was acknowledged: that never comes
        return self.acknowledged - min(channel.total - channel.again for channel in self.channels) < AHEAD

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(publisher.acknowledged for publisher in self.publishers.values())

    def stop_publishing(self) -> None:
        """Publish no more, and wait for the last answers."""
        self._published.set()
        for thread in self._publishing:
            thread.join(60)

    def finish(self, seconds: float = 120.0) -> None:
        """Wait until every acknowledged message has come, then check every rule; raises `AssertionError`."""
        self.stop_publishing()
        deadline = time.monotonic() + seconds
        while any(channel.missing() for channel in self.channels) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._consumed.set()
        missing = {channel.name: channel.missing() for channel in self.channels}
        broken = [text for channel in self.channels for text in channel.broken]
        broken += [
            f"{channel.name!r}: {channel.late} finished messages came again, {channel.refused} FINs came too late"
            for channel in self.channels
            if channel.late > channel.refused
        ]
        assert not self.errors, self.errors
        assert not any(missing.values()), f"acknowledged messages that did not come: {missing}"
        assert not broken, broken[:10]
