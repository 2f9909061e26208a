"""Group fsync."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from doors import options, quiet

from appending import append
from lapwing.broker.broker import Broker
from lapwing.broker.keeper.keeper import IDLE
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.topic.cold import ColdTopic
from lapwing.errors import LapwingError, WriteFailed
from lapwing.log.catalog import Catalog, TopicEntry
from lapwing.log.disk import Disk
from lapwing.nsqd.catalog_writer import CatalogWriter
from lapwing.nsqd.daemon import Daemon
from lapwing.nsqd.sync import Syncer
from overriding import overriding


class Noted:
    """A receipt."""

    def __init__(self) -> None:
        self.errors: list[LapwingError | None] = []

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        self.errors.append(error)


async def test_a_topic_that_is_deleted_amid_its_sync_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    settings = options(durability="fsync", data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    topic = broker.topic("t")
    receipt = Noted()
    append(topic, b"x", receipt, now=1)
    broker.commit(1)
    begin = topic.store.begin_sync

    def deleted_meanwhile() -> Callable[[], None] | None:
        job = begin()
        broker.delete_topic("t")
        return job

    topic.store.__class__ = overriding(topic.store, begin_sync=deleted_meanwhile)
    syncer.kick()
    await syncer.stop()

    assert receipt.errors == [None]
    assert broker.health is None


class Broken:
    """A receipt whose answer fails."""

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        raise MemoryError("no room for an answer")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("step", ["begin_sync", "run_in_executor"])
async def test_no_publish_is_acknowledged_unsynced_after_a_sync_that_could_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings = options(durability="fsync", data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    topic = broker.topic("t")
    first, second, third = Noted(), Noted(), Noted()

    async def publish(receipt: Noted) -> None:
        append(topic, b"x", receipt, now=1)
        broker.commit(1)
        syncer.kick()
        assert syncer._running is not None
        await asyncio.wait([syncer._running])

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    owner = type(topic.store) if step == "begin_sync" else asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, refuse)
        await publish(first)
        await publish(second)
    unsynced = topic.log.synced
    await publish(third)
    await syncer.stop()

    assert [type(each.errors[0]) for each in (first, second)] == [WriteFailed, WriteFailed]
    assert (unsynced, third.errors, topic.log.synced) == (0, [None], 3)


async def test_a_receipt_that_fails_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    settings = options(durability="fsync", data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    reports: list[str] = []
    broker.report = reports.append
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    topic = broker.topic("t")
    second = Noted()
    append(topic, b"x", Broken(), now=1)
    append(topic, b"y", second, now=1)
    broker.commit(1)
    syncer.kick()
    await syncer.stop()

    assert second.errors == [None]
    assert reports == ["a publish could not be answered: MemoryError: no room for an answer"]


async def test_a_sync_that_fails_leaves_no_file_of_its_own_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = options(durability="fsync", data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    topic = broker.topic("t")
    topic.create_channel("c", now=1)
    append(topic, b"x", Noted(), now=1)
    broker.commit(1)
    topic.store.journal.want_sync()

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "fsync", staticmethod(refuse))
        failed = [await syncer.sync(topic) for _ in range(3)]
    await syncer.stop()

    assert [type(error) for error in failed] == [WriteFailed] * 3
    assert open_files() == before


class Syncs:
    """Syncs that take as long as the test wants: each waits until it is let through."""

    def __init__(self) -> None:
        self.begun = 0
        self.broken: OSError | None = None
        self._allowed = threading.Semaphore(0)

    def __call__(self, job: Callable[[], None]) -> float:
        self.begun += 1
        assert self._allowed.acquire(timeout=60)
        if self.broken is not None:
            raise self.broken
        job()
        return 0.0

    def allow(self, count: int = 1) -> None:
        self._allowed.release(count)


class Slow:
    """An nsqd whose syncs wait for the test."""

    def __init__(self, daemon: Daemon, syncs: Syncs) -> None:
        self.daemon = daemon
        self.syncs = syncs
        self.clients: list[Talk] = []

    @property
    def published(self) -> int:
        topic = self.daemon.broker.find("t")
        return topic.log.end if topic else 0

    async def client(self, data: bytes) -> "Talk":
        """A new connection that has sent `data`."""
        assert self.daemon.tcp is not None
        client = Talk(*await asyncio.open_connection("127.0.0.1", self.daemon.tcp.port))
        self.clients.append(client)
        client.send(b"  V2" + data)
        return client


@pytest.fixture
async def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    """An nsqd with `--durability=fsync` on a disk whose syncs wait for the test."""
    syncs = Syncs()
    monkeypatch.setattr("lapwing.nsqd.sync._timed", syncs)
    addresses = {"tcp_address": "127.0.0.1:0", "http_address": "", "data_path": str(tmp_path)}
    daemon = Daemon(options(durability="fsync", **addresses), quiet())
    await daemon.start()
    slow = Slow(daemon, syncs)
    yield slow
    syncs.allow(1000)
    for client in slow.clients:
        await client.close()
    await daemon.stop()


class Talk:
    """A client that sends whatever it likes, and reads frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> bytes:
        async with asyncio.timeout(60):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return (await self._reader.readexactly(size))[4:]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110  what happens in the broker sets no event
            await asyncio.sleep(0.001)


PUB = b"PUB t\n\0\0\0\1x"


