"""Options of `.option(...)`: read once, checked whole, and refused by name."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lapwing import durations, names
from lapwing.net.client import bearer
from lapwing.spark.source.offsets import OffsetError, Requested, parse_requested

_RETRY_SECONDS: Final = 30.0
_BATCH_BYTES: Final = 4 << 20
LAST_MOMENT: Final = 9_223_372_036_854  # ms, in the year 2262; what is above it was meant in us or ns
_LAST_BATCH: Final = 2**62


class OptionError(ValueError):
    """An option that is unknown, contradictory or has a value it cannot have."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The addresses of the brokers and how to reach them."""

    nsqd: tuple[str, ...] = ()  # HTTP addresses, host:port
    lookupd: tuple[str, ...] = ()  # HTTP addresses of nsqlookupd
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    secret: str | None = field(default=None, repr=False)  # for AUTH over TCP, and for every HTTP call of a broker
    retry_seconds: float = _RETRY_SECONDS  # how long a broker may be away before that is an error


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a reader needs to know."""

    access: BrokerAccess
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    mode: str = "log"
    channel: str | None = None
    starting: str | Requested = "earliest"
    ending: str | Requested = "latest"
    starting_timestamp: int | None = None  # ns
    ending_timestamp: int | None = None  # ns
    none_is_latest: bool = False
    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay: float = 900.0  # seconds
    min_partitions: int = 1
    max_per_partition: int | None = None
    fail_on_data_loss: bool = True
    accept_loss: bool = False  # only what is lost already when the query starts
    headers: bool = False
    local_files: bool = True
    spool: str | None = None
    poll_seconds: float = 1.0
    push_filters: bool = False  # take the filters of Spark's SQL
    archive: str | None = None  # directory of an archive that has the older part of the logs


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer needs to know."""

    access: BrokerAccess
    topic: str | None = None
    mode: str = "exactlyonce"
    sink: str | None = None
    batch: int | None = None
    batch_bytes: int = _BATCH_BYTES
    accept_doubles: bool = False  # continue where no broker has a batch of this query


# as users write them; Spark hands them over in lower case
_ACCESS: Final = (
    "nsqd", "nsqd_http", "lookupd", "lookupd_http", "tls", "tlsRootCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify",
    "authSecret", "retryTimeout",
)  # fmt: skip
_SOURCE: Final = (
    *_ACCESS, "path", "topic", "subscribe", "topicPattern", "subscribePattern", "mode", "channel", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy",
    "maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
    "acceptLoss", "includeHeaders", "includeFields", "includeBody", "localFiles", "spoolDirectory", "pollTimeout",
    "archive", "pushFilters",
)  # fmt: skip
_SINK: Final = (*_ACCESS, "path", "topic", "mode", "sinkId", "batchId", "batchBytes", "acceptDoubles")
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "truncate", "numrows"})
_STREAM_ONLY: Final = (
    "channel", "maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "spoolDirectory", "pollTimeout", "acceptLoss",
)  # fmt: skip
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_LOG_ONLY: Final = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "acceptLoss", "includeHeaders", "includeFields",
    "localFiles", "topicPattern", "subscribePattern", "archive",
    "minMessagesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
)  # fmt: skip



