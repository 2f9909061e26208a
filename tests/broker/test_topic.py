"""Accept a batch: frame it, append it, fan it out; and what a disk may do to that."""

import errno
from pathlib import Path

import pytest

from lapwing.broker.topic import batch
from lapwing.errors import LapwingError, PublishRefused, WriteFailed
from lapwing.wire.nsq.commands import Cls, Mpub, Pub, Rdy, Sub
from overriding import overriding
from play import MINUTE, SECOND, Stage, numbered


class Refusing:
    """A log whose writes the disk refuses until it heals."""

    def __init__(self, stage: Stage, topic: str = "t") -> None:
        self.log = stage.broker.existing(topic).log
        self._kind = type(self.log)
        self.log.__class__ = overriding(self.log, flush=self._refuse)

    def _refuse(self) -> None:
        self.log.forget()
        raise WriteFailed("00000.log", 17, OSError(errno.ENOSPC, "No space left on device"))

    def heal(self) -> None:
        """Let it write again."""
        self.log.__class__ = self._kind


# --- fan-out -------------------------------------------------------------------------------------------------------


def test_the_first_channel_gets_the_backlog_and_later_ones_the_tail(stage: Stage) -> None:
    stage.client().publish(*numbered(3))
    assert stage.broker.existing("t").depth == 3
    first = stage.consumer("first")
    second = stage.consumer("second")
    assert (first.received(), second.received()) == ([0, 1, 2], [])
    stage.client().publish(b"new")

    assert (first.received(), second.received()) == ([3], [3])
    assert stage.broker.existing("t").depth == 0


def test_a_paused_topic_hands_nothing_over(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(*numbered(3))
    topic = stage.broker.existing("t")
    assert (consumer.received(), topic.depth, stage.channel().depth) == ([], 3, 0)
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.commit()

    assert consumer.received() == [0, 1, 2]
    assert topic.depth == 0


def test_a_channel_made_while_the_topic_is_paused_gets_what_waits(stage: Stage) -> None:
    stage.consumer("old")
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(b"a")
    late = stage.consumer("late")
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.commit()

    assert late.received() == [0]


def test_a_delay_begins_when_the_message_is_handed_over(stage: Stage) -> None:
    stage.client().publish(b"deferred", delay=10 * SECOND).publish(b"now")
    stage.pass_time(8 * SECOND)
    consumer = stage.consumer()
    assert consumer.received() == [1]
    stage.pass_time(10 * SECOND - 1)
    assert consumer.received() == []
    stage.pass_time(1)

    assert consumer.take()[0] == [(0, 1, b"deferred")]


def test_a_held_topic_waits_until_its_channels_are_known(stage: Stage) -> None:
    stage.broker.on_new_topic = lambda topic: setattr(topic, "held", True)
    consumer = stage.consumer()
    stage.client().publish(b"a")
    assert consumer.received() == []
    stage.broker.existing("t").release(now=stage.now)
    stage.commit()

    assert consumer.received() == [0]


def test_emptying_a_topic_drops_what_no_channel_has_had(stage: Stage) -> None:
    consumer = stage.consumer(ready=0)
    stage.client().publish(b"channel's")
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(b"topic's", b"too")
    stage.broker.existing("t").empty()
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.client().publish(b"after")
    consumer.say(Rdy(10))

    assert consumer.received() == [0, 3]
    assert stage.channel().depth == 0


def test_what_was_emptied_stays_dropped_after_a_restart(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0)
    stage.client().publish(b"channel's")
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(b"topic's")
    stage.broker.existing("t").empty()
    stage.broker.pause_topic("t", False, now=stage.now)
    stage.client().publish(b"after")
    stage.restart()

    assert stage.consumer().received() == [0, 2]


def test_an_ephemeral_topic_keeps_no_more_than_its_memory_allows() -> None:
    stage = Stage(mem_queue_size=3)
    stage.client().publish(b"a", topic="t#ephemeral").publish(*numbered(5), topic="t#ephemeral")
    topic = stage.broker.existing("t#ephemeral")
    assert (topic.depth, topic.message_count, topic.dropped_count) == (3, 6, 3)

    assert stage.consumer(topic="t#ephemeral").received() == [0, 1, 2]


# --- the disk refuses ----------------------------------------------------------------------------------------------


def test_a_refused_write_takes_the_ok_back_and_all_that_was_said_after(stage: Stage) -> None:
    client, consumer = stage.client().publish(b"fine"), stage.consumer()
    client.answers()
    disk = Refusing(stage)
    client.say(Pub("other", b"also fine"), Pub("t", b"lost"), Pub("other", b"said after"))

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed 00000.log: write at offset 17 failed: "
                                b"No space left on device"]  # fmt: skip
    assert client.session.doomed
    assert stage.broker.keeper.problem
    disk.heal()
    stage.client().publish(b"again")
    assert [body for _, _, body in consumer.take()[0]] == [b"fine", b"again"]
    assert stage.broker.keeper.problem is None


def test_a_refused_batch_says_its_own_name(stage: Stage) -> None:
    client = stage.client().publish(b"fine")
    client.answers()
    Refusing(stage)
    client.say(Mpub.of("t", [b"a", b"b"]))

    (answer,) = client.answers()
    assert answer.startswith(b"E_MPUB_FAILED MPUB failed ")


