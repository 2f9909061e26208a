"""A turn does so much and no more, and an error of one topic or channel is its own."""

from pathlib import Path

import pytest

from failing import configure
from lapwing.broker.channel.channel import Channel
from lapwing.broker.failures.dead_letter_mover import DeadLetterMover
from lapwing.broker.topic.topic import Topic
from lapwing.wire.nsq.commands import Pub, Rdy
from play import SECOND, Stage, numbered

MANY = 3_000  # messages
AT_ONCE = 500  # that one turn moves at most


def letters_by_turn(stage: Stage) -> list[int]:
    """End turns until nothing is left to do; how many letters there were after each."""
    found = []
    while stage.broker.has_work:
        stage.broker.commit(stage.now)
        dead = stage.broker.find("t.c.dead")
        found.append(dead.message_count if dead is not None else 0)
    return found


def test_what_a_channel_has_too_much_is_given_up_in_several_turns(stage: Stage) -> None:
    stage.consumer(ready=0)
    stage.client().publish(*numbered(MANY))
    stage.broker.settings.change_channel(stage.channel(), {"max_depth": 1, "overflow": "dead"}, now=stage.now)
    found = letters_by_turn(stage)

    assert found[-1] == MANY - 1
    assert all(after - before <= AT_ONCE for before, after in zip([0, *found], found, strict=False))
    assert stage.channel().depth == 1


@pytest.mark.parametrize("requeued", [False, True])
def test_messages_that_expire_are_given_up_in_several_turns(stage: Stage, requeued: bool) -> None:
    consumer = stage.consumer(ready=MANY if requeued else 0)
    stage.client().publish(*numbered(MANY))
    if requeued:
        consumer.leave()
    configure(stage, message_ttl="1s", expired_to_dead=True)
    stage.pass_time(2 * SECOND)
    second = stage.consumer(ready=0)
    second.session.handle(Rdy(200), now=stage.now)
    found = letters_by_turn(stage)

    assert found[-1] == MANY
    assert all(after - before <= AT_ONCE for before, after in zip([0, *found], found, strict=False))
    assert second.received() == []


def test_channels_take_turns_with_what_they_give_up(stage: Stage) -> None:
    names = ("a", "b", "c", "d")
    for name in names:
        stage.consumer(name, ready=0)
    stage.client().publish(*numbered(MANY))
    for name in names:
        change = {"max_depth": 1, "overflow": "dead"}
        stage.broker.settings.change_channel(stage.channel(name), change, now=stage.now)
    for _ in range(2 * len(names)):
        stage.broker.commit(stage.now)
    dead = [stage.broker.existing(f"t.{name}.dead") for name in names]
    moved = [topic.message_count for topic in dead]
    letters_by_turn(stage)

    assert min(moved) >= AT_ONCE
    assert [topic.message_count for topic in dead] == [MANY - 1] * len(names)


def test_messages_that_are_finished_while_they_wait_to_be_moved_are_not_copied(stage: Stage) -> None:
    stage.consumer(ready=0)
    stage.client().publish(*numbered(MANY))
    stage.broker.settings.change_channel(stage.channel(), {"max_depth": 1, "overflow": "dead"}, now=stage.now)
    stage.broker.commit(stage.now)
    stage.broker.empty_channel("t", "c", now=stage.now)

    assert letters_by_turn(stage)[-1] == AT_ONCE
    assert stage.channel().in_flight_count == 0


def test_an_error_in_one_topic_strands_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    for name in ("a", "b"):
        stage.broker.topic(name)
    log = type(stage.broker.existing("a").log)
    flush = log.flush

    def failing(self: object) -> None:
        if self is stage.broker.existing("a").log:
            raise MemoryError
        flush(self)

    first, second = stage.client(), stage.client()
    with monkeypatch.context() as patch:
        patch.setattr(log, "flush", failing)
        first.session.handle(Pub("a", b"m"), now=stage.now)
        second.session.handle(Pub("b", b"m"), now=stage.now)
        stage.commit()
        problem = stage.broker.keeper.problem or "".join(stage.reports)

    assert second.answers() == [b"OK"]
    assert [answer[:12] for answer in first.answers()] == [b"E_PUB_FAILED"]
    assert "MemoryError" in problem
    assert stage.client().publish(b"later", topic="a").answers() == [b"OK"]
    stage.restart()
    assert [stage.broker.existing(name).log.end for name in ("a", "b")] == [1, 1]


def test_a_publish_has_its_error_although_the_log_cannot_even_take_it_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(stage.broker.topic("t").log)

    def failing(self: object) -> None:
        raise MemoryError

    client = stage.client()
    with monkeypatch.context() as patch:
        patch.setattr(kind, "flush", failing)
        patch.setattr(kind, "take_back", failing)
        client.session.handle(Pub("t", b"m"), now=stage.now)
        stage.commit()

    assert [answer[:12] for answer in client.answers()] == [b"E_PUB_FAILED"]


def test_an_error_in_one_channel_strands_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = stage.consumer("first"), stage.consumer("second")
    deliver = Channel.deliver

    def failing(self: Channel, now: int) -> None:
        if self.name == "first":
            raise MemoryError
        deliver(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "deliver", failing)
        stage.client().publish(b"m")
        assert (first.received(), second.received()) == ([], [0])
        assert "channel t/first" in (stage.broker.health or "")
    stage.pass_time(SECOND)
    stage.checkpoint()
    stage.commit()

    assert first.received() == [0]
    assert stage.broker.health is None


def test_an_error_while_one_channel_is_given_letters_of_strands_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c", "d"):
        stage.consumer(name, ready=0)
    stage.client().publish(*numbered(3))
    dead_topic = DeadLetterMover.dead_topic

    def failing(self: DeadLetterMover, name: str, *, now: int) -> Topic:
        if name == "t.c.dead":
            raise MemoryError
        return dead_topic(self, name, now=now)

    monkeypatch.setattr(DeadLetterMover, "dead_topic", failing)
    for name in ("c", "d"):
        change = {"max_depth": 1, "overflow": "dead"}
        stage.broker.settings.change_channel(stage.channel(name), change, now=stage.now)
    stage.commit()

    assert stage.broker.existing("t.d.dead").message_count == 2
    assert len(stage.channel("c").ledger.deferred) == 2
