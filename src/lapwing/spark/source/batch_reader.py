"""Batch reads of logs: all ranges are known before the read starts."""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import REMEMBERS_MS, Directory
from lapwing.spark.brokers.http import BrokerAway, patiently
from lapwing.spark.options import SourceOptions
from lapwing.spark.source import offsets as o
from lapwing.spark.source.losses import report
from lapwing.spark.source.offsets import EARLIEST, LATEST, Offsets
from lapwing.spark.source.range_reader import read_task, tasks
from lapwing.spark.source.survey import Survey, survey

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import Filter

    from lapwing.spark.source.filters import PushedFilters

logger = logging.getLogger(__name__)

_MOST_SHOWN: Final = 5
_START_SECONDS: Final = 5.0  # daemons that are started together do not start at the same moment


class LogBatchReader(DataSourceReader):
    """A batch read of topics."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        self._filters: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """Plan tasks of similar size. "Latest" is decided here, once per loaded DataFrame."""
        options = self._options
        directory = Directory(options.access)
        found = survey_all(options, options.starting_timestamp, directory)
        if missing := [topic for topic in options.topics if topic not in found.holdings]:
            raise LapwingError(f"no broker has the topic {', '.join(missing)}")
        if options.access.lookupd and directory.remembers_ms < REMEMBERS_MS:
            _check_memory(found, directory, options)
        start = starting_offsets(options, found)
        end = self._ending(found)
        if self._filters is not None:
            since = self._filters.since
            young = {} if since is None else o.at_times(survey_all(options, since).holdings, none_is_latest=True)
            start, end = self._filters.applied(start, end, young)
        ranges, losses, _ = o.plan(start, end, found.holdings)
        report(losses, options)
        return tasks(ranges, found, options)

    def _ending(self, found: Survey) -> Offsets:
        if (moment := self._options.ending_timestamp) is not None:
            later = survey_all(self._options, moment)
            return o.at_times(later.holdings, none_is_latest=True)
        if isinstance(self._options.ending, str):
            return o.everywhere(found.holdings, LATEST)
        return o.as_requested(self._options.ending, found.holdings)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition, self._options, self._columns)


class FilteringReader(LogBatchReader):
    """A batch read that takes filters; Spark refuses it where it is not to push any."""

    def pushFilters(self, filters: list["Filter"]) -> list["Filter"]:
        """Leave out what the filters do not want, as far as ranges can; Spark filters the rows again."""
        from lapwing.spark.source.filters import pushed

        self._filters = pushed(filters)
        return filters


def _check_memory(found: Survey, directory: Directory, options: SourceOptions) -> None:
    """Name the brokers that are read; raise `LapwingError` where nsqlookupd may have forgotten one.

    That is so where a broker has run for longer than nsqlookupd: another one may have left before.
    """
    names = ", ".join(f"node {node} ({address})" for node, address in sorted(found.nodes.items())) or "none"
    answers = directory.ask_all(list(found.nodes.values()), "/info", {})
    ages = [time.time() - answer["start_time"] for _, answer in answers if not isinstance(answer, Exception)]
    since = directory.remembers_ms / 1000
    if directory.remembers and max(ages, default=0.0) > since + _START_SECONDS and options.fail_on_data_loss:
        raise LapwingError(
            f"nsqlookupd was restarted {since:.0f} s ago and does not know which brokers had left before: their "
            f"messages would be missing. It lists {names}. Name all brokers in the option nsqd, or set "
            "failOnDataLoss=false to read these"
        )
    logger.warning("nsqlookupd does not know which brokers left before it was started; these were read: %s", names)


def survey_all(
    options: SourceOptions, at: int | None = None, directory: Directory | None = None, *, tolerant: bool = False
) -> Survey:
    """Ask all brokers what they hold; wait for one that is away, then raise `BrokerAway`.

    With `failOnDataLoss=false`, or `tolerant`, a broker that is away is passed over with a log line.
    """
    directory = directory or Directory(options.access)

    def everyone() -> Survey:
        found = survey(options, at, directory)
        if found.away and options.fail_on_data_loss and not tolerant:
            departed = "; for a broker that will not come back: POST /producer/forget?node=HOST:PORT at nsqlookupd"
            hint = departed if options.access.lookupd else ""
            raise BrokerAway("not all brokers answer", found.complaint() + hint)
        return found

    found = patiently("reading offsets", everyone, options.access)
    for address, why in found.away.items():
        logger.warning("%s is away and passed over: %s", address, why)
    return found


def starting_offsets(options: SourceOptions, found: Survey, *, streaming: bool = False) -> Offsets:
    """Return where the options start in the logs that exist; a stream also waits for logs that are out of reach.

    Messages that retention has deleted and that the options ask for are named in the log.
    """
    if cut := o.cut_by_retention(found.holdings, options.starting, by_time=options.starting_timestamp is not None):
        more = f" and {len(cut) - _MOST_SHOWN} more logs" if len(cut) > _MOST_SHOWN else ""
        logger.warning(
            "the brokers no longer have all messages, as their retention has deleted the oldest: %s%s",
            "; ".join(cut[:_MOST_SHOWN]), more,
        )  # fmt: skip
    if options.starting_timestamp is not None:
        return o.at_times(found.holdings, none_is_latest=options.none_is_latest)
    if options.starting == "channel":
        return o.at_cursors(found.holdings)
    if isinstance(options.starting, str):
        return o.everywhere(found.holdings, EARLIEST if options.starting == "earliest" else LATEST)
    return o.as_requested(options.starting, found.holdings, keep_absent=streaming)
