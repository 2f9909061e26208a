"""What one client can make the door do: bounded memory, bounded time, and a journal that can be written."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_stage import NOW, RedisError, RedisStage

from lapwing.errors import WriteFailed
from lapwing.sessions.redis import replies as redis_replies
from lapwing.sessions.redis.keys import compile_pattern
from overriding import overriding
from play import MS

T0 = NOW // MS


@pytest.mark.parametrize(
    "command", ["XGROUP CREATECONSUMER s g {}", "XREADGROUP GROUP g {} STREAMS s >", "XAUTOCLAIM s g {} 0 0"]
)
def test_a_name_that_the_journal_cannot_keep_is_refused(tmp_path: Path, command: str) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.ask("XGROUP CREATE s g $ MKSTREAM")
    with pytest.raises(RedisError, match="the name of a consumer may have 1024 bytes, this one has 70000"):
        client.ask(command.format("c" * 70_000))
    client.ask(command.format("c" * 1024))

    stage.now += 50 * MS
    stage.checkpoint()
    stage.kill()
    assert len(stage.redis().ask("XINFO CONSUMERS s g")) == 1


def test_a_client_watches_no_more_keys_than_it_may() -> None:
    client = RedisStage().redis()
    client.ask([b"WATCH", *[b"k%d" % number for number in range(1024)]])

    with pytest.raises(RedisError, match="1024 keys at a time"):
        client.ask("WATCH another")
    assert client.send("UNWATCH", "WATCH another").replies() == ["OK", "OK"]


def test_a_transaction_does_not_put_a_whole_log_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_replies, "_LONGEST_EXEC", 1000)
    client = RedisStage().redis()
    client.send(*[f"XADD s * data {'x' * 100}" for _ in range(20)]).replies()
    client.send("MULTI", "XRANGE s - +", "XRANGE s - + COUNT 2", "XLEN s", "EXEC")

    refused, two, length = client.replies()[-1]
    assert isinstance(refused, RedisError)
    assert "too long" in str(refused)
    assert (len(two), length) == (2, 20)


def test_transactions_have_a_limit_each_and_together() -> None:
    stage = RedisStage(max_body_size=1000, max_msg_size=1000)
    command = f"XADD s * data {'x' * 500}"
    lone = stage.redis().send("MULTI", *[command] * 25)
    answers = lone.replies()
    assert answers[15] == "QUEUED"
    assert "the transaction is too long" in str(answers[-1])
    lone.leave()
    assert stage.context.queued == 0

    clients = [stage.redis().send("MULTI", *[command] * 15) for _ in range(6)]
    last = [str(client.replies()[-1]) for client in clients]
    assert last == ["QUEUED"] * 5 + ["ERR the transactions of all clients are too long: try again later"]
    clients[0].ask("DISCARD")
    assert clients[1].ask("EXEC")[0] == b"%d-0" % T0
    assert stage.redis().send("MULTI", command, "EXEC").replies()[-1] == [b"%d-15" % T0]
    for client in clients:
        client.leave()
    assert stage.context.queued == 0


def test_a_pattern_with_many_stars_takes_no_time() -> None:
    client = RedisStage().redis()
    client.ask(f"XADD {'a' * 60} * f v")

    assert client.ask("KEYS " + "*a" * 30 + "*b") == []
    assert client.ask("KEYS " + "*a" * 30 + "*") == [b"a" * 60]
    with pytest.raises(RedisError, match="a pattern may have 1024 bytes"):
        client.ask("KEYS " + "a" * 2000)


@given(st.text("ab*?", max_size=12), st.text("ab", max_size=12))
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, key: str) -> None:
    found = compile_pattern(pattern.encode()).fullmatch(key.encode())

    assert (found is not None) == fnmatchcase(key, pattern)


def test_an_id_is_forgotten_whose_entry_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RedisStage(tmp_path)
    client = stage.redis()
    client.ask("XADD s * data x")

    log = stage.broker.existing("s").log

    def refuse() -> None:
        log.forget()  # type: ignore[attr-defined]  # as a write that fails does
        raise WriteFailed("/data", 0, OSError(28, "no space left"))

    with monkeypatch.context() as patch:
        patch.setattr(log, "__class__", overriding(log, flush=refuse))
        with pytest.raises(RedisError, match="MISCONF"):
            client.ask("XADD s IDMP p 1 * data y")

    entry = client.ask("XADD s IDMP p 1 * data y")
    assert client.ask("XADD s IDMP p 1 * data y") == entry
    assert client.ask("XLEN s") == 2


def test_long_names_of_producers_are_told_apart_and_take_little_memory() -> None:
    client = RedisStage().redis()
    first = client.ask(f"XADD s IDMP {'p' * 1000} {'i' * 1000} * data x")

    assert client.ask(f"XADD s IDMP {'p' * 1000} {'i' * 1000} * data x") == first
    assert client.ask(f"XADD s IDMP {'p' * 1000} {'i' * 1001} * data x") != first
