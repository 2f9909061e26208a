"""What a Redis client gets, where recorded conversations cannot tell: limits, failing disks, time, and pipelines."""

import gc
import weakref
from pathlib import Path

import pytest
from redis_stage import NOW, RedisError, RedisStage, encode, fields

from lapwing import kernel
from lapwing.errors import LogError, WriteFailed
from overriding import overriding
from play import MS, SECOND

T0 = NOW // MS


def test_replies_keep_the_order_of_the_commands() -> None:
    client = RedisStage().redis()
    client.send("PING", "XADD s * f v", "XADD s * f w", "XLEN s", "NOSUCH", "XADD s * f x", "ECHO end")

    pong, first, second, length, error, third, end = client.replies()

    assert (pong, length, end) == ("PONG", 2, b"end")
    assert [first, second, third] == [b"%d-%d" % (T0, sequence) for sequence in range(3)]
    assert isinstance(error, RedisError)


def test_a_run_of_xadds_is_one_publish() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send(*[f"XADD s * data {number}" for number in range(200)])

    assert len(client.replies()) == 200
    assert len(stage.broker.existing("s").waiting) == 0
    assert stage.broker.existing("s").message_count == 200
    assert client.ask("XRANGE s - + COUNT 1") == [[b"%d-0" % T0, [b"data", b"0"]]]


def test_an_xadd_is_answered_after_the_sync_with_fsync(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path, durability="fsync")
    client = stage.redis()
    client.send("PING", "XADD s * f v", "PING")

    assert client.replies() == ["PONG"]
    (_, waiting), *_ = stage.broker.work.unsynced
    for receipt, sequence in waiting:
        receipt.settle(sequence, None)
    assert client.replies() == [b"%d-0" % T0, "PONG"]


@pytest.mark.parametrize("commands", [["XADD s * f v"], ["MULTI", "XADD s * f v", "PING", "EXEC"]])
def test_an_entry_that_cannot_be_written_is_answered_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str]
) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.ask("XADD s * f v")

    def refuse() -> None:
        log = stage.broker.existing("s").log
        log.forget()
        raise WriteFailed("/data/s", 7, OSError(28, "No space left on device"))

    log = stage.broker.existing("s").log
    monkeypatch.setattr(log, "__class__", overriding(log, flush=refuse))
    client.send(*commands, "PING")
    found = client.replies()
    failed = found[-2][0] if isinstance(found[-2], list) else found[-2]

    assert str(failed).startswith("MISCONF Errors writing to the AOF file: /data/s: write at offset 7 failed")
    assert found[-1] == "PONG"


def test_time_does_not_go_back_in_ids() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.ask("XADD s * f v")
    stage.broker.skew = -10 * SECOND
    client.ask("XADD s * f w")
    stage.broker.skew = 0
    stage.now += 5 * MS

    assert client.ask("XADD s * f x") == b"%d-2" % (T0 + 5)
    assert [entry[0] for entry in client.ask("XRANGE s - +")] == [b"%d-0" % T0, b"%d-1" % T0, b"%d-2" % (T0 + 5)]


def test_ids_of_a_millisecond_are_found_by_either_part() -> None:
    stage = RedisStage()
    client = stage.redis()
    for _ in range(4):
        client.send("XADD s * f v", "XADD s * f v", "XADD s * f v")
        stage.now += 2 * MS
    client.replies()

    def found(start: str, end: str) -> list[int]:
        return [int(entry[0].split(b"-")[1]) for entry in client.ask(f"XRANGE s {start} {end}")]

    assert found(f"{T0 + 2}", f"{T0 + 2}") == [3, 4, 5]
    assert found(f"{T0 + 2}-4", f"{T0 + 4}-7") == [4, 5, 6, 7]
    assert found(f"({T0 + 2}-4", f"({T0 + 4}-7") == [5, 6]
    assert found(f"{T0 + 1}", f"{T0 + 3}") == [3, 4, 5]
    assert found(f"{T0 + 2}-9", f"{T0 + 4}-0") == []
    assert found(f"{T0 + 4}-3", "+") == [6, 7, 8, 9, 10, 11]
    assert found("0", f"{T0}-1") == [0, 1]
    assert found(f"{T0 + 9}", "+") == []


