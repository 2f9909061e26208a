"""Settings of a channel hold for groups: failures, dead letters, limits, rates and lifetimes."""

from typing import Any

import pytest
from redis_stage import NOW, RedisClient, RedisStage

from lapwing.broker.failures import dead_filter
from play import MINUTE, MS, SECOND

T0 = NOW // MS


def stage_with(count: int = 3, **settings: Any) -> RedisStage:
    stage = RedisStage()
    client = stage.redis()
    client.send("XGROUP CREATE s g $ MKSTREAM", *[f"XADD s * data {number}" for number in range(count)]).replies()
    stage.broker.settings.change_channel(stage.channel("g", "s"), settings, now=stage.now)
    return stage


def read(client: RedisClient, more: str = "") -> list[bytes]:
    reply = client.ask(f"XREADGROUP GROUP g w {more} STREAMS s >")
    return [] if reply is None else [entry for entry, _ in reply[0][1]]


def letters(stage: RedisStage) -> list[list[bytes]]:
    topic = stage.broker.find("s.g.dead")
    return [] if topic is None else [pairs for _, pairs in stage.redis().ask("XRANGE s.g.dead - +")]


def test_a_failure_is_counted_and_the_last_one_makes_a_dead_letter() -> None:
    stage = stage_with(1, max_attempts=2)
    client = stage.redis()
    (entry,) = read(client)
    assert client.ask([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry]) == 1

    assert read(client) == [entry]
    assert letters(stage) == []
    assert client.ask([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry]) == 1
    assert client.ask("XPENDING s g") == [0, None, None, None]
    assert read(client) == []
    assert letters(stage) == [[b"data", b"0"]]


def test_an_entry_that_is_given_back_without_a_failure_is_none() -> None:
    stage = stage_with(1, max_attempts=1)
    client = stage.redis()
    (entry,) = read(client)
    for _ in range(3):
        assert client.ask([b"XNACK", b"s", b"g", b"SILENT", b"IDS", b"1", entry]) == 1
        assert read(client) == [entry]

    assert letters(stage) == []


def test_an_entry_that_nobody_can_handle_is_a_dead_letter_at_once() -> None:
    stage = stage_with(1, max_attempts=5)
    client = stage.redis()
    (entry,) = read(client)

    assert client.ask([b"XNACK", b"s", b"g", b"FATAL", b"IDS", b"1", entry]) == 1
    assert client.ask("XPENDING s g") == [0, None, None, None]
    assert letters(stage) == [[b"data", b"0"]]


def test_a_failed_entry_waits_for_its_retry() -> None:
    stage = stage_with(1, retry_first="10s", retry_jitter=0)
    client = stage.redis()
    (entry,) = read(client)
    client.ask([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry])

    assert read(client) == []
    assert client.ask("XPENDING s g - + 10") == [[entry, b"", -1, 1]]
    stage.pass_time(10 * SECOND)
    assert read(client) == [entry]


def test_no_more_are_in_flight_than_the_channel_permits() -> None:
    stage = stage_with(5, max_in_flight=2)
    client = stage.redis()

    assert len(found := read(client, "COUNT 10")) == 2
    assert read(client) == []
    assert client.ask([b"XACK", b"s", b"g", found[0]]) == 1
    assert len(read(client)) == 1


def test_a_rate_holds_for_reads_that_wait_too() -> None:
    stage = stage_with(5, rate="1/s", burst=2)
    client = stage.redis()
    assert len(read(client)) == 2

    client.send("XREADGROUP GROUP g w BLOCK 0 STREAMS s >")
    assert client.replies() == []
    stage.pass_time(1100 * MS)
    ((_, entries),) = client.replies()[0]
    assert len(entries) == 1


def test_expired_entries_are_not_delivered() -> None:
    stage = stage_with(2, message_ttl="1m")
    stage.pass_time(2 * MINUTE)
    client = stage.redis()
    client.ask("XADD s * data new")

    assert len(read(client)) == 1


@pytest.mark.parametrize("paused", [True, False])
def test_a_paused_group_gives_nothing(paused: bool) -> None:
    stage = stage_with(2)
    stage.broker.pause_channel("s", "g", paused)

    assert len(read(stage.redis())) == (0 if paused else 2)


