"""Permissions of Redis clients: each command needs them for the streams and groups that it uses."""

import re
from pathlib import Path

import pytest
from redis_stage import RedisClient, RedisError, RedisStage


class Granted:
    """Permissions as (permission, pattern of topics, pattern of channels)."""

    def __init__(self, *grants: tuple[str, str, str]) -> None:
        self.grants = grants

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        return any(
            permission == granted and re.search(topics, topic) is not None and re.search(channels, channel) is not None
            for granted, topics, channels in self.grants
        )

    def knows(self, topic: str) -> bool:
        return any(re.search(topics, topic) is not None for _, topics, _ in self.grants)


@pytest.fixture
def stage(tmp_path: Path) -> RedisStage:
    stage = RedisStage(tmp_path)
    root = stage.redis()
    for key in ("orders", "secret"):
        for group in ("billing", "payroll"):
            root.ask(f"XGROUP CREATE {key} {group} $ MKSTREAM")
        root.ask(f"XADD {key} 1-1 of {key}")
    return stage


def client(stage: RedisStage, *grants: tuple[str, str, str]) -> RedisClient:
    found = stage.redis()
    found.session.authenticate = lambda _: None
    found.session.grants = Granted(*grants)
    return found


def refused(someone: RedisClient, command: str) -> bool:
    (reply,) = someone.send(command).replies()
    return isinstance(reply, RedisError) and str(reply).startswith("NOPERM")


def test_the_last_group_of_xreadgroup_is_the_one_that_is_checked(stage: RedisStage) -> None:
    reader = client(stage, ("subscribe", "^orders$", "^billing$"))

    assert refused(reader, "XREADGROUP GROUP billing me GROUP payroll me STREAMS orders >")
    assert not refused(reader, "XREADGROUP GROUP payroll me GROUP billing me STREAMS orders >")


def test_a_consumer_called_streams_reads_no_other_stream(stage: RedisStage) -> None:
    reader = client(stage, ("subscribe", "^STREAMS$", "^billing$"))

    assert refused(reader, "XREADGROUP GROUP billing STREAMS STREAMS secret >")


def test_a_transaction_is_checked_for_the_database_that_it_changes(stage: RedisStage) -> None:
    publisher = client(stage, ("publish", "^orders$", ".*"))
    replies = publisher.send("MULTI", "SELECT 1", "XADD orders * a b", "EXEC").replies()

    assert str(replies[-1][1]).startswith("NOPERM")
    assert stage.redis().send("SELECT 1", "EXISTS orders").replies() == ["OK", 0]


@pytest.mark.parametrize("options", ["MAXLEN 0", "MAXLEN 1 DELREF", "KEEPREF MINID 5"])
def test_publishing_alone_deletes_nothing_that_a_group_has_not_finished(stage: RedisStage, options: str) -> None:
    publisher = client(stage, ("publish", "^orders$", ".*"))

    assert refused(publisher, f"XADD orders {options} * a b")
    assert not refused(publisher, "XADD orders MAXLEN ~ 1000 * a b")
    assert not refused(publisher, "XADD orders 9999999999999-1 a b")
    assert not refused(
        client(stage, ("publish", "^orders$", ".*"), ("admin", "^orders$", ".*")), "XADD orders MAXLEN 0 * a b"
    )


def test_a_consumer_deletes_nothing_that_other_groups_need(stage: RedisStage) -> None:
    reader = client(stage, ("subscribe", "^orders$", "^billing$"))
    reader.ask("XREADGROUP GROUP billing me STREAMS orders >")

    assert refused(reader, "XACKDEL orders billing DELREF IDS 1 1-1")
    assert refused(reader, "XACKDEL orders billing IDS 1 1-1")
    assert refused(reader, "XGROUP DESTROY orders billing")
    assert not refused(reader, "XACKDEL orders billing ACKED IDS 1 1-1")
    assert stage.redis().ask("XLEN orders") == 1


def test_a_client_sees_the_streams_that_it_may_use_and_no_others(stage: RedisStage) -> None:
    reader = client(stage, ("subscribe", "^orders$", "^billing$"))

    assert reader.ask("KEYS *") == [b"orders"]
    assert reader.ask("SCAN 0") == [b"0", [b"orders"]]
    assert reader.ask("RANDOMKEY") == b"orders"
    assert reader.ask("DBSIZE") == 1
    assert client(stage, ("subscribe", "^none$", ".*")).ask("RANDOMKEY") is None


@pytest.mark.parametrize("command", ["CLIENT LIST", "CLIENT UNBLOCK 1", "CLIENT KILL TYPE normal", "FLUSHALL"])
def test_other_clients_are_a_matter_of_administrators(stage: RedisStage, command: str) -> None:
    assert refused(client(stage, ("admin", "^orders$", ".*"), ("subscribe", ".*", ".*")), command)
