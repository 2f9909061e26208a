"""nsqadmin in front of our own nsqd and nsqlookupd: what it shows is what they did."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from admin_stage import start_nsqadmin

from daemons import Daemon, nsqd, start_nsqlookupd, until
from lapwing.admin.access import Visitor
from lapwing.admin.actions import Actions
from lapwing.admin.audit import Audit
from lapwing.client.admin import Admin
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.client.log_reader import TopicLogs

pytestmark = pytest.mark.slow


@dataclass
class Stack:
    lookupd: Daemon
    one: Daemon
    two: Daemon
    admin: Daemon

    def api(self, method: str, path: str, **more) -> httpx.Response:
        return httpx.request(method, f"{self.admin.url}/api{path}", **more)

    def publish(self, node: Daemon, topic: str, body: bytes, **headers: str) -> None:
        httpx.post(f"{node.url}/pub", params={"topic": topic}, content=body, headers=headers).raise_for_status()

    def read(self, node: Daemon, topic: str) -> list[tuple[str, dict[str, str]]]:
        asked = {"topic": topic, "from": 0, "to": 100, "format": "json"}
        answer = httpx.get(f"{node.url}/log/read", params=asked).json()
        return [(message["body"], message.get("headers") or {}) for message in answer["messages"]]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(start_nsqlookupd())
        one = stack.enter_context(nsqd(lookupd_tcp_addresses=[lookupd.tcp]))
        two = stack.enter_context(nsqd(lookupd_tcp_addresses=[lookupd.tcp]))
        admin = stack.enter_context(start_nsqadmin(f"--lookupd-http-address={lookupd.http}"))
        yield Stack(lookupd, one, two, admin)


def test_what_is_published_is_counted_over_both_nodes(stack):
    for _ in range(3):
        stack.publish(stack.one, "counted", b"x")
    stack.publish(stack.two, "counted", b"y")
    until(lambda: stack.api("GET", "/topics/counted").json().get("message_count") == 4, what="four messages")

    topic = stack.api("GET", "/topics/counted").json()
    assert (topic["depth"], len(topic["nodes"]), topic["message"]) == (4, 2, "")


def test_a_channel_is_created_paused_emptied_and_deleted(stack):
    stack.publish(stack.one, "worked", b"x")
    until(lambda: "worked" in stack.api("GET", "/topics").json()["topics"], what="the topic")
    created = stack.api("POST", "/topics", json={"topic": "worked", "channel": "c"})
    paused = stack.api("POST", "/topics/worked/c", json={"action": "pause"})
    channel = stack.api("GET", "/topics/worked/c").json()
    emptied = stack.api("POST", "/topics/worked/c", json={"action": "empty"})
    after = stack.api("GET", "/topics/worked/c").json()
    deleted = stack.api("DELETE", "/topics/worked/c")

    assert {answer.text for answer in (created, paused, emptied, deleted)} == {'{"message":""}'}
    assert (channel["paused"], channel["depth"], after["depth"]) == (True, 1, 0)
    assert stack.api("GET", "/topics/worked/c").status_code == 404


def test_a_tombstoned_topic_is_gone_from_one_node(stack):
    for node in (stack.one, stack.two):
        stack.publish(node, "shared", b"x")
    until(lambda: len(stack.api("GET", "/topics/shared").json().get("nodes") or ()) == 2, what="both nodes")
    answer = stack.api("DELETE", f"/nodes/127.0.0.1:{stack.two.http_port}", json={"topic": "shared"})

    assert answer.json() == {"message": ""}
    assert [part["node"] for part in stack.api("GET", "/topics/shared").json()["nodes"]] == [
        f"127.0.0.1:{stack.one.http_port}"
    ]


async def test_messages_are_read_without_being_consumed(stack):
    for number in range(5):
        headers = json.dumps({"n": str(number)})
        stack.publish(stack.one, "read", f"message {number}".encode(), **{"X-Lapwing-Headers": headers})
    stack.publish(stack.two, "read", b"\xff\xfe")
    http = DaemonHttp()
    try:
        cluster_client = ClusterClient(http, lookupds=[stack.lookupd.http])
        logs = TopicLogs(http, "read")
        ranges = await logs.ranges((await cluster_client.nodes()).value)
        last = await logs.newest(ranges, limit=3)
        first = await logs.oldest(ranges, limit=2)
        found = await logs.newest(ranges, text="n: 3", limit=10)
    finally:
        await http.aclose()

    assert [each.next for each in ranges if each.node.http_port == stack.one.http_port] == [5]
    assert [message.body for message in last.messages] == [b"\xff\xfe", b"message 4", b"message 3"]
    assert [message.body for message in first.messages] == [b"message 0", b"message 1"]
    assert [message.headers for message in found.messages] == [{"n": "3"}]
    assert (last.complete, first.complete, found.complete, found.searched) == (False, False, True, 6)


async def test_a_message_is_published_with_its_headers_and_its_delay(stack):
    node = f"127.0.0.1:{stack.one.http_port}"
    visitor = Visitor("ann", "127.0.0.1", may_read=True, may_change=True)
    async with Admin(lookupd=stack.lookupd.http) as admin:
        actions = Actions(admin, Audit())
        await actions.publish(visitor, "sent", b"now", node=node, headers={"k": "v"})
        await actions.publish(visitor, "sent", b"later", node=node, headers={}, defer=60_000)
        with pytest.raises(CallFailed):
            await actions.publish(visitor, "sent", b"never", node=node, headers={}, defer=10**12)

    assert stack.read(stack.one, "sent") == [("now", {"k": "v"}), ("later", {})]


def test_a_topic_that_nobody_reads_becomes_an_alarm(stack):
    stack.publish(stack.one, "silent", b"x")

    def told() -> bool:
        texts = [alarm["text"] for alarm in stack.api("GET", "/alarms").json()["alarms"]]
        return "Topic silent has no channel: 1 message is buffering." in texts

    until(told, seconds=60, what="the alarm")