def test_no_ok_is_sent_for_what_was_lost_whatever_else_went_wrong(stage: Stage) -> None:
    first, second = stage.client().publish(b"1", topic="a"), stage.client().publish(b"2", topic="b")
    first.answers(), second.answers()
    Refusing(stage, "a"), Refusing(stage, "b")
    second.session.handle(Pub("b", b"makes b the first to be written"), now=stage.now)
    first.say(Pub("a", b"lost"), Pub("b", b"lost too"))

    (answer,) = first.answers()
    assert answer.startswith(b"E_PUB_FAILED")


def test_garbage_behind_a_lost_publish_does_not_save_its_ok(stage: Stage) -> None:
    client = stage.client().publish(b"fine")
    client.answers()
    Refusing(stage)
    client.session.handle(Pub("t", b"lost"), now=stage.now)
    with pytest.raises(Exception, match="E_") as garbage:
        client.session.handle(Mpub("t", b"\0\0\0\1"), now=stage.now)
    client.session.refuse(garbage.value)
    stage.commit()

    (answer,) = client.answers()
    assert answer.startswith(b"E_PUB_FAILED")


def test_what_was_never_written_is_not_counted(stage: Stage) -> None:
    stage.client().publish(b"fine")
    topic = stage.broker.existing("t")
    disk = Refusing(stage)
    stage.client().say(Pub("t", b"lost"), Pub("t", b"lost too"))
    assert (topic.message_count, topic.message_bytes) == (1, 4)
    disk.heal()
    stage.client().publish(b"again")

    assert (topic.message_count, topic.message_bytes) == (2, 9)


def test_a_deferral_of_a_lost_publish_does_not_stick_to_the_next_message(stage: Stage) -> None:
    consumer = stage.consumer()
    disk = Refusing(stage)
    stage.client().publish(b"lost", delay=MINUTE)
    disk.heal()
    stage.client().publish(b"at once")

    assert consumer.take()[0] == [(0, 1, b"at once")]


def test_a_refused_batch_leaves_nothing_behind(stage: Stage) -> None:
    topic = stage.broker.topic("t")

    with pytest.raises(PublishRefused):
        batch.multiple(topic, b"\0\0\0\2\0\0\0\1a", now=stage.now)
    assert (topic.message_count, topic.log.next, topic.waiting) == (0, 0, [])


# --- fsync ---------------------------------------------------------------------------------------------------------


def sync(stage: Stage, error: LapwingError | None = None) -> None:
    """Do what the syncer does for all that is unsynced now, or fail at it."""
    for topic, waiting in stage.broker.work.take_unsynced():
        job = topic.store.begin_sync()
        if job is not None and error is None:
            job()
        topic.store.finish_sync(None if error is None else OSError(errno.EIO, str(error)))
        for receipt, sequence in waiting:
            receipt.settle(sequence, error)


FAILED = WriteFailed("00000.log", 0, OSError(errno.EIO, "Input/output error"))


def test_an_ok_waits_for_the_sync_that_covers_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    consumer = stage.consumer()
    client = stage.client().publish(b"a")
    assert client.answers() == []
    assert consumer.received() == [0]
    sync(stage)

    assert client.noticed
    assert client.answers() == [b"OK"]


def test_an_ok_does_not_wait_for_the_sync_of_a_later_publish(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    client = stage.client().publish(b"a")
    first = stage.broker.work.take_unsynced()
    client.publish(b"b", b"c")
    for receipt, sequence in first[0][1]:
        receipt.settle(sequence, None)

    assert client.answers() == [b"OK"]
    sync(stage)
    assert client.answers() == [b"OK"]


def test_a_failed_sync_is_an_error_to_its_publisher(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    client = stage.client().publish(b"a")
    sync(stage, FAILED)

    (answer,) = client.answers()
    assert answer.startswith(b"E_PUB_FAILED")
    assert client.session.doomed


def test_a_failed_sync_takes_back_the_answers_behind_it_and_no_other(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    client = stage.client().publish(b"a")
    sync(stage)
    client.publish(b"b").say(Sub("t", "c"), Cls())
    client.publish(b"c")
    sync(stage, FAILED)

    assert [answer.partition(b" ")[0] for answer in client.answers()] == [b"OK", b"E_PUB_FAILED"]


def test_messages_wait_for_no_answer_but_that_to_their_sub(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    stage.client().publish(b"before")
    for channel in "cd":
        stage.channel_exists(channel)
    client = stage.client().say(Sub("t", "c"), Rdy(1), Pub("u", b"unsynced"))
    assert client.take() == ([(0, 1, b"before")], [b"OK"])
    other = stage.client().say(Pub("u", b"unsynced"), Sub("t", "d"), Rdy(1))
    client.publish(b"next")

    assert other.take() == ([], [])
    sync(stage)
    assert b"".join(other.session.replies.ready).find(b"OK") < b"".join(other.session.replies.ready).find(b"next")
    assert other.take() == ([(1, 1, b"next")], [b"OK", b"OK"])


def test_nothing_in_memory_waits_for_a_sync(tmp_path: Path) -> None:
    stage = Stage(tmp_path, durability="fsync")
    client = stage.client().publish(b"a", topic="t#ephemeral")

    assert (client.answers(), stage.broker.work.unsynced) == ([b"OK"], [])
