"""The `/debug/pprof` pages: where NSQ serves Go's profiler, these describe the Python process as text."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Final

from lapwing.net.event_loop import stacks
from lapwing.net.server import answers
from lapwing.net.server.answers import Answer
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route

_NO_PROFILER: Final = "no profiler is built in; py-spy can look at a running process from outside\n"
_PAGES: Final[dict[str, Callable[[], str]]] = {
    "block": lambda: _NO_PROFILER,
    "cmdline": lambda: "\0".join(sys.orig_argv),
    "goroutine": stacks,
    "heap": lambda: f"objects: {len(gc.get_objects())}\ncollections: {gc.get_stats()}\n",
    "profile": lambda: _NO_PROFILER,
    "symbol": lambda: "num_symbols: 0\n",
    "threadcreate": lambda: "".join(f"{thread.name}\n" for thread in threading.enumerate()),
}


def routes() -> list[Route]:
    """Return the routes; unlike in nsqd, the path of the index has no slash at the end."""
    pages = [Route("GET", f"/debug/pprof/{page}", _page) for page in _PAGES]
    return [Route("GET", "/debug/pprof", _index), *pages, Route("POST", "/debug/pprof/symbol", _page)]


def _index(request: Request) -> Answer:
    return answers.plain("".join(f"{page}\n" for page in _PAGES))


def _page(request: Request) -> Answer:
    return answers.plain(_PAGES[request.head.path.rpartition("/")[2]]())
