"""Whole FINs of consumers skip the parser; nobody can tell, however the bytes arrive."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from rawtalk import Raw, get, mpub, pub

import daemons
from daemons import Daemon

UNKNOWN = b"ffffffffffffffff"


@pytest.fixture(scope="module", params=["auto", "asyncio"])
def nsqd(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with daemons.nsqd(f"--tcp-transport={request.param}") as daemon:
        yield daemon


def fin(*ids: bytes) -> bytes:
    return b"".join(b"FIN %b\n" % each for each in ids)


def channels(daemon: Daemon, topic: str) -> dict[str, dict[str, Any]]:
    found = json.loads(get(daemon, f"/stats?format=json&topic={topic}"))["topics"][0]["channels"]
    return {channel["channel_name"]: channel for channel in found}


def refusal(raw: Raw) -> bytes:
    """The next frame, the answer to the FIN of a message that the client does not hold."""
    kind, payload = raw.frame()
    assert kind == 1
    return payload


@pytest.mark.parametrize("seed", range(4))
def test_fins_of_many_consumers_in_any_pieces_finish_each_message_once(nsqd: Daemon, seed: int) -> None:
    chance, topic = random.Random(seed), f"fins{seed}"
    with ExitStack() as stack:
        consumers = [stack.enter_context(Raw(nsqd)) for _ in range(6)]
        for number, raw in enumerate(consumers):
            raw.subscribe(topic, "ab"[number % 2], ready=10)
        publisher = stack.enter_context(Raw(nsqd))
        publisher.ok(mpub(topic, [b"%d" % number for number in range(30)]))
        held = [[raw.message()[1] for _ in range(10)] for raw in consumers]
        for _ in range(3):
            for raw, ids in zip(consumers, held, strict=True):
                other = chance.choice([b"", b"", b"NOP\n", b"RDY 10\n", b"TOUCH %b\n" % ids[-1]])
                stream = fin(*ids[:3]) + other
                cuts = sorted(chance.sample(range(1, len(stream)), chance.choice([0, 0, 1, 5])))
                for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                    raw.send(stream[start:stop])
                del ids[:3]
        for raw in consumers:
            raw.send(fin(UNKNOWN))
            assert refusal(raw).startswith(b"E_FIN_FAILED FIN %b failed" % UNKNOWN)

        for channel in channels(nsqd, topic).values():
            assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 3, 0)
            assert sum(client["finish_count"] for client in channel["clients"]) == 27


def test_a_run_with_messages_of_others_finishes_the_rest_and_names_each(nsqd: Daemon) -> None:
    with Raw(nsqd) as mine, Raw(nsqd) as other, Raw(nsqd) as publisher:
        mine.subscribe("theirs", "c", ready=3)
        publisher.ok(mpub("theirs", [b"a", b"b", b"c"]))
        ids = [mine.message()[1] for _ in range(3)]
        other.subscribe("theirs", "c", ready=1)
        mine.send(fin(ids[0]))
        other.send(fin(ids[1], UNKNOWN, ids[2]))
        assert [refusal(other)[:33] for _ in range(3)] == [
            b"E_FIN_FAILED FIN %b" % each for each in (ids[1], UNKNOWN, ids[2])
        ]
        mine.send(fin(ids[1], ids[1], ids[2]))
        assert refusal(mine).startswith(b"E_FIN_FAILED FIN %b" % ids[1])
        assert channels(nsqd, "theirs")["c"]["in_flight_count"] == 0


def test_after_fins_all_other_commands_work_as_before(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.subscribe("mixed", "c", ready=1)
        for number in range(3):
            raw.ok(pub("mixed", b"%d" % number))
            attempts, message_id, body = raw.message()
            assert (attempts, body) == (1, b"%d" % number)
            raw.send(fin(message_id))
        raw.ok(pub("mixed", b"last"))
        _, message_id, _ = raw.message()
        raw.send(b"CLS\n")
        assert raw.frame() == (0, b"CLOSE_WAIT")
        raw.send(fin(message_id))
        raw.send(b"FIN %b\r\n" % message_id)
        assert refusal(raw).startswith(b"E_FIN_FAILED FIN %b" % message_id)
        raw.send(b"FIN short\n")
        assert raw.error().startswith("E_INVALID")
        assert channels(nsqd, "mixed")["c"]["depth"] == 0


def test_a_client_that_reads_no_refusals_is_no_longer_read_from(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw, Raw(nsqd) as polite:
        raw.subscribe("flood", "c", ready=1)
        raw.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            raw.send(fin(UNKNOWN) * 5_000_000)
        polite.ok(pub("flood2", b"others are served"))
