"""The logs that the brokers hold, asked from all of them."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerRefused, target, wait_for_any
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.offsets import HeldLog, Holdings, Offsets, each_log, merge

logger = logging.getLogger(__name__)

_MOST_NAMED: Final = 50  # topics of one request, whose head has a limit; of more a broker reports all it has


class ServerWithoutLog(LapwingError):
    """A server that does not report what its logs hold."""

    def __init__(self, address: str, what: str, error: BrokerRefused) -> None:
        plain = "; a plain NSQ server has no log, mode=subscribe reads it" if error.status == 404 else ""
        super().__init__(f"{what} at {address}: {str(error).removeprefix(address + ': ')}{plain}")


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of the brokers, and the brokers that did not answer."""

    holdings: dict[str, dict[int, HeldLog]]
    away: dict[str, str]  # by address: why
    sought: str  # the topics they were asked for, in words
    nodes: Mapping[int, str]  # the numbers of those who answered, and their addresses

    def complaint(self) -> str:
        """Return who is away, in one line."""
        return "; ".join(
            f"{self.sought} at {address}: {why.removeprefix(address + ': ')}"
            for address, why in sorted(self.away.items())
        )


def survey(options: SourceOptions, at: int | None = None, directory: Directory | None = None) -> Survey:
    """Ask every broker what it holds of the topics in question, and with `at` (ns) where that time begins.

    Raises `ServerWithoutLog` for a server that answers and does not know the question; asked again it would not either.
    """
    directory = directory or Directory(options.access)
    addresses = directory.find(options.topics, options.pattern, departed=True)
    away: dict[str, str] = {}
    parameters = {**_question(options), "times": "false"}
    if at is not None:
        parameters["at"] = at
    found: list[tuple[str, int, str, HeldLog]] = []
    nodes: dict[int, str] = {}

    def ask(addresses: Sequence[str], expected: Mapping[str, int]) -> None:
        """`expected` has the nodes that addresses were of; another node there is not one of this cluster."""
        for address, answer in directory.ask_all(addresses, "/log/offsets", parameters):
            if isinstance(answer, BrokerRefused):
                raise ServerWithoutLog(address, sought(options), answer) from answer
            if isinstance(answer, Exception):
                away[address] = str(answer)
                continue
            node = answer["node_id"]
            if node != expected.get(address, node):
                continue
            nodes[node] = address
            found.extend(
                (topic["topic"], node, address, _held(topic, options.channel))
                for topic in answer["topics"]
                if wanted(topic["topic"], options)
            )

    ask(addresses, {})
    if forgotten := directory.forgotten(nodes, addresses):
        ask(list(forgotten.values()), {address: node for node, address in forgotten.items()})
    directory.remember(nodes)
    holdings = merge(found)
    if options.archive is not None:
        from lapwing.spark.source.archived import add_archive  # after the brokers: see there

        holdings = add_archive(holdings, options.archive, lambda topic: wanted(topic, options), at)
    return Survey(holdings, away, sought(options), nodes)


def sought(options: SourceOptions) -> str:
    """Return the topics that the options name, in words."""
    if options.pattern is not None:
        return f"topics like {options.pattern}"
    return f"topic {', '.join(options.topics)}"


def wanted(topic: str, options: SourceOptions) -> bool:
    """Return whether the options name this topic; a pattern has to match all of the name."""
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return topic in options.topics


def _held(topic: dict[str, Any], channel: str | None) -> HeldLog:
    cursors = {entry["channel"]: entry["cursor"] for entry in topic["channels"]}
    return HeldLog(
        log_id=topic["log_id"],
        first=topic["first"],
        next=topic["next"],
        bytes=topic["bytes"],
        at=topic.get("at"),
        cursor=cursors.get(channel) if channel is not None else None,
    )


def wait_for_more(position: Offsets, holdings: Holdings, options: SourceOptions) -> None:
    """Return once a broker has more than `position` (or all it has, for logs that are new), or after `pollTimeout`."""
    after: dict[str, list[str]] = {}
    for topic, node, held in each_log(holdings):
        if not held.address:  # a log that only the archive has, which does not grow
            continue
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
