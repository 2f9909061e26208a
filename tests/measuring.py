"""Limits of time for a machine that may be busy."""

import functools
import inspect
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

LONG = 0.1  # seconds that this process was held up for
TRIES = 10


def shortest(measure: Callable[[], float], *, limit: float, tries: int = TRIES) -> float:
    """Measure until a result is below the limit, or as often as allowed; return the smallest.

    A busy machine makes anything slow once. What is slow by itself is slow every time.
    """
    smallest = measure()
    for _ in range(tries - 1):
        if smallest < limit:
            break
        smallest = min(smallest, measure())
    return smallest


class Pauses:
    """How long this process got no time, at most, within a `with` block."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.longest, before = max(self.longest, now - before), now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over.set()
        self._thread.join()
        return False


def about_short_times(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test again, a coroutine or not, that failed while this process was held up: then it says nothing.

    For what has to happen within parts of a second, such as an answer before a short message timeout ends.
    """
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def awaited(*arguments: Any, **options: Any) -> None:
            for _ in range(TRIES - 1):
                with _Excused() as excused:
                    await test(*arguments, **options)
                if not excused.failed:
                    return
            await test(*arguments, **options)

        return awaited

    @functools.wraps(test)
    def called(*arguments: Any, **options: Any) -> None:
        for _ in range(TRIES - 1):
            with _Excused() as excused:
                test(*arguments, **options)
            if not excused.failed:
                return
        test(*arguments, **options)

    return called


class _Excused(Pauses):
    """A run whose failure does not count if this process was held up."""

    failed = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        super().__exit__(kind, error, trace)
        self.failed = error is not None
        return isinstance(error, AssertionError | TimeoutError) and self.longest >= LONG
