"""Group fsync."""

from collections.abc import Callable
from pathlib import Path

from doors import options

from lapwing.broker.broker import Broker
from lapwing.broker.storage import DiskStorage
from lapwing.errors import LapwingError
from lapwing.nsqd.sync import Syncer


class Heard:
    """A publisher."""

    def __init__(self) -> None:
        self.errors: list[LapwingError | None] = []

    def published(self, token: int, error: LapwingError | None) -> None:
        self.errors.append(error)


async def test_a_topic_that_is_deleted_amid_its_sync_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    settings = options(durability="fsync", data_path=str(tmp_path))
    broker = Broker(settings, DiskStorage(str(tmp_path), 7, settings.log_options, now=lambda: 0, report=print))
    syncer = Syncer(broker, lambda: None, lambda seconds: None)
    topic = broker.topic("t")
    publisher = Heard()
    topic.publish(b"x", publisher, 0, now=1)
    broker.commit(1)
    begin = topic.log.begin_sync

    def deleted_meanwhile() -> Callable[[], None] | None:
        job = begin()
        broker.delete_topic("t")
        return job

    topic.log.begin_sync = deleted_meanwhile  # type: ignore[method-assign]
    syncer.kick()
    await syncer.stop()

    assert publisher.errors == [None]
    assert broker.health is None
