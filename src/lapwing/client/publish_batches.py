"""Publishes on their way: gathered into batches, split where nsqd's limits want it. Pure but for the futures."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lapwing.wire.nsq.commands import Dpub, Mpub, Pub

BATCH_BYTES: Final = 1 << 20  # a batch larger than this gains nothing and delays its neighbours
BATCH_COUNT: Final = 10_000
TOGETHER: Final = 0.1  # s; publishes whose deadlines lie further apart travel apart

_MESSAGE_TOO_BIG: Final = re.compile(r"^E_BAD_MESSAGE \w+ message too big \d+ > (\d+)$")
_BODY_TOO_BIG: Final = re.compile(r"^E_BAD_BODY MPUB body too big \d+ > (\d+)$")
_TRY_ELSEWHERE: Final = ("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED")


@dataclass(slots=True)
class Limits:
    """What nsqd takes in one message and in one MPUB; the guesses are corrected by what it says."""

    message: int  # 0: unknown
    body: int

    def learn(self, reason: str) -> str:
        """What was too big, by nsqd's refusal: "message", "body", or nothing of the kind."""
        if match := _MESSAGE_TOO_BIG.match(reason):
            self.message = int(match[1])
            return "message"
        if match := _BODY_TOO_BIG.match(reason):
            self.body = int(match[1])
            return "body"
        return ""


@dataclass(slots=True)
class Parcel:
    """Bodies that travel as one command, and whom to tell when it is answered."""

    topic: str
    deadline: float  # s, by the event loop's clock
    delay: int = 0  # ns; for one body only
    whole: bool = False  # a batch that its caller made: all or nothing
    bodies: list[bytes] = field(default_factory=list)
    futures: list[asyncio.Future[None]] = field(default_factory=list)  # one per body; one in all of a whole
    size: int = 4  # of the MPUB body
    sent: float = 0.0
    refused_by: set[str] = field(default_factory=set)

    def fits(self, body: bytes, deadline: float, limits: Limits) -> bool:
        """Whether one more may come along."""
        return (
            deadline - self.deadline <= TOGETHER
            and len(self.bodies) < BATCH_COUNT
            and self.size + len(body) + 4 <= min(limits.body or BATCH_BYTES, BATCH_BYTES)
            and len(body) <= (limits.message or BATCH_BYTES)
        )

    def add(self, body: bytes, future: asyncio.Future[None]) -> None:
        self.bodies.append(body)
        self.futures.append(future)
        self.size += len(body) + 4

    def encode(self) -> bytes:
        """The command that publishes all of it."""
        if self.delay:
            return Dpub(self.topic, self.delay, self.bodies[0]).encode()
        if len(self.bodies) == 1:
            return Pub(self.topic, self.bodies[0]).encode()
        return Mpub.of(self.topic, self.bodies).encode()

    @property
    def awaited(self) -> bool:
        """Whether anybody still waits for the answer."""
        return any(not future.done() for future in self.futures)

    def confirm(self) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error())  # one each: a shared one would gather everybody's traceback

    def without_larger(self, limit: int) -> "tuple[Parcel, list[asyncio.Future[None]]]":
        """What is left without the bodies that are larger than `limit`, and who waits for those."""
        rest = Parcel(self.topic, self.deadline)
        large: list[asyncio.Future[None]] = []
        for body, future in zip(self.bodies, self.futures, strict=True):
            if len(body) > limit:
                large.append(future)
            elif not future.done():
                rest.add(body, future)
        return rest, large

    def halves(self) -> "Iterator[Parcel]":
        """The batch in two, for one that was too big as a whole."""
        middle = len(self.bodies) // 2
        for part in (slice(None, middle), slice(middle, None)):
            parcel = Parcel(self.topic, self.deadline)
            for body, future in zip(self.bodies[part], self.futures[part], strict=True):
                if not future.done():
                    parcel.add(body, future)
            if parcel.bodies:
                yield parcel


def elsewhere(reason: str) -> bool:
    """Whether another nsqd may take what this one refused: its disk is full, or it is going down."""
    return reason.startswith(_TRY_ELSEWHERE)
