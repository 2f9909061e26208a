"""Everything that decodes bytes of others: one function per decoder, which may refuse its input only in the ways named.

A decoder takes bytes and returns nothing. It raises only what is a defect: an error that is not one of its own, two
kernels that disagree, or output beyond its limit.
"""

import errno
import os
import socket
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "kernel"))

from twins import TWINS, outcome

from lapwing import kernel
from lapwing.errors import HangUp, LapwingError, LogError, ProtocolError
from lapwing.kernel import pure
from lapwing.log import records
from lapwing.log.catalog import Catalog
from lapwing.log.disk import Disk
from lapwing.log.journal import entries as journal_entries
from lapwing.log.journal.entries import NotUnderstood
from lapwing.log.journal.state import JournalFold
from lapwing.log.segments import index
from lapwing.log.segments.attributes import Rows
from lapwing.log.staged import StagedFiles
from lapwing.net.client.message import AnswerParser, HttpFailed
from lapwing.net.server import answers
from lapwing.net.server.http import HttpLimits, HttpServer
from lapwing.net.server.incoming import Incoming
from lapwing.net.server.routes import Route, Router
from lapwing.wire.nsq import identify, lookup
from lapwing.wire.nsq.commands import MAGIC, Fins, Mpub, Sub, bodies
from lapwing.wire.nsq.compression import CompressionError, DeflateCodec, SnappyCodec
from lapwing.wire.nsq.connection import BrokerConnection, ClientConnection, Limits
from lapwing.wire.resp import commands as resp_commands
from lapwing.wire.resp import parse_groups, parse_reads, parse_server, parse_writes
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader
from lapwing.wire.resp.requests import RequestLimits, RequestParser, XaddRun, split_run

try:
    from lapwing.kernel._road import Finishes, NsqIntake, RedisIntake, Round, Tail
    from lapwing.net.sockets._sockets import SocketSet
except ImportError:  # not Linux, or no compiler where this was installed
    SocketSet = None

OUTPUT = 1 << 20  # bytes that a compressed input may become
ALONE = bool(os.environ.get("FUZZ_COMPILED_ALONE"))
COMPARED = 1 if os.environ.get("LAPWING_PURE") else 8  # one input in so many is decoded by the pure kernel as well
LIMITS = Limits(max_message=4096, max_body=16384, max_rdy=100)
TERMS = identify.Terms(version="1", tls=True)

Decoder = Callable[[bytes], None]


# --- the NSQ protocol ----------------------------------------------------------------------------------------------


def nsq(data: bytes) -> None:
    """Commands of a client."""
    connection = BrokerConnection(LIMITS)
    try:
        connection.receive(data)
        for command in connection.commands():
            if type(command) is Mpub:
                kernel.frame_mpub(command.body, 1, 1, 1000, LIMITS.max_message)
        connection.eof()
    except (LapwingError, HangUp):
        return


def nsq_answers(data: bytes) -> None:
    """Frames of a broker, as a client reads them."""
    connection = ClientConnection(max_frame=16384)
    try:
        connection.receive(data)
        for _ in connection.frames():
            pass
    except ProtocolError:
        return


def identify_body(data: bytes) -> None:
    """The body of IDENTIFY."""
    try:
        identity = identify.parse(data)
        identify.negotiate(identity, TERMS)
    except ProtocolError:
        return


def discovery(data: bytes) -> None:
    """Both ends of the conversation of an nsqd with an nsqlookupd."""
    server, client = lookup.LookupConnection(), lookup.LookupClient()
    try:
        server.receive(data)
        for _ in server.commands():
            pass
        server.eof()
    except (ProtocolError, HangUp):
        pass
    try:
        client.receive(data)
        for answer in client.answers():
            lookup.parse_peer(answer)
    except (ProtocolError, ValueError):
        return


def snappy(data: bytes) -> None:
    """A snappy stream."""
    _decompress(SnappyCodec(OUTPUT), data)


def deflate(data: bytes) -> None:
    """A deflate stream."""
    _decompress(DeflateCodec(output_limit=OUTPUT), data)


def _decompress(codec: SnappyCodec | DeflateCodec, data: bytes) -> None:
    try:
        assert len(codec.decode(data)) <= OUTPUT
    except CompressionError:
        return


# --- the Redis protocol --------------------------------------------------------------------------------------------

