"""What a topic keeps, and where."""

from pathlib import Path

import pytest

from lapwing.broker.keeper.storage import DiskStorage, Storage
from lapwing.errors import DataPathInUse
from lapwing.log.catalog import TopicEntry
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.memory import MemoryLog


def on_disk(path: Path, reports: list[str] | None = None) -> DiskStorage:
    report = (lambda text: None) if reports is None else reports.append
    return DiskStorage(str(path), 5, LogOptions(), now=lambda: 1, report=report)


def test_a_topic_lies_on_disk_and_an_ephemeral_one_in_memory(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    store, ephemeral = storage.open("t"), storage.open("t#ephemeral")

    assert isinstance(store.log, DiskLog)
    assert store.journal is not None
    assert isinstance(ephemeral.log, MemoryLog)
    assert ephemeral.journal is None
    assert storage.names_on_disk() == ["t"]


def test_names_that_differ_in_case_alone_have_folders_of_their_own(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    for name in ("topic", "Topic", ".", ".."):
        storage.open(name).close()

    assert sorted(storage.names_on_disk()) == [".", "..", "Topic", "topic"]
    assert len({path.name.lower() for path in (tmp_path / "topics").iterdir()}) == 4


def test_a_side_log_is_made_when_it_is_asked_for_and_goes_with_its_channel(tmp_path: Path) -> None:
    store = on_disk(tmp_path).open("t")
    assert not store.has_side_log("c")
    side = store.side_log("c")
    side.put(1, b"frame")
    side.flush()
    assert store.has_side_log("c")
    assert store.side_log("c") is side
    store.forget("c")

    assert not store.has_side_log("c")
    assert set(store.side_log("c").sequences()) == set()


def test_a_side_log_of_an_earlier_life_is_found(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    store = storage.open("t")
    store.side_log("c").put(1, b"frame")
    store.close()
    storage.close()

    assert on_disk(tmp_path).open("t").has_side_log("c")


def test_destroying_leaves_no_trace(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    store = storage.open("t")
    store.side_log("c").put(1, b"frame")
    store.destroy()

    assert storage.names_on_disk() == []
    assert list((tmp_path / "topics").iterdir()) == []


def test_nobody_else_may_use_the_data_path_meanwhile(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    with pytest.raises(DataPathInUse):
        on_disk(tmp_path)
    storage.close()

    on_disk(tmp_path).close()


def test_what_recovery_did_is_reported(tmp_path: Path) -> None:
    storage = on_disk(tmp_path)
    storage.open("t").close()
    storage.close()
    (tmp_path / "topics" / "t-t" / f"{0:020d}.log").write_bytes(b"torn")
    reports: list[str] = []
    on_disk(tmp_path, reports).open("t")

    assert any("torn" in report or "cut" in report for report in reports)


def test_memory_keeps_nothing() -> None:
    storage = Storage(5)
    store = storage.open("t")
    storage.catalog.save([TopicEntry("t", False, [], {})])

    assert storage.catalog.open() == []
    assert storage.names_on_disk() == []
    assert store.log.node == 5
    assert not store.has_side_log("c")
    store.side_log("c").put(7, b"frame")
    assert store.side_log("c").frame(7) == b"frame"
    store.forget("c")
    assert not store.has_side_log("c")
    store.close()
    store.destroy()
    storage.close()