def test_an_id_whose_time_is_wrong_names_no_entry() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send("XGROUP CREATE s g $ MKSTREAM", "XADD s * f v", "XADD s * f w")
    client.send("XREADGROUP GROUP g c STREAMS s >").replies()

    assert client.ask("XACK s g 1-0 1-1") == 0
    assert client.ask(f"XDEL s {T0 + 1}-0") == 0
    assert client.ask(f"XACK s g {T0}-0 {T0}-1 {T0}-2") == 2


def test_a_big_reply_comes_in_pieces() -> None:
    stage = RedisStage()
    client = stage.redis()
    for _ in range(20):
        client.send(*[[b"XADD", b"s", b"*", b"data", b"x" * 1000]] * 200)
    client.replies()
    client.send("XRANGE s - +", "PING")

    assert client.session.busy
    pieces = []
    while (piece := client.session.next_piece()) is not None:
        pieces.append(len(piece))
    assert max(pieces) < 2 << 20
    assert sum(pieces) > 4_000_000
    assert client.freed == 1
    client.pump()
    assert client.replies() == ["PONG"]


def test_a_big_reply_is_whole(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    for _ in range(10):
        client.send(*[[b"XADD", b"s", b"*", b"data", b"x" * 1000]] * 200)
    client.replies()

    for command, ends in (("XRANGE s - +", (0, 1999)), ("XREVRANGE s + -", (1999, 0))):
        entries = client.ask(command)
        assert len(entries) == 2000
        assert (entries[0][0], entries[-1][0]) == tuple(b"%d-%d" % (T0, end) for end in ends)
    ((_, entries),) = client.ask(f"XREAD COUNT 1999 STREAMS s {T0}-0")
    assert len(entries) == 1999


def test_a_transaction_that_takes_too_much_memory_is_refused() -> None:
    stage = RedisStage(max_body_size=10_000, max_msg_size=5_000)
    client = stage.redis()
    client.send("MULTI")
    for _ in range(60):
        client.send([b"XADD", b"s", b"*", b"f", b"v" * 4000])

    *_, refused = client.replies()
    assert "too long" in str(refused)
    with pytest.raises(RedisError, match="EXECABORT"):
        client.ask("EXEC")
    assert client.ask("EXISTS s") == 0


def test_an_entry_that_is_too_big_is_refused_and_the_conversation_goes_on() -> None:
    client = RedisStage(max_msg_size=1000).redis()

    with pytest.raises(RedisError, match="string exceeds maximum allowed size"):
        client.ask([b"XADD", b"s", b"*", b"f", b"v" * 1001])
    assert client.ask([b"XADD", b"s", b"*", b"data", b"v" * 1000]) == b"%d-0" % T0
    assert client.ask("EXISTS s") == 1


@pytest.mark.parametrize("key", ["k" * 65, ":" * 17])
def test_a_key_that_fits_no_topic_is_refused_with_the_reason(key: str) -> None:
    client = RedisStage().redis()

    with pytest.raises(RedisError, match="the key is too long: as the name of a topic it may have 64 bytes"):
        client.ask(f"XADD {key} * f v")
    assert client.ask(f"EXISTS {key}") == 0


def test_an_acknowledged_entry_makes_room_for_a_consumer_of_nsq() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    consumer = stage.consumer("g", topic="s", ready=1)
    client.send("XADD s * data 0", "XADD s * data 1").replies()
    assert consumer.received() == [0]
    ((entry, *_),) = client.ask("XPENDING s g - + 10")
    client.ask([b"XACK", b"s", b"g", entry])

    assert consumer.received() == [1]


def test_a_stream_without_entries_has_no_keys_in_its_tree() -> None:
    client = RedisStage().redis()
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    empty = fields(client.ask("XINFO STREAM s"))
    client.ask("XADD s * f v")
    full = fields(client.ask("XINFO STREAM s"))

    assert (empty["radix-tree-keys"], empty["radix-tree-nodes"]) == (0, 1)
    assert (full["radix-tree-keys"], full["radix-tree-nodes"]) == (1, 2)


def test_a_waiting_read_ends_at_its_time() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send("XREAD BLOCK 1500 STREAMS s $", "PING")
    assert client.replies() == []

    stage.pass_time(1499 * MS)
    assert client.replies() == []
    stage.pass_time(1 * MS)
    client.pump()
    assert client.replies() == [None, "PONG"]


def test_who_waits_longest_is_served_first_and_up_to_its_count() -> None:
    stage = RedisStage()
    producer, first, second = stage.redis(), stage.redis(), stage.redis()
    producer.ask("XGROUP CREATE s g $ MKSTREAM")
    first.send("XREADGROUP GROUP g a COUNT 2 BLOCK 0 STREAMS s >")
    second.send("XREADGROUP GROUP g b COUNT 2 BLOCK 0 STREAMS s >")
    producer.send(*[f"XADD s * f {number}" for number in range(3)])

    def got(client: object) -> list[bytes]:
        ((_, entries),) = client.replies()[0]  # type: ignore[attr-defined]
        return [values[1] for _, values in entries]

    assert (got(first), got(second)) == ([b"0", b"1"], [b"2"])


def test_a_consumer_that_leaves_while_it_waits_gets_nothing() -> None:
    stage = RedisStage()
    waiting, other = stage.redis(), stage.redis()
    other.ask("XGROUP CREATE s g $ MKSTREAM")
    waiting.send("XREADGROUP GROUP g a BLOCK 0 STREAMS s >")
    waiting.leave()
    other.ask("XADD s * f v")

    assert other.ask("XPENDING s g") == [0, None, None, None]
    assert stage.channel("g", "s").subscriptions == {}


def test_a_waiting_group_answers_when_its_group_is_destroyed() -> None:
    stage = RedisStage()
    waiting, other = stage.redis(), stage.redis()
    other.ask("XGROUP CREATE s g $ MKSTREAM")
    waiting.send("XREADGROUP GROUP g a BLOCK 0 STREAMS s >")
    other.ask("XGROUP DESTROY s g")

    (error,) = waiting.replies()
    assert str(error) == "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


def test_a_claiming_read_waits_until_an_entry_is_idle() -> None:
    stage = RedisStage()
    first, second = stage.redis(), stage.redis()
    first.send("XGROUP CREATE s g $ MKSTREAM", "XADD s * f v", "XREADGROUP GROUP g a STREAMS s >").replies()
    second.send("XREADGROUP GROUP g b BLOCK 9000 CLAIM 2000 STREAMS s >")
    stage.pass_time(1999 * MS)
    assert second.replies() == []

    stage.pass_time(2 * MS)

    ((_, [[entry, values, idle, deliveries]]),) = second.replies()[0]
    assert (entry, values, idle, deliveries) == (b"%d-0" % T0, [b"f", b"v"], 2001, 1)


# --- trimming ------------------------------------------------------------------------------------------------------


def filled(stage: RedisStage, count: int) -> None:
    client = stage.redis()
    client.send("XGROUP CREATE s g $ MKSTREAM", *[f"XADD s * n {number}" for number in range(count)]).replies()


def test_trimming_keeps_what_a_group_has_not_finished() -> None:
    stage = RedisStage()
    filled(stage, 6)
    client = stage.redis()
    client.send("XREADGROUP GROUP g c COUNT 4 STREAMS s >", f"XACK s g {T0}-0 {T0}-1 {T0}-3").replies()

    assert client.ask("XTRIM s MAXLEN 1") == 3
    assert [values[1] for _, values in client.ask("XRANGE s - +")] == [b"2", b"4", b"5"]
    assert client.ask("XTRIM s MAXLEN 1 KEEPREF") == 2
    assert client.ask("XPENDING s g - + 10")[0][0] == b"%d-2" % T0


@pytest.mark.parametrize(("words", "gone"), [("MAXLEN 0", 6), ("MAXLEN ~ 0", 0), ("MAXLEN 0 ACKED", 0)])
def test_a_stream_can_be_emptied_although_a_group_has_not_read_it(words: str, gone: int) -> None:
    stage = RedisStage()
    filled(stage, 6)
    client = stage.redis()

    assert client.ask(f"XTRIM s {words}") == gone
    assert client.ask("XLEN s") == 6 - gone
    reply = client.ask("XREADGROUP GROUP g c STREAMS s >")
    assert (0 if reply is None else len(reply[0][1])) == 6 - gone


def test_trimming_takes_what_a_group_has_not_read_where_that_is_permitted() -> None:
    stage = RedisStage(redis_trim_unread=True)
    filled(stage, 6)
    client = stage.redis()

    assert client.ask("XTRIM s MAXLEN 2") == 4
    ((_, entries),) = client.ask("XREADGROUP GROUP g c STREAMS s >")
    assert [values[1] for _, values in entries] == [b"4", b"5"]


@pytest.mark.parametrize(
    ("words", "left"), [("~ 50", 50), ("~ 60", 150), ("~ 0 LIMIT 99", 250), ("~ 0 LIMIT 200", 50), ("= 60", 60)]
)
def test_an_approximate_trim_takes_hundreds(words: str, left: int) -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send(*[f"XADD s * n {number}" for number in range(250)]).replies()
    client.ask(f"XTRIM s MAXLEN {words}")

    assert client.ask("XLEN s") == left


def test_entries_stay_until_they_are_trimmed_and_free_the_disk_then(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path, max_bytes_per_file=5000)
    client = stage.redis()
    client.send("XGROUP CREATE s g $ MKSTREAM")
    for _ in range(10):
        client.send([b"XADD", b"s", b"*", b"data", b"x" * 2000], "XREADGROUP GROUP g c NOACK STREAMS s >")
    client.replies()
    stage.checkpoint(trim=True)
    assert client.ask("XLEN s") == 10

    client.ask("XTRIM s MAXLEN 1")
    stage.checkpoint(trim=True)

    log = stage.broker.existing("s").log
    assert log.first >= 8
    assert [entry[0] for entry in client.ask("XRANGE s - +")] == [b"%d-9" % T0]


def test_a_topic_of_nsq_lets_go_of_what_its_channels_have_finished(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path, max_bytes_per_file=5000)
    consumer = stage.consumer()
    for _ in range(10):
        stage.client().publish(b"x" * 2000)
        consumer.finish(*consumer.received())
    stage.checkpoint(trim=True)

    client = stage.redis()
    assert 0 < client.ask("XLEN t") < 10
    assert client.ask("XRANGE t - + COUNT 1")[0][1] == [b"data", b"x" * 2000]


# --- chosen ids ----------------------------------------------------------------------------------------------------


def test_ids_that_clients_choose_are_found_like_others(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    chosen = [b"5-1", b"5-7", b"6-0", b"900-3"]
    for entry in chosen:
        client.ask([b"XADD", b"s", entry, b"f", b"v"])
    client.send("XADD s * f v", "XADD s * f v").replies()
    natural = [b"%d-4" % T0, b"%d-5" % T0]

    def listed(command: str) -> list[bytes]:
        return [entry[0] for entry in client.ask(command)]

    assert listed("XRANGE s - +") == chosen + natural
    assert listed("XREVRANGE s 6 5-2") == [b"6-0", b"5-7"]
    assert listed("XRANGE s 5 5") == chosen[:2]
    assert client.ask("XDEL s 5-7 5-2") == 1
    client.ask("XGROUP CREATE s g 5-1")
    ((_, entries),) = client.ask("XREADGROUP GROUP g c STREAMS s >")
    assert [entry[0] for entry in entries] == [b"6-0", b"900-3", *natural]
    assert client.ask([b"XACK", b"s", b"g", b"6-0", b"900-3", b"900-4", natural[0]]) == 3
    stage.restart()
    client = stage.redis()
    assert listed("XRANGE s - +") == [chosen[0], *chosen[2:], *natural]
    with pytest.raises(RedisError, match="equal or smaller"):
        client.ask("XADD s 900-4 f v")


# --- producers that add once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_producers_ids_survive_a_restart(tmp_path: Path, end: str) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.ask("XADD s * data plain")
    once = [client.ask(f"XADD s IDMP p {number} * data x") for number in range(3)]
    auto = client.ask("XADD s IDMPAUTO q * data y")
    getattr(stage, end)()

    client = stage.redis()
    assert [client.ask(f"XADD s IDMP p {number} * data x") for number in range(3)] == once
    assert client.ask("XADD s IDMPAUTO q * data y") == auto
    assert client.ask("XADD s IDMP p 3 * data x") not in once
    assert client.ask("XLEN s") == 6
    stage.pass_time(101 * SECOND)
    assert client.ask("XADD s IDMP p 0 * data x") != once[0]


def test_a_restart_keeps_the_limits_of_a_window_and_what_they_made_it_forget(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    first = client.ask("XADD s IDMP p 0 * data x")
    client.ask("XCFGSET s IDMP-DURATION 1000 IDMP-MAXSIZE 2")
    once = [client.ask(f"XADD s IDMP p {number} * data x") for number in range(1, 4)]
    stage.checkpoint()
    stage.pass_time(500 * SECOND)
    stage.kill()

    client = stage.redis()
    assert [client.ask(f"XADD s IDMP p {number} * data x") for number in (2, 3)] == once[1:]
    assert client.ask("XADD s IDMP p 1 * data x") != once[0]
    assert client.ask("XADD s IDMP p 0 * data x") != first


def test_a_producers_id_is_forgotten_after_its_time() -> None:
    stage = RedisStage()
    client = stage.redis()
    first = client.ask("XADD s IDMP p 1 * f v")
    stage.pass_time(99 * SECOND)
    again = client.ask("XADD s IDMP p 1 * f v")
    stage.pass_time(2 * SECOND)

    assert again == first
    assert client.ask("XADD s IDMP p 1 * f v") != first
    shown = fields(client.ask("XINFO STREAM s"))
    assert (shown["iids-added"], shown["iids-duplicates"], shown["length"]) == (2, 1, 2)


# --- durability ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_waitaof_agrees_with_what_config_get_shows(durability: str) -> None:
    stage = RedisStage(durability=durability)
    client = stage.redis()
    (_, kept) = client.ask("CONFIG GET appendonly")
    assert f"aof_enabled:{int(kept == b'yes')}" in client.ask("INFO persistence").decode()
    assert client.ask("WAITAOF 0 0 0") == [int(kept == b"yes"), 0]
    if kept == b"yes":
        assert client.ask("WAITAOF 1 0 0") == [1, 0]
    else:
        with pytest.raises(RedisError, match="appendonly is disabled"):
            client.ask("WAITAOF 1 0 0")

    client.send("WAITAOF 0 1 1000")  # there are no replicas
    assert client.replies() == []
    stage.pass_time(SECOND)
    assert client.replies() == [[int(kept == b"yes"), 0]]


def test_waitaof_waits_until_what_was_added_before_is_synced(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path, durability="fsync")
    client = stage.redis()
    client.send("XADD s * f v", "WAITAOF 1 0 0")
    assert client.replies() == []
    ((_, receipts),) = stage.broker.work.take_unsynced()
    for receipt, sequence in receipts:
        receipt.settle(sequence, None)

    assert client.replies()[1] == [1, 0]


# --- a consumer without a name -------------------------------------------------------------------------------------


def test_a_consumer_may_have_an_empty_name() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    held, given_back = client.ask("XADD s * f v"), client.ask("XADD s * f w")
    client.ask([b"XREADGROUP", b"GROUP", b"g", b"", b"STREAMS", b"s", b">"])
    client.ask([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", given_back])

    assert client.ask("XPENDING s g")[3] == [[b"", b"1"]]
    assert client.ask([b"XPENDING", b"s", b"g", b"-", b"+", b"9", b""]) == [[held, b"", 0, 1]]
    assert [fields(each)["name"] for each in client.ask("XINFO CONSUMERS s g")] == [b""]
    assert client.ask([b"XGROUP", b"DELCONSUMER", b"s", b"g", b""]) == 1
    assert [entry[:3] for entry in client.ask("XPENDING s g - + 9")] == [[given_back, b"", -1]]


# --- memory --------------------------------------------------------------------------------------------------------


def test_groups_that_were_destroyed_take_no_memory() -> None:
    stage = RedisStage()
    client = stage.redis()
    gone = []
    for number in range(400):
        client.ask(f"XGROUP CREATE s g{number} $ MKSTREAM")
        client.ask(f"XREADGROUP GROUP g{number} c STREAMS s >")
        gone.append(weakref.ref(stage.broker.existing("s").channels[f"g{number}"]))
        client.ask(f"XGROUP DESTROY s g{number}")
    gc.collect()

    assert sum(channel() is not None for channel in gone) < 200


# --- nothing raises ------------------------------------------------------------------------------------------------


def test_a_session_that_is_gone_is_forgotten() -> None:
    stage = RedisStage()
    client = stage.redis()
    client.send("XREAD BLOCK 0 STREAMS s $")
    client.leave()

    assert stage.context.sessions == {}
    assert not stage.broker.growth.watches("s")
    stage.redis().ask("XADD s * f v")


def test_the_log_has_what_an_nsq_consumer_gets_for_pairs() -> None:
    stage = RedisStage()
    stage.redis().ask("XADD s * name Sara age 33")
    frames, _ = stage.broker.existing("s").log.reader(0).take(1, 1, 1 << 20)

    ((_, _, _, body),) = kernel.decode_messages(frames, 0, len(frames))[0]
    assert body == encode("name Sara age 33")


def test_entries_that_turn_out_to_be_damaged_are_left_out_of_an_array(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    for number in range(3):
        client.ask(f"XADD s * data body-{number}")
        stage.broker.existing("s").log.write_index()
        job = stage.broker.existing("s").log.begin_sync()  # so that each has a checksum of its own
        assert job is not None
        job()
        stage.broker.existing("s").log.finish_sync(None)
    stage.restart()
    (path,) = (tmp_path / "topics" / "t-s").glob("*.log")
    path.write_bytes(path.read_bytes().replace(b"body-1", b"badly1"))
    client = stage.redis()

    for _ in range(2):  # when it is found, and when it is known
        assert [pairs[1] for _, pairs in client.ask("XRANGE s - +")] == [b"body-0", b"body-2"]
        assert [pairs[1] for _, pairs in client.ask("XREVRANGE s + -")] == [b"body-2", b"body-0"]
        assert [pairs[1] for _, pairs in client.ask("XREAD STREAMS s 0")[0][1]] == [b"body-0", b"body-2"]


def test_a_long_array_that_cannot_be_completed_ends_in_an_error_and_can_be_asked_for_again(tmp_path: Path) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    for number in range(3):
        client.ask([b"XADD", b"s", b"*", b"data", b"%d" % number * 900_000])
        stage.broker.existing("s").log.write_index()
        stage.restart()
        client = stage.redis()
    (path,) = (tmp_path / "topics" / "t-s").glob("*.log")
    path.write_bytes(path.read_bytes().replace(b"2" * 50, b"x" * 50))
    with pytest.raises(LogError, match="1 of 3 entries are damaged and cannot be sent; ask again without them"):
        client.ask("XRANGE s - +")

    assert [pairs[1][:1] for _, pairs in stage.redis().ask("XRANGE s - +")] == [b"0", b"1"]


def test_an_entry_without_a_counted_delivery_can_be_acknowledged() -> None:
    stage = RedisStage()
    filled(stage, 1)
    client = stage.redis()
    client.send("XREADGROUP GROUP g c STREAMS s >", f"XNACK s g SILENT IDS 1 {T0}-0").replies()
    assert client.ask(f"XCLAIM s g d 0 {T0}-0 JUSTID") == [b"%d-0" % T0]
    assert client.ask("XPENDING s g - + 10")[0][1:] == [b"d", 0, 0]

    assert client.ask(f"XACK s g {T0}-0") == 1
    assert client.ask("XPENDING s g") == [0, None, None, None]
