"""Random histories of one group, on our Redis door and on redis-server: the same replies, over restarts of ours too."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples

sys.path.insert(0, str(Path(__file__).parent.parent / "sessions"))  # for `redis_stage`

from redis_peer import RedisPeer, installed, plain, redis_server
from redis_stage import RedisClient, RedisStage

from play import MS

CONSUMERS = st.sampled_from(["a", "b", "c"])
NUMBER = st.integers(0, 14)  # of an entry, in the order in which they were added
COUNT = st.sampled_from(["", "COUNT 1", "COUNT 2", "COUNT 3"])


def line(text: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda found: text.format(*found))


STEPS = st.one_of(
    st.just("XADD k * f v"),
    st.just("XADD k * f v g w"),
    line("XADD k MAXLEN {} * f v", st.integers(0, 6)),
    line("XADD k 999999999999{}-* f v", st.integers(0, 3)),
    line("XADD k 999999999999{}-{} f v", st.integers(0, 3), st.integers(0, 20)),
    line("XSETID k 9999999999999-{}", st.sampled_from([99, 120])),
    line("XREADGROUP GROUP g {} {} STREAMS k >", CONSUMERS, COUNT),
    line("XREADGROUP GROUP g {} {} STREAMS k >", CONSUMERS, COUNT),
    line("XREADGROUP GROUP g {} {} NOACK STREAMS k >", CONSUMERS, COUNT),
    line("XREADGROUP GROUP g {} {} STREAMS k 0", CONSUMERS, COUNT),
    line("XREADGROUP GROUP g {} STREAMS k #{}", CONSUMERS, NUMBER),
    line("XACK k g #{} #{}", NUMBER, NUMBER),
    line("XDEL k #{} #{}", NUMBER, NUMBER),
    line("XTRIM k MAXLEN {}", st.integers(0, 6)),
    line("XTRIM k MINID #{}", NUMBER),
    line("XCLAIM k g {} 0 #{} #{}", CONSUMERS, NUMBER, NUMBER),
    line("XCLAIM k g {} 0 #{} #{} JUSTID", CONSUMERS, NUMBER, NUMBER),
    line("XCLAIM k g {} 0 #{} FORCE", CONSUMERS, NUMBER),
    line("XCLAIM k g {} 0 #{} RETRYCOUNT {}", CONSUMERS, NUMBER, st.integers(0, 9)),
    line("XAUTOCLAIM k g {} 0 #{} {}", CONSUMERS, NUMBER, COUNT),
    line("XAUTOCLAIM k g {} 0 0 {} JUSTID", CONSUMERS, COUNT),
    line("XGROUP SETID k g #{}", NUMBER),
    st.sampled_from(["XGROUP SETID k g 0", "XGROUP SETID k g $"]),
    line("XGROUP DELCONSUMER k g {}", CONSUMERS),
    line("XRANGE k #{} #{} {}", NUMBER, NUMBER, COUNT),
    line("XREVRANGE k #{} (#{} {}", NUMBER, NUMBER, COUNT),
    line("XREAD {} STREAMS k #{}", COUNT, NUMBER),
    st.sampled_from(["XLEN k", "XPENDING k g", "XINFO STREAM k", "XINFO GROUPS k", "RESTART", "KILL"]),
    st.sampled_from(["DEL k", "XGROUP DESTROY k g", "XGROUP CREATE k g $ MKSTREAM", "XGROUP CREATE k g 0"]),
)
SHOWN = ["XLEN k", "XRANGE k - +", "XPENDING k g"]


class Both:
    """Both servers, and the ids that each has given out."""

    def __init__(self, peer: RedisPeer) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lapwing-beside-"))
        self.stage = RedisStage(self.path, redis_trim_unread=True, max_bytes_per_file=4096)
        self.ours: RedisClient = self.stage.redis()
        self.peer = peer
        self.added: list[tuple[bytes, bytes]] = []

    def step(self, text: str) -> None:
        self.stage.now += 2 * MS
        if text in ("RESTART", "KILL"):
            self.stage.now += 50 * MS  # a busy channel is not saved more often
            self.stage.checkpoint(trim=True)
            (self.stage.restart if text == "RESTART" else self.stage.kill)()
            self.ours = self.stage.redis()
            return
        (mine,) = self.ours.send(self.words(text, 0)).replies()
        other = self.peer.ask(self.words(text, 1))
        if text.startswith("XADD") and isinstance(mine, bytes):
            self.added.append((mine, other))
        assert self.known(text, mine, 0) == self.known(text, other, 1), text

    def words(self, text: str, which: int) -> list[bytes]:
        return [self.word(word.encode(), which) for word in text.split()]

    def word(self, word: bytes, which: int) -> bytes:
        place, mark, number = word.partition(b"#")
        if not mark:
            return word
        known = int(number) < len(self.added)
        return place + (self.added[int(number)][which] if known else b"%d-1" % (9_000_000_000_000 + int(number)))

    def known(self, text: str, reply: Any, which: int) -> Any:
        names = {pair[which]: f"#{number}" for number, pair in enumerate(self.added)}
        found = plain(reply, names)
        if text == "XINFO GROUPS k" and isinstance(found, list):
            groups = [dict(zip(each[::2], each[1::2], strict=True)) for each in found]
            return [(each[b"name"], each[b"pending"], each[b"last-delivered-id"]) for each in groups]
        if text == "XINFO STREAM k" and isinstance(found, list):
            flat = dict(zip(found[::2], found[1::2], strict=True))
            keys = (b"length", b"last-generated-id", b"entries-added", b"groups", b"first-entry", b"last-entry")
            return [flat[key] for key in keys]
        return found

    def pending(self) -> None:
        """Owners and deliveries of all that is pending; idle times differ."""
        command = b"XPENDING k g - + 100".split()
        (mine,), other = self.ours.send(command).replies(), self.peer.ask(command)
        lines = []
        for which, reply in enumerate((mine, other)):
            found = self.known("", reply, which)
            shown = isinstance(found, list)
            lines.append([(each[0], each[1], each[3]) for each in found] if shown else found)
        assert lines[0] == lines[1]

    def close(self) -> None:
        self.stage.broker.close(now=self.stage.now)
        shutil.rmtree(self.path, ignore_errors=True)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPeer]:
    if not installed():
        pytest.skip("redis-server is not installed: there is nothing to compare with")
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=1, max_size=30))
def test_a_group_behaves_as_that_of_redis(peer: RedisPeer, steps: list[str]) -> None:
    peer.ask([b"FLUSHALL"])
    both = Both(peer)
    try:
        both.step("XGROUP CREATE k g $ MKSTREAM")
        for step in steps:
            both.step(step)
            both.pending()
        for step in SHOWN:
            both.step(step)
    finally:
        both.close()
