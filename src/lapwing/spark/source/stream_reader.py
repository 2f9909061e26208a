"""Streams of logs: planned beside the driver for as long as the query lives.

The channel is moved by `latestOffset`, to the offsets that Spark hands in as finished, and not by `commit`: that is
called when the batch after it is planned, never for the last batch of a run, and not at all for a batch that was
finished before a restart.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import PLANNING_SECONDS, BrokerAway, BrokerRefused, call, patiently
from lapwing.spark.options import SourceOptions
from lapwing.spark.source import offsets as o
from lapwing.spark.source.batch_reader import starting_offsets, survey_all
from lapwing.spark.source.channel_hold import QUERY, ChannelHold
from lapwing.spark.source.losses import is_tolerated, report
from lapwing.spark.source.offsets import LATEST, Log, LogRange, Loss, Offsets
from lapwing.spark.source.range_reader import read_task, tasks
from lapwing.spark.source.survey import Survey, survey, wait_for_more, wanted

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

BROKERS: Final = "#brokers"  # key of the offsets with the addresses of nodes: no topic is called so


class FirstBatch:
    """The first batch of a new query reads nothing: it only records where the query begins.

    Spark asks for the initial offset more than once: before the first batch, when it plans it, and again when that
    batch was not finished and is repeated after a restart. "Latest" has moved on by then, and the messages in between
    would be lost. A batch that ends where it begins can be repeated at any time.
    """

    def __init__(self) -> None:
        self._initial: dict[str, Any] | None = None
        self._over = False

    def begin(self, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the initial offset, which is found once and does not change."""
        if self._initial is None:
            self._initial = find()
        return self._initial

    def ends_at(self, start: dict[str, Any]) -> bool:
        """Return whether the batch that begins at `start` is the first one, and so ends there too."""
        first = self._initial == start and not self._over
        self._over = True
        return first

    def is_planned(self) -> bool:
        """Return whether Spark is planning a repeated first batch, which has no tasks."""
        return self._initial is not None and not self._over


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Spark calls it in series, in one process beside the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        self._directory = Directory(options.access)
        self._hold: ChannelHold | None = None
        self._first = FirstBatch()
        self._new_query = False
        self._committed: dict[Log, o.LogPosition] = {}
        self._away: frozenset[str] = frozenset()
        self._missing: frozenset[Log] = frozenset()
        self._deleted: frozenset[Log] = frozenset()  # logged already
        self._accepting = options.accept_loss  # only what is lost when the query starts
        self._looked = False
        self._latest: Offsets = {}
        self._target: Offsets | None = None
        self._batch_at = time.monotonic()  # when a batch was last given out

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; a restarted one continues from its checkpoint."""
        return self._first.begin(self._begin)

    def _begin(self) -> dict[str, Any]:
        self._new_query = True
        found = survey_all(self._options, self._options.starting_timestamp, self._directory)
        for topic in self._options.topics:
            if topic not in found.holdings:
                logger.warning("no broker has the topic %s yet; it will be read from its first message on", topic)
        start = starting_offsets(self._options, found, streaming=True)
        if self._options.channel is not None:
            self._hold = ChannelHold(self._options)
            self._hold.take(found)
        self._commit(start, found)
        return self._to_json(start)

    def _to_json(self, offsets: Offsets) -> dict[str, Any]:
        """Return the offsets as Spark keeps them, with the query's brokers, and its name if it holds a channel."""
        found: dict[str, Any] = o.to_json(offsets)
        known = self._directory.remembered
        nodes = sorted({node for _, node, _ in o.each_log(offsets)} & known.keys())
        if nodes:
            found = {BROKERS: {str(node): known[node] for node in nodes}, **found}
        return found if self._hold is None else {QUERY: self._hold.name, **found}

    def _remember(self, offsets: Mapping[str, Any]) -> None:
        """Take in the brokers that the offsets of the checkpoint name."""
        named = {int(node): address for node, address in offsets.get(BROKERS, {}).items()}
        self._directory.remember(named | self._directory.remembered)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark hands back for every batch."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ends of all logs: this run reads up to there."""
        found = survey_all(self._options, directory=self._directory, tolerant=self._accepting)
        self._target = o.everywhere(found.holdings, LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends. The query has durably finished `start`: the channel is moved there.

        With nothing to read, waits at the brokers for a while; Spark asks again after that.
        """
        if self._first.ends_at(start):
            return start
        position = o.from_json(start)
        if not self._looked:
            self._remember(start)
        found, deleted = self._look(position)
        if not self._looked and self._target is not None:  # the ends of logs whose brokers the checkpoint has named
            self._target = o.without(self._target, frozenset(), over=o.everywhere(found.holdings, LATEST))
        self._looked = True
        if self._options.channel is not None:
            if self._hold is None:
                self._hold = ChannelHold(self._options, start)
            self._hold.take(found)
        self._commit(position, found)
        end = self._advance(position, found, deleted, limit)
        if end == position and self._target is None:
            wait_for_more(position, found.holdings, self._options)
            found, deleted = self._look(position)
            end = self._advance(position, found, deleted, limit)
        if end == position:
            self._accepting = False
        else:
            self._batch_at = time.monotonic()
        self._latest = o.without(o.everywhere(found.holdings, LATEST), deleted, over=position)
        return start if end == position else self._to_json(end)

    def _look(self, position: Offsets) -> tuple[Survey, frozenset[Log]]:
        """Ask the brokers what they hold, and which logs of the query are deleted.

        A broker that is away keeps its place; that it is away is logged when it changes.
        """
        if self._target is not None:
            found = patiently("availableNow", lambda: self._reachable(position), self._options.access)
        else:
            found = patiently("reading offsets", self._someone, self._options.access)
            if (away := frozenset(found.away)) != self._away:
                for address in away - self._away:
                    logger.warning("%s is away, its messages wait: %s", address, found.away[address])
                for address in self._away - away:
                    logger.warning("%s is back", address)
                self._away = away
        if self._options.archive is not None:
            found = replace(found, holdings=o.adopt(found.holdings, position))
        return found, self._find_deleted(position, found)

    def _someone(self) -> Survey:
        """Ask the brokers what they hold; raises `BrokerAway` when there are brokers and none of them answers."""
        found = survey(self._options, directory=self._directory)
        if found.away and not found.nodes:
            raise BrokerAway("no broker answers", found.complaint())
        return found

    def _find_deleted(self, position: Offsets, found: Survey) -> frozenset[Log]:
        """Return the logs that their nodes no longer have; raises `DataLoss` unless that is tolerated or accepted.

        A log whose node does not answer is only missing, and waits.
        """
        missing = {log for log in o.missing(position, found.holdings) if wanted(log[0], self._options)}
        restored = frozenset(log for log in missing if log[1] >= o.ENDED_LOG)  # a broker has the log again
        missing -= restored
        deleted = frozenset(log for log in missing if log[1] in found.nodes)
        losses = {log: Loss(self._deletion(position, log), deleted=True) for log in sorted(deleted)}
        report(
            [loss for log, loss in losses.items() if log not in self._deleted or not self._may_lose(loss)],
            self._options,
            accepted=self._accepting,
        )
        self._deleted = deleted
        for topic, node in sorted(missing - deleted - self._missing):
            if not found.away:
                logger.warning("topic %s, node %s: no broker that is known has it; its messages wait", topic, node)
        self._missing = frozenset(missing - deleted)
        return deleted | restored

    def _may_lose(self, loss: Loss) -> bool:
        return self._accepting or is_tolerated(loss, self._options)

    def _deletion(self, position: Offsets, log: Log) -> str:
        topic, node = log
        place = position[topic][node]
        last = self._latest.get(topic, {}).get(node, place)
        unread = last.sequence - place.sequence if last.log_id == place.log_id else 0
        lost = f"; at least {unread} messages of it were not read" if unread > 0 else ""
        return (
            f"topic {topic}, node {node}: the topic was deleted; "
            f"its log {place.log_id} was read up to {place.sequence}{lost}"
        )

    def _reachable(self, position: Offsets) -> Survey:
        """Ask the brokers what they hold; raises `BrokerAway` while a log that this run has to finish is away."""
        found = self._someone()
        if not self._options.fail_on_data_loss or self._accepting:
            return found
        for topic, node in sorted(o.missing(position, found.holdings) | o.missing(self._target or {}, found.holdings)):
            here = position.get(topic, {}).get(node)
            finished = here is not None and (here.given_up or here == (self._target or {}).get(topic, {}).get(node))
            if not finished and node not in found.nodes and wanted(topic, self._options):
                place = "" if here is None else f" was read up to {here.sequence}, and"
                raise BrokerAway(
                    f"topic {topic}, node {node}{place} no broker that is known has it",
                    f"{found.complaint() or 'every known broker answers'} (acceptLoss=true continues without it)",
                )
        return found

    def _advance(self, position: Offsets, found: Survey, deleted: frozenset[Log], limit: ReadLimit) -> Offsets:
        end = o.advance(
            position,
            found.holdings,
            max_messages=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            target=self._target,
        )
        if self._target is None and not self._enough(position, found):
            return position
        if self._accepting:
            end = o.give_up(end, self._missing)
        return o.without(end, deleted)

    def _enough(self, position: Offsets, found: Survey) -> bool:
        """Return whether as many messages wait as a batch should at least have, or the last batch was long ago."""
        if self._options.min_messages is None:
            return True
        if time.monotonic() - self._batch_at >= self._options.max_delay:
            return True
        return sum(o.backlog(position, found.holdings).values()) >= self._options.min_messages

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all logs for the query's progress: lag is this minus endOffset."""
        return o.to_json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of one batch, also of a batch that is repeated after a restart."""
        if self._first.is_planned():
            return []
        since, until = o.from_json(start), o.from_json(end)
        self._remember(end)
        # the topics of the batch, whatever the options name by now: it may be repeated after they were changed
        asked = replace(self._options, topics=tuple(sorted(until)), pattern=None)

        def planned() -> tuple[list[LogRange], list[Loss], Survey]:
            found = survey(asked, directory=self._directory)
            ranges, losses, away = o.plan(since, until, found.holdings)
            deleted = [part for part in away if part.node in found.nodes]
            losses += [Loss(f"{part}: the topic was deleted", deleted=True) for part in deleted]
            if away := [part for part in away if part.node not in found.nodes]:
                raise BrokerAway("; ".join(map(str, away)), found.complaint() or "no broker has it")
            return ranges, losses, found

        ranges, losses, found = patiently("planning a batch", planned, self._options.access)
        report(losses, self._options, accepted=self._accepting)
        if self._looked:
            self._accepting = False
        return tasks(ranges, found, self._options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` moves the channel, for the reason above."""

    def _commit(self, position: Offsets, found: Survey) -> None:
        """Move the channel to what the query has finished, on every node where that is news."""
        if self._options.channel is None:
            return
        news: dict[str, dict[Log, o.LogPosition]] = {}  # by address
        for topic, node, place in o.each_log(position):
            held = found.holdings.get(topic, {}).get(node)
            if held is None or not held.address or place.sequence < held.kept:
                continue  # the log is away, or the query is in the archive still
            if held.log_id == place.log_id and self._committed.get((topic, node)) != place:
                news.setdefault(held.address, {})[topic, node] = place
        for address, places in news.items():
            try:
                refused = move_channel(address, self._options, places, back=self._new_query)
            except BrokerAway as error:
                logger.warning("%s: the channel stays behind: %s", _some(places), error)
                continue
            for log, why in refused.items():
                logger.warning("%s: the channel was not moved: %s", _some([log]), why)
            self._committed |= places
        self._new_query = False

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options, "_columns": self._columns}  # all that `read` needs on an executor


