"""The page of all connected consumers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from nicegui import ui

from lapwing.admin.pages.elements import Table, panel
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.pages.table_rows import PageLinks, Row, client_columns, client_key, client_row
from lapwing.admin.poller import EVERYWHERE
from lapwing.admin.services import Admin
from lapwing.client.cluster import Json


@dataclass(slots=True)
class Finishing:
    """The messages per second that each connection finishes, from one view to the next."""

    _before: dict[str, tuple[float, int]] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def rate(self, key: str, finished: int, at: float) -> float | None:
        """Return the messages per second since the last view; None at the first."""
        before = self._before.get(key)
        if before is None:
            self._before[key] = (at, finished)
            return None
        if at - before[0] >= 1.0:
            self._rates[key] = max(0, finished - before[1]) / (at - before[0])
            self._before[key] = (at, finished)
        return self._rates.get(key)


def is_slow(client: Json, rate: float | None) -> bool:
    """Return whether a consumer holds all that it asked for and finishes less than one message per second."""
    full = client["ready_count"] > 0 and client["in_flight_count"] >= client["ready_count"]
    return full and rate is not None and rate < 1.0


def client_table_rows(
    clients: Iterable[tuple[Json, str, str]],
    finishing: Finishing,
    links: PageLinks,
    at: float,
    *,
    where: bool,
    node: bool = True,
) -> list[Row]:
    """Return the rows of (client, topic, channel)."""
    rows: list[Row] = []
    for client, topic, channel in clients:
        speed = finishing.rate(client_key(client, topic, channel), client["finish_count"], at)
        slow = is_slow(client, speed)
        rows.append(client_row(client, topic, channel, links, where=where, node=node, rate=speed or 0.0, slow=slow))
    return rows


ABOVE: Final = "Every NSQ consumer that is connected. The consumers of Redis clients are on the page of their channel."


def install(admin: Admin) -> None:
    """`/clients`"""

    @ui.page("/clients", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, "Clients", "/clients", above=ABOVE) as view:
            with panel():
                table = Table(
                    "clients", "Connections", client_columns(where=True), order="host", empty="No client is connected."
                )
            finishing = Finishing()

            def refresh() -> None:
                clients = [
                    (client, channel["topic_name"], channel["channel_name"])
                    for channel in view.cluster_view.channels()
                    for client in channel["clients"] or ()
                ]
                table.show(client_table_rows(clients, finishing, view.links, view.cluster_view.at, where=True))

            view.live(refresh, clients=EVERYWHERE)
