"""The state that all Redis clients of a broker share: streams by key, locks, connections by number, and who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from lapwing import names
from lapwing.broker.broker import Broker
from lapwing.broker.topic.cold import ColdTopic
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, LogError
from lapwing.records import dataclass
from lapwing.sessions.redis.group import Group
from lapwing.sessions.redis.idempotence import DURATION, MAX_SIZE, IdempotenceWindow
from lapwing.sessions.redis.locks import Locks
from lapwing.sessions.redis.replies import write_failed
from lapwing.sessions.redis.stream import Stream
from lapwing.wire.resp import keys
from lapwing.wire.resp.errors import ErrorReply

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.sessions.redis.client_state import ClientState, Wait

VERSION: Final = "8.10.0"  # of the Redis whose commands on streams are all there
_MAX_KNOWN: Final = 10_000  # streams that are remembered by key
_MIN_FOUND: Final = 100  # streams or groups that are found between two looks for deleted ones, at least


@dataclass(slots=True)
class ServerFacts:
    """The facts about the process that INFO shows."""

    process_id: int = 0
    port: int = 0
    started: int = 0  # ns
    memory: int = 0  # bytes
    cpu_user: float = 0.0  # s
    cpu_system: float = 0.0  # s
    system: str = ""


class Grants(Protocol):
    """The permissions of an authenticated client."""

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Return whether the permission covers it."""

    def knows(self, topic: str) -> bool:
        """Return whether any permission is for the topic."""


@dataclass(slots=True)
class Counts:
    """Figures that INFO shows."""

    connections: int = 0
    commands: int = 0
    errors: int = 0
    rejected: int = 0


