"""Whichever record of a journal is damaged: messages are delivered again, and none is lost."""

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
    left = set(stage.channel().pending.sequences())
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


@pytest.mark.parametrize("emptied", [[[0, "x"]], "all", [7], [[1, 2, 3]], None])
def test_a_catalog_that_was_written_by_hand_stops_nobody(tmp_path: Path, emptied: object) -> None:
    worked(tmp_path)
    stage = Stage(tmp_path)
    stage.broker.topics["t"].settings["emptied"] = emptied
    stage.restart()

    assert stage.consumer().received()
