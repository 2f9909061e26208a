"""A finished file to another directory: on the same filesystem, on another one, and when we are killed meanwhile."""

import errno
import os
import stat

import pytest

from lapwing.tools.filelog import FileLog, Rules
from lapwing.tools.filemove import move
from lapwing.tools.filenames import Names

CONTENT = b"line\n" * 500_000  # more than one block
STEPS = {name: getattr(os, name) for name in ("link", "open", "fchmod", "fsync", "replace", "unlink")}


class Killed(BaseException):
    """As good as kill -9: nothing of ours catches it."""


@pytest.fixture
def elsewhere(monkeypatch):
    """Hard links fail as they do from one filesystem to another."""

    def link(source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "work" / "a.log"
    path.write_bytes(CONTENT)
    path.chmod(0o640)
    return path


def test_a_file_is_copied_whole_to_another_filesystem(tmp_path, source, elsewhere):
    target = tmp_path / "out" / "a.log"
    move(source, target)

    assert target.read_bytes() == CONTENT
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(tmp_path / "out") == ["a.log"]
    assert not source.exists()


def test_a_copy_overwrites_nothing(tmp_path, source, elsewhere):
    target = tmp_path / "out" / "a.log"
    target.write_bytes(b"older")
    with pytest.raises(FileExistsError):
        move(source, target)

    assert target.read_bytes() == b"older"
    assert source.read_bytes() == CONTENT


def test_a_name_that_is_taken_during_the_copy_stays_with_its_file(tmp_path, source, elsewhere, monkeypatch):
    target = tmp_path / "out" / "a.log"
    fchmod = os.fchmod

    def race(fd, mode):
        fchmod(fd, mode)
        target.write_bytes(b"theirs")

    monkeypatch.setattr(os, "fchmod", race)
    with pytest.raises(FileExistsError):
        move(source, target)

    assert target.read_bytes() == b"theirs"
    assert source.read_bytes() == CONTENT
    assert os.listdir(tmp_path / "out") == ["a.log"]


def test_a_full_disk_there_costs_nothing_here(tmp_path, source, elsewhere, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        move(source, tmp_path / "out" / "a.log")

    assert source.read_bytes() == CONTENT
    assert os.listdir(tmp_path / "out") == []


def test_other_errors_of_a_link_are_not_hidden_by_a_copy(tmp_path, source, monkeypatch):
    def link(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Input/output error"):
        move(source, tmp_path / "out" / "a.log")

    assert source.read_bytes() == CONTENT


@pytest.mark.parametrize("linked", [True, False])
def test_killed_at_any_step_the_file_is_whole_in_one_place_at_least(tmp_path, monkeypatch, linked):
    """Dies at the first step, then at the second, and so on until a move survives."""
    for last in range(30):
        directory = tmp_path / str(last)
        work, out = directory / "work", directory / "out"
        work.mkdir(parents=True)
        out.mkdir()
        (work / "a.log").write_bytes(CONTENT)
        taken: list[str] = []

        def counted(name, real, last=last, taken=taken):
            def call(*arguments, **keywords):
                if len(taken) == last:
                    raise Killed
                taken.append(name)
                if name == "link" and not linked:
                    raise OSError(errno.EXDEV, "elsewhere")
                return real(*arguments, **keywords)

            return call

        with monkeypatch.context() as patch:
            for name, real in STEPS.items():
                patch.setattr(os, name, counted(name, real))
            try:
                move(work / "a.log", out / "a.log")
            except Killed:
                survived = False
            else:
                survived = True
        found = [path.read_bytes() for path in (work / "a.log", out / "a.log") if path.exists()]
        assert CONTENT in found
        if (out / "a.log").exists():
            assert (out / "a.log").read_bytes() in (CONTENT, b"")
        if survived:
            break

    assert survived
    assert len(taken) >= (3 if linked else 6)


def test_nsq_to_file_moves_what_is_done_to_another_filesystem(tmp_path, elsewhere):
    names = Names.of(
        "t", filename_format="<TOPIC><REV>.log", datetime_format="", host="h", revisions=True, gzip=False
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t-000001.log").write_bytes(b"older\n")
    log = FileLog(names, Rules(tmp_path / "out", tmp_path / "work"))
    for body in (b"a", b"b"):
        log.write(body, 0.0)
        log.close()

    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {"t-000000.log": b"a\n", "t-000001.log": b"older\n", "t-000002.log": b"b\n"}
    assert os.listdir(tmp_path / "work") == []
