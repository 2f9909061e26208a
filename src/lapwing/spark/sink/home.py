"""The broker that has the batches of a sink: one for the sink's whole life.

A broker knows which batches of a sink it has published. A batch that Spark does again must go to the broker that may
have it, whatever brokers have joined or left since, and however the options name them. So the broker that has published
a batch of the sink gets all later ones; a new sink gets one of the brokers by its name.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, patiently
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


def sink_home(
    access: BrokerAccess, sink: str, batch: int, *, known_from: int | None = None, accept_doubles: bool = False
) -> str:
    """Return the address of the broker for a batch of the sink.

    A broker that is away and may have published the batch is waited for; then raises `BrokerAway`. From batch
    `known_from` on, one of the brokers must have published a batch before, unless `accept_doubles` is true.
    """
    key = access, sink
    if key not in _homes:
        what = f"finding the broker that has the batches of {sink}"
        directory = Directory(access)
        least = None if known_from is None or batch < known_from else batch - 1
        found = patiently(what, lambda: _find(directory, access, sink, least, accept_doubles), access)
        if found.published < 0:
            return found.address
        if len(_homes) >= _MOST_HOMES:
            _homes.clear()
        _homes[key] = found.address
    return _homes[key]


def _find(
    directory: Directory, access: BrokerAccess, sink: str, least: int | None, accept_doubles: bool
) -> _Candidate:
    """Return the broker; `least` is the last batch that it has published if every batch was written to it."""
    everyone = directory.find(departed=True)
    connected = set(directory.find())
    answers = directory.ask_all(everyone, "/stage/status", {"sink": sink})
    found = [_candidate(address, answer) for address, answer in answers if not isinstance(answer, BrokerAway)]
    away = [str(answer) for _, answer in answers if isinstance(answer, BrokerAway)]
    homes = [candidate for candidate in found if candidate.published >= 0]
    surely = [candidate for candidate in homes if least is None or candidate.published >= least]
    if len(surely) == 1 or (homes and not away):  # several: the sink was moved
        return max(homes, key=lambda candidate: candidate.rank(sink))
    if away:
        left_out = "leave it out of nsqd" if access.nsqd else "POST /producer/forget?node=HOST:PORT at nsqlookupd"
        hint = f"for a broker that will not come back: {left_out}, and acceptDoubles=true"
        raise BrokerAway("a broker that may have published it does not answer", f"{'; '.join(away)}; {hint}")
    if least is not None and not accept_doubles:
        _refuse(access, least + 1)
    choice = [candidate for candidate in found if candidate.address in connected]
    if not choice:
        raise BrokerAway("nsqlookupd", "knows of no broker")
    return max(choice, key=lambda candidate: candidate.rank(sink))


def _refuse(access: BrokerAccess, batch: int) -> NoReturn:
    """Raise the error for a batch that may have been published at a broker that nobody names any more."""
    otherwise = "acceptDoubles=true continues without it, and publishes its last batch again if that was not finished"
    if access.nsqd:
        raise LapwingError(
            f"none of {', '.join(access.nsqd)} has a batch of this query before batch {batch}: add the broker that "
            f"has them to the option nsqd; {otherwise}"
        )
    raise BrokerAway(
        f"no broker that nsqlookupd lists has a batch of this query before batch {batch}",
        f"the one that has them is away and nsqlookupd has forgotten it; start it, or name it in the option nsqd; "
        f"{otherwise}",
    )


def _candidate(address: str, answer: Any) -> _Candidate:
    if isinstance(answer, BrokerRefused) and answer.status == 404:
        raise LapwingError(f"{address}: a plain NSQ server cannot stage, mode=atleastonce writes to it") from answer
    if isinstance(answer, Exception):
        raise answer
    return _Candidate(address, answer["published"], bool(answer["staged"]))
