"""Which topics and channels exist, in a file that NSQ can read."""

import json
import re
from pathlib import Path

import pytest

from lapwing.errors import LogError, WriteFailed
from lapwing.log.catalog import Catalog, ChannelEntry, TopicEntry

from .faulty import FaultyDisk


def test_a_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    assert Catalog(tmp_path).load() == []


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    topics = [
        TopicEntry("t", True, [ChannelEntry("c", True), ChannelEntry("d", False, {"max_attempts": 5})]),
        TopicEntry("u", settings={"retention_bytes": 1}),
    ]
    Catalog(tmp_path).save(topics)

    assert Catalog(tmp_path).load() == topics


def without_checksum(path: Path) -> str:
    """The file, but for the checksum that it begins with."""
    return re.sub(r'^\{"crc":\d+,', "{", (path / "nsqd.dat").read_text())


def test_the_file_is_that_of_nsq(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.save([])
    assert without_checksum(tmp_path) == '{"topics":null,"version":"1.3.0"}'
    catalog.save([TopicEntry("t", channels=[ChannelEntry("c")]), TopicEntry("u")])

    assert without_checksum(tmp_path) == (
        '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]},'
        '{"name":"u","paused":false,"channels":null}],"version":"1.3.0"}'
    )
    assert (tmp_path / "nsqd.dat").stat().st_mode & 0o777 == 0o600


def test_ephemeral_ones_are_left_out_but_created_when_found(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.save([TopicEntry("t#ephemeral"), TopicEntry("t", channels=[ChannelEntry("c#ephemeral")])])
    assert catalog.load() == [TopicEntry("t")]
    (tmp_path / "nsqd.dat").write_text('{"topics":[{"name":"x#ephemeral"}]}')

    assert catalog.load() == [TopicEntry("x#ephemeral")]


def test_invalid_names_are_skipped_with_a_warning(tmp_path: Path) -> None:
    document = {"topics": [{"name": "a b"}, {"name": "t", "channels": [{"name": ""}, {"name": "c"}]}, {"paused": True}]}
    (tmp_path / "nsqd.dat").write_text(json.dumps(document))
    catalog = Catalog(tmp_path)

    assert catalog.load() == [TopicEntry("t", channels=[ChannelEntry("c")])]
    assert len(catalog.warnings) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"topics":7}', '{"topics":["t"]}', "\xff", "[" * 100_000])
def test_an_empty_or_malformed_file_is_fatal_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nsqd.dat").write_text(text, encoding="latin-1")

    with pytest.raises(LogError, match=r"nsqd\.dat"):
        Catalog(tmp_path).load()


TOPICS = [TopicEntry("orders", True, [ChannelEntry("c", True, {"max_attempts": 5})]), TopicEntry("u")]


@pytest.mark.parametrize("place", range(8, 160, 8))
def test_a_damaged_file_is_never_believed_and_is_set_aside(tmp_path: Path, place: int) -> None:
    Catalog(tmp_path).save(TOPICS, {"p": {"pattern": "x*"}})
    data = bytearray((tmp_path / "nsqd.dat").read_bytes())
    data[place] ^= 2
    (tmp_path / "nsqd.dat").write_bytes(data)
    catalog = Catalog(tmp_path)
    with pytest.raises(LogError, match="does not match its checksum"):
        catalog.load()

    assert (catalog.open(), catalog.policies) == ([], {})
    assert "nsqd.dat.damaged" in catalog.warnings[0]
    assert (tmp_path / "nsqd.dat.damaged").read_bytes() == data
    assert not (tmp_path / "nsqd.dat").exists()


@pytest.mark.parametrize("kept", [20, 100, -1])
def test_a_file_that_was_cut_off_is_set_aside(tmp_path: Path, kept: int) -> None:
    Catalog(tmp_path).save(TOPICS)
    (tmp_path / "nsqd.dat").write_bytes((tmp_path / "nsqd.dat").read_bytes()[:kept])

    assert Catalog(tmp_path).open() == []


def test_a_file_without_a_checksum_is_read_as_it_is(tmp_path: Path) -> None:
    Catalog(tmp_path).save(TOPICS)
    (tmp_path / "nsqd.dat").write_text(without_checksum(tmp_path))

    assert Catalog(tmp_path).open() == TOPICS


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").mkdir()

    with pytest.raises(LogError, match=r"nsqd\.dat - Is a directory"):
        Catalog(tmp_path).load()


def test_an_object_without_topics_is_fine(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_text("{}")

    assert Catalog(tmp_path).load() == []


def test_a_refused_save_leaves_the_old_catalog(tmp_path: Path) -> None:
    disk = FaultyDisk(short=5)
    catalog = Catalog(tmp_path, disk=disk)
    catalog.save([TopicEntry("old")])
    for number in range(4):
        disk.arm(number)
        with pytest.raises(WriteFailed):
            catalog.save([TopicEntry("new")])
        if number < 4 - 1:
            assert catalog.load() == [TopicEntry("old")]
    assert not list(tmp_path.glob("*.tmp"))
    catalog.save([TopicEntry("new")])
    assert catalog.load() == [TopicEntry("new")]
