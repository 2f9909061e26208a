"""What intakes take where bytes are received is what the parser and the session make of the same bytes."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from lapwing import kernel
from lapwing.errors import LapwingError, ProtocolError, WriteFailed
from lapwing.log.segments.attributes import Rows
from lapwing.sessions.nsq import limits_of
from lapwing.wire.nsq.connection import BrokerConnection, HangUp
from overriding import overriding
from play import Client, Stage

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="intakes are compiled")

LIMITS = {"max_msg_size": 60, "max_body_size": 300}


def pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB %b\n" % topic + len(body).to_bytes(4, "big", signed=True) + body


def dpub(topic: bytes, delay: bytes, body: bytes) -> bytes:
    return b"DPUB %b %b\n" % (topic, delay) + len(body).to_bytes(4, "big") + body


def mpub(topic: bytes, bodies: list[bytes], *, lie: int = 0, count: int = 0) -> bytes:
    inner = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    head = (4 + len(inner) + lie).to_bytes(4, "big") + (len(bodies) + count).to_bytes(4, "big")
    return b"MPUB %b\n" % topic + head + inner


def commands(chance: random.Random) -> list[bytes]:
    """Return commands of which nearly all are lawful publishes to topics that are there."""
    made = []
    for number in range(chance.randrange(1, 25)):
        topic = b"t%d" % chance.randrange(5)
        body = b"%d." % number + b"x" * chance.choice([0, 1, 10, 50])
        kind = chance.random()
        if kind < 0.6:
            made.append(pub(topic, body))
        elif kind < 0.75:
            made.append(dpub(topic, chance.choice([b"5", b"0", b"60000", b"007"]), body))
        elif kind < 0.85:
            made.append(mpub(topic, [body] * chance.randrange(1, 5)))
        elif kind < 0.9:
            made.append(b"NOP\n")
        else:
            odd = [
                pub(topic, b""), pub(topic, b"x" * 61), pub(topic + b" more", body), pub(topic + b"\r", body),
                pub(b"no topic", body), b"PUB %b\n\xff\xff\xff\xffx" % topic, b"GARBAGE\n", mpub(topic, []),
                mpub(topic, [body], lie=1), mpub(topic, [body], lie=-1), mpub(topic, [body], count=1),
                dpub(topic, b"", body), dpub(topic, b"x", body), dpub(topic, b"9" * 9, body), dpub(topic, b"-1", body),
                dpub(topic, b"5 6", body), dpub(topic, b"5", b""), dpub(topic, b"3600001", body), b"DPUB t1\n",
                pub(b"new%d" % number, body), mpub(topic, [b"x" * 61]), b"PUB\n", b"FIN 0123456789abcdef\n",
            ]  # fmt: skip
            made.append(chance.choice(odd))
    return made


class Timer:
    """The time of a client's last command."""

    last_command = 0


class Talk(Client):
    """A connection on a stage: bytes of it go to the intake first, if there is one, and the rest to the parser."""

    direct = True
    finishes = None

    def __init__(self, stage: Stage, intake: Any = None) -> None:
        super().__init__(stage)
        self.wire = BrokerConnection(limits_of(stage.options))
        self.intake, self.published, self.timer = intake, self.session.publish_counts, Timer()
        self.sent = b""
        self.receive(b"  V2")

    def receive(self, data: bytes) -> None:
        """Take bytes as a connection does in one round."""
        session = self.session
        if self.intake is not None and self.wire.at_rest and not session.doomed:
            taken = self.intake.offer(self, data)
            answers = self.intake.settle()
            for owner, answer in zip(answers[::2], answers[1::2], strict=True):
                owner.sent += answer
            grown, failed = self.stage.broker.round.news()  # type: ignore[union-attr]
            for topic in grown:
                topic.grew(self.stage.now)
            for error in failed:
                self.stage.broker.fail(error)
            for owner, word, error in self.intake.news()[1]:
                assert isinstance(error, LapwingError)
                owner.session.publish_failed(word, error)
            data = data[taken:]
        if data and not session.doomed:
            self.wire.receive(data)
            try:
                for command in self.wire.commands():
                    session.handle(command, now=self.stage.now)
            except ProtocolError as error:
                session.refuse(error)
            except HangUp:
                session.doomed = True
        self.stage.commit()
        self.sent += b"".join(session.replies.ready)
        session.replies.ready.clear()


def stage_with(path: Path, *, intake: bool) -> tuple[Stage, Any]:
    path.mkdir(exist_ok=True)
    stage = Stage(path, **LIMITS)
    for number in range(4):
        stage.broker.topic(f"t{number}")
    stage.broker.existing("t3").create_channel("c", now=stage.now)
    if not intake:
        return stage, None
    from lapwing.kernel._road import NsqIntake, Round

    stage.broker.round = Round(stage.broker.growth.followed)
    stage.broker.round.begin(stage.now, 0)
    limits = limits_of(stage.options)
    most = {"max_count": limits.max_count, "max_size": limits.max_message, "max_body": limits.max_body}
    return stage, NsqIntake(stage.broker.round, **most, max_defer=limits.max_req_timeout, rows=Rows, waits=False)


