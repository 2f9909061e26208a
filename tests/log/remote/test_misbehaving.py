"""An object store that drops, repeats, refuses and cuts off: nothing appended is lost, and nothing is invented."""

import random
from collections.abc import Iterator

import pytest

from clusters import S3
from example_counts import examples
from lapwing import kernel
from lapwing.errors import Fenced, RemoteFailed
from lapwing.log.remote.engines import open_engine
from lapwing.log.remote.image import Image
from lapwing.log.remote.record import LogBegun, Messages, Record, Stored
from lapwing.log.remote.remote_log import RemoteLog
from misbehaving import FATES, Proxy

from .stage import BEGUN, NODE, messages


@pytest.fixture
def proxy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    proxy = Proxy(s3.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.stop()


class Contents(Image):
    """An image that keeps the bodies of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    def _begin(self, part: LogBegun) -> None:
        self.bodies = []

    def _add(self, part: Messages) -> None:
        found, _ = kernel.decode_messages(part.frames, 0, len(part.frames))
        self.bodies += [body for _, _, _, body in found]


class Process:
    """A process that owns the log for some time."""

    def __init__(self, url: str, proxy: Proxy, chance: random.Random, name: str) -> None:
        self.proxy, self.chance = proxy, chance
        self.log = RemoteLog(open_engine(url), owner=name)
        self.bodies: list[bytes] = []
        self.stored: list[Stored] = []

    def perhaps(self) -> None:
        """Have some of the next requests misbehave."""
        self.proxy.plan = [self.chance.choice([*FATES, ""]) for _ in range(self.chance.choice([0, 1, 1, 2, 4]))]

    def start(self) -> None:
        while not self.log.epoch:
            self.perhaps()
            try:
                self.log.claim(NODE, now=1, take_over=True)
            except RemoteFailed:
                continue
        while True:
            self.perhaps()
            contents = Contents()
            try:
                contents.load(self.log)
                break
            except RemoteFailed:
                continue
        self.bodies, self.stored = contents.bodies, contents.stored.get("orders", [])
        self.begun = "orders" in contents.topics

    def settle(self, record: Record) -> None:
        """Append a record, however often it takes. Raises `Fenced`."""
        while True:
            self.perhaps()
            try:
                self.log.append(record)
                return
            except RemoteFailed:
                continue

    def append(self, body: bytes) -> int:
        place = len(self.bodies)
        part = messages(place, [body])
        self.settle(self.log.record([part] if self.begun else [BEGUN, part], now=2))
        self.begun = True
        self.bodies.append(body)
        return place

    def checkpoint(self) -> None:
        begin = self.stored[-1].end if self.stored else 0
        if begin == len(self.bodies):
            return
        self.perhaps()
        try:
            stored = [*self.stored, self.log.store([messages(begin, self.bodies[begin:])], now=3)]
            self.log.make_checkpoint([BEGUN, *stored], now=3)
            self.stored = stored
        except RemoteFailed:
            if self.log.unsettled is not None:
                self.settle(self.log.unsettled)


@pytest.mark.parametrize("seed", range(examples(3, 60)))
def test_nothing_is_lost_or_invented(s3: S3, proxy: Proxy, seed: int) -> None:
    chance = random.Random(seed)
    s3.make_bucket(f"misbehaving{seed}")
    url = f"s3://misbehaving{seed}/x"
    acknowledged: dict[int, bytes] = {}
    sent: set[tuple[int, bytes]] = set()
    processes: list[Process] = []
    number = 0
    for _ in range(4):
        process = Process(url, proxy, chance, f"process {len(processes)}")
        process.start()
        processes.append(process)
        for _ in range(chance.randrange(2, 8)):
            acting = chance.choice([process, process, process, chance.choice(processes)])
            if not acting.log.epoch:
                continue
            number += 1
            body = b"%d" % number
            sent.add((len(acting.bodies), body))
            try:
                if chance.random() < 0.2:
                    acting.checkpoint()
                else:
                    place = acting.append(body)
                    assert acknowledged.setdefault(place, body) == body
            except Fenced:
                assert acting is not process

    proxy.plan = []
    contents = Contents()
    contents.load(RemoteLog(open_engine(url), owner="reader"))
    found = dict(enumerate(contents.bodies))
    assert {place: found.get(place) for place in acknowledged} == acknowledged
    assert set(found.items()) <= sent
    assert acknowledged


@pytest.mark.parametrize("fate", FATES)
def test_each_misbehaviour_of_a_put_is_settled(s3: S3, proxy: Proxy, fate: str) -> None:
    s3.make_bucket(f"fate-{fate.replace(' ', '-')}")
    process = Process(f"s3://fate-{fate.replace(' ', '-')}/x", proxy, random.Random(0), "a")
    process.log.claim(NODE, now=1)
    record = process.log.record([BEGUN, messages(0, [b"a"])], now=2)
    proxy.plan = [fate] * 2  # obstore asks again by itself, once

    for _ in range(3):
        try:
            process.log.append(record)
            break
        except RemoteFailed:
            continue
    proxy.plan = []

    assert f"{fate} PUT" in proxy.met
    contents = Contents()
    contents.load(process.log)
    assert contents.bodies == [b"a"]
    assert [each.index for each in process.log.read(1)] == [1, 2]
