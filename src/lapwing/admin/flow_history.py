"""Read the windows of the flow pipeline from the logs of nsqds: days of figures of topics and channels.

nsqadmin's own history begins when it starts; these windows lie on the brokers' disks. What is read is bounded: so many
pages of so many messages a range, however much there is. A page that does not reach the end of its step is the only
one of that step, and the next is read from where the next step begins. So a small cluster's past is exact, a large
one's a sample of all of it, and neither takes long. After that only what is new is read, while somebody looks.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lapwing.admin.alarms import AlarmLimits, stale
from lapwing.admin.flow_windows import RANGES, FlowRange, FlowWindow, FlowWindows, parse
from lapwing.client.cluster import Node
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView
from lapwing.client.format import duration
from lapwing.client.http import Asked, CallFailed, DaemonHttp
from lapwing.client.log_reader import LogMessage, LogPage, TopicLogs

log = logging.getLogger("nsqadmin")

TOPIC: Final = "_lapwing_flow"
PAGE: Final = 300  # windows
PAGE_BYTES: Final = 1 << 20
PAGES_A_STEP: Final = 4  # read until one window is complete with all its topics and channels
MOST: Final = 60_000  # windows kept of one range, some 20 MB
EVERY: Final = 10.0  # seconds between reads: the usual length of a window
UNWANTED: Final = 600.0  # seconds after which a range that no page shows is dropped
BEHIND: Final = 20.0  # seconds from the start of a window to its publish, usually
SILENT: Final = 120.0  # seconds without a window after which the pipeline counts as stopped, unless it reports
ALIVE: Final = ("starting", "running")
SECOND: Final = 1_000_000_000
GONE: Final = (409, 416)  # the log was created again, or the range is no longer kept


@dataclass(slots=True)
class LogPosition:
    """The end of what has been read of a broker's log."""

    log_id: str = ""
    next: int = 0


@dataclass(slots=True)
class FlowPast:
    """The windows of one range that have been read so far."""

    windows: FlowWindows
    positions: dict[str, LogPosition] = field(default_factory=dict)  # by contact of the nsqd
    version: int = 0  # changes with each reading; 0: not read yet
    wanted: float = 0.0  # monotonic time of the last look
    due: float = 0.0  # monotonic
    read: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, after a reading


