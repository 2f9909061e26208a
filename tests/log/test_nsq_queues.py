"""The disk queues of NSQ's own nsqd are found, and counted."""

from pathlib import Path

from lapwing.log.offline.nsq_queues import NsqQueue, undrained


def test_queues_with_messages_are_named_and_counted(tmp_path: Path) -> None:
    (tmp_path / "orders.diskqueue.meta.dat").write_text("12\n0,0\n0,480\n")
    (tmp_path / "orders.diskqueue.000000.dat").write_bytes(b"x" * 480)
    (tmp_path / "orders:billing.diskqueue.meta.dat").write_text("3\n1,0\n1,90\n")
    (tmp_path / "empty.diskqueue.meta.dat").write_text("0\n0,0\n0,0\n")
    (tmp_path / "broken.diskqueue.meta.dat").write_bytes(b"\xff\n")
    (tmp_path / "nsqd.dat").write_text("{}")

    assert undrained(str(tmp_path)) == [NsqQueue("orders", 12), NsqQueue("orders:billing", 3)]


def test_a_data_path_of_ours_has_none(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()

    assert undrained(str(tmp_path)) == []
