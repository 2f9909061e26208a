"""Records to append, and engines that fail."""

from collections.abc import Callable, Iterator, Sequence

from lapwing import kernel
from lapwing.errors import RemoteFailed
from lapwing.log.remote.engines import Engine
from lapwing.log.remote.record import LogBegun, Messages, Part
from lapwing.log.remote.remote_log import RemoteLog

NODE = 7
LOG_ID = "0123456789abcdef"
BEGUN = LogBegun("orders", LOG_ID, NODE, 0)


def messages(first: int, bodies: Sequence[bytes], topic: str = "orders", log_id: str = LOG_ID) -> Messages:
    """Messages of a log, as a record has them."""
    frames = kernel.frame_bodies(bodies, (NODE << 54) + first, 1)
    return Messages(topic, log_id, first, len(bodies), frames, b"")


def owned(engine: Engine, owner: str = "a", *, take_over: bool = False) -> RemoteLog:
    """A remote log that this process has claimed."""
    log = RemoteLog(engine, owner=owner)
    log.claim(NODE, now=1, take_over=take_over)
    return log


def append(log: RemoteLog, *parts: Part) -> None:
    log.append(log.record(parts, now=2))


class FaultyEngine:
    """Another engine, behind a network that loses requests and answers.

    `plan` says what becomes of the next calls: "lost" does nothing, "unanswered" does it, "late" does it when `deliver`
    is called; all three raise. A call is done before them: whatever it does happens at that moment.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.place = engine.place
        self.plan: list[str | Callable[[], None]] = []
        self.late: list[tuple[str, bytes]] = []

    def _fate(self) -> str:
        fate = self.plan.pop(0) if self.plan else ""
        if callable(fate):
            fate()
            return ""
        return fate

    def create(self, name: str, *data: bytes) -> bool:
        fate = self._fate()
        if fate == "late":
            self.late.append((name, b"".join(data)))
        if fate in ("late", "lost"):
            raise RemoteFailed(f"{name}: {fate}")
        created = self.engine.create(name, *data)
        if fate == "unanswered":
            raise RemoteFailed(f"{name}: {fate}")
        return created

    def deliver(self) -> None:
        """Do what came late."""
        for name, data in self.late:
            self.engine.create(name, data)
        self.late.clear()

    def read(self, name: str) -> bytes | None:
        if self._fate():
            raise RemoteFailed(name)
        return self.engine.read(name)

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        if self._fate():
            raise RemoteFailed(prefix)
        return self.engine.find(prefix, after)

    def delete(self, names: Sequence[str]) -> None:
        fate = self._fate()
        if fate == "lost":
            raise RemoteFailed(names[0])
        self.engine.delete(names)
        if fate:
            raise RemoteFailed(names[0])

    def close(self) -> None:
        self.engine.close()