def test_an_entry_that_was_trimmed_and_redriven_stays_with_whoever_claims_it() -> None:
    stage = stage_with(1, max_attempts=1)
    client = stage.redis()
    (entry,) = read(client)
    client.ask([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry])
    assert client.ask("XTRIM s MAXLEN 0") == 1
    redrives, dead = stage.broker.redrives, stage.broker.existing("s.g.dead")
    redrives.start(dead, to="channel", wanted=dead_filter.parse({}), now=stage.now)
    while redrives.step(now=stage.now) is not None:
        stage.commit()
    pairs = [[entry, [b"data", b"0"]]]

    assert client.ask("XREADGROUP GROUP g w STREAMS s >")[0][1] == pairs
    assert client.ask("XREADGROUP GROUP g w STREAMS s 0")[0][1] == pairs
    assert client.ask("XAUTOCLAIM s g other 0 0")[1] == pairs
    assert client.ask([b"XCLAIM", b"s", b"g", b"w", b"0", entry]) == pairs
    assert client.ask([b"XACK", b"s", b"g", entry]) == 1


def read_as(client: RedisClient, name: str, more: str = "") -> list[bytes]:
    reply = client.ask(f"XREADGROUP GROUP g {name} {more} STREAMS s >")
    return [] if reply is None else [entry for entry, _ in reply[0][1]]


def test_one_consumer_is_the_active_one_while_it_holds_entries() -> None:
    stage = stage_with(5, active="single")
    one, two = stage.redis(), stage.redis()
    first, second = read_as(one, "one", "COUNT 2")
    assert read_as(two, "two") == []
    assert len(read_as(one, "one", "COUNT 1")) == 1  # it may have more

    held = [entry for entry, _ in one.ask("XREADGROUP GROUP g one STREAMS s 0")[0][1]]
    assert held[:2] == [first, second]
    assert one.ask([b"XACK", b"s", b"g", *held[:2]]) == 2
    assert read_as(two, "two", "NOACK") == []
    assert one.ask([b"XACK", b"s", b"g", held[2]]) == 1
    assert len(read_as(two, "two", "NOACK COUNT 1")) == 1  # finished at once: it holds nothing
    assert len(read_as(one, "one")) == 1


def test_the_next_waiting_read_is_answered_when_everything_is_acknowledged() -> None:
    stage = stage_with(2, active="single")
    one, two, three = stage.redis(), stage.redis(), stage.redis()
    (first,) = read_as(one, "one", "COUNT 1")
    two.send("XREADGROUP GROUP g two COUNT 1 BLOCK 0 STREAMS s >")
    three.send("XREADGROUP GROUP g three COUNT 1 BLOCK 0 STREAMS s >")
    assert [two.replies(), three.replies()] == [[], []]

    assert one.ask([b"XACK", b"s", b"g", first]) == 1
    ((_, entries),) = two.replies()[0]
    assert (len(entries), three.replies()) == (1, [])


def test_the_next_consumer_goes_on_once_it_has_claimed_what_the_last_one_left() -> None:
    stage = stage_with(4, active="single")
    lost, heir = stage.redis(), stage.redis()
    read_as(lost, "lost", "COUNT 2")
    lost.leave()
    stage.pass_time(MINUTE)
    assert read_as(heir, "heir") == []

    assert len(heir.ask("XAUTOCLAIM s g heir 1000 0 COUNT 1")[1]) == 1
    assert read_as(heir, "heir") == []  # an entry is still with the lost one
    assert len(heir.ask("XAUTOCLAIM s g heir 1000 0")[1]) == 1
    assert len(read_as(heir, "heir")) == 2


def test_a_group_and_nsq_consumers_have_one_active_consumer_together() -> None:
    stage = stage_with(3, active="single")
    client, consumer = stage.redis(), stage.consumer("g", topic="s", ready=1)
    (sequence,) = consumer.received()
    assert read_as(client, "one") == []
    consumer.finish(sequence)
    assert consumer.received()
    consumer.leave()

    assert len(read_as(client, "one", "COUNT 9")) == 2
