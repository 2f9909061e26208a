"""A stream from any NSQ server: consumed through a channel, spooled, and only then finished.

A server without a log gives each message once and forgets it when it is finished. So messages are written to files in
the spool directory first; Spark reads those, again and again if it must. A crash between the file and the FINs brings
the messages a second time: at least once. Slower than reading a log, too.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lapwing.errors import LapwingError, ProtocolError
from lapwing.spark.brokers.directory import Directory, ask_all
from lapwing.spark.brokers.http import CONNECT_SECONDS, BrokerAway, call, patiently, tls_context
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.stream_reader import FirstBatch
from lapwing.wire.nsq import commands
from lapwing.wire.nsq.connection import ClientConnection, ErrorFrame, Messages, Response

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

MOST: Final = 2500  # messages in flight, and so in one file: NSQ's own limit for RDY
_ANSWER: Final = 20.0  # seconds for an answer: the broker may have to ask its auth server first
_IDLE: Final = 0.1  # seconds without a message after which a round ends
_PATIENCE: Final = 3  # rounds without a message after which availableNow gives up on what /stats promised

# a broker that refuses today refuses tomorrow; E_AUTH_FAILED may also mean that its auth server is away
_FINAL: Final = ("E_AUTH_FIRST", "E_UNAUTHORIZED", "E_BAD_TOPIC", "E_BAD_CHANNEL", "E_INVALID")

Row = tuple[int, int, bytes, bytes]  # timestamp, attempts, id, body


class NotWelcome(LapwingError):
    """A broker does not let us consume, and will not by being asked again."""


class SpoolTask(InputPartition):
    """A file of the spool directory."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class SubscribeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process per query, called in series. Its offsets count the files of the spool directory."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        self._first = FirstBatch()
        self._left: int | None = None  # messages that an availableNow run still wants
        self._dry = 0
        self._next = 0  # the least number that the next file may have

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query; files that an earlier one left in the directory are not its own."""
        return self._first.begin(lambda: {"files": self._files_in_spool()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how many messages a batch may have."""
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the depth of the channel: this run reads as much."""
        self._left = patiently(f"reading stats, {self._what}", self._depth, self._options.access)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Consume for a while and spool it; what lies before `start` is finished for good and deleted."""
        if self._first.ends_at(start):
            return start
        self._next = int(start["files"])
        self._delete_before(self._next)
        reached = self._files_in_spool()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 100 * MOST
        if self._left is not None:
            most = min(most, self._left)
        if reached == start["files"] and most > 0:
            taken = patiently(f"consuming, {self._what}", lambda: self._consume(most), self._options.access)
            if self._left is not None:
                self._dry = 0 if taken else self._dry + 1
                self._left = 0 if self._dry >= _PATIENCE else max(self._left - taken, 0)
                if not taken and self._left:
                    return self.latestOffset(start, limit)
        return {"files": self._files_in_spool()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a task for each file."""
        if self._first.is_planned():
            return []
        return [SpoolTask(_name(number)) for number in range(int(start["files"]), int(end["files"]))]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if isinstance(partition, SpoolTask):
            from lapwing.spark.source.spool import read_file

            yield from read_file(self._options.spool or "", partition.name, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` deletes what is done with."""

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options, "_columns": self._columns}

    # --- the spool directory -----------------------------------------------------------------------------------

    def _files_in_spool(self) -> int:
        """Return the number that the next file will have."""
        from lapwing.spark.source.spool import names

        return max((int(name[:20]) + 1 for name in names(self._options.spool or "")), default=self._next)

    def _delete_before(self, number: int) -> None:
        from lapwing.spark.source.spool import delete, names

        for name in names(self._options.spool or ""):
            # the last one stays: the numbering continues from it
            if int(name[:20]) < number - 1:
                delete(self._options.spool or "", name)

    # --- consuming ---------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"topic {self._options.topics[0]}, channel {self._options.channel}"

    def _addresses(self) -> list[str]:
        addresses = Directory(self._options.access).find(self._options.topics)
        if not addresses:
            logger.warning("nsqlookupd knows of no broker with the topic %s", self._options.topics[0])
        return addresses

    def _depth(self) -> int:
        topic, channel = self._options.topics[0], self._options.channel or ""
        total = 0
        path = "/stats"
        parameters = {"format": "json", "topic": topic}
        answers = ask_all(self._addresses(), lambda a: call(a, self._options.access, "GET", path, parameters))
        for _, answer in answers:
            if isinstance(answer, Exception):
                raise answer
            for entry in answer["topics"] or ():
                found = [line for line in entry["channels"] if line["channel_name"] == channel]
                total += entry["depth"] if not entry["channels"] else 0  # the first channel gets what waits
                total += sum(line["depth"] + line["in_flight_count"] + line["deferred_count"] for line in found)
        return total

    def _consume(self, most: int) -> int:
        """Consume from every broker in turn, a file a round; how many messages that were."""
        taken = 0
        deadline = time.monotonic() + self._options.poll_seconds
        failures: list[str] = []
        addresses = self._addresses()
        if not addresses:
            time.sleep(self._options.poll_seconds)  # somebody may turn up; Spark would ask again at once
        for address in addresses:
            try:
                with SpoolSubscription(address, self._options) as subscription:
                    while taken < most:
                        # only the first message is worth a long wait: once some are there, Spark shall have them
                        rows = subscription.gather(min(most - taken, MOST), 0.0 if taken else deadline)
                        if not rows:
                            break
                        self._spool(rows)
                        subscription.finish(rows)
                        taken += len(rows)
            except (OSError, BrokerAway, ProtocolError) as error:
                failures.append(f"{address}: {error}")
                logger.warning("consuming from %s: %s", address, error)
        if failures and len(failures) == len(addresses):
            raise BrokerAway("no broker answers", "; ".join(failures))
        return taken

    def _spool(self, rows: list[Row]) -> None:
        from lapwing.spark.source.spool import write_file

        write_file(self._options.spool or "", _name(self._files_in_spool()), self._options.topics[0], rows)


