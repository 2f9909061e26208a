"""The status lines of nsq_to_http and nsq_to_nsq: how many, and how fast."""

from collections.abc import Callable


class Status:
    """Counts what was done and tells, every so many messages, how long it took."""

    def __init__(self, every: int, name: str, say: Callable[[str], None]) -> None:
        self._every = every
        self._name = name
        self._say = say
        self._times: list[float] = []
        self._late = 1  # the first line comes one message late, as it always has

    def done(self, seconds: float) -> None:
        """One more, which took so long."""
        if self._every <= 0:
            return
        self._times.append(seconds)
        if len(self._times) >= self._every + self._late:
            self._tell()

    def _tell(self) -> None:
        self._late = 0
        times = sorted(self._times)
        self._times = []
        average = sum(times) / len(times)
        self._say(
            f"[{self._name}]: finished {self._every} - 99th: {1000 * at(times, 0.99):.2f}ms"
            f" - 95th: {1000 * at(times, 0.95):.2f}ms - avg: {1000 * average:.2f}ms"
        )


def at(times: list[float], share: float) -> float:
    """The value below which that share of the sorted `times` lies."""
    return times[min(len(times) - 1, max(0, int(len(times) * share + 0.5) - 1))]
