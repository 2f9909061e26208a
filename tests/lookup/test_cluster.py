"""Three nsqd and two nsqlookupd, all of them real: what is where is known everywhere, and stays known."""

import contextlib
import subprocess
import sys
import threading
import urllib.request

import pytest
from lookupclient import call, get

import daemons

PYNSQ = """
import sys, nsq
def handle(message):
    print(message.body.decode(), flush=True)
    return True
nsq.Reader(message_handler=handle, topic=sys.argv[1], channel="pynsq", lookupd_http_addresses=sys.argv[2:],
           lookupd_poll_interval=1, lookupd_poll_jitter=0.1, max_in_flight=9)
nsq.run()
"""
OURS = """
import asyncio, sys
from lapwing import Consumer
async def main():
    consumer = Consumer(sys.argv[1], "ours", lookupd=sys.argv[2:], lookupd_poll_interval=0.2, max_in_flight=9)
    async with consumer:
        async for message in consumer:
            with message:
                print(message.body.decode(), flush=True)
asyncio.run(main())
"""


class Cluster:
    def __init__(self, brokers, lookups):
        self.brokers = brokers
        self.lookups = lookups

    def ports(self, lookup, topic):
        """TCP ports of the producers that one nsqlookupd names for a topic."""
        status, answer = call(lookup.http, "GET", f"/lookup?topic={topic}")
        return {producer["tcp_port"] for producer in answer["producers"]} if status == 200 else set()

    def everywhere(self, topic, brokers):
        """Wait until each nsqlookupd names exactly these brokers for a topic."""
        wanted = {broker.tcp_port for broker in brokers}
        for lookup in self.lookups:
            daemons.until(
                lambda lookup=lookup: self.ports(lookup, topic) == wanted, seconds=30, what=f"{topic} everywhere"
            )


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    """The cluster; each test leaves it whole, and has topics of its own."""
    with contextlib.ExitStack() as stack:
        lookups = [stack.enter_context(daemons.start_nsqlookupd()) for _ in range(2)]
        addresses = tuple(lookup.tcp for lookup in lookups)
        paths = [tmp_path_factory.mktemp("nsqd") for _ in range(3)]
        brokers = [stack.enter_context(daemons.start_nsqd(path, lookupd_tcp_addresses=addresses)) for path in paths]
        yield Cluster(brokers, lookups)


def publish(broker, topic, body):
    request = urllib.request.Request(f"{broker.url}/pub?topic={topic}", data=body.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read() == b"OK"


def post(broker, path):
    assert call(broker.http, "POST", path)[0] == 200


@contextlib.contextmanager
def consuming(script, topic, lookups):
    """A consumer in a process of its own; gives the list that the bodies it receives go into."""
    command = [sys.executable, "-c", script, topic, *(lookup.http for lookup in lookups)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    heard = []

    def listen():
        for line in process.stdout:
            heard.append(line.strip())  # noqa: PERF401  the test reads along

    ear = threading.Thread(target=listen, daemon=True)
    ear.start()
    try:
        yield heard
    finally:
        process.kill()
        process.wait()
        ear.join(60)
        process.stdout.close()


def test_topics_and_channels_appear_in_both_and_go_with_their_nsqd(it):
    first, second, third = it.brokers
    for broker in it.brokers:
        post(broker, "/topic/create?topic=orders")
    post(first, "/channel/create?topic=orders&channel=billing")
    post(second, "/topic/create?topic=only_second")
    it.everywhere("orders", it.brokers)
    it.everywhere("only_second", [second])
    for lookup in it.lookups:
        daemons.until(lambda lookup=lookup: get(lookup.http, "/channels?topic=orders") == {"channels": ["billing"]})
        assert len(get(lookup.http, "/nodes")["producers"]) == 3

    third.kill()
    it.everywhere("orders", [first, second])
    post(second, "/topic/delete?topic=only_second")
    it.everywhere("only_second", [])
    third.restart()
    it.everywhere("orders", it.brokers)


def test_a_killed_and_restarted_nsqlookupd_is_filled_again(it):
    for broker in it.brokers:
        post(broker, "/topic/create?topic=refilled")
        post(broker, "/channel/create?topic=refilled&channel=c")
    it.everywhere("refilled", it.brokers)
    victim = it.lookups[0]
    victim.kill()
    victim.restart()
    for broker in it.brokers:
        post(broker, "/topic/create?topic=fresh")  # the next command reconnects; a PING would, 15 s later

    it.everywhere("refilled", it.brokers)
    it.everywhere("fresh", it.brokers)
    assert get(victim.http, "/channels?topic=refilled") == {"channels": ["c"]}


def test_a_topic_made_anew_gets_the_channels_that_the_others_have(it):
    first, second, _ = it.brokers
    post(first, "/topic/create?topic=anew")
    post(first, "/channel/create?topic=anew&channel=c")
    for lookup in it.lookups:
        daemons.until(lambda lookup=lookup: get(lookup.http, "/channels?topic=anew") == {"channels": ["c"]})
    publish(second, "anew", "x")

    stats = get(second.http, "/stats?format=json&topic=anew")
    assert [channel["channel_name"] for channel in stats["topics"][0]["channels"]] == ["c"]


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "script"), [("followed_by_pynsq", PYNSQ), ("followed_by_ours", OURS)])
def test_a_consumer_finds_all_producers_and_follows_when_they_change(it, topic, script):
    first, second, third = it.brokers
    publish(first, topic, "from first")
    publish(second, topic, "from second")
    it.everywhere(topic, [first, second])
    with consuming(script, topic, it.lookups) as heard:
        daemons.until(lambda: {"from first", "from second"} <= set(heard), seconds=60, what="the first two")
        publish(third, topic, "from third")
        daemons.until(lambda: "from third" in heard, seconds=60, what="the third")

        first.kill()
        it.everywhere(topic, [second, third])
        publish(second, topic, "second again")
        daemons.until(lambda: "second again" in heard, seconds=60, what="the second again")
        first.restart()
        publish(first, topic, "first again")
        daemons.until(lambda: "first again" in heard, seconds=60, what="the restarted first")
