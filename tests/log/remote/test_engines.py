"""What every engine has to do, on a folder, S3 and PostgreSQL."""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusters import Cluster
from lapwing.errors import ConfigError, RemoteFailed
from lapwing.log.disk import Disk
from lapwing.log.remote.engines import Engine, open_engine
from lapwing.log.remote.folder import Folder


def test_an_object_is_created_once(engine: Engine) -> None:
    assert engine.create("records/1", b"one")
    assert not engine.create("records/1", b"two")

    assert engine.read("records/1") == b"one"


def test_an_object_may_be_empty_or_long_and_have_any_bytes(engine: Engine) -> None:
    long = bytes(range(256)) * 20_000

    assert engine.create("claims/1", b"")
    assert engine.create("slices/1.a", long)

    assert engine.read("claims/1") == b""
    assert engine.read("slices/1.a") == long


def test_there_is_nothing_in_an_engine_that_nobody_has_used(engine: Engine) -> None:
    assert engine.read("records/1") is None
    assert list(engine.find("records")) == []
    engine.delete(["records/1"])


def test_objects_are_found_in_order_behind_a_name_and_below_a_prefix(engine: Engine) -> None:
    for name in ("records/03", "records/01", "recordsmore/02", "records/02", "slices/01"):
        engine.create(name, name.encode())

    assert list(engine.find("records")) == [("records/01", 10), ("records/02", 10), ("records/03", 10)]
    assert [name for name, _ in engine.find("records", after="records/01")] == ["records/02", "records/03"]
    assert list(engine.find("records", after="records/03")) == []


def test_more_objects_are_found_than_one_answer_holds(engine: Engine) -> None:
    count = 1200 if engine.place.startswith("s3:") else 100
    names = [f"records/{number:04d}" for number in range(count)]
    for name in names:
        engine.create(name, b"x")

    assert [name for name, _ in engine.find("records")] == names
    engine.delete(names[:-50])
    assert [name for name, _ in engine.find("records")] == names[-50:]


def test_what_is_deleted_is_gone_and_may_be_created_again(engine: Engine) -> None:
    engine.create("records/1", b"one")
    engine.create("records/2", b"two")

    engine.delete(["records/1", "records/9"])

    assert [name for name, _ in engine.find("records")] == ["records/2"]
    assert engine.create("records/1", b"again")


def test_of_many_who_create_an_object_at_once_one_does(url: str) -> None:
    engines = [open_engine(url) for _ in range(8)]
    engines[0].create("claims/1", b"")

    def create(number: int) -> bool:
        return engines[number].create("records/1", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(8)))
    found = engines[0].read("records/1")
    for engine in engines:
        engine.close()

    assert created.count(True) == 1
    assert found == b"%d" % created.index(True)


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        open_engine(f"file://{tmp_path}/not-mounted")


def test_a_folder_that_goes_away_is_not_made_again(tmp_path: Path) -> None:
    engine = open_engine(f"file://{tmp_path}/")
    moved = open_engine(f"file://{tmp_path}/") and tmp_path.rename(tmp_path.with_name("moved"))

    with pytest.raises(RemoteFailed):
        engine.create("records/1", b"one")
    assert moved.is_dir()
    assert not tmp_path.exists()


def test_a_folder_whose_disk_is_unmounted_takes_nothing_until_it_is_back(tmp_path: Path) -> None:
    mounted, disk = tmp_path / "mounted", tmp_path / "disk"
    mounted.mkdir()
    engine = open_engine(f"file://{mounted}")
    engine.create("claims/1", b"")
    engine.create("records/1", b"one")
    mounted.rename(disk)
    mounted.mkdir()  # the mount point is there without its disk

    with pytest.raises(RemoteFailed, match="is the disk mounted"):
        engine.create("records/2", b"two")
    with pytest.raises(RemoteFailed, match="is the disk mounted"):
        open_engine(f"file://{mounted}").create("slices/1.a", b"slice")
    assert list(mounted.iterdir()) == []
    mounted.rmdir()
    disk.rename(mounted)
    assert engine.create("records/2", b"two")


def test_what_a_crash_left_unfinished_in_a_folder_is_not_found_and_swept_away(tmp_path: Path) -> None:
    engine = open_engine(f"file://{tmp_path}")
    engine.create("claims/1", b"")
    engine.create("records/1", b"one")
    (tmp_path / "records" / "2.0a0b0c0d.tmp").write_bytes(b"tw")

    assert [name for name, _ in engine.find("records")] == ["records/1"]
    engine.delete(["records/1"])
    assert list((tmp_path / "records").iterdir()) == []


def test_a_file_that_another_process_sweeps_away_unfinished_is_written_again(tmp_path: Path) -> None:
    sweeper = open_engine(f"file://{tmp_path}")
    sweeper.create("claims/1", b"")

    class Swept(Disk):
        sweeps = 3

        def prepare(self, path: str, parts: Iterable[bytes], *, sync: bool) -> str:
            temporary = super().prepare(path, parts, sync=sync)
            if self.sweeps:
                self.sweeps -= 1
                sweeper.delete(["claims/1"])
            return temporary

    assert Folder(str(tmp_path), disk=Swept()).create("claims/2", b"two")

    assert sweeper.read("claims/2") == b"two"
    assert [each.name for each in (tmp_path / "claims").iterdir()] == ["2"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://host/x", "no place for a remote log"),
        ("/var/lib/x", "no place for a remote log"),
        ("file://host/x", "expected file:///FOLDER"),
        ("s3://key:secret@bucket/x", "keys come from the environment"),
        ("s3://bucket/x?region=here", "keys come from the environment"),
        ("postgresql://host/db?nonsense=1", "nonsense"),
        ("postgresql://host/db?table=", "no name of a table"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        open_engine(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("url", "library"), [("s3://bucket/x", "obstore"), ("postgresql://h/db", "psycopg")])
def test_a_library_that_is_missing_is_named_with_the_remedy(
    url: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lapwing.log.remote.objects", "lapwing.log.remote.postgresql"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigError, match=rf"needs {library}: pip install 'lapwing\[replicated\]'"):
        open_engine(url)


def test_a_password_is_not_shown() -> None:
    engine = open_engine("postgresql://me:secret@127.0.0.1:1/db?password=secret&table=t")

    with pytest.raises(RemoteFailed) as caught:
        engine.read("records/1")
    assert "secret" not in f"{caught.value} {engine.place}"
    assert engine.place == "postgresql://me@127.0.0.1:1/db?table=t"


def test_postgresql_is_reached_again_after_its_connection_broke(cluster: Cluster) -> None:
    engine = open_engine(f"postgresql://lapwing@/postgres?host={cluster.folder}&table=broken")
    other = open_engine(f"postgresql://lapwing@/postgres?host={cluster.folder}&table=broken")
    engine.create("records/1", b"one")
    other.create("records/2", b"two")
    terminate(cluster)

    with pytest.raises(RemoteFailed):
        engine.read("records/1")
    assert engine.read("records/1") == b"one"
    engine.close()
    other.close()


def terminate(cluster: Cluster) -> None:
    import psycopg

    with psycopg.connect(f"postgresql://lapwing@/postgres?host={cluster.folder}") as connection:
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lapwing'"
        connection.execute(text)
