"""Register topics and channels with every nsqlookupd, and ask them for the channels of a new topic."""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from lapwing import names
from lapwing.broker.broker import Broker
from lapwing.broker.settings.options import Options
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, ProtocolError
from lapwing.names import NSQ_VERSION
from lapwing.net.logs import Log
from lapwing.net.server.requests import escape
from lapwing.net.sockets.listen import join, split
from lapwing.wire.nsq import lookup
from lapwing.wire.nsq.lookup import PeerInfo, Register, Unregister

if TYPE_CHECKING:
    from lapwing.net.client.asynchronous import HttpClient

_PATIENCE: Final = 1.0  # seconds for a connection, and for each answer
_PING: Final = 15.0  # seconds
_FIRST_PAUSE: Final = 0.05  # seconds before a lost connection is tried again, doubled each time
_LONGEST_PAUSE: Final = 5.0
_SETTLED: Final = 5.0  # seconds that a connection must have lasted to be tried again without a pause
_WAIT: Final = 1.0  # seconds for which the client who made a topic may wait until it is known everywhere
_HEAD_START: Final = 0.1  # seconds for which a start may wait for them, so that the first topic made is known to them
_PING_COMMAND: Final = lookup.Ping().encode()

OnAnswer = Callable[[bytes | None], None]  # gets the answer; None when the connection was lost before it


