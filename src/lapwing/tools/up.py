"""Run the whole stack until Ctrl-C, and show its state."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import invalidate_caches
from typing import Final

from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView, rates_between
from lapwing.client.format import short
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.tools import processes, screens
from lapwing.tools.program import first_of
from lapwing.tools.stack import PIPELINES, Plan, data_folder, pipelines, services, without_spark
from lapwing.tools.supervisor import Child, Service, Supervisor
from lapwing.tools.terminal import Screen, Terminal
from lapwing.tools.try_next import losing, preparation, suggestions

START: Final = 30.0  # s for a daemon to come up
_PROGRESS: Final = 2.0  # s between two reports of a set-up
REFRESH: Final = 1.0  # s, on a terminal


class Up:
    """One run of the stack."""

    def __init__(self, plan: Plan, started: Callable[[], None], *, every: float, as_json: bool = False) -> None:
        self._plan = plan
        self._started = started
        self._every = every
        self._as_json = as_json
        self._screen: Screen | None = None
        self._usage: dict[str, tuple[float, float]] = {}  # by program: when, CPU seconds so far

    async def run(self) -> None:
        """Start everything, show it until Ctrl-C or SIGTERM, stop everything."""
        stop = asyncio.Event()
        with data_folder(self._plan.data, self._plan.nodes):
            http = DaemonHttp(connect_timeout=1.0, request_timeout=2.0)
            supervisor = Supervisor(services(self._plan), self._plan.data / "logs", self._notify, http)

            def signalled() -> None:
                if stop.is_set():
                    supervisor.kill()
                stop.set()

            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, signalled)
            try:
                await self._supervised(supervisor, http, stop)
            finally:
                self._notify("stopping (Ctrl-C again: at once)")
                await supervisor.stop()
                await http.aclose()
                self._notify("stopped; the data stays in " + str(self._plan.data))

    async def _supervised(self, supervisor: Supervisor, http: DaemonHttp, stop: asyncio.Event) -> None:
        for note in self._plan.notes:
            self._notify(note)
        if not self._as_json:
            names = ", ".join(child.service.name for child in supervisor.children)
            print(f"starting {names}", flush=True)
            if self._plan.pipelines:
                print("Spark takes some 20 s, the rest is there at once", flush=True)
        if self._plan.durability == "replicated":
            for number in range(self._plan.nodes):
                self._plan.remote_folder(number).mkdir(exist_ok=True)
        await first_of(stop.wait(), supervisor.start(needed=2, seconds=START))
        if not stop.is_set():
            listening = asyncio.create_task(self._await_all(supervisor.children))
            preparing = asyncio.create_task(self._prepare(supervisor, http))
            self._welcome(supervisor.children)
            cluster = ClusterClient(http, nsqds=self._plan.nsqd_addresses("http"))
            try:
                await self._show(supervisor, cluster, stop)
            finally:
                listening.cancel()
                preparing.cancel()
                await asyncio.gather(preparing, return_exceptions=True)

    async def _prepare(self, supervisor: Supervisor, http: DaemonHttp) -> None:
        """Have the rest installed: Spark, whose pipelines start then, and the kernel for the next start."""
        if not self._plan.prepare:
            return
        if not self._plan.pipelines:
            child = supervisor.add(Service("set-up", (self._plan.prepare, "spark"), once=True))
            reporting = asyncio.create_task(self._report_progress(child, http))
            done = await child.done()
            reporting.cancel()
            if not done:
                self._notify(f"Spark was not installed ({child.log}); the next `make run` tries again")
                return
            invalidate_caches()
            if missing := without_spark():
                self._notify(f"the pipelines are left out: {missing}")
                return
            self._notify("Spark is installed: the pipelines start")
            supervisor.add(pipelines(self._plan.with_pipelines()))
        await supervisor.add(Service("kernel", (self._plan.prepare, "kernel"), once=True)).done()

    async def _report_progress(self, child: Child, http: DaemonHttp) -> None:
        """Have the page show how far the set-up is, in the place of the pipelines to come."""
        while True:
            for name in PIPELINES:
                with suppress(CallFailed):
                    status = {"kind": name, "state": "starting", "batch_id": -1, "doing": child.address}
                    address = self._plan.nsqd_addresses("http")[0]
                    await http.call("POST", address, f"/pipelines/{name}", document=status)
            await asyncio.sleep(_PROGRESS)

    async def _await_all(self, children: list[Child]) -> None:
        """Let another stack choose its ports once all programs of this one have theirs."""
        await asyncio.gather(*(child.ready(START) for child in children))
        self._started()

    # --- output -----------------------------------------------------------------------------------------

    def _notify(self, text: str) -> None:
        """Report an event."""
        if self._as_json:
            print(json.dumps({"event": text, "at": round(time.time(), 3)}), flush=True)
        elif self._screen is not None:
            self._screen.print(Terminal.of(sys.stdout).paint(f"{time.strftime('%H:%M:%S')} {text}", "yellow"))
        else:
            print(text, flush=True)

    def _welcome(self, children: list[Child]) -> None:
        if self._as_json:
            places = {child.service.name: child.service.address for child in children}
            print(json.dumps({"up": places, "data": str(self._plan.data)}), flush=True)
            return
        for child in children:
            print(f"  {child.service.name:<13}  {child.service.address}", flush=True)
        print(f"  {'data and logs':<13}  {self._plan.data}", flush=True)
        if self._plan.durability == "replicated":
            nsqd = next(child for child in children if child.service.name == "nsqd")
            print("\n".join(["", *losing(self._plan, nsqd.pid or 0), ""]), flush=True)
        if self._plan.demo:
            print("\n".join(["", *suggestions(self._plan, room=Terminal.of(sys.stdout).width), ""]), flush=True)
        elif prepare := preparation(self._plan):
            print(f"  for other commands: {prepare}", flush=True)
        print("Ctrl-C stops everything.", flush=True)

    async def _show(self, supervisor: Supervisor, cluster: ClusterClient, stop: asyncio.Event) -> None:
        """Keep showing the state until `stop`."""
        before: ClusterView | None = None
        with ExitStack() as stack:
            if Terminal.of(sys.stdout).redraws and not self._as_json:
                self._screen = stack.enter_context(Screen(sys.stdout, whole=False))
            while not stop.is_set():
                view, children = await self._view(cluster), supervisor.children
                if self._screen is not None:
                    self._screen.draw(self._lines(children, view, before))
                elif self._as_json:
                    print(json.dumps(_status(children, view, before)), flush=True)
                else:
                    line = screens.one_line(view, rates_between(before, view), children)
                    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
                before = view
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH if self._screen is not None else self._every):
                        await stop.wait()
        self._screen = None

    async def _view(self, cluster: ClusterClient) -> ClusterView:
        try:
            return (await cluster.look(ages=True, pipelines=True)).users()
        except CallFailed as error:
            return ClusterView(errors=(str(error),))

    def _lines(self, children: list[Child], view: ClusterView, before: ClusterView | None) -> list[str]:
        terminal = Terminal.of(sys.stdout)
        groups = processes.by_session()
        usage = {child.service.name: self._uses(child, groups) for child in children}
        programs = screens.programs_table(children, usage, terminal, title="lapwing up")
        room = max(1, terminal.height - len(programs) - 3)  # the lines below
        return [
            *programs,
            "",
            *screens.whole_view(view, rates_between(before, view), terminal, rows=12, height=room),
            "",
            terminal.paint(f"data and logs in {self._plan.data}; Ctrl-C stops everything", "dim"),
        ]

    def _uses(self, child: Child, groups: dict[int, list[int]]) -> tuple[str, str]:
        """Return the CPU and memory of a program and of the processes it has started, as Java for Spark.

        They are empty where they are not known.
        """
        if child.pid not in groups:
            return "", ""
        used, held = processes.usage(groups[child.pid])
        now = time.monotonic()
        at, before = self._usage.get(child.service.name, (now, used))
        self._usage[child.service.name] = now, used
        share = f"{max(0.0, used - before) / (now - at):.0%}" if now > at else ""
        return share, f"{short(held / 1e6)} MB"


def _status(children: list[Child], view: ClusterView, before: ClusterView | None) -> dict[str, object]:
    """Return one line of `--json`."""
    rates = rates_between(before, view)
    return {
        "at": round(time.time(), 3),
        "programs": {child.service.name: {"state": child.state.value, "pid": child.pid, "restarts": child.restarts}
                     for child in children},
        "topics": {
            name: {
                "in_per_second": round(rates[name, ""].arriving, 1) if (name, "") in rates else None,
                "messages": topic["message_count"],
                "channels": {
                    channel["channel_name"]: {
                        "waiting": channel["depth"], "in_flight": channel["in_flight_count"],
                        "deferred": channel["deferred_count"],
                        "oldest_seconds": view.ages.get((name, channel["channel_name"])),
                    }
                    for channel in topic["channels"]
                },
            }
            for name, topic in view.topics.items()
        },
        "pipelines": list(view.pipelines or ()),
        "errors": list(view.errors),
    }


def run(plan: Plan, started: Callable[[], None], *, every: float, as_json: bool) -> None:
    """Run the stack, and call `started` once all programs listen.

    A program that does not start is an error with the end of its log.
    """
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # so that the children's logs are up to date
    asyncio.run(Up(plan, started, every=every, as_json=as_json).run())
