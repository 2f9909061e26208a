"""Whichever record of a journal is damaged: messages are delivered again, none is lost, and none comes early."""

import os
import shutil
from pathlib import Path

import pytest

from play import MINUTE, Stage, numbered

HOUR = 60 * MINUTE


def worked(path: Path) -> set[int]:
    """A history in which messages were finished, requeued, deferred and set aside; what is unfinished at its end."""
    stage = Stage(path, max_bytes_per_file=600, max_req_timeout=HOUR)
    consumer = stage.consumer()
    stage.checkpoint()
    for sequence in range(0, 40, 4):
        stage.client().publish(*numbered(3)).publish(b"deferred", delay=HOUR if sequence % 8 else 1)
        stage.pass_time(2)
        consumer.finish(sequence).requeue(sequence + 1, delay=HOUR // 2)
        if sequence % 8:
            consumer.finish(sequence + 2)
        stage.checkpoint(trim=sequence == 20)
    left = set(stage.channel().ledger.sequences())
    stage.broker.storage.close()
    return left


def test_no_message_is_lost(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    left = worked(tmp_path / "data")
    whole = (tmp_path / "data" / "topics" / "t-t" / "journal").read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"LWR1", at)]
    assert len(places) > 10
    for place in places:
        path = tmp_path / str(place)
        shutil.copytree(tmp_path / "data", path)
        journal = bytearray(whole)
        journal[place + 14] ^= 1
        (path / "topics" / "t-t" / "journal").write_bytes(journal)
        stage = Stage(path, max_bytes_per_file=600, max_req_timeout=HOUR)
        consumer = stage.consumer()
        received = set(consumer.received())
        stage.pass_time(2 * HOUR)
        received |= set(consumer.received())

        assert left <= received, f"lost with the record at {place}: {sorted(left - received)}"
        consumer.finish(*received)
        stage.restart()
        stage.pass_time(2 * HOUR)
        assert stage.consumer().received() == []


def copied(source: Path, target: Path, journal: bytes, written: int) -> Path:
    """A copy of a data path with another journal, last written at that time."""
    shutil.copytree(source, target)
    (target / "topics" / "t-t" / "journal").write_bytes(journal)
    os.utime(target / "topics" / "t-t" / "journal", ns=(written, written))
    return target


def test_no_deferred_message_comes_early(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    stage = Stage(tmp_path / "data", max_req_timeout=HOUR)
    consumer = stage.consumer()
    stage.checkpoint()
    for sequence in range(0, 24, 3):
        stage.client().publish(*numbered(2)).publish(b"deferred", delay=45 * MINUTE)
        consumer.requeue(sequence, delay=MINUTE // 4)
        stage.checkpoint()
        stage.pass_time(MINUTE // 2)
        if sequence < 20:
            consumer.requeue(sequence, delay=HOUR // 2)  # again, for longer
        stage.checkpoint()
    deferred = stage.channel().ledger.deferred
    due = {sequence: deferred.due(sequence) for sequence in deferred.sequences()}
    assert len(due) > 5
    now = stage.now
    stage.broker.storage.close()
    whole = (tmp_path / "data" / "topics" / "t-t" / "journal").read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"LWR1", at)]
    for place in places[:-1]:
        journal = bytearray(whole)
        journal[place + 14] ^= 1
        path = copied(tmp_path / "data", tmp_path / str(place), bytes(journal), now)
        stage = Stage(path, now=now, max_req_timeout=HOUR)
        stage.kill()  # before its first checkpoint: what is in doubt stays in doubt
        consumer = stage.consumer()
        seen: set[int] = set()
        for _ in range(20):
            fresh = set(consumer.received()) - seen
            early = {sequence for sequence in fresh if due.get(sequence, 0) > stage.now}
            assert not early, f"early with the record at {place}: {early}"
            seen |= fresh
            stage.pass_time(6 * MINUTE)
        assert due.keys() <= seen


def test_a_channel_that_is_set_back_far_waits_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.log.journal.state._MANY", 5)
    (tmp_path / "data").mkdir()
    stage = Stage(tmp_path / "data", max_req_timeout=HOUR)
    consumer = stage.consumer()
    stage.checkpoint()
    stage.client().publish(*numbered(20))
    consumer.requeue(3, delay=HOUR // 2)
    consumer.finish(*(sequence for sequence in range(20) if sequence != 3))
    stage.checkpoint()
    stage.client().publish(b"more")
    stage.checkpoint()
    now = stage.now
    stage.broker.storage.close()
    journal = bytearray((tmp_path / "data" / "topics" / "t-t" / "journal").read_bytes())
    places = [at for at in range(len(journal)) if journal.startswith(b"LWR1", at)]
    journal[places[-2] + 14] ^= 1
    stage = Stage(copied(tmp_path / "data", tmp_path / "copy", bytes(journal), now), now=now, max_req_timeout=HOUR)
    stage.kill()
    consumer = stage.consumer()

    assert consumer.received() == []
    stage.pass_time(HOUR + 1)
    assert set(consumer.received()) >= {3, 20}


@pytest.mark.parametrize("emptied", [[[0, "x"]], "all", [7], [[1, 2, 3]], None])
def test_a_catalog_that_was_written_by_hand_stops_nobody(tmp_path: Path, emptied: object) -> None:
    worked(tmp_path)
    stage = Stage(tmp_path)
    stage.broker.existing("t").settings = {"emptied": emptied}
    stage.restart()

    assert stage.consumer().received()
