"""lapwing import-nsqd, and what consumers of nsqd get then."""

import json
import struct
from pathlib import Path

from commanding import lapwing

import daemons
from lapwing.client.sync import SyncConsumer


def write_queue(path: Path, name: str, *messages: tuple[int, int]) -> None:
    """A disk queue of NSQ: the number of each message, and how often it was delivered."""
    records = b""
    for number, attempts in messages:
        message = struct.pack(">qH16s", 1_700_000_000_000_000_000 + number, attempts, b"%016x" % number)
        message += b"m%d" % number
        records += struct.pack(">i", len(message)) + message
    (path / f"{name}.diskqueue.000000.dat").write_bytes(records)
    (path / f"{name}.diskqueue.meta.dat").write_text(f"{len(messages)}\n0,0\n0,{len(records)}\n")


def consumed(nsqd: daemons.Daemon, channel: str, count: int) -> list[tuple[bytes, int]]:
    found = []
    with SyncConsumer("orders", channel, nsqd=nsqd.tcp, max_in_flight=1) as consumer:
        while len(found) < count:
            message = consumer.get(timeout=60)
            assert message is not None, found
            found.append((message.body, message.attempts))
            message.finish()
    return found


def test_messages_of_nsq_arrive_in_their_channels(tmp_path: Path) -> None:
    write_queue(tmp_path, "orders:billing", (1, 0), (2, 3), (3, 0))
    write_queue(tmp_path, "orders:audit", (2, 1), (9, 0))
    write_queue(tmp_path, "orders", (10, 0))

    assert "orders:billing" in lapwing("import-nsqd", str(tmp_path), "--dry-run").stdout
    done = json.loads(lapwing("import-nsqd", str(tmp_path), "--json").stdout)
    assert done == [
        {"topic": "orders", "messages": 5, "channels": {"audit": 2, "billing": 3}, "damage": [], "skipped": ""}
    ]
    with daemons.start_nsqd(tmp_path) as nsqd:
        assert sorted(consumed(nsqd, "billing", 4)) == [(b"m1", 1), (b"m10", 1), (b"m2", 4), (b"m3", 1)]
        assert sorted(consumed(nsqd, "audit", 3)) == [(b"m10", 1), (b"m2", 2), (b"m9", 1)]
        assert not [line for line in nsqd.lines if "WARN" in line or "ERROR" in line]


def test_what_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "t:c.diskqueue.meta.dat").write_text("1\n0,0\n0,30\n")
    told = lapwing("import-nsqd", str(tmp_path), code=1)

    assert "t:c.diskqueue.000000.dat" in told.stderr
    assert "no such directory" in lapwing("import-nsqd", str(tmp_path / "none"), code=2).stderr
    assert "no disk queue" in lapwing("import-nsqd", str(tmp_path)).stdout
    assert "no disk queue" in lapwing("import-nsqd", str(tmp_path), "--dry-run").stdout


def test_a_data_path_that_is_not_there_is_to_be_created(tmp_path: Path) -> None:
    write_queue(tmp_path, "orders", (1, 0))
    said = lapwing("import-nsqd", str(tmp_path), "--data-path", str(tmp_path / "new"), code=2).stderr

    assert "No such file or directory; create the folder first" in said
    assert "stop it" not in said