async def test_a_client_that_never_pauses_gets_each_ok_when_its_own_sync_is_done(slow: Slow) -> None:
    syncs = slow.syncs
    client = await slow.client(PUB)
    await until(lambda: syncs.begun == 1)
    client.send(2 * PUB)
    await until(lambda: slow.published == 3)
    syncs.allow()

    assert await client.frame() == b"OK"
    await until(lambda: syncs.begun == 2)
    for connection in slow.daemon._connections:
        connection.protocol.send_heartbeat()
    assert await client.frame() == b"_heartbeat_"  # and not the OK of what is not synced
    syncs.allow()
    assert [await client.frame() for _ in range(2)] == [b"OK", b"OK"]


async def test_a_consumer_gets_messages_while_its_own_publish_waits_for_a_sync(slow: Slow) -> None:
    syncs = slow.syncs
    client = await slow.client(b"SUB u c\nRDY 5\n")
    syncs.allow()
    assert await client.frame() == b"OK"
    client.send(PUB)
    await until(lambda: syncs.begun == 2)
    await slow.client(b"PUB u\n\0\0\0\1y")

    assert (await client.frame()).endswith(b"y")
    syncs.allow(2)
    assert await client.frame() == b"OK"


async def test_a_client_far_ahead_of_the_disk_is_not_read_until_it_is_answered(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = slow.syncs
    monkeypatch.setattr("lapwing.nsqd.doors.connection.MAX_WAITING", 3)
    client = await slow.client(3 * PUB)
    await until(lambda: syncs.begun == 1)
    (connection,) = slow.daemon._connections
    assert connection.waits_for_broker
    assert connection._muted
    client.send(PUB)
    syncs.allow()

    assert [await client.frame() for _ in range(3)] == [b"OK"] * 3
    syncs.allow()
    assert await client.frame() == b"OK"


async def test_a_failed_sync_ends_the_conversation_behind_what_was_answered_before(slow: Slow) -> None:
    syncs = slow.syncs
    client = await slow.client(PUB)
    await until(lambda: syncs.begun == 1)
    client.send(2 * PUB + b"NOPE\n")
    await until(lambda: slow.published == 3)
    syncs.allow()
    assert await client.frame() == b"OK"
    await until(lambda: syncs.begun == 2)
    syncs.broken = OSError(5, "Input/output error")
    syncs.allow()

    assert (await client.frame()).startswith(b"E_PUB_FAILED PUB failed t: write")
    with pytest.raises(asyncio.IncompleteReadError):
        await client.frame()
    syncs.broken = None


async def test_a_consumer_is_answered_when_its_new_channel_is_synced(slow: Slow) -> None:
    syncs = slow.syncs
    publisher = await slow.client(PUB)
    syncs.allow()
    assert await publisher.frame() == b"OK"
    client = await slow.client(b"SUB t c\nRDY 5\n")
    await until(lambda: syncs.begun == 2)
    for connection in slow.daemon._connections:
        connection.protocol.send_heartbeat()

    assert await client.frame() == b"_heartbeat_"  # and neither the OK nor the message
    syncs.allow()
    assert await client.frame() == b"OK"
    assert (await client.frame()).endswith(b"x")
    second = await slow.client(b"SUB t c\n")
    assert await second.frame() == b"OK"  # the channel is known by now
    assert syncs.begun == 2


async def test_a_channel_that_cannot_be_synced_is_refused(slow: Slow) -> None:
    slow.syncs.broken = OSError(5, "Input/output error")
    slow.syncs.allow()
    client = await slow.client(b"SUB t c\n")

    assert (await client.frame()).startswith(b"E_SUB_FAILED SUB failed t: write")
    slow.syncs.broken = None


async def test_a_new_topic_has_the_event_loop_wait_for_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def fsync(fd: int) -> None:
        threads.append(threading.current_thread().name)

    daemon = Daemon(options(tcp_address="127.0.0.1:0", http_address="", data_path=str(tmp_path)), quiet())
    await daemon.start()
    monkeypatch.setattr(Disk, "fsync", staticmethod(fsync))
    daemon.broker.topic("t")
    await until(lambda: "t" in {entry.name for entry in Catalog(tmp_path).load()})
    monkeypatch.undo()
    await daemon.stop()

    assert threads
    assert not [name for name in threads if name.startswith("MainThread")]


async def test_a_save_under_way_does_not_undo_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DiskStorage(str(tmp_path), 7, options().log_options, now=lambda: 0, report=print)
    broker = Broker(options(), storage)
    writer = CatalogWriter(broker, storage.catalog)
    broker.topic("t")
    writer.kick()
    broker.pause_topic("t", True, now=0)
    broker.keeper.save_catalog()
    await writer.stop()

    assert Catalog(tmp_path).load() == [TopicEntry("t", paused=True)]
    storage.close()


async def test_topics_that_are_packed_before_their_turn_to_be_synced_are_packed_afterwards(tmp_path: Path) -> None:
    settings = options(data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    for name in ("a", "b"):
        append(broker.topic(name), b"x", Noted(), now=1)
    broker.commit(1)
    broker.checkpoint(now=2)
    syncing = asyncio.create_task(syncer.sync_all())
    await asyncio.sleep(0)  # it waits for the sync of the first
    broker.checkpoint(now=2 + IDLE)
    await syncing
    broker.checkpoint(now=2 + 2 * IDLE)
    await syncer.stop()

    found = [(type(topic), topic.log.unsynced) for topic in broker.topics.values()]
    assert found == [(ColdTopic, False)] * 2
