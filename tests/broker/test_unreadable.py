"""A disk that does not give a topic: that topic is not served, nothing of it is changed, and all others go on."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from play import MINUTE, SECOND, Stage, numbered

from lapwing.errors import LogError
from lapwing.log.attributes import Extra
from lapwing.log.disk import Disk
from lapwing.wire.nsq.commands import Pub, Sub


class BadSectors:
    """Makes reading the files whose path ends so fail as a dying disk does, until it is healed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ending: str, number: int = errno.EIO) -> None:
        self.ending: str | None = ending
        self.number = number
        monkeypatch.setattr(Disk, "pread", staticmethod(self._pread))

    def _pread(self, fd: int, length: int, offset: int) -> bytes:
        if self.ending is not None and os.readlink(f"/proc/self/fd/{fd}").endswith(self.ending):
            raise OSError(self.number, os.strerror(self.number))
        return os.pread(fd, length, offset)

    def heal(self) -> None:
        self.ending = None


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def stopped(tmp_path: Path) -> Stage:
    """A broker that was stopped, with topics `t` (paused, two channels, stragglers) and `u`."""
    stage = Stage(tmp_path)
    consumer = stage.consumer(ready=3)
    stage.consumer("d")
    stage.client().publish(*numbered(5)).publish(b"later", delay=MINUTE)
    consumer.finish(1)
    stage.channel().set_aside(2)
    stage.consumer("c", topic="u")
    stage.client().publish(b"a", topic="u")
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.broker.close(now=stage.now)
    return stage


