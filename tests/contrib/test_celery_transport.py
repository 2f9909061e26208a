"""What Kombu promises of a transport, kept by `lapwing.contrib.celery` on a real nsqd."""

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import kombu
import pytest
from kombu.exceptions import OperationalError

import lapwing.contrib.celery
from daemons import Daemon, nsqd, start_nsqlookupd, until
from lapwing import ConfigError, SyncAdmin
from lapwing.contrib.celery import feeds, queues
from lapwing.contrib.celery.nodes import Node
from lapwing.contrib.celery.transport import Transport

assert lapwing.contrib.celery  # importing it registers lapwing://


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Connect]:
    opened: list[kombu.Connection] = []

    def connect(**options: Any) -> kombu.Connection:
        options = {"nsqd_http": daemon.http, **options}
        opened.append(kombu.Connection(f"lapwing://{daemon.tcp}", transport_options=options))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


class Consumer:
    """A consumer that keeps what it gets, and answers only if told to."""

    def __init__(self, connection: kombu.Connection, *names: kombu.Queue, prefetch: int = 0) -> None:
        self.connection = connection
        self.messages: list[kombu.Message] = []
        self.consumer = kombu.Consumer(
            connection.channel(), list(names), on_message=self.messages.append, prefetch_count=prefetch
        )
        self.consumer.consume()

    def get(self, count: int = 1, timeout: float = 30.0) -> list[Any]:
        """Return the bodies of the next messages, which are finished."""
        taken = self.take(count, timeout)
        for message in taken:
            message.ack()
        return [message.payload for message in taken]

    def take(self, count: int = 1, timeout: float = 30.0) -> list[kombu.Message]:
        end = time.monotonic() + timeout
        while len(self.messages) < count and time.monotonic() < end:
            self.drain(0.2)
        taken, self.messages[:] = self.messages[:count], self.messages[count:]
        return taken

    def drain(self, timeout: float = 0.3) -> None:
        try:
            self.connection.drain_events(timeout=timeout)
        except TimeoutError:
            return


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for body in bodies:
            producer.publish(body, exchange="", routing_key=queue.name, declare=[queue], **options)


def pending(daemon: Daemon, topic: str) -> Any:
    with SyncAdmin(daemon.http) as admin:
        return admin.stats().topics[topic].channels[0]


def test_an_unreachable_nsqd_is_a_connection_error_that_kombu_tries_again() -> None:
    connection = kombu.Connection("lapwing://127.0.0.1:1")

    with pytest.raises(OperationalError, match=r"127\.0\.0\.1:1"):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lapwing\+lookupd"):
        _ = kombu.Connection("lapwing+http://127.0.0.1:1").transport


