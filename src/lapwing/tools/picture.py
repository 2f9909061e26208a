"""The cluster as it is at one moment, and what flowed between two: for the commands that show or judge it."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lapwing import names
from lapwing.client import cluster
from lapwing.client.cluster import Json, Node
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.errors import LapwingError

_AGE: Final = re.compile(r'^lapwing_channel_oldest_message_age_seconds\{([^}]*)\} (\S+)', re.M)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class NobodyAnswered(LapwingError):
    """None of the daemons could be asked."""

    def __init__(self, errors: Sequence[str]) -> None:
        advice = "is it running? `lapwing up` starts everything; --nsqd-http-address names another"
        super().__init__("\n  ".join(["nobody answered:", *(errors or ["nsqlookupd knows no nsqd"]), advice]))


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages a second, in and out."""

    arriving: float
    leaving: float


@dataclass(slots=True)
class Picture:
    """All daemons' answers as one."""

    at: float  # monotonic, s
    nodes: list[Node] = field(default_factory=list)  # that answered
    topics: dict[str, Json] = field(default_factory=dict)  # nsqadmin's topic objects, by name
    health: dict[str, str] = field(default_factory=dict)  # by node: OK, or what is wrong
    pipelines: list[Json] = field(default_factory=list)
    ages: dict[tuple[str, str], float] = field(default_factory=dict)  # oldest unfinished message, s
    errors: list[str] = field(default_factory=list)  # who could not be asked, in words

    def users(self) -> "Picture":
        """The same without the topics that lapwing keeps for itself."""
        return replace(self, topics={name: topic for name, topic in self.topics.items() if not names.own(name)})

    def channels(self, topic: str = "") -> list[Json]:
        """Every channel, of one topic or of all, by name."""
        return [channel for name, found in self.topics.items() if topic in ("", name) for channel in found["channels"]]


class Cluster:
    """The daemons to ask: nsqlookupds for whom they know, or nsqds by address."""

    def __init__(self, http: DaemonHttp, *, nsqds: Sequence[str] = (), lookupds: Sequence[str] = ()) -> None:
        self.http = http
        self._nsqds = list(nsqds)
        self._lookupds = list(lookupds)

    async def nodes(self) -> tuple[list[Node], list[str]]:
        """Every nsqd, and who could not be asked."""
        if self._lookupds:
            asked = await self.http.ask_all(self._lookupds, lambda address: self.http.get(address, "/nodes"))
            return cluster.nodes_of_lookup(asked.answers), asked.errors
        found = await self.http.ask_all(self._nsqds, lambda address: self.http.get(address, "/info"))
        return [cluster.node_of_info(address, info) for address, info in found.answers.items()], found.errors

    async def some_nodes(self, say: Callable[[str], None]) -> list[Node]:
        """Every nsqd; those who could not be asked are told of. Raises `NobodyAnswered` when there is none."""
        nodes, errors = await self.nodes()
        if not nodes:
            raise NobodyAnswered(errors)
        for error in errors:
            say(error)
        return nodes

    async def look_twice(self, *, apart: float, ages: bool = False) -> tuple[Picture | None, Picture]:
        """A picture, and one of `apart` seconds before unless that is 0. Raises `NobodyAnswered`."""
        before = None
        if apart:
            before = await self.look()
            await asyncio.sleep(apart)
        after = await self.look(ages=ages)
        if not after.nodes:
            raise NobodyAnswered(after.errors)
        return before, after

    async def look(self, *, clients: bool = False, ages: bool = False, pipelines: bool = False) -> Picture:
        """One picture; ages and pipelines cost a further question to each nsqd."""
        nodes, errors = await self.nodes()
        by_contact = {node.contact: node for node in nodes}
        parameters = {"format": "json", "include_clients": "true" if clients else "false", "include_mem": "false"}
        stats = await self.http.ask_all(
            by_contact, lambda address: self.http.get(address, "/stats", parameters)
        )
        picture = Picture(time.monotonic(), errors=errors + stats.errors)
        picture.nodes = [by_contact[address] for address in stats.answers]
        picture.health = {by_contact[address].name: str(said.get("health", "OK"))
                          for address, said in stats.answers.items()}
        pairs = [(by_contact[address], answer) for address, answer in stats.answers.items()]
        picture.topics = cluster.topics_of_stats(pairs, now=time.time())
        await asyncio.gather(*(self._more(picture, address, ages, pipelines) for address in stats.answers))
        return picture

    async def _more(self, picture: Picture, address: str, ages: bool, pipelines: bool) -> None:
        """What only a lapwing nsqd can tell; another one's silence is no error."""
        try:
            if ages:
                for key, age in ages_in(await self.http.text(address, "/metrics")):
                    picture.ages[key] = max(age, picture.ages.get(key, 0.0))
            if pipelines:
                said = await self.http.get(address, "/pipelines")
                picture.pipelines += said.get("pipelines") or []
        except CallFailed as error:
            if error.status is None:
                picture.errors.append(str(error))


def ages_in(metrics: str) -> Iterable[tuple[tuple[str, str], float]]:
    """(topic, channel) and the age in seconds of its oldest unfinished message, out of Prometheus text."""
    for labels, value in _AGE.findall(metrics):
        named = dict(_LABEL.findall(labels))
        yield (named.get("topic", ""), named.get("channel", "")), float(value)


def finished(channel: Json) -> int:
    """How many messages a channel has done with."""
    waiting = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return max(0, int(channel["message_count"]) - int(waiting))


def flows(before: Picture | None, after: Picture) -> dict[tuple[str, str], Flow]:
    """Rates by (topic, channel) between two pictures, a topic's own under channel "": nothing out of one alone."""
    found: dict[tuple[str, str], Flow] = {}
    if before is None or after.at <= before.at:
        return found
    seconds = after.at - before.at
    for name, topic in after.topics.items():
        known = before.topics.get(name)
        leaving = 0.0
        for channel in topic["channels"]:
            past = _channel(known, channel["channel_name"])
            if past is not None:
                flow = Flow(_rate(past["message_count"], channel["message_count"], seconds),
                            _rate(finished(past), finished(channel), seconds))
                leaving += flow.leaving
                found[name, channel["channel_name"]] = flow
        if known is not None:
            found[name, ""] = Flow(_rate(known["message_count"], topic["message_count"], seconds), leaving)
    return found


def _channel(topic: Json | None, name: str) -> Json | None:
    for channel in (topic or {}).get("channels") or ():
        if channel["channel_name"] == name:
            return dict(channel)
    return None


def _rate(before: Any, after: Any, seconds: float) -> float:
    # an nsqd that restarted counts from 0: the rate is then unknown, not negative
    return max(0.0, (float(after) - float(before)) / seconds)
