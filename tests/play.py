"""A broker with clients and a clock that stands still until it is moved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lapwing import ids, kernel
from lapwing.broker.broker import Broker
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.ledger import Holder
from lapwing.broker.channel.subscription import Window
from lapwing.broker.keeper.storage import DiskStorage, Storage
from lapwing.broker.settings.options import Options
from lapwing.sessions.nsq import Session, limits_of
from lapwing.wire.nsq.commands import Command, Dpub, Fins, Mpub, Pub, Rdy, Req, Sub, Touch

MS = 1_000_000
SECOND = 1000 * MS
MINUTE = 60 * SECOND
NODE = 5

Message = tuple[int, int, bytes]  # sequence, attempts, body


def identity(sequence: int) -> bytes:
    """The id of a message of the node."""
    return ids.encode(NODE, sequence)


class Client:
    """One connection: what it was sent, taken apart."""

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.hung_up = False
        self.noticed = 0
        self.session = Session(
            stage.broker, limits_of(stage.options), on_ready=self._note_ready, hang_up=self._note_hang_up
        )

    def _note_ready(self) -> None:
        self.noticed += 1

    def _note_hang_up(self) -> None:
        self.hung_up = True

    @property
    def subscription(self) -> Window:
        """Its demand."""
        assert self.session.subscription is not None
        return self.session.subscription

    @property
    def holder(self) -> Holder:
        """What it has in flight."""
        return self.subscription.holder

    def say(self, *commands: Command) -> "Client":
        """Give commands, and end the turn."""
        for command in commands:
            self.session.handle(command, now=self.stage.now)
        self.stage.commit()
        return self

    def publish(self, *bodies: bytes, topic: str = "t", delay: int = 0) -> "Client":
        """Publish one or several."""
        if delay:
            return self.say(*[Dpub(topic, delay, body) for body in bodies])
        return self.say(Pub(topic, bodies[0]) if len(bodies) == 1 else Mpub.of(topic, list(bodies)))

    def finish(self, *sequences: int) -> "Client":
        """Finish messages."""
        return self.say(Fins.of([identity(sequence) for sequence in sequences]))

    def requeue(self, sequence: int, *, delay: int = 0) -> "Client":
        """Requeue a message."""
        return self.say(Req(identity(sequence), delay))

    def touch(self, sequence: int) -> "Client":
        """Touch a message."""
        return self.say(Touch(identity(sequence)))

    def leave(self) -> None:
        """Disconnect."""
        self.session.leave(now=self.stage.now)
        self.stage.commit()

    def take(self) -> tuple[list[Message], list[bytes]]:
        """What has arrived since the last time: messages, and the payloads of all else."""
        data = b"".join(self.session.replies.ready)
        self.session.replies.ready.clear()
        if self.session.subscription is not None:
            self.session.subscription.unsent = 0
        messages: list[Message] = []
        payloads: list[bytes] = []
        at = 0
        while at < len(data):
            found, end = kernel.decode_messages(data, at, len(data))
            messages += [(ids.decode(text)[1], attempts, body) for _, attempts, text, body in found]
            if end == at:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                payloads.append(data[at + 8 : end])
            at = end
        return messages, payloads

    def received(self) -> list[int]:
        """The sequences of the messages that have arrived since the last time."""
        return [sequence for sequence, _, _ in self.take()[0]]

    def answers(self) -> list[bytes]:
        """The answers that have come since the last time."""
        return self.take()[1]


class Stage:
    """A broker, in memory or on a disk."""

    def __init__(
        self, path: Path | None = None, *, now: int = 1_000 * SECOND, storage: Storage | None = None, **options: Any
    ) -> None:
        self.now = now
        self.skew = 0  # of the machine's clock, as a process begins
        self.boot_id = "a run of the machine"
        self.path = path
        self.reports: list[str] = []
        self.options = Options(**{"msg_timeout": MINUTE, "min_free_bytes": 0, "node_id": NODE} | options)
        self._storage = storage
        self.open()

    def open(self) -> None:
        """Begin, with whatever is on the disk."""
        storage: Storage
        if self._storage is not None:
            storage = self._storage
        elif self.path is None:
            storage = Storage(NODE)
        else:
            storage = DiskStorage(
                str(self.path),
                NODE,
                self.options.log_options,
                now=lambda: self.now,
                report=self.reports.append,
                boot_id=self.boot_id,
            )
        self.broker = Broker(self.options, storage, report=self.reports.append)
        self.broker.skew = self.skew
        self.broker.restore(now=self.now)
        self.commit()

    def restart(self) -> None:
        """Stop in good order and begin again."""
        self.broker.close(now=self.now)
        self.open()

    def kill(self) -> None:
        """Begin again with nothing but what has reached the disk."""
        self.broker.storage.close()
        self.open()

    def commit(self) -> None:
        """End the turn, and those that have to follow."""
        self.broker.commit(self.now)
        while self.broker.work:
            self.broker.commit(self.now)

    def checkpoint(self, *, trim: bool = False) -> None:
        """Write the journal; with `trim` let go of what nobody needs."""
        self.broker.checkpoint(now=self.now)
        if trim:
            self.broker.trim(now=self.now, everywhere=True)

    def pass_time(self, span: int) -> None:
        """Move the clock, and do what is due."""
        self.now += span
        while self.broker.scan(self.now):
            pass
        self.commit()

    def client(self) -> Client:
        """A new connection."""
        return Client(self)

    def channel_exists(self, channel: str = "c", topic: str = "t") -> None:
        """Create a channel, with `fsync` only: otherwise SUB does it as well."""
        if self.broker.options.durability == "fsync":
            self.broker.topic(topic).create_channel(channel, now=self.now)

    def consumer(self, channel: str = "c", *, ready: int = 2500, topic: str = "t", **settings: Any) -> Client:
        """A new connection that is subscribed; `settings` are the session's. Its OK is taken already."""
        client = Client(self)
        for name, value in settings.items():
            setattr(client.session, name, value)
        self.channel_exists(channel, topic)  # with fsync the answer to the first SUB waits for a sync
        client.say(Sub(topic, channel))
        assert client.session.replies.ready.pop(0).endswith(b"OK")
        return client.say(Rdy(ready))

    def channel(self, name: str = "c", topic: str = "t") -> Channel:
        """A channel that exists."""
        return self.broker.existing_channel(topic, name)


def numbered(count: int, size: int = 20) -> list[bytes]:
    """That many bodies."""
    return [b"%d-" % number + b"x" * size for number in range(count)]


def drain(clients: Sequence[Client]) -> list[list[int]]:
    """What each of them has received, sorted."""
    return [sorted(client.received()) for client in clients]


@pytest.fixture(params=["memory", "disk"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """A broker with its defaults."""
    return Stage(tmp_path if request.param == "disk" else None)
