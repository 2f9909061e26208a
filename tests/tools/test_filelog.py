"""One topic's files: names, rotation, what is safe when."""

import gzip
import os
import stat
import subprocess
import time

import pytest

from lapwing.tools.filelog import FileLog, Rules
from lapwing.tools.filenames import Names, datetime_text, host_text
from lapwing.tools.program import Failure

NOON = time.mktime((2026, 11, 15, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0
UMASK = os.umask(0o022)
os.umask(UMASK)


def log_in(tmp_path, *, work=None, pattern="<TOPIC><REV>.<DATETIME>.log", **rules):
    output = tmp_path / "out"
    made = Rules(output, tmp_path / work if work else output, **rules)
    names = Names.of(
        "t", filename_format=pattern, datetime_format="%H", host="h", revisions=made.revisions,
        gzip=bool(made.gzip_level),
    )
    return FileLog(names, made)


def files(tmp_path, folder="out"):
    directory = tmp_path / folder
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())} if directory.exists() else {}


def test_known_codes_become_the_time_and_everything_else_stays():
    assert datetime_text("%Y-%m-%d_%H 2006 Jan 15 %Q %%", NOON) == "2026-11-15_12 2006 Jan 15 %Q %"


def test_the_host_is_short_unless_told_otherwise():
    assert host_text("", "a.b.c") == "a"
    assert host_text("x-<SHORT_HOST>-<HOSTNAME>", "a.b.c") == "x-a-a.b.c"


def test_revisions_need_a_place():
    with pytest.raises(Failure, match="missing <REV>"):
        Names.of("t", filename_format="<TOPIC>", datetime_format="", host="h", revisions=True, gzip=False)


def test_names_are_filled_in():
    names = Names.of(
        "t", filename_format="<TOPIC>.<HOST>.<PID><REV>.<DATETIME>", datetime_format="%H", host="h",
        revisions=True, gzip=True,
    )  # fmt: skip

    assert names.revision(names.at(NOON), 7) == f"t.h.{os.getpid()}-000007.12.gz"


def test_messages_are_lines_of_one_file_and_a_second_start_appends(tmp_path):
    for number in range(2):
        log = log_in(tmp_path)
        log.write(b"a%d" % number, NOON)
        log.write(b"b%d" % number, NOON)
        log.close()

    assert files(tmp_path) == {"t.12.log": b"a0\nb0\na1\nb1\n"}


