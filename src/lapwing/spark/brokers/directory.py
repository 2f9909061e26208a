"""The brokers of a query: named in the options, or found through nsqlookupd."""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, Parameters, call, target
from lapwing.spark.brokers.inquiry import Inquiry
from lapwing.spark.options import BrokerAccess

logger = logging.getLogger(__name__)

REMEMBERS_MS: Final = 600_000  # nsqlookupd that runs for so long knows every broker that left lately

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """One broker that nsqlookupd knows."""

    address: str  # of its HTTP API
    topics: frozenset[str]
    connected: bool  # to nsqlookupd; False: it left or is silent, and its messages may be out of reach


class Directory:
    """The addresses of the brokers.

    A broker that nsqlookupd has listed once is not forgotten: nsqlookupd may be away, or have been restarted.
    """

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self._plain: set[str] = set()  # nsqlookupds without /producers: NSQ's own
        self._known: list[KnownBroker] | None = None
        self._silent: frozenset[str] = frozenset()  # nsqlookupds that did not answer last time
        self._inquiry = Inquiry()
        self.remembered: dict[int, str] = {}  # the addresses of nodes that were read, if nsqlookupd has named them
        self.remembers_ms = 0  # for how long nsqlookupd has remembered brokers that left

    def remember(self, brokers: Mapping[int, str]) -> None:
        """Take in the addresses of nodes that are read: nsqlookupd may forget them."""
        if self._access.lookupd:
            self.remembered |= brokers

    def forgotten(self, found: Collection[int], asked: Collection[str]) -> dict[int, str]:
        """Return nodes that were read before and are not among those found, where their addresses were not asked."""
        known = self.remembered.items()
        return {node: address for node, address in known if node not in found and address not in asked}

    @property
    def remembers(self) -> bool:
        """Whether an nsqlookupd remembers brokers that leave; NSQ's own does not."""
        return not self._plain.issuperset(self._access.lookupd)

    def find(
        self, topics: Sequence[str] = (), pattern: str | None = None, *, departed: bool = False
    ) -> list[str]:
        """Return the HTTP addresses of brokers that have one of the topics; with neither topics nor pattern, of all.

        With `departed` also those that have left nsqlookupd with such a topic. Raises `BrokerAway` when no nsqlookupd
        answers and none has answered before.
        """
        if self._access.nsqd:
            return list(self._access.nsqd)
        found = self._look()
        return [
            broker.address
            for broker in found
            if (broker.connected or departed) and _has(broker.topics, topics, pattern, any_topic=broker.connected)
        ]

    def ask_all(self, addresses: Sequence[str], path: str, parameters: Parameters) -> list[tuple[str, Any]]:
        """Return the answer of each broker, or the error; one that is silent is waited for 2 s and then counts as away.

        It is asked on in the background, and takes no time of later calls until it answers again.
        """
        access = self._access
        return self._inquiry.ask_all(
            addresses, target(path, parameters), lambda address: call(address, access, "GET", path, parameters)
        )

    def _look(self) -> list[KnownBroker]:
        plain = replace(self._access, secret=None)  # the secret is for brokers
        known_plain = self._plain
        answers = self._inquiry.ask_all(
            self._access.lookupd, "producers", lambda address: _listing(address, plain, known_plain)
        )
        failures = {address: str(answer) for address, answer in answers if isinstance(answer, Exception)}
        if len(failures) == len(answers) and self._known is None:
            raise BrokerAway("nsqlookupd", "; ".join(failures.values()))
        self._report(failures, everyone=len(failures) == len(answers))
        if len(failures) < len(answers):
            listings = [answer for _, answer in answers if not isinstance(answer, Exception)]
            self.remembers_ms = max(remembers for _, remembers in listings)
            # a broker that is not listed any more may still be there: nsqlookupd was restarted, or lost it
            before = [replace(broker, connected=False) for broker in self._known or ()]
            self._known = _union([*(broker for brokers, _ in listings for broker in brokers), *before])
        return self._known or []

    def _report(self, failures: dict[str, str], *, everyone: bool) -> None:
        """Log which nsqlookupd is away or back, when that changes."""
        for address in failures.keys() - self._silent:
            goes_on = "; the brokers that are known are read" if everyone else ""
            logger.warning("nsqlookupd %s%s", failures[address], goes_on)
        for address in self._silent - failures.keys():
            logger.warning("nsqlookupd %s is back", address)
        self._silent = frozenset(failures)


def _listing(address: str, access: BrokerAccess, plain: set[str]) -> tuple[list[KnownBroker], int]:
    """Return the brokers that one nsqlookupd knows, and for how long (ms) it has remembered those that left.

    NSQ's own nsqlookupd has no such list; its address is added to `plain`.
    """
    if address not in plain:
        try:
            answer = call(address, access, "GET", "/producers")
            return _from_producers(answer), int(answer.get("started_ms_ago", 0))
        except BrokerRefused as error:
            if error.status != 404:
                raise
            plain.add(address)
    answer = call(address, access, "GET", "/nodes")
    return [
        KnownBroker(_address(each), _alive(each["topics"], each["tombstones"]), connected=True)
        for each in answer["producers"]
    ], 0


def _from_producers(answer: dict[str, Any]) -> list[KnownBroker]:
    found = [
        KnownBroker(_address(each), frozenset(each["topics"]) - frozenset(each["tombstoned"]), each["active"])
        for each in answer["producers"]
    ]
    return found + [
        KnownBroker(_address(each), frozenset(each["topics"]), connected=False) for each in answer.get("departed", ())
    ]


def _union(brokers: Sequence[KnownBroker]) -> list[KnownBroker]:
    """Return each broker once: connected if any nsqlookupd reports so, with the topics that those name."""
    found: dict[str, KnownBroker] = {}
    for broker in sorted(brokers, key=lambda broker: not broker.connected):
        known = found.setdefault(broker.address, broker)
        if known.connected == broker.connected and known.topics != broker.topics:
            found[broker.address] = replace(known, topics=known.topics | broker.topics)
    return list(found.values())


def _address(producer: dict[str, Any]) -> str:
    return f"{producer['broadcast_address']}:{producer['http_port']}"


def _alive(topics: Sequence[str], tombstones: Sequence[bool]) -> frozenset[str]:
    return frozenset(topic for topic, dead in zip(topics, tombstones, strict=True) if not dead)


def _has(held: frozenset[str], topics: Sequence[str], pattern: str | None, *, any_topic: bool) -> bool:
    if pattern is not None:
        return any(re.fullmatch(pattern, topic) for topic in held)
    return any(topic in held for topic in topics) if topics else any_topic or bool(held)


def ask_all(addresses: Sequence[str], ask: Callable[[str], Answer]) -> list[tuple[str, Answer | Exception]]:
    """Ask every address at the same time; return its answer, or the error."""

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
