"""A stream from any NSQ server: consumed through a channel, spooled, and only then finished.

A server without a log gives each message once and forgets it when it is finished. So messages are written to files in
the spool directory first; Spark reads those, again and again if it must. A crash between the file and the FINs brings
the messages a second time: at least once. Slower than reading a log, too.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lapwing.client.errors import ClientError, Refused
from lapwing.client.message import Message
from lapwing.client.sync import SyncConsumer
from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import Directory, ask_all
from lapwing.spark.brokers.http import CONNECT_SECONDS, BrokerAway, call, patiently
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.stream_reader import FirstBatch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

MOST: Final = 2500  # messages in flight, and so in one file: NSQ's own limit for RDY
_IDLE: Final = 0.1  # seconds without a message after which a round ends
_PATIENCE: Final = 3  # rounds without a message after which availableNow gives up on what /stats promised


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
                with self._consumer(address, min(most - taken, MOST)) as consumer:
                    while taken < most:
                        # only the first message is worth a long wait: once some are there, Spark shall have them
                        wait = _IDLE if taken else max(deadline - time.monotonic(), _IDLE)
                        messages = _gather(consumer, min(most - taken, MOST), wait)
                        if not messages:
                            break
                        self._spool(messages)
                        for message in messages:
                            message.finish()
                        taken += len(messages)
            except Refused as error:
                if "E_AUTH_FAILED" not in str(error):  # then its auth server may be away
                    text = str(error).replace("auth_secret", "the option authSecret")
                    raise NotWelcome(f"{self._what}, at {text}") from error
                failures.append(str(error))
            except (ClientError, BrokerAway) as error:
                failures.append(f"{address}: {error}")
                logger.warning("consuming from %s: %s", address, error)
        if failures and len(failures) == len(addresses):
            raise BrokerAway("no broker answers", "; ".join(failures))
        return taken

    def _consumer(self, address: str, most: int) -> SyncConsumer:
        """Return a consumer of one broker, made for a round and closed after it: between rounds nobody listens.

        What it has received and not finished goes back to the channel when it is closed.
        """
        access = self._options.access
        port = call(address, access, "GET", "/info")["tcp_port"]
        return SyncConsumer(
            self._options.topics[0], self._options.channel or "", nsqd=f"{address.rpartition(':')[0]}:{port}",
            max_in_flight=most, max_attempts=0, max_backoff_duration=0, auth_secret=access.secret, tls=access.tls,
            tls_ca_file=access.ca_file, tls_cert_file=access.cert_file, tls_key_file=access.key_file,
            tls_verify=access.verify, dial_timeout=CONNECT_SECONDS, client_id="spark", user_agent="lapwing-spark",
        )  # fmt: skip

    def _spool(self, messages: list[Message]) -> None:
        from lapwing.spark.source.spool import write_file

        rows = [(each.timestamp, each.attempts, each.id, each.body) for each in messages]
        write_file(self._options.spool or "", _name(self._files_in_spool()), self._options.topics[0], rows)


def _gather(consumer: SyncConsumer, most: int, wait: float) -> list[Message]:
    """Return up to `most` messages: all that come until none has come for a moment; wait for the first."""
    found = consumer.take(most, wait)
    while found and len(found) < most and (more := consumer.take(most - len(found), _IDLE)):
        found += more
    return found


def _name(number: int) -> str:
    return f"{number:020}.arrow"
