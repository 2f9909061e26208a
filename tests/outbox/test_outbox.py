"""Messages that commit with the rows of a program, and are published once."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outbox_stage import stored
from sqlalchemy import MetaData, create_engine, func, insert, select
from sqlalchemy.orm import Session

import daemons
from clusters import Cluster
from lapwing.client.errors import PublishTimeout
from lapwing.client.sync import SyncProducer
from lapwing.errors import ConfigError
from lapwing.outbox.publishing import OutboxRelay
from lapwing.outbox.sqlalchemy import Relay, add, outbox_table

numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        url = f"postgresql+psycopg://lapwing@/postgres?host={cluster.folder}"
    engine = create_engine(url)
    yield engine
    engine.dispose()


class Dies(SyncProducer):
    """A producer after whose publish the relay dies."""

    def publish_many(self, *arguments: Any, **settings: Any) -> None:
        super().publish_many(*arguments, **settings)
        raise KeyboardInterrupt


def test_what_commits_is_published_once_and_nothing_else(engine: Any, nsqd: daemons.Daemon) -> None:
    topic = f"sql{next(numbers)}"
    metadata = MetaData()
    outbox = outbox_table(metadata, f"outbox_{topic}")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        ids = [add(session, outbox, topic, b"%d" % number, headers={"n": str(number)}) for number in range(3)]
    with Session(engine) as session:
        add(session, outbox, topic, b"rolled back")
        session.rollback()

    with Relay(engine, outbox, nsqd.tcp, producer=Dies(nsqd.tcp)) as dying, pytest.raises(KeyboardInterrupt):
        dying.relay_some()
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(outbox)) == 3
    with Relay(engine, outbox, nsqd.tcp, batch=2) as relay:
        assert [relay.relay_some() for _ in range(3)] == [2, 1, 0]

    expected = [(str(number), {"message-id": ids[number], "n": str(number)}) for number in range(3)]
    assert stored(nsqd, topic) == expected


def test_what_nsqd_would_refuse_does_not_get_into_the_outbox(engine: Any) -> None:
    metadata = MetaData()
    outbox = outbox_table(metadata, f"refused_{next(numbers)}")
    metadata.create_all(engine)
    with Session(engine) as session:
        with pytest.raises(ValueError, match="empty"):
            add(session, outbox, "t", b"")
        with pytest.raises(ValueError, match="header name"):
            add(session, outbox, "t", b"x", headers={"Upper": "x"})
        with pytest.raises(ConfigError, match="invalid topic name 'no topic'"):
            add(session, outbox, "no topic", b"x")
        with pytest.raises(ValueError, match="at most 128 bytes"):
            add(session, outbox, "t", b"x", message_id="x" * 129)
        with pytest.raises(ValueError, match="at most 16384"):
            add(session, outbox, "t", b"x", headers={"a": "x" * 16_370})


def test_rows_that_are_refused_stay_and_stop_no_others(
    engine: Any, nsqd: daemons.Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"poison{next(numbers)}"
    metadata = MetaData()
    outbox = outbox_table(metadata, f"outbox_{topic}")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for number in range(7):
            add(session, outbox, topic, b"%d" % number if number != 3 else b"x" * 2_000_000)
        session.execute(insert(outbox).values(topic="no topic", body=b"x", headers="{}", message_id=topic))
        add(session, outbox, topic, b"7")
    with Relay(engine, outbox, nsqd.tcp) as relay:
        assert [relay.relay_some() for _ in range(2)] == [7, 0]

    assert [body for body, _ in stored(nsqd, topic)] == ["0", "1", "2", "4", "5", "6", "7"]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(outbox)) == 2
    assert "row 4, topic" in caplog.text
    assert "invalid topic name 'no topic'" in caplog.text


class Interrupted(OutboxRelay):
    """A relay whose nsqd cannot be reached at first, and whose database fails then."""

    database_errors = (LookupError,)

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1, None)
        self.calls = 0

    def relay_some(self) -> int:
        self.calls += 1
        if self.calls == 1:
            raise PublishTimeout("t: not published before the deadline")
        if self.calls == 2:
            raise LookupError("the server closed the connection")
        self.stop()
        return 1


def test_a_relay_runs_on_while_nsqd_or_the_database_fails_and_until_it_is_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = Interrupted()
    relay.run(interval=0)

    assert relay.calls == 3
    first, second = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert first.endswith(" s: t: not published before the deadline")
    assert second.endswith(" s: the server closed the connection")
    relay.run()
    assert relay.calls == 3


def test_a_relay_may_start_before_the_table_and_nsqd(
    engine: Any, nsqd: daemons.Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"early{next(numbers)}"
    metadata = MetaData()
    outbox = outbox_table(metadata, f"outbox_{topic}")
    relay = Relay(engine, outbox, "127.0.0.1:1")
    running = threading.Thread(target=relay.run, kwargs={"interval": 0.01}, daemon=True)
    running.start()
    daemons.until(lambda: f"outbox_{topic}" in caplog.text, what="a warning about the table")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        add(session, outbox, topic, b"x")
    daemons.until(lambda: "connection refused" in caplog.text, what="a warning about nsqd")
    relay._nsqd = nsqd.tcp
    with engine.connect() as connection:
        daemons.until(lambda: not connection.scalar(select(func.count()).select_from(outbox)), what="a publish")
    relay.close()
    running.join(60)

    assert not running.is_alive()
    assert [body for body, _ in stored(nsqd, topic)] == ["x"]


DJANGO = """
import sys

