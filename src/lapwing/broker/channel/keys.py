"""Order and fairness by key: which keys have messages that wait, which are blocked, and whose turn it is.

A message of a key is *out* from its delivery until it is finished or dead; with `fair` or a limit alone, while it is in
flight. A key that has as many messages out as it may is blocked. Of any other key the lowest sequence goes next that
waits: to be delivered again (READY in the ledger), or for the first time (AHEAD).

All of this is derived: from the ledger, which knows where a message is, from `PassedBy`, which has those that the
cursor passed by, and from the keys that messages have. A restart, a seek or a change of settings has it derived
again, in steps. `setup.py` compiles this module as `_keys`, with the types of `_keys.pxd`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.channel.ledger import Ready, State
from lapwing.broker.channel.message_keys import MessageKeys
from lapwing.broker.channel.passed_by import PassedBy
from lapwing.errors import OutOfRange

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.ledger import Ledger
    from lapwing.broker.settings.definitions import ChannelSettings
    from lapwing.broker.topic.skips import SkippedRuns
    from lapwing.broker.topic.topic import Topic
    from lapwing.log.segments.reader import Place, Reader

PAGE_BYTES: Final = 256 * 1024  # of messages whose keys are read at a time
KEPT_BYTES: Final = 8 << 20  # of pages on which messages wait that are kept in memory
KEPT_PAGES: Final = 256
LEARNED: Final = 1000  # unfinished messages whose keys are read before others have their turn
MOST_WAITING: Final = 1 << 20  # messages that wait for their key beyond which no more are looked at
MOST_RUNS: Final = 200_000  # runs of messages between them that are passed: each checkpoint saves them
MOST_KEYS: Final = 200_000  # the same for keys
IDLE_KEYS: Final = 20_000  # keys beyond which one is forgotten that has no message out and none that waits


class Key:
    """A key of which a message is out or waits."""

    __slots__ = ("again", "at", "blocked", "credit", "free", "level", "lined", "name", "out", "waiting", "weight")

    def __init__(self, name: bytes | None, weight: int) -> None:
        self.name = name
        self.free = name is None  # messages without a key are never blocked
        self.weight = weight
        self.out = 0  # how many of its messages are out
        self.waiting: array[int] | None = None  # sequences that wait for their first delivery, rising
        self.at = 0  # place of the next one
        self.again: list[int] | None = None  # sequences that wait to be delivered again, rising
        self.lined = False  # whether it stands in the line
        self.blocked = False  # whether it is among the blocked ones
        self.level = 0  # in a fair line: how many of its messages are out, by weight
        self.credit = 0  # in a fair line: how many messages it may deliver before the next key

    def waits(self) -> bool:
        """Return whether one of its messages waits."""
        return self.waiting is not None or bool(self.again)

    def go_out(self) -> None:
        """Count another message that is out."""
        self.out += 1

    def come_in(self) -> None:
        """Count a message less that is out."""
        self.out -= 1

    def block(self) -> None:
        """Note that it is among the blocked ones."""
        self.blocked = True

    def unblock(self) -> None:
        """Note that it is among the blocked ones no longer."""
        self.blocked = False

    def line_up(self, level: int) -> None:
        """Note that it stands in the line, at a level."""
        self.lined, self.level = True, level

    def step_out(self) -> None:
        """Note that it stands in the line no longer."""
        self.lined = False

    def spend_credit(self) -> None:
        """Use up one message of its turn, which begins with as many as its weight."""
        if self.credit <= 0:
            self.credit = self.weight
        self.credit -= 1

    def return_credit(self) -> None:
        """Take back the message of its turn that was used up last."""
        self.credit += 1

    def wait(self, sequence: int) -> None:
        """Have a message wait for its first delivery, behind all others of the key."""
        if self.waiting is None:
            self.waiting = array("q")
        self.waiting.append(sequence)

    def pass_first(self) -> None:
        """Take out the first message that waits for its first delivery."""
        self.at += 1
        waiting = self.waiting
        assert waiting is not None
        if self.at == len(waiting):
            self.waiting = None
            self.at = 0
        elif self.at >= 1024 and self.at * 2 > len(waiting):
            del waiting[: self.at]
            self.at = 0

    def put_back(self, sequence: int) -> None:
        """Have a message wait for its first delivery, in its place."""
        if self.waiting is None:
            self.waiting = array("q")
        self.waiting.insert(bisect_left(self.waiting, sequence, self.at), sequence)

    def returns(self, sequence: int) -> None:
        """Have a message wait to be delivered again."""
        if self.again is None:
            self.again = []
        insort(self.again, sequence)

    def withdraw(self, sequence: int) -> bool:
        """Take out a message that waits to be delivered again; return whether it was here."""
        again = self.again
        if again:
            at = bisect_left(again, sequence)
            if at < len(again) and again[at] == sequence:
                del again[at]
                return True
        return False


class Line:
    """The keys that may deliver: who came first goes first."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: deque[Key] = deque()  # with some that have left it since

    def push(self, key: Key) -> None:
        """Put a key at the end."""
        key.line_up(0)
        self._keys.append(key)

    def pop(self) -> Key | None:
        """Take out the first one."""
        while self._keys:
            key = self._keys.popleft()
            if key.lined:
                key.step_out()
                return key
        return None

    def leave(self, key: Key) -> None:
        """Take out a key, wherever it stands."""
        key.step_out()

    def move(self, key: Key) -> None:
        """Note that another number of messages of a key is out."""

    def back(self, key: Key) -> None:
        """Put a key back that has delivered and may deliver again."""
        self.push(key)

    def put_first(self, key: Key) -> None:
        """Put a key back that was taken out and has not delivered."""
        key.line_up(0)
        self._keys.appendleft(key)


