"""Every topic by name; create, pause, delete, close; and what is there after a restart."""

import errno
from pathlib import Path

import pytest

from lapwing.errors import Exiting, LapwingError, NoSuchChannel, NoSuchTopic, WriteFailed
from lapwing.log.datapath import DataPath
from lapwing.wire.nsq.commands import Pub
from overriding import overriding
from play import MINUTE, SECOND, Stage, numbered


def test_topics_and_channels_are_made_once(stage: Stage) -> None:
    topic = stage.broker.topic("t")
    channel = topic.create_channel("c", now=stage.now)

    assert stage.broker.topic("t") is topic
    assert topic.create_channel("c", now=stage.now) is channel
    assert stage.broker.changes == [("topic", "t", None, True), ("channel", "t", "c", True)]


def test_what_is_not_there_is_said_to_be_missing(stage: Stage) -> None:
    with pytest.raises(NoSuchTopic):
        stage.broker.existing("t")
    stage.broker.topic("t")
    with pytest.raises(NoSuchChannel):
        stage.broker.existing_channel("t", "c")


def test_there_are_no_more_topics_and_channels_than_allowed() -> None:
    stage = Stage(max_topics=1, max_channels=1)
    topic = stage.broker.topic("t")
    topic.create_channel("c", now=stage.now)

    with pytest.raises(LapwingError, match="1 topics"):
        stage.broker.topic("u")
    with pytest.raises(LapwingError, match="1 channels"):
        topic.create_channel("d", now=stage.now)


