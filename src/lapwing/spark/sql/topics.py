"""The messages of topics as SQL sees them: those that an archive has, and those that only the brokers have yet."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from lapwing.errors import ConfigError, LapwingError
from lapwing.names import valid
from lapwing.spark.brokers.http import BrokerAway
from lapwing.spark.files import is_local, plain_place
from lapwing.spark.options import SourceOptions, source_options
from lapwing.spark.source import offsets as o
from lapwing.spark.source.archived import Archive, archive_at
from lapwing.spark.source.blocks import arrow_schema, to_batch
from lapwing.spark.source.losses import report
from lapwing.spark.source.offsets import HeldLog, LogRange
from lapwing.spark.source.ranges import stream
from lapwing.spark.source.survey import survey
from lapwing.spark.sql.json_fields import Kind, fields

logger = logging.getLogger(__name__)

SCHEMA: Final = arrow_schema(["topic", "node", "sequence", "id", "timestamp", "headers", "body"])
ABOUT: Final = {f"_{name}": name for name in SCHEMA.names if name != "body"}  # columns of a view beside the fields
_SAMPLE: Final = 1000  # messages that are looked at, of each end of an archive and of the end of the logs
_WAIT: Final = "5s"  # for a broker that goes away while it is read


class LiveRows:
    """Messages that are read from the brokers, again whenever somebody wants them."""

    def __init__(self, ranges: Sequence[LogRange], options: SourceOptions) -> None:
        self._ranges = ranges
        self._options = options
        self.failure: LapwingError | None = None  # why the last reading ended early

    def newest(self, count: int) -> "LiveRows":
        """Return the last messages of each log, `count` of all together."""
        each = count // max(len(self._ranges), 1) + 1
        last = [replace(part, start=max(part.start, part.stop - each)) for part in self._ranges]
        return LiveRows(last, self._options)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, as `SCHEMA` has them."""
        try:
            for part in self._ranges:
                for block in stream(part, self._options):
                    yield to_batch(block, part.topic, part.node, SCHEMA)
        except LapwingError as error:
            self.failure = error
            raise

    def bodies(self) -> Iterator[bytes]:
        """Yield the body of each message."""
        for batch in self.batches():
            yield from batch.column("body").to_pylist()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(SCHEMA, self.batches()).__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The messages of one topic."""

    archived: Any  # an Arrow dataset with the columns of `SCHEMA`, or None
    live: LiveRows | None  # those that are not archived; None where no broker is asked
    options: Mapping[str, str]  # by which Spark's source reads all of them; empty where no broker is asked

    def fields(self) -> dict[str, Kind]:
        """Return the fields of JSON bodies, found in some of the oldest and newest messages."""
        return fields(self._sample())

    def _sample(self) -> Iterator[bytes]:
        if self.archived is not None:
            files = list(self.archived.get_fragments())
            for file in files[:: max(len(files) - 1, 1)]:  # the first and the last
                scanner = file.scanner(columns=["body"], batch_size=_SAMPLE, batch_readahead=0)
                yield from scanner.head(_SAMPLE).column("body").to_pylist()
        elif self.live is not None:
            yield from islice(self.live.bodies(), _SAMPLE)
        if self.live is not None:
            yield from islice(self.live.newest(_SAMPLE).bodies(), 2 * _SAMPLE)


class Topics:
    """The topics of an archive and of brokers."""

    def __init__(self, place: str, access: Mapping[str, str], *, needed: bool) -> None:
        """`access` are options of the source that name brokers; unless they are `needed`, an archive will do.

        Raises `ConfigError` where there is neither.
        """
        self.place = plain_place(place)
        self._access = {**access, "retryTimeout": _WAIT, "failOnDataLoss": "false", "includeHeaders": "true"}
        self._needed = needed
        self._archive: Archive | None = None
        self._lacking = ""
        try:
            self._archive = archive_at(self.place)
        except LapwingError as error:
            self._lacking = str(error).removeprefix("option archive: ")
        else:
            if is_local(self.place):
                self._access["archive"] = self.place

    def names(self) -> list[str]:
        """Return the topics that there are."""
        holdings, _ = self._look({"topicPattern": ".+"})
        return sorted({*holdings, *self._archived()})

    def find(self, names: Sequence[str]) -> dict[str, TopicRows]:
        """Return those of the topics that there are, as they are now."""
        names = [name for name in names if valid(name)]
        if not names:
            return {}
        holdings, options = self._look({"topic": ",".join(names)})
        return {name: self._rows(name, holdings, options) for name in names if name in {*holdings, *self._archived()}}

    def _look(self, wanted: Mapping[str, str]) -> tuple[Mapping[str, Mapping[int, HeldLog]], SourceOptions | None]:
        """Return what the brokers and the archive hold; no options where only the archive is asked."""
        raw = {**self._access, **wanted}
        if self._archive is not None and "archive" not in raw:
            return self._alone(f"{self.place} is a URL, beside which no broker is read")
        options = source_options(raw, streaming=False)
        try:
            found = survey(options)
        except BrokerAway as error:  # of nsqlookupd
            return self._alone(str(error))
        if not found.nodes:
            return self._alone(found.complaint())
        if found.away:
            raise LapwingError(
                f"not all brokers answer, and messages would be missing: {found.complaint()}; to ask the others alone, "
                "name these with --nsqd"
            )
        return found.holdings, options

    def _alone(self, why: str) -> tuple[Mapping[str, Mapping[int, HeldLog]], None]:
        """Do without brokers; raises `LapwingError` where that cannot be."""
        advice = "is it running? --nsqd or --lookupd names it"
        if self._archive is None:
            raise ConfigError(f"{self._lacking}. And no broker answers: {why}; {advice}")
        if self._needed:
            raise LapwingError(f"{why}; {advice}")
        logger.warning("only the archive is asked, which may lack the newest messages: %s", why)
        self._archive.logs()
        return {}, None

    def _archived(self) -> list[str]:
        return [] if self._archive is None else self._archive.topics()

    def _rows(
        self, topic: str, holdings: Mapping[str, Mapping[int, HeldLog]], options: SourceOptions | None
    ) -> TopicRows:
        archived = self._archive.dataset(topic) if self._archive is not None and topic in self._archived() else None
        if options is None:
            return TopicRows(archived, None, {})
        parts = [
            LogRange(topic, node, held.log_id, held.first, held.next, held.address)
            for node, held in holdings.get(topic, {}).items()
        ]
        if options.archive is not None:
            parts, _, losses = o.divide(parts, holdings)
            report(losses, options)
        raw = {name: value for name, value in self._access.items() if name != "archive" or archived is not None}
        return TopicRows(archived, LiveRows(parts, replace(options, archive=None)), {**raw, "topic": topic})
