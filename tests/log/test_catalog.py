"""Which topics and channels exist, in a file that NSQ can read."""

import json
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


def test_the_file_is_that_of_nsq(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.save([])
    assert (tmp_path / "nsqd.dat").read_text() == '{"topics":null,"version":"1.3.0"}'
    catalog.save([TopicEntry("t", channels=[ChannelEntry("c")]), TopicEntry("u")])

    assert (tmp_path / "nsqd.dat").read_text() == (
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
