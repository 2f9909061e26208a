"""Charts of nsqadmin's own history and of the flow pipeline, below a choice of spans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nicegui.element import Element

from lapwing.admin.flow_history import FlowPast, Hint, hint, range_of
from lapwing.admin.history import Track
from lapwing.admin.pages.elements import Chart, element, set_attributes, set_text
from lapwing.admin.pages.frame import PageView

SPANS: Final = ((300, "5 min"), (1800, "30 min"), (7200, "2 h"), (86400, "24 h"))
LONG_SPANS: Final = (*SPANS[:3], (21600, "6 h"), (86400, "24 h"), (604800, "7 d"))
NEWEST: Final = 20  # points sent again with each poll, in case some were missed
RATES: Final = ("in", "out")  # fields that are rates
SAMPLED: Final = "There are more windows than nsqadmin reads: each point is a sample, so short peaks may be missing."
UNMEASURED: Final = "Latency is measured by an nsqd that runs with"
MEASURE: Final = "--e2e-processing-latency-percentile=0.5,0.95,0.99"


@dataclass(frozen=True, slots=True)
class Lines:
    """One chart: its title and unit, and the fields that it draws with their names and colours."""

    title: str
    unit: str
    fields: tuple[tuple[str, str, str], ...]  # field, name, colour
    stack: bool = False


@dataclass(frozen=True, slots=True)
class LongAgo:
    """The charts of long ranges: their topic or channel, and the fields of `FlowPoint` that they draw."""

    topic: str
    channel: str
    drawn: Sequence[Lines]


FAILURES: Final = Lines("Failures", "share", (("requeued", "requeued", "c3"), ("timed_out", "timed out", "c5")))
LATENCY: Final = Lines(
    "Delivery latency", "duration", (("p50", "p50", "c1"), ("p95", "p95", "c2"), ("p99", "p99", "c4"))
)


class ChartGroup:
    """Some charts with one span. They are created when they are first shown, as a hidden chart has no size."""

    def __init__(self, drawn: Sequence[Lines]) -> None:
        self._drawn = drawn
        self._made: list[tuple[Chart, Lines]] = []
        self.box = element("div", None, "lw-charts")

    def make(self, span: int) -> None:
        """Create the charts, unless they exist."""
        if self._made:
            return
        with self.box:
            for lines in self._drawn:
                series = [(name, colour) for _, name, colour in lines.fields]
                self._made.append((Chart(lines.title, lines.unit, series, span=span, stack=lines.stack), lines))

    def show(
        self, points: Callable[[str], Sequence[tuple[float, float | None]]], *, span: int, whole: bool = True
    ) -> None:
        """Draw the points of each field."""
        self.make(span)
        for chart, lines in self._made:
            columns = [points(field) for field, _, _ in lines.fields]
            chart.show([column if whole else column[-NEWEST:] for column in columns], whole=whole, span=span)


def charts(
    view: PageView, track: Callable[[], Track | None], drawn: Sequence[Lines], *, ago: LongAgo | None = None
) -> None:
    """Draw charts below a choice of spans, and keep them live. `track` may return None at first.

    With `ago` there are longer spans, with charts of their own; where no window is known, nsqadmin's own stand in.
    """
    spans = LONG_SPANS if ago is not None else SPANS
    span = [next((seconds for seconds, _ in spans if view.asked("span") == str(seconds)), spans[1][0])]

    def choose(seconds: int) -> None:
        span[0] = seconds
        for other, pressed in tabs:
            set_attributes(pressed, aria_pressed="true" if other == seconds else "false")
        show(whole=True)

    with element("div", None, "lw-tabs", role="group", aria_label="How far back"):
        tabs = []
        for seconds, name in spans:
            pressed = "true" if seconds == span[0] else "false"
            tab = element("button", name, type="button", aria_pressed=pressed, data_address=f"span={seconds}")
            tab.on("click", lambda seconds=seconds: choose(seconds), args=[])
            tabs.append((seconds, tab))
    past = _Past(view, ago) if ago is not None else None
    own = ChartGroup(drawn)

    def show(*, whole: bool) -> None:
        long = past is not None and past.show(span[0], anew=whole)
        whole = whole or own.box.visible == long
        own.box.set_visibility(not long)
        if long:
            return
        own.make(span[0])
        known = track()
        if known is not None:
            since = view.cluster_view.at - span[0]
            own.show(lambda field: known_points(known, field, since=since), span=span[0], whole=whole)

    show(whole=True)
    view.live(lambda: show(whole=False) if view.client.has_socket_connection else None)


def known_points(track: Track, field: str, *, since: float) -> list[tuple[float, float | None]]:
    """Return the points of a field; a gap for the first rate, which needs a second sample."""
    begins = track.begins() if field in RATES else None
    return [(at, None if at == begins else value) for at, value in track.points(field, since=since)]


class _Past:
    """The charts of the flow pipeline, or a hint how to start it."""

    def __init__(self, view: PageView, ago: LongAgo) -> None:
        self._view = view
        self._ago = ago
        self._drawn: tuple[int, int] | None = None  # span, version of what was drawn
        self._words = _remark("lw-notice lw-hint")
        self._group = ChartGroup(ago.drawn)
        self._sampled = element("p", SAMPLED, "lw-faint")
        self._latency = _remark("lw-faint")

    def show(self, span: int, *, anew: bool) -> bool:
        """Show that span if it is a long one and there are windows; return whether it is shown."""
        admin, scale = self._view.admin, range_of(span)
        past = admin.flow.look(scale) if scale is not None else None
        limits, client = admin.poller.limits, admin.cluster_client
        _set_remark(self._words, hint(past, self._view.cluster_view, limits, client) if past is not None else Hint())
        if past is None or not past.windows.seen:
            self._drawn = None
            for each in (self._group.box, self._sampled, self._latency[0]):
                each.set_visibility(False)
            return False
        if anew or self._drawn != (span, past.version):
            self._draw(past, span)
        self._group.box.set_visibility(True)
        return True

    def _draw(self, past: FlowPast, span: int) -> None:
        points = past.windows.points(self._ago.topic, self._ago.channel, now=self._view.cluster_view.at)
        self._group.show(lambda field: [(point.at, getattr(point, field)) for point in points], span=span)
        self._drawn = (span, past.version)
        self._sampled.set_visibility(bool(past.windows.sampled))
        measured = any(point.p50 is not None for point in points) or not any(point.out for point in points)
        _set_remark(self._latency, Hint() if measured else Hint(UNMEASURED, MEASURE))


def _remark(classes: str) -> tuple[Element, Element, Element]:
    """Add a paragraph with a text and a command."""
    with element("p", None, classes, role="note") as made:
        return made, element("span", ""), element("code", "")


def _set_remark(remark: tuple[Element, Element, Element], given: Hint) -> None:
    box, text, command = remark
    set_text(text, f"{given.text} ")
    set_text(command, given.command)
    command.set_visibility(bool(given.command))
    box.set_visibility(bool(given.text))


def graphite_links(view: PageView, name: str) -> None:
    """Add links to Graphite's graphs of a statsd name (`topic.t`), if Graphite is configured."""
    graphite = view.admin.graphite
    if graphite.url:
        for metric, counter, words in (("depth", False, "Depth"), ("message_count", True, "Messages")):
            href = graphite.link(f"{name}.{metric}", counter=counter, base=view.links.base)
            element("a", f"{words} in Graphite", "lw-button", href=href, target="_blank", rel="noopener")
