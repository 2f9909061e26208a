"""One process per data path, and a place for every topic that no name can leave."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing import kernel, names
from lapwing.errors import DataPathInUse, LogError
from lapwing.log.catalog import Catalog
from lapwing.log.datapath import DataPath, folder, unfold
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog
from lapwing.log.segments.attributes import Extra
from lapwing.log.side.sidelog import SideLog
from lapwing.log.staged import Intent, StagedFiles

from .writing import NODE

LOCKS = Path("/proc/locks")  # has who holds which lock; macOS has nothing like it

NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)


def _hold(path: str, pipe: Connection) -> None:
    held = DataPath(path)
    pipe.send("held")
    pipe.recv()
    held.release()


def test_a_second_process_is_turned_away_and_told_who_holds_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(str(tmp_path), theirs))
    process.start()
    try:
        assert ours.recv() == "held"
        with pytest.raises(DataPathInUse) as caught:
            DataPath(tmp_path)
    finally:
        ours.send("enough")
        process.join()

    holder = f", process {process.pid}" if LOCKS.exists() else ""
    assert str(caught.value) == (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable"
        f" (possibly in use by another instance of nsqd{holder})"
    )
    DataPath(tmp_path).release()


def test_the_same_process_cannot_have_it_twice_either(tmp_path: Path) -> None:
    path = DataPath(tmp_path)
    with pytest.raises(DataPathInUse, match=str(os.getpid()) if LOCKS.exists() else "in use"):
        DataPath(tmp_path)
    path.release()
    path.release()
    DataPath(tmp_path).release()


def test_a_data_path_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nowhere"):
        DataPath(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [".", "..", "...", "-", "a", "A", "aB", "a+b".replace("+", "-"), "x#ephemeral"])
def test_every_topic_lies_inside_the_data_path(tmp_path: Path, name: str) -> None:
    path = DataPath(tmp_path)
    directory = Path(path.topic_dir(name))

    assert directory.resolve().parent == tmp_path / "topics"
    DiskLog(directory, NODE)
    assert path.topics_on_disk() == [name]
    path.release()


@given(NAMES, NAMES)
def test_no_two_names_meet_even_where_case_does_not_count(one: str, other: str) -> None:
    assert (folder(one).lower() == folder(other).lower()) == (one == other)


@given(NAMES)
def test_a_name_is_found_back_from_its_folder(name: str) -> None:
    assert names.valid(name)
    assert unfold(folder(name)) == name
    assert unfold(folder(name, "c-"), "c-") == name


@given(st.text(max_size=20))
def test_a_folder_that_no_topic_has_is_no_topic(text: str) -> None:
    name = unfold(text)
    assert name is None or folder(name) == text


def test_a_topic_that_was_being_deleted_is_swept_away(tmp_path: Path) -> None:
    path = DataPath(tmp_path)
    DiskLog(path.topic_dir("stays"), NODE)
    DiskLog(path.topic_dir("goes"), NODE)
    os.rename(path.topic_dir("goes"), tmp_path / "topics" / "gone-0123")
    (tmp_path / "topics" / "stranger").mkdir()

    assert path.topics_on_disk() == ["stays"]
    assert sorted(os.listdir(tmp_path / "topics")) == ["stranger", "t-stays"]
    path.release()


def test_whether_the_disk_takes_anything_can_be_tried(tmp_path: Path) -> None:
    place = DataPath(tmp_path)
    place.try_writing(min_free=0)
    with pytest.raises(OSError, match="are to stay free"):
        place.try_writing(min_free=1 << 62)

    assert list(tmp_path.iterdir()) == []


def test_nobody_else_may_read_what_is_in_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        place = DataPath(tmp_path)
        log = DiskLog(place.topic_dir("t"), 1)
        log.append(kernel.frame_bodies([b"a"], 1 << 54, 1), 1, now=1, extras=[Extra(0, 1)])
        log.flush()
        SideLog(place.topic_dir("t"), "c").close()
        Journal(place.topic_dir("t")).close()
        Catalog(place.path).save([])
        StagedFiles(place.path, sync=False).write_intent("s", Intent(1, []))
        log.close()
        place.release()
    finally:
        os.umask(before)
    found = sorted(tmp_path.rglob("*"))

    assert len(found) > 8
    assert {oct(path.stat().st_mode & 0o777) for path in found if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in found if path.is_file()} == {"0o600"}