_PARSERS: dict[bytes, Callable[[list[bytes]], Any]] = {
    name.removeprefix("parse_").encode(): parse
    for module in (parse_writes, parse_reads, parse_groups, parse_server)
    for name, parse in vars(module).items()
    if name.startswith("parse_") and parse.__code__.co_argcount == 1 and not parse.__kwdefaults__
}


def resp(data: bytes) -> None:
    """Requests of a client, and the words of those that have a parser of their own."""
    parser = RequestParser(RequestLimits(max_request=65536, max_entry=4096))
    try:
        parser.receive(data)
        for request in iter(parser.next_request, None):
            if type(request) is XaddRun:
                kernel.frame_xadds(request.block, 1, 1, b"data")
                split_run(request)
            elif type(request) is list:
                _parse_words(request)
    except (ProtocolError, HangUp):
        return


def _parse_words(words: list[bytes]) -> None:
    try:
        resp_commands.keys_of(resp_commands.find(words), words)
        parse = _PARSERS.get(words[0].lower())
        if parse is not None:
            parse(words)
    except ErrorReply:
        return


def resp_replies(data: bytes) -> None:
    """Replies of a server, as the importer reads them."""
    reader = ReplyReader(max_reply=65536)
    try:
        reader.receive(data)
        for _ in reader.replies():
            pass
    except (ProtocolError, LapwingError):
        return


# --- HTTP ----------------------------------------------------------------------------------------------------------


class _Taker:
    """Takes whole requests, and does nothing with them."""

    def __init__(self) -> None:
        self.ended = False

    def carry_out(self, head: Any, body: bytes) -> None:
        assert len(body) <= 4096

    def refuse(self, answer: Any, head: Any = None) -> None:
        self.ended = True

    def encourage(self) -> None:
        """The client asks whether to send its body."""


def _echo(request: Any) -> Any:
    return answers.plain("OK")


_ROUTES = [Route("GET", "/ping", _echo), Route("POST", "/pub", _echo, max_body=4096), Route("POST", "/mpub", _echo)]
_SERVER = HttpServer(Router(_ROUTES), limits=HttpLimits(head_bytes=8000))


