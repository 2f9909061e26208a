"""`/debug/*`: profiles and figures of the Python process, where NSQ serves Go's profiler."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

from lapwing.net.event_loop import stacks
from lapwing.net.options import without_secrets
from lapwing.net.server.answers import HTML, Answer, plain
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.stats import memory

_RATE: Final = 0.01  # seconds of processor time between two samples
_LONGEST: Final = 300.0  # seconds of one profile
_DEFAULT: Final = 30.0


def routes() -> list[Route]:
    return [
        Route("GET", "/debug/pprof/", index, logged=False),
        *(Route("GET", f"/debug/pprof/{name}", respond, logged=False) for name, (_, respond) in _PAGES.items()),
        Route("POST", "/debug/pprof/symbol", _PAGES["symbol"][1], logged=False),
        Route("PUT", "/debug/setblockrate", set_block_rate),
        Route("POST", "/debug/freememory", free_memory),
    ]


def index(request: Request) -> Answer:
    lines = "".join(f'<li><a href="{name}">{name}</a>: {what}</li>\n' for name, (what, _) in _PAGES.items())
    page = f"<!doctype html><html><head><title>/debug/pprof/</title></head><body><ul>\n{lines}</ul></body></html>\n"
    return Answer(200, page.encode(), HTML, nsq=False)


def set_block_rate(request: Request) -> Answer:
    """Accept a rate and ignore it: waiting tasks can be listed at any time."""
    rate = request.query.get("rate", "")
    if not rate.removeprefix("-").isdecimal() or not rate.isascii():
        return plain(f'invalid block rate : "{rate}" is no integer', 400)
    return plain("")


def free_memory(request: Request) -> Answer:
    """Collect garbage, and give what is free back to the system."""
    gc.collect()
    memory.trim()
    return plain("")


# --- profile ---------------------------------------------------------------------------------------------------


class Profile:
    """Looks at the event loop's stack each time the process has used 10 ms of processor time, and counts what it sees.

    By a signal rather than from a thread: a thread sees the others only where they give up the interpreter's lock,
    which is where they wait, and not where they work. Signals come to the main thread, which is where the loop runs;
    the others only sync files.
    """

    running = False  # there is one timer for all of the process

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._labels: dict[CodeType, str] = {}

    def __enter__(self) -> Profile:
        Profile.running = True
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _RATE, _RATE)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # one may still be on its way; its default is to kill
        Profile.running = False

    def _look(self, number: int, frame: FrameType | None) -> None:
        self.counts[tuple(_stack(frame, self._labels))] += 1

    def collapsed(self) -> str:
        """Return one line per stack, outermost frame first, with how often it was seen."""
        return "".join(f"{';'.join(stack)} {count}\n" for stack, count in self.counts.most_common())


def _stack(frame: FrameType | None, labels: dict[CodeType, str]) -> list[str]:
    stack = []
    while frame is not None:
        code = frame.f_code
        label = labels.get(code)
        if label is None:
            label = labels[code] = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}".replace(";", ":")
        stack.append(label)
        frame = frame.f_back
    stack.reverse()
    return stack


async def profile(request: Request) -> Answer:
    """Return a profile of the running process over the next `seconds`."""
    try:
        seconds = float(request.query.get("seconds", _DEFAULT))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _LONGEST:
        return plain(f"seconds must be above 0 and at most {_LONGEST:.0f}\n", 400)
    if Profile.running:
        return plain("another profile is being taken\n", 503)
    with Profile() as taken:
        await asyncio.sleep(seconds)
    return plain(taken.collapsed())


# --- tasks -----------------------------------------------------------------------------------------------------


def waiting() -> str:
    """Return the places where tasks wait, the most crowded first."""
    places: Counter[str] = Counter()
    for task in asyncio.all_tasks():
        frames = task.get_stack()
        if frames:
            code = frames[-1].f_code
            places[f"{code.co_filename}:{frames[-1].f_lineno} {code.co_qualname}"] += 1
    return "".join(f"{count} {place}\n" for place, count in places.most_common())


def heap() -> str:
    """Return figures of memory and garbage collection."""
    lines = [
        f"resident_bytes {memory.resident()}",
        f"allocated_blocks {sys.getallocatedblocks()}",
        f"gc_enabled {gc.isenabled()}",
        f"gc_threshold {gc.get_threshold()}",
        f"gc_count {gc.get_count()}",
        f"gc_frozen {gc.get_freeze_count()}",
    ]
    lines += [f"gc_generation_{number} {generation}" for number, generation in enumerate(gc.get_stats())]
    return "\n".join(lines) + "\n"


def _threads() -> str:
    return "".join(f"{thread.name}\n" for thread in threading.enumerate())


_PAGES: Final[dict[str, tuple[str, Callable[[Request], Reply]]]] = {  # what each shows
    "cmdline": ("the command line, words separated by NUL", lambda _: plain("\0".join(map(without_secrets, sys.argv)))),
    "profile": (
        "where processor time goes over ?seconds=N, as collapsed stacks for speedscope or flamegraph.pl", profile,
    ),
    "goroutine": ("the stacks of all tasks and threads", lambda _: plain(stacks())),
    "block": ("where tasks wait, and how many at each place", lambda _: plain(waiting())),
    "heap": ("memory and garbage collection in figures", lambda _: plain(heap())),
    "threadcreate": ("the threads", lambda _: plain(_threads())),
    "symbol": ("for tools that expect it: there are no addresses to look up", lambda _: plain("num_symbols: 0\n")),
}  # fmt: skip
