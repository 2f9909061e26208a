"""The places of a query in every log, and what it reads next: pure.

A query's offsets have for each topic and node the log that it reads and the sequence it reads next. The log's
identity is part of it, as a log that was created again starts at 0 again. Spark compares offsets as JSON text, so equal
offsets always give equal text.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeVar

EARLIEST: Final = -2  # as in Kafka's JSON
LATEST: Final = -1
ENDED_LOG: Final = 1 << 16  # numbers of nodes from here on are of archived logs that no broker has any more


class OffsetError(ValueError):
    """Offsets that are not what they should be; the text names the place."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in one log: everything below `sequence` has been read."""

    log_id: str
    sequence: int
    given_up: bool = False  # the user has accepted that the log is out of reach; cleared when it is back


@dataclass(frozen=True, slots=True)
class HeldLog:
    """The log that one node holds of one topic."""

    log_id: str
    first: int
    next: int
    bytes: int = 0
    address: str = ""
    at: int | None = None  # the sequence that a question for a time was answered with
    cursor: int | None = None  # of the query's channel, where it has one here
    archived: tuple[int, int] | None = None  # sequences [first, stop) that are read from the archive
    kept: int = 0  # the first sequence that the broker itself still has, where there is an archive


@dataclass(frozen=True, slots=True)
class LogRange:
    """Messages [start, stop) of one log, to be read by one task."""

    topic: str
    node: int
    log_id: str
    start: int
    stop: int
    address: str = ""

    def __str__(self) -> str:
        where = f" ({self.address})" if self.address else ""
        return f"topic {self.topic}, node {self.node}{where}, log {self.log_id}, sequences [{self.start}, {self.stop})"


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that should have been read and are gone, in words."""

    text: str
    deleted: bool = False  # the whole log is gone: its topic was deleted, or created again


Log = tuple[str, int]  # topic and node
Offsets = dict[str, dict[int, LogPosition]]
Positions = Mapping[str, Mapping[int, LogPosition]]  # the same, to be read only
Holdings = Mapping[str, Mapping[int, HeldLog]]
Requested = Mapping[str, Mapping[int, int | LogPosition]]
Value = TypeVar("Value")


def each_log(found: Mapping[str, Mapping[int, Value]]) -> Iterator[tuple[str, int, Value]]:
    """Yield topic, node and what is known of each log."""
    for topic, nodes in found.items():
        for node, value in nodes.items():
            yield topic, node, value


def to_json(offsets: Positions) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the one JSON form of these offsets, keys in order."""
    return {
        topic: {str(node): _as_json(nodes[node]) for node in sorted(nodes)} for topic, nodes in sorted(offsets.items())
    }


def _as_json(position: LogPosition) -> dict[str, Any]:
    found: dict[str, Any] = {"log_id": position.log_id, "sequence": position.sequence}
    return {**found, "given_up": True} if position.given_up else found


def from_json(value: object) -> Offsets:
    """Return the offsets that `to_json` has written; raises `OffsetError`."""
    offsets: Offsets = {}
    for topic, nodes in _requested(value).items():
        offsets[topic] = {}
        for node, position in nodes.items():
            if not isinstance(position, LogPosition):
                raise OffsetError(f"topic {topic}, node {node}: an offset needs log_id and sequence, not {position}")
            offsets[topic][node] = position
    return offsets


