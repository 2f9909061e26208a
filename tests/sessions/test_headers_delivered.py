"""Headers reach the consumers that ask for them, and nobody else notices."""

from pathlib import Path

import pytest

from failing import configure, letters
from lapwing.errors import ProtocolError
from lapwing.log.log import Extra
from lapwing.wire.nsq.commands import Hmpub, Hpub, Pub, Rdy
from lapwing.wire.nsq.connection import ClientConnection, MessageRow, Messages
from play import MINUTE, SECOND, Client, Stage, numbered

HOUR = 60 * MINUTE


def rows(client: Client) -> list[tuple[int, bytes, bytes]]:
    """Attempts, body and headers of the messages that have arrived since the last time."""
    connection = ClientConnection()
    connection.receive(b"".join(client.session.replies.ready))
    client.session.replies.ready.clear()
    client.subscription.unsent = 0
    found: list[MessageRow] = []
    for frame in connection.frames():
        if isinstance(frame, Messages):
            found += frame.messages
    return [(row[1], row[3], row[4] if len(row) > 4 else b"") for row in found]


def publish(stage: Stage, *pairs: tuple[bytes, bytes]) -> None:
    assert stage.client().say(Hmpub.of("t", pairs)).answers() == [b"OK"]


def test_a_batch_is_delivered_with_its_headers_to_those_who_ask(stage: Stage) -> None:
    asked, plain = stage.consumer("a", headers=True), stage.consumer("b")
    publish(stage, (b'{"a":"1"}', b"one"), (b"", b"two"), (b' {"b":"2"} ', b"three"))

    assert rows(asked) == [(1, b"one", b'{"a":"1"}'), (1, b"two", b""), (1, b"three", b'{"b":"2"}')]
    assert rows(plain) == [(1, b"one", b""), (1, b"two", b""), (1, b"three", b"")]


def test_a_redelivery_has_the_same_headers(stage: Stage) -> None:
    consumer = stage.consumer(headers=True)
    publish(stage, (b'{"a":"1"}', b"one"), (b"", b"two"))
    rows(consumer)
    consumer.requeue(0).requeue(1)

    assert rows(consumer) == [(2, b"one", b'{"a":"1"}'), (2, b"two", b"")]


def test_headers_of_dead_letters_are_the_brokers_alone(stage: Stage) -> None:
    """A message that is published with the headers of a letter is a message like any other."""
    consumer = stage.consumer(headers=True)
    letter = b'{"a":"1","dead-id":"0000000000000000","dead-topic":"t"}'
    publish(stage, (letter, b"one"), (b'{"b":"dead-2"}', b"two"), (b'{"dead-id":"0"}', b"three"))
    stage.client().say(Hpub.of("t", letter, b"four"), Hpub.of("t", letter, b"five", delay=SECOND))
    stage.pass_time(2 * SECOND)

    assert rows(consumer) == [
        (1, b"one", b'{"a":"1"}'), (1, b"two", b'{"b":"dead-2"}'), (1, b"three", b""), (1, b"four", b'{"a":"1"}'),
        (1, b"five", b'{"a":"1"}'),
    ]  # fmt: skip
    configure(stage, max_attempts=1)
    for sequence in range(5):
        consumer.requeue(sequence)
    assert len(letters(stage)) == 5


def test_one_message_at_a_time_out_of_many_batches(stage: Stage) -> None:
    for batch in range(3):
        publish(stage, *((b'{"n":"%d"}' % number, b"x") for number in range(batch * 100, batch * 100 + 100)))
    consumer = stage.consumer(headers=True, ready=1)
    seen = []
    for sequence in range(300):
        seen += rows(consumer)
        consumer.finish(sequence)

    assert seen == [(1, b"x", b'{"n":"%d"}' % number) for number in range(300)]


def test_a_deferred_message_keeps_its_headers(stage: Stage) -> None:
    consumer = stage.consumer(headers=True)
    stage.client().say(Hpub.of("t", b'{"a":"1"}', b"later", delay=SECOND), Hpub.of("t", b"", b"also", delay=SECOND))
    assert rows(consumer) == []
    stage.pass_time(2 * SECOND)

    assert rows(consumer) == [(1, b"later", b'{"a":"1"}'), (1, b"also", b"")]


