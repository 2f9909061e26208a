"""Redis and NSQ clients on one topic and one channel."""

from pathlib import Path

import pytest
from redis_stage import NOW, RedisClient, RedisError, RedisStage, encode

from lapwing.broker import stats
from lapwing.broker.operations import claims
from lapwing.wire.nsq.commands import Hmpub, Hpub, Rdy, Sub
from play import MINUTE, MS, SECOND, Client, identity

T0 = NOW // MS


def entry(sequence: int) -> bytes:
    return b"%d-%d" % (T0, sequence)


def read(client: RedisClient, consumer: str = "w", *, group: str = "c", stream: str = "t", more: str = "") -> list[int]:
    """The sequences that a consumer of a group is given."""
    reply = client.ask(f"XREADGROUP GROUP {group} {consumer} {more} STREAMS {stream} >")
    return [] if reply is None else [int(each[0].split(b"-")[1]) for each in reply[0][1]]


def bodies(consumer: Client) -> list[bytes]:
    return [body for _, _, body in consumer.take()[0]]


# --- bodies and pairs ----------------------------------------------------------------------------------------------


def test_an_nsq_consumer_gets_the_plain_value_of_the_body_field() -> None:
    stage = RedisStage()
    consumer = stage.consumer()
    stage.redis().send("XADD t * data hello", "XADD t * name Sara")

    assert bodies(consumer) == [b"hello", encode("name Sara")]


def test_a_message_of_an_nsq_producer_is_one_pair() -> None:
    stage = RedisStage()
    stage.client().publish(b"hello").publish(encode("name Sara"))

    assert stage.redis().ask("XRANGE t - +") == [[entry(0), [b"data", b"hello"]], [entry(1), [b"name", b"Sara"]]]


def test_the_body_field_is_a_setting_of_the_topic() -> None:
    stage = RedisStage()
    consumer = stage.consumer()
    stage.broker.settings.change_topic(stage.broker.existing("t"), {"body_field": "__data__"}, now=stage.now)
    client = stage.redis()
    client.send("XADD t * __data__ hello", "XADD t * data hello").replies()

    assert bodies(consumer) == [b"hello", encode("data hello")]
    assert [pairs[0] for _, pairs in client.ask("XRANGE t - +")] == [b"__data__", b"data"]


def test_fields_are_json_where_the_topic_says_so() -> None:
    stage = RedisStage()
    consumer = stage.consumer()
    stage.broker.settings.change_topic(stage.broker.existing("t"), {"fields": "json"}, now=stage.now)
    client = stage.redis()
    client.send("XADD t * name Sara age 33", "XADD t * data x", "XADD t * a 1 a 2").replies()
    stage.client().publish(b'{"name": "Ann"}').publish(b'{"n": 1}')

    assert bodies(consumer)[:3] == [b'{"name":"Sara","age":"33"}', b"x", encode("a 1 a 2")]
    assert [pairs for _, pairs in client.ask("XRANGE t - +")] == [
        [b"name", b"Sara", b"age", b"33"],
        [b"data", b"x"],
        [b"a", b"1", b"a", b"2"],
        [b"name", b"Ann"],
        [b"data", b'{"n": 1}'],
    ]


# --- one channel ---------------------------------------------------------------------------------------------------


def test_consumers_of_both_kinds_share_a_channel() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=2)
    redis = stage.redis()
    stage.client().publish(*[b"x"] * 6)

    assert nsq.received() == [0, 1]
    assert read(redis, more="COUNT 3") == [2, 3, 4]
    nsq.finish(0, 1)
    assert nsq.received() == [5]
    assert redis.ask("XACK t c " + b" ".join(map(entry, [2, 3, 4])).decode()) == 3
    nsq.finish(5)
    assert stage.channel().in_flight_count == 0


