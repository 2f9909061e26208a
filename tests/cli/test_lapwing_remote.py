"""`lapwing remote`, and the nsqd that is started on what it restores."""

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from commanding import lapwing, lapwing_json, process

import daemons
from clusters import S3, Cluster, cluster, s3
from lapwing.client.sync import SyncConsumer, SyncProducer

__all__ = ["cluster", "s3"]


@pytest.fixture(params=["folder", "s3", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty remote log."""
    if request.param == "s3":
        store: S3 = request.getfixturevalue("s3")
        store.make_bucket(f"bucket-{tmp_path.name[-20:].strip('-_').replace('_', '-')}")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return f"s3://bucket-{tmp_path.name[-20:].strip('-_').replace('_', '-')}/nsqd"
    if request.param == "postgresql":
        database: Cluster = request.getfixturevalue("cluster")
        return f"postgresql://lapwing@/postgres?host={database.folder}&table={tmp_path.name.replace('-', '_')[-20:]}"
    return folder(tmp_path)


def folder(tmp_path: Path) -> str:
    (tmp_path / "remote").mkdir()
    return f"file://{tmp_path}/remote"


def finish(nsqd: daemons.Daemon, count: int) -> list[tuple[bytes, dict[str, str]]]:
    """Consume and finish so many messages of a channel."""
    found = []
    with SyncConsumer("orders", "billing", nsqd=nsqd.tcp, max_in_flight=1) as consumer:
        while len(found) < count:
            message = consumer.get(timeout=60)
            assert message is not None, found
            found.append((message.body, dict(message.headers)))
            message.finish()
    return found


def depth(nsqd: daemons.Daemon) -> int:
    with urllib.request.urlopen(f"{nsqd.url}/stats?format=json&topic=orders") as answer:
        (topic,) = json.load(answer)["topics"]
    return int(topic["channels"][0]["depth"])


def publish(nsqd: daemons.Daemon, *bodies: bytes) -> None:
    with SyncProducer(nsqd=nsqd.tcp) as producer:
        for body in bodies:
            producer.publish("orders", body, headers={"n": body.decode()})


def test_an_nsqd_whose_machine_is_lost_continues_with_what_was_uploaded(url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with daemons.start_nsqd(data) as nsqd:
        lapwing("topic", "create", "orders", "--channel", "billing", daemon=nsqd)
        publish(nsqd, b"1", b"2", b"3", b"4", b"5")
        assert [body for body, _ in finish(nsqd, 2)] == [b"1", b"2"]
        daemons.until(lambda: depth(nsqd) == 3)
        nsqd.stop()
    uploaded = lapwing_json("remote", "upload", url, str(data))
    shutil.rmtree(data)
    restored = lapwing("remote", "restore", url, str(tmp_path / "new"))

    assert [(each["topic"], each["messages"]) for each in uploaded["topics"]] == [("orders", 5)]
    assert "is a data path now: nsqd --data-path=" in restored.stdout
    with daemons.start_nsqd(tmp_path / "new") as nsqd:
        assert finish(nsqd, 3) == [(b"3", {"n": "3"}), (b"4", {"n": "4"}), (b"5", {"n": "5"})]
        daemons.until(lambda: depth(nsqd) == 0)
        assert not [line for line in nsqd.lines if "WARN" in line or "ERROR" in line]


def test_an_nsqd_that_was_killed_is_uploaded_as_its_next_start_would_find_it(tmp_path: Path) -> None:
    url, data = folder(tmp_path), tmp_path / "data"
    data.mkdir()
    with daemons.start_nsqd(data) as nsqd:
        lapwing("topic", "create", "orders", "--channel", "billing", daemon=nsqd)
        publish(nsqd, b"1", b"2", b"3")
        nsqd.kill()
    lapwing("remote", "upload", url, str(data))
    lapwing("remote", "restore", url, str(tmp_path / "new"))

    with daemons.start_nsqd(tmp_path / "new") as nsqd:
        assert [body for body, _ in finish(nsqd, 3)] == [b"1", b"2", b"3"]


def test_the_data_path_of_a_running_nsqd_is_not_uploaded(tmp_path: Path) -> None:
    url, data = folder(tmp_path), tmp_path / "data"
    data.mkdir()
    with daemons.start_nsqd(data) as nsqd:
        publish(nsqd, b"1")
        assert "stop it first" in lapwing("remote", "upload", url, str(data), code=2).stderr

    assert "there is no remote log" in lapwing("remote", "status", url, code=2).stderr


@pytest.fixture
def filled(tmp_path: Path) -> str:
    """The URL of a remote log that has a topic with a message."""
    url, data = folder(tmp_path), tmp_path / "data"
    data.mkdir()
    with daemons.start_nsqd(data) as nsqd:
        publish(nsqd, b"1")
    lapwing("remote", "upload", url, str(data))
    return url


def test_status_shows_owner_place_and_size(filled: str) -> None:
    shown = lapwing("remote", "status", filled).stdout
    facts = lapwing_json("remote", "status", filled)

    assert "released by" in shown
    assert "epoch 1, record 3 of" in shown
    assert (facts["epoch"], facts["index"], facts["released"], facts["checkpoint"]["index"]) == (1, 3, True, 1)
    assert facts["objects"]["slices"]["count"] == 1


def test_verify_ends_with_1_and_names_what_is_damaged(filled: str, tmp_path: Path) -> None:
    assert lapwing("remote", "verify", filled).stdout.splitlines()[-1] == "no problem found"
    assert lapwing_json("remote", "verify", filled)["topics"]["orders"]["messages"] == 1

    (piece,) = (tmp_path / "remote" / "slices").iterdir()
    piece.write_bytes(piece.read_bytes()[:-1])
    assert piece.name in lapwing("remote", "verify", filled, code=1).stdout
    assert lapwing_json("remote", "verify", filled, code=1)["ok"] is False
    assert piece.name in lapwing("remote", "restore", filled, str(tmp_path / "new"), code=1).stderr
    assert not (tmp_path / "new").exists()


def test_a_remote_log_of_a_process_that_is_gone_is_released_by_hand(filled: str, tmp_path: Path) -> None:
    assert "was released by" in lapwing("remote", "release", filled).stdout
    (last,) = sorted((tmp_path / "remote" / "records").iterdir())[-1:]
    last.unlink()  # as if the process had been killed before it

    refused = lapwing("remote", "upload", filled, str(tmp_path / "data"), code=1).stderr
    assert "has not released it; if that process is gone, repeat this with --take-over" in refused
    assert "Give --yes to do it" in process("remote", "release", filled, code=2).stderr
    assert "is released" in lapwing("remote", "release", filled, "--yes").stdout
    assert lapwing_json("remote", "status", filled)["epoch"] == 2
    lapwing("remote", "upload", filled, str(tmp_path / "data"))


def test_places_that_cannot_be_used_are_refused_in_a_line(tmp_path: Path) -> None:
    assert "no such directory" in lapwing("remote", "status", f"file://{tmp_path}/none", code=2).stderr
    assert "no place for a remote log" in lapwing("remote", "verify", "ftp://x/y", code=2).stderr
    refused = lapwing("remote", "status", "postgresql://127.0.0.1:1/db", code=1).stderr
    assert "postgresql://127.0.0.1:1/db?table=lapwing_remote" in refused
