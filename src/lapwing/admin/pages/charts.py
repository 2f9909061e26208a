"""Charts over what the history kept, with a choice of how far back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lapwing.admin.history import Track
from lapwing.admin.pages.frame import View
from lapwing.admin.pages.parts import Chart, element, put

SPANS: Final = ((300, "5 min"), (1800, "30 min"), (7200, "2 h"), (86400, "24 h"))
NEWEST: Final = 20  # points sent again with each poll, in case some were missed


@dataclass(frozen=True, slots=True)
class Lines:
    """One chart: its title and unit, and which fields of the track it draws, under which name and colour."""

    title: str
    unit: str
    fields: tuple[tuple[str, str, str], ...]  # field, name, colour
    stack: bool = False


def charts(view: View, track: Callable[[], Track | None], drawn: Sequence[Lines]) -> None:
    """Draw these charts, live, below a choice of spans. `track` may come into being later."""
    span = [next((seconds for seconds, _ in SPANS if view.asked("span") == str(seconds)), SPANS[1][0])]
    made: list[tuple[Chart, Lines]] = []

    def show(*, whole: bool) -> None:
        found = track()
        if found is None:
            return
        since = view.picture.at - span[0]
        for chart, lines in made:
            columns = [found.points(field, since=since) for field, _, _ in lines.fields]
            chart.show([column if whole else column[-NEWEST:] for column in columns], whole=whole, span=span[0])

    def choose(seconds: int) -> None:
        span[0] = seconds
        for other, pressed in tabs:
            put(pressed, aria_pressed="true" if other == seconds else "false")
        show(whole=True)

    with element("div", None, "lw-tabs", role="group", aria_label="How far back"):
        tabs = []
        for seconds, name in SPANS:
            tab = element("button", name, type="button", aria_pressed="true" if seconds == span[0] else "false")
            tab.on("click", lambda seconds=seconds: choose(seconds), args=[])
            tabs.append((seconds, tab))
    with element("div", None, "lw-charts"):
        for lines in drawn:
            series = [(name, colour) for _, name, colour in lines.fields]
            made.append((Chart(lines.title, lines.unit, series, span=span[0], stack=lines.stack), lines))
    show(whole=True)
    view.live(lambda: show(whole=False) if view.client.has_socket_connection else None)


def graphite_links(view: View, name: str) -> None:
    """Links to Graphite's own graphs of a statsd name (`topic.t`), where Graphite is configured."""
    graphite = view.admin.graphite
    if graphite.url:
        for metric, counter, words in (("depth", False, "Depth"), ("message_count", True, "Messages")):
            href = graphite.link(f"{name}.{metric}", counter=counter, base=view.links.base)
            element("a", f"{words} in Graphite", "lw-button", href=href, target="_blank", rel="noopener")
