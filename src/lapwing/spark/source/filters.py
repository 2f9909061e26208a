"""The filters of a query that leave out logs, or the ends of logs, before anything is read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql import datasource

from lapwing.spark.source.archived import real_node
from lapwing.spark.source.offsets import Offsets, Positions, each_log

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_NO_END: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The messages that a query can want."""

    topics: frozenset[Any] | None = None
    nodes: frozenset[Any] | None = None
    first: int = 0
    stop: int = _NO_END  # the sequence behind the last
    since: int | None = None  # ns

    def applied(self, start: Positions, end: Positions, since: Positions) -> tuple[Offsets, Offsets]:
        """Return what of these ranges a query can want; `since` has the places of the time `since`."""
        begin: Offsets = {}
        stop: Offsets = {}
        for topic, node, last in each_log(end):
            first = start.get(topic, {}).get(node)
            if self._leaves_out(topic, node):
                continue
            stop.setdefault(topic, {})[node] = last
            if first is None:
                continue
            begin.setdefault(topic, {})[node] = first
            if first.log_id != last.log_id or first.sequence > last.sequence:  # a loss, which is reported
                continue
            young = since.get(topic, {}).get(node)
            later = 0 if young is None or young.log_id != last.log_id else young.sequence
            to = max(min(last.sequence, self.stop), first.sequence)
            stop[topic][node] = replace(last, sequence=to)
            begin[topic][node] = replace(first, sequence=min(max(first.sequence, self.first, later), to))
        return begin, stop

    def _leaves_out(self, topic: str, node: int) -> bool:
        wanted = self.topics is None or topic in self.topics
        return not wanted or (self.nodes is not None and real_node(node) not in self.nodes)


def pushed(filters: "Iterable[datasource.Filter]") -> PushedFilters:
    """Return what all of these filters leave; those that leave out no log and no end of one change nothing.

    A time has no end here: where a broker's clock was set back, later messages have earlier times.
    """
    found = PushedFilters()
    for each in filters:
        column = getattr(each, "attribute", None)
        if getattr(each, "value", None) is None:
            continue
        if column == ("topic",):
            found = replace(found, topics=_among(found.topics, each))
        elif column == ("node",):
            found = replace(found, nodes=_among(found.nodes, each))
        elif column == ("sequence",):
            first, stop = _span(each)
            found = replace(found, first=max(found.first, first), stop=min(found.stop, stop))
        elif column == ("timestamp",) and (moment := _moment(each)) is not None:
            found = replace(found, since=max(found.since or 0, moment))
    return found


def _among(known: frozenset[Any] | None, each: "datasource.Filter") -> frozenset[Any] | None:
    if isinstance(each, datasource.EqualTo):
        values = frozenset([each.value])
    elif isinstance(each, datasource.In):
        values = frozenset(each.value)
    else:
        return known
    return values if known is None else known & values


def _span(each: "datasource.Filter") -> tuple[int, int]:
    """Return the sequences [first, stop) that a filter leaves."""
    if isinstance(each, datasource.EqualTo):
        return each.value, each.value + 1
    if isinstance(each, datasource.In):
        values = [value for value in each.value if value is not None]
        return (min(values), max(values) + 1) if values else (0, 0)
    if isinstance(each, datasource.GreaterThan):
        return each.value + 1, _NO_END
    if isinstance(each, datasource.GreaterThanOrEqual):
        return each.value, _NO_END
    if isinstance(each, datasource.LessThan):
        return 0, each.value
    if isinstance(each, datasource.LessThanOrEqual):
        return 0, each.value + 1
    return 0, _NO_END


def _moment(each: "datasource.Filter") -> int | None:
    """Return the time (ns) before which a filter leaves nothing."""
    kinds = datasource.EqualTo, datasource.GreaterThan, datasource.GreaterThanOrEqual
    if not isinstance(each, kinds) or not isinstance(each.value, datetime) or each.value.tzinfo is None:
        return None
    since = each.value - _EPOCH
    return max((since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) * 1000, 0)
