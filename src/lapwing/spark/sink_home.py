"""The broker that has the batches of a sink, where nsqlookupd lists the brokers: one for the sink's whole life.

A broker knows which batches of a sink it has published. A batch that Spark does again must go to the broker that may
have it, whatever brokers have joined or left since. So the broker that has published a batch of the sink gets all
later ones; a new sink gets one of the brokers by its name.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.spark.directory import Directory, ask_all
from lapwing.spark.http import BrokerAway, BrokerRefused, call, patiently
from lapwing.spark.options import BrokerAccess

_homes: dict[tuple[BrokerAccess, str], str] = {}  # of this process: the brokers that have published a batch of a sink
_MOST_HOMES: Final = 1000


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A broker, and how much of a sink it has."""

    address: str
    published: int  # the last batch, -1: none
    staged: bool

    def rank(self, sink: str) -> tuple[int, bool, str]:
        return self.published, self.staged, hashlib.sha256(f"{sink} {self.address}".encode()).hexdigest()


def sink_home(access: BrokerAccess, sink: str, batch: int, *, known_from: int | None = None) -> str:
    """Return the address of the broker for a batch of the sink.

    A broker that is away and may have published the batch is waited for; then raises `BrokerAway`. From batch
    `known_from` on, one of the brokers must have published the batches before.
    """
    key = access, sink
    if key not in _homes:
        what = f"finding the broker that has the batches of {sink}"
        directory = Directory(access)
        found = patiently(what, lambda: _find(directory, access, sink, batch, known_from), access)
        if found.published < 0:
            return found.address
        if len(_homes) >= _MOST_HOMES:
            _homes.clear()
        _homes[key] = found.address
    return _homes[key]


def _find(directory: Directory, access: BrokerAccess, sink: str, batch: int, known_from: int | None) -> _Candidate:
    everyone = directory.find(departed=True)
    connected = set(directory.find())
    answers = ask_all(everyone, lambda address: call(address, access, "GET", "/stage/status", {"sink": sink}))
    found = [_candidate(address, answer) for address, answer in answers if not isinstance(answer, BrokerAway)]
    away = [str(answer) for _, answer in answers if isinstance(answer, BrokerAway)]
    homes = [candidate for candidate in found if candidate.published >= 0]
    if len(homes) == 1 or (homes and not away):  # several: the query was written to a list of brokers before
        return max(homes, key=lambda candidate: candidate.rank(sink))
    if away:
        raise BrokerAway("a broker that may have published it does not answer", "; ".join(away))
    if known_from is not None and batch >= known_from:
        raise BrokerAway(
            f"no broker that nsqlookupd lists has the batches before batch {batch}",
            "the one that has them is away and nsqlookupd has forgotten it; start it, or name the brokers of this "
            "query in the option nsqd",
        )
    choice = [candidate for candidate in found if candidate.address in connected]
    if not choice:
        raise BrokerAway("nsqlookupd", "knows of no broker")
    return max(choice, key=lambda candidate: candidate.rank(sink))


def _candidate(address: str, answer: Any) -> _Candidate:
    if isinstance(answer, BrokerRefused) and answer.status == 404:
        raise LapwingError(f"{address}: a plain NSQ server cannot stage, mode=atleastonce writes to it") from answer
    if isinstance(answer, Exception):
        raise answer
    return _Candidate(address, answer["published"], bool(answer["staged"]))
