"""Which brokers there are and what they hold, asked from all of them."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from lapwing.errors import LapwingError
from lapwing.spark.http import BrokerAway, BrokerRefused, call, target, wait_for_any
from lapwing.spark.offsets import Held, Holdings, Offsets, merge
from lapwing.spark.options import Access, SourceOptions

logger = logging.getLogger(__name__)

_MOST_NAMED: Final = 50  # topics of one request, whose head has a limit; of more a broker reports all it has

Answer = TypeVar("Answer")


class NoLog(LapwingError):
    """A server that does not say what its logs hold."""

    def __init__(self, address: str, what: str, error: BrokerRefused) -> None:
        plain = "; a plain NSQ server has no log, mode=subscribe reads it" if error.status == 404 else ""
        super().__init__(f"{what} at {address}: {str(error).removeprefix(address + ': ')}{plain}")


@dataclass(frozen=True, slots=True)
class Survey:
    """What the brokers said, and who of them did not answer."""

    holdings: dict[str, dict[int, Held]]
    away: dict[str, str]  # by address: why
    sought: str  # the topics they were asked for, in words
    nodes: frozenset[int]  # the numbers of those who answered

    def complaint(self) -> str:
        """Who is away, in one line."""
        return "; ".join(
            f"{self.sought} at {address}: {why.removeprefix(address + ': ')}"
            for address, why in sorted(self.away.items())
        )


def survey(options: SourceOptions, at: int | None = None) -> Survey:
    """Ask every broker what it holds of the topics in question, and with `at` (ns) where that time begins.

    Raises `NoLog` for a server that answers and does not know the question; being asked again it would not either.
    """
    addresses = discover(options.access, options.topics, options.pattern)
    away: dict[str, str] = {}
    parameters = {**_question(options), "times": "false"}
    if at is not None:
        parameters["at"] = at
    answers = ask_all(addresses, lambda address: call(address, options.access, "GET", "/log/offsets", parameters))
    found: list[tuple[str, int, str, Held]] = []
    nodes: set[int] = set()
    for address, answer in answers:
        if isinstance(answer, BrokerRefused):
            raise NoLog(address, sought(options), answer) from answer
        if isinstance(answer, Exception):
            away[address] = str(answer)
            continue
        nodes.add(answer["node_id"])
        found += [
            (topic["topic"], answer["node_id"], address, _held(topic, options.channel))
            for topic in answer["topics"]
            if wanted(topic["topic"], options)
        ]
    return Survey(merge(found), away, sought(options), frozenset(nodes))


def sought(options: SourceOptions) -> str:
    """The topics that the options speak of, in words."""
    if options.pattern is not None:
        return f"topics like {options.pattern}"
    return f"topic {', '.join(options.topics)}"


def wanted(topic: str, options: SourceOptions) -> bool:
    """Whether the options speak of this topic; a pattern has to match all of the name."""
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return topic in options.topics


def _held(topic: dict[str, Any], channel: str | None) -> Held:
    cursors = {entry["channel"]: entry["cursor"] for entry in topic["channels"]}
    return Held(
        log_id=topic["log_id"],
        first=topic["first"],
        next=topic["next"],
        bytes=topic["bytes"],
        at=topic.get("at"),
        cursor=cursors.get(channel) if channel is not None else None,
    )


def discover(access: Access, topics: Sequence[str] = (), pattern: str | None = None) -> list[str]:
    """HTTP addresses of the brokers: those that were named, or those that nsqlookupd knows to have one of the topics.

    With neither topics nor a pattern: all that nsqlookupd knows. Raises `BrokerAway` when no nsqlookupd answers; one
    that does not answer while others do is only logged, as their answers are added up.
    """
    if access.nsqd:
        return list(access.nsqd)
    found: dict[str, None] = {}
    failures: list[str] = []
    plain = replace(access, secret=None)  # the secret is for brokers
    for _, answer in ask_all(access.lookupd, lambda address: call(address, plain, "GET", "/nodes")):
        if isinstance(answer, Exception):
            failures.append(str(answer))
            continue
        for producer in answer["producers"]:
            if _has(producer, topics, pattern):
                found[f"{producer['broadcast_address']}:{producer['http_port']}"] = None
    if len(failures) == len(access.lookupd):
        raise BrokerAway("nsqlookupd", "; ".join(failures))
    for failure in failures:
        logger.warning("nsqlookupd %s", failure)
    return list(found)


def _has(producer: dict[str, Any], topics: Sequence[str], pattern: str | None) -> bool:
    alive = [topic for topic, dead in zip(producer["topics"], producer["tombstones"], strict=True) if not dead]
    if pattern is not None:
        return any(re.fullmatch(pattern, topic) for topic in alive)
    return not topics or any(topic in topics for topic in alive)


def ask_all(addresses: Sequence[str], ask: Callable[[str], Answer]) -> list[tuple[str, Answer | Exception]]:
    """Ask every address at the same time; what it answered, or the error."""

    def once(address: str) -> tuple[str, Answer | Exception]:
        try:
            return address, ask(address)
        except (BrokerAway, BrokerRefused) as error:
            return address, error

    if len(addresses) < 2:
        return [once(address) for address in addresses]
    from concurrent.futures import ThreadPoolExecutor  # one broker is the common case, and does not need it

    with ThreadPoolExecutor(min(len(addresses), 16)) as pool:
        return list(pool.map(once, addresses))


def wait_for_more(position: Offsets, holdings: Holdings, options: SourceOptions) -> None:
    """Return once a broker has more than `position` (or all it has, for logs that are new), or after `pollTimeout`."""
    after: dict[str, list[str]] = {}
    for topic, nodes in holdings.items():
        for node, held in nodes.items():
            known = position.get(topic, {}).get(node)
            reached = held.next if known is None or known.log_id != held.log_id else max(known.sequence, held.next)
            after.setdefault(held.address, []).append(f"{topic}:{reached}")
    seconds = options.poll_seconds
    common = _question(options) | {"times": "false", "wait_ms": int(seconds * 1000)}
    questions = {
        address: target("/log/offsets", {**common, "after": ",".join(entries)}) for address, entries in after.items()
    }
    wait_for_any(questions, options.access, seconds)


def _question(options: SourceOptions) -> dict[str, str | int | list[str]]:
    """Return the parameters that name what is asked for: as much as possible, as permissions go by names."""
    parameters: dict[str, str | int | list[str]] = {}
    if len(options.topics) <= _MOST_NAMED:
        parameters["topic"] = list(options.topics)
    if options.access.secret and options.channel:
        parameters["channel"] = options.channel
    return parameters