class FairLine(Line):
    """The keys that may deliver, by how many of their messages are out: who has fewest, for its weight, goes first.

    Keys of one level take turns; at each turn a key delivers as many messages as its weight.
    """

    __slots__ = ("_heap", "_levels")

    def __init__(self) -> None:
        super().__init__()
        self._levels: dict[int, OrderedDict[Key, None]] = {}
        self._heap: list[int] = []  # levels that have keys, and some that have none any more

    def push(self, key: Key) -> None:
        """Put a key at the end of its level."""
        level = key.out // key.weight
        key.line_up(level)
        line = self._levels.get(level)
        if line is None:
            line = self._levels[level] = OrderedDict()
            heappush(self._heap, level)
        line[key] = None

    def pop(self) -> Key | None:
        """Take out the first one of the lowest level."""
        heap = self._heap
        while heap:
            line = self._levels[heap[0]]
            if line:
                key = line.popitem(last=False)[0]
                key.step_out()
                key.spend_credit()
                return key
            del self._levels[heappop(heap)]
        return None

    def leave(self, key: Key) -> None:
        """Take out a key, wherever it stands."""
        if key.lined:
            key.step_out()
            del self._levels[key.level][key]

    def move(self, key: Key) -> None:
        """Note that another number of messages of a key is out."""
        if key.out // key.weight != key.level:
            self.leave(key)
            self.push(key)

    def back(self, key: Key) -> None:
        """Put a key back: at the end of its level, or before all others while it has credit."""
        self.push(key)
        if key.credit > 0:
            self._levels[key.level].move_to_end(key, last=False)

    def put_first(self, key: Key) -> None:
        """Put a key back that was taken out and has not delivered."""
        key.return_credit()
        self.back(key)


