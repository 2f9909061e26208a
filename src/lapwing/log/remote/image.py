"""The state that the records of a remote log amount to: what `verify` checks, and `restore` writes to a data path."""

from typing import Final

from lapwing import ids, kernel, names
from lapwing.errors import RemoteDamaged
from lapwing.log.datapath import TOPICS
from lapwing.log.remote.record import (
    CheckpointMade,
    FileRemoved,
    FileStored,
    FileWritten,
    JournalEntries,
    LogBegun,
    LogRemoved,
    LogTrimmed,
    Messages,
    Part,
    Record,
    SideRecords,
    SideRemoved,
    Stored,
)
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.records import dataclass

_FRAME_ID: Final = 18  # where the id begins in a frame
_TRIES: Final = 5


@dataclass(slots=True)
class RemoteTopic:
    """A topic, as far as records were applied."""

    log_id: str
    node: int
    first: int
    end: int
    messages: int = 0
    bytes: int = 0
    lost: int = 0  # messages that were quarantined or missing where the log came from


class Image:
    """Applies records in order, and refuses one that does not fit. `stored` names the slices that messages lie in."""

    def __init__(self, *, fetch: bool = True) -> None:
        """Without `fetch` the slices are not read: it is known what is in them."""
        self._fetch = fetch
        self.topics: dict[str, RemoteTopic] = {}
        self.stored: dict[str, list[Stored]] = {}
        self.files: set[str] = set()
        self.last: Record | None = None  # that was applied
        self.checkpoint: Record | None = None  # with which it began

    def load(self, remote: RemoteLog) -> None:
        """Apply the newest checkpoint and all records behind it. Raises `RemoteDamaged` or `RemoteFailed`."""
        self.checkpoint = checkpoint = remote.checkpoint()
        for part in checkpoint.parts if checkpoint is not None else ():
            self._apply(part, remote)
        start, previous = (checkpoint.index + 1, checkpoint.previous) if checkpoint is not None else (1, "")
        for record in remote.read(start, previous):
            for part in record.parts:
                self._apply(part, remote)
            self.last = record

    def _apply(self, part: Part, remote: RemoteLog) -> None:
        match part:
            case LogBegun():
                if not names.valid(part.topic):
                    raise RemoteDamaged(f"{part.topic!r} is no name of a topic")
                self.topics[part.topic] = RemoteTopic(part.log_id, part.node, part.first, part.first)
                self.stored[part.topic] = []
                self._begin(part)
            case Stored():
                self._add_stored(part, remote)
            case Messages():
                self._check(part)
                self._add(part)
            case JournalEntries():
                self._topic(part)
                self._add_entries(part)
            case SideRecords() | SideRemoved():
                self._topic(part)
                if not names.valid(part.channel):
                    raise RemoteDamaged(f"{part.channel!r} is no name of a channel")
                if isinstance(part, SideRecords):
                    self._add_side(part)
                else:
                    self._remove_side(part)
            case FileWritten() | FileStored() | FileRemoved():
                self._apply_file(part, remote)
            case LogTrimmed():
                self._trimmed(part)
            case LogRemoved():
                self._topic(part)
                self._remove_log(part)
                del self.topics[part.topic], self.stored[part.topic]
            case CheckpointMade():
                pass

    def _apply_file(self, part: FileWritten | FileStored | FileRemoved, remote: RemoteLog) -> None:
        steps = part.path.split("/")
        if not all(steps) or {".", "..", TOPICS} & set(steps) or "\0" in part.path:
            raise RemoteDamaged(f"{part.path!r} is no file of a data path")
        match part:
            case FileRemoved():
                self._remove(part)
            case FileWritten():
                self._write(part)
            case FileStored() if self._fetch:
                match remote.slice(part.name):
                    case (FileWritten() as inner,) if inner.path == part.path:
                        self._write(inner)
                    case _:
                        raise RemoteDamaged(f"{part.path}: {part.name} does not hold it")
            case FileStored():
                self._store(part)

    def _trimmed(self, part: LogTrimmed) -> None:
        known = self._topic(part)
        if part.first > known.end:
            raise RemoteDamaged(f"{part.topic}: trimmed up to {part.first}, and it ends at {known.end}")
        self.stored[part.topic] = [each for each in self.stored[part.topic] if each.end > part.first]
        self._trim(part)

    def _add_stored(self, part: Stored, remote: RemoteLog) -> None:
        known = self._topic(part)
        if self._fetch:
            for inner in remote.slice(part.name):
                self._apply(inner, remote)
        elif known.end == part.first:
            known.end = part.end
        if known.end != part.end:
            raise RemoteDamaged(f"{part.topic}: {part.name} does not hold [{part.first}, {part.end})")
        self.stored[part.topic].append(part)

    def _topic(
        self, part: Stored | Messages | JournalEntries | SideRecords | SideRemoved | LogTrimmed | LogRemoved
    ) -> RemoteTopic:
        known = self.topics.get(part.topic)
        if known is None or known.log_id != part.log_id:
            raise RemoteDamaged(f"{part.topic}: a part of the log {part.log_id}, which has not begun")
        return known

    def _check(self, part: Messages) -> None:
        """Compare messages with what the log has to continue with. Raises `RemoteDamaged`."""
        known = self._topic(part)
        if part.first != known.end:
            raise RemoteDamaged(f"{part.topic}: messages from {part.first} on, {known.end} would be next")
        if part.frames:
            places, end = kernel.scan_frames(part.frames, 0, len(part.frames))
            if len(places) - 1 != part.count or end != len(part.frames):
                raise RemoteDamaged(f"{part.topic}: {len(places) - 1} messages from {part.first} on, not {part.count}")
            for place, sequence in ((places[0], part.first), (places[-2], part.first + part.count - 1)):
                found = part.frames[place + _FRAME_ID : place + _FRAME_ID + ids.LENGTH]
                if found != ids.encode(known.node, sequence):
                    raise RemoteDamaged(f"{part.topic}: a message has the id {found!r}, its sequence is {sequence}")
            known.messages += part.count
            known.bytes += len(part.frames)
        else:
            known.lost += part.count
        known.end += part.count

    # --- what a subclass does with it --------------------------------------------------------------------------

    def _begin(self, part: LogBegun) -> None:
        """Begin the log of a topic; a former one is gone."""

    def _add(self, part: Messages) -> None:
        """Add messages to a log."""

    def _add_entries(self, part: JournalEntries) -> None:
        """Add a record to a journal."""

    def _add_side(self, part: SideRecords) -> None:
        """Add records to a side log."""

    def _remove_side(self, part: SideRemoved) -> None:
        """Remove a side log."""

    def _write(self, part: FileWritten) -> None:
        """Write a file."""
        self.files.add(part.path)

    def _store(self, part: FileStored) -> None:
        """Note a file that is in a slice."""
        self.files.add(part.path)

    def _remove(self, part: FileRemoved) -> None:
        """Remove a file."""
        self.files.discard(part.path)

    def _trim(self, part: LogTrimmed) -> None:
        """Drop messages that nobody needs."""

    def _remove_log(self, part: LogRemoved) -> None:
        """Remove a log, with its journal and its side logs."""


def loaded(remote: RemoteLog) -> Image:
    """Return the image of a remote log, which its owner may be using. Raises `RemoteDamaged` or `RemoteFailed`."""
    tries = 0
    while True:
        image = Image()
        try:
            image.load(remote)
            return image
        except RemoteDamaged:
            tries += 1
            if tries == _TRIES or not superseded(image, remote):
                raise


def superseded(image: Image, remote: RemoteLog) -> bool:
    """Return whether a checkpoint was made since the image began, so that what is missing may have been deleted."""
    newest = remote.checkpoint()
    return newest is not None and (image.checkpoint is None or newest.nonce != image.checkpoint.nonce)
