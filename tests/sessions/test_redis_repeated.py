"""Requests that a client sends again and again are carried out without being parsed, with the same replies."""

import pytest
from redis_stage import RedisClient, RedisError, RedisStage

from lapwing.broker.channel.holds import Hold
from lapwing.sessions.redis.session import RedisSession
from lapwing.wire.resp.requests import Request

READ = "XREADGROUP GROUP g c COUNT 2 STREAMS s >"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the frequent commands that were parsed."""
    names: list[bytes] = []
    parsed = RedisSession.handle

    def noting(self: RedisSession, request: Request, *, now: int) -> None:
        if isinstance(request, list):
            names.append(request[0])
        parsed(self, request, now=now)

    monkeypatch.setattr(RedisSession, "handle", noting)
    return names


@pytest.fixture
def client() -> RedisClient:
    client = RedisStage().redis()
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    return client


def add(client: RedisClient, count: int = 2) -> list[bytes]:
    return [client.ask(f"XADD s * data m{number}") for number in range(count)]


def ack(ids: list[bytes]) -> str:
    return " ".join(["XACK s g", *(each.decode() for each in ids)])


def read(client: RedisClient) -> list[bytes]:
    ((key, entries),) = client.ask(READ)
    assert key == b"s"
    return [entry for entry, _ in entries]


def test_a_consumer_that_reads_and_acknowledges_is_parsed_once(client: RedisClient, parsed: list[bytes]) -> None:
    added = add(client, 7)
    parsed.clear()

    got = [read(client) for _ in range(4)]
    counts = [client.ask(ack(ids)) for ids in got]

    assert [each for ids in got for each in ids] == added
    assert counts == [2, 2, 2, 1]
    assert parsed == [b"XREADGROUP", b"XACK"]
    assert client.ask(READ) is None
    assert client.ask("XPENDING s g")[0] == 0


def test_a_repeated_read_shows_pairs_and_speaks_the_protocol_of_the_moment(client: RedisClient) -> None:
    client.ask(READ)
    client.ask("XADD s * a 1 b 2")
    client.ask("HELLO 3")

    assert client.ask(READ)[b"s"][0][1] == [b"a", b"1", b"b", b"2"]


def test_a_repeated_read_waits_when_it_is_asked_to(client: RedisClient) -> None:
    waiting = READ.replace("STREAMS", "BLOCK 0 STREAMS")
    add(client)
    assert client.ask(waiting)
    other = client.stage.redis()

    assert client.send(waiting).replies() == []
    (entry,) = add(other, 1)
    ((_, entries),) = client.replies()[0]
    assert entries[0][0] == entry


def test_a_consumer_that_was_deleted_is_created_by_the_next_read(client: RedisClient) -> None:
    client.ask(READ)
    client.ask("XGROUP DELCONSUMER s g c")
    add(client)

    assert len(read(client)) == 2
    assert client.ask("XPENDING s g")[3] == [[b"c", b"2"]]


@pytest.mark.parametrize("command", ["XGROUP DESTROY s g", "DEL s"])
def test_a_group_that_is_gone_is_not_read(client: RedisClient, command: str) -> None:
    add(client)
    ids = read(client)
    client.ask(ack(ids[:1]))
    client.ask(command)

    with pytest.raises(RedisError, match="NOGROUP"):
        client.ask(READ)
    assert client.ask(ack(ids[1:])) == 0
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    assert client.ask(READ) is None
    assert client.ask(ack(ids[1:])) == 0


@pytest.mark.parametrize(
    ("ids", "reply"),
    [("1-1", 0), ("0-0 5-99", 0), ("{0} {0}", 1), ("{0} 1-1", 1), ("{0} x", "Invalid stream ID"), ("{0} {1}", 2)],
)
def test_an_acknowledgement_with_other_ids_is_looked_at(client: RedisClient, ids: str, reply: int | str) -> None:
    add(client, 4)
    first = read(client)
    assert client.ask(ack(first)) == 2
    names = [each.decode() for each in read(client)]

    if isinstance(reply, str):
        with pytest.raises(RedisError, match=reply):
            client.ask(f"XACK s g {ids.format(*names)}")
        assert client.ask("XPENDING s g")[0] == 2
    else:
        assert client.ask(f"XACK s g {ids.format(*names)}") == reply
        assert client.ask("XPENDING s g")[0] == 2 - reply


def test_a_repeated_read_heeds_what_happens_to_the_channel_meanwhile(client: RedisClient) -> None:
    client.ask(READ)
    gone, kept = add(client)
    client.ask([b"XDEL", b"s", gone])
    assert read(client) == [kept]

    (given_back,) = add(client, 1)
    assert read(client) == [given_back]
    channel = client.stage.broker.existing("s").channels["g"]
    channel.hold(Hold.PAUSED)
    add(client, 1)
    assert client.ask(READ) is None
    channel.lift(Hold.PAUSED)
    assert len(read(client)) == 1


def test_messages_that_nsq_consumers_requeue_come_first(client: RedisClient) -> None:
    client.ask(READ)
    requeued, fresh = add(client)
    channel = client.stage.broker.existing("s").channels["g"]
    holder = channel.named_holder("c")
    assert read(client) == [requeued, fresh]
    channel.requeue(min(holder.in_flight), holder, delay=0, now=client.stage.now)
    (later,) = add(client, 1)

    assert sorted(read(client)) == sorted([requeued, later])


def test_a_consumer_is_seen_with_each_read(client: RedisClient) -> None:
    client.ask(READ)
    client.stage.pass_time(5_000_000_000)
    assert client.ask(READ) is None

    (consumer,) = client.ask("XINFO CONSUMERS s g")
    assert consumer[consumer.index(b"idle") + 1] == 0