class KeyedReady(Ready):
    """The messages that wait to be delivered again, of a channel that delivers by key: `Keys` notes each."""

    def __init__(self, keys: Keys, before: Ready) -> None:
        super().__init__()
        self._keys = keys
        super().append(before, behind=0)

    def append(self, sequences: Iterable[int], *, behind: int) -> None:
        """Queue messages behind all others, until the cursor has reached `behind`."""
        some = list(sequences)
        super().append(some, behind=behind)
        self._keys.wait_again(some, behind)

    def prepend(self, sequences: Sequence[int]) -> None:
        """Queue messages before all others, in the order given."""
        super().prepend(sequences)
        self._keys.wait_again(sequences, 0)

    def merge(self, sequences: Iterable[int]) -> None:
        """Queue rising sequences that were never delivered."""
        super().merge(sequences)
        self._keys.restart()

    def remove(self, sequence: int) -> bool:
        """Take a message out; return whether it was here."""
        there = super().remove(sequence)
        if there:
            self._keys.wait_no_more(sequence)
        return there

    def clear(self) -> None:
        """Take all messages out."""
        super().clear()
        self._keys.restart()


class Page:
    """A block of the log: messages that are looked at together."""

    __slots__ = ("first", "frames", "keys", "positions", "stop", "used")

    def __init__(self, first: int, stop: int, frames: bytes) -> None:
        self.first = first
        self.stop = stop
        self.frames = frames  # none: the range cannot be read
        self.positions, _ = kernel.scan_frames(frames, 0, len(frames))
        self.keys: list[bytes | None] | None = None  # while it is looked at
        self.used = 0  # when it was read from last, in pages

    def name(self, keys: list[bytes | None]) -> None:
        """Note the keys of its messages."""
        self.keys = keys

    def use(self, moment: int) -> None:
        """Note that it is read from."""
        self.used = moment