def parse_requested(text: str) -> Requested:
    """Return what a user asks for: `{"orders": {"7": 23, "9": -2}}`, a number per node (-2 earliest, -1 latest).

    The offsets of a checkpoint or of a query's progress are understood too; then the log must still be that one.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OffsetError(f"not JSON: {error}") from error
    return _requested(value)


def _requested(value: object) -> dict[str, dict[int, int | LogPosition]]:
    if not isinstance(value, dict):
        raise OffsetError(f"an object of topics expected, not {value!r}")
    requested: dict[str, dict[int, int | LogPosition]] = {}
    for topic, nodes in value.items():
        if topic.startswith("#"):  # what a query keeps beside its offsets
            continue
        if not isinstance(nodes, dict):
            raise OffsetError(f"topic {topic}: an object of nodes expected, not {nodes!r}")
        requested[topic] = {}
        for key, given in nodes.items():
            if not (key.isascii() and key.isdigit()):
                raise OffsetError(f"topic {topic}: a node is a number, not {key!r}")
            requested[topic][int(key)] = _position(given, f"topic {topic}, node {key}")
    return requested


def _position(given: object, where: str) -> int | LogPosition:
    if isinstance(given, dict):
        log_id, sequence = given.get("log_id"), given.get("sequence")
        known = {"log_id", "sequence"} <= set(given) <= {"log_id", "sequence", "given_up"}
        if known and isinstance(log_id, str) and type(sequence) is int and sequence >= 0:
            return LogPosition(log_id, sequence, bool(given.get("given_up")))
    elif type(given) is int and given >= EARLIEST:
        return given
    raise OffsetError(f"{where}: a sequence, -2 (earliest), -1 (latest) or log_id and sequence expected, not {given!r}")


def everywhere(holdings: Holdings, place: int) -> Offsets:
    """Return the earliest or the latest position of every log."""
    return _at(holdings, lambda held: _place(held, place))


def at_cursors(holdings: Holdings) -> Offsets:
    """Return the places of the channel's cursors; the earliest message where there is no such channel."""
    return _at(holdings, lambda held: held.first if held.cursor is None else held.cursor)


def _at(holdings: Holdings, place: Callable[[HeldLog], int]) -> Offsets:
    return {
        topic: {node: LogPosition(held.log_id, place(held)) for node, held in nodes.items()}
        for topic, nodes in holdings.items()
    }


def at_times(holdings: Holdings, *, none_is_latest: bool) -> Offsets:
    """Return the first message at or after the time that was asked for; raises `OffsetError` where there is none."""
    for topic, node, held in each_log(holdings):
        if (held.at is None or held.at >= held.next) and not none_is_latest:
            raise OffsetError(
                f"topic {topic}, node {node}: no message at or after the starting timestamp "
                "(startingOffsetsByTimestampStrategy=latest would start at the end)"
            )
    return _at(holdings, lambda held: held.next if held.at is None else held.at)


def as_requested(requested: Requested, holdings: Holdings, *, keep_absent: bool = False) -> Offsets:
    """Return the positions that a user's JSON names, in the logs that exist; a node it leaves out starts at earliest.

    With `keep_absent` a position with the log's identity is kept also where the log is out of reach now. Raises
    `OffsetError` for a topic or a node that one side knows and the other does not.
    """
    if unnamed := sorted(set(holdings) - set(requested)):
        raise OffsetError(f"no offsets given for topic {', '.join(unnamed)}")
    offsets: Offsets = {}
    for topic, nodes in requested.items():
        there = holdings.get(topic, {})
        places = {}
        for node in {*there, *nodes}:
            given, held = nodes.get(node, EARLIEST), there.get(node)
            if held is not None:
                places[node] = _place_in(topic, node, held, given)
            elif keep_absent and isinstance(given, LogPosition):
                places[node] = given
            else:
                raise OffsetError(f"offsets given for node {node} of topic {topic}, which does not have it")
        if not places:
            raise OffsetError(f"offsets given for topic {topic}, which is not read")
        offsets[topic] = places
    return offsets


def _place_in(topic: str, node: int, held: HeldLog, wanted: int | LogPosition) -> LogPosition:
    if isinstance(wanted, int):
        wanted = LogPosition(held.log_id, _place(held, wanted))
    if wanted.log_id == held.log_id and wanted.sequence > held.next:
        raise OffsetError(f"topic {topic}, node {node}: {wanted.sequence} lies behind the end, {held.next}")
    return wanted


def cut_by_retention(holdings: Holdings, starting: str | Requested, *, by_time: bool) -> list[str]:
    """Return, in words, the logs whose first messages were asked for and are deleted.

    With a time that is so where the log begins after its first message and the time is not after that.
    """
    cut = []
    for topic, nodes in sorted(holdings.items()):
        for node, held in sorted(nodes.items()):
            if held.first == 0:
                continue
            if by_time:
                lacks = held.at is not None and held.at <= held.first
            elif isinstance(starting, str):
                lacks = starting == "earliest"
            else:
                lacks = starting.get(topic, {}).get(node, EARLIEST) == EARLIEST
            if lacks:
                left = held.next - held.first
                cut.append(f"topic {topic}, node {node} begins at {held.first} ({left} messages left)")
    return cut