def test_waiting_consumers_of_both_kinds_all_get_something() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=100)
    redis = stage.redis()
    given = 0
    for _ in range(6):
        redis.send("XREADGROUP GROUP c w COUNT 2 BLOCK 0 STREAMS t >")
        stage.client().publish(*[b"x"] * 4)
        if not redis.session.busy:
            ((_, entries),) = redis.replies()[0]
            given += len(entries)

    assert given > 0
    assert len(nsq.received()) == 24 - given > 0


def test_pending_entries_of_nsq_clients_are_shown() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=2)
    redis = stage.redis()
    stage.client().publish(*[b"x"] * 3)
    read(redis)
    stage.now += 5 * MS

    count, low, high, consumers = redis.ask("XPENDING t c")
    assert (count, low, high) == (3, entry(0), entry(2))
    name = nsq.holder.name.encode()
    assert name.startswith(b"nsq:")
    assert consumers == [[name, b"2"], [b"w", b"1"]]
    assert redis.ask("XPENDING t c - + 10")[0] == [entry(0), name, 5, 1]
    assert [line[0] for line in redis.ask([b"XPENDING", b"t", b"c", b"-", b"+", b"10", name])] == [entry(0), entry(1)]


def test_a_claim_takes_from_an_nsq_client_whose_finish_then_fails() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=1)
    redis = stage.redis()
    stage.client().publish(b"x")
    assert nsq.received() == [0]
    stage.now += 10 * SECOND

    assert redis.ask([b"XCLAIM", b"t", b"c", b"w", b"5000", entry(0)]) == [[entry(0), [b"data", b"x"]]]
    nsq.finish(0)
    assert nsq.answers() == [b"E_FIN_FAILED FIN %b failed client does not own message" % identity(0)]
    stage.pass_time(2 * MINUTE)  # its timeout does not bring it back either
    assert redis.ask("XPENDING t c - + 10")[0][1:] == [b"w", 120_000, 2]
    assert redis.ask([b"XACK", b"t", b"c", entry(0)]) == 1


def test_what_an_nsq_consumer_requeues_goes_to_the_next_reader() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=1)
    redis = stage.redis()
    stage.client().publish(b"x")
    nsq.received()
    nsq.say(Rdy(0))
    nsq.requeue(0)

    assert redis.ask("XPENDING t c - + 10") == [[entry(0), b"", -1, 1]]
    assert read(redis) == [0]
    assert redis.ask("XPENDING t c - + 10") == [[entry(0), b"w", 0, 2]]


def test_a_deferred_message_is_not_pending_and_comes_when_it_is_due() -> None:
    stage = RedisStage()
    stage.consumer(ready=0)
    redis = stage.redis()
    stage.client().publish(b"x", delay=5 * SECOND)

    assert redis.ask("XLEN t") == 1
    assert read(redis) == []
    assert redis.ask("XPENDING t c") == [0, None, None, None]
    assert redis.ask([b"XACK", b"t", b"c", entry(0)]) == 0
    stage.pass_time(5 * SECOND)
    assert read(redis) == [0]
    assert redis.ask("XPENDING t c - + 10") == [[entry(0), b"w", 0, 1]]


def test_an_entry_that_is_given_back_goes_to_nsq_consumers_while_there_are_any() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=0)
    redis = stage.redis()
    stage.client().publish(*[b"x"] * 2)
    read(redis)

    assert redis.ask([b"XNACK", b"t", b"c", b"FAIL", b"IDS", b"1", entry(0)]) == 1
    nsq.say(Rdy(1))
    assert nsq.take()[0] == [(0, 2, b"x")]
    nsq.finish(0)
    nsq.leave()
    assert redis.ask([b"XNACK", b"t", b"c", b"FAIL", b"IDS", b"1", entry(1)]) == 1
    assert read(redis) == []
    assert read(redis, more="CLAIM 1000") == [1]