class Pages:
    """The pages on which messages wait, as many as are kept: most are delivered soon, and not in order."""

    def __init__(self) -> None:
        self.bytes = 0
        self._pages: list[Page] = []  # rising, without overlaps
        self._moment = 0

    def find(self, sequence: int) -> Page | None:
        """Return the page that has a message."""
        pages = self._pages
        low, high = 0, len(pages)
        while low < high:
            middle = (low + high) >> 1
            page = pages[middle]
            if page.stop <= sequence:
                low = middle + 1
            elif page.first > sequence:
                high = middle
            else:
                self._moment += 1
                page.use(self._moment)
                return page
        return None

    def add(self, page: Page) -> None:
        """Keep a page; drop those that were not read from for longest, where they are too many."""
        pages = self._pages
        self._moment += 1
        page.use(self._moment)
        if pages and pages[-1].stop > page.first:
            pages = [each for each in pages if each.stop <= page.first or each.first >= page.stop]
            pages = sorted([*pages, page], key=_first)
            self._have(pages)
        else:
            pages.append(page)
            self.bytes += len(page.frames)
        if self.bytes > KEPT_BYTES or len(pages) > KEPT_PAGES:
            oldest = sorted([each.used for each in pages])[len(pages) // 4]
            self._have([each for each in pages if each.used > oldest])

    def _have(self, pages: list[Page]) -> None:
        self._pages = pages
        self.bytes = sum([len(each.frames) for each in pages])

    def shed(self) -> None:
        """Drop all pages; they are read again when needed."""
        self._have([])


def _first(page: Page) -> int:
    return page.first


class Keys:
    """The keys of one channel; a channel that does not deliver by key has no such object."""

    def __init__(self, settings: ChannelSettings, ledger: Ledger, skips: SkippedRuns) -> None:
        self.passed = PassedBy(skips)
        self.ordered = settings.order == "key"
        self.fair = settings.fair
        self.most = 1 if self.ordered else settings.max_in_flight_per_key  # messages of a key out; 0: no limit
        self.blocked: dict[Key, int] = {}  # keys whose messages wait and may not go, the longest first; since when, ns
        self.now = 0
        self._ledger = ledger
        self._names = MessageKeys(settings.key_from)
        self._weights = settings.key_weights
        self._line: Line = FairLine() if self.fair else Line()
        self._keys: dict[bytes, Key] = {}
        self._keyless = Key(None, 1)
        self._key_of: dict[int, Key] = {}  # of messages that are out or wait to be delivered again
        self._resting: dict[int, bytes | None] = {}  # deferred messages that are not out, and the names of their keys
        self._unread: dict[int, int] = {}  # unfinished messages whose key is to be read: what they wait behind
        self._behind: deque[tuple[int, Key]] = deque()  # keys that stand in line once so far was looked
        self._stale = True  # whether all of this is to be derived again
        self._backlog_end = -1  # of what waited when the looking began; -1: it has not
        self._reader: Reader | None = None
        self._page: Page | None = None  # that was looked at last
        self._place: Place | None = None  # where the log continues behind it
        self._pages = Pages()

    # --- what the ledger reports -----------------------------------------------------------------------------------

    def wait_again(self, sequences: Sequence[int], behind: int) -> None:
        """Note that messages wait to be delivered again, once the messages below `behind` were looked at."""
        if self._stale:
            return
        for sequence in sequences:
            key = self._key_of.get(sequence)
            if key is not None:
                key.come_in()
            elif sequence in self._resting:
                key = self._key_of[sequence] = self._key(self._resting.pop(sequence))
            else:
                self._unread[sequence] = behind
                continue
            self._return(key, sequence, behind)

    def _return(self, key: Key, sequence: int, behind: int) -> None:
        key.returns(sequence)
        if behind > self.passed.position and not key.lined:
            if key.blocked and self.may_deliver(key):
                self._unblock(key)
            self._behind.append((behind, key))
        else:
            self._put(key)

    def wait_no_more(self, sequence: int) -> None:
        """Note that a message waits to be delivered again no more: it is out, or is going to leave."""
        key = self._key_of.get(sequence)
        if key is not None and key.withdraw(sequence):
            key.go_out()
            self._put(key)

    def leave(self, sequences: Iterable[int]) -> None:
        """Note that messages are finished, or nowhere any more."""
        key_of = self._key_of
        for sequence in sequences:
            key = key_of.pop(sequence, None)
            if key is not None:
                if not (key.again and key.withdraw(sequence)):
                    key.come_in()
                self._put(key)
            else:
                self._unread.pop(sequence, None)
                self._resting.pop(sequence, None)

    def put_off(self, sequences: Iterable[int]) -> None:
        """Note that messages that were out are deferred: they stay out only if they failed and keys are ordered."""
        attempts = self._ledger.attempts
        for sequence in sequences:
            if self.ordered and attempts.get(sequence, 1):
                continue
            key = self._key_of.pop(sequence, None)
            if key is not None:
                key.come_in()
                self._resting[sequence] = key.name
                self._put(key)

    def moved(self, sequence: int) -> None:
        """Note that a message has another place in the ledger, where it is out."""
        if self._stale or sequence in self._key_of:
            return
        if sequence in self._resting:
            key = self._key_of[sequence] = self._key(self._resting.pop(sequence))
            key.go_out()
            self._put(key)
        else:
            self._unread[sequence] = 0

    def restart(self) -> None:
        """Have everything derived again: the cursor or the messages are elsewhere."""
        if not self._stale:
            self._stale = True
            self._line = FairLine() if self.fair else Line()
            self._keys.clear()
            self._keyless = Key(None, 1)
            for each in (self._key_of, self._resting, self._unread, self._behind, self.blocked):
                each.clear()
            self._backlog_end = -1
            self.shed()

    # --- keys ------------------------------------------------------------------------------------------------------

    def _key(self, name: bytes | None) -> Key:
        if name is None:
            return self._keyless
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key(name, self._weight(name) if self._weights else 1)
        return key

    def _weight(self, name: bytes) -> int:
        text = name.decode("utf-8", "replace")
        return next((weight for pattern, weight in self._weights if fnmatchcase(text, pattern)), 1)

    def may_deliver(self, key: Key) -> bool:
        """Return whether a key is not blocked."""
        return key.free or not self.most or key.out < self.most

    def _unblock(self, key: Key) -> None:
        key.unblock()
        del self.blocked[key]

    def _put(self, key: Key) -> None:
        """Put a key where it belongs: into the line, among the blocked ones, or nowhere."""
        waits, may = key.waits(), self.may_deliver(key)
        if key.blocked and (may or not waits):
            self._unblock(key)
        if waits and may:
            if key.lined:
                self._line.move(key)
            else:
                self._line.push(key)
            return
        if key.lined:
            self._line.leave(key)
        if waits:
            if not key.blocked:
                key.block()
                self.blocked[key] = self.now
            return
        if not key.out and not key.free and len(self._keys) > IDLE_KEYS:
            self._keys.pop(key.name, None)  # type: ignore[arg-type]

    # --- learning keys of unfinished messages ----------------------------------------------------------------------

    def learn(self, channel: Channel) -> bool:
        """Read the keys of some unfinished messages; return whether all are known. Raises `ReadFailed`."""
        ledger, unread = self._ledger, self._unread
        if self._stale:
            self.passed.look_again()
            self._stale = False
            unread.update((each, each) for each in ledger.in_flight_or_ready())  # behind lower ones of its key
            if self.ordered:
                deliveries = ledger.deliveries
                unread.update((each, 0) for each in ledger.deferred.sequences() if deliveries(each))
        if not unread:
            return True
        for sequence in sorted(islice(unread, LEARNED)):
            self._learn(channel, sequence)
            unread.pop(sequence, None)
        return not unread

    def _learn(self, channel: Channel, sequence: int) -> None:
        ledger = self._ledger
        state = ledger.state_of(sequence)
        if state is None or sequence in self._key_of:
            return
        if state is State.DEFERRED and not (self.ordered and ledger.deliveries(sequence)):
            return
        if channel.cursor <= sequence < channel.overlap and sequence not in channel.ahead:
            return  # it is delivered again from the log, and changes hands
        key = self._key(self._name_of(channel, sequence))
        self._key_of[sequence] = key
        if state is State.READY:
            self._return(key, sequence, self._unread.get(sequence, 0))
        else:
            key.go_out()
            self._put(key)

    def _name_of(self, channel: Channel, sequence: int) -> bytes | None:
        """Return the key of one unfinished message. Raises `ReadFailed`."""
        if channel.is_gone(sequence):
            return None
        rows = b""
        if sequence in channel.side_logged.sequences:
            frame = channel.headed_frame(sequence)
            if frame is None:
                return None
            frame, headers = kernel.strip_headers(frame)
            rows = b"[0,0,%b]" % headers if headers else b""
        else:
            if self._names.from_headers:
                rows = channel.topic.log.rows(sequence, sequence + 1)
            frame = channel.frame(sequence)
            if frame is None:
                return None
        return self._names.of_one(frame, rows)

    def claimable(self, channel: Channel, sequences: Iterable[int]) -> list[int]:
        """Return those messages that may be out without another of their key. Raises `ReadFailed`."""
        while not self.learn(channel):
            pass
        ledger, found = self._ledger, list(sequences)
        if not self.most:
            return found
        more: dict[Key, int] = {}
        allowed: list[int] = []
        for sequence in found:
            key = self._key_of.get(sequence)
            if key is None and sequence in ledger:
                key = self._key(self._name_of(channel, sequence))
            if key is not None and not key.free and ledger.holder_of(sequence) is None:
                itself = sequence in self._key_of and sequence not in ledger.ready
                if key.out - itself + more.get(key, 0) >= self.most:
                    continue
                more[key] = more.get(key, 0) + 1
            allowed.append(sequence)
        return allowed

    # --- choosing --------------------------------------------------------------------------------------------------

    def pick(self, most: int) -> tuple[list[int], int]:
        """Take up to `most` messages whose turn it is, for their first delivery: they are out from now on.

        It ends before a message that is to be delivered again; that is the second value, else -1. The caller delivers
        it first, or calls `pick_again` if it could not.
        """
        if self._behind:
            self.reach()
        fresh: list[int] = []
        while len(fresh) < most:
            key = self._line.pop()
            if key is None:
                break
            if not self.may_deliver(key):
                self._put(key)
                continue
            waiting, again = key.waiting, key.again
            following = waiting[key.at] if waiting is not None and key.at < len(waiting) else -1
            if again and (following < 0 or again[0] < following):
                if fresh:
                    self._line.put_first(key)
                    break
                return fresh, again[0]
            if following >= 0:
                key.pass_first()
                if self.passed.take(following):
                    key.go_out()
                    self._key_of[following] = key
                    fresh.append(following)
            if key.waits() and self.may_deliver(key):
                self._line.back(key)
            else:
                self._put(key)
        return fresh, -1

    def pick_again(self, sequence: int) -> None:
        """Have the key of a message stand in line: the message was picked to be delivered again, and was not."""
        key = self._key_of.get(sequence)
        if key is not None:
            self._put(key)

    def put_back(self, sequences: Iterable[int]) -> None:
        """Have messages wait for their first delivery again: they were picked, and could not be delivered."""
        for sequence in sequences:
            key = self._key_of.pop(sequence)
            key.come_in()
            key.put_back(sequence)
            self.passed.put_back(sequence)
            self._put(key)

    def reach(self) -> bool:
        """Put those keys in line that waited until so far was looked; return whether there were any."""
        position, full, reached = self.passed.position, self.full, False
        while self._behind and (full or self._behind[0][0] <= position):
            key = self._behind.popleft()[1]
            if key.free or self._keys.get(key.name) is key:  # type: ignore[arg-type]
                self._put(key)
                reached = True
        return reached

    # --- looking at the log ----------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so many messages wait that no more are looked at."""
        passed = self.passed
        return (
            passed.waiting >= MOST_WAITING
            or passed.most_runs >= MOST_RUNS
            or len(self._keys) - len(self._key_of) >= MOST_KEYS
        )

    def catches_up(self, topic: Topic) -> bool:
        """Return whether some of the backlog was not looked at that was there when the looking began.

        Until then a key with a long backlog would be delivered although others wait behind it.
        """
        if self._backlog_end < 0:
            self._backlog_end = topic.fanned_out
        return self.passed.position < self._backlog_end and not self.full

    def look(self, topic: Topic, cursor: int, most: int, budget: int) -> tuple[list[int], bytes, int]:
        """Look at the next messages of the log: take up to `most` that may be delivered at once, the others wait.

        Return the former and their frames; they are out from now on. `budget` is how many messages are looked at at
        most; what is left of it comes third. Raises `ReadFailed`.
        """
        sequences: list[int] = []
        parts: list[bytes] = []
        try:
            budget = self._look(topic, cursor, most, budget, sequences, parts)
        except BaseException:
            self.put_back(sequences)
            raise
        return sequences, parts[0] if len(parts) == 1 else b"".join(parts), budget

    def _look(
        self, topic: Topic, cursor: int, most: int, budget: int, sequences: list[int], parts: list[bytes]
    ) -> int:
        passed, deleted = self.passed, topic.deleted
        position = passed.look_from(cursor)
        while budget > 0 and (len(sequences) < most or self.fair) and not self.full:
            stop = topic.fanned_out
            beyond = passed.skip_at(position)
            if deleted.total:
                beyond = max(beyond, min(deleted.jump(position), stop))
            if beyond > position:
                passed.looked_until(beyond)
                position = beyond
                continue
            if position >= stop:
                break
            before = position
            page = self._page
            if page is None or not page.first <= position < page.stop:
                page = self._load(topic, position, stop)
            room = min(budget, MOST_WAITING - passed.waiting, 2 * (MOST_RUNS - passed.most_runs))
            stop = min(page.stop, passed.clear_beyond(position, stop), position + room)
            if deleted.total:
                stop = deleted.clear_until(position, stop)
            position = self._look_at(page, position, stop, most, sequences, parts) if page.frames else page.stop
            budget -= position - before
            passed.looked_until(position)
        return budget

    def _look_at(
        self, page: Page, start: int, stop: int, most: int, sequences: list[int], parts: list[bytes]
    ) -> int:
        """Look at [start, stop) of a page; return where it ended."""
        first, names, positions, frames = page.first, page.keys, page.positions, page.frames
        assert names is not None
        keys, key_of = self._keys, self._key_of
        fair, limit = self.fair, self.most
        waiting: list[int] = []
        begun = -1  # place of the first of a run that is delivered
        place = start - first
        end = stop - first
        count = len(sequences)
        while place < end:
            name = names[place]
            if name is None:
                key = self._keyless
            else:
                key = keys.get(name)  # type: ignore[assignment]
                if key is None:
                    key = self._key(name)
            if fair or (not key.free and ((limit and key.out >= limit) or key.waits())):
                if begun >= 0:
                    parts.append(frames[positions[begun] : positions[place]])
                    begun = -1
                first_one = not key.waits()
                sequence = first + place
                key.wait(sequence)
                waiting.append(sequence)
                if first_one:
                    self._put(key)
            else:
                if count >= most:
                    break
                key.go_out()
                sequence = first + place
                key_of[sequence] = key
                sequences.append(sequence)
                count += 1
                if begun < 0:
                    begun = place
            place += 1
        if begun >= 0:
            parts.append(frames[positions[begun] : positions[place]])
        if waiting:
            self.passed.wait(waiting)
            if self._pages.find(waiting[0]) is None:
                self._keep(page)
        return first + place

    def _load(self, topic: Topic, sequence: int, end: int) -> Page:
        """Read the page of a message below `end` that is to be looked at; one without frames cannot be read."""
        log, before = topic.log, self._page
        if self._reader is None:
            self._reader = log.reader(sequence)
        place = self._place if before is not None and before.stop == sequence else None
        try:
            first, stop, frames, self._place = log.load(sequence, place, PAGE_BYTES)
        except OutOfRange:  # the log was cut there
            return Page(sequence, min(max(log.first, sequence + 1), end), b"")
        page = self._page = Page(first, stop, frames or b"")
        rows = log.rows(first, stop) if self._names.from_headers and frames else b""
        page.name(self._names.of_frames(page.frames, page.positions, first, rows) if frames else [])
        return page

    def shed(self) -> None:
        """Drop what is kept of the log; it is read again when needed."""
        self._page = None
        self._pages.shed()
        if self._reader is not None:
            self._reader.share(self._pages, 0)

    def _keep(self, page: Page) -> None:
        self._pages.add(page)
        assert self._reader is not None
        self._reader.share(self._pages, self._pages.bytes)

    def read(self, topic: Topic, sequences: Sequence[int]) -> list[bytes]:
        """Return the frames of rising messages that were passed by; none for one that is lost. Raises `ReadFailed`."""
        found: list[bytes] = []
        page: Page | None = None
        for sequence in sequences:
            if page is None or not page.first <= sequence < page.stop:
                page = self._pages.find(sequence)
                if page is None:
                    try:
                        first, stop, frames, _ = topic.log.load(sequence, None, PAGE_BYTES)
                    except OutOfRange:
                        found.append(b"")
                        continue
                    page = Page(first, stop, frames or b"")
                    self._keep(page)
            if page.frames:
                place = sequence - page.first
                found.append(page.frames[page.positions[place] : page.positions[place + 1]])
            else:
                found.append(b"")
        return found
