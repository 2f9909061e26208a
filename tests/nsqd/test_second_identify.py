"""A client may introduce itself again: deadlines follow, deliveries go by the first time."""

import time
from collections.abc import Iterator

import pytest
from rawtalk import Raw, identify, pub

import daemons


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("before", [60_000, -1])
def test_the_read_deadline_is_that_of_the_last_one(nsqd: daemons.Daemon, before: int) -> None:
    with Raw(nsqd) as raw:
        raw.identify(feature_negotiation=True, heartbeat_interval=before)
        said = time.monotonic()
        raw.identify(feature_negotiation=True, heartbeat_interval=1000)

        assert raw.ended()
        assert 1.5 < time.monotonic() - said < 30  # two intervals of silence


def test_heartbeats_go_on_as_the_first_one_asked_and_silence_is_allowed_by_the_last(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.identify(identify(feature_negotiation=True, heartbeat_interval=-1), heartbeat_interval=1000)
        raw.frame()
        beats = 3 * b"\0\0\0\x0f\0\0\0\0_heartbeat_"

        assert raw.exactly(len(beats)) == beats


@pytest.mark.parametrize("first", [{"msg_timeout": 1000}, {}])
def test_a_delivery_has_the_timeout_of_the_first_one_and_a_touch_that_of_the_last(first: dict[str, int]) -> None:
    def deliveries(nsqd: daemons.Daemon, topic: str) -> list[tuple[int, bytes]]:
        with Raw(nsqd) as raw, Raw(nsqd) as publisher:
            raw.identify(feature_negotiation=True, **first)
            raw.identify(feature_negotiation=True, msg_timeout=60_000)
            publisher.ok(pub(topic, b"touched"))
            raw.subscribe(topic, "c", ready=1)
            _, touched, _ = raw.message()
            raw.send(b"TOUCH " + touched + b"\nRDY 2\n")
            publisher.ok(pub(topic, b"forgotten"))
            return [raw.message()[::2] for _ in range(2)]

    with daemons.nsqd("--msg-timeout=1s") as nsqd:
        for number in range(10):
            came = deliveries(nsqd, f"t{number}")
            if (2, b"touched") not in came:  # else the TOUCH came too late to say anything
                break

    assert came == [(1, b"forgotten"), (2, b"forgotten")]
