"""Two real nsqds that one nsqlookupd knows."""

from dataclasses import dataclass
from itertools import count
from typing import Any

from commanding import lapwing, lapwing_json

from daemons import Daemon, until

NUMBERS = count()


@dataclass
class Pair:
    lookupd: Daemon
    nodes: tuple[Daemon, Daemon]

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--lookupd-http-address", self.lookupd.http)

    def run(self, *words: str, code: int = 0) -> str:
        done = lapwing(*words, *self.flags, code=code)
        return done.stdout + done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return lapwing_json(*words, *self.flags, code=code)

    def topic(self, *bodies: str) -> str:
        """A new topic on both nodes, with a channel c; the messages are on the first."""
        name = f"t{next(NUMBERS)}"
        for node in self.nodes:
            lapwing("topic", "create", name, "--channel", "c", "--nsqd-http-address", node.http)
        if bodies:
            lapwing("pub", name, *bodies, daemon=self.nodes[0])
        until(lambda: self.names(name) == [node.http for node in self.nodes], what="the topic in discovery")
        return name

    def names(self, topic: str) -> list[str]:
        found = [each for each in self.json("topics") if each["topic"] == topic]
        return sorted(found[0]["nodes"], key=[node.http for node in self.nodes].index) if found else []

    def channel(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.json("channels", topic) if each["channel"] == "c")
        return found
