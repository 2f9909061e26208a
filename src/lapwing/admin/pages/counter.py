"""The page with one large number: messages processed."""

from typing import Final

from lapwing import names
from lapwing.admin.pages.charts import Lines, charts
from lapwing.admin.pages.elements import Counter, element, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.client.format import rate

CHANNELS: Final = (("out", "finished", "c1"),)


def draw(view: PageView) -> None:
    """Draw `/counter`."""
    history = view.admin.poller.history
    with element("section", None, "lw-counter-page", aria_label="Messages processed"):
        counter = Counter()
        caption = element("p", "")

    def refresh() -> None:
        total = sum(channel["message_count"] for channel in view.cluster_view.users_channels())
        speed = sum(flow.into for (topic, _), flow in history.channel_flow.items() if not names.own(topic))
        counter.show(total)
        set_text(caption, f"messages processed, {rate(speed)} a second")

    view.live(refresh)
    charts(view, lambda: history.cluster, (Lines("Messages a second", "rate", CHANNELS),))