def test_bodies_of_every_kind_arrive_as_they_were(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("kinds")
    for body, serializer in (({"a": ["ä", 1]}, "json"), ({"b": b"\xff\x00"}, "pickle")):
        publish(connection, queue, body, serializer=serializer, headers={"k": "v"})
    consumer = kombu.Consumer(connection, [queue], accept=["json", "pickle"])
    found: list[Any] = []
    consumer.register_callback(lambda body, message: (found.append((body, message.headers["k"])), message.ack()))
    with consumer:
        while len(found) < 2:
            connection.drain_events(timeout=30)

    assert found == [({"a": ["ä", 1]}, "v"), ({"b": b"\xff\x00"}, "v")]


def test_a_queue_may_have_any_name() -> None:
    names = {queues.name(text) for text in ("celery", "celery@host", "celery-host", "ä" * 200, "ö" * 200, "x" * 64)}

    assert len(names) == 6
    assert all(queues.name(text, ".exchange", ephemeral=True) for text in names)
    assert all(len(queues.name("y" * 99, ".exchange", ephemeral=True)) <= 64 for _ in names)


def test_a_prefetch_limit_holds_over_several_queues(connect: Connect, daemon: Daemon) -> None:
    connection, one, two = connect(), kombu.Queue("limit.one"), kombu.Queue("limit.two")
    publish(connection, one, *range(10))
    publish(connection, two, *range(10))
    consumer = Consumer(connection, one, two, prefetch=3)
    held = consumer.take(3)
    consumer.drain()

    assert len(held) == 3
    assert consumer.messages == []
    assert pending(daemon, "limit.one").in_flight + pending(daemon, "limit.two").in_flight <= 6
    held[0].ack()
    assert len(consumer.take(1)) == 1


def test_no_queue_starves_beside_another_that_is_never_empty(connect: Connect) -> None:
    connection, full, other = connect(), kombu.Queue("starve.full"), kombu.Queue("starve.other")
    publish(connection, full, *["full"] * 100)
    consumer = Consumer(connection, full, other, prefetch=1)
    publish(connection, other, "other")
    seen: list[str] = []
    while "other" not in seen:
        seen += consumer.get()
        time.sleep(0.02)  # a task that takes a while

    assert len(seen) < 100


def test_priorities_come_in_their_order(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_SETTLE", 0.3)  # on a busy machine a queue may be silent for longer, and yet not empty
    connection, queue = connect(), kombu.Queue("ranks", max_priority=10)
    for priority in (9, 6, 0, 3, 9, 0):
        publish(connection, queue, priority, priority=priority)
    consumer = Consumer(connection, queue, prefetch=1)
    found = [consumer.get()[0] for _ in range(6)]

    assert found == [0, 0, 3, 6, 9, 9]


def test_messages_without_priorities_are_one_topic(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(), kombu.Queue("plain")
    publish(connection, queue, 1, priority=9)

    assert Consumer(connection, queue).get() == [1]
    with SyncAdmin(daemon.http) as admin:
        assert "plain.p9" not in admin.stats().topics


def test_fanout_topic_and_direct_exchanges_reach_the_queues_that_are_bound(connect: Connect) -> None:
    connection = connect()
    bound = {}
    for kind, keys in (("fanout", ("", "")), ("topic", ("t.*", "t.#")), ("direct", ("d1", "d2"))):
        exchange = kombu.Exchange(f"ex_{kind}", type=kind)
        bound[kind] = [kombu.Queue(f"{kind}{n}", exchange, routing_key=key) for n, key in enumerate(keys)]
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for kind, key in (("fanout", "f"), ("topic", "t.1"), ("topic", "t.1.2"), ("direct", "d2"), ("direct", "d3")):
            producer.publish(key, exchange=f"ex_{kind}", routing_key=key, declare=bound[kind])
    found = {kind: [Consumer(connection, queue).get(3, timeout=1) for queue in bound[kind]] for kind in bound}

    assert found == {"fanout": [["f"], ["f"]], "topic": [["t.1"], ["t.1", "t.1.2"]], "direct": [[], ["d2"]]}


def test_a_broadcast_that_nobody_was_there_for_is_not_kept(connect: Connect, daemon: Daemon) -> None:
    connection = connect()
    exchange = kombu.Exchange("news", type="fanout", durable=False)
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for number in range(20):
            producer.publish(number, exchange="news", declare=[exchange])
        late = Consumer(connection, kombu.Queue("late", exchange, auto_delete=True))
        producer.publish("now", exchange="news", declare=[exchange])

        assert late.get(2, timeout=1) == ["now"]
    topic = queues.exchange_topic("news")
    with SyncAdmin(daemon.http) as admin:
        until(lambda: admin.stats().topics[topic].channels[0].depth <= 1, what="the channel that forgets")


def test_a_message_that_is_not_answered_comes_back_when_its_consumer_leaves(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("leave")
    publish(connection, queue, 1)
    first = Consumer(connection, queue)
    (held,) = first.take()
    first.consumer.channel.close()
    (again,) = Consumer(connect(), queue).take()

    assert held.delivery_info["redelivered"] is False
    assert again.delivery_info["redelivered"] is True


def test_a_message_is_held_for_as_long_as_its_consumer_is_there(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(), kombu.Queue("hold")
    publish(connection, queue, 1)
    held = Consumer(connection, queue).take()
    with SyncAdmin(daemon.http) as admin:
        settings = admin.settings("hold", "celery").answers[daemon.http].settings

    assert len(held) == 1
    assert (settings["hold"].value, settings["max_attempts"].value) == ("connection", 5)


def test_settings_come_from_the_options_and_an_operators_stay(connect: Connect, daemon: Daemon) -> None:
    with SyncAdmin(daemon.http) as admin:
        admin.create("tuned", "celery")
        admin.change_settings("tuned", "celery", max_attempts=7)
        Consumer(connect(max_attempts=2, retry_first="2s"), kombu.Queue("tuned", message_ttl=60, max_length=100))
        settings = admin.settings("tuned", "celery").answers[daemon.http].settings

    assert [settings[name].value for name in ("max_attempts", "retry_first", "message_ttl", "max_depth")] == [
        7, "2s", "1m0s", 100,
    ]  # fmt: skip


def test_settings_that_differ_from_those_there_are_reported(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    Consumer(connect(max_attempts=2, retry_first=2), kombu.Queue("twice"))
    first = list(caplog.messages)
    Consumer(connect(max_attempts=2, retry_first="2s"), kombu.Queue("twice"))
    same = list(caplog.messages)
    Consumer(connect(max_attempts=4), kombu.Queue("twice"))

    assert first == same == []
    assert any("max_attempts is 2" in text and "max_attempts=4` changes it" in text for text in caplog.messages)


def test_what_is_rejected_or_fails_too_often_is_a_dead_letter(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(max_attempts=2), kombu.Queue("deadly")
    publish(connection, queue, "rejected", "fails")
    consumer = Consumer(connection, queue)
    for message in consumer.take(2):
        message.reject(requeue=message.payload == "fails")
    consumer.take()[0].reject(requeue=True)
    with SyncAdmin(daemon.http) as admin:

        def reasons() -> list[str]:
            dead = {topic.topic for found in admin.dead_topics().answers.values() for topic in found.topics}
            if "deadly.celery.dead" not in dead:
                return []
            return [letter.reason for letter in admin.dead_letters("deadly.celery.dead").answers[daemon.http].letters]

        until(lambda: len(reasons()) == 2, what="two dead letters")
        assert sorted(reasons()) == ["attempts", "rejected"]


def test_a_task_with_an_eta_waits_in_the_broker_and_its_worker_sees_no_eta(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(), kombu.Queue("later")
    due = time.time() + 1.5
    eta = datetime.datetime.fromtimestamp(due, datetime.UTC).isoformat()
    publish(connection, queue, 1, headers={"id": "x", "task": "t", "eta": eta})
    consumer = Consumer(connection, queue)
    (message,) = consumer.take()

    assert time.time() >= due
    assert message.headers["eta"] is None
    assert message.delivery_info["redelivered"] is False


def test_a_task_that_waits_is_cancelled_by_its_id(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(), kombu.Queue("cancelled")
    eta = datetime.datetime.fromtimestamp(time.time() + 600, datetime.UTC).isoformat()
    Consumer(connection, queue)
    publish(connection, queue, 1, headers={"id": "task-1", "task": "t", "eta": eta})
    publish(connection, queue, 2, headers={"id": "task-2", "task": "t", "eta": eta, "retries": 1})
    with SyncAdmin(daemon.http) as admin:
        until(lambda: pending(daemon, "cancelled").deferred == 2, what="the tasks that wait")
        admin.cancel("cancelled", "celery", ["task-1", "task-2/1"])

    assert pending(daemon, "cancelled").deferred == 0


def test_a_task_may_wait_for_longer_than_nsqd_defers_messages() -> None:
    with nsqd("--max-req-timeout=1s") as daemon:
        connection = kombu.Connection(f"lapwing://{daemon.tcp}", transport_options={"nsqd_http": daemon.http})
        queue, due = kombu.Queue("far"), time.time() + 2.5
        eta = datetime.datetime.fromtimestamp(due, datetime.UTC).isoformat()
        publish(connection, queue, 1, headers={"id": "x", "task": "t", "eta": eta})
        (message,) = Consumer(connection, queue).take()

        assert time.time() >= due
        assert message.delivery_info["redelivered"] is False
        connection.close()


def test_a_message_whose_time_is_over_is_not_delivered(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("short")
    publish(connection, queue, "old", expiration=0.01)
    time.sleep(0.05)
    publish(connection, queue, "new", expiration=60)

    assert Consumer(connection, queue).get() == ["new"]


def test_a_message_that_is_none_of_kombu_is_a_dead_letter(connect: Connect, daemon: Daemon) -> None:
    with SyncAdmin(daemon.http) as admin, lapwing.SyncProducer(daemon.tcp) as producer:
        producer.publish("alien", b"hello")
        consumer = Consumer(connect(), kombu.Queue("alien"))
        consumer.drain()

        until(lambda: "alien.celery.dead" in admin.stats().topics, what="the dead letter")


def test_queues_are_counted_emptied_and_deleted(connect: Connect, daemon: Daemon) -> None:
    connection, queue = connect(), kombu.Queue("counted")
    publish(connection, queue, *range(5))
    with connection.channel() as channel:
        assert channel.queue_declare("counted", passive=True).message_count == 5
        assert channel.queue_purge("counted") == 5
        assert channel.queue_declare("counted", passive=True).message_count == 0
        channel.queue_delete("counted")
        with SyncAdmin(daemon.http) as admin:
            assert "counted" not in admin.stats().topics


def test_a_simple_queue_gets_single_messages(connect: Connect) -> None:
    with closing(connect().SimpleQueue("simple")) as queue:
        queue.put({"n": 1})
        message = queue.get_nowait()
        message.requeue()
        again = queue.get_nowait()
        again.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()

    assert again.payload == {"n": 1}


def test_replies_to_a_queue_that_is_gone_are_dropped(connect: Connect, daemon: Daemon) -> None:
    asking, replying = connect(), connect()
    queue = kombu.Queue("reply-1", durable=False, auto_delete=True)
    consumer = Consumer(asking, queue)
    with replying.channel() as channel:
        for name in ("reply-1", "reply-0"):
            kombu.Producer(channel).publish("yes", exchange="", routing_key=name, correlation_id="1")

        assert consumer.get() == ["yes"]
    with SyncAdmin(daemon.http) as admin:
        assert "reply-1#ephemeral" in admin.stats().topics
        assert not {"reply-0", "reply-0#ephemeral"} & admin.stats().topics.keys()


def test_all_nsqds_of_an_nsqlookupd_are_consumed() -> None:
    here = "--broadcast-address=127.0.0.1"
    with start_nsqlookupd() as lookupd:
        known = {"lookupd_tcp_addresses": (lookupd.tcp,)}
        with nsqd(here, **known) as one, nsqd(here, **known) as two:
            connection = kombu.Connection(f"lapwing+lookupd://{lookupd.http}")
            queue = kombu.Queue("spread")
            until(lambda: len(list(nodes_of(connection))) == 2, what="two nsqds in discovery")
            consumer = Consumer(connection, queue)
            for daemon in (one, two):
                direct = kombu.Connection(f"lapwing://{daemon.tcp}", transport_options={"nsqd_http": daemon.http})
                publish(direct, queue, daemon.tcp)
                direct.close()

            assert set(consumer.get(2)) == {one.tcp, two.tcp}
            connection.close()
            two.kill()
            with kombu.Connection(f"lapwing+lookupd://{lookupd.http}") as later:
                assert [str(node.address) for node in nodes_of(later)] == [one.tcp]


def nodes_of(connection: kombu.Connection) -> list[Node]:
    connection.ensure_connection(timeout=60)
    transport = connection.transport
    assert isinstance(transport, Transport)
    transport.nodes.refresh()
    return list(transport.nodes)


UNCONFIRMED = """
import sys, kombu, lapwing.contrib.celery
options = {"nsqd_http": sys.argv[2], "confirm_publish": False}
producer = kombu.Producer(kombu.Connection(f"lapwing://{sys.argv[1]}", transport_options=options).channel())
for number in range(500):
    producer.publish(number, exchange="", routing_key="hasty")
"""


def test_a_program_that_ends_at_once_has_published_what_it_did_not_wait_for(connect: Connect, daemon: Daemon) -> None:
    subprocess.run([sys.executable, "-c", UNCONFIRMED, daemon.tcp, daemon.http], check=True)

    assert Consumer(connect(), kombu.Queue("hasty")).get(500) == list(range(500))


def test_a_refusal_that_nobody_waits_for_is_logged_and_the_next_message_is_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nsqd("--max-msg-size=2000") as small, kombu.Connection(
        f"lapwing://{small.tcp}", transport_options={"nsqd_http": small.http, "confirm_publish": False}
    ) as connection:  # fmt: skip
        queue = kombu.Queue("picky")
        publish(connection, queue, "one", "x" * 3000)
        until(lambda: node_of(connection).connect() and refusals(caplog), what="the refusal")
        publish(connection, queue, "two")

        assert Consumer(connection, queue).get(2) == ["one", "two"]
        assert len(refusals(caplog)) == 1


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelname == "ERROR"]


def node_of(connection: kombu.Connection) -> Node:
    (node,) = nodes_of(connection)
    return node
