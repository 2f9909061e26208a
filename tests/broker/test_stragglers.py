"""One message that waits for long pins no segment, is never lost, and is finished like any other."""

import errno
import re
import shutil
from pathlib import Path

import pytest

from lapwing.broker.stats import oldest_age
from lapwing.errors import WriteFailed
from lapwing.wire.nsq.commands import Rdy
from play import MINUTE, SECOND, Stage, numbered

HOUR = 60 * MINUTE


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Segments of a few messages."""
    return Stage(tmp_path, max_bytes_per_file=1000, max_req_timeout=HOUR)


def logs(stage: Stage) -> int:
    """How many segments there are."""
    assert stage.path is not None
    return len(list((stage.path / "topics" / "t-t").glob("*.log")))


def work_past(stage: Stage, count: int = 100) -> None:
    """Have everything but the first message delivered and finished, over many segments."""
    consumer = stage.consumer()
    consumer.requeue(0, delay=HOUR // 2) if 0 in consumer.holder.in_flight else None
    for body in numbered(count):
        stage.client().publish(body)
        consumer.finish(*[sequence for sequence in consumer.received() if sequence])
    consumer.leave()


def straggle(stage: Stage) -> None:
    stage.consumer().leave()
    stage.client().publish(b"straggler")
    work_past(stage)


def test_a_straggler_pins_no_segment(stage: Stage) -> None:
    straggle(stage)
    assert logs(stage) > 5
    stage.checkpoint(trim=True)

    assert logs(stage) <= 2
    assert stage.broker.existing("t").log.first > 80


def test_a_straggler_comes_in_its_time_and_is_finished(stage: Stage) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)
    consumer = stage.consumer()
    stage.pass_time(HOUR)
    assert consumer.take()[0] == [(0, 2, b"straggler")]
    consumer.finish(0)

    assert stage.channel().oldest() is None
    stage.restart()
    stage.pass_time(HOUR)
    assert stage.consumer().received() == []


@pytest.mark.parametrize("end", [Stage.restart, Stage.kill])
def test_a_straggler_survives(stage: Stage, end: object) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)
    end(stage)  # type: ignore[operator]
    consumer = stage.consumer()
    assert consumer.received() == []
    stage.pass_time(HOUR)

    assert consumer.take()[0] == [(0, 2, b"straggler")]


def test_a_straggler_survives_a_kill_although_the_journal_was_behind(stage: Stage) -> None:
    stage.consumer().leave()
    stage.checkpoint()
    stage.client().publish(b"straggler")
    work_past(stage)
    stage.broker.trim(now=stage.now, everywhere=True)
    assert logs(stage) <= 2
    stage.kill()
    consumer = stage.consumer()
    stage.pass_time(HOUR)

    assert consumer.take()[0] == [(0, 2, b"straggler")]


def test_a_straggler_that_no_journal_knows_is_still_there(stage: Stage) -> None:
    stage.consumer().leave()
    stage.checkpoint()
    assert stage.path is not None
    journal = stage.path / "topics" / "t-t" / "journal"
    before = journal.read_bytes()
    stage.client().publish(b"straggler")
    work_past(stage)
    stage.checkpoint(trim=True)
    stage.broker.storage.close()
    journal.write_bytes(before)  # what a power loss may do
    stage.open()

    assert stage.consumer().take()[0][0] == (0, 2, b"straggler")


def test_a_straggler_that_an_old_journal_knows_is_there_once(stage: Stage) -> None:
    stage.consumer(ready=0).leave()
    stage.client().publish(b"zero").publish(b"straggler", delay=SECOND)
    stage.pass_time(SECOND)  # it is ready, and the cursor is still before it
    stage.checkpoint()
    assert stage.path is not None
    journal = stage.path / "topics" / "t-t" / "journal"
    old = journal.read_bytes()
    consumer = stage.consumer()
    for body in numbered(100):
        stage.client().publish(body)
        consumer.finish(*[sequence for sequence in consumer.received() if sequence != 1])
    stage.checkpoint(trim=True)
    stage.broker.storage.close()
    journal.write_bytes(old)  # what a power loss may leave of it
    stage.open()

    assert stage.broker.existing("t").log.first > 80
    assert stage.consumer().received().count(1) == 1


def test_a_straggler_is_still_there_without_any_journal(stage: Stage) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)
    first = stage.broker.existing("t").log.first
    assert stage.path is not None
    stage.broker.close(now=stage.now)
    (stage.path / "topics" / "t-t" / "journal").unlink()
    stage.open()

    assert stage.consumer().received() == [0, *range(first, 101)]


def test_what_was_finished_in_the_side_log_is_let_go_of(stage: Stage) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)
    consumer = stage.consumer()
    stage.pass_time(HOUR)
    consumer.finish(0)
    stage.checkpoint()
    stage.kill()  # the side log was not told

    assert stage.consumer().received() == []
    assert set(stage.broker.existing("t").store.side_log("c").sequences()) == set()


def test_a_side_log_that_cannot_be_written_keeps_the_segment(stage: Stage) -> None:
    straggle(stage)
    side = stage.broker.existing("t").store.side_log("c")
    flush = side.flush

    def refuse() -> None:
        raise WriteFailed("side", 0, OSError(errno.ENOSPC, "No space left on device"))

    side.flush = refuse  # type: ignore[method-assign]
    for _ in range(2):
        stage.checkpoint(trim=True)
        assert stage.broker.existing("t").log.first == 0
        assert stage.broker.keeper.problem
    side.flush = flush  # type: ignore[method-assign]
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first > 80
    stage.kill()
    consumer = stage.consumer()
    stage.pass_time(HOUR)

    assert consumer.received() == [0]


def test_what_is_deferred_ahead_of_the_cursor_does_not_free_what_lies_before_it(stage: Stage) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)  # the straggler is in the side log from now on
    stage.consumer(ready=0).leave()
    for body in numbered(100):
        stage.client().publish(body)
    stage.client().publish(b"later", delay=HOUR)
    for body in numbered(100):
        stage.client().publish(body)
    stage.checkpoint(trim=True)

    assert stage.broker.existing("t").log.first <= stage.channel().cursor
    assert stage.consumer().received() == [*range(101, 201), *range(202, 302)]


def test_a_straggler_that_was_set_aside_is_still_the_oldest(stage: Stage) -> None:
    straggle(stage)
    stage.pass_time(MINUTE)
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first > 0

    assert oldest_age(stage.channel(), now=stage.now) == MINUTE
    stage.restart()
    assert oldest_age(stage.channel(), now=stage.now) == MINUTE


def test_what_waits_at_the_cursor_is_older_than_what_is_deferred_behind_it(stage: Stage) -> None:
    stage.consumer(ready=0)
    stage.client().publish(b"first")
    stage.pass_time(MINUTE)
    stage.client().publish(b"later", delay=HOUR)

    assert stage.channel().oldest() == 0
    assert oldest_age(stage.channel(), now=stage.now) == MINUTE


def test_emptying_and_deleting_take_the_stragglers_too(stage: Stage) -> None:
    straggle(stage)
    stage.checkpoint(trim=True)
    stage.channel().empty()
    stage.restart()
    assert len(stage.channel().ledger.deferred) == 0
    stage.broker.delete_channel("t", "c")

    assert not stage.broker.existing("t").store.has_side_log("c")


def test_trimming_lets_go_of_what_every_channel_has_finished(stage: Stage) -> None:
    stage.consumer("slow", ready=0)
    work_past(stage, 50)
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first == 0
    slow = stage.consumer("slow")
    slow.finish(*slow.received())
    stage.channel().seek(50)
    stage.checkpoint(trim=True)

    assert stage.broker.existing("t").log.first > 30


def test_what_retention_wants_is_kept_for_replay(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=1000, retention_bytes=1 << 20)
    consumer = stage.consumer()
    stage.client().publish(*numbered(100))
    consumer.finish(*consumer.received())
    stage.checkpoint(trim=True)
    stage.channel().seek(0, back=True)
    stage.commit()

    assert consumer.received() == list(range(100))


def test_a_corrupt_chunk_under_a_cursor_is_passed_over_and_reported(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0).leave()
    for body in numbered(3, size=20_000):  # more than what shares a chunk
        stage.client().publish(body)
    stage.restart()
    path = next((tmp_path / "topics" / "t-t").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[30_000] ^= 1
    path.write_bytes(data)
    consumer = stage.consumer()

    received = consumer.received()
    assert 1 not in received
    assert received
    assert any("corrupt" in report for report in stage.reports)
    assert stage.channel().depth == 0
    stage.pass_time(SECOND)
    stage.client().publish(b"after")
    assert consumer.received() == [3]


def test_what_an_ephemeral_channel_dropped_pins_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=1000, mem_queue_size=5)
    consumer = stage.consumer("e#ephemeral", ready=0)
    for body in numbered(100):
        stage.client().publish(body)
    consumer.say(Rdy(100))
    consumer.finish(*consumer.received())
    stage.checkpoint(trim=True)

    assert logs(stage) == 1


def test_what_an_ephemeral_channel_has_set_aside_goes_with_it_in_a_crash_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer("e#ephemeral")
    stage.consumer()
    stage.client().publish(b"a")
    stage.channel("e#ephemeral").copy_aside(1)
    stage.channel().copy_aside(1)
    side = tmp_path / "topics" / "t-t" / "side"
    assert sorted(file.name for file in side.iterdir()) == ["c-c", "c-e#ephemeral"]
    stage.kill()

    assert [file.name for file in side.iterdir()] == ["c-c"]


def named_as_lost(stage: Stage, how: str) -> list[int]:
    """Start on what is left; the messages that are reported as lost, and not named again by the next start."""
    stage.reports.clear()
    stage.open()
    (report,) = [report for report in stage.reports if f"channel t/c: its side log is {how}" in report]
    named = re.search("with the sequences (.*?);", report)
    assert named is not None
    lost = [int(sequence) for sequence in named[1].split(", ")]
    assert stage.channel().counts.lost == len(lost)
    stage.reports.clear()
    stage.restart()
    assert not any("are lost" in report for report in stage.reports)
    stage.broker.storage.close()
    return lost


def test_a_lost_side_log_is_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=600, max_req_timeout=60 * MINUTE)
    consumer = stage.consumer()
    for sequence in range(0, 60, 3):
        stage.client().publish(*numbered(3))
        consumer.finish(sequence, sequence + 1).requeue(sequence + 2, delay=30 * MINUTE)
    stage.checkpoint(trim=True)
    assert len(stage.channel().side_logged.sequences) > 10
    stage.broker.storage.close()
    shutil.copytree(tmp_path, tmp_path.with_name("before"))
    path = tmp_path / "topics" / "t-t" / "side" / "c-c"
    whole = path.read_bytes()
    path.unlink()
    first = named_as_lost(stage, "missing")
    assert len(first) > 10
    assert all(sequence % 3 == 2 for sequence in first)

    shutil.rmtree(tmp_path / "topics" / "t-t" / "side")
    shutil.copytree(tmp_path.with_name("before"), tmp_path, dirs_exist_ok=True)
    path.write_bytes(whole[:-20] + b"\0" * 20)  # the last record
    assert named_as_lost(stage, "damaged") == first[-1:]


def test_many_messages_are_set_aside_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.broker.channel.channel._COPIED", 10)
    stage = Stage(tmp_path, max_bytes_per_file=600, max_req_timeout=60 * MINUTE)
    stage.broker.topic("t")
    consumer = stage.consumer()
    for _ in range(20):
        stage.client().publish(*numbered(4), delay=30 * MINUTE)
    stage.client().publish(*numbered(40))
    consumer.finish(*consumer.received())
    stage.checkpoint()
    side = stage.channel().side_logged
    copied = []
    while not stage.broker.trim(now=stage.now, everywhere=True):
        copied.append(len(side.sequences))
        assert stage.broker.existing("t").log.first == 0  # nothing is deleted before all of it is copied

    assert len(copied) >= 6
    assert all(after - before <= 10 for before, after in zip([0, *copied], copied, strict=False))
    assert stage.broker.existing("t").log.first >= 80
    stage.kill()
    stage.pass_time(31 * MINUTE)
    for _ in range(5):
        stage.pass_time(1)
    assert set(stage.consumer().received()) == set(range(80))


def test_a_message_that_comes_back_needs_its_segment_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=600, max_req_timeout=60 * MINUTE, retention_bytes=1 << 30)
    consumer = stage.consumer()
    stage.client().publish(b"stays", delay=30 * MINUTE)
    for _ in range(10):
        stage.client().publish(*numbered(4))
    consumer.finish(*range(1, 41))
    stage.checkpoint(trim=True)
    channel = stage.channel()
    assert (channel.side_logged.copied_below > 5, channel.needed_from()) == (True, 41)
    channel.take_back([3], now=stage.now)

    assert channel.needed_from() <= 3
    stage.checkpoint(trim=True)
    assert (set(channel.side_logged.sequences), channel.needed_from()) == ({0, 3}, 41)


@pytest.mark.parametrize("move", ["seek", "move"])
def test_what_a_seek_brings_back_needs_its_segment_again(stage: Stage, move: str) -> None:
    topic = stage.broker.topic("t")
    topic.create_channel("other", now=stage.now)
    straggle(stage)
    stage.checkpoint(trim=True)
    consumer = stage.consumer()
    stage.channel().seek(10, back=True) if move == "seek" else stage.channel().move(10)
    stage.commit()
    brought = consumer.received()
    assert brought[0] == 10
    topic.delete_channel("other")
    stage.checkpoint(trim=True)
    consumer.leave()

    assert stage.consumer().received() == brought
