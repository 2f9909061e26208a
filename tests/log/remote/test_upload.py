"""A data path to a remote log and back, on a folder, S3 and PostgreSQL."""

import os
import shutil
from pathlib import Path

import pytest

from lapwing.errors import ConfigError, LogError, NotReleased, RemoteDamaged, RemoteError, RemoteFailed
from lapwing.log.catalog import Catalog, ChannelEntry, TopicEntry
from lapwing.log.datapath import DataPath
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, Extra, LogOptions
from lapwing.log.offline import offline
from lapwing.log.remote import upload as uploading
from lapwing.log.remote.engines import Engine
from lapwing.log.remote.image import Image, loaded
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.log.remote.restore import restore
from lapwing.log.remote.upload import Uploaded, upload
from lapwing.log.side.sidelog import SideLog
from log.writing import NODE, bodies, publish

from .stage import FaultyEngine, append, messages, owned


class Broker:
    """A data path that a broker could have left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "topics").mkdir()

    def topic(self, name: str) -> str:
        return str(self.path / "topics" / f"t-{name}")

    def publish(self, topic: str, *texts: bytes, extras: list[Extra] | None = None) -> None:
        log = DiskLog(self.topic(topic), NODE, options=LogOptions(segment_bytes=300, merge_bytes=0))
        publish(log, texts, extras=extras or [])
        log.close()

    def upload(self, engine: Engine, *, take_over: bool = False) -> list[Uploaded]:
        held = DataPath(self.path)
        try:
            remote = RemoteLog(engine, owner="upload")
            return upload(
                held, remote, now=5, boot=0, node=3, take_over=take_over, report=lambda topic, done, todo: None
            )
        finally:
            held.release()


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    """Two topics; one has headers, a channel that has finished some, a deferred message and a straggler."""
    broker = Broker(tmp_path / "data")
    extras = [Extra(1, 0, {"k": "v"}), Extra(3, 7_000, {})]
    broker.publish("orders", *(b"%d" % number for number in range(10)), extras=extras)
    broker.publish("orders", *(b"more %d" % number for number in range(30)))
    broker.publish("payments", b"one")
    journal = Journal(broker.topic("orders"))
    journal.progress("billing", 5, [(2, 4)], {2: 3})
    journal.deferred("billing", [(4, 99, 1)], [])
    journal.flush()
    journal.fanned_out(40)
    journal.close()
    side = SideLog(broker.topic("orders"), "billing")
    side.put(2, b"frame of 2")
    side.put(3, b"frame of 3")
    side.flush()
    side.drop([3])
    side.flush()
    side.close()
    channels = [ChannelEntry("billing", paused=True)]
    Catalog(broker.path).save([TopicEntry("orders", channels=channels), TopicEntry("payments")])
    (broker.path / "clock").write_text('{"boot": "x", "since_boot": -5, "skew": 0}')
    (broker.path / "staging" / "s-sink").mkdir(parents=True)
    (broker.path / "staging" / "s-sink" / "ledger").write_bytes(b"{}")
    (broker.path / "resting").write_text("of this machine")
    return broker


def restored(engine: Engine, path: Path) -> Image:
    return restore(RemoteLog(engine, owner="restore"), str(path), now=9, boot=0, report=lambda topic, done: None)


def contents(path: Path) -> dict[str, object]:
    """What is in a data path, as a broker would read it."""
    found: dict[str, object] = {}
    for folder in sorted((path / "topics").iterdir()):
        log = DiskLog(folder, 0)
        state = Journal(folder).load()
        side = SideLog(str(folder), "billing") if (folder / "side").is_dir() else None
        found[folder.name] = (
            log.identity, log.node, log.first, log.end, bodies(log), log.rows(log.first, log.end), log.lost,
            [log.timestamp(sequence) for sequence in range(log.first, log.end)], state.channels, state.fanned_out,
            {sequence: side.frame(sequence) for sequence in side.sequences()} if side is not None else {},
        )  # fmt: skip
        assert log.notes == []
        log.close()
        if side is not None:
            side.close()
    for name in ("nsqd.dat", "clock", "staging/s-sink/ledger"):
        found[name] = (path / name).read_bytes()
    return found


def test_a_restored_data_path_has_all_that_the_uploaded_one_had(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    before = contents(broker.path)
    written = broker.upload(engine)
    shutil.rmtree(broker.path)
    image = restored(engine, tmp_path / "new")

    assert [(each.topic, each.first, each.end, each.messages) for each in written] == [
        ("orders", 0, 40, 40), ("payments", 0, 1, 1),
    ]  # fmt: skip
    assert contents(tmp_path / "new") == before
    assert (image.topics["orders"].messages, image.topics["payments"].end) == (40, 1)
    assert not (tmp_path / "new" / "resting").exists()
    place = DataPath(tmp_path / "new")
    assert [event for event in offline.verify(place) if isinstance(event, offline.Problem)] == []
    place.release()


def test_a_restored_log_takes_messages_behind_those_it_has(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    broker.upload(engine)
    restored(engine, tmp_path / "new")

    log = DiskLog(tmp_path / "new" / "topics" / "t-orders", 0)
    assert publish(log, [b"next"]) == 40
    assert bodies(log, 38) == [b"more 28", b"more 29", b"next"]
    log.close()


def test_an_upload_writes_only_what_is_new(
    broker: Broker, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "SLICE_BYTES", 500)
    monkeypatch.setattr(uploading, "_BLOCK", 200)
    monkeypatch.setattr(uploading, "_SMALL", 700)
    broker.upload(engine)
    slices = {name for name, _ in engine.find("slices")}
    broker.publish("orders", b"new 1", b"new 2")
    before = contents(broker.path)
    orders, payments = broker.upload(engine)
    kept = {name for name, _ in engine.find("slices")} & slices

    assert 2 <= orders.messages < 25
    assert payments.messages == 1  # a small slice is written again
    assert len(kept) >= 2
    restored(engine, tmp_path / "new")
    assert contents(tmp_path / "new") == before


def test_a_topic_that_was_deleted_or_made_again_is_so_after_an_upload(
    broker: Broker, engine: Engine, tmp_path: Path
) -> None:
    broker.upload(engine)
    shutil.rmtree(broker.topic("orders"))
    broker.publish("orders", b"of another log")
    broker.publish("new", b"x")
    before = contents(broker.path)
    broker.upload(engine)
    shutil.rmtree(broker.topic("new"))
    broker.upload(engine)
    restored(engine, tmp_path / "new")

    del before["t-new"]
    assert contents(tmp_path / "new") == before


def test_segments_that_retention_has_deleted_do_not_stop_an_upload(
    broker: Broker, engine: Engine, tmp_path: Path
) -> None:
    broker.upload(engine)
    for path in Path(broker.topic("orders")).glob("00000000000000000000.*"):
        path.unlink()
    log = DiskLog(broker.topic("orders"), 0)
    first = log.first
    log.close()
    broker.upload(engine)
    restored(engine, tmp_path / "new")

    again = DiskLog(tmp_path / "new" / "topics" / "t-orders", 0)
    assert first > 0
    assert (again.first <= first, again.end) == (True, 40)
    assert bodies(again, 39) == [b"more 29"]
    again.close()


def test_a_log_that_begins_later_and_has_a_gap_keeps_its_sequences(engine: Engine, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for number in range(6):
        broker.publish("orders", *(b"%d %d" % (number, each) for each in range(8)))
    segments = sorted(Path(broker.topic("orders")).glob("*.log"))
    assert len(segments) > 3
    for path in (segments[0], segments[2]):
        path.unlink()
        path.with_suffix(".idx").unlink()
    log = DiskLog(broker.topic("orders"), 0)
    first, held = log.first, bodies(log)
    log.close()
    (found,) = broker.upload(engine)
    restored(engine, tmp_path / "new")

    again = DiskLog(tmp_path / "new" / "topics" / "t-orders", 0)
    assert (again.first, again.end, bodies(again)) == (first, 48, held)
    assert found.lost == 48 - first - len(held) > 0
    again.close()


def test_another_data_path_is_refused_and_nothing_is_changed(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    broker.upload(engine)
    before = [name for name, _ in engine.find("slices")]
    other = Broker(tmp_path / "other")
    other.publish("orders", b"x")

    with pytest.raises(RemoteError, match="holds another data path, of the topics orders, payments"):
        other.upload(engine)
    assert [name for name, _ in engine.find("slices")] == before
    broker.upload(engine)  # it was released


def test_an_older_data_path_is_refused(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    shutil.copytree(broker.path, tmp_path / "older")
    broker.publish("orders", b"newer")
    broker.upload(engine)
    older = Broker.__new__(Broker)
    older.path = tmp_path / "older"

    with pytest.raises(RemoteError, match="orders ends at 41 there and at 40 here; restore it instead"):
        older.upload(engine)
    assert loaded(RemoteLog(engine, owner="x")).topics["orders"].end == 41


def test_a_remote_log_that_was_not_released_is_taken_over_only_when_asked(broker: Broker, engine: Engine) -> None:
    owned(engine, "nsqd")

    with pytest.raises(NotReleased):
        broker.upload(engine)
    assert broker.upload(engine, take_over=True)


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
@pytest.mark.parametrize("step", range(0, 22, 3))
def test_an_upload_that_was_interrupted_anywhere_leaves_the_one_before(
    broker: Broker, engine: Engine, tmp_path: Path, step: int, fate: str
) -> None:
    broker.upload(engine)
    broker.publish("orders", b"new")
    faulty = FaultyEngine(engine)
    faulty.plan = [*[""] * step, fate]
    try:
        broker.upload(faulty)
        ends = {41}
    except RemoteFailed:
        ends = {40, 41}

    assert loaded(RemoteLog(engine, owner="x")).topics["orders"].end in ends
    broker.upload(engine, take_over=True)
    assert loaded(RemoteLog(engine, owner="x")).topics["orders"].end == 41


def test_records_behind_a_checkpoint_are_restored_too(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    broker.upload(engine)
    log = owned(engine)
    known = loaded(log).topics["payments"]
    append(log, messages(1, [b"two", b"three"], "payments", known.log_id))
    restored(engine, tmp_path / "new")

    again = DiskLog(tmp_path / "new" / "topics" / "t-payments", 0)
    assert bodies(again) == [b"one", b"two", b"three"]
    again.close()


def test_what_a_start_would_have_to_mend_is_not_uploaded(broker: Broker, engine: Engine) -> None:
    broker.upload(engine)
    journal = Path(broker.topic("orders"), "journal")
    identity = Path(broker.topic("payments"), "identity")
    for path in (journal, identity):
        before = path.read_bytes()
        path.write_bytes(before[:20] + b"!" + before[21:])
        with pytest.raises(LogError, match="start nsqd once, which repairs it"):
            broker.upload(engine)
        path.write_bytes(before)

    broker.upload(engine)  # it was released


def test_a_folder_that_is_used_is_not_restored_to(broker: Broker, engine: Engine) -> None:
    broker.upload(engine)

    with pytest.raises(ConfigError, match="exists and is not empty"):
        restored(engine, broker.path)


def test_a_remote_log_that_is_damaged_is_not_restored_in_part(broker: Broker, engine: Engine, tmp_path: Path) -> None:
    broker.upload(engine)
    name = next(name for name, _ in engine.find("slices"))
    data = engine.read(name)
    assert data is not None
    for damaged in (data[:-1], data[:50] + b"!" + data[51:], None):
        engine.delete([name])
        if damaged is not None:
            engine.create(name, damaged)
        with pytest.raises(RemoteDamaged, match=name):
            restored(engine, tmp_path / "new")
    assert os.listdir(tmp_path) in (["data"], ["data", "remote"], ["remote", "data"])


def test_what_an_interrupted_restore_left_is_no_data_path_and_is_replaced(
    broker: Broker, engine: Engine, tmp_path: Path
) -> None:
    broker.upload(engine)
    slow = FaultyEngine(engine)
    slow.plan = [*[""] * 3, "lost"]
    with pytest.raises(RemoteFailed):
        restored(slow, tmp_path / "new")

    assert not (tmp_path / "new").exists()
    restored(engine, tmp_path / "new")
    assert not (tmp_path / "new.restoring").exists()


def test_an_empty_place_is_no_remote_log(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no remote log"):
        restored(engine, tmp_path / "new")
    assert not (tmp_path / "new").exists()
