"""What the owner of a remote log keeps of its records, to write checkpoints from it."""

from pathlib import Path

from lapwing.log.remote.folder import Folder
from lapwing.log.remote.mirror import Mirror, write_plan
from lapwing.log.remote.record import Part, SideRecords, SideRemoved
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.log.side.sidelog import SideLog
from log.remote.stage import BEGUN, LOG_ID, NODE


def noted(log: RemoteLog, mirror: Mirror, *parts: Part) -> None:
    """Append a record, and have the mirror know it, as a node does."""
    record = log.record(parts, now=1)
    log.append(record)
    mirror.appended(record, log)


def kept(mirror: Mirror, log: RemoteLog) -> dict[str, bytes]:
    """The side logs that a checkpoint would have, by channel."""
    parts, _ = write_plan(mirror.plan(), log.checkpoint_writer(), now=1)
    return {part.channel: part.records for part in parts if isinstance(part, SideRecords)}


def test_of_a_side_log_it_keeps_the_frames_that_are_left(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log = RemoteLog(Folder(str(tmp_path / "remote")), owner="a")
    log.claim(NODE, now=1)
    mirror = Mirror()
    noted(log, mirror, BEGUN)
    side = SideLog(tmp_path, "c")
    side.on_flush = lambda data: noted(log, mirror, SideRecords("orders", LOG_ID, "c", data))
    for number in range(10):
        side.put(number, b"frame %d" % number)
        side.flush()
    side.drop(range(8))
    side.flush()
    side.put(3, b"again")
    side.flush()
    found = kept(mirror, log)

    copy = SideLog(tmp_path / "copy", "c")
    Path(copy.path).write_bytes(found["c"])
    restored = SideLog(tmp_path / "copy", "c")
    assert {number: restored.frame(number) for number in restored.sequences()} == {
        3: b"again", 8: b"frame 8", 9: b"frame 9",
    }  # fmt: skip
    assert len(found["c"]) < 200  # what was dropped is not in it

    noted(log, mirror, SideRemoved("orders", LOG_ID, "c"))
    assert kept(mirror, log) == {}