class RedisContext:
    """The state that all Redis clients of one broker share."""

    def __init__(self, broker: Broker, *, facts: Callable[[], ServerFacts] = ServerFacts) -> None:
        self.broker = broker
        self.facts = facts
        self.sessions: dict[int, ClientState] = {}
        self.locks = Locks()
        self.counts = Counts()
        self.queued = 0  # bytes that clients have queued since MULTI
        self._number = 0
        self._known: dict[tuple[int, bytes], Stream] = {}
        self._groups: dict[Channel, Group] = {}
        self._known_groups: dict[tuple[int, bytes, bytes], Group] = {}
        self._found = 0  # streams and groups since those that are deleted were dropped
        self._windows: WeakKeyDictionary[Topic, IdempotenceWindow] = WeakKeyDictionary()
        self.let_in: Callable[[bytes, Stream], None] = lambda key, stream: None  # after an XADD that needed no look
        self._served: dict[Callable[[int], None], None] = {}
        self._claimable: dict[Channel, None] = {}  # channels where XNACK gave entries back in this turn

    def join(self, session: ClientState) -> int:
        """Take a connection in; return its number."""
        self._number += 1
        self.sessions[self._number] = session
        self.counts.connections += 1
        return self._number

    def leave(self, session: ClientState) -> None:
        self.sessions.pop(session.id, None)

    # --- streams ---------------------------------------------------------------------------------------------------

    def find(self, key: bytes, database: int) -> Stream | None:
        """Return the stream of a key; None if there is none."""
        stream = self._known.get((database, key))
        if stream is not None and not stream.topic.exiting:
            return stream
        name = keys.topic_of(key, database)
        topic = self.broker.find(name) if name is not None else None
        return None if topic is None else self._remember(key, database, topic)

    def create(self, key: bytes, database: int) -> Stream:
        """Return the stream of a key, created if there is none. Raises `ErrorReply`."""
        stream = self.find(key, database)
        if stream is not None:
            return stream
        name = keys.topic_of(key, database)
        if name is None:
            raise ErrorReply(_unnameable(key))
        try:
            topic = self.broker.topic(name)
        except LogError as error:
            raise ErrorReply(write_failed(error)) from error
        except LapwingError as error:
            raise ErrorReply(f"ERR {error}") from error
        self.broker.settings.give_topic(topic, {"keep": "trimmed"})
        return self._remember(key, database, topic)

    def _remember(self, key: bytes, database: int, topic: Topic) -> Stream:
        self._drop_deleted()
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        stream = self._known[database, key] = Stream(topic)
        return stream

    def group(self, stream: Stream, channel: Channel) -> Group:
        """Return a channel as a group."""
        group = self._groups.get(channel)
        if group is None:
            self._drop_deleted()
            group = self._groups[channel] = Group(stream, channel)
        return group

    def _drop_deleted(self) -> None:
        """Drop streams and groups that are deleted, once in so many new ones."""
        self._found += 1
        if self._found > len(self._groups) // 2 + _MIN_FOUND:
            self._found = 0
            self._known = {at: stream for at, stream in self._known.items() if not stream.topic.exiting}
            self._groups = {channel: group for channel, group in self._groups.items() if not channel.exiting}
            groups = self._known_groups.items()
            self._known_groups = {at: group for at, group in groups if not group.channel.exiting}

    def known_group(self, key: bytes, name: bytes, database: int) -> Group | None:
        """Return a group that was found before and is still there."""
        group = self._known_groups.get((database, key, name))
        if group is not None and group.channel.exiting:
            del self._known_groups[database, key, name]
            return None
        return group

    def remember_group(self, key: bytes, name: bytes, database: int, group: Group) -> Group:
        """Have a group found without a look at names."""
        if len(self._known_groups) >= _MAX_KNOWN:
            self._known_groups.clear()
        self._known_groups[database, key, name] = group
        return group

    def idempotence(self, stream: Stream, *, now: int) -> IdempotenceWindow:
        """Return what producers of a stream have added lately. Raises `ReadFailed`."""
        window = self._windows.get(stream.topic)
        if window is None:
            duration, max_size, since = stream.state.get("once", (DURATION, MAX_SIZE, 0))
            window = IdempotenceWindow(duration, max_size)
            window.read_back(stream, since=since, now=now)
            self._windows[stream.topic] = window
        return window

    # --- waiting ---------------------------------------------------------------------------------------------------

    def follow(self, session: ClientState, wanted: list[bytes], wait: Wait) -> None:
        """Have a command tried again whenever one of the streams grows, is created or is deleted."""
        named = {keys.topic_of(key, session.database) for key in wanted}
        topics = [name for name in named if name is not None]
        wait.cancel = self.broker.growth.follow(topics, session.try_again)

    def serve(self, answer: Callable[[int], None]) -> None:
        """Have a read of a group that waited answered at the end of the turn: it was given entries."""
        self._served[answer] = None

    def look_again(self, channel: Channel) -> None:
        """Have the reads with CLAIM that wait for a channel tried again at the end of the turn."""
        self._claimable[channel] = None

    def wake(self, now: int) -> None:
        """Answer the reads of groups that were given entries in this turn, or may claim what was given back in it."""
        served, self._served = self._served, {}
        for answer in served:
            answer(now)
        claimable, self._claimable = self._claimable, {}
        if claimable:
            for session in list(self.sessions.values()):
                if session.wait is not None and any(each in claimable for each in session.wait.channels):
                    session.try_again(now)

    def streams(self, database: int) -> Iterator[tuple[bytes, Topic | ColdTopic]]:
        """Yield the keys of a database, with their topics; lapwing's own topics are left out."""
        for name, topic in self.broker.topics.items():
            if names.own(name):
                continue
            found = keys.key_of(name)
            if found is not None and found[1] == database:
                yield found[0], topic


def _unnameable(key: bytes) -> str:
    if not key:
        return "ERR a key must not be empty: a stream is a topic, which has a name"
    return (
        f"ERR the key is too long: as the name of a topic it may have {names.LONGEST} bytes, of which every byte but "
        "letters, digits, '.', '_' and '-' takes four"
    )
