"""XADDs that several clients send in one turn are published together, and answered one by one."""

from pathlib import Path

import pytest
from redis_stage import NOW, RedisClient, RedisError, RedisStage, encode

from lapwing.errors import WriteFailed
from overriding import overriding
from play import MS

T0 = NOW // MS


def gather(client: RedisClient, *bodies: str, key: bytes = b"s") -> None:
    """Send XADDs as the door takes them that comes with nothing else."""
    context = client.stage.context
    runs = context.gathered.get(key) or context.gathering(key)
    assert runs is not None
    block = b"".join(encode([b"XADD", key, b"*", b"data", body.encode()]) for body in bodies)
    runs.add(client.session, block, len(bodies))


@pytest.fixture
def stage() -> RedisStage:
    stage = RedisStage()
    stage.redis().ask("XGROUP CREATE s g $ MKSTREAM")
    return stage


def test_each_client_gets_the_ids_of_its_entries(stage: RedisStage) -> None:
    one, two, three = stage.redis(), stage.redis(), stage.redis()
    gather(one, "a")
    gather(two, "b", "c")
    gather(three, "d")
    stage.commit()

    assert one.replies() == [b"%d-0" % T0]
    assert two.replies() == [b"%d-1" % T0, b"%d-2" % T0]
    assert three.replies() == [b"%d-3" % T0]
    assert [pairs[1] for _, pairs in one.ask("XRANGE s - +")] == [b"a", b"b", b"c", b"d"]


def test_another_command_comes_behind_what_was_gathered(stage: RedisStage) -> None:
    one = stage.redis()
    gather(one, "a")
    one.parser.receive(encode("XLEN s"))
    one.pump()
    stage.commit()

    assert one.replies() == [b"%d-0" % T0, 1]


def test_streams_are_gathered_each_for_itself_and_waiting_readers_get_the_entries(stage: RedisStage) -> None:
    reader = stage.redis().send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
    stage.redis().ask("XADD other * data x")
    one, two = stage.redis(), stage.redis()
    gather(one, "a")
    gather(two, "b", key=b"other")
    stage.commit()

    assert reader.replies() == [[[b"s", [[b"%d-0" % T0, [b"data", b"a"]]]]]]
    assert two.replies() == [b"%d-1" % T0]


def test_a_stream_that_needs_a_look_at_each_entry_gathers_nothing(stage: RedisStage) -> None:
    topic = stage.broker.topics["s"]
    stage.broker.settings.change_topic(topic, {"fields": "json"}, now=stage.now)
    assert stage.context.gathering(b"s") is None
    assert stage.context.gathering(b"unknown") is None


def test_each_command_is_carried_out_for_itself_if_the_stream_has_changed_meanwhile(stage: RedisStage) -> None:
    one, two = stage.redis(), stage.redis()
    gather(one, "a")
    gather(two, "b")
    topic = stage.broker.topics["s"]
    stage.broker.settings.change_topic(topic, {"fields": "json"}, now=stage.now)
    stage.commit()

    assert [one.replies(), two.replies()] == [[b"%d-0" % T0], [b"%d-1" % T0]]


def test_a_write_that_fails_is_answered_for_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RedisStage(tmp_path)
    stage.redis().ask("XADD s * data x")
    one, two = stage.redis(), stage.redis()
    gather(one, "a")
    gather(two, "b", "c")

    def refuse() -> None:
        raise WriteFailed("/data", 0, OSError(28, "no space left"))

    log = stage.broker.topics["s"].log
    monkeypatch.setattr(log, "__class__", overriding(log, flush=refuse))
    stage.commit()

    failed = [*one.replies(), *two.replies()]
    assert len(failed) == 3
    assert all(isinstance(each, RedisError) and str(each).startswith("MISCONF") for each in failed)


def test_a_client_that_is_gone_before_the_end_of_the_turn_gets_nothing(stage: RedisStage) -> None:
    one, two = stage.redis(), stage.redis()
    gather(one, "a")
    gather(two, "b")
    one.session.leave()
    stage.commit()

    assert two.replies() == [b"%d-1" % T0]
    assert two.ask("XLEN s") == 2
