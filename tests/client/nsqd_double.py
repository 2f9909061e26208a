"""A small nsqd for tests: real sockets and the broker's own parser, but every answer is the test's to decide."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from lapwing import kernel
from lapwing.errors import ProtocolError
from lapwing.wire.nsq import commands as c
from lapwing.wire.nsq import frames
from lapwing.wire.nsq.connection import BrokerConnection, Limits

GRANTED = {
    "max_rdy_count": 2500, "version": "1.3.0", "max_msg_timeout": 900000, "msg_timeout": 60000, "tls_v1": False,
    "deflate": False, "deflate_level": 6, "max_deflate_level": 6, "snappy": False, "sample_rate": 0,
    "auth_required": False, "output_buffer_size": 16384, "output_buffer_timeout": 250,
}  # fmt: skip


class Peer(asyncio.Protocol):
    """One client's connection, as the double sees it."""

    def __init__(self, nsqd: "NsqdDouble") -> None:
        self.nsqd = nsqd
        self.wire = BrokerConnection(Limits())
        self.commands: list[Any] = []
        self.rdy = 0
        self.rdys: list[int] = []
        self.identity: dict[str, Any] = {}
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.nsqd.peers.append(self)

    def data_received(self, data: bytes) -> None:
        self.wire.receive(data)
        try:
            for command in self.wire.commands():
                self._carry_out(command)
        except ProtocolError as error:
            self.write(frames.error(error.payload))
            self.transport.close()
        self.nsqd.changed()

    def _carry_out(self, command: Any) -> None:
        if isinstance(command, c.Fins):
            for at in range(4, len(command.block), 21):
                self._record(c.Fin(command.block[at : at + 16]))
            return
        self._record(command)
        if isinstance(command, c.Identify):
            self.identity = json.loads(command.body)
            granted = self.nsqd.granted
            self.wire.grant(reject=bool(granted.get("reject")), headers=bool(granted.get("headers")))
            self.write(frames.response(json.dumps(GRANTED | self.nsqd.granted).encode()))
        elif isinstance(command, c.Sub):
            self.write(self.nsqd.on_sub(command))
        elif isinstance(command, c.Rdy):
            self.rdy = command.count
            self.rdys.append(command.count)
        elif isinstance(command, c.Cls):
            self.write(frames.CLOSE_WAIT)
        elif isinstance(command, c.Pub | c.Mpub | c.Dpub | c.Hpub | c.Hmpub):
            answer = self.nsqd.on_publish(command)
            if answer is not None:
                self.write(answer)
                if answer[7] == frames.ERROR:
                    self.transport.close()

    def _record(self, command: Any) -> None:
        self.commands.append(command)
        self.nsqd.commands.append(command)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def deliver(self, *bodies: bytes, attempts: int = 1) -> list[bytes]:
        """Send messages; their ids."""
        ids = []
        for body in bodies:
            number = self.nsqd.next_id
            self.nsqd.next_id += 1
            frame = kernel.frame_one(body, number, 1_700_000_000_000_000_000 + number)
            self.write(kernel.with_attempts(frame, attempts) if attempts != 1 else frame)
            ids.append(b"%016x" % number)
        return ids

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.nsqd.changed()


class NsqdDouble:
    """Listens; `peers` are its clients, `commands` all that any of them has said."""

    def __init__(self, **granted: Any) -> None:
        self.granted = granted
        self.peers: list[Peer] = []
        self.commands: list[Any] = []
        self.next_id = 1
        self.on_publish: Callable[[Any], bytes | None] = lambda command: frames.OK
        self.on_sub: Callable[[Any], bytes] = lambda command: frames.OK
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "NsqdDouble":
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Peer(self), "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """Stop listening and cut every connection, as a crash does."""
        self.server.close()
        for peer in self.peers:
            if not peer.closed:
                peer.drop()
        await self.server.wait_closed()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, claim: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait until `claim()` is true; it is looked at whenever a client has said something."""
        async with asyncio.timeout(seconds):
            while not (result := claim()):
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            return result

    def said(self, kind: type[Any]) -> list[Any]:
        """All commands of one kind, in order."""
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def live(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.closed]

    async def subscriber(self, rdy: int = 1) -> Peer:
        """The first live client that has subscribed and is ready for `rdy` messages."""
        found = await self.until(lambda: [peer for peer in self.live if peer.rdy >= rdy])
        return found[0]
