"""A client may introduce itself again: deadlines follow, deliveries go by the first time."""

import time
from collections.abc import Iterator

import pytest
from rawtalk import Raw, pub

import daemons


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("before", [60_000, -1])
def test_the_read_deadline_is_that_of_the_last_one(nsqd: daemons.Daemon, before: int) -> None:
    with Raw(nsqd, seconds=10) as raw:
        raw.identify(feature_negotiation=True, heartbeat_interval=before)
        raw.identify(feature_negotiation=True, heartbeat_interval=1000)
        said = time.monotonic()

        assert raw.ended()
        assert 1.5 < time.monotonic() - said < 8  # two intervals of silence


def test_heartbeats_go_on_as_the_first_one_asked_and_silence_is_allowed_by_the_last(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd, seconds=10) as raw:
        raw.identify(feature_negotiation=True, heartbeat_interval=1000)
        raw.identify(feature_negotiation=True, heartbeat_interval=-1)
        beats = 3 * b"\0\0\0\x0f\0\0\0\0_heartbeat_"

        assert raw.exactly(len(beats)) == beats


@pytest.mark.parametrize("first", [{"msg_timeout": 1000}, {}])
def test_a_delivery_has_the_timeout_of_the_first_one_and_a_touch_that_of_the_last(first: dict[str, int]) -> None:
    with daemons.nsqd("--msg-timeout=1s") as nsqd, Raw(nsqd) as raw, Raw(nsqd) as publisher:
        raw.identify(feature_negotiation=True, **first)
        raw.identify(feature_negotiation=True, msg_timeout=60_000)
        publisher.ok(pub("t", b"touched"))
        raw.subscribe("t", "c", ready=1)
        _, touched, _ = raw.message()
        raw.send(b"TOUCH " + touched + b"\nRDY 2\n")
        publisher.ok(pub("t", b"forgotten"))

        assert [raw.message()[::2] for _ in range(2)] == [(1, b"forgotten"), (2, b"forgotten")]
