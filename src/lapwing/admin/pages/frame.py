"""The frame of every page: navigation, search, warnings, and the updates with every new view of the cluster."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from nicegui import ui
from nicegui.client import Client
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from lapwing import __version__, names
from lapwing.admin.access import Visitor
from lapwing.admin.asgi import WebRequest
from lapwing.admin.links import PageLinks
from lapwing.admin.page_table import PageEntry, menu
from lapwing.admin.pages.elements import button, element, icon, notice, set_attributes, set_text, show_notice
from lapwing.admin.poller import Watcher
from lapwing.admin.services import Services
from lapwing.admin.static import PACKAGED
from lapwing.client.cluster import Node
from lapwing.client.cluster_view import ClusterView
from lapwing.names import NSQ_VERSION

FOUND_AT_MOST: Final = 12
_PARTS: Final = re.compile("[^a-z0-9]+")  # between the parts of a name
OFFERED: Final = 15.0  # seconds that an undo is offered
THEMES: Final = {"light": False, "dark": True, "auto": None}


class Shell(Element, component=PACKAGED / "lw_shell.js"):
    """The search box, the keys and the theme; see the component."""


@dataclass(slots=True)
class PageView:
    """An open page: its visitor, its request, and the functions that draw it again."""

    admin: Services
    request: WebRequest
    client: Client
    links: PageLinks
    titles: Element  # around the title
    heading: Element
    buttons: Element  # beside the title
    _refreshes: list[Callable[[], object]]
    _watcher: Watcher

    @property
    def visitor(self) -> Visitor:
        """The visitor with the permissions of now: a session may have ended since the page was opened."""
        request, opened = self.request, self.request.visitor
        return self.admin.access.visitor(request.headers, opened.peer, request.cookies, port=opened.port)

    @property
    def cluster_view(self) -> ClusterView:
        """The newest view of the cluster."""
        return self.admin.poller.cluster_view

    def live(
        self,
        refresh: Callable[[], object],
        *,
        clients: str = "",
        channel: tuple[str, str] | None = None,
        resources: str = "",
        dead: bool = False,
    ) -> None:
        """Call `refresh` now and with every new view of the cluster, which then contains the named details."""
        self._refreshes.append(refresh)
        if clients:
            self._watcher.clients = clients
        if channel is not None:
            self._watcher.channel = channel
        if resources:
            self._watcher.resources = resources
        self._watcher.dead = self._watcher.dead or dead
        refresh()

    def refresh(self) -> None:
        """Draw the page again with the same view of the cluster."""
        for refresh in self._refreshes:
            refresh()

    def explain(self, text: str) -> None:
        """Add a line below the title."""
        with self.titles:
            element("p", text, "lw-faint")

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        return self.request.query.get(name, default)

    def lapwing_nodes(self) -> list[Node]:
        """Return the nsqds of lapwing that answer."""
        return [state.node for state in self.cluster_view.reachable if state.lapwing]

    def channel_nodes(self, topic: str, channel: str) -> list[Node]:
        """Return the nsqds of lapwing that answer and have the channel."""
        found = self.cluster_view.channel(topic, channel)
        names = {part["node"] for part in found["nodes"]} if found is not None else set()
        return [node for node in self.lapwing_nodes() if node.name in names]

    def message_of(self, row: str) -> tuple[Node, int] | None:
        """Return the node and sequence that the key of a row names, `node|sequence`; None if the node is not known."""
        name, _, sequence = row.rpartition("|")
        known = self.cluster_view.node(name)
        return (known.node, int(sequence)) if known is not None and sequence.isdecimal() else None

    def go(self, href: str) -> None:
        """Open another page of nsqadmin in the browser."""
        # NiceGUI itself adds the base path to local paths
        base = self.links.base
        self.client.open(href[len(base) :] or "/" if base and href.startswith(base) else href)

    def offer(self, text: str, label: str, work: Callable[[], Awaitable[None]]) -> None:
        """Show a text for some seconds, with a button that does `work`."""

        async def press() -> None:
            toast.delete()
            await work()

        with self.client.layout, element("div", None, "lw-toast", role="status") as toast:
            element("span", text)
            button(label, press)
            ui.timer(OFFERED, toast.delete, once=True)

    def notify(self, text: str, *, bad: bool = False) -> None:
        """Show a text in the corner for some seconds."""
        with self.client:
            ui.notify(text, type="negative" if bad else "positive", timeout=8000 if bad else 3500, multi_line=True)


@contextmanager
def frame(admin: Services, request: WebRequest, page: PageEntry) -> Iterator[PageView]:
    """Draw the frame of a page around the elements created inside."""
    client = ui.context.client
    links = PageLinks(admin.base)
    *above, title = page.name, *request.names.values()
    crumbs = zip(above, (links.page(page.section), links.topic(above[-1])), strict=False) if above else ()
    client.title = f"{title} · nsqadmin"
    theme = request.cookies.get("lapwing_theme", "auto")
    theme = theme if theme in THEMES else "auto"
    ui.dark_mode(THEMES[theme])
    refreshes: list[Callable[[], object]] = []
    watcher = Watcher(lambda: _pulse(view))
    # not inside NiceGUI's own page, which is a <main> already
    with client.layout, element("div", None, "lw-frame"):
        element("a", "Skip to the content", "lw-skip", href="#content")
        badge = _navigation(admin, links, page.section)
        with element("div", None, "lw-side"):
            with element("header", None, "lw-top"):
                shell = Shell()
            with element("main", None, "lw-main", id="content", tabindex=-1):
                warnings = notice("", "warning", role="alert")
                with element("div", None, "lw-heading"):
                    with element("div") as titles:
                        if above:
                            with element("nav", None, "lw-crumbs", aria_label="Where this is"):
                                for name, href in crumbs:
                                    element("a", name, href=href)
                                element("span", title)
                        heading = element("h1", title)
                    buttons = element("div", None, "lw-buttons")
                view = PageView(admin, request, client, links, titles, heading, buttons, refreshes, watcher)
                _shell(view, shell, theme)
                _warn(view, warnings, badge)
                yield view
    client.on_connect(lambda: admin.poller.watch(watcher))
    client.on_disconnect(lambda: admin.poller.unwatch(watcher))
    client.on_delete(lambda: admin.poller.unwatch(watcher))


def _pulse(view: PageView) -> None:
    """Draw the page again, or open the login if the visitor may no longer read it."""
    if view.visitor.may_read:
        view.refresh()
    else:  # the session has ended
        view.admin.poller.unwatch(view._watcher)
        back = quote(view.request.target, safe="")
        view.go(f"{view.links.base}/login?next={back}")


def _navigation(admin: Services, links: PageLinks, current: str) -> Element:
    with element("nav", None, "lw-nav", aria_label="Pages"):
        with element("a", None, "lw-brand", href=links.page("/")):
            element("img", src=f"{links.base}/static/favicon.svg", alt="")
            element("span", "nsqadmin")
        badge: Element | None = None
        cluster_view = admin.poller.cluster_view
        for group, pages in menu().items():
            element("h2", group)
            for page in pages:
                here = page.path == current
                hidden = page.lapwing_only and not cluster_view.lapwing
                if (hidden or (page.path == "/pipelines" and cluster_view.pipelines is None)) and not here:
                    continue
                with element("a", None, "lw-item", href=links.page(page.path), aria_current="page" if here else None):
                    icon(page.icon)
                    element("span", page.name)
                    if page.path == "/":
                        badge = element("span", "", "lw-badge")
        with element("footer"):
            shown = "read-only" if admin.options.read_only else f"lapwing {__version__}"
            element("span", shown, title=f"It speaks the protocols of NSQ {NSQ_VERSION}.")
    assert badge is not None
    return badge


def _shell(view: PageView, shell: Shell, theme: str) -> None:
    pages = [[page.name, page.path, page.key] for group in menu().values() for page in group]
    logins = view.admin.access.logins is not None
    set_attributes(shell, base=view.links.base, theme=theme, pages=pages, user=view.visitor.user, logout=logins)
    set_attributes(shell, found=[], sought="")
    dark = next(iter(each for each in view.client.elements.values() if isinstance(each, ui.dark_mode)))

    def search(event: GenericEventArguments) -> None:
        text = str(event.args)
        set_attributes(shell, found=found(view.cluster_view, text, view.links), sought=text)

    def turn(event: GenericEventArguments) -> None:
        dark.value = THEMES.get(str(event.args))

    def seen(event: GenericEventArguments) -> None:
        if event.args:
            view.admin.poller.watch(view._watcher)
        else:  # a hidden tab needs no updates
            view.admin.poller.unwatch(view._watcher)

    shell.on("search", search, throttle=0.15, leading_events=False)
    shell.on("theme", turn)
    shell.on("seen", seen)


def found(cluster_view: ClusterView, text: str, links: PageLinks) -> list[list[str]]:
    """Return the results of a search as name, kind and link, those first that are meant most likely.

    Dead letters come behind what they are from. Of the others, those whose name begins with the text are first, then
    channels, then other names with a part that begins with it.
    """
    words = text.lower().split()
    if not words:
        return []
    fits: list[tuple[bool, int, str, str, str]] = []
    wants_dead = any(word in names.DEAD for word in words)

    def consider(name: str, kind: str, href: str) -> None:
        low = name.lower()
        if all(word in low for word in words):
            topic, _, channel = low.partition("/")
            dead = not wants_dead and kind in ("topic", "channel") and topic.endswith(f".{names.DEAD}")
            if low.startswith(words[0]):
                rank = 0
            elif kind == "channel" and channel.startswith(words[0]):
                rank = 1
            else:
                rank = 2 if any(part.startswith(words[0]) for part in _PARTS.split(low)) else 3
            fits.append((dead, rank, name, kind, href))

    own = words[0].startswith(names.OWN[:2])  # lapwing's own topics are found by their prefix only
    for name, topic in (cluster_view.topics if own else cluster_view.users_topics()).items():
        consider(name, "topic", links.topic(name))
        for channel in topic["channels"]:
            consider(f"{name}/{channel['channel_name']}", "channel", links.topic(name, channel["channel_name"]))
    for name in cluster_view.idle_topics:
        consider(name, "topic", links.topic(name))
    for state in cluster_view.nodes:
        consider(f"{state.node.hostname} {state.node.name}", "node", links.node(state.node.name))
    for pipeline in cluster_view.pipelines or ():
        name = str(pipeline["name"])
        consider(name, "pipeline", links.pipeline(name))
    return [[name, kind, href] for _, _, name, kind, href in sorted(fits)[:FOUND_AT_MOST]]


def _warn(view: PageView, warnings: Element, badge: Element) -> None:
    def refresh() -> None:
        trouble = view.cluster_view.trouble
        text = "Some figures are missing: " + "; ".join(trouble) + "." if trouble else ""
        show_notice(warnings, text)
        serious = [alarm.severity for alarm in view.admin.poller.alarms if alarm.severity != "info"]
        set_text(badge, str(len(serious)))
        badge.classes(add=f"lw-{serious[0]}" if serious else "", remove="lw-error" if "error" not in serious else "")
        set_attributes(badge, title=f"{len(serious)} alarms")
        badge.set_visibility(bool(serious))

    view.live(refresh)
