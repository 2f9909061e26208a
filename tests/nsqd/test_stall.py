"""A process that hangs for a while reads what clients have sent meanwhile before it enforces their deadlines.

On uvloop, where timers that are due come before sockets that became readable meanwhile.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvloop
from doors import Node, quiet

from lapwing.broker.agenda import Agenda
from lapwing.broker.broker import Broker
from lapwing.net.server.http import HttpServer
from lapwing.net.server.routes import Router
from lapwing.nsqd.clock import Alarm, Clock
from lapwing.nsqd.doors import heartbeat
from lapwing.nsqd.doors.heartbeat import ClientTimer
from lapwing.nsqd.doors.redis import RedisDoor

MS = 1_000_000


def run(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(cast(Any, test()))


class HeldUp(Exception):
    """This process was held up before it could hang as the test wants."""


async def undisturbed(attempt: Callable[[], Awaitable[None]]) -> None:
    """Try until the machine lets the loop hang before the deadline, and not later."""
    for _ in range(50):
        try:
            return await attempt()
        except HeldUp:
            continue
    raise AssertionError("the machine held this process up every time")


class Events:
    """What happens in which order, with a socket that somebody writes to while the loop hangs."""

    def __init__(self) -> None:
        self._made = time.monotonic()
        self._late = False
        self.seen: list[str] = []
        self.done = asyncio.Event()
        self._ours, self._theirs = socket.socketpair()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        self._ours.recv(100)
        self.seen.append("read")

    def happen(self, what: str) -> None:
        self.seen.append(what)
        self.done.set()

    async def hang(self) -> list[str]:
        """Hang for 200 ms while something is read from another client; this one sends something meanwhile."""
        loop = asyncio.get_running_loop()
        other, its_end = socket.socketpair()

        def stall() -> None:
            loop.remove_reader(other)
            self._late = time.monotonic() - self._made > 0.04  # a deadline may have passed before
            time.sleep(0.2)
            self._theirs.send(b"NOP\n")

        loop.add_reader(other, stall)
        its_end.send(b"x")
        async with asyncio.timeout(60):
            await self.done.wait()
        loop.remove_reader(self._ours)
        for end in (self._ours, self._theirs, other, its_end):
            end.close()
        if self._late:
            raise HeldUp
        return self.seen


def test_commands_are_read_before_message_timeouts_are_enforced() -> None:
    async def attempt() -> None:
        events, clock = Events(), Clock()
        agenda = Agenda([(clock.now() + 50 * MS, 0, cast(Any, SimpleNamespace(scheduled=0, exiting=True)))])
        broker = SimpleNamespace(
            agenda=agenda, scan=lambda now: events.happen("expired") or agenda.clear(), has_work=False
        )
        alarm = Alarm(cast(Broker, broker), clock, asyncio.get_running_loop(), lambda: None)
        alarm.arm()

        assert await events.hang() == ["read", "expired"]

    run(lambda: undisturbed(attempt))


def test_commands_are_read_before_a_silent_client_is_given_up() -> None:
    async def attempt() -> None:
        events, clock = Events(), Clock()
        protocol = SimpleNamespace(on_silence=lambda: events.happen("given up"))
        client = SimpleNamespace(waits_for_broker=False, protocol=protocol)
        timer = ClientTimer(clock, cast(Any, client))
        timer.last_command = clock.now()
        timer.allow_silence(50 * MS)
        timer.start(0, now=clock.now())

        assert await events.hang() == ["read", "given up"]

    run(lambda: undisturbed(attempt))


def test_a_client_that_has_sent_something_meanwhile_is_kept() -> None:
    async def attempt() -> None:
        events, clock = Events(), Clock()
        protocol = SimpleNamespace(on_silence=lambda: events.happen("given up"))
        client = SimpleNamespace(waits_for_broker=False, protocol=protocol)
        timer = ClientTimer(clock, cast(Any, client))
        timer.last_command = clock.now()
        timer.allow_silence(100 * MS)
        timer.start(0, now=clock.now())
        asyncio.get_running_loop().remove_reader(events._ours)

        def read() -> None:
            events._read()
            timer.last_command = clock.now()

        asyncio.get_running_loop().add_reader(events._ours, read)
        began = clock.now()

        assert await events.hang() == ["read", "given up"]
        assert clock.now() - began > 290 * MS  # 200 ms of stall, then its 100 ms

    run(lambda: undisturbed(attempt))


def test_time_in_which_an_http_server_hangs_counts_for_no_deadline() -> None:
    server = HttpServer(Router([]))
    checked: list[float] = []
    connection = Mock(check_deadline=checked.append)
    loop = Mock()
    server.joined(connection, loop)
    server._ticked -= 3600
    server._tick(loop)

    assert len(checked) == 1
    assert checked[0] <= 2


def test_a_redis_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_STUCK", 20 * MS)

    async def test() -> None:
        loop, node = asyncio.get_running_loop(), Node()
        door = RedisDoor(node.broker, node.turn, quiet())
        ours, theirs = socket.socketpair()
        with theirs:
            _, client = await loop.connect_accepted_socket(door.connect, sock=ours)
            assert door.connections == {client}
            client.pause_writing()  # as the transport does when the socket is full
            theirs.setblocking(False)
            async with asyncio.timeout(60):
                assert await loop.sock_recv(theirs, 1) == b""

        assert not door.connections

    run(test)
