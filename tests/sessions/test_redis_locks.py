"""Locks of Redis clients, as redis-py's `Lock` takes, extends and releases them."""

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from redis.lock import Lock
from redis_stage import RedisClient, RedisError, RedisStage

from lapwing.sessions.redis import locks
from play import MS

SCRIPTS = {"release": Lock.LUA_RELEASE_SCRIPT, "extend": Lock.LUA_EXTEND_SCRIPT, "again": Lock.LUA_REACQUIRE_SCRIPT}
SHA = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in SCRIPTS.items()}
SECOND = 1000 * MS


@pytest.fixture
def stage() -> RedisStage:
    return RedisStage()


@pytest.fixture
def client(stage: RedisStage) -> RedisClient:
    return stage.redis()


def test_a_lock_is_taken_once_and_ends_by_itself(stage: RedisStage, client: RedisClient) -> None:
    other = stage.redis()

    assert client.ask("SET lock mine NX PX 5000") == "OK"
    assert other.ask("SET lock other NX EX 5") is None
    assert other.ask("GET lock") == b"mine"
    stage.pass_time(4999 * MS)
    assert other.ask("GET lock") == b"mine"
    assert other.ask("PTTL lock") == 1
    stage.pass_time(1 * MS)
    assert other.ask("GET lock") is None
    assert other.ask("PTTL lock") == -2
    assert other.ask("SET lock other NX EX 5") == "OK"


def test_only_the_owner_releases_a_lock(client: RedisClient) -> None:
    client.ask("SET lock mine NX")

    assert client.ask(f"EVALSHA {SHA['release']} 1 lock other") == 0
    assert client.ask("TTL lock") == -1
    assert client.ask(f"EVALSHA {SHA['release'].upper()} 1 lock mine") == 1
    assert client.ask(f"EVALSHA {SHA['release']} 1 lock mine") == 0
    assert client.ask("EXISTS lock") == 0


def test_a_script_is_known_by_its_text_too(client: RedisClient) -> None:
    client.ask("SET lock mine NX")

    assert client.ask([b"SCRIPT", b"LOAD", SCRIPTS["release"].encode()]) == SHA["release"].encode()
    assert client.ask(f"SCRIPT EXISTS {SHA['extend']} {'0' * 40}") == [1, 0]
    assert client.ask([b"EVAL", SCRIPTS["release"].encode(), b"1", b"lock", b"mine"]) == 1


def test_the_owner_extends_a_lock(stage: RedisStage, client: RedisClient) -> None:
    client.ask("SET lock mine NX PX 1000")

    assert client.ask(f"EVALSHA {SHA['extend']} 1 lock other 9000 0") == 0
    assert client.ask(f"EVALSHA {SHA['extend']} 1 lock mine 9000 0") == 1
    assert client.ask("PTTL lock") == 10_000
    assert client.ask(f"EVALSHA {SHA['extend']} 1 lock mine 3000 1") == 1
    assert client.ask("PTTL lock") == 3000
    assert client.ask(f"EVALSHA {SHA['again']} 1 lock mine 2000") == 1
    assert client.ask("PTTL lock") == 2000
    stage.pass_time(2 * SECOND)
    assert client.ask(f"EVALSHA {SHA['again']} 1 lock mine 2000") == 0


def test_a_lock_without_an_end_is_not_extended(client: RedisClient) -> None:
    client.ask("SET lock mine NX")

    assert client.ask(f"EVALSHA {SHA['extend']} 1 lock mine 9000 0") == 0


def test_the_end_of_a_lock_is_set_and_taken_back(stage: RedisStage, client: RedisClient) -> None:
    client.ask("SET lock mine NX")
    now_ms = (stage.now + stage.broker.skew) // MS

    assert client.ask("PEXPIRE lock 1500") == 1
    assert (client.ask("PTTL lock"), client.ask("TTL lock")) == (1500, 2)
    assert client.ask("PEXPIRETIME lock") == now_ms + 1500
    assert client.ask(f"PEXPIREAT lock {now_ms + 7000}") == 1
    assert client.ask("PTTL lock") == 7000
    assert client.ask("PERSIST lock") == 1
    assert client.ask("PERSIST lock") == 0
    assert client.ask("TTL lock") == -1
    assert client.ask("EXPIRE lock 0") == 1
    assert client.ask("EXPIRE lock 10") == 0


@pytest.mark.parametrize(
    "command", ["PEXPIRE lock {}", "EXPIRE lock {}", "EXPIREAT lock {}", "SET other mine NX EX {}"]
)
def test_an_end_beyond_64_bits_is_refused(client: RedisClient, command: str) -> None:
    client.ask(f"SET lock mine NX PX {1 << 61}")

    with pytest.raises(RedisError, match="ERR invalid expire time"):
        client.ask(command.format((1 << 63) - 1))
    with pytest.raises(RedisError, match="ERR invalid expire time"):
        client.ask(f"EVALSHA {SHA['extend']} 1 lock mine {1 << 62} 0")
    assert client.ask("PTTL lock") == 1 << 61


def test_a_stream_with_the_key_of_a_lock_is_one_key(client: RedisClient) -> None:
    client.ask("SET both mine NX")
    client.ask("XADD both * f v")

    assert client.ask("KEYS *") == [b"both"]
    assert client.ask("DBSIZE") == 1
    assert client.ask("SCAN 0 TYPE string") == [b"0", []]
    assert client.ask(f"EVALSHA {SHA['release']} 1 both mine") == 1


