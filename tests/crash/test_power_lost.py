"""The power is lost: with fsync everything acknowledged is there, and nothing that was torn is ever served."""

import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapwing.log.disk import Disk

sys.path.insert(0, str(Path(__file__).parent.parent / "broker"))

from play import MINUTE, Client, Stage

HISTORIES = int(os.environ.get("LAPWING_CRASH_ROUNDS", "25"))
SECTOR = 512


class Inode:
    """A file, and what of it is safe."""

    def __init__(self, safe: bytes = b"") -> None:
        self.safe = safe


class Platter:
    """Follows what is done to the files of a directory, and what of it was synced.

    Content is safe as of the last fsync of its file; names are, in the order of the changes, as of the last one of a
    directory. The rest may have reached the disk or not, sector by sector.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        monkeypatch.setattr(Disk, "open", staticmethod(self._open))
        monkeypatch.setattr(Disk, "fsync", staticmethod(self._fsync))
        monkeypatch.setattr(Disk, "rename", staticmethod(self._rename))
        monkeypatch.setattr(Disk, "unlink", staticmethod(self._unlink))
        self.begin()

    def begin(self) -> None:
        """All that is there is safe."""
        files = [file for file in self._root.rglob("*") if file.is_file()]
        self._first = {str(file): Inode(file.read_bytes()) for file in files}
        self._now = dict(self._first)
        self._changes: list[tuple[str, str, Inode | None]] = []  # a name, another that takes its place, a new file
        self._safe = 0  # changes of names

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        new = flags & os.O_CREAT and not os.path.exists(path)
        fd = os.open(path, flags, mode)
        if new:
            self._now[path] = Inode()
            self._changes.append((path, "", self._now[path]))
        return fd

    def _fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            self._safe = len(self._changes)
        elif path in self._now:
            self._now[path].safe = Path(path).read_bytes()

    def _rename(self, source: str, target: str) -> None:
        os.replace(source, target)
        self._now[target] = self._now.pop(source)
        self._changes.append((source, target, None))

    def _unlink(self, path: str) -> None:
        os.unlink(path)
        self._now.pop(path, None)
        self._changes.append((path, "", None))

    def lights_out(self, chance: random.Random) -> None:
        """Leave of all files what a power loss may leave."""
        left = {path: self._left(inode, chance) for path, inode in self._names(chance).items()}
        for file in [file for file in self._root.rglob("*") if file.is_file()]:
            file.unlink()
        for path, content in left.items():
            Path(path).write_bytes(content)
        self.begin()

    def _names(self, chance: random.Random) -> dict[str, Inode]:
        names = dict(self._first)
        for path, target, inode in self._changes[: chance.choice([self._safe, len(self._changes)])]:
            if inode is not None:
                names[path] = inode
            elif target:
                names[target] = names.pop(path)
            else:
                names.pop(path, None)
        return names

    def _left(self, inode: Inode, chance: random.Random) -> bytes:
        paths = [path for path, other in self._now.items() if other is inode]
        new = Path(paths[0]).read_bytes() if paths else inode.safe
        if chance.random() < 0.5:
            return chance.choice([inode.safe, new])
        size = chance.choice([len(inode.safe), len(new), (len(inode.safe) + len(new)) // 2])
        sectors = [chance.choice([inode.safe, new])[at : at + SECTOR] for at in range(0, size, SECTOR)]
        return b"".join([sector.ljust(SECTOR, b"\0") for sector in sectors])[:size]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "data"
    path.mkdir()
    yield path
    shutil.rmtree(path)


class History:
    """Publishers and consumers of one channel, at random; what is acknowledged, and what is finished."""

    def __init__(self, data: Path, platter: Platter, chance: random.Random, durability: str = "fsync") -> None:
        self.chance = chance
        self.platter = platter
        size = chance.choice([700, 3000, 100_000])
        self.stage = Stage(data, durability=durability, max_bytes_per_file=size, max_req_timeout=60 * MINUTE)
        self.stage.consumer(ready=0).leave()
        self.stage.broker.keeper.save_catalog()
        platter.begin()
        self.count = 0
        self.written: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.published: set[bytes] = set()

    def publish(self, _: Client) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.count += 1
            body = b"%d-" % self.count + b"x" * self.chance.choice([0, 10, 300, 2000])
            self.stage.client().publish(body, delay=self.chance.choice([0, 0, 0, MINUTE]))
            self.written.add(body)
        self.published |= self.written

    def sync(self, _: Client) -> None:
        log = self.stage.broker.existing("t").log
        job = log.begin_sync()
        if job is not None:
            job()
            log.finish_sync(None)
        self.stage.broker.work.take_unsynced()
        self.acknowledged |= self.written

    def consume(self, consumer: Client) -> None:
        for sequence, _, body in consumer.take()[0]:
            assert body in self.published, "a body that was never published"
            if self.chance.random() < 0.6:
                consumer.finish(sequence)
                self.finished.add(body)
            else:
                consumer.requeue(sequence, delay=self.chance.choice([0, MINUTE]))

    def chores(self, _: Client) -> None:
        self.stage.checkpoint(trim=self.chance.random() < 0.5)
        self.stage.pass_time(self.chance.choice([1, 2 * MINUTE]))

    def live(self) -> None:
        """Some time, and its sudden end."""
        consumer = self.stage.consumer(ready=self.chance.choice([0, 3, 50]))
        for _ in range(self.chance.randrange(1, 30)):
            self.chance.choice([self.publish, self.publish, self.sync, self.consume, self.chores])(consumer)
        self.written.clear()
        self.platter.lights_out(self.chance)
        self.stage.boot_id += "'"  # the machine was started again
        self.stage.kill()
        assert not self.stage.broker.unopened
        self.platter.begin()

    def drain(self) -> set[bytes]:
        received = set()
        consumer = self.stage.consumer()
        for _ in range(4):
            for sequence, _, body in consumer.take()[0]:
                assert body in self.published, "a body that was never published"
                received.add(body)
                consumer.finish(sequence)
            self.stage.pass_time(60 * MINUTE)
        return received


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_everything_acknowledged_survives_the_power(data: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    with monkeypatch.context() as patch:
        history = History(data, Platter(data, patch), random.Random(seed))
        for _ in range(3):
            history.live()
        lost = history.acknowledged - history.finished - history.drain()
        history.stage.broker.close(now=history.stage.now)

    assert not lost, sorted(body[:10] for body in lost)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_torn_is_served_though_nothing_was_synced(
    data: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with monkeypatch.context() as patch:
        history = History(data, Platter(data, patch), random.Random(seed), "os")
        for _ in range(3):
            history.live()
        received = history.drain()
        history.stage.broker.close(now=history.stage.now)

    assert received <= history.published