def http(data: bytes) -> None:
    """Requests of a client."""
    taker = _Taker()
    incoming = Incoming(_SERVER, taker)
    incoming.take(data)
    if not taker.ended:
        incoming.take(data[: len(data) // 2])
    if len(_SERVER.heads) > 1000:
        _SERVER.heads.clear()
    incoming.part()


def http_answer(data: bytes) -> None:
    """An answer of a server."""
    parser = AnswerParser(max_answer=65536)
    try:
        parser.feed(data)
        parser.end()
        parser.take()
    except HttpFailed:
        return


# --- files ---------------------------------------------------------------------------------------------------------


def segment(data: bytes) -> None:
    """Frames of a segment, by all loops of both kernels that scan them."""
    size, kernels = len(data), _kernels(data)
    for name, arguments in (
        ("scan_frames", (data, 0, size)), ("take_frames", (data, 0, size, 5, 300)), ("fins_of", (data, 0, size)),
        ("decode_messages", (data, 0, size)), ("with_attempts", (data, 3)), ("publish_times", (data, 0, size)),
        ("entry_replies", (data, 0, size, 5, b"data")),
    ):  # fmt: skip
        _agree(kernels, name, arguments)


def publishes(data: bytes) -> None:
    """Bodies of MPUB, runs of PUB, FIN and XADD, by all loops of both kernels that take them."""
    kernels = _kernels(data)
    for name, arguments in (
        ("frame_mpub", (data, 5, 5, 100, 1000)), ("mpub_run", (data, 4, 3, 1000)), ("fin_run", (data, 0)),
        ("xadd_run", (data, 0, 1000)), ("split_words", (data, 0, 100)),
        ("frame_headed", (data, 5, 5, 100, 1000, 100)), ("count_headers", (data,)), ("find_rows", (data, 0, 9)),
        ("row_places", (data,)), ("message_ids", (data,)), ("header_values", (data, b"key")),
    ):  # fmt: skip
        _agree(kernels, name, arguments)
    outcomes = []
    for twin in kernels:
        flying: dict[int, Any] = dict.fromkeys(range(8))
        tried = {1: 2, 9: 3}
        outcomes.append((outcome(twin, "finish", (data, 0x3031323334353637, flying, tried)), flying, tried))
    assert all(each == outcomes[0] for each in outcomes), "finish"


def _kernels(data: bytes) -> list[Any]:
    """Return the kernels that decode an input: the compiled one, for some inputs also the pure one."""
    return TWINS[-1:] if ALONE or zlib.crc32(data) % COMPARED else TWINS


def _agree(kernels: list[Any], name: str, arguments: tuple[Any, ...]) -> None:
    results = [outcome(_module_of(twin, name), name, arguments) for twin in kernels]
    assert all(each == results[0] for each in results), f"{name}: {results}"


def _module_of(twin: Any, name: str) -> Any:
    if twin is pure and not hasattr(pure, name):
        from lapwing.kernel import pure_resp

        return pure_resp
    return twin


class _Bytes:
    """A file in memory."""

    path = "memory"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, offset: int) -> bytes:
        return self._data[offset : offset + size]

    def size(self) -> int:
        return len(self._data)


def index_file(data: bytes) -> None:
    """Records of an index."""
    found = index.Index(_Bytes(data))  # type: ignore[arg-type]
    found.count = len(data) // index.RECORD
    for number in range(found.count):
        try:
            chunk = found.chunk(number)
            assert index.decode(chunk.encode()) == chunk
            found.chunks(number, 4)
        except index.BadRecord:
            index.claim(data[number * index.RECORD : (number + 1) * index.RECORD])
    if found.count:
        try:
            found.find(3)
        except index.BadRecord:
            return


def journal(data: bytes) -> None:
    """Records of a journal, folded; also those that do not match their checksum, so that entries are decoded."""
    folded = JournalFold()
    for begin, payload, end in records.stream(_Bytes(data), 0, len(data)):  # type: ignore[arg-type]
        if payload is None:
            folded.lose(all_before=not begin)
            payload = data[begin + records.HEAD : end]
        try:
            journal_entries.apply(payload, folded)
        except NotUnderstood:
            return
    folded.settle()
    folded.cut(100)
    folded.state()


class _OneFile(Disk):
    """A disk whose every file has the same content; writes have no effect."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, path: str) -> bytes:
        return self._data

    def replace(self, path: str, parts: Any, **_: Any) -> None:
        """Write nothing."""

    def make_directory(self, path: str, **_: Any) -> None:
        """Make nothing."""


def catalog(data: bytes) -> None:
    """`nsqd.dat`."""
    try:
        Catalog("memory", disk=_OneFile(data)).load()
    except LogError:
        return


def ledger(data: bytes) -> None:
    """The ledger, the intent and a part of a staged batch."""
    files = StagedFiles("memory", sync=False, disk=_OneFile(data))
    for read in (lambda: files.published("s"), lambda: files.intent("s"), lambda: files.get("s", 0, "k", 0)):
        try:
            read()
        except (LogError, OSError):
            continue


# --- sockets -------------------------------------------------------------------------------------------------------


class _Owner:
    """A connection, as the receivers see it."""

    last_command = active = 0
    command = ""
    direct = True
    partial = None

    def __init__(self, fd: int, receiver: Any, finishes: Any) -> None:
        self.fd, self.receiver, self.finishes = fd, receiver, finishes
        self.timer = self.peer = self
        self.repeated = None
        self.published: dict[str, int] = {}

    def write(self, data: bytes) -> None:
        """Drop what the socket does not take."""


class _Topic:
    """The topic `t`, and its settings."""

    name = "t"
    channels = ()
    body_field, fields = "data", "nsq"

    def __init__(self) -> None:
        self.effective, self.door_state, self.newest = self, {}, 0
        self.message_count = self.message_bytes = 0


if SocketSet is not None:

    class _Log(Tail):  # type: ignore[misc]
        """A log that keeps the frames of one round."""

        def __init__(self) -> None:
            self._segments: list[Any] = []  # nothing is written to it
            self._pending_rows: list[Rows] = []
        frames = b""

        def flush(self) -> None:
            """Keep what was appended."""
            self._pending_rows = []
            self.frames = b"".join(self.fresh)
            self.end = self.next
            self.forget()


class _Receiver:
    """A set of sockets as the daemons use it; an input is what a peer sends, and what happens to its connection."""

    def __init__(self) -> None:
        assert SocketSet is not None
        self._set = SocketSet()
        self._log = _Log()
        self._log.forget()
        self._round = Round({})
        topic = _Topic()
        inlet = self._round.open(topic, self._log, 3 << 54)
        self._nsq = NsqIntake(
            self._round, max_count=1000, max_size=LIMITS.max_message, max_body=LIMITS.max_body,
            max_defer=LIMITS.max_req_timeout, rows=Rows, waits=False,
        )  # fmt: skip
        self._redis = RedisIntake(self._round, 1 << 20, lambda error: b"-ERR\r\n", False)
        self._redis.open(b"t", topic, inlet)
        self._finishes = Finishes()
        self._pairs = [self._pair(number) for number in range(4)]

    def _pair(self, number: int) -> tuple[socket.socket, socket.socket, _Owner]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        owner = _Owner(ours.fileno(), [self._nsq, self._nsq, self._redis, None][number], self._finishes)
        self._set.add(ours.fileno(), owner)
        return ours, theirs, owner

    def take(self, data: bytes) -> None:
        number = 2 if data.startswith(b"*") else data[-1] % 4 if data else 0
        ours, theirs, owner = self._pairs[number]
        action = data[-1] % 16 if data else 0
        sent = theirs.send(data) if data else 0
        if action == 1:
            theirs.shutdown(socket.SHUT_WR)
        elif action == 2:  # a reset
            theirs.close()
        elif action == 3:
            self._set.watch(owner.fd, reading=False, writing=True)
        elif action == 4:
            self._set.watch(owner.fd, reading=True, writing=True)
        elif action == 5:
            assert self._set.send(owner.fd, data) in (len(data), -errno.EPIPE)
        first = self._log.next
        found = self._set.receive()
        got = b"".join(what for who, what in found if who is owner and type(what) is bytes)
        if action not in (2, 3):
            assert data[:sent].endswith(got)
            self._check(data[: sent - len(got)], owner, first)
        self._log.frames = b""
        self._round.news()
        if action in (1, 2, 3, 4, 5):
            self._set.remove(owner.fd)
            ours.close()
            theirs.close()
            self._pairs[number] = self._pair(number)
        else:
            while True:
                try:
                    theirs.recv(1 << 16)
                except BlockingIOError:
                    break

    def _check(self, taken: bytes, owner: _Owner, first: int) -> None:
        """Compare what a receiver took with what the parser makes of it."""
        bodies_taken = [body for *_, body in kernel.decode_messages(self._log.frames, 0, len(self._log.frames))[0]]
        blocks = b"".join(self._finishes.take()[0])
        self._nsq.ran()
        if owner.receiver is self._redis:
            stamp = int.from_bytes(self._log.frames[8:16], "big") if taken else 0
            framed, count, _ = pure.frame_xadds(taken, (3 << 54) + first, stamp, b"data") if taken else (b"", 0, 0)
            assert (self._log.frames, self._log.next) == (framed, first + count)
            return
        assert blocks in (b"", taken)
        if not blocks:
            connection = BrokerConnection(LIMITS)
            connection.receive(MAGIC + taken)
            expected: list[bytes] = []
            for command in connection.commands():
                expected += bodies(command.body) if type(command) is Mpub else [command.body]  # type: ignore[union-attr]
            assert expected == bodies_taken
            assert connection.at_rest
        else:
            _check_fins(blocks, len(blocks) // 21)


def _check_fins(piece: bytes, messages: int) -> None:
    """Compare what the receiver took for whole FINs with what the parser makes of it."""
    connection = BrokerConnection(LIMITS)
    connection.receive(MAGIC + b"SUB t c\n" + piece)
    subscribed, *found = connection.commands()
    assert type(subscribed) is Sub
    assert [each.block for each in found if type(each) is Fins] == [piece]
    assert (len(found), len(piece)) == (1, messages * 21)


_receivers: list[_Receiver] = []


def receiver(data: bytes) -> None:
    """Bytes received from a set of sockets, and what the compiled intakes take of them."""
    if not _receivers:
        _receivers.append(_Receiver())
    _receivers[0].take(data)


DECODERS: dict[str, Decoder] = {
    "nsq": nsq, "nsq_answers": nsq_answers, "identify": identify_body, "discovery": discovery, "snappy": snappy,
    "deflate": deflate, "resp": resp, "resp_replies": resp_replies, "http": http, "http_answer": http_answer,
    "segment": segment, "publishes": publishes, "index": index_file, "journal": journal, "catalog": catalog,
    "ledger": ledger,
}  # fmt: skip
if SocketSet is not None:
    DECODERS["receiver"] = receiver
