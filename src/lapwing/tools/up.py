"""Runs the whole stack until told to stop, and shows how it does."""

import asyncio
import json
import os
import signal
import time
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView, rates_between
from lapwing.client.format import short
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.tools import screens
from lapwing.tools.bench import server
from lapwing.tools.stack import Plan, data_folder, services
from lapwing.tools.supervisor import Child, Supervisor

START: Final = 30.0  # s for a daemon to come up
REFRESH: Final = 1.0  # s, on a terminal


class Up:
    """One run of the stack."""

    def __init__(self, plan: Plan, *, every: float, as_json: bool = False) -> None:
        self._plan = plan
        self._every = every
        self._as_json = as_json
        self._live: Live | None = None
        self._usage: dict[str, tuple[float, float]] = {}  # by program: when, CPU seconds so far

    async def run(self) -> int:
        """Start everything, show it until Ctrl-C or SIGTERM, stop everything; the exit status."""
        stop = asyncio.Event()
        with data_folder(self._plan.data):
            http = DaemonHttp(connect_timeout=1.0, request_timeout=2.0)
            supervisor = Supervisor(services(self._plan), self._plan.data / "logs", self._say, http)

            def told() -> None:
                if stop.is_set():
                    supervisor.kill()
                stop.set()

            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, told)
            try:
                return await self._supervised(supervisor, http, stop)
            finally:
                self._say("stopping (Ctrl-C again: at once)")
                await supervisor.stop()
                await http.aclose()
                self._say("stopped; the data stays in " + str(self._plan.data))

    async def _supervised(self, supervisor: Supervisor, http: DaemonHttp, stop: asyncio.Event) -> int:
        for note in self._plan.notes:
            self._say(note)
        starting = asyncio.create_task(supervisor.start(needed=2, seconds=START))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return 0
            await starting
            self._welcome(supervisor.children)
            cluster = ClusterClient(http, nsqds=[self._plan.address("nsqd_http")])
            await self._show(supervisor.children, cluster, stop)
            return 0
        finally:
            starting.cancel()
            stopping.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    # --- what people see -----------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        """Something happened."""
        if self._as_json:
            print(json.dumps({"event": text, "at": round(time.time(), 3)}), flush=True)
        elif self._live is not None:
            self._live.console.print(Text(f"{time.strftime('%H:%M:%S')} {text}", style="yellow"))
        else:
            print(text, flush=True)

    def _welcome(self, children: list[Child]) -> None:
        if self._as_json:
            places = {child.service.name: child.service.address for child in children}
            print(json.dumps({"up": places, "data": str(self._plan.data)}), flush=True)
            return
        for child in children:
            print(f"  {child.service.name:<18} {child.service.address}", flush=True)
        print(f"  {'data and logs':<18} {self._plan.data}", flush=True)
        ports = self._plan.ports
        if ports["nsqd_http"] != 4151 or ports["nsqd_tcp"] != 4150:
            print(f"  for other commands: export LAPWING_NSQD_HTTP={self._plan.address('nsqd_http')} "
                  f"LAPWING_NSQD_TCP={self._plan.address('nsqd_tcp')}", flush=True)
        print("Ctrl-C stops everything.", flush=True)

    async def _show(self, children: list[Child], cluster: ClusterClient, stop: asyncio.Event) -> None:
        """Keep showing until told to stop."""
        before: ClusterView | None = None
        console = screens.console()
        if screens.redraws(console) and not self._as_json:
            with Live(console=console, auto_refresh=False, screen=False, transient=True) as self._live:
                while not stop.is_set():
                    picture = await self._picture(cluster)
                    self._live.update(self._screen(children, picture, before), refresh=True)
                    before = picture
                    await _pause(stop, REFRESH)
            self._live = None
            return
        while not stop.is_set():
            picture = await self._picture(cluster)
            if self._as_json:
                print(json.dumps(_status(children, picture, before)), flush=True)
            else:
                line = screens.one_line(picture, rates_between(before, picture), children)
                print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            before = picture
            await _pause(stop, self._every)

    async def _picture(self, cluster: ClusterClient) -> ClusterView:
        try:
            return (await cluster.look(ages=True, pipelines=True)).users()
        except CallFailed as error:
            return ClusterView(errors=(str(error),))

    def _screen(self, children: list[Child], picture: ClusterView, before: ClusterView | None) -> RenderableType:
        parts: list[RenderableType] = [
            screens.programs_table(children, {child.service.name: self._uses(child) for child in children},
                                   title="lapwing up"),
            "",
            screens.whole_picture(picture, rates_between(before, picture), rows=12),
        ]
        parts += ["", Text(f"data and logs in {self._plan.data}; Ctrl-C stops everything", style="dim")]
        return Group(*parts)

    def _uses(self, child: Child) -> str:
        """CPU and memory of a program."""
        if child.pid is None:
            return ""
        try:
            used, held = server.cpu_seconds(child.pid), server.resident_bytes(child.pid)
        except OSError:
            return ""
        now = time.monotonic()
        at, before = self._usage.get(child.service.name, (now, used))
        self._usage[child.service.name] = now, used
        share = f"{max(0.0, used - before) / (now - at):.0%}" if now > at else ""
        return f"{share:>4} {short(held / 1e6)} MB"


def _status(children: list[Child], picture: ClusterView, before: ClusterView | None) -> dict[str, object]:
    """One line of `--json`."""
    rates = rates_between(before, picture)
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
                        "oldest_seconds": picture.ages.get((name, channel["channel_name"])),
                    }
                    for channel in topic["channels"]
                },
            }
            for name, topic in picture.topics.items()
        },
        "pipelines": picture.pipelines,
        "errors": picture.errors,
    }


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def run(plan: Plan, *, every: float, as_json: bool) -> int:
    """Run the stack; the exit status. What does not start is an error with its last words."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # so that the children's logs are up to date
    return asyncio.run(Up(plan, every=every, as_json=as_json).run())