class _Line(asyncio.Protocol):
    """One connection to an nsqlookupd: commands out, answers in, in order."""

    def __init__(self, largest: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()  # why
        self._wire = lookup.LookupClient(largest)
        self._awaiting: deque[OnAnswer] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._reason = "closed"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(lookup.MAGIC)

    def send(self, command: bytes, on_answer: OnAnswer) -> None:
        """Send a command; `on_answer` is called once."""
        if self._transport is None or self.lost.done():
            on_answer(None)
            return
        self._transport.write(command)
        self._awaiting.append(on_answer)
        if self._timer is None:
            self._timer = self._loop.call_later(_PATIENCE, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Answers, or parts of them."""
        self._wire.receive(data)
        try:
            for payload in self._wire.answers():
                if not self._awaiting:
                    raise ProtocolError("E_INVALID", "an answer to nothing")
                self._awaiting.popleft()(payload)
        except ProtocolError as error:
            self.hang_up(str(error))
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_PATIENCE, self._too_late) if self._awaiting else None

    def connection_lost(self, error: Exception | None) -> None:
        """Fail every command that waits for an answer."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost.done():
            self.lost.set_result(str(error) if error else self._reason)
        while self._awaiting:
            self._awaiting.popleft()(None)

    def hang_up(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _too_late(self) -> None:
        self.hang_up(f"no answer within {_PATIENCE:g} s")


class Peer:
    """One nsqlookupd, wherever it is: connected to it, or trying to be."""

    def __init__(
        self, address: str, about: PeerInfo, everything: Callable[[], Iterable[Register]], log: Log, largest: int
    ) -> None:
        """`about` is our identity, `everything` returns all registrations at the moment of a connection."""
        self.address = address
        self.info: PeerInfo | None = None  # its identity, while it is connected
        self.tried = asyncio.Event()  # the first attempt has succeeded or failed
        self._about = about
        self._everything = everything
        self._log = log
        self._largest = largest
        self._line: _Line | None = None
        self._complained = False

    def send(self, command: bytes, on_answer: OnAnswer) -> None:
        """Send a change; `on_answer` gets the answer, or None at once without a connection: the next one sends all."""
        if self._line is None:
            on_answer(None)
        else:
            self._line.send(command, on_answer)

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        while True:
            began = loop.time()
            try:
                await self._converse()
            except (OSError, ProtocolError, ValueError) as error:
                if not self._complained:  # one line per outage
                    self._log.error(f"LOOKUPD({self.address}): {error or 'no connection'}")
                    self._complained = True
                self.tried.set()
            if loop.time() - began > _SETTLED:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _converse(self) -> None:
        line = await self._connect()
        try:
            answer = await _answer(line, lookup.Identify(self._about).encode())
            try:
                info = lookup.parse_peer(answer)
            except ValueError as error:
                raise ValueError(f"IDENTIFY answered {answer[:100]!r}") from error
            self.info, self._line = info, line
            for register in self._everything():  # at this very moment: later changes are sent after it
                line.send(register.encode(), _ignore)
            self._log.info(f"LOOKUPD({self.address}): peer info {info.broadcast_address} {info.version}")
            self._complained = False
            self.tried.set()
            while not line.lost.done():
                await asyncio.wait((line.lost,), timeout=_PING)
                if not line.lost.done():
                    line.send(_PING_COMMAND, _ignore)
            raise ConnectionError(f"connection lost: {line.lost.result()}")
        finally:
            self.info = self._line = None
            line.hang_up("closing")

    async def _connect(self) -> _Line:
        place = split(self.address)
        if place is None:
            raise ValueError("not an address of the form host:port")
        host, port = place
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_PATIENCE):
                _, line = await loop.create_connection(lambda: _Line(self._largest), host or "localhost", port)
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {_PATIENCE:g} s") from error
        return line


def _ignore(answer: bytes | None) -> None:
    """Ignore the answer: an nsqlookupd that refuses disconnects, and everything is registered again."""


async def _answer(line: _Line, command: bytes) -> bytes:
    got: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    line.send(command, lambda answer: None if got.done() else got.set_result(answer))
    answer = await got
    if answer is None:
        raise ConnectionError(f"connection lost: {line.lost.result() if line.lost.done() else 'closed'}")
    return answer


class _Settling:
    """A new topic that is being made known."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self._awaited = 1  # the turn in which all peers are sent the change

    def add(self) -> None:
        """Wait for one more answer."""
        self._awaited += 1

    def done(self, _: object = None) -> None:
        self._awaited -= 1
        if not self._awaited:
            self.give_up()

    def give_up(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Peers:
    """All nsqlookupds. Not knowing any costs nothing."""

    def __init__(
        self, broker: Broker, options: Options, now: Callable[[], int], schedule_flush: Callable[[], None], log: Log
    ) -> None:
        self._broker = broker
        self._now = now
        self._schedule_flush = schedule_flush
        self._log = log
        self._addresses = tuple(dict.fromkeys(options.lookupd_tcp_addresses))
        self._largest = options.max_body_size
        self._options = options
        self._http: HttpClient | None = None  # made with the first peer
        self._about = PeerInfo(
            broadcast_address=options.broadcast_address,
            hostname=os.uname().nodename,
            http_port=options.broadcast_http_port,
            tcp_port=options.broadcast_tcp_port,
            topology_region=options.topology_region,
            topology_zone=options.topology_zone,
            version=NSQ_VERSION,
        )
        self._peers: dict[str, tuple[Peer, asyncio.Task[None]]] = {}
        self._settling: dict[str, _Settling] = {}
        self._questions: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect to all of them, and be there when a topic is made; waits for them no longer than a moment."""
        self._broker.on_new_topic = self._new_topic
        self.use(self._addresses)
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEAD_START):
                for peer, _ in list(self._peers.values()):
                    await peer.tried.wait()

    async def stop(self) -> None:
        """Close every connection."""
        tasks = [task for _, task in self._peers.values()] + list(self._questions)
        self._peers = {}
        for settling in list(self._settling.values()):
            settling.give_up()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def addresses(self) -> Sequence[str]:
        return self._addresses

    def use(self, addresses: Sequence[str]) -> None:
        """Use these addresses, and no others, from now on."""
        self._addresses = tuple(dict.fromkeys(addresses))
        for address in [address for address in self._peers if address not in self._addresses]:
            self._peers.pop(address)[1].cancel()
            self._log.info(f"LOOKUPD({address}): removing peer")
        if self._addresses and self._http is None:
            from lapwing.nsqd.lookupd.outgoing_http import (
                http_client,  # slow to load, and many nodes have no nsqlookupd
            )

            self._http = http_client(self._options, max_answer=self._options.max_body_size)
        loop = asyncio.get_running_loop()
        for address in self._addresses:
            if address not in self._peers:
                peer = Peer(address, self._about, self._everything, self._log, self._largest)
                self._peers[address] = peer, loop.create_task(peer.run(), name=f"lookupd {address}")
                self._log.info(f"LOOKUPD({address}): adding peer")

    @property
    def connected(self) -> list[Peer]:
        """The peers that we are registered with."""
        return [peer for peer, _ in self._peers.values() if peer.info is not None]

    def _everything(self) -> list[Register]:
        """Return a registration for every channel, and for every topic without one."""
        found = []
        drain = self._broker.drain
        for topic in self._broker.topics.values():
            if drain is not None and topic.name in drain.empty_topics:
                continue
            found += [Register(topic.name, channel) for channel in topic.channels] or [Register(topic.name)]
        return found

    # --- changes -----------------------------------------------------------------------------------------------

    def send_changes(self) -> None:
        """Send the topics and channels that were created or deleted in this turn to every peer."""
        changes, self._broker.changes = self._broker.changes, []
        if not self._peers:
            return
        peers = self.connected
        for kind, topic, channel, created in changes:
            command = (Register if created else Unregister)(topic, channel or "").encode()
            settling = self._settling.get(topic) if created and kind == "topic" else None
            for peer in peers:
                if settling is None:
                    peer.send(command, _ignore)
                else:
                    settling.add()
                    peer.send(command, settling.done)
            if settling is not None:
                settling.done()

    def settling(self, topic: str) -> asyncio.Future[None] | None:
        """Return a future, done when every nsqlookupd knows the new topic and its first channels are there.

        It is done after a second at the latest. None: there is nothing to wait for.
        """
        settling = self._settling.get(topic)
        return None if settling is None else settling.future

    def _new_topic(self, topic: Topic) -> None:
        """Hold a topic back until it is known which channels it shall begin with."""
        if not self._peers:
            return
        peers = self.connected
        if not peers:
            self._log.warn(f"no nsqlookupd to ask for the channels of topic {topic.name}")
            return
        loop = asyncio.get_running_loop()
        settling = _Settling(loop.create_future())
        self._settling[topic.name] = settling
        timer = loop.call_later(_WAIT, settling.give_up)

        def settled(_: object) -> None:
            timer.cancel()
            if self._settling.get(topic.name) is settling:
                del self._settling[topic.name]

        settling.future.add_done_callback(settled)
        places = [peer.info for peer in peers if peer.info is not None and peer.info.broadcast_address]
        if places:
            topic.held = True
            settling.add()
            question = loop.create_task(self._ask_channels(topic, places))
            self._questions.add(question)
            question.add_done_callback(self._questions.discard)
            question.add_done_callback(settling.done)

    async def _ask_channels(self, topic: Topic, places: list[PeerInfo]) -> None:
        """Make the channels that others have of the topic, and let its messages flow."""
        found: set[str] = set()
        try:
            answers = await asyncio.gather(*(self._channels(topic.name, place) for place in places))
            found.update(*(answer for answer in answers if answer is not None))
            if all(answer is None for answer in answers):
                self._log.warn(f"topic {topic.name} is made without asking for its channels: no nsqlookupd answers")
        finally:
            if not topic.exiting:
                with suppress(LapwingError):  # the disk refuses: writes to the topic report it with the reason
                    for channel in sorted(found):
                        topic.create_channel(channel, now=self._now())
                topic.release(now=self._now())
                self._schedule_flush()

    async def _channels(self, topic: str, place: PeerInfo) -> list[str] | None:
        """Return the channels of a topic that one nsqlookupd knows, but ephemeral ones; None without an answer."""
        from lapwing.net.client.message import HttpFailed  # there since the client is

        assert self._http is not None
        url = f"http://{join(place.broadcast_address, place.http_port)}/channels?topic={escape(topic)}"
        try:
            answer = await self._http.ask(url)
        except HttpFailed as error:
            self._log.warn(f"{error}")
            return None
        channels = answer.get("channels") if isinstance(answer, dict) else None
        if not isinstance(channels, list):
            self._log.warn(f"{url} answered no list of channels")
            return None
        return [name for name in channels if isinstance(name, str) and names.valid(name) and not names.ephemeral(name)]
