"""Charts of nsqadmin's own history, and of the samples of days, below a choice of spans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lapwing.admin.history import Track
from lapwing.admin.pages.elements import Chart, element, set_attributes
from lapwing.admin.pages.frame import PageView
from lapwing.admin.samples import Key

SPANS: Final = ((300, "5 min"), (1800, "30 min"), (7200, "2 h"), (86400, "24 h"))
LONG_SPANS: Final = (*SPANS[:3], (21600, "6 h"), (86400, "24 h"), (604800, "7 d"))
LONG: Final = 21600  # seconds of the first span that is drawn from samples
NEWEST: Final = 20  # points sent again with each poll, in case some were missed
RATES: Final = ("in", "out")  # fields that are rates


@dataclass(frozen=True, slots=True)
class Lines:
    """One chart: its title and unit, and the fields that it draws with their names and colours."""

    title: str
    unit: str
    fields: tuple[tuple[str, str, str], ...]  # field, name, colour
    stack: bool = False


@dataclass(frozen=True, slots=True)
class LongAgo:
    """The charts of long spans: the topic or channel, and the figures of its samples that they draw."""

    key: Key
    drawn: Sequence[Lines]


FAILURES: Final = Lines("Failures a second", "rate", (("requeued", "requeued", "c3"), ("timed_out", "timed out", "c5")))
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

    With `ago` there are longer spans, with charts of their own; until there is a sample, nsqadmin's own history is
    shown.
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
    past, own = ChartGroup(ago.drawn if ago is not None else ()), ChartGroup(drawn)
    shown = [0]  # version of the samples that were drawn
    samples = view.admin.recorder.samples

    def show(*, whole: bool) -> None:
        long = ago is not None and span[0] >= LONG and samples.has(ago.key)
        whole = whole or own.box.visible == long
        own.box.set_visibility(not long)
        past.box.set_visibility(long)
        since = view.cluster_view.at - span[0]
        if ago is not None and long:
            if whole or shown[0] != samples.version:
                past.show(lambda name: samples.points(ago.key, name, since=since), span=span[0])
                shown[0] = samples.version
            return
        own.make(span[0])
        known = track()
        if known is not None:
            own.show(lambda field: known_points(known, field, since=since), span=span[0], whole=whole)

    show(whole=True)
    view.live(lambda: show(whole=False) if view.client.has_socket_connection else None)


def known_points(track: Track, field: str, *, since: float) -> list[tuple[float, float | None]]:
    """Return the points of a field; a gap for the first rate, which needs a second sample."""
    begins = track.begins() if field in RATES else None
    return [(at, None if at == begins else value) for at, value in track.points(field, since=since)]


def graphite_links(view: PageView, name: str) -> None:
    """Add links to Graphite's graphs of a statsd name (`topic.t`), if Graphite is configured."""
    graphite = view.admin.graphite
    if graphite.url:
        for metric, counter, words in (("depth", False, "Depth"), ("message_count", True, "Messages")):
            href = graphite.link(f"{name}.{metric}", counter=counter, base=view.links.base)
            element("a", f"{words} in Graphite", "lw-button", href=href, target="_blank", rel="noopener")
