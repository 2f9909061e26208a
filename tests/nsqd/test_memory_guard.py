"""Publishes are refused while the process holds too much memory, and health names the reason."""

import http.client
import json

import pytest
from doors import Node
from rawtalk import Raw, pub

import daemons
from lapwing.nsqd.stats import memory
from lapwing.nsqd.stats.memory_guard import MemoryGuard

MIB = 1 << 20


class Machine:
    """A process whose memory a test sets."""

    def __init__(self, node: Node, limit: int) -> None:
        self.held = 0
        self.trimmed = 0
        self.freed_by_trimming = 0
        self.guard = MemoryGuard(limit, node.broker, node.log, held=lambda: self.held, trim=self._trim)

    def _trim(self) -> None:
        self.trimmed += 1
        self.held -= self.freed_by_trimming

    def hold(self, mebibytes: int) -> None:
        self.held = mebibytes * MIB
        self.guard.check()


async def test_publishes_are_refused_above_the_limit_and_taken_again_well_below_it() -> None:
    node = Node()
    machine = Machine(node, 100 * MIB)
    assert (await node.ask("POST", "/pub?topic=t", b"x"))[0] == 200

    machine.hold(101)
    status, body = await node.ask("POST", "/pub?topic=t", b"x")
    refused = json.loads(body)
    new = await node.ask("POST", "/pub?topic=new", b"x")
    ping = await node.ask("GET", "/ping")
    machine.hold(97)
    still = await node.ask("POST", "/mpub?topic=t", b"x")
    machine.hold(94)
    again = await node.ask("POST", "/pub?topic=t", b"x")

    assert (status, refused["message"]) == (503, "OUT_OF_MEMORY")
    assert "nsqd holds 101 MiB and --max-memory is 100 MiB" in refused["reason"]
    assert new[0] == 503
    assert "new" not in node.broker.topics
    assert ping == (500, f"NOK - {refused['reason']}")
    assert still[0] == 503
    assert again == (200, "OK")
    assert await node.ask("GET", "/ping") == (200, "OK")


async def test_free_memory_is_returned_to_the_system_before_anything_is_refused() -> None:
    node = Node()
    machine = Machine(node, 100 * MIB)
    machine.freed_by_trimming = 20 * MIB
    machine.hold(110)

    assert machine.trimmed == 1
    assert node.broker.memory_problem is None


async def test_without_a_limit_it_is_a_share_of_what_there_is() -> None:
    guard = MemoryGuard(0, Node().broker, Node().log)

    assert guard.limit == int(memory.total() * 0.8)
    assert 0 < memory.private() < memory.total()


def test_a_node_out_of_memory_answers_both_protocols_with_the_reason() -> None:
    with daemons.nsqd("--max-memory=1") as daemon:
        daemons.until(lambda: "--max-memory" in daemon.stderr, what="the log line")
        with Raw(daemon) as raw:
            raw.send(pub("t", b"x"))
            told = raw.error()
        connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
        connection.request("POST", "/pub?topic=t", b"x")
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()

    assert told.startswith("E_PUB_FAILED PUB failed memory: nsqd holds ")
    assert (answer.status, content["message"]) == (503, "OUT_OF_MEMORY")


@pytest.mark.parametrize("value", ["-1", "0"])
def test_a_node_with_room_or_without_a_guard_publishes(value: str) -> None:
    with daemons.nsqd(f"--max-memory={value}") as daemon, Raw(daemon) as raw:
        raw.ok(pub("t", b"x"))