@pytest.mark.parametrize("ending", ["t-t/journal", "t-t/identity", "t-t/side/c-c", "t-t/00000000000000000000.idx"])
def test_a_topic_that_cannot_be_read_stops_no_other(
    stopped: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    before = contents(tmp_path / "topics" / "t-t")
    BadSectors(monkeypatch, ending)
    stopped.open()

    broker = stopped.broker
    assert list(broker.topics) == ["u"]
    assert stopped.consumer(topic="u").received() == [0]
    assert stopped.client().publish(b"b", topic="u").answers() == [b"OK"]
    assert broker.health is not None
    assert "topic t is not served" in broker.health
    assert str(tmp_path) in broker.health
    assert any(broker.health in report and "move its folder" in report for report in stopped.reports)
    stopped.checkpoint(trim=True)
    broker.close(now=stopped.now)
    assert contents(tmp_path / "topics" / "t-t") == before


def test_publishers_and_consumers_of_it_are_told(stopped: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    BadSectors(monkeypatch, "t-t/journal")
    stopped.open()

    with pytest.raises(LogError, match="journal: cannot be read: Input/output error"):
        stopped.broker.topic("t")
    for command, word in ((Pub("t", b"x"), "E_PUB_FAILED"), (Sub("t", "c"), "E_SUB_FAILED")):
        with pytest.raises(Exception, match=f"{word}.*journal"):
            stopped.client().say(command)


def test_it_comes_back_as_it_was_when_the_disk_can_be_read_again(
    stopped: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadSectors(monkeypatch, "t-t/journal")
    stopped.open()
    stopped.pass_time(11 * SECOND)
    stopped.checkpoint()
    assert stopped.broker.health is not None
    disk.heal()
    stopped.checkpoint()
    assert stopped.broker.health is not None  # not tried again so soon
    stopped.pass_time(21 * SECOND)
    stopped.checkpoint()

    assert stopped.broker.health is None
    assert {change[:3] for change in stopped.broker.changes} >= {("topic", "t", None), ("channel", "t", "d")}
    assert stopped.broker.topics["t"].paused
    assert stopped.consumer().received() == [0, 2, 3, 4]


def test_what_the_catalog_knew_of_it_is_not_forgotten(stopped: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BadSectors(monkeypatch, "t-t/journal")
    stopped.open()
    stopped.restart()
    disk.heal()
    stopped.restart()

    assert stopped.broker.topics["t"].paused
    assert set(stopped.broker.topics["t"].channels) == {"c", "d"}


def test_a_damaged_journal_is_kept_beside_the_one_that_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer()
    stage.broker.close(now=stage.now)
    journal = tmp_path / "topics" / "t-t" / "journal"
    journal.write_bytes(b"garbage" * 9)
    stage.open()
    stage.client().publish(b"a")
    stage.restart()

    assert journal.with_name("journal.damaged").read_bytes() == b"garbage" * 9
    assert any("journal.damaged" in report for report in stage.reports)
    assert stage.consumer().received() == [0]


def test_a_torn_end_of_a_journal_is_nothing_to_keep(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer()
    stage.broker.close(now=stage.now)
    journal = tmp_path / "topics" / "t-t" / "journal"
    journal.write_bytes(journal.read_bytes() + b"LWR1\xff")
    stage.open()

    assert not journal.with_name("journal.damaged").exists()


def test_a_requeued_message_that_cannot_be_read_now_is_delivered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer(ready=1)
    stage.client().publish(b"a")
    assert consumer.received() == [0]
    log: Any = stage.broker.topics["t"].log
    read = log.frame

    def refuse(sequence: int) -> bytes:
        raise LogError("cannot be read")

    log.frame = refuse
    consumer.requeue(0)
    assert (consumer.received(), stage.channel().depth) == ([], 1)
    log.frame = read
    stage.checkpoint()
    stage.commit()

    assert consumer.received() == [0]


@pytest.mark.parametrize("lost", [b"", b"garbage" * 9, None])
def test_without_a_journal_every_channel_gets_everything_again(tmp_path: Path, lost: bytes | None) -> None:
    stage = Stage(tmp_path)
    stage.consumer("c").leave()
    stage.consumer("d").leave()
    stage.client().publish(*numbered(3)).publish(b"later", delay=MINUTE)
    stage.broker.close(now=stage.now)
    journal = tmp_path / "topics" / "t-t" / "journal"
    journal.unlink() if lost is None else journal.write_bytes(lost)
    stage.open()
    consumers = [stage.consumer("c"), stage.consumer("d")]

    assert [consumer.received() for consumer in consumers] == [[0, 1, 2], [0, 1, 2]]
    stage.pass_time(MINUTE)
    assert [3 in consumer.received() for consumer in consumers] == [True, True]


def test_deferrals_that_cannot_be_read_keep_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"before", delay=MINUTE)
    BadSectors(monkeypatch, ".aux")
    consumer = stage.consumer()
    publisher = stage.client().publish(b"deferred", delay=MINUTE).publish(b"plain")

    assert publisher.answers() == [b"OK", b"OK"]
    assert consumer.received() == [0, 1, 2]
    assert any("deferrals cannot be read" in report for report in stage.broker.topics["t"].store.news())


def test_publishers_hear_of_what_is_written_even_if_it_cannot_be_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    log = stage.broker.topics["t"].log

    def refuse(start: int, stop: int) -> list[Extra]:
        raise LogError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(log, "extras", refuse)
        publisher = stage.client().publish(b"a", delay=1)
    assert publisher.answers() == [b"OK"]
    stage.client().publish(b"b")
    stage.pass_time(SECOND)

    assert sorted(consumer.received()) == [0, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_straggler_that_cannot_be_read_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    other = stage.consumer("other")
    stage.client().publish(*numbered(3))
    stage.channel().set_aside(1)
    consumer.take()
    consumer.requeue(1).finish(2)
    sectors = BadSectors(monkeypatch, "side/c-c", number)
    consumer.requeue(0)
    stage.client().publish(b"more")
    assert other.received() == [0, 1, 2, 3]
    sectors.heal()
    stage.checkpoint()
    stage.commit()

    assert 3 in consumer.received()
    assert consumer.subscriber.in_flight.keys() == ({1, 3} if number == errno.EIO else {0, 1, 3})