def _place(held: HeldLog, wanted: int) -> int:
    return {EARLIEST: held.first, LATEST: held.next}.get(wanted, wanted)


def backlog(start: Positions, holdings: Holdings) -> dict[Log, int]:
    """Return how many messages each log holds that have not been read; logs without any are left out."""
    waiting = {}
    for topic, node, held in each_log(holdings):
        position = start.get(topic, {}).get(node)
        if position is not None and (count := held.next - _resume(position, held)) > 0:
            waiting[topic, node] = count
    return waiting


def _resume(position: LogPosition, held: HeldLog) -> int:
    """Return where reading continues in the log that is there now."""
    return held.first if position.log_id != held.log_id else max(position.sequence, held.first)


def advance(
    start: Positions,
    holdings: Holdings,
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    target: Positions | None = None,
) -> Offsets:
    """Return where the next micro-batch ends.

    A log that is away keeps its place. One that is new enters at its earliest message and is read from the batch after,
    so that a batch that is done again begins where it began. No log goes past `target`, when there is one. A log that
    was created again, or has lost its tail, enters as it is now: `plan` sees that by the two ends and calls it a loss.
    """
    within = _within(holdings, target)
    allowed = _share_out(backlog(start, within), within, max_messages, max_bytes)
    end: Offsets = {topic: dict(nodes) for topic, nodes in start.items()}
    for topic, node, held in each_log(within):
        position = start.get(topic, {}).get(node)
        if position is None:
            reached = held.first
        elif position.log_id == held.log_id and position.sequence > held.next:
            reached = held.next
        elif count := allowed.get((topic, node), 0):
            reached = _resume(position, held) + count
        elif position.log_id == held.log_id:
            if not position.given_up:
                continue
            reached = position.sequence
        else:
            reached = held.first
        end.setdefault(topic, {})[node] = LogPosition(held.log_id, reached)
    return end


def _within(holdings: Holdings, target: Positions | None) -> Holdings:
    if target is None:
        return holdings
    within: dict[str, dict[int, HeldLog]] = {}
    for topic, node, held in each_log(holdings):
        if (goal := target.get(topic, {}).get(node)) is not None:
            last = goal.sequence if goal.log_id == held.log_id else held.first
            within.setdefault(topic, {})[node] = replace(held, next=max(min(last, held.next), held.first))
    return within


