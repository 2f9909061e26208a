"""Whole publishes like the last one skip the parser; nobody can tell, however the bytes arrive."""

import random
from collections.abc import Iterator

import pytest
from rawtalk import Raw, mpub, post, pub

import daemons
from daemons import Daemon


@pytest.fixture(scope="module", params=["auto", "asyncio"])
def nsqd(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with daemons.nsqd(f"--tcp-transport={request.param}") as daemon:
        yield daemon


def bodies_of(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    with Raw(daemon) as raw:
        raw.ok(b"SUB %b all\n" % topic.encode())
        raw.send(b"RDY 2500\n")
        return [raw.message()[2] for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_publishes_in_any_pieces_is_stored_in_order_and_answered(nsqd: Daemon, seed: int) -> None:
    chance = random.Random(seed)
    topics = [f"runs{seed}_{letter}" for letter in "ab"]
    expected: dict[str, list[bytes]] = {topic: [] for topic in topics}
    commands = []
    for number in range(120):
        topic = chance.choice(topics[:1] * 6 + topics)
        bodies = [b"%d-%d" % (number, each) for each in range(chance.choice([1, 1, 1, 3]))]
        expected[topic] += bodies
        commands.append(pub(topic, bodies[0]) if len(bodies) == 1 else mpub(topic, bodies))
        if chance.random() < 0.1:
            commands.append(b"NOP\n")
    stream = b"".join(commands)
    if chance.random() < 0.5:  # cut anywhere, else between commands
        cuts = sorted(chance.sample(range(1, len(stream)), 60))
        pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    else:
        pieces = commands
    with Raw(nsqd) as raw:
        for piece in pieces:
            raw.send(piece)
        answers = [raw.frame() for command in commands if command != b"NOP\n"]

    assert set(answers) == {(0, b"OK")}
    for topic, bodies in expected.items():
        assert bodies_of(nsqd, topic, len(bodies)) == bodies


def test_a_publish_that_is_refused_is_refused_behind_a_run_too(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("refused", b"one"))
        raw.ok(pub("refused", b"two"))
        raw.send(pub("refused", b"three") + pub("refused", b""))

        assert raw.frame() == (0, b"OK")
        assert raw.error() == "E_BAD_MESSAGE PUB invalid message body size 0"
    assert bodies_of(nsqd, "refused", 3) == [b"one", b"two", b"three"]


def test_a_topic_that_was_deleted_is_created_again(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("again", b"one"))
        raw.ok(pub("again", b"two"))
        post(nsqd, "/topic/delete?topic=again")
        raw.ok(pub("again", b"three"))

    assert bodies_of(nsqd, "again", 1) == [b"three"]


def test_a_limit_holds_for_a_client_that_has_published_before(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(b"PUB limited\n\0\0\0\3one")
        post(nsqd, "/channel/create?topic=limited&channel=all")
        raw.ok(pub("limited", b"two"))
        post(nsqd, "/channel/settings?topic=limited&channel=all", b'{"max_depth": 3}', method="PATCH")
        raw.ok(pub("limited", b"three"))
        raw.send(pub("limited", b"four"))

        assert "channel all of topic limited is full: 3 messages wait, max_depth is 3" in raw.error()
