"""The page with one large number: messages processed."""

from typing import Final

from fastapi import Request
from nicegui import ui

from lapwing import names
from lapwing.admin.pages.charts import Lines, charts
from lapwing.admin.pages.elements import Counter, element, set_text
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.services import Admin
from lapwing.client.format import rate

CHANNELS: Final = (("out", "finished", "c1"),)


def install(admin: Admin) -> None:
    """`/counter`"""

    @ui.page("/counter", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, "Counter", "/counter") as view:
            with element("section", None, "lw-counter-page", aria_label="Messages processed"):
                counter = Counter()
                caption = element("p", "")

            def refresh() -> None:
                total = sum(channel["message_count"] for channel in view.cluster_view.users_channels())
                flows = admin.poller.history.channel_flow.items()
                speed = sum(flow.into for (topic, _), flow in flows if not names.own(topic))
                counter.show(total)
                set_text(caption, f"messages processed, {rate(speed)} a second")

            view.live(refresh)
            charts(view, lambda: admin.poller.history.cluster, (Lines("Messages a second", "rate", CHANNELS),))
