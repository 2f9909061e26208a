"""A channel with `active=single` and consumers that are programs: the active one is killed, and the next takes over."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import asking
from daemons import Daemon, nsqd, until
from lapwing import SyncProducer

MESSAGES = 300
STOPS_AFTER = 50
BATCH = 20  # in flight at a time

# prints what it gets, and finishes it; hangs after as many as it is told
CONSUMER = f"""
import sys, time
from lapwing import SyncConsumer

with SyncConsumer("orders", "billing", nsqd=sys.argv[1], max_in_flight={BATCH}) as consumer:
    for number, message in enumerate(consumer):
        print(message.body.decode(), flush=True)
        if number == int(sys.argv[2]):
            time.sleep(3600)
        message.finish()
"""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with nsqd() as started:
        for path in ("/topic/create?topic=orders", "/channel/create?topic=orders&channel=billing"):
            assert asking.ask(started, "POST", path)[0] == 200
        settings = "/channel/settings?topic=orders&channel=billing"
        assert asking.ask(started, "PATCH", settings, {"active": "single"})[0] == 200
        yield started


@pytest.fixture
def programs() -> Iterator[list["subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for program in started:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


def consumer(daemon: Daemon, hangs_after: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CONSUMER, daemon.tcp, str(hangs_after)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def channel(daemon: Daemon) -> dict[str, Any]:
    found = asking.ask(daemon, "GET", "/stats?format=json&topic=orders&channel=billing")[1]
    return dict(found["topics"][0]["channels"][0])


def test_the_next_takes_over_in_order_when_the_active_one_is_killed(
    daemon: Daemon, programs: list["subprocess.Popen[str]"]
) -> None:
    for hangs_after in (STOPS_AFTER, STOPS_AFTER, MESSAGES):
        programs.append(consumer(daemon, hangs_after))
        count = len(programs)
        until(lambda count=count: [each["ready_count"] > 0 for each in channel(daemon)["clients"]] == [True] * count)
    with SyncProducer(daemon.tcp) as producer:
        for number in range(MESSAGES):
            producer.publish("orders", str(number).encode())

    got: list[list[int]] = []
    for program in programs[:2]:
        assert program.stdout is not None
        got.append([int(program.stdout.readline()) for _ in range(STOPS_AFTER + 1)])
        clients = channel(daemon)["clients"]
        assert [client["active"] for client in clients] == [True] + [False] * (len(clients) - 1)
        assert not any(client["in_flight_count"] or client["message_count"] for client in clients[1:])
        program.kill()
        program.wait()
    last = programs[2].stdout
    assert last is not None
    got.append([])
    while not got[2] or got[2][-1] < MESSAGES - 1:
        got[2].append(int(last.readline()))
    until(lambda: not channel(daemon)["in_flight_count"] and not channel(daemon)["depth"])

    for numbers in got:
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "in order, and none left out"
    assert got[0][0] == 0
    for before, after in itertools.pairwise(got):
        assert before[-1] - BATCH < after[0] <= before[-1], "it begins with what the one before had not finished"
