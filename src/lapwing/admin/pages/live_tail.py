"""Follow the logs of a topic: add new messages to the top of a list as they are published."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from nicegui import background_tasks

from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.elements import button, element, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.client.format import count
from lapwing.client.http import CallFailed
from lapwing.client.log_reader import LogMessage, LogRange, TopicLogs, contains

KEPT: Final = 500  # messages of the list
PAUSE: Final = 0.7  # seconds between two drawings
RETRY: Final = 2.0  # seconds before a node that does not answer is asked again


class LiveTail:
    """The buttons *Follow live* and *Pause*, and the task behind them. `show` gets new messages, the newest first."""

    def __init__(
        self,
        view: PageView,
        logs: TopicLogs,
        ranges: Sequence[LogRange],
        text: str,
        show: Callable[[list[LogMessage]], None],
    ) -> None:
        self._logs = logs
        self._ranges = ranges
        self._text = text.lower()
        self._show = show
        self._ends = {found.node.name: found.next for found in ranges}
        self._paused = False
        self._shown = 0
        self._task: asyncio.Task[None] | None = None
        self._follow_button = button("Follow live", self._follow, sign="play_arrow")
        self._pause_button = button("Pause", self._pause, sign="pause")
        self._pause_button.set_visibility(False)
        self._status = element("span", "", "lw-faint", role="status")
        view.client.on_delete(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _follow(self) -> None:
        if self._task is not None:
            self._cancel()
            self._follow_button.classes(remove="lw-on")
            self._pause_button.set_visibility(False)
            set_text(self._status, "")
            return
        self._follow_button.classes(add="lw-on")
        self._pause_button.set_visibility(True)
        set_text(self._status, "following")
        self._paused = False
        self._task = background_tasks.create(self._run())

    def _pause(self) -> None:
        self._paused = not self._paused
        sign, word = self._pause_button.default_slot.children
        set_text(sign, "play_arrow" if self._paused else "pause")
        set_text(word, "Resume" if self._paused else "Pause")
        set_text(self._status, "paused" if self._paused else "following")

    async def _run(self) -> None:
        """Wait for every log at the same time; draw what has come, again and again, until cancelled."""
        by_name = {found.node.name: found for found in self._ranges}
        waiting = {name: asyncio.ensure_future(self._new_messages(found)) for name, found in by_name.items()}
        try:
            while waiting:
                await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(PAUSE)
                fresh: list[LogMessage] = []
                for name, task in list(waiting.items()):
                    if task.done():
                        try:
                            fresh += task.result()
                        except CallFailed as error:
                            set_text(self._status, error_text(error))
                            await asyncio.sleep(RETRY)
                        waiting[name] = asyncio.ensure_future(self._new_messages(by_name[name]))
                self._draw(fresh)
        finally:
            for task in waiting.values():
                task.cancel()

    async def _new_messages(self, found: LogRange) -> list[LogMessage]:
        after = self._ends[found.node.name]
        grown = await self._logs.grown(found.node, after)
        end = grown.next if grown is not None else after
        if end <= after:
            return []
        if self._paused:  # nothing is read while paused: the end of the log shows how many are new
            set_text(self._status, f"paused, {count(end - after)} new")
            return []
        page = await self._logs.page(found.node, max(after, end - KEPT), end, limit=KEPT)
        self._ends[found.node.name] = page.messages[-1].sequence + 1 if page.messages else end
        return page.messages

    def _draw(self, fresh: list[LogMessage]) -> None:
        if self._text:
            fresh = [message for message in fresh if contains(message, self._text)]
        if fresh:
            self._shown += len(fresh)
            self._show(sorted(fresh, reverse=True))
            if not self._paused:
                set_text(self._status, f"following, {count(self._shown)} new")
