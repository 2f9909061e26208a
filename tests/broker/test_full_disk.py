"""A disk without room, from the start of a broker to its end: what is there is served, and it heals by itself."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lapwing.errors import LogError, ProtocolError, WriteFailed
from lapwing.log.disk import Disk
from lapwing.log.side.sidelog import SideLog
from lapwing.wire.nsq.commands import Mpub, Pub
from play import SECOND, Stage, numbered


class NoRoom:
    """No file grows and none is made until there is room again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        monkeypatch.setattr(Disk, "pwrite", staticmethod(self._pwrite))
        monkeypatch.setattr(Disk, "open", staticmethod(self._open))

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        room = max(os.fstat(fd).st_size - offset, 0)
        if self.full and room < len(data):
            if not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.pwrite(fd, bytes(data)[:room], offset)  # as much as fits, as a disk does
        return os.pwrite(fd, data, offset)

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if self.full and flags & os.O_CREAT and not os.path.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.open(path, flags, mode)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> NoRoom:
    return NoRoom(monkeypatch)


def test_a_segment_that_cannot_be_begun_refuses_the_publish_and_nothing_else(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=4096)
    consumer = stage.consumer()
    bodies = numbered(3, 3000)
    stage.client().publish(bodies[0])
    disk.full = True
    answers = stage.client().publish(bodies[1]).answers()
    assert len(answers) == 1
    assert answers[0].startswith(b"E_PUB_FAILED PUB failed ")
    assert b"No space left on device" in answers[0]
    assert stage.broker.health is not None
    disk.full = False
    assert stage.client().publish(bodies[2]).answers() == [b"OK"]
    assert stage.broker.health is None
    stage.kill()

    assert consumer.received() == [0, 1]
    assert [body for _, _, body in stage.consumer().take()[0]] == [bodies[0], bodies[2]]


def test_what_is_finished_while_the_journal_cannot_be_written_is_written_later(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(6))
    stage.checkpoint()
    disk.full = True
    consumer.finish(0, 1, 2)
    stage.pass_time(SECOND)
    stage.checkpoint()
    assert stage.broker.health is not None
    consumer.finish(3)
    stage.pass_time(SECOND)
    stage.checkpoint()
    disk.full = False
    stage.pass_time(2 * SECOND)
    stage.checkpoint()
    assert stage.broker.health is None
    stage.kill()

    assert stage.consumer().received() == [4, 5]


def test_a_journal_that_was_cut_off_by_a_full_disk_is_read_after_a_kill(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(4))
    consumer.finish(0)
    stage.checkpoint()
    disk.full = True
    consumer.finish(1)
    stage.pass_time(SECOND)
    stage.checkpoint()
    assert stage.broker.health is not None
    stage.kill()  # with the disk still full
    disk.full = False
    stage.pass_time(2 * SECOND)

    assert stage.consumer().received() == [1, 2, 3]


def test_a_broker_starts_on_a_full_disk_serves_and_heals(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.client().publish(*numbered(3))
    stage.checkpoint()
    frames = tmp_path / "topics" / "t-t" / f"{0:020d}.log"
    stage.client().publish(b"torn")
    frames.write_bytes(frames.read_bytes()[:-5])  # killed in the middle of that write
    disk.full = True
    stage.kill()

    consumer = stage.consumer()
    assert consumer.received() == [0, 1, 2]
    for command, word in ((Pub("t", b"x"), b"E_PUB_FAILED"), (Mpub.of("t", [b"x"]), b"E_MPUB_FAILED")):
        assert stage.client().say(command).answers()[0].startswith(word)
    with pytest.raises(ProtocolError, match="E_PUB_FAILED"):
        stage.client().publish(b"x", topic="new")
    consumer.finish(0, 1, 2)
    stage.pass_time(SECOND)
    stage.checkpoint()
    assert stage.broker.health is not None
    disk.full = False
    stage.pass_time(2 * SECOND)
    stage.checkpoint()
    assert stage.broker.health is None
    assert stage.client().publish(b"y").publish(b"z", topic="new").answers() == [b"OK", b"OK"]
    stage.kill()
    assert [body for _, _, body in stage.consumer().take()[0]] == [b"y"]
    assert set(stage.broker.topics) == {"t", "new"}


@pytest.mark.parametrize("durability", ["os", "memory"])
def test_a_stop_on_a_full_disk_says_what_it_could_not_write(tmp_path: Path, disk: NoRoom, durability: str) -> None:
    stage = Stage(tmp_path, durability=durability, mem_queue_size=10)
    consumer = stage.consumer()
    stage.client().publish(*numbered(2))
    disk.full = True
    consumer.finish(0)
    stage.broker.close(now=stage.now)

    assert any("No space left" in report for report in stage.reports)
    disk.full = False
    stage.open()
    stage.client().publish(b"new")
    received = stage.consumer().received()
    assert received == ([0, 1, 2] if durability == "os" else [10])


def test_a_stop_says_what_it_could_not_write_although_it_was_known_that_the_disk_is_full(
    tmp_path: Path, disk: NoRoom
) -> None:
    stage = Stage(tmp_path, durability="memory", mem_queue_size=10)
    for topic in "tu":
        stage.consumer(topic=topic)
        stage.client().publish(*numbered(2), topic=topic)
    disk.full = True
    stage.broker.keeper.save_catalog()
    assert stage.broker.keeper.problem
    stage.reports.clear()
    stage.broker.close(now=stage.now)

    told = [report for report in stage.reports if "could not be saved in full" in report]
    assert [report.split(":")[0] for report in told] == ["topic t", "topic u"]


def test_a_side_log_that_cannot_be_written_at_a_stop_keeps_nothing_else_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, durability="memory", mem_queue_size=10)
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    stage.channel().copy_aside(2)
    consumer.finish(2)

    def refuse(side: SideLog) -> None:
        raise WriteFailed(side.path, 0, OSError(errno.EIO, os.strerror(errno.EIO)))

    with monkeypatch.context() as patch:
        patch.setattr(SideLog, "close", refuse)
        stage.broker.close(now=stage.now)
    stage.open()

    assert stage.consumer().received() == [0, 1]


def test_a_topic_is_deleted_to_make_room(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=1000)
    consumer = stage.consumer()
    stage.client().publish(*numbered(100))
    stage.checkpoint()
    consumer.finish(*range(50)).leave()
    stage.channel().copy_aside(60)
    stage.channel().side_logged.leave([55])
    disk.full = True
    stage.checkpoint()  # the journal has something to say, and no room for it
    stage.broker.delete_topic("t")
    assert list((tmp_path / "topics").iterdir()) == []
    disk.full = False  # as it is now
    stage.restart()

    assert stage.broker.topics == {}


def test_a_topic_that_cannot_be_deleted_is_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "rename", staticmethod(refuse))
        with pytest.raises(WriteFailed):
            stage.broker.delete_topic("t")
    consumer.finish(*consumer.received())
    stage.client().publish(b"more")
    assert consumer.received() == [3]
    assert not consumer.hung_up
    stage.restart()
    assert stage.consumer().received() == [3]


def test_a_topic_that_could_not_be_made_is_not_there_after_a_restart(tmp_path: Path, disk: NoRoom) -> None:
    stage = Stage(tmp_path)
    disk.full = True
    with pytest.raises(LogError):
        stage.broker.topic("t")
    disk.full = False
    stage.restart()

    assert stage.broker.topics == {}
