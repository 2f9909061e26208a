"""Subscriptions to logs that grow: by reads of Redis clients, and by readers of the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


class _Waiter:
    """A subscription to the growth of some topics."""

    __slots__ = ("topics", "wake")

    def __init__(self, topics: Iterable[str], wake: Callable[[int], object]) -> None:
        self.topics = tuple(topics)
        self.wake = wake


class Growth:
    """The subscriptions to topics that grow, are created or are deleted, and the topics that did so in this turn."""

    def __init__(self) -> None:
        self._waiters: dict[str, dict[_Waiter, None]] = {}  # by topic, the oldest first
        self.grown: dict[str, None] = {}  # followed topics whose waiters were not called yet; for reading only

    @property
    def followed(self) -> Collection[str]:
        """The topics that anybody waits for, as they are at any time."""
        return self._waiters

    def follow(self, topics: Iterable[str], wake: Callable[[int], object]) -> Callable[[], None]:
        """Have `wake` called with the time, at the end of each turn in which one of the topics grew.

        Return a function that ends this.
        """
        waiter = _Waiter(topics, wake)
        for name in waiter.topics:
            self._waiters.setdefault(name, {})[waiter] = None
        return lambda: self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        for name in waiter.topics:
            waiters = self._waiters.get(name)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[name]

    def watches(self, topic: str) -> bool:
        """Return whether anybody waits for the topic."""
        return topic in self._waiters

    def note(self, topic: str) -> None:
        """Note that the topic has grown, was created or was deleted."""
        if topic in self._waiters:
            self.grown[topic] = None

    def wake(self, now: int) -> None:
        """Call the waiters of the topics that have grown, the oldest of each first.

        What one of them raises is raised when all others were called.
        """
        failed: Exception | None = None
        while self.grown:
            grown, self.grown = self.grown, {}
            for name in grown:
                for waiter in list(self._waiters.get(name, ())):
                    try:
                        waiter.wake(now)
                    except Exception as error:
                        failed = error
        if failed is not None:
            raise failed