def test_entries_given_back_with_nobody_go_to_an_nsq_consumer_that_comes() -> None:
    stage = RedisStage()
    redis = stage.redis()
    redis.send("XGROUP CREATE t c $ MKSTREAM", "XADD t * data a", "XADD t * data b")
    redis.replies()
    read(redis)
    redis.send(
        [b"XNACK", b"t", b"c", b"FAIL", b"IDS", b"1", entry(0)],
        [b"XNACK", b"t", b"c", b"FATAL", b"IDS", b"1", entry(1)],
    ).replies()

    nsq = stage.consumer(ready=5)
    assert nsq.take()[0] == [(0, 2, b"a")]
    assert redis.ask("XPENDING t c - + 10")[1] == [entry(1), b"", -1, 2**63 - 1]


def test_the_greatest_number_of_deliveries_is_not_counted_beyond(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    nsq = stage.consumer(ready=1)
    redis = stage.redis()
    stage.client().publish(b"x")
    nsq.received()
    redis.ask([b"XNACK", b"t", b"c", b"FATAL", b"IDS", b"1", entry(0)])
    redis.ask([b"XCLAIM", b"t", b"c", b"w", b"0", entry(0)])
    assert redis.ask("XPENDING t c - + 10") == [[entry(0), b"w", 0, 2**63 - 1]]
    redis.ask([b"XNACK", b"t", b"c", b"FAIL", b"IDS", b"1", entry(0)])
    assert nsq.take()[0] == [(0, 65535, b"x")]

    stage.now += 50 * MS
    stage.checkpoint()
    stage.kill()
    assert stage.redis().ask("XPENDING t c - + 10") == [[entry(0), b"", -1, 2**63 - 1]]


def test_a_deferred_message_is_not_claimed_nor_pending_before_its_first_delivery() -> None:
    stage = RedisStage()
    stage.consumer(ready=0)
    redis = stage.redis()
    stage.client().publish(b"x", delay=5 * SECOND)

    assert redis.ask([b"XCLAIM", b"t", b"c", b"w", b"0", entry(0)]) == []
    assert redis.ask("XAUTOCLAIM t c w 0 0") == [b"0-0", [], []]
    stage.pass_time(5 * SECOND)
    assert redis.ask("XPENDING t c") == [0, None, None, None]
    assert redis.ask("XPENDING t c - + 10") == []
    assert redis.ask([b"XCLAIM", b"t", b"c", b"w", b"0", entry(0)]) == []
    assert read(redis) == [0]


def test_deleted_entries_reach_no_nsq_consumer() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=0)
    redis = stage.redis()
    stage.client().publish(*[b"x"] * 6)
    redis.ask([b"XDEL", b"t", entry(1), entry(2), entry(5)])

    assert stage.channel().depth == 3
    nsq.say(Rdy(10))
    assert nsq.received() == [0, 3, 4]
    redis.ask([b"XDEL", b"t", entry(3)])
    nsq.requeue(3)
    assert nsq.received() == []
    nsq.finish(0, 4)
    assert stage.channel().depth == 0
    assert stage.channel().in_flight_count == 0


def test_a_deleted_deferred_message_never_comes() -> None:
    stage = RedisStage()
    nsq = stage.consumer(ready=10)
    redis = stage.redis()
    stage.client().publish(b"x", delay=SECOND).publish(b"y")
    redis.ask([b"XDEL", b"t", entry(0)])
    assert nsq.received() == [1]
    assert stage.channel().depth == 0

    stage.pass_time(2 * SECOND)
    assert nsq.received() == []
    assert len(stage.channel().ledger.deferred) == 0


# --- commands on what NSQ made -------------------------------------------------------------------------------------


def test_deleting_a_stream_hangs_up_on_its_nsq_consumers() -> None:
    stage = RedisStage()
    nsq = stage.consumer()

    assert stage.redis().ask("DEL t") == 1
    assert nsq.hung_up


def test_lapwings_own_topics_and_those_without_a_key_are_not_listed() -> None:
    stage = RedisStage()
    for topic in ("plain", "_lapwing.flow", "x#ephemeral", "orders_3a_new", "_db2_other"):
        stage.client().publish(b"x", topic=topic)
    client = stage.redis()

    assert sorted(client.ask("KEYS *")) == [b"orders:new", b"plain"]
    assert client.ask("DBSIZE") == 2
    client.ask("SELECT 2")
    assert client.ask("KEYS *") == [b"other"]