class _Given:
    """The options as they came, asked for one by one."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        spelling = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for key, value in raw.items():
            if key.lower() in spelling:
                self._values[spelling[key.lower()]] = value.strip()
            elif key.lower() not in _SPARKS_OWN:
                import difflib  # seldom needed, and every worker imports this module

                near = difflib.get_close_matches(key.lower(), spelling, n=1)
                hint = f"; did you mean {spelling[near[0]]}?" if near else f"; there are: {', '.join(known)}"
                raise OptionError(f"unknown option {key}{hint}")

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, *aliases: str) -> str | None:
        """Return the value of the option, which may be called by several names but only once."""
        said = [name for name in aliases if name in self._values]
        if len(said) > 1:
            raise OptionError(f"options {' and '.join(said)} mean the same thing; give one of them")
        return self._values[said[0]] or None if said else None

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if name in self._values:
                raise OptionError(f"option {name} {why}")

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"option {name} is true or false, not {value!r}")
        return value == "true"

    def count(self, *aliases: str) -> int | None:
        value = self.text(*aliases)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise OptionError(f"option {next(filter(self.has, aliases))} is a number above 0, not {value!r}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            length = durations.parse(value)
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from error
        if length < 0:
            raise OptionError(f"option {name}: a duration is not below 0: {value}")
        return length / 1e9

    def moment(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and int(value) <= LAST_MOMENT):
            raise OptionError(f"option {name} is a time in ms since 1970, not {value!r}")
        return int(value) * 1_000_000

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise OptionError(f"option {name} is {' or '.join(choices)}, not {value!r}")
        return value

    def file(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not os.path.isfile(value):
            raise OptionError(f"option {name}: there is no file {value}")
        return value

    def directory(self, name: str) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        if "://" in value and not value.startswith("file://"):
            raise OptionError(f"option {name} is a path that every machine of the query reaches, not {value!r}")
        path = os.path.abspath(value.removeprefix("file://"))
        if not os.path.isdir(path):
            raise OptionError(f"option {name}: there is no directory {path}")
        return path

    def addresses(self, *aliases: str) -> tuple[str, ...]:
        name = next(filter(self.has, aliases), aliases[0])
        parts = tuple(part.strip() for part in (self.text(*aliases) or "").split(",") if part.strip())
        for part in parts:
            host, colon, port = part.rpartition(":")
            if "/" in host or not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise OptionError(f"option {name} is host:port of an HTTP door, or several by comma, not {part!r}")
        return parts

    def places(self, name: str, words: tuple[str, ...], default: str) -> str | Requested:
        value = self.text(name) or default
        if value.lower() in words:
            return value.lower()
        if not value.startswith("{"):
            raise OptionError(f"option {name} is {', '.join(words)} or JSON, not {value!r}")
        try:
            return parse_requested(value)
        except OffsetError as error:
            raise OptionError(f"option {name}: {error}") from error


def source_options(raw: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the options of a read or a stream; raises `OptionError`."""
    given = _Given(raw, _SOURCE)
    mode = given.one_of("mode", ("log", "subscribe"), "log")
    if mode == "subscribe" and not streaming:
        raise OptionError("option mode=subscribe consumes a channel and is for streams only")
    if streaming:
        given.refuse(_BATCH_ONLY, "is for batch reads; a stream has no end")
        given.refuse(("pushFilters",), "is for batch reads: Spark hands no filters to a stream")
    else:
        given.refuse(_STREAM_ONLY, "is for streams")
    if mode == "subscribe":
        given.refuse(_LOG_ONLY, "needs the log of the broker, which mode=subscribe does without")
    else:
        given.refuse(("spoolDirectory",), "is for mode=subscribe")

    topics = _topics(given.text("topic", "subscribe", "path"), "topic")
    pattern = given.text("topicPattern", "subscribePattern")
    if bool(topics) == bool(pattern):
        raise OptionError("exactly one of topic (or subscribe) and topicPattern (or subscribePattern) is needed")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option topicPattern: {error}") from error
    channel = given.text("channel")
    if channel is not None and not names.valid(channel):
        raise OptionError(f"option channel: {channel!r} is no name for a channel")
    if given.has("startingTimestamp"):
        given.refuse(("startingOffsets",), "contradicts startingTimestamp")
    if given.has("endingTimestamp"):
        given.refuse(("endingOffsets",), "contradicts endingTimestamp")
    if not given.has("startingTimestamp"):
        given.refuse(("startingOffsetsByTimestampStrategy",), "needs startingTimestamp")
    words = ("earliest", "latest", "channel") if streaming else ("earliest",)
    starting = given.places("startingOffsets", words, "latest" if streaming else "earliest")
    if starting == "channel" and channel is None:
        raise OptionError("option startingOffsets=channel needs the option channel")
    max_messages = given.count("maxMessagesPerTrigger", "maxOffsetsPerTrigger")
    max_bytes = given.count("maxBytesPerTrigger")
    if max_messages is not None and max_bytes is not None:
        raise OptionError("maxMessagesPerTrigger and maxBytesPerTrigger exclude each other: Spark takes one limit")
    min_messages = given.count("minMessagesPerTrigger", "minOffsetsPerTrigger")
    if min_messages is not None and max_messages is not None and min_messages > max_messages:
        raise OptionError("minMessagesPerTrigger is above maxMessagesPerTrigger")
    if min_messages is None:
        given.refuse(("maxTriggerDelay",), "needs minMessagesPerTrigger: without it no batch is delayed")
    spool = given.text("spoolDirectory")
    if mode == "subscribe":
        for name, value in (("channel", channel), ("spoolDirectory", spool)):
            if value is None:
                raise OptionError(f"mode=subscribe needs the option {name}")
        if len(topics) != 1:
            raise OptionError("mode=subscribe reads one topic")
    strategy = given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    ending = given.places("endingOffsets", ("latest",), "latest")
    since, until = given.moment("startingTimestamp"), given.moment("endingTimestamp")
    if since is not None and until is not None and until < since:
        raise OptionError("endingTimestamp lies before startingTimestamp")
    _check_order(starting, ending)
    for name in ("includeFields", "includeBody"):
        given.flag(name, True)  # checked; the source's schema follows from them
    return SourceOptions(
        access=_access(given),
        topics=topics,
        pattern=pattern,
        mode=mode,
        channel=channel,
        starting=starting,
        ending=ending,
        starting_timestamp=since,
        ending_timestamp=until,
        none_is_latest=strategy == "latest",
        max_messages=max_messages,
        max_bytes=max_bytes,
        min_messages=min_messages,
        max_delay=given.seconds("maxTriggerDelay", 900.0),
        min_partitions=given.count("minPartitions") or 1,
        max_per_partition=given.count("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        accept_loss=given.flag("acceptLoss", False),
        headers=given.flag("includeHeaders", False),
        push_filters=given.flag("pushFilters", False),
        local_files=given.flag("localFiles", True),
        spool=spool,
        poll_seconds=given.seconds("pollTimeout", 1.0),
        archive=given.directory("archive"),
    )


def _check_order(starting: str | Requested, ending: str | Requested) -> None:
    """Raise `OptionError` where a range that the user gives by numbers ends before it begins."""
    if isinstance(starting, str) or isinstance(ending, str):
        return
    for topic, nodes in ending.items():
        for node, last in nodes.items():
            first = starting.get(topic, {}).get(node, 0)
            if isinstance(first, int) and isinstance(last, int) and 0 <= last < first:
                raise OptionError(
                    f"endingOffsets lies before startingOffsets: topic {topic}, node {node}, {last} and {first}"
                )


def sink_options(raw: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write; raises `OptionError`."""
    given = _Given(raw, _SINK)
    topics = _topics(given.text("topic", "path"), "topic")
    if len(topics) > 1:
        raise OptionError("option topic names one topic; for several leave it out and give each row a column topic")
    mode = given.one_of("mode", ("exactlyonce", "atleastonce"), "exactlyonce")
    if streaming:
        given.refuse(("sinkId", "batchId"), "is for batch writes; a stream has its query's own")
    else:
        given.refuse(("acceptDoubles",), "is for streams")
    if mode == "atleastonce":
        given.refuse(("sinkId", "batchId", "acceptDoubles"), "needs mode=exactlyonce")
    if given.has("sinkId") != given.has("batchId"):
        raise OptionError("options sinkId and batchId belong together: they name a batch that may be written already")
    sink = given.text("sinkId")
    if sink is not None and not names.valid(sink):
        raise OptionError(f"option sinkId: letters, digits, '.', '_' and '-' expected, not {sink!r}")
    batch = given.text("batchId")
    if batch is not None and not (batch.isascii() and batch.isdigit() and int(batch) <= _LAST_BATCH):
        raise OptionError(f"option batchId is a number from 0 to 2^62, not {batch!r}")
    return SinkOptions(
        access=_access(given),
        topic=topics[0] if topics else None,
        mode=mode,
        sink=sink,
        batch=None if batch is None else int(batch),
        batch_bytes=given.count("batchBytes") or _BATCH_BYTES,
        accept_doubles=given.flag("acceptDoubles", False),
    )


def _access(given: _Given) -> BrokerAccess:
    nsqd, lookupd = given.addresses("nsqd", "nsqd_http"), given.addresses("lookupd", "lookupd_http")
    if bool(nsqd) == bool(lookupd):
        raise OptionError("exactly one of nsqd and lookupd is needed: where are the brokers?")
    tls = given.flag("tls", False)
    if tls and lookupd:
        raise OptionError(
            "options lookupd and tls exclude each other: nsqlookupd knows only the plain HTTP doors of brokers; "
            "name their HTTPS addresses in the option nsqd"
        )
    if not tls:
        given.refuse(("tlsRootCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify"), "needs tls=true")
    if given.has("tlsKeyFile") and not given.has("tlsCertFile"):
        raise OptionError("option tlsKeyFile needs tlsCertFile")
    return BrokerAccess(
        nsqd=nsqd,
        lookupd=lookupd,
        tls=tls,
        ca_file=given.file("tlsRootCaFile"),
        cert_file=given.file("tlsCertFile"),
        key_file=given.file("tlsKeyFile"),
        verify=given.flag("tlsVerify", True),
        secret=_secret(given),
        retry_seconds=given.seconds("retryTimeout", _RETRY_SECONDS),
    )


def _secret(given: _Given) -> str | None:
    secret = given.text("authSecret")
    if secret is not None:
        try:
            bearer.credentials(secret)
        except ValueError as error:
            raise OptionError(f"option authSecret: {error}") from error
    return secret


def _topics(value: str | None, name: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in (value or "").split(",") if part.strip()))
    for topic in topics:
        if not names.valid(topic):
            raise OptionError(f"option {name}: {topic!r} is no name for a topic")
    return topics
