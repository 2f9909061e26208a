"""A disk that does not give a topic: that topic is not served, nothing of it is changed, and all others go on."""

import errno
from pathlib import Path
from typing import Any

import pytest

from bad_sectors import BadSectors
from lapwing.errors import LogError, ReadFailed
from lapwing.log import records
from lapwing.log.log import DiskLog
from lapwing.log.segments.attributes import Extra
from lapwing.wire.nsq.commands import Pub, Sub
from overriding import overriding
from play import MINUTE, SECOND, Client, Stage, numbered


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
    stage.channel().copy_aside(2)
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
    assert stopped.broker.existing("t").paused
    assert stopped.consumer().received() == [0, 2, 3, 4]


def test_what_the_catalog_knew_of_it_is_not_forgotten(stopped: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BadSectors(monkeypatch, "t-t/journal")
    stopped.open()
    stopped.restart()
    disk.heal()
    stopped.restart()

    assert stopped.broker.existing("t").paused
    assert set(stopped.broker.existing("t").channels) == {"c", "d"}


def test_a_damaged_journal_is_kept_beside_the_one_that_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer()
    stage.broker.close(now=stage.now)
    journal = tmp_path / "topics" / "t-t" / "journal"
    journal.write_bytes(b"garbage" * 9)
    stage.open()
    stage.client().publish(b"a")
    stage.restart()

    stage.checkpoint(trim=True)
    assert journal.with_name("journal.damaged").read_bytes() == b"garbage" * 9
    assert len([report for report in stage.reports if "journal.damaged" in report]) == 1
    assert len([report for report in stage.reports if "skipped 63 damaged bytes" in report]) == 1
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
    log: Any = stage.broker.existing("t").log
    kind = type(log)

    def refuse(*_: object) -> bytes:
        raise LogError("cannot be read")

    log.__class__ = overriding(log, frame=refuse, load=refuse)
    consumer.requeue(0)
    assert (consumer.received(), stage.channel().depth) == ([], 1)
    log.__class__ = kind
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


def test_a_message_whose_deferral_cannot_be_read_is_not_delivered_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    stage.client().publish(b"before", delay=MINUTE)
    stage.restart()  # which leaves nothing of it in memory
    sectors = BadSectors(monkeypatch, ".aux")
    consumer = stage.consumer()
    publisher = stage.client().publish(b"deferred", delay=MINUTE).publish(b"plain")
    assert publisher.answers() == [b"OK", b"OK"]
    assert consumer.received() == []
    assert stage.broker.health is not None
    assert "topic t:" in stage.broker.health
    sectors.heal()
    stage.pass_time(5 * SECOND)
    stage.checkpoint()
    stage.commit()

    assert stage.broker.health is None
    assert consumer.received() == [2]
    stage.pass_time(MINUTE)
    assert consumer.received() == [0, 1]


def test_publishers_hear_of_what_is_written_even_if_it_cannot_be_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    log = stage.broker.existing("t").log

    def refuse(start: int, stop: int) -> list[Extra]:
        raise LogError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(log, "__class__", overriding(log, extras=refuse))
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
    stage.channel().copy_aside(1)
    consumer.take()
    consumer.requeue(1).finish(2)
    sectors = BadSectors(monkeypatch, "side/c-c", number)
    consumer.requeue(0)
    stage.client().publish(b"more")
    assert other.received() == [0, 1, 2, 3]
    assert stage.broker.health is not None
    sectors.heal()
    stage.pass_time(SECOND)
    stage.checkpoint()
    stage.commit()

    assert 3 in consumer.received()
    assert consumer.holder.in_flight.keys() == {0, 1, 3}
    assert stage.broker.health is None


@pytest.fixture
def backlog(tmp_path: Path) -> Stage:
    """A broker with a backlog of 60 messages in many segments, none of which is in memory any more."""
    stage = Stage(tmp_path, max_bytes_per_file=600)
    stage.consumer(ready=0).leave()
    for first in range(0, 60, 4):
        stage.client().publish(*[b"%d" % number for number in range(first, first + 4)])
    stage.restart()
    return stage


def test_a_read_error_of_a_moment_loses_nothing(backlog: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = backlog.path
    assert folder is not None
    before = sorted(file.name for file in folder.glob("topics/t-t/*.log"))
    consumer = backlog.consumer(ready=10)
    received = consumer.received()
    sectors = BadSectors(monkeypatch, ".log")
    consumer.finish(*received)
    for _ in range(8):
        backlog.pass_time(250 * 1_000_000)
        backlog.checkpoint(trim=True)
        backlog.commit()
    received += consumer.received()  # what was read already
    assert backlog.channel().cursor == len(received) < 20
    assert len(before) - len(list(folder.glob("topics/t-t/*.log"))) <= 1
    assert backlog.broker.health is not None
    assert "channel t/c: " in backlog.broker.health
    assert "Input/output error" in backlog.broker.health
    assert len([report for report in backlog.reports if "read failed, channel t/c" in report]) == 1
    sectors.heal()
    consumer.finish(*received[10:])
    while fresh := _retry(backlog, consumer):
        consumer.finish(*fresh)
        received += fresh

    assert received == list(range(60))
    assert backlog.broker.health is None


def _retry(stage: Stage, consumer: Client) -> list[int]:
    """What the consumer gets after the longest time between two retries."""
    stage.pass_time(5 * SECOND)
    stage.checkpoint(trim=True)
    stage.commit()
    return consumer.received()


def test_health_stays_bad_while_the_disk_cannot_be_read_even_if_nobody_consumes(
    backlog: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sectors = BadSectors(monkeypatch, ".log")
    consumer = backlog.consumer()
    consumer.leave()
    backlog.client().publish(b"taken", topic="other")
    _retry(backlog, consumer)
    assert backlog.broker.health is not None
    sectors.heal()
    _retry(backlog, consumer)

    assert backlog.broker.health is None


def test_a_channel_that_reads_from_memory_goes_on_beside_one_that_cannot_read(
    backlog: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = backlog.consumer("tail")
    BadSectors(monkeypatch, ".log")
    behind = backlog.consumer()
    publisher = backlog.client().publish(b"new")

    assert publisher.answers() == [b"OK"]
    assert tail.received() == [60]
    assert behind.received() == []


def test_a_message_to_be_set_aside_that_cannot_be_read_stays_in_the_log(
    backlog: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = backlog.consumer()
    received = consumer.received()
    consumer.finish(*[sequence for sequence in received if sequence != 1])
    sectors = BadSectors(monkeypatch, ".log")
    backlog.checkpoint(trim=True)
    assert backlog.broker.existing("t").log.first == 0
    assert backlog.broker.health is not None
    sectors.heal()
    _retry(backlog, consumer)
    backlog.pass_time(2 * MINUTE)

    assert backlog.broker.existing("t").log.first > 0
    assert backlog.broker.health is None
    assert consumer.received() == [1]


def test_seeking_back_over_deferrals_that_cannot_be_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(b"a").publish(b"later", delay=MINUTE)
    consumer.take()
    log = stage.broker.existing("t").log
    assert isinstance(log, DiskLog)
    log.shed()  # nothing of it is in memory
    BadSectors(monkeypatch, ".aux")
    with pytest.raises(ReadFailed):
        stage.channel().seek(0, back=True)

    assert consumer.holder.in_flight.keys() == {0}
    assert stage.channel().ledger.deferred.sequences() == [1]


@pytest.mark.parametrize(("ending", "torn"), [("0.log", b"torn"), ("0.idx", b"torn"), ("0.aux", b"")])
def test_a_segment_that_cannot_be_read_at_the_start_is_neither_cut_nor_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, torn: bytes
) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0).leave()
    stage.client().publish(*numbered(5)).publish(b"later", delay=MINUTE)
    stage.checkpoint()
    frames = tmp_path / "topics" / "t-t" / f"{0:020d}.log"
    frames.write_bytes(frames.read_bytes() + torn)
    sectors = BadSectors(monkeypatch, ending)
    before = contents(tmp_path / "topics")
    stage.kill()
    assert list(stage.broker.unopened) == ["t"]
    assert contents(tmp_path / "topics") == before
    sectors.heal()
    stage.pass_time(11 * SECOND)
    stage.checkpoint()

    assert stage.broker.health is None
    assert stage.consumer().received() == [0, 1, 2, 3, 4]


def test_notes_of_a_side_log_are_reported_once_at_the_start_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    stage.channel().copy_aside(2)
    stage.broker.close(now=stage.now)
    side = tmp_path / "topics" / "t-t" / "side" / "c-c"
    damaged = bytearray(side.read_bytes())
    damaged[20] ^= 1
    side.write_bytes(damaged)
    stage.open()
    stage.checkpoint(trim=True)
    assert len([report for report in stage.reports if "side/c-c: offset 0: skipped" in report]) == 1
    consumer = stage.consumer()
    assert consumer.received() == [0, 1, 2]
    stage.broker.existing("t").store.side_log("c").notes.append("side/c-c: could not be compacted")
    stage.checkpoint(trim=True)

    assert [report for report in stage.reports if "could not be compacted" in report] == [
        "side/c-c: could not be compacted"
    ]


def test_a_journal_of_a_newer_version_stops_its_topic_alone_and_is_left_as_it_is(stopped: Stage) -> None:
    assert stopped.path is not None
    journal = stopped.path / "topics" / "t-t" / "journal"
    journal.write_bytes(journal.read_bytes() + records.encode(b"\x63\x00"))
    before = contents(stopped.path / "topics" / "t-t")
    stopped.open()

    assert list(stopped.broker.topics) == ["u"]
    assert stopped.broker.health is not None
    assert "entry of the unknown kind 99; start the version of lapwing that wrote it" in stopped.broker.health
    stopped.broker.close(now=stopped.now)
    assert contents(stopped.path / "topics" / "t-t") == before
