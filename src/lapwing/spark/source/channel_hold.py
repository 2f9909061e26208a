"""The hold of a query on its channel: of two queries that moved one channel, each would release the other's messages.

A broker remembers for a few seconds which reader moves a channel. A thread renews that while the query lives, also in
the midst of a long batch.
"""

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Set
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import ask_all
from lapwing.spark.brokers.http import PLANNING_SECONDS, BrokerAway, BrokerRefused, Parameters, call
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.offsets import each_log
from lapwing.spark.source.survey import Survey

logger = logging.getLogger(__name__)

QUERY: Final = "#query"  # key of the offsets under which a query keeps its name: no topic is called so

_RENEW_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 8.0  # longer than a broker remembers a reader that is gone
_LOOK_SECONDS: Final = 0.5
_MOST_NAMED: Final = 50  # topics of one request


class ChannelInUse(LapwingError):
    """Another query moves the channel."""

    def __init__(self, channel: str, other: Mapping[str, Any]) -> None:
        super().__init__(
            f"topic {other['topic']}: the channel {channel} is moved by another query (last sign of life "
            f"{other['seen_ms_ago']} ms ago, its name is {other['reader']}). Brokers would delete messages that one of "
            "the two has not read: give this query a channel of its own, or stop the other"
        )


class ChannelHold:
    """The hold of one query. Its name stays the same over restarts, so that a restart need not wait."""

    def __init__(self, options: SourceOptions, start: Mapping[str, Any] | None = None) -> None:
        """`start` are the offsets of the checkpoint, which have the query's name; None for a new query."""
        self.name = str((start or {}).get(QUERY) or uuid.uuid4().hex)
        self._options = options
        self._held: dict[str, frozenset[str]] = {}  # topics by address
        self._lacking: set[str] = set()  # addresses of brokers that remember no readers
        self._thread: threading.Thread | None = None
        self._warned = False

    def take(self, found: Survey) -> None:
        """Hold the channel on every broker that has topics of the query; raises `ChannelInUse`.

        A reader that is gone is remembered for a few seconds: that long it is waited for.
        """
        wanted: dict[str, set[str]] = {}
        for topic, _, held in each_log(found.holdings):
            if held.address:  # else only the archive has it
                wanted.setdefault(held.address, set()).add(topic)
        news = {address: topics for address, topics in wanted.items() if self._held.get(address) != frozenset(topics)}
        deadline = time.monotonic() + _WAIT_SECONDS
        while (other := self._claim(news)) is not None:
            if time.monotonic() > deadline:
                raise ChannelInUse(self._options.channel or "", other)
            time.sleep(_LOOK_SECONDS)
        self._held |= {address: frozenset(topics) for address, topics in news.items()}
        if self._thread is None and self._held:
            # the thread ends with the query's source
            self._thread = threading.Thread(target=_keep, args=(weakref.ref(self),), name="channel hold", daemon=True)
            self._thread.start()

    def _claim(self, wanted: Mapping[str, Set[str]]) -> Mapping[str, Any] | None:
        """Ask for the channel; return the first topic that another reader has."""

        def others(address: str) -> list[Mapping[str, Any]]:
            named = sorted(wanted[address])
            groups = [named[start : start + _MOST_NAMED] for start in range(0, len(named), _MOST_NAMED)]
            return [other for group in groups for other in self._ask(address, group)]

        for _, found in ask_all(list(wanted), others):  # at the same time, as each may be silent for a while
            if not isinstance(found, Exception) and found:
                return found[0]
        return None

    def _ask(self, address: str, topics: list[str]) -> list[Mapping[str, Any]]:
        if address in self._lacking:
            return []
        parameters: Parameters = {"channel": self._options.channel or "", "reader": self.name, "topic": topics}
        try:
            access = self._options.access
            answer = call(address, access, "POST", "/channel/reader", parameters, seconds=PLANNING_SECONDS)
        except BrokerAway as error:
            logger.debug("%s does not know that the channel is in use: %s", address, error)
            return []
        except BrokerRefused:
            self._lacking.add(address)
            return []
        others: list[Mapping[str, Any]] = answer["others"]
        return others

    def renew(self) -> None:
        """Show a sign of life; warn once when another query has taken the channel meanwhile."""
        other = self._claim(self._held)
        if other is not None and not self._warned:
            logger.warning("%s", ChannelInUse(self._options.channel or "", other))
            self._warned = True


def _keep(reference: "weakref.ref[ChannelHold]") -> None:
    while True:
        time.sleep(_RENEW_SECONDS)
        hold = reference()
        if hold is None:
            return
        hold.renew()
        del hold