def test_flushing_is_refused_unless_the_operator_permits_it() -> None:
    stage = RedisStage()
    stage.redis().ask("XADD s * f v")
    with pytest.raises(RedisError, match="start nsqd with --redis-flush"):
        stage.redis().ask("FLUSHALL")
    assert stage.redis().ask("EXISTS s") == 1

    stage = RedisStage(redis_flush=True)
    client = stage.redis()
    client.send("XADD s * f v", "SELECT 3", "XADD s * f v", "FLUSHDB", "SELECT 0", "DBSIZE", "FLUSHALL", "DBSIZE")
    assert client.replies()[-3:] == [1, "OK", 0]


# --- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [RedisStage.restart, RedisStage.kill])
def test_pending_entries_keep_their_owner_times_and_deliveries(tmp_path: Path, end: object) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XGROUP CREATE t c $ MKSTREAM", *[f"XADD t * n {number}" for number in range(6)]).replies()
    read(client, "a", more="COUNT 3")
    stage.now += 7 * SECOND
    read(client, "b", more="COUNT 2")
    client.send([b"XCLAIM", b"t", b"c", b"b", b"0", entry(0)], [b"XACK", b"t", b"c", entry(1)]).replies()
    client.send([b"XNACK", b"t", b"c", b"SILENT", b"IDS", b"1", entry(4)], "XGROUP CREATECONSUMER t c idle").replies()
    before = client.ask("XPENDING t c - + 10"), client.ask("XINFO CONSUMERS t c"), client.ask("XINFO GROUPS t")
    stage.checkpoint()
    end(stage)  # type: ignore[operator]
    client = stage.redis()

    assert before == (
        client.ask("XPENDING t c - + 10"),
        client.ask("XINFO CONSUMERS t c"),
        client.ask("XINFO GROUPS t"),
    )
    assert [line[1:] for line in before[0]] == [[b"b", 0, 2], [b"a", 7000, 1], [b"b", 0, 1], [b"", -1, 0]]
    assert read(client, "a") == [5]
    assert client.ask([b"XACK", b"t", b"c", entry(0), entry(2), entry(3), entry(4), entry(5)]) == 5


@pytest.mark.parametrize("end", [RedisStage.restart, RedisStage.kill])
def test_deleted_entries_and_the_place_of_groups_survive(tmp_path: Path, end: object) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XGROUP CREATE t c $ MKSTREAM", *[f"XADD t * n {number}" for number in range(8)])
    client.send(
        [b"XDEL", b"t", entry(3), entry(5)], "XTRIM t MINID 0", "XGROUP CREATE t at 5-5", "XGROUP CREATE t end $"
    )
    client.send([b"XSETID", b"t", b"%d-9" % (T0 + 5)]).replies()
    before = client.ask("XINFO GROUPS t"), client.ask("XRANGE t - +"), client.ask("XINFO STREAM t")
    stage.checkpoint()
    end(stage)  # type: ignore[operator]
    client = stage.redis()

    assert (client.ask("XINFO GROUPS t"), client.ask("XRANGE t - +"), client.ask("XINFO STREAM t")) == before
    assert read(client) == [0, 1, 2, 4, 6, 7]
    assert read(client, group="end") == []
    assert client.ask("XADD t * n 8") == b"%d-10" % (T0 + 5)


