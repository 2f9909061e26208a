"""Tables of topics, channels, pipelines and programs for a terminal."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from lapwing import names
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView, Rate, Rates
from lapwing.client.format import duration, printable_text, short
from lapwing.client.pipeline_status import problem, starting
from lapwing.tools.supervisor import Child, State
from lapwing.tools.terminal import Cell, Column, Terminal, table

_STYLES: Final = {
    State.RUNNING: "green", State.STARTING: "yellow", State.DEAD: "red", State.STOPPING: "yellow", State.STOPPED: "dim",
    State.DONE: "dim", State.FAILED: "red",
}  # fmt: skip
_PROBLEM: Final = "yellow"
_BRIEF: Final = 100  # columns; a narrower screen has no place for all figures of a channel
_FEW: Final = 3  # rows that a table has where there is no room
_HOST: Final = re.compile(r"\b(tcp|http|redis) \S+:(\d+)")  # the ports suffice: the stack is on this machine
_IN: Final = Column("in/s")
_OUT: Final = Column("out/s")
_WAITING: Final = Column("waiting", "wait")
_NOTE: Final = Column("note", left=True, note=True)
_TOPIC_COLUMNS: Final = (
    _WAITING, Column("messages", "msgs"), Column("channels", "chan"), Column("nodes"), _NOTE,
)  # fmt: skip
_CHANNEL_COLUMNS: Final = (
    _WAITING, Column("in flight", "fly"), Column("deferred", "defer"), Column("requeued", "req"),
    Column("timed out", "t/o"),
)  # fmt: skip
_PIPELINE_COLUMNS: Final = (
    Column("pipeline", left=True), Column("state", left=True), Column("rows/s"), Column("lag"), Column("batch"), _NOTE,
)  # fmt: skip
_PROGRAM_COLUMNS: Final = (
    Column("program", left=True), Column("state", left=True), Column("since"), Column("CPU"), Column("memory"),
    Column("ports and places", left=True),
)  # fmt: skip


def waiting(topic: Json) -> int:
    """Return the messages that wait in a topic and in its channels."""
    return int(topic["depth"]) + sum(int(channel["depth"]) for channel in topic["channels"])


def topics_table(
    view: ClusterView, rates: Rates | None, terminal: Terminal, *, title: str = "", most: int = 1000
) -> list[str]:
    """Return a line for each topic by name; of more than `most`, only the busiest."""
    columns = (Column("topic", left=True), *((_IN, _OUT) if rates is not None else ()), *_TOPIC_COLUMNS)
    rows: list[list[str | Cell]] = []
    for name, topic in _busiest(view, rates, most):
        note = "paused" if topic["paused"] else "" if topic["channels"] else "no channel: messages are kept"
        rows.append([
            name, *_rates(rates, (name, "")), short(waiting(topic)), short(topic["message_count"]),
            str(len(topic["channels"])), str(len(topic["nodes"])), Cell(note, "yellow"),
        ])  # fmt: skip
    return table(columns, rows, terminal, title=title)


def _busiest(view: ClusterView, rates: Rates | None, most: int) -> list[tuple[str, Json]]:
    """Return the `most` busiest topics. Their order is that of their names, so that rows do not jump between looks."""
    if not rates or len(view.topics) <= most:
        return list(view.topics.items())[:most]
    ranked = sorted(view.topics, key=lambda name: (-rates.get((name, ""), Rate(0, 0)).arriving, name))
    return [(name, view.topics[name]) for name in sorted(ranked[:most])]


def _rates(rates: Rates | None, key: tuple[str, str]) -> list[str]:
    if rates is None:
        return []
    rate = rates.get(key)
    return ["", ""] if rate is None else [short(rate.arriving), short(rate.leaving)]


def channels_table(
    view: ClusterView, rates: Rates | None, terminal: Terminal, *, topic: str = "", title: str = "", most: int = 1000,
    with_topic: bool = True, urgent_first: bool = False,
) -> list[str]:  # fmt: skip
    """Return a line for each channel by name; with `urgent_first` those with problems come first, idle ones last."""
    brief = urgent_first and 0 < terminal.width < _BRIEF  # rather a line for each channel than all of its figures
    columns = (
        *((Column("topic", left=True),) if with_topic else ()), Column("channel", left=True),
        *((_IN, _OUT) if rates is not None else ()), *_CHANNEL_COLUMNS[: 3 if brief else None],
        *((Column("oldest"),) if view.ages else ()), Column("clients", "cons"),
        Column("note", left=True) if brief else _NOTE,
    )  # fmt: skip
    moved = view.pipeline_channels()
    rows: list[list[str | Cell]] = []
    channels = _urgent(view, rates or {}, most) if urgent_first else islice(view.channels(topic), most)
    for channel in channels:
        key = channel["topic_name"], channel["channel_name"]
        age = [duration(view.ages[key]) if view.ages.get(key) else ""] if view.ages else []
        counts = ("depth", "in_flight_count", "deferred_count", *(() if brief else ("requeue_count", "timeout_count")))
        rows.append([
            *((key[0],) if with_topic else ()), key[1], *_rates(rates, key), *(short(channel[name]) for name in counts),
            *age, str(channel["client_count"] or len(channel.get("consumers", ()))),
            _note(channel, key in moved, (rates or {}).get(key)),
        ])  # fmt: skip
    return table(columns, rows, terminal, title=title)


def _urgent(view: ClusterView, rates: Rates, most: int) -> list[Json]:
    """Return the `most` most urgent channels: with a problem, busy, idle. Equals are in order of their names."""
    moved = view.pipeline_channels()
    ranks: dict[tuple[str, str], int] = {}
    loads: dict[tuple[str, str], float] = {}
    for channel in view.channels():
        key = channel["topic_name"], channel["channel_name"]
        rate = rates.get(key, Rate(0, 0))
        loads[key] = rate.arriving + rate.leaving
        waits = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        ranks[key] = 1 if loads[key] or waits else 2
        if channel["depth"] and _note(channel, key in moved, rates.get(key)).style == _PROBLEM:
            ranks[key] = 0

    def key_of(channel: Json) -> tuple[str, str]:
        return channel["topic_name"], channel["channel_name"]

    chosen = sorted(view.channels(), key=lambda channel: (ranks[key_of(channel)], -loads[key_of(channel)],
                                                          -channel["depth"], key_of(channel)))[:most]  # fmt: skip
    return sorted(chosen, key=lambda channel: (ranks[key_of(channel)], key_of(channel)))  # rows keep their places


def consumers_table(view: ClusterView, terminal: Terminal, *, topic: str = "") -> list[str]:
    """Return a line for each named consumer, the one that has held a message for longest first."""
    found = [
        (channel["topic_name"], channel["channel_name"], consumer)
        for channel in view.channels(topic)
        for consumer in channel.get("consumers", ())
    ]
    found.sort(key=lambda each: -each[2]["oldest_seconds"])
    columns = (Column("topic", left=True), Column("channel", left=True), Column("consumer", left=True),
               Column("holds"), Column("oldest"), Column("idle"), Column("node", left=True))  # fmt: skip
    rows: list[list[str | Cell]] = [
        [
            *place, consumer["name"], short(consumer["in_flight_count"]),
            duration(consumer["oldest_seconds"]) if consumer["in_flight_count"] else "",
            duration(consumer["idle_seconds"]), consumer["node"],
        ]
        for *place, consumer in found[:1000]
    ]  # fmt: skip
    return table(columns, rows, terminal, title="Named consumers")


def pending_table(entries: Sequence[tuple[str, Json]], terminal: Terminal, *, now: float) -> list[str]:
    """Return a line for each pending message, with its node if there are several."""
    nodes = len({node for node, _ in entries}) > 1
    columns = (
        *((Column("node", left=True),) if nodes else ()), Column("sequence", "seq"), Column("id"),
        Column("state", left=True), Column("holder", left=True), Column("idle"), Column("until"),
        Column("deliveries", "dlv"), Column("failures", "fail"), Column("size"), Column("error", left=True, note=True),
    )  # fmt: skip
    rows: list[list[str | Cell]] = []
    for node, entry in entries:
        idle, error = entry["idle"], str(entry["error"] or "").partition("\n")[0][:100]
        rows.append([
            *((node,) if nodes else ()), str(entry["sequence"]), entry["id"], entry["state"].replace("_", " "),
            printable_text(entry["holder"] or ""), "" if idle is None else duration(idle / 1000),
            _left(entry["deadline"], now), str(entry["deliveries"]), str(entry["failures"]),
            "" if entry["size"] is None else str(entry["size"]), printable_text(error),
        ])  # fmt: skip
    return table(columns, rows, terminal)


def _left(deadline: str | None, now: float) -> str:
    if not deadline:
        return ""
    seconds = datetime.fromisoformat(deadline).timestamp() - now
    return f"in {duration(round(seconds, 1) if seconds < 10 else round(seconds))}" if seconds > 0 else "now"


def _note(channel: Json, moved: bool, rate: Rate | None) -> Cell:
    if channel["paused"]:
        return Cell("paused", _PROBLEM)
    if channel["client_count"] or channel.get("consumers"):
        active = channel.get("active_consumers")
        return Cell("" if active is None else f"active: {', '.join(active) or 'nobody'}", "dim")
    if moved or (rate is not None and rate.leaving > 0):
        return Cell("moved by Spark", "dim")
    if not channel["depth"]:
        return Cell("")
    if names.dead_letters(channel["topic_name"], channel["channel_name"]):
        return Cell("dead letters", _PROBLEM)
    return Cell("no consumer", _PROBLEM)


def unknown_ages(view: ClusterView) -> list[str]:
    """Return a sentence for each node that does not report the age of its messages."""
    plain = [state.node.name for state in view.reachable if not state.lapwing]
    return [f"{name} does not report the age of messages: a plain NSQ server, or /metrics is refused" for name in plain]


def pipelines_table(view: ClusterView, terminal: Terminal, *, title: str = "") -> list[str]:
    """Return a line for each pipeline: what it last reported, and what is wrong with it."""
    rows: list[list[str | Cell]] = []
    for pipeline in view.pipelines or ():
        state = str(pipeline.get("state", ""))
        figures = [_number(pipeline, "input_rate"), _number(pipeline, "lag") or "?", _number(pipeline, "batch_id")]
        if starting(pipeline):
            state, figures = "installing" if pipeline.get("doing") else "starting", ["", "", ""]
        rows.append([str(pipeline.get("name", "")), state, *figures, Cell(problem(pipeline, now=view.at), "red")])
    return table(_PIPELINE_COLUMNS, rows, terminal, title=title)


def _number(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return short(value) if isinstance(value, (int, float)) else ""


def programs_table(
    children: Sequence[Child], usage: Mapping[str, tuple[str, str]], terminal: Terminal, *, title: str = ""
) -> list[str]:
    """Return a line for each program; `usage` has its CPU and memory."""
    rows: list[list[str | Cell]] = []
    for child in children:
        state = child.state.value + (f", restarted {child.restarts}x" if child.restarts else "")
        rows.append([
            child.service.name, Cell(state, _STYLES[child.state]), duration(int(time.monotonic() - child.since)),
            *usage.get(child.service.name, ("", "")), _HOST.sub(r"\1 \2", child.address),
        ])  # fmt: skip
    return table(_PROGRAM_COLUMNS, rows, terminal, title=title)


def whole_view(
    view: ClusterView, rates: Rates, terminal: Terminal, *, rows: int = 20, height: int = 0
) -> list[str]:
    """Return topics, channels and pipelines together: at most `rows` of each, and no more lines than `height`.

    Channels get the lines that are left, and topics at most a third of them; a `height` of 0 is no limit.
    """
    below = [terminal.cut(terminal.paint(f"! {error}", "red")) for error in view.errors]
    if view.pipelines:
        below = ["", *pipelines_table(view, terminal, title="pipelines"), *below]
    if view.whole and not view.topics:
        return ["no topics yet; `lapwing pub greetings hello` publishes a message", *below]
    room = height - len(below) - 1 if height else 0

    def topics(most: int, title: str) -> list[str]:
        return topics_table(view, rates, terminal, title=title, most=most)

    def channels(most: int, title: str) -> list[str]:
        return channels_table(view, rates, terminal, title=title, most=most, urgent_first=True)

    count = sum(1 for _ in view.channels())
    wanted = len(_fitting(channels, "channels", count, rows, 0))
    upper = _fitting(topics, "topics", len(view.topics), rows, max(room // 3, room - wanted) if room else 0)
    return [*upper, "", *_fitting(channels, "channels", count, rows, max(1, room - len(upper)) if room else 0), *below]


def _fitting(
    made: Callable[[int, str], list[str]], title: str, there: int, rows: int, room: int
) -> list[str]:
    """Return a table of at most `rows` rows in `room` lines (0: any number); its title counts what is left out."""
    most = min(rows, there)
    while True:
        lines = made(most, title if most == there else f"{title}: {most} of {there}")
        if not room or len(lines) <= room or most <= _FEW:
            return lines
        most -= 1


def one_line(view: ClusterView, rates: Rates, children: Sequence[Child] = ()) -> str:
    """Return the same in one line, for a log."""
    topics = [rate for (_, channel), rate in rates.items() if not channel]
    channels = list(view.channels())
    parts = [
        f"in {short(sum(rate.arriving for rate in topics))}/s",
        f"out {short(sum(rate.leaving for rate in topics))}/s",
        f"waiting {short(sum(channel['depth'] for channel in channels))}",
        f"in flight {short(sum(channel['in_flight_count'] for channel in channels))}",
        f"deferred {short(sum(channel['deferred_count'] for channel in channels))}",
        f"topics {len(view.topics)}",
    ]
    for pipeline in view.pipelines or ():
        trouble = problem(pipeline, now=view.at).partition(":")[0]
        parts.append(f"{pipeline.get('name')}: {trouble or 'lag ' + (_number(pipeline, 'lag') or '?')}")
    parts += [f"{child.service.name} {child.state.value}" for child in children if child.state is not State.RUNNING]
    parts += [f"! {error}" for error in view.errors]
    return "  ".join(parts)
