"""Errors, by whose fault they are.

LapwingError
├── ProtocolError   the peer broke the protocol: answer its code, hang up
├── HangUp          the peer is not worth an answer: close the connection
├── CommandFailed   a lawful command could not be done: answer, keep the connection
│   ├── NotInFlight     nobody holds the message
│   └── NotOwner        another consumer holds it
├── LogError        the disk refuses, or disagrees with what we wrote
│   ├── CorruptChunk    bytes that do not match their checksum, with path and offset
│   ├── ReadFailed      the disk did not return bytes, so nothing is known of them: retry
│   ├── WriteFailed     the disk refused an append, a sync or a roll
│   ├── OutOfRange      sequences that the log no longer, or does not yet, hold
│   └── DataPathInUse   another process holds the data path
├── RemoteError     a remote log
│   ├── RemoteFailed    its engine refused or did not answer: what was asked may have been done
│   ├── Fenced          another process has claimed it
│   ├── NotReleased     its last owner may still use it
│   └── RemoteDamaged   something in it is missing, or does not match its checksum
├── BrokerError     the broker cannot do what was asked, and nothing is broken
│   ├── NoSuchTopic, NoSuchChannel
│   ├── Exiting         being deleted, or shutting down
│   ├── TooManyConsumers
│   ├── NoSuchHolder    no consumer of that name
│   ├── LimitReached    as many topics or channels as the operator allows
│   ├── OutOfMemory     the process holds as much memory as the operator allows
│   ├── NotReplicated   the remote log takes nothing now
│   ├── Draining        the node takes no new messages
│   ├── ChannelFull     a channel has all the messages it may have
│   ├── MessageTooBig   a body above the topic's limit
│   ├── SettingRefused  a setting or policy that is unknown, malformed or contradicts another
│   ├── NotSaved        a change that the catalog could not take
│   └── CursorConflict  a commit that would go back, or names another log
├── PublishRefused  a batch whose content is wrong, with the place and the reason
└── ConfigError     the operator asked for the impossible: one line, exit 2
"""


class LapwingError(Exception):
    """The root of all that lapwing raises on purpose."""


class ProtocolError(LapwingError):
    """The peer broke the protocol: answer `code text` and hang up.

    `text` may hold raw bytes of the peer, decoded as latin-1 by whoever raises; `payload` gives them back.
    """

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text

    @property
    def payload(self) -> bytes:
        """The bytes of the error frame."""
        return str(self).encode("latin-1", "replace")


class HangUp(LapwingError):
    """The peer is not worth an answer: close the connection without one."""


class CommandFailed(LapwingError):
    """A lawful command could not be done; the connection stays open."""


class NotInFlight(CommandFailed):
    """Nobody holds the message."""

    def __init__(self) -> None:
        super().__init__("ID not in flight")


class NotOwner(CommandFailed):
    """Another consumer holds the message."""

    def __init__(self) -> None:
        super().__init__("client does not own message")


class LogError(LapwingError):
    """The disk refuses, or disagrees with what we wrote."""


class CorruptChunk(LogError):
    """Bytes that do not match their checksum."""

    def __init__(self, path: str, offset: int, seen: str) -> None:
        super().__init__(f"{path}: corrupt chunk at offset {offset}: {seen}")
        self.path = path
        self.offset = offset


class ReadFailed(LogError):
    """The disk did not return the bytes at `offset`: they may be sound, so nothing may be skipped, cut or deleted."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        super().__init__(f"{path}: cannot be read: {error.strerror or error}")
        self.path = path
        self.offset = offset
        self.errno = error.errno


class WriteFailed(LogError):
    """The disk refused an append, a sync or a roll; nothing of the batch was acknowledged."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        super().__init__(f"{path}: write at offset {offset} failed: {error.strerror or error}")
        self.path = path
        self.offset = offset
        self.errno = error.errno


class OutOfRange(LogError):
    """Sequences that the log no longer, or does not yet, hold."""


class DataPathInUse(LogError):
    """Another process holds the data path."""


class RemoteError(LapwingError):
    """A remote log cannot be used, or not by this process."""


class RemoteFailed(RemoteError):
    """The engine refused or did not answer. What it was asked to write may be there or not."""


class Fenced(RemoteError):
    """Another process has claimed the remote log; this one must not acknowledge anything any more."""

    def __init__(self, place: str, owner: str, epoch: int) -> None:
        super().__init__(f"{place}: taken over by {owner} (epoch {epoch})")
        self.owner = owner
        self.epoch = epoch


class NotReleased(RemoteError):
    """The last owner of the remote log has not released it, so it may still be running."""

    def __init__(self, place: str, owner: str, since: str) -> None:
        super().__init__(f"{place}: {owner} has it since {since} and has not released it")
        self.owner = owner


class RemoteDamaged(RemoteError):
    """Something in the remote log is missing, does not match its checksum, or is of a later version."""


class BrokerError(LapwingError):
    """The broker cannot do what was asked, and nothing is broken."""


class NoSuchTopic(BrokerError):
    """No topic of that name."""


class NoSuchChannel(BrokerError):
    """No channel of that name on the topic."""


class Exiting(BrokerError):
    """The topic or channel is being deleted, or the broker shuts down."""

    def __init__(self) -> None:
        super().__init__("exiting")


class TooManyConsumers(BrokerError):
    """The channel has all the consumers it may have."""


class LimitReached(BrokerError):
    """A limit on topics or channels that the operator has set is reached."""

    def __init__(self, noun: str, limit: int, *, where: str, flag: str) -> None:
        super().__init__(f"{where} has {limit} {noun}, as many as {flag} allows")
        self.noun = noun  # `topics` or `channels`
        self.limit = limit


class OutOfMemory(BrokerError):
    """The process holds as much memory as the operator allows, so it takes no new messages."""


class NoSuchHolder(BrokerError):
    """No consumer of that name."""


class NotReplicated(BrokerError):
    """The remote log does not take anything now; what was published before may arrive there or not."""


class Draining(BrokerError):
    """The node takes no new messages."""

    def __init__(self) -> None:
        super().__init__("this node is draining and takes no new messages: publish to another one")


class ChannelFull(BrokerError):
    """A channel has all the messages it may have."""


class MessageTooBig(BrokerError):
    """A body above the topic's limit."""


class SettingRefused(BrokerError):
    """A setting or policy that is unknown, malformed or contradicts another; the text is one whole sentence."""


class NotSaved(BrokerError):
    """A change that was not made because the catalog could not be written."""


class CursorConflict(BrokerError):
    """A commit that would move a cursor back, or that names another log."""


class PublishRefused(LapwingError):
    """A batch whose content is wrong; `code` and `index` are the reason and the place (see `kernel.pure`)."""

    def __init__(self, code: int, index: int, value: int) -> None:
        super().__init__(f"message {index}: problem {code} ({value})")
        self.code = code
        self.index = index
        self.value = value


class ConfigError(LapwingError):
    """The operator asked for the impossible: one line, exit 2."""