def test_a_lock_is_a_string_among_the_keys(client: RedisClient) -> None:
    client.ask("SET lock mine NX")
    client.ask("XADD stream * f v")

    assert client.ask("TYPE lock") == "string"
    assert client.ask("DBSIZE") == 2
    assert sorted(client.ask("KEYS *")) == [b"lock", b"stream"]
    assert client.ask("SCAN 0 TYPE string") == [b"0", [b"lock"]]
    assert client.ask("SCAN 0 TYPE stream") == [b"0", [b"stream"]]
    assert client.ask("SET stream mine NX") is None
    client.ask("SELECT 1")
    assert client.ask("GET lock") is None
    client.ask("SELECT 0")
    assert client.ask("DEL lock stream nothing") == 2


def test_a_watched_lock_stops_a_transaction(stage: RedisStage, client: RedisClient) -> None:
    client.ask("WATCH lock")
    stage.redis().ask("SET lock other NX")
    client.send("MULTI", "SET lock mine NX")
    client.replies()

    assert client.ask("EXEC") is None


def test_a_transaction_of_taskiq_takes_claims_and_releases(client: RedisClient) -> None:
    client.ask("XGROUP CREATE s g 0 MKSTREAM")
    client.ask(f"SCRIPT EXISTS {SHA['release']}")
    client.send(
        "MULTI",
        "SET autoclaim:g:s token NX",
        "XAUTOCLAIM s g me 0 0-0 COUNT 100",
        f"EVALSHA {SHA['release']} 1 autoclaim:g:s token",
    )
    assert client.replies() == ["OK", "QUEUED", "QUEUED", "QUEUED"]

    assert client.ask("EXEC") == ["OK", [b"0-0", [], []], 1]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SET key value", "locks only"),
        ("SET key value EX 10", "locks only"),
        ("SET key value XX", "locks only"),
        ("SET key value NX KEEPTTL", "locks only"),
        ("SET key value NX NOSUCH", "syntax error"),
        ("SET key value NX PX", "syntax error"),
        ("SET key value NX PX 10 EX 1", "syntax error"),
        ("SET key value NX PX 0", "invalid expire time"),
        ("SET key value NX PX ten", "not an integer"),
        (f"SET {'k' * 1025} value NX", "1024 bytes"),
        (f"SET key {'v' * 1025} NX", "1024 bytes"),
        (f"EVALSHA {'0' * 40} 1 key mine", "NOSCRIPT"),
        (f"EVALSHA {SHA['release']} 2 key other", "one key"),
        (f"EVALSHA {SHA['extend']} 1 key mine", "one key and 3"),
        (f"EVALSHA {SHA['release']} x key mine", "not an integer"),
        ("EVAL return 0", "no interpreter"),
        ("SCRIPT LOAD return", "no interpreter"),
        ("PEXPIRE key 10 NX", "syntax error"),
    ],
)
def test_what_is_no_lock_is_refused(client: RedisClient, command: str, error: str) -> None:
    command = command.replace("EVAL return 0", "EVAL return 0 key")

    with pytest.raises(RedisError, match=error):
        client.ask(command)
    assert client.ask("DBSIZE") == 0


def test_ended_locks_make_room_and_the_rest_is_bounded(
    stage: RedisStage, client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_MOST", 150)
    for number in range(150):
        client.ask(f"SET lock{number} mine NX PX {1000 if number else 5000}")
    for command in ("SET more mine NX PX 1000", "SET more mine NX PX 1000"):
        with pytest.raises(RedisError, match="150 locks"):
            client.ask(command)
    client.ask("PEXPIRE lock1 1")
    stage.pass_time(1 * MS)
    with pytest.raises(RedisError, match="150 locks"):  # all of them are looked through every 100 ms, and no more often
        client.ask("SET more mine NX PX 1000")
    stage.pass_time(99 * MS)
    assert client.ask("SET lock1 mine NX PX 500") == "OK"
    stage.pass_time(1 * SECOND)

    for number in range(149):
        assert client.ask(f"SET more{number} mine NX") == "OK"
    with pytest.raises(RedisError, match="150 locks"):
        client.ask("SET more mine NX")
    assert client.ask("GET lock0") == b"mine"


def grants(*topics: str) -> Any:
    return SimpleNamespace(
        allows=lambda permission, topic, channel: permission == "subscribe" and topic in topics,
        knows=lambda topic: topic in topics,
    )


def test_a_lock_needs_the_permission_of_a_topic_of_its_name(stage: RedisStage, client: RedisClient) -> None:
    client.session.authenticate = lambda secret: None
    client.session.grants = grants("mine")
    stage.redis().ask("SET theirs x NX")

    assert client.ask("SET mine x NX") == "OK"
    assert client.ask(f"EVALSHA {SHA['release']} 1 mine other") == 0
    assert client.ask("KEYS *") == [b"mine"]
    for command in ("SET theirs x NX", "GET theirs", f"EVALSHA {SHA['release']} 1 theirs x", f"GET {'k' * 65}"):
        with pytest.raises(RedisError, match="NOPERM"):
            client.ask(command)
