"""The table of pages: each path, the module that draws it, and its place in the menu.

To add a page, add a row here and a module to `admin/pages` with a function `draw(view, ...)`, which gets the variable
parts of the path.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PageEntry:
    """One page. Those without a group are reached from other pages of their section."""

    path: str  # as in a `WebRoute`
    name: str  # of its section: in the title and in the menu
    module: str  # of `admin/pages`
    group: str = ""  # of the menu
    key: str = ""  # behind `g`
    icon: str = ""
    lapwing_only: bool = False  # needs lapwing's nsqd

    @property
    def section(self) -> str:
        """The path of the first page of its section."""
        return f"/{self.path.split('/')[1]}"


PAGES: Final = (
    PageEntry("/", "Overview", "overview", "Watch", "o", "dashboard"),
    PageEntry("/topics", "Topics", "topics", "Watch", "t", "topic"),
    PageEntry("/topics/<topic>", "Topics", "topic"),
    PageEntry("/topics/<topic>/<channel>", "Topics", "channel"),
    PageEntry("/map", "Map", "map", "Watch", "w", "hub"),
    PageEntry("/clients", "Clients", "clients", "Watch", "c", "lan"),
    PageEntry("/counter", "Counter", "counter", "Watch", "k", "speed"),
    PageEntry("/messages", "Messages", "messages", "Data", "m", "mail_outline"),
    PageEntry("/dead", "Dead letters", "dead", "Data", "d", "unsubscribe", lapwing_only=True),
    PageEntry("/pipelines", "Pipelines", "pipelines", "Data", "p", "account_tree"),
    PageEntry("/schedules", "Schedules", "schedules", "Data", "e", "schedule", lapwing_only=True),
    PageEntry("/nodes", "Nodes", "nodes", "Cluster", "n", "dns"),
    PageEntry("/nodes/<node>", "Nodes", "node"),
    PageEntry("/lookup", "Lookup", "lookup", "Cluster", "l", "travel_explore"),
    PageEntry("/settings", "Settings", "settings", "Cluster", "s", "tune", lapwing_only=True),
    PageEntry("/audit", "Audit", "audit", "Cluster", "a", "history"),
)


def menu() -> dict[str, list[PageEntry]]:
    """Return the pages of the menu by group."""
    groups: dict[str, list[PageEntry]] = {}
    for page in PAGES:
        if page.group:
            groups.setdefault(page.group, []).append(page)
    return groups