def _name(number: int) -> str:
    return f"{number:020}.arrow"


class SpoolSubscription:
    """One connection to one nsqd, subscribed. Made for a round and closed after it: between rounds nobody listens.

    What was received and not finished goes back to the channel.
    """

    def __init__(self, address: str, options: SourceOptions) -> None:
        info = call(address, options.access, "GET", "/info")
        host = address.rpartition(":")[0].strip("[]")
        self._wire = ClientConnection()
        self._rows: list[Row] = []
        self._ready = 0
        self._most_ready = MOST
        self._socket: socket.socket = socket.create_connection((host, info["tcp_port"]), CONNECT_SECONDS)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._subscribe(f"{host}:{info['tcp_port']}", options)
        except BaseException:
            self._socket.close()
            raise

    def _subscribe(self, address: str, options: SourceOptions) -> None:
        """Identify and authenticate the client, and subscribe."""
        access = options.access
        identity = {
            "client_id": "spark",
            "hostname": os.uname().nodename,
            "user_agent": "lapwing-spark",
            "feature_negotiation": True,
            "tls_v1": access.tls,
        }
        topic, channel = options.topics[0], options.channel or ""
        where = f"topic {topic}, channel {channel}, at {address}"
        self._socket.sendall(b"  V2" + commands.Identify(json.dumps(identity).encode()).encode())
        granted = json.loads(self._answer())
        self._most_ready = min(MOST, int(granted.get("max_rdy_count") or MOST))
        if access.tls and not granted.get("tls_v1"):
            raise NotWelcome(f"{where}: the broker does not offer TLS, and tls=true asks for it")
        if granted.get("tls_v1"):
            host = address.rpartition(":")[0]
            self._socket = tls_context(access).wrap_socket(self._socket, server_hostname=host)
            self._answer()
        if granted.get("auth_required") and access.secret is None:
            raise NotWelcome(f"{where}: the broker wants AUTH; the option authSecret is missing")
        try:
            if granted.get("auth_required"):
                self._say(commands.Auth((access.secret or "").encode()).encode())
            self._say(commands.Sub(topic, channel).encode())
        except ProtocolError as error:
            if str(error).startswith(_FINAL):
                raise NotWelcome(f"{where}: {error}") from error
            raise

    def _say(self, command: bytes) -> None:
        self._socket.sendall(command)
        self._answer()

    def _answer(self) -> bytes:
        """Return the next answer that is no heartbeat; raises `ProtocolError` for a refusal."""
        while True:
            for frame in self._wire.frames():
                if isinstance(frame, ErrorFrame):
                    raise ProtocolError(frame.payload.decode("latin-1"))
                if isinstance(frame, Response) and not self._heartbeat(frame):
                    return frame.payload
            if not self._receive(_ANSWER):
                raise TimeoutError(f"no answer within {_ANSWER:g} s")

    def _heartbeat(self, frame: Response) -> bool:
        if frame.payload == b"_heartbeat_":
            self._socket.sendall(commands.Nop().encode())
            return True
        return False

    def _receive(self, seconds: float) -> bool:
        """Take what comes within that time; whether anything did."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(262144)
        except TimeoutError:
            return False
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self._wire.receive(data)
        return True

    def gather(self, most: int, deadline: float) -> list[Row]:
        """Up to `most` messages: all that come until none has come for a moment; the first one until the deadline."""
        most = min(most, self._most_ready)
        if most != self._ready:
            self._socket.sendall(commands.Rdy(most).encode())
            self._ready = most
        rows, self._rows = self._rows, []
        while len(rows) < most:
            wait = _IDLE if rows else max(deadline - time.monotonic(), _IDLE / 5)
            if not self._receive(wait):
                break
            for frame in self._wire.frames():
                if isinstance(frame, Messages):
                    rows += [row[:4] for row in frame.messages]
                elif isinstance(frame, ErrorFrame):
                    raise ProtocolError(frame.payload.decode("latin-1"))
                elif isinstance(frame, Response):
                    self._heartbeat(frame)
        self._rows = rows[most:]
        return rows[:most]

    def finish(self, rows: list[Row]) -> None:
        """Finish the messages, which are safe now."""
        self._socket.sendall(b"".join(b"FIN %b\n" % row[2] for row in rows))

    def __enter__(self) -> "SpoolSubscription":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self._socket.sendall(commands.Cls().encode())
                while self._receive(CONNECT_SECONDS):
                    frames = list(self._wire.frames())
                    if any(isinstance(frame, Response) and frame.payload == b"CLOSE_WAIT" for frame in frames):
                        break  # all FINs before it have been carried out
        except OSError as problem:
            logger.warning("closing a subscription: %s", problem)
        finally:
            self._socket.close()