def _share_out(
    waiting: Mapping[Log, int], holdings: Holdings, max_messages: int | None, max_bytes: int | None
) -> dict[Log, int]:
    allowed = dict(waiting)
    if max_messages is not None:
        allowed = share(allowed, max_messages)
    if max_bytes is not None:
        sizes = {(topic, node): _mean_size(holdings[topic][node]) for topic, node in allowed}
        shares = share({key: count * sizes[key] for key, count in allowed.items()}, max_bytes)
        counts = {key: min(allowed[key], given // sizes[key]) for key, given in shares.items()}
        if allowed and not any(counts.values()):
            largest = max(allowed, key=lambda key: (allowed[key], key))
            counts[largest] = 1  # a limit below one message still lets the query move
        allowed = counts
    return {key: count for key, count in allowed.items() if count > 0}


def _mean_size(held: HeldLog) -> int:
    count = held.next - held.first
    return max(1, held.bytes // count) if count > 0 else 1


def share(waiting: Mapping[Log, int], limit: int) -> dict[Log, int]:
    """Split `limit` in proportion to what waits: never more than waits, and nothing of the limit is left unused.

    Where the limit allows it everybody gets at least one, so that a small backlog is not starved by a large one.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    keys = sorted(waiting)
    shares = {key: limit * waiting[key] // total for key in keys}
    if limit >= len(keys):
        for key in keys:
            shares[key] = max(shares[key], 1)
    over = sum(shares.values()) - limit
    for key in sorted(keys, key=lambda key: (-shares[key], key)) if over > 0 else ():
        taken = min(over, shares[key] - 1)
        shares[key] -= taken
        over -= taken
    # what rounding down has left goes to those it cost most
    by_remainder = sorted(keys, key=lambda key: (-(limit * waiting[key] % total), key))
    while over < 0:
        for key in by_remainder:
            if over < 0 and shares[key] < waiting[key]:
                shares[key] += 1
                over += 1
    return shares


def plan(start: Positions, end: Positions, holdings: Holdings) -> tuple[list[LogRange], list[Loss], list[LogRange]]:
    """Return what lies between two offsets: ranges to read, losses, and ranges that are out of reach now."""
    ranges: list[LogRange] = []
    losses: list[Loss] = []
    away: list[LogRange] = []
    for topic, nodes in sorted(end.items()):
        for node, until in sorted(nodes.items()):
            since = start.get(topic, {}).get(node, until)  # new here: it enters at `until`, see `advance`
            held = holdings.get(topic, {}).get(node)
            begin = since.sequence
            if since.log_id != until.log_id:
                text = (
                    f"topic {topic}, node {node}: the topic was created again; the log {since.log_id} was read up to "
                    f"{since.sequence}, and now there is a new log {until.log_id}"
                )
                losses.append(Loss(text, deleted=True))
                begin = 0
            elif begin > until.sequence:
                text = (
                    f"topic {topic}, node {node}: the log {until.log_id} was read up to {begin} and now ends at "
                    f"{until.sequence}; it has lost its tail, and new messages get the same sequences"
                )
                losses.append(Loss(text))
            wanted = LogRange(topic, node, until.log_id, begin, until.sequence, "" if held is None else held.address)
            if wanted.start >= wanted.stop:
                continue
            if held is None:
                away.append(wanted)
                continue
            found, lost = _still_there(wanted, held)
            losses += lost
            if found.start < found.stop:
                ranges.append(found)
    return ranges, losses, away


def divide(ranges: Sequence[LogRange], holdings: Holdings) -> tuple[list[LogRange], list[LogRange], list[Loss]]:
    """Divide ranges by where they are read: from the brokers, from the archive, or nowhere any more."""
    live: list[LogRange] = []
    archived: list[LogRange] = []
    losses: list[Loss] = []
    for part in ranges:
        held = holdings[part.topic][part.node]
        low, high = held.archived or (part.start, part.start)
        low, high = max(part.start, min(low, part.stop)), min(part.stop, max(high, part.start))
        pieces = ((part.start, low), (high, part.stop)) if low < high else ((part.start, part.stop),)
        if low < high:
            archived.append(replace(part, start=low, stop=high, address=""))
        for start, stop in pieces:
            if held.archived is not None and start < min(stop, held.kept):
                gone = replace(part, start=start, stop=min(stop, held.kept))
                losses.append(Loss(f"{gone}: deleted by retention before they were archived"))
                start = gone.stop
            if start < stop:
                live.append(replace(part, start=start, stop=stop))
    return live, archived, losses


def adopt(holdings: Holdings, position: Positions) -> dict[str, dict[int, HeldLog]]:
    """Return the holdings; a log that the query has read under another number begins where the query is in it.

    That is so when a topic is deleted: the rest of its log is in the archive, under a number of its own.
    """
    found = {topic: dict(nodes) for topic, nodes in holdings.items()}
    for topic, nodes in holdings.items():
        known = position.get(topic, {})
        reached = {place.log_id: place.sequence for place in known.values()}
        for node, held in nodes.items():
            if node not in known and held.log_id in reached:
                found[topic][node] = replace(held, first=max(held.first, min(reached[held.log_id], held.next)))
    return found


def missing(position: Positions, holdings: Holdings) -> frozenset[Log]:
    """Return the logs that a query has a place in and that no broker reports."""
    return frozenset((topic, node) for topic, node, _ in each_log(position) if node not in holdings.get(topic, {}))


def give_up(offsets: Offsets, logs: Iterable[Log]) -> Offsets:
    """Return the offsets, with a note at these logs that nobody waits for them any more."""
    given_up = {topic: dict(nodes) for topic, nodes in offsets.items()}
    for topic, node in logs:
        given_up[topic][node] = replace(given_up[topic][node], given_up=True)
    return given_up


def without(offsets: Positions, dropped: Set[Log], *, over: Positions | None = None) -> Offsets:
    """Return the offsets, with those of `over` for logs that they lack, and without the dropped logs."""
    under = over or {}
    merged = {
        topic: {
            node: position
            for node, position in {**under.get(topic, {}), **offsets.get(topic, {})}.items()
            if (topic, node) not in dropped
        }
        for topic in offsets.keys() | under.keys()
    }
    return {topic: nodes for topic, nodes in merged.items() if nodes}


def _still_there(wanted: LogRange, held: HeldLog) -> tuple[LogRange, list[Loss]]:
    if wanted.log_id != held.log_id:
        gone = Loss(f"{wanted}: the log is gone, there is a new one {held.log_id}", deleted=True)
        return replace(wanted, stop=wanted.start), [gone]
    lost = []
    if wanted.start < held.first:
        lost.append(Loss(f"{wanted}: the log begins at {held.first}, what lies before was deleted by retention"))
    if wanted.stop > held.next:
        lost.append(Loss(f"{wanted}: the log ends at {held.next}"))
    return replace(wanted, start=max(wanted.start, held.first), stop=min(wanted.stop, held.next)), lost


def split(
    ranges: Sequence[LogRange],
    sizes: Mapping[Log, int],
    *,
    min_partitions: int = 1,
    max_messages: int | None = None,
    max_bytes: int | None = None,
) -> list[LogRange]:
    """Cut ranges into tasks of similar size: at least `min_partitions` (as far as there are messages), none too large.

    `sizes` is the mean size of a message per topic and node.
    """
    total = sum(part.stop - part.start for part in ranges)
    tasks: list[LogRange] = []
    for part in ranges:
        count = part.stop - part.start
        pieces = -(-count * min_partitions // total) if min_partitions > len(ranges) else 1
        if max_messages is not None:
            pieces = max(pieces, -(-count // max_messages))
        if max_bytes is not None:
            pieces = max(pieces, -(-count // max(1, max_bytes // sizes.get((part.topic, part.node), 1))))
        pieces = min(pieces, count)
        cuts = [part.start + count * piece // pieces for piece in range(pieces + 1)]
        tasks += [replace(part, start=low, stop=high) for low, high in pairwise(cuts)]
    return tasks


def pack(
    parts: Sequence[LogRange],
    sizes: Mapping[Log, int],
    *,
    min_partitions: int = 1,
    max_messages: int | None = None,
    max_bytes: int,
) -> list[tuple[LogRange, ...]]:
    """Put small ranges together into few tasks of at most `max_bytes`; a larger range stays alone.

    There are at least `min_partitions` tasks, as far as there are ranges. A task asks one broker.
    """
    weights = [(part.stop - part.start) * sizes.get((part.topic, part.node), 1) for part in parts]
    small = sum(weight for weight in weights if weight < max_bytes)
    alone = sum(weight >= max_bytes for weight in weights)
    capacity = min(max_bytes, -(-small // max(min_partitions - alone, 1)))
    groups: list[tuple[LogRange, ...]] = []
    open_groups: dict[str, list[Any]] = {}  # by address: ranges, bytes and messages of the group that is being filled
    for part, weight in zip(parts, weights, strict=True):
        count = part.stop - part.start
        if weight >= max_bytes:
            groups.append((part,))
            continue
        filling = open_groups.get(part.address)
        full = filling is not None and (
            filling[1] + weight > capacity or (max_messages is not None and filling[2] + count > max_messages)
        )
        if filling is None or full:
            if filling is not None:
                groups.append(tuple(filling[0]))
            filling = open_groups[part.address] = [[], 0, 0]
        filling[0].append(part)
        filling[1] += weight
        filling[2] += count
    return groups + [tuple(filling[0]) for filling in open_groups.values()]


def mean_sizes(holdings: Holdings) -> dict[Log, int]:
    """Return the mean size of a message in bytes, per topic and node."""
    return {(topic, node): _mean_size(held) for topic, node, held in each_log(holdings)}


def merge(answers: Iterable[tuple[str, int, str, HeldLog]]) -> dict[str, dict[int, HeldLog]]:
    """Return one picture of what many nodes hold: (topic, node, address of the node, what it holds).

    Raises `OffsetError` when two nodes have one number: their offsets and the ids of their messages would be mixed up.
    """
    holdings: dict[str, dict[int, HeldLog]] = {}
    for topic, node, address, held in answers:
        other = holdings.setdefault(topic, {}).get(node)
        if other is not None and other.log_id != held.log_id:
            raise OffsetError(
                f"{other.address} and {address} both call themselves node {node}; "
                "give every nsqd a number of its own (--node-id)"
            )
        holdings[topic][node] = replace(held, address=address)
    return holdings
