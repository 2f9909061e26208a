"""The answers of one connection: slots in the order of its commands, each filled at once or later."""

from __future__ import annotations

from collections.abc import Callable


class Slot:
    """The place of one answer among those of its connection."""

    __slots__ = ("_replies", "answer")

    def __init__(self, replies: Replies, answer: bytes | None = None) -> None:
        self._replies = replies
        self.answer = answer

    def fill(self, answer: bytes) -> None:
        """Give the answer; it is sent as soon as all before it are."""
        self.answer = answer
        self._replies.advance()


class Replies:
    """Everything that a connection has to send.

    Answers keep the order of the commands: an answer waits for those before it. Messages and heartbeats, which answer
    no command, do not wait. `on_ready` is called when there is something to send after there was nothing, unless the
    caller knows already.
    """

    __slots__ = ("on_ready", "ready", "slots")

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.ready: list[bytes] = []  # to be sent now; the sender clears it
        self.slots: list[Slot] = []  # from the first open slot on; for reading only. A deque takes 0.7 KB when empty
        self.on_ready = on_ready

    @property
    def waiting(self) -> int:
        """The number of answers that wait: open slots, and filled ones behind them."""
        return len(self.slots)

    def add(self, answer: bytes) -> Slot | None:
        """Answer a command now; the slot where the answer waits, or None when it is ready."""
        if not self.slots:
            self.ready.append(answer)
            return None
        slot = Slot(self, answer)
        self.slots.append(slot)
        return slot

    def reserve(self, slot: Slot) -> None:
        """Keep the next place for an answer that comes later."""
        self.slots.append(slot)

    def push(self, frames: bytes) -> None:
        """Send frames that answer no command, between any two answers."""
        if not self.ready:
            self.on_ready()
        self.ready.append(frames)

    def holds(self, slot: Slot) -> bool:
        """Return whether the slot waits here: it is neither sent nor taken back."""
        return slot in self.slots

    def take_back_after(self, slot: Slot) -> bool:
        """Drop every answer behind `slot`; False when the slot itself was dropped before."""
        if slot not in self.slots:
            return False
        while self.slots[-1] is not slot:
            self.slots.pop()
        return True

    def advance(self) -> None:
        """Make the answers ready that no open slot precedes."""
        slots, ready = self.slots, self.ready
        before = len(ready)
        filled = 0
        for slot in slots:
            if slot.answer is None:
                break
            ready.append(slot.answer)
            filled += 1
        if filled:
            del slots[:filled]
        if not before and ready:
            self.on_ready()

    def close(self) -> None:
        """Drop everything: the connection is gone. Slots may still be filled, without effect."""
        self.ready.clear()
        self.slots.clear()
        self.on_ready = nothing


def nothing() -> None:
    """Do nothing: there is no connection any more."""