import django
from django.conf import settings
from django.core.management import call_command
from django.db import transaction

import os
engine, name, host, nsqd, topic = sys.argv[1:]
settings.configure(
    INSTALLED_APPS=["lapwing.outbox.django"], USE_TZ=True,
    DATABASES={"default": {"ENGINE": f"django.db.backends.{engine}", "NAME": name, "USER": "lapwing", "HOST": host}},
)
django.setup()

import logging, threading
from lapwing.outbox.django.relay import Relay as Early

failed, early = threading.Event(), Early(nsqd)
early_log = logging.StreamHandler()
early_log.emit = lambda record: failed.set()
logging.getLogger("lapwing.outbox").addHandler(early_log)
running = threading.Thread(target=early.run, kwargs={"interval": 0.01})
running.start()
assert failed.wait(60)  # there is no table
early.stop()
running.join(60)
assert not running.is_alive()
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)

from lapwing.client.sync import SyncProducer
from lapwing.outbox.django.models import OutboxMessage
from lapwing.outbox.django.relay import Relay, add


class Dies(SyncProducer):
    def publish_many(self, *arguments, **settings):
        super().publish_many(*arguments, **settings)
        raise KeyboardInterrupt


with transaction.atomic():
    for number in range(3):
        add(topic, b"%d" % number, headers={"n": str(number)}, message_id=f"id-{topic}-{number}")
try:
    with transaction.atomic():
        add(topic, b"rolled back")
        raise KeyError
except KeyError:
    pass
try:
    with Relay(nsqd, producer=Dies(nsqd)) as relay:
        relay.relay_some()
except KeyboardInterrupt:
    assert OutboxMessage.objects.count() == 3
with Relay(nsqd, batch=2) as relay:
    assert [relay.relay_some() for _ in range(3)] == [2, 1, 0]
"""


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_outbox_of_django_does_the_same(
    database: str, nsqd: daemons.Daemon, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = f"django_{database}"
    where = ["sqlite3", str(tmp_path / "shop.db"), ""]
    if database == "postgresql":
        where = ["postgresql", "postgres", str(request.getfixturevalue("cluster").folder)]
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, *where, nsqd.tcp, topic], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    expected = [(str(number), {"message-id": f"id-{topic}-{number}", "n": str(number)}) for number in range(3)]
    assert stored(nsqd, topic) == expected