def test_deleting_a_consumer_or_a_group_survives_a_kill(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XGROUP CREATE t c $ MKSTREAM", "XGROUP CREATE t d $", "XADD t * n 1").replies()
    read(client, "a")
    stage.checkpoint()
    assert client.ask("XGROUP DELCONSUMER t c a") == 1
    assert client.ask("XGROUP DESTROY t d") == 1
    stage.checkpoint()
    stage.kill()
    client = stage.redis()

    assert client.ask("XINFO CONSUMERS t c") == []
    assert client.ask("XPENDING t c") == [0, None, None, None]
    assert len(client.ask("XINFO GROUPS t")) == 1
    assert read(client) == []


def test_times_of_pending_entries_are_right_after_a_restart_although_the_clock_was_set(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XGROUP CREATE t c $ MKSTREAM", "XADD t * n 1").replies()
    read(client, "a")
    stage.checkpoint()
    stage.skew = 3 * SECOND  # the broker's time goes on in the next process
    stage.now += 250 * MS
    stage.kill()

    assert stage.redis().ask("XPENDING t c - + 10")[0][2] == 250


def test_named_consumers_are_counted_for_operators() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send("XGROUP CREATE t c $ MKSTREAM", "XADD t * n 1", "XADD t * n 2").replies()
    read(client, "a")
    client.ask("XGROUP CREATECONSUMER t c idle")
    client.ask([b"XNACK", b"t", b"c", b"FAIL", b"IDS", b"1", entry(1)])
    stage.now += 90 * SECOND

    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or ()
    assert topic.channels[0].in_flight_count == 2
    assert topic.channels[0].holders == (
        stats.HolderStats("a", 1, 90 * SECOND, 90 * SECOND),
        stats.HolderStats("idle", 0, 90 * SECOND, 0),
    )


def test_what_one_read_delivered_is_saved_with_the_next_checkpoint(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XGROUP CREATE s g $ MKSTREAM", "XADD s * data 0").replies()
    stage.checkpoint()
    assert client.ask("XREADGROUP GROUP g w STREAMS s >") is not None
    stage.now += 50 * MS
    stage.checkpoint()
    stage.kill()

    ((_, owner, _, deliveries),) = stage.redis().ask("XPENDING s g - + 10")
    assert (owner, deliveries) == (b"w", 1)


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_deferred_entry_that_was_claimed_and_acknowledged_does_not_come_again(tmp_path: Path, end: str) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.ask("XGROUP CREATE t c $ MKSTREAM")
    stage.client().publish(b"later", delay=SECOND)
    stage.pass_time(SECOND)
    client.ask("XGROUP CREATECONSUMER t c w")
    assert claims.claim(stage.channel(), [0], "ready", now=stage.now, to="w") == [0]
    assert client.ask([b"XACK", b"t", b"c", entry(0)]) == 1
    stage.now += 50 * MS
    stage.checkpoint()
    getattr(stage, end)()
    stage.pass_time(MINUTE)

    assert read(stage.redis()) == []


# --- headers that belong to entries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["XADD t 5-1 data a", "XSETID t 9999999999999-0"])
def test_ids_survive_a_kill_right_behind_the_answer(tmp_path: Path, command: str) -> None:
    stage = RedisStage(tmp_path)
    stage.client().say(Sub("t", "c"))
    client = stage.redis()
    client.ask(command)
    client.ask("XADD t * data b")
    before = client.ask("XRANGE t - +")
    stage.kill()

    assert stage.redis().ask("XRANGE t - +") == before


def test_no_nsq_client_gives_an_entry_its_id_or_the_name_of_a_producer(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.send("XADD t 5-1 data a", "XADD t IDMP p 1 * data b").replies()
    forged = [b'{"redis-id":"1-1","a":"b"}', b'{"redis-id":"no id"}', b'{"redis-once":"no name"}']
    stage.client().say(Hpub.of("t", forged[0], b"c"), Hmpub.of("t", [(each, b"d") for each in forged[1:]]))
    ids = [each for each, _ in client.ask("XRANGE t - +")]
    stage.kill()
    client = stage.redis()

    assert len(ids) == 5
    assert ids == sorted(ids, key=lambda each: tuple(map(int, each.split(b"-"))))
    assert [each for each, _ in client.ask("XRANGE t - +")] == ids
    assert client.ask("XADD t IDMP p 1 * data b") == ids[1]
    consumer = stage.consumer(headers=True)
    assert b'{"a":"b"}' in b"".join(consumer.session.replies.ready)
