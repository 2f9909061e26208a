"""Our own conversations about headers: HPUB, HMPUB and frames of type 3, on both kernels and however the bytes fall."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replay import Replay, Wire

from daemons import Daemon, start_nsqd

VECTORS = (Path(__file__).parent.parent / "vectors" / "headers-vectors.json").read_text()
CASES: list[dict[str, Any]] = json.loads(VECTORS)
NOP = b"NOP\n"


class Bytewise(Wire):
    """A socket that sends one byte at a time."""

    def send(self, data: bytes) -> None:
        for at in range(len(data)):
            super().send(data[at : at + 1])


class WithNextCommand(Wire):
    """A socket that sends the next command behind each."""

    def send(self, data: bytes) -> None:
        super().send(data + NOP)


class Way(Replay):
    """A conversation over one kind of socket, with topics of its own."""

    def __init__(self, daemon: Daemon, kind: type[Wire], number: int) -> None:
        host, _, port = daemon.tcp.rpartition(":")
        super().__init__((host, int(port)), None)
        self.kind = kind
        self.topic = b"v%c" % (ord("a") + number)

    def step(self, step: dict[str, Any], where: str) -> None:
        name = step.get("conn", "a")
        if name not in self.wires:
            self.wires[name] = self.kind(self.tcp)
        super().step(step, where)

    def bytes_of(self, text: str) -> bytes:
        return super().bytes_of(text).replace(b" hv", b" h" + self.topic)


@pytest.fixture(scope="module", params=["", "1"], ids=["compiled", "pure"])
def nsqd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = start_nsqd(tmp_path_factory.mktemp("headers"), env={"LAPWING_PURE": request.param})
    yield daemon
    daemon.kill()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_conversation_about_headers(case: dict[str, Any], nsqd: Daemon) -> None:
    for number, kind in enumerate((Wire, Bytewise, WithNextCommand)):
        Way(nsqd, kind, number).play(case)

    assert nsqd.process.poll() is None