def state(stage: Stage) -> object:
    found = {}
    for name in stage.broker.topics:
        topic = stage.broker.existing(name)
        log = topic.log
        frames = b"".join(bytes(block) for _, _, block in log.blocks(log.first, log.end, 1 << 20)) if log.end else b""
        messages = [(identity, body) for _, _, identity, body in kernel.decode_messages(frames, 0, len(frames))[0]]
        extras = log.extras(log.first, log.end)
        depths = {channel.name: channel.depth for channel in topic.channels.values()}
        found[name] = log.next, log.end, messages, topic.message_count, topic.message_bytes, depths, extras
    return found


@pytest.mark.parametrize("seed", range(30))
def test_any_bytes_are_answered_and_stored_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    said = [commands(chance) for _ in range(4)]
    found = []
    for name in ("parser", "intake"):
        again = random.Random(seed)
        stage, intake = stage_with(tmp_path / name, intake=name == "intake")
        talks = [Talk(stage, intake) for _ in said]
        for talk, each in zip(talks, said, strict=True):
            stream = b"".join(each)
            cuts = sorted(again.sample(range(len(stream) + 1), min(5, len(stream)))) if again.random() < 0.6 else []
            for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                talk.receive(stream[start:stop])
        found.append((state(stage), [talk.sent for talk in talks], [talk.session.publish_counts for talk in talks]))
        stage.broker.close(now=stage.now)
        stage.open()
        assert {name: log[:3] for name, log in state(stage).items()} == {  # type: ignore[attr-defined]
            name: log[:3] for name, log in found[-1][0].items()  # type: ignore[attr-defined]
        }

    assert found[0] == found[1]


def test_a_log_that_cannot_be_written_fails_its_publishes_and_nothing_else(tmp_path: Path) -> None:
    stage, intake = stage_with(tmp_path, intake=True)
    first, second = Talk(stage, intake), Talk(stage, intake)
    for topic in (b"t0", b"t1"):
        first.receive(pub(topic, b"before"))
    ok, first.sent = first.sent[:10], b""
    broken = stage.broker.existing("t0").log
    kind = type(broken)

    def refuse() -> None:
        broken.forget()  # type: ignore[attr-defined]
        raise WriteFailed("00000.log", 17, OSError(28, "No space left on device"))

    broken.__class__ = overriding(broken, flush=refuse)
    broken._segments[-1].torn = True  # type: ignore[attr-defined]  # so that the write needs care
    assert intake.offer(first, pub(b"t1", b"one") + pub(b"t0", b"lost") + pub(b"t1", b"two"))
    assert intake.offer(second, pub(b"t1", b"three"))
    second.receive(b"")
    broken.__class__ = kind
    first.receive(b"")

    assert first.sent.startswith(ok)
    assert b"E_PUB_FAILED PUB failed 00000.log" in first.sent[10:]
    assert first.session.doomed
    assert second.sent == ok
    assert not second.session.doomed
    assert [stage.broker.existing(name).log.end for name in ("t0", "t1")] == [1, 4]
    assert stage.broker.existing("t0").message_count == 1
    third = Talk(stage, intake)
    third.receive(pub(b"t0", b"after"))
    assert third.sent == ok


def test_want_of_memory_leaves_nothing_half_taken(tmp_path: Path) -> None:
    memory: Any = pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")
    if sys.version_info >= (3, 12):
        pytest.skip("CPython 3.12 and later crash by themselves where an allocation fails")
    stage, intake = stage_with(tmp_path, intake=True)
    failed = 0
    for number in range(1, 60):
        unlucky, other = Talk(stage, intake), Talk(stage, intake)
        said = pub(b"t0", b"lost %d" % number) + pub(b"t1", b"lost") + dpub(b"t2", b"60000", b"lost")
        error: MemoryError | None = None
        memory.set_nomemory(number, number + 1)
        try:
            intake.offer(unlucky, said + mpub(b"t0", [b"lost"] * 3))
        except MemoryError as raised:  # its connection ends
            error = raised
        finally:
            memory.remove_mem_hooks()
        failed += error is not None
        other.receive(pub(b"t1", b"kept %d" % number) + pub(b"t2", b"at once %d" % number))

        assert other.sent == b"\0\0\0\6\0\0\0\0OK" * 2
        for name in ("t0", "t1", "t2"):
            topic = stage.broker.existing(name)
            count, size = topic.message_count, topic.message_bytes
            kept = state(stage)[name]  # type: ignore[index]
            assert (kept[0], kept[1], len(kept[2])) == (count, count, count)
            assert sum(len(body) for _, body in kept[2]) == size
            assert [int(identity, 16) & 0xFFFFFFFF for identity, _ in kept[2]] == list(range(count))
        assert all(body != b"lost %d" % number for _, body in state(stage)["t1"][2])  # type: ignore[index]
        bodies = [body for _, body in state(stage)["t2"][2]]  # type: ignore[index]
        deferred = {extra.sequence for extra in stage.broker.existing("t2").log.extras(0, len(bodies))}
        assert deferred == {place for place, body in enumerate(bodies) if body == b"lost"}

    assert failed > 5
