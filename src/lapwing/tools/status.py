"""Status lines of nsq_to_http and nsq_to_nsq."""

from collections.abc import Callable


class Status:
    """Count messages, and write how long they took after every so many."""

    def __init__(self, every: int, name: str, write: Callable[[str], None]) -> None:
        self._every = every
        self._name = name
        self._write = write
        self._times: list[float] = []
        self._late = 1  # the first line comes one message late, as in NSQ

    def done(self, seconds: float) -> None:
        """Count a message that took `seconds`."""
        if self._every <= 0:
            return
        self._times.append(seconds)
        if len(self._times) >= self._every + self._late:
            self._report()

    def _report(self) -> None:
        self._late = 0
        times = sorted(self._times)
        self._times = []
        average = sum(times) / len(times)
        self._write(
            f"[{self._name}]: finished {self._every} - 99th: {1000 * at(times, 0.99):.2f}ms"
            f" - 95th: {1000 * at(times, 0.95):.2f}ms - avg: {1000 * average:.2f}ms"
        )


def at(times: list[float], share: float) -> float:
    """Return the percentile of the sorted `times`."""
    return times[min(len(times) - 1, max(0, int(len(times) * share + 0.5) - 1))]