def test_what_is_refused_creates_no_topic_and_stores_nothing(stage: Stage) -> None:
    with pytest.raises(ProtocolError, match=r"message\(1\) headers are not"):
        stage.client().session.handle(Hmpub.of("t", [(b"{}", b"x"), (b"[]", b"y")]), now=stage.now)
    assert not stage.broker.topics

    stage.client().publish(b"there")
    with pytest.raises(ProtocolError, match="headers are not"):
        stage.client().session.handle(Hpub.of("t", b'{"UPPER":""}', b"x"), now=stage.now)
    assert stage.broker.existing("t").log.next == 1


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_headers_survive(tmp_path: Path, end: str) -> None:
    stage = Stage(tmp_path)
    publish(stage, (b'{"a":"1"}', b"one"), (b'{"b":"\xc3\xa4"}', b"two"))
    stage.client().publish(b"three")
    getattr(stage, end)()
    consumer = stage.consumer(headers=True)

    assert rows(consumer) == [(1, b"one", b'{"a":"1"}'), (1, b"two", b'{"b":"\xc3\xa4"}'), (1, b"three", b"")]
    assert stage.broker.existing("t").log.extras(0, 9) == [Extra(0, 0, {"a": "1"}), Extra(1, 0, {"b": "ä"})]


def test_headers_come_from_the_disk_where_memory_has_let_go_of_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=20_000)
    for batch in range(40):
        numbers = range(batch * 25, batch * 25 + 25)
        pairs = [(b'{"n":"%d","pad":"%b"}' % (number, b"p" * 500), b"x") for number in numbers]
        publish(stage, *pairs)
    stage.kill()
    consumer = stage.consumer(headers=True, ready=7)
    seen: list[tuple[int, bytes, bytes]] = []
    while found := rows(consumer):
        consumer.finish(*range(len(seen), len(seen) + len(found)))
        seen += found

    assert [headers.partition(b",")[0] for _, _, headers in seen] == [b'{"n":"%d"' % number for number in range(1000)]


def test_a_straggler_in_the_side_log_keeps_its_headers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_bytes_per_file=1000, max_req_timeout=HOUR)
    stage.consumer().leave()
    publish(stage, (b'{"a":"1"}', b"straggler"))
    consumer = stage.consumer()
    consumer.received()
    consumer.requeue(0, delay=HOUR // 2)
    for body in numbered(100):
        stage.client().publish(body)
        consumer.finish(*consumer.received())
    consumer.leave()
    stage.checkpoint(trim=True)
    assert stage.broker.existing("t").log.first > 80
    stage.restart()
    stage.pass_time(HOUR)

    plain = stage.consumer(ready=1)
    assert rows(plain) == [(2, b"straggler", b"")]
    plain.leave()
    assert rows(stage.consumer(headers=True)) == [(3, b"straggler", b'{"a":"1"}')]


def test_an_ephemeral_topic_delivers_headers(stage: Stage) -> None:
    consumer = stage.consumer("c#ephemeral", topic="t#ephemeral", headers=True)
    stage.client().say(Hmpub.of("t#ephemeral", [(b'{"a":"1"}', b"one"), (b"", b"two")]), Pub("t#ephemeral", b"three"))

    assert rows(consumer) == [(1, b"one", b'{"a":"1"}'), (1, b"two", b""), (1, b"three", b"")]


def test_a_sampling_consumer_gets_the_headers_of_what_it_gets(stage: Stage) -> None:
    consumer = stage.consumer(headers=True, sample_rate=50)
    publish(stage, *((b'{"n":"%d"}' % number, b"%d" % number) for number in range(200)))
    consumer.say(Rdy(2500))

    found = rows(consumer)
    assert 20 < len(found) < 180
    assert all(headers == b'{"n":"%b"}' % body for _, body, headers in found)