def _some(logs: Iterable[Log], most: int = 3) -> str:
    """Return the logs in words, or the first of them."""
    named = [f"topic {topic}, node {node}" for topic, node in logs]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return "; ".join(named[:most]) + more


def move_channel(
    address: str, options: SourceOptions, places: Mapping[Log, o.LogPosition], *, back: bool
) -> dict[Log, str]:
    """Move the channel of these logs on one broker, created where it is missing; return which were refused, and why."""
    parameters: dict[str, str | int | list[str]] = {"channel": options.channel or "", "create": "true"}
    if back:
        parameters["back"] = "true"
    if len(places) > 1:
        body = json.dumps([[topic, place.log_id, place.sequence] for (topic, _), place in places.items()]).encode()
        try:
            access = options.access
            answer = call(address, access, "POST", "/channel/commits", parameters, body, seconds=PLANNING_SECONDS)
        except BrokerRefused as error:
            if error.status != 404:
                raise
        else:
            refused = {each["topic"]: f"{each['status']} {each['message']}" for each in answer["refused"]}
            return {log: refused[log[0]] for log in places if log[0] in refused}
    found: dict[Log, str] = {}
    for (topic, node), place in places.items():
        one = {**parameters, "topic": topic, "log_id": place.log_id, "sequence": place.sequence}
        try:
            call(address, options.access, "POST", "/channel/commit", one, seconds=PLANNING_SECONDS)
        except BrokerRefused as error:
            found[topic, node] = str(error)
    return found