class FlowHistory:
    """Keep the ranges up to date that an open page shows.

    A broker that is away, has no such topic, or is plain NSQ simply adds nothing.
    """

    def __init__(
        self, http: DaemonHttp, nodes: Callable[[], list[Node]], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._http = http
        self._logs = TopicLogs(http, TOPIC)
        self._nodes = nodes
        self._clock = clock
        self._past: dict[str, FlowPast] = {}
        self._wake = asyncio.Event()

    def look(self, scale: FlowRange) -> FlowPast:
        """Return the range as it is known now, and have it read on soon."""
        past = self._past.setdefault(scale.name, FlowPast(FlowWindows(scale)))
        past.wanted = time.monotonic()
        if past.wanted >= past.due:
            self._wake.set()
        return past

    async def fresh(self, scale: FlowRange, *, patience: float) -> FlowPast:
        """Return the range read up to now, or as it is known after `patience` seconds."""
        past = self.look(scale)
        if past.wanted >= past.due:
            try:
                async with asyncio.timeout(patience):
                    await past.read.wait()
            except TimeoutError:
                log.debug("reading the flow windows takes its time")
        return past

    async def run(self) -> None:
        """Read the ranges that pages show, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(UNWANTED):
                    await self._wake.wait()
            except TimeoutError:
                log.debug("nobody looks at the flow windows")
            self._wake.clear()
            now = time.monotonic()
            self._past = {name: past for name, past in self._past.items() if now - past.wanted < UNWANTED}
            for past in list(self._past.values()):
                if past.due <= past.wanted:
                    await self._read(past)

    async def _read(self, past: FlowPast) -> None:
        try:
            await self.read(past)
        except Exception:  # a malformed message must not stop the reading for good
            log.exception("the flow windows could not be read")
        past.due = time.monotonic() + EVERY
        past.version += 1
        done, past.read = past.read, asyncio.Event()
        done.set()

    async def read(self, past: FlowPast) -> None:
        """Read on, on all nsqds at the same time."""
        now = self._clock()
        begin = past.windows.scale.begin(now)
        nodes = {node.contact: node for node in self._nodes()}
        asked: Asked[Any] = await self._http.ask_all(
            nodes, lambda contact: self._read_on(past, nodes[contact], begin, now)
        )
        for contact, failure in asked.failures.items():
            if failure.status == 404:
                past.positions.pop(contact, None)
            else:
                log.debug("no flow windows from %s: %s", contact, failure)
        past.windows.forget(before=begin, most=MOST)

    async def _read_on(self, past: FlowPast, node: Node, begin: int, now: float) -> None:
        scale = past.windows.scale
        position = past.positions.get(node.contact)
        since: float = begin
        visit = Visit(past.windows, begin)
        for _ in range(scale.span // scale.step * PAGES_A_STEP):
            page = await self._page(node, position, since, begin)
            position = past.positions[node.contact] = LogPosition(page.log_id, page.resume)
            ended = page.resume >= page.next
            if visit.page(page.messages, ended=ended):
                since = visit.step + BEHIND
                ended = since > now
                if ended:  # the last step is sampled too: continue with new windows
                    position.next = page.next
                else:
                    position = None
            if ended:
                return

    async def _page(self, node: Node, position: LogPosition | None, since: float, begin: int) -> LogPage:
        """Return the page at a position, or else at a time. A log that was created again is read from `begin`."""
        if position is not None:
            try:
                return await self._logs.page(
                    node, position.next, limit=PAGE, max_bytes=PAGE_BYTES, log_id=position.log_id, headers=False
                )
            except CallFailed as error:
                if error.status not in GONE:
                    raise
                since = begin
        return await self._logs.page_since(node, int(since * SECOND), limit=PAGE, max_bytes=PAGE_BYTES, headers=False)


class Visit:
    """Decides after each page of a log whether to read on, or to skip to the next step of the chart."""

    def __init__(self, windows: FlowWindows, step: int) -> None:
        self.step = step  # start of the current step, by publish times
        self._windows = windows
        self._pages = 0
        self._held: list[FlowWindow] = []  # windows of a step that may be skipped before its end

    def page(self, messages: list[LogMessage], *, ended: bool) -> bool:
        """Add a page, and return whether to skip to `step` instead of reading on. `ended`: the page was the last."""
        for message in messages:
            window = parse(message.body, message.timestamp / SECOND)
            if window is not None:
                self._held.append(window)
        scale = self._windows.scale
        reached = scale.step_of(messages[-1].timestamp / SECOND - BEHIND) if messages else self.step
        if ended or reached > self.step:
            self._take(self._held)
            self._held, self._pages, self.step = [], 0, max(reached, self.step)
            return False
        self._pages += 1
        starts = {window.start for window in self._held}
        if len(starts) < 2 and self._pages < PAGES_A_STEP:
            return False
        # the page may end inside the last window: the topics that follow in it would seem idle
        cut = max(starts) if len(starts) > 1 else None
        self._take([window for window in self._held if window.start != cut])
        left, self.step = self.step, self.step + scale.step
        self._windows.sampled |= {left, self.step} | {scale.step_of(start) for start in starts}
        self._held, self._pages = [], 0
        return True

    def _take(self, windows: list[FlowWindow]) -> None:
        for window in windows:
            self._windows.add(window)


def range_of(seconds: float) -> FlowRange | None:
    """Return the range with that span in seconds, if there is one."""
    return next((scale for scale in RANGES if scale.span == seconds), None)


# ---- in words ----


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint about a range, and the command that helps, if there is one."""

    text: str = ""
    command: str = ""


def hint(past: FlowPast, cluster_view: ClusterView, limits: AlarmLimits, cluster_client: ClusterClient) -> Hint:
    """Return why there is no history, or none of the last minutes; empty if nothing is wrong."""
    if not cluster_view.lapwing:
        return Hint("These nsqds keep no log to read the past from: this is what nsqadmin has seen itself.")
    if past.version == 0:
        return Hint("Reading the history …")
    newest = past.windows.newest
    if cluster_view.at - newest < SILENT or any(
        pipeline.get("kind") == "flow"
        and not stale(pipeline, cluster_view.at, limits)
        and pipeline.get("state") in ALIVE
        for pipeline in cluster_view.pipelines or ()
    ):
        return Hint() if newest else Hint("The flow pipeline has begun: its first windows come within a minute.")
    command = " ".join(["lapwing pipeline run flow", *_whom(cluster_view, cluster_client)])
    if newest:
        ago = duration(round(cluster_view.at - newest))
        return Hint(f"The flow pipeline does not run: its last window ended {ago} ago. Start it again:", command)
    return Hint(
        "No flow pipeline runs, so this is only what nsqadmin has seen itself. "
        "With one there are days of rates, sizes, latency and failures:",
        command,
    )


def _whom(cluster_view: ClusterView, cluster_client: ClusterClient) -> list[str]:
    if not cluster_client.direct:
        return [f"--lookupd {address}" for address in cluster_client.lookupds]
    return [f"--nsqd {state.node.contact}" for state in cluster_view.nodes if state.lapwing]