def test_deleting_a_topic_hangs_up_and_leaves_nothing(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    stage.broker.delete_topic("t")
    consumer.leave()

    assert consumer.hung_up
    assert stage.broker.topics == {}
    assert stage.broker.changes[-2:] == [("channel", "t", "c", False), ("topic", "t", None, False)]
    stage.client().publish(b"new")
    assert stage.consumer().take()[0] == [(0, 1, b"new")]


def test_a_publish_in_the_turn_of_the_deletion_is_refused(stage: Stage) -> None:
    client = stage.client().publish(b"fine")
    client.answers()
    client.session.handle(Pub("t", b"too late"), now=stage.now)
    stage.broker.delete_topic("t")
    stage.commit()

    assert client.answers() == [b"E_PUB_FAILED PUB failed exiting"]
    assert stage.broker.keeper.problem is None


def test_deleting_a_channel_hangs_up_on_its_consumers_alone(stage: Stage) -> None:
    gone, other = stage.consumer("a"), stage.consumer("b")
    stage.broker.delete_channel("t", "a")
    gone.leave()
    stage.client().publish(b"a")

    assert (gone.hung_up, other.hung_up) == (True, False)
    assert other.received() == [0]
    assert list(stage.broker.existing("t").channels) == ["b"]


def test_a_channel_made_anew_begins_where_the_topic_stands(stage: Stage) -> None:
    stage.consumer("a"), stage.consumer("b")
    stage.client().publish(*numbered(3))
    stage.broker.delete_channel("t", "a")

    assert stage.consumer("a").received() == []


def test_an_ephemeral_topic_goes_with_its_last_channel(stage: Stage) -> None:
    consumer = stage.consumer("c#ephemeral", topic="t#ephemeral")
    consumer.leave()

    assert stage.broker.topics == {}


def test_a_broker_that_closes_takes_nothing_new(stage: Stage) -> None:
    stage.broker.close(now=stage.now)

    with pytest.raises(Exiting):
        stage.broker.topic("t")


# --- the agenda ----------------------------------------------------------------------------------------------------


def test_the_next_deadline_is_known(stage: Stage) -> None:
    consumer = stage.consumer()
    assert stage.broker.agenda.next_due() is None
    stage.client().publish(b"later", delay=5 * SECOND)
    assert stage.broker.agenda.next_due() == stage.now + 5 * SECOND
    stage.pass_time(5 * SECOND)
    assert consumer.received() == [0]

    assert stage.now + MINUTE <= (stage.broker.agenda.next_due() or 0) < stage.now + MINUTE + SECOND


def test_a_scan_looks_at_a_selection_and_says_that_there_is_more() -> None:
    stage = Stage(queue_scan_selection_count=2)
    for number in range(5):
        stage.consumer(f"c{number}")
    stage.client().publish(b"later", delay=SECOND)
    stage.now += SECOND

    assert [stage.broker.scan(stage.now) for _ in range(3)] == [True, True, False]
    assert not any(len(channel.ledger.deferred) for channel in stage.broker.existing("t").channels.values())


# --- a disk that refuses -------------------------------------------------------------------------------------------


class Refusal:
    """The journal of a topic, and the data path, refuse all writes until they heal."""

    def __init__(self, stage: Stage) -> None:
        journal = stage.broker.existing("t").store.journal
        assert journal is not None
        self._journal, self._kind = journal, type(journal)
        self._storage, self._try = stage.broker.storage, stage.broker.storage.try_writing
        journal.__class__ = overriding(journal, flush=self._refuse)
        stage.broker.storage.try_writing = self._refuse_plainly  # type: ignore[method-assign]

    def _refuse(self, *, sync: bool = False) -> None:
        raise WriteFailed("journal", 0, OSError(errno.ENOSPC, "No space left on device"))

    def _refuse_plainly(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def heal(self) -> None:
        """Let them write again."""
        self._journal.__class__ = self._kind
        self._storage.try_writing = self._try  # type: ignore[method-assign]


def test_consumers_are_let_in_while_the_disk_is_full(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    disk = Refusal(stage)
    consumer = stage.consumer()
    assert consumer.received() == [0]
    assert stage.broker.changes[-1] == ("channel", "t", "c", True)
    assert stage.broker.keeper.problem
    consumer.finish(0)
    stage.checkpoint()
    disk.heal()
    stage.checkpoint()
    stage.kill()

    assert stage.consumer().received() == []


def test_health_comes_back_without_a_publish(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    disk = Refusal(stage)
    stage.consumer()
    for _ in range(3):
        stage.pass_time(2 * SECOND)
        stage.checkpoint()
        assert stage.broker.keeper.problem is not None
    disk.heal()
    stage.pass_time(2 * SECOND)
    stage.checkpoint()

    assert stage.broker.keeper.problem is None
    assert stage.reports[-1] == "writes succeed again; publishes are taken"


# --- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Stage.restart, Stage.kill])
def test_everything_comes_back(tmp_path: Path, end: object) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer(ready=3)
    stage.consumer("paused")
    stage.broker.pause_channel("t", "paused", True)
    stage.client().publish(*numbered(5)).publish(b"deferred", delay=MINUTE)
    consumer.finish(1)
    consumer.requeue(2, delay=10 * SECOND)
    stage.checkpoint()
    end(stage)  # type: ignore[operator]

    assert stage.channel("paused").paused
    assert stage.channel("paused").depth == 5
    again = stage.consumer()
    assert [(sequence, attempts) for sequence, attempts, _ in again.take()[0]] == [(0, 2), (3, 2), (4, 2)]
    stage.pass_time(10 * SECOND)
    assert again.take()[0] == [(2, 2, numbered(5)[2])]
    stage.pass_time(50 * SECOND)
    assert [message for message in again.take()[0] if message[0] == 5] == [(5, 1, b"deferred")]


def test_what_was_finished_after_the_last_checkpoint_may_come_again_after_a_kill_and_nothing_else(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(4))
    consumer.finish(0, 1)
    stage.checkpoint()
    consumer.finish(2)
    stage.kill()

    assert stage.consumer().received() == [2, 3]


def test_ephemeral_things_do_not_come_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer("c#ephemeral")
    stage.client().publish(b"a", topic="u#ephemeral")
    stage.restart()

    assert list(stage.broker.topics) == ["t"]
    assert stage.broker.existing("t").channels == {}


def test_a_topic_that_the_catalog_does_not_know_is_found_on_the_disk(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    stage.kill()  # before any checkpoint

    assert stage.consumer().received() == [0]


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"a")
    stage.broker.delete_topic("t")
    stage.kill()

    assert stage.broker.topics == {}


def test_a_deleted_channel_stays_deleted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer("a"), stage.consumer("b")
    stage.client().publish(b"a")
    stage.checkpoint()
    stage.broker.delete_channel("t", "a")
    stage.checkpoint()
    stage.kill()

    assert list(stage.broker.existing("t").channels) == ["b"]


def test_a_closed_broker_lets_others_have_the_data_path(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.broker.close(now=stage.now)

    DataPath(str(tmp_path)).release()


def test_a_damaged_journal_is_reported(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    for body in numbered(3):
        stage.client().publish(body)
        stage.checkpoint()
    consumer.finish(0, 1, 2)
    stage.broker.close(now=stage.now)
    journal = tmp_path / "topics" / "t-t" / "journal"
    data = bytearray(journal.read_bytes())
    data[40] ^= 255
    journal.write_bytes(data)
    stage.open()

    assert any("journal" in report and "damaged" in report for report in stage.reports)
