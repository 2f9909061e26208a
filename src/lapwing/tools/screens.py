"""What the commands show on a terminal: tables of topics, channels, pipelines and programs."""

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView, Rate, Rates
from lapwing.client.format import duration, short
from lapwing.tools.supervisor import Child, State

_STYLES: Final = {State.RUNNING: "green", State.STARTING: "yellow", State.DEAD: "bold red", State.STOPPING: "yellow",
                  State.STOPPED: "dim"}
_NAME_WIDTH: Final = 10  # what a narrow terminal leaves of a name
_NUMBER_WIDTH: Final = 5


def console(*, error: bool = False) -> Console:
    """Where tables go; wide enough for a pipe to get whole lines."""
    made = Console(stderr=error, highlight=False)
    return made if made.is_terminal else Console(stderr=error, highlight=False, width=200)


def redraws(console: Console) -> bool:
    """Whether it can show a picture that changes in place; elsewhere lines are better."""
    return console.is_terminal and not console.is_dumb_terminal


def _cell(text: str, style: str = "") -> Text:
    """Text that a narrow terminal cuts short, so that the numbers beside it stay whole."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class _Cut(Table):
    """A table that is cut off at the right of a narrow terminal, rather than squeezed until nothing can be read."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = sum((column.min_width or 0) + 2 for column in self.columns)
        yield from super().__rich_console__(console, options.update(max_width=max(options.max_width, least)))


def _table(title: str, *columns: str) -> Table:
    table = _Cut(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0),
                  header_style="bold", title_style="bold cyan")
    for column in columns:
        left = column in ("topic", "channel", "program", "state", "address", "pipeline", "note", "node", "health")
        table.add_column(_cell(column), justify="left" if left else "right", no_wrap=not left, overflow="ellipsis",
                         min_width=_NAME_WIDTH if left else max(len(column), _NUMBER_WIDTH))
    return table


def _rate(rate: Rate | None, which: str) -> str:
    return "" if rate is None else short(getattr(rate, which))


def topics_table(picture: ClusterView, flows: Rates | None, *, title: str = "", most: int = 1000) -> Table:
    """A line a topic; rates when there are any."""
    rates = ("in/s", "out/s") if flows is not None else ()
    table = _table(title, "topic", *rates, "waiting", "messages", "channels", "nodes", "note")
    for name, topic in list(_busiest(picture, flows))[:most]:
        flow = (flows or {}).get((name, ""))
        shown = (_rate(flow, "arriving"), _rate(flow, "leaving")) if flows is not None else ()
        note = "paused" if topic["paused"] else "" if topic["channels"] else "no channel: messages are kept"
        waiting = topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
        table.add_row(_cell(name), *shown, short(waiting), f"{topic['message_count']:,}", str(len(topic["channels"])),
                      str(len(topic["nodes"])), _cell(note))
    return table


def _busiest(picture: ClusterView, flows: Rates | None) -> list[tuple[str, Json]]:
    if not flows:
        return list(picture.topics.items())
    return sorted(picture.topics.items(), key=lambda pair: (-flows.get((pair[0], ""), Rate(0, 0)).arriving, pair[0]))


def channels_table(picture: ClusterView, flows: Rates | None, *, topic: str = "", title: str = "", most: int = 1000,
                   with_topic: bool = True) -> Table:
    """A line a channel."""
    rates = ("in/s", "out/s") if flows is not None else ()
    ages = ("oldest",) if picture.ages else ()
    table = _table(title, *(("topic",) if with_topic else ()), "channel", *rates, "waiting", "in flight", "deferred",
                   "requeued", "timed out", *ages, "clients", "note")
    for channel in islice(picture.channels(topic), most):
        key = (channel["topic_name"], channel["channel_name"])
        flow = (flows or {}).get(key)
        shown = (_rate(flow, "arriving"), _rate(flow, "leaving")) if flows is not None else ()
        age = (duration(picture.ages[key]) if picture.ages.get(key) else "",) if ages else ()
        note = "paused" if channel["paused"] else ""
        if not note and channel["depth"] and not channel["client_count"]:
            note = "nobody consumes"
        table.add_row(*((_cell(key[0]),) if with_topic else ()), _cell(key[1]), *shown, short(channel["depth"]),
                      short(channel["in_flight_count"]), short(channel["deferred_count"]),
                      short(channel["requeue_count"]), short(channel["timeout_count"]), *age,
                      str(channel["client_count"]), _cell(note, "yellow"))
    return table


def pipelines_table(pipelines: Sequence[Json], *, title: str = "") -> Table:
    """A line a pipeline, as it told its broker last."""
    table = _table(title, "pipeline", "state", "rows/s", "lag", "batch", "note")
    for pipeline in pipelines:
        table.add_row(_cell(str(pipeline.get("name", ""))), _cell(str(pipeline.get("state", ""))),
                      _number(pipeline, "input_rate"), _number(pipeline, "lag"), _number(pipeline, "batch_id"),
                      _cell(str(pipeline.get("error") or ""), "red"))
    return table


def _number(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return short(value) if isinstance(value, (int, float)) else ""


def programs_table(children: Sequence[Child], usage: Mapping[str, str], *, title: str = "") -> Table:
    """A line a program."""
    table = _table(title, "program", "state", "since", "uses", "address")
    for child in children:
        state = child.state.value + (f", restarted {child.restarts}x" if child.restarts else "")
        table.add_row(_cell(child.service.name), _cell(state, _STYLES[child.state]),
                      duration(time.monotonic() - child.since), usage.get(child.service.name, ""),
                      _cell(child.service.address))
    return table


def errors_text(errors: Sequence[str]) -> list[RenderableType]:
    """Who could not be asked."""
    return [Text(f"! {error}", style="red") for error in errors]


def whole_picture(picture: ClusterView, flows: Rates, *, rows: int = 20) -> Group:
    """Topics, channels and pipelines together."""
    parts: list[RenderableType] = [topics_table(picture, flows, title="topics", most=rows), "",
                                   channels_table(picture, flows, title="channels", most=rows)]
    if picture.pipelines:
        parts += ["", pipelines_table(picture.pipelines, title="pipelines")]
    return Group(*parts, *errors_text(picture.errors))


def one_line(picture: ClusterView, flows: Rates, children: Sequence[Child] = ()) -> str:
    """The same in one line, for a log."""
    topics = [flow for (_, channel), flow in flows.items() if not channel]
    channels = list(picture.channels())
    parts = [f"in {short(sum(flow.arriving for flow in topics))}/s",
             f"out {short(sum(flow.leaving for flow in topics))}/s",
             f"waiting {short(sum(channel['depth'] for channel in channels))}",
             f"in flight {short(sum(channel['in_flight_count'] for channel in channels))}",
             f"deferred {short(sum(channel['deferred_count'] for channel in channels))}",
             f"topics {len(picture.topics)}"]
    parts += [f"{pipeline.get('name')}: lag {_number(pipeline, 'lag') or '?'}"
              for pipeline in picture.pipelines or ()]
    parts += [f"{child.service.name} {child.state.value}" for child in children if child.state is not State.RUNNING]
    parts += [f"! {error}" for error in picture.errors]
    return "  ".join(parts)