def test_a_line_that_was_torn_is_not_glued_to_the_next(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t.12.log").write_bytes(b"whole\nto")
    log = log_in(tmp_path)
    log.write(b"torn", NOON)
    log.close()

    assert files(tmp_path) == {"t.12.log": b"whole\nto\ntorn\n"}


def test_a_write_that_fails_names_the_file(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t.12.log").symlink_to("/dev/full")
    log = log_in(tmp_path)
    log.write(b"x", NOON)

    with pytest.raises(OSError, match=r"No space left on device: '.*t\.12\.log'"):
        log.sync()


def test_what_is_synced_is_on_disk_before_the_file_is_closed(tmp_path):
    log = log_in(tmp_path)
    log.write(b"x", NOON)
    log.sync()

    assert files(tmp_path) == {"t.12.log": b"x\n"}


def test_a_new_hour_is_a_new_file(tmp_path):
    log = log_in(tmp_path)
    assert log.write(b"x", NOON)
    assert not log.write(b"y", NOON + 1)
    assert log.write(b"z", NOON + HOUR)
    log.close()

    assert files(tmp_path) == {"t.12.log": b"x\ny\n", "t.13.log": b"z\n"}


def test_an_idle_topic_gets_an_empty_file_unless_those_are_skipped(tmp_path):
    log = log_in(tmp_path)
    assert log.tick(NOON)
    log.close()
    assert files(tmp_path) == {"t.12.log": b""}

    skipping = log_in(tmp_path / "other", skip_empty_files=True)
    assert not skipping.tick(NOON)
    assert files(tmp_path / "other") == {}


def test_a_file_over_the_size_is_followed_by_the_next_revision(tmp_path):
    log = log_in(tmp_path, rotate_size=5)
    for body in (b"1234", b"5678", b"9"):
        log.write(body, NOON)
    log.close()

    assert files(tmp_path) == {"t-000000.12.log": b"1234\n5678\n", "t-000001.12.log": b"9\n"}


def test_a_size_below_nothing_is_no_limit(tmp_path):
    log = log_in(tmp_path, rotate_size=-5)
    log.write(b"1234", NOON)
    log.write(b"5678", NOON)
    log.close()

    assert list(files(tmp_path).values()) == [b"1234\n5678\n"]


def test_a_file_that_is_already_too_big_is_not_appended_to(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t-000000.12.log").write_bytes(b"123456789\n")
    log = log_in(tmp_path, rotate_size=5)
    log.write(b"x", NOON)
    log.close()

    assert files(tmp_path)["t-000001.12.log"] == b"x\n"


def test_an_interval_begins_a_new_revision_and_revisions_start_anew_with_a_new_name(tmp_path):
    log = log_in(tmp_path, rotate_interval=60.0)
    log.write(b"1", NOON)
    log.write(b"2", NOON + 59)
    log.write(b"3", NOON + 61)
    log.write(b"4", NOON + HOUR + 1)
    log.close()

    assert files(tmp_path) == {"t-000000.12.log": b"1\n2\n", "t-000001.12.log": b"3\n", "t-000000.13.log": b"4\n"}


def test_every_sync_ends_a_gzip_member_so_that_the_file_can_be_read_at_any_time(tmp_path):
    log = log_in(tmp_path, gzip_level=6)
    log.write(b"one", NOON)
    log.sync()
    [path] = (tmp_path / "out").iterdir()
    assert path.name == "t-000000.12.log.gz"
    assert gzip.decompress(path.read_bytes()) == b"one\n"

    log.write(b"two", NOON)
    log.sync()
    log.sync()
    log.close()
    assert gzip.decompress(path.read_bytes()) == b"one\ntwo\n"


def test_gzip_files_are_whole_at_rotation(tmp_path):
    log = log_in(tmp_path, gzip_level=1, rotate_size=10)
    for number in range(9):
        log.write(b"%06d" % number, NOON)
    log.close()

    contents = [gzip.decompress(data) for data in files(tmp_path).values()]
    assert b"".join(contents) == b"".join(b"%06d\n" % number for number in range(9))
    assert len(contents) == 5


def test_a_gzip_file_without_messages_is_one_too(tmp_path):
    log = log_in(tmp_path, gzip_level=6)
    log.tick(NOON)
    log.close()
    [path] = (tmp_path / "out").iterdir()

    subprocess.run(["gzip", "--test", path], check=True)


def test_gzip_never_appends_to_what_another_run_left(tmp_path):
    for _ in range(2):
        log = log_in(tmp_path, gzip_level=6)
        log.write(b"x", NOON)
        log.close()

    assert list(files(tmp_path)) == ["t-000000.12.log.gz", "t-000001.12.log.gz"]


def test_files_in_work_are_moved_when_they_are_done(tmp_path):
    log = log_in(tmp_path, work="work")
    log.write(b"x", NOON)
    log.sync()
    assert files(tmp_path) == {}
    assert files(tmp_path, "work") == {"t-000000.12.log": b"x\n"}

    log.close()
    assert files(tmp_path) == {"t-000000.12.log": b"x\n"}
    assert files(tmp_path, "work") == {}


def test_after_a_close_with_a_work_dir_the_next_message_begins_the_next_revision(tmp_path):
    log = log_in(tmp_path, work="work")
    for body in (b"x", b"y"):
        log.write(body, NOON)
        log.close()  # as SIGHUP asks for
    log.tick(NOON)
    log.close()

    assert files(tmp_path) == {"t-000000.12.log": b"x\n", "t-000001.12.log": b"y\n", "t-000002.12.log": b""}


def test_nothing_in_the_output_dir_is_overwritten_by_a_move(tmp_path):
    log = log_in(tmp_path, work="work")
    log.write(b"mine", NOON)
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "t-000000.12.log").write_bytes(b"theirs")
    log.close()

    assert files(tmp_path) == {"t-000000.12.log": b"theirs", "t-000001.12.log": b"mine\n"}


def test_a_tick_that_closes_a_file_leaves_the_next_to_the_next_message(tmp_path):
    log = log_in(tmp_path, work="work", skip_empty_files=True)
    log.write(b"x", NOON)
    assert log.tick(NOON + HOUR)
    assert not log.open
    assert not log.tick(NOON + HOUR)
    log.write(b"y", NOON + HOUR)
    log.close()

    assert files(tmp_path) == {"t-000000.12.log": b"x\n", "t-000000.13.log": b"y\n"}


def test_directories_in_the_format_are_made(tmp_path):
    log = log_in(tmp_path, pattern="<TOPIC>/<DATETIME>/x.log")
    log.write(b"x", NOON)
    log.close()

    assert (tmp_path / "out" / "t" / "12" / "x.log").read_bytes() == b"x\n"
    modes = [stat.S_IMODE((tmp_path / made).stat().st_mode) for made in ("out", "out/t", "out/t/12")]
    assert modes == [0o770 & ~UMASK] * 3
