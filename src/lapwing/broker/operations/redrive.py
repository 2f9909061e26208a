"""Redrive: return dead letters to the channels that gave them up; publish them again; or purge them.

A redrive is a task of one dead-letter topic, worked off in steps. Its state is a note of the channel `dead` in the
journal of that topic, and is written with what the channel has finished: a task continues after a restart where it was.

A step first makes the messages unfinished in their channels, notes there which letters they come from, and writes that
journal; then it finishes the letters and writes their journal. After a crash in between, the notes show which letters
are still to be finished. So no message is lost, and none is returned twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from lapwing import durations, kernel
from lapwing.broker.channel.delivery_limits import TokenBucket
from lapwing.broker.failures import dead_letter_view, dead_letters, overflow
from lapwing.broker.failures.dead_filter import DeadFilter
from lapwing.broker.failures.dead_letter_view import DeadLetter
from lapwing.broker.keeper import checkpoint
from lapwing.broker.operations import seek
from lapwing.broker.operations.redrive_task import CANCELLED, DONE, NOWHERE, RUNNING, TOPIC, RedriveTask
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings import times
from lapwing.broker.settings.definitions import Rate
from lapwing.broker.topic import batch
from lapwing.broker.topic.receipt import CallReceipt
from lapwing.broker.topic.skips import runs_of
from lapwing.errors import ChannelFull, CorruptChunk, LapwingError, LogError, OutOfRange, SettingRefused
from lapwing.log.log import Extra
from lapwing.log.segments.attributes import Rows
from lapwing.log.segments.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.topic import Topic

STEP: Final = 200  # letters looked at in one step, at least
_SPREAD: Final = 100  # one more for so many finished runs, as a step writes all of them
_MOST_STEP: Final = 2000
_RETRY: Final = 1_000_000_000  # ns before a step that the disk refused is tried again
_SETTLING: Final = 5_000_000  # ns between two looks at whether publishes are synced
_SMOOTH: Final = 100_000_000  # ns; a rate is kept over this time
_FROM: Final = "dead-redriven"  # header of a message that was published again: log and sequence of its letter


class _NoRoom(LapwingError):
    """A channel would shed more letters than those that are `done`."""

    def __init__(self, channel: Channel, done: list[int]) -> None:
        settings = channel.effective
        super().__init__(
            f"channel {channel.topic.name}/{channel.name} holds max_depth {settings.max_depth}"
            f"{' with its deferred messages' if len(channel.ledger.deferred) else ''}, and overflow is "
            f"{settings.overflow}: the redrive waits for room"
        )
        self.done = done


class Redrives:
    """All tasks of a broker, by dead-letter topic; the last one of each stays until the next."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.active: dict[str, Topic] = {}  # dead-letter topics whose task runs, by name
        self._buckets: dict[str, TokenBucket] = {}
        self._again: dict[str, int] = {}  # when a task that had to wait is tried again, ns
        self._settling: dict[str, int] = {}  # publishes of a task that are not written yet
        self._returned: dict[Channel, set[str]] = {}  # notes that can be dropped when letters are finished

    # --- starting and ending -----------------------------------------------------------------------------------

    def start(
        self,
        topic: Topic,
        *,
        to: str,
        wanted: DeadFilter,
        rate: Rate = settings.UNLIMITED,
        limit: int = 0,
        edited: bytes | None = None,
        now: int,
    ) -> RedriveTask:
        """Begin a task. Raises `SettingRefused` when one runs already, or `LogError` when it cannot be saved."""
        channel = topic.channels[dead_letters.CHANNEL]
        link = channel.dead_link()
        running = link.redrive
        if running is not None and running.state == RUNNING:
            raise SettingRefused(f"a redrive of {topic.name} runs already: wait for it, or cancel it first")
        position = channel.side_logged.sequences.lowest()  # of letters that the log may have no more
        position = topic.log.first if position is None else min(position, topic.log.first)
        task = RedriveTask(
            os.urandom(8).hex(), to, wanted, rate, limit, now + self._broker.skew, topic.log.end, position,
            edited=edited,
        )  # fmt: skip
        link.redrive = task
        self._buckets.pop(topic.name, None)
        self._again.pop(topic.name, None)
        try:
            self._save(channel, now=now)
        except LogError:
            link.redrive = running
            raise
        self.active[topic.name] = topic
        return task

    def cancel(self, topic: Topic, *, now: int) -> RedriveTask | None:
        """End the task of a dead-letter topic where it is; return it. Raises `LogError`."""
        channel = topic.channels[dead_letters.CHANNEL]
        task = channel.dead_link().redrive
        if task is not None and task.state == RUNNING:
            task.end(CANCELLED)
            self._save(channel, now=now)
        return task

    def _save(self, channel: Channel, *, now: int, sync: bool = False) -> None:
        channel.save(now=now, sync=sync and self._broker.options.durability == "fsync")

    # --- stepping ----------------------------------------------------------------------------------------------

    def step(self, *, now: int) -> int | None:
        """Take a step of every task; return the time of the next step, ns (`now`: at once), or None without a task."""
        dues = [self._step_of(topic, now) for topic in list(self.active.values())]
        return min((due for due in dues if due is not None), default=None)

    def _step_of(self, topic: Topic, now: int) -> int | None:
        channel = topic.channels.get(dead_letters.CHANNEL)
        task = channel.dead.redrive if channel is not None and channel.dead is not None else None
        if topic.exiting or channel is None or task is None or task.state != RUNNING:
            self.active.pop(topic.name, None)
            return None
        if self._settling.get(topic.name):
            return now + _SETTLING
        if now < self._again.get(topic.name, 0):
            return self._again[topic.name]
        try:
            due = self._step(channel, task, now)
            task.note_problem("")
        except (LapwingError, OSError) as error:
            task.note_problem(str(error))
            due = self._again[topic.name] = now + _RETRY
        return due

    def _step(self, channel: Channel, task: RedriveTask, now: int) -> int:
        step = min(STEP + len(channel.finished_ahead.runs) // _SPREAD, _MOST_STEP)
        most = step if not task.limit else min(step, task.limit - task.redriven)
        if most <= 0:
            return self._end(channel, task, now)
        bucket = None
        if task.rate.count:
            burst = max(task.rate.count * _SMOOTH // task.rate.per, 1)
            bucket = self._buckets.setdefault(channel.topic.name, TokenBucket(task.rate, burst, now=now))
            most = min(most, bucket.available(now))
            if not most:
                return bucket.next_due()
        stop_at = min(task.stop, self._broker.mover.settled_end(channel.topic.log))
        waiting = dead_letter_view.waiting_runs(channel, task.position)
        runs = ((start, min(stop, stop_at)) for start, stop in waiting if start < stop_at)
        found, last, looked = dead_letter_view.letters(
            channel, runs, after=task.position - 1, most=step, wanted=task.wanted, enough=most
        )
        if last < 0:
            if channel.topic.fanned_out < task.stop and channel.topic.paused:
                name = channel.topic.name
                raise LapwingError(f"topic {name} is paused: the redrive waits until somebody unpauses it")
            if stop_at < task.stop:
                return now + _SETTLING
            task.pass_by(task.stop)
            return self._end(channel, task, now)
        free = [letter for letter in found if not letter.held]
        skipped = task.skipped.copy()
        task.skip("held by a consumer", len(found) - len(free))
        done, failed = self._deal(channel, task, free, now)
        if bucket is not None:
            bucket.take(len(done))
        finish(channel, done, now=now)
        if failed is None:
            task.advance(len(done), looked, last + 1)
        else:  # all of them are looked at again, but for those that are done
            task.advance(len(done), len(done), task.position, skipped=skipped)
        self._save(channel, now=now)
        self._forget_returned(channel)
        if failed is not None:
            raise failed
        return now

    def _end(self, channel: Channel, task: RedriveTask, now: int) -> int:
        task.end(DONE)
        self._save(channel, now=now)
        return now

    def _deal(
        self, channel: Channel, task: RedriveTask, found: list[DeadLetter], now: int
    ) -> tuple[list[int], LapwingError | OSError | None]:
        """Return letters to where the task sends them.

        Return the sequences of those that are dealt with, and why the others could not be: what came back to one
        channel must not come back again because the journal of another could not be written.
        """
        if task.to == NOWHERE:
            return [letter.sequence for letter in found], None
        by_origin: dict[tuple[str, str], list[DeadLetter]] = {}
        for letter in found:
            origin = letter.headers.get("dead-topic", ""), letter.headers.get("dead-channel", "")
            by_origin.setdefault(origin, []).append(letter)
        done: list[int] = []
        failed: LapwingError | OSError | None = None
        for (topic, name), some in by_origin.items():
            try:
                if task.to == TOPIC:
                    done += self._publish(channel, task, topic, some, now)
                else:
                    done += self._return(channel, task, topic, name, some, now)
            except _NoRoom as error:
                done += error.done
                failed = error
            except (LapwingError, OSError) as error:
                failed = error
        return done, failed

    # --- back into the channel ---------------------------------------------------------------------------------

    def _return(
        self, dead: Channel, task: RedriveTask, topic: str, name: str, found: list[DeadLetter], now: int
    ) -> list[int]:
        source = self._broker.find(topic)
        channel = source.channels.get(name) if source is not None else None
        if source is None or channel is None:
            what = f"channel {topic}/{name}" if topic else "its origin"
            task.skip(f"{what} does not exist", len(found))
            return []
        same = [letter for letter in found if letter.headers.get("dead-log") == source.log.identity]
        if len(same) < len(found):
            reason = f"topic {topic} was created again since: publish to the topic instead"
            task.skip(reason, len(found) - len(same))
        if not same:
            return []
        usable, kept = _returnable(channel, same, edited=task.edited, now=now)
        task.skipped.update(kept)
        room = overflow.room(channel)
        fitting = usable if room is None else usable[:room]
        done = self._take_back(dead, task, channel, fitting, now) if fitting else []
        if len(fitting) < len(usable):
            raise _NoRoom(channel, done)
        return done

    def _take_back(
        self, dead: Channel, task: RedriveTask, channel: Channel, found: list[DeadLetter], now: int
    ) -> list[int]:
        """Return letters to their channel, and note that in its journal. Raises `LogError`, with no change."""
        returned = return_letters(channel, found, edited=task.edited, now=now)
        sync = self._broker.options.durability == "fsync"
        done = [letter.sequence for letter in found]
        log = dead.topic.log.identity
        key = f"{dead.topic.name} {log}"
        link = channel.dead_link()
        before, bookmark = link.returned.get(key, []), channel.bookmark
        seek.note_returned(channel, [_sequence(channel.topic, letter) for letter in found])
        link.returned[key] = before + done
        self._returned.setdefault(channel, set()).add(key)
        try:
            if len(returned) == len(found) and _saved_as_finished(channel, dead, done):
                checkpoint.save_returned(channel, returned, now=now, sync=sync)
            else:
                channel.save(now=now, sync=sync)
        except LogError:
            channel.finish(returned, now=now)
            link.returned[key], channel.bookmark = before, bookmark
            raise
        channel.counts.redriven += len(returned)
        return done

    def _forget_returned(self, dead: Channel) -> None:
        """Drop the notes of letters that the journal has as finished."""
        key = f"{dead.topic.name} {dead.topic.log.identity}"
        for channel, keys in list(self._returned.items()):
            if key in keys:
                keys.discard(key)
                channel.dead_link().returned.pop(key, None)
                channel.journal_later()
            if not keys:
                del self._returned[channel]

    # --- published again ---------------------------------------------------------------------------------------

    def _publish(self, dead: Channel, task: RedriveTask, name: str, found: list[DeadLetter], now: int) -> list[int]:
        if not name:
            task.skip("its origin does not exist", len(found))
            return []
        topic = self._broker.topic(name)
        found, full = _publishable(topic, task, found)
        if not found:
            return []
        log = dead.topic.log.identity
        if task.marks.get(name, ("", 0))[0] != topic.log.identity:
            task.marks[name] = topic.log.identity, topic.log.end
            self._save(dead, now=now, sync=True)
        bodies = [letter.body if task.edited is None else task.edited for letter in found]
        first = topic.log.next
        extras = [
            Extra(first + index, headers=dead_letters.original(letter.headers) | {_FROM: f"{log} {letter.sequence}"})
            for index, letter in enumerate(found)
        ]
        self._settling[dead.topic.name] = self._settling.get(dead.topic.name, 0) + 1
        task.begin_settling(found[0].sequence)
        receipt = CallReceipt(partial(self._republished, dead, task, topic, [letter.sequence for letter in found]))
        topic.append(batch.of_broker(topic, bodies, batch.rows_of(extras), now=now), receipt, now=now)
        if (bucket := self._buckets.get(dead.topic.name)) is not None:
            bucket.take(len(found))
        if full is not None:
            task.advance(0, len(found), task.position)
            raise full
        return []

    def _republished(
        self, dead: Channel, task: RedriveTask, topic: Topic, done: list[int], _: int, error: LapwingError | None
    ) -> None:
        """Finish letters that were published again, or try them again."""
        self._settling[dead.topic.name] -= 1
        if not self._settling[dead.topic.name]:
            task.end_settling()
        if error is not None:
            task.go_back(done[0], str(error))
            self._again[dead.topic.name] = self._broker.now + _RETRY
            return
        finish(dead, done, now=self._broker.now)
        task.advance(len(done), 0, task.position)
        task.marks[topic.name] = topic.log.identity, topic.log.end
        dead.journal_later()

    # --- after a restart ---------------------------------------------------------------------------------------

    def recover(self, *, now: int) -> None:
        """Finish letters whose messages were returned or published again before a crash.

        Letters in a topic that could not be opened are finished by another call, when it is open.
        """
        for topic in self._broker.topics_in_use():  # a channel that has a link is never cold
            for channel in topic.channels.values():
                link = channel.dead
                if link is None:
                    continue
                for key, done in list(link.returned.items()):
                    if self._finish_returned(key, done, now):
                        del link.returned[key]
                        channel.journal_later()
                if link.redrive is not None:
                    self._recognise(channel, link.redrive, now)
                    if link.redrive.state == RUNNING:
                        self.active[topic.name] = topic

    def _finish_returned(self, key: str, done: list[int], now: int) -> bool:
        """Finish letters that came back, and save that; return whether the note of them is needed no more."""
        name, _, log = key.partition(" ")
        topic = self._broker.find(name)
        if topic is None:
            return name not in self._broker.unopened
        dead = topic.channels.get(dead_letters.CHANNEL)
        if dead is not None and topic.log.identity == log:
            finish(dead, done, now=now)
            try:
                self._save(dead, now=now)
            except LogError as error:
                self._broker.fail(error)
                return False
        return True

    def _recognise(self, dead: Channel, task: RedriveTask, now: int) -> None:
        log = dead.topic.log.identity
        for name, (identity, mark) in task.marks.items():
            topic = self._broker.find(name)
            if topic is None or topic.log.identity != identity:
                continue
            done = []
            for extra in topic.log.extras(max(mark, topic.log.first), topic.log.end):
                source, _, sequence = extra.headers.get(_FROM, "").partition(" ")
                if source == log and sequence.isdigit() and dead_letters.is_served(topic.log, extra.sequence):
                    done.append(int(sequence))
            finish(dead, done, now=now)


def return_letters(channel: Channel, found: list[DeadLetter], *, edited: bytes | None, now: int) -> list[int]:
    """Make messages that a channel gave up ready again in it; return the sequences of those that were not already.

    Where the log no longer has a message, it was deleted there, or its body was edited, now or before an earlier
    redrive, the body goes into the side log. Raises `WriteFailed`.
    """
    topic, ledger = channel.topic, channel.ledger
    kept: list[tuple[int, bytes]] = []
    wanted: dict[int, Mapping[str, str]] = {}
    for letter in found:
        sequence = _sequence(topic, letter)
        there = sequence in ledger or _is_ahead(channel, sequence)
        if there and not channel.is_gone(sequence):
            continue
        if not there:
            wanted[sequence] = letter.headers
        if edited is not None or not _in_log(topic, sequence, letter.body):
            kept.append((sequence, _frame(topic, sequence, letter, edited)))
    if kept:
        channel.side_logged.keep(kept)
    failures = ledger.own_failures()
    for sequence, headers in wanted.items():
        ledger.attempts[sequence] = max(_number(headers, "dead-deliveries"), 0)
        failures.revive(sequence, max(_number(headers, "dead-count"), 1))
        channel.finished_ahead.remove(sequence)
    channel.ahead.merge(runs_of(each for each in wanted if each >= channel.cursor))
    channel.take_back(wanted, now=now)
    return list(wanted)


def _publishable(
    topic: Topic, task: RedriveTask, found: list[DeadLetter]
) -> tuple[list[DeadLetter], ChannelFull | None]:
    """Return the letters that a topic takes now, and why others have to wait. Raises `BrokerError` if all have to.

    Letters that are too large for the topic at any time are skipped.
    """
    admission = topic.admission
    if admission is None:
        return found, None
    sizes = {letter.sequence: len(letter.body if task.edited is None else task.edited) for letter in found}
    usable = [letter for letter in found if sizes[letter.sequence] <= admission.largest()]
    if len(usable) < len(found):
        task.skipped[
            f"larger than the {admission.largest()} bytes that topic {topic.name} takes: raise max_msg_size, or "
            "max_bytes of its channels, or return it to its channel"
        ] += len(found) - len(usable)
    if not usable:
        return [], None
    wanted = [sizes[letter.sequence] for letter in usable]
    try:
        admission.check(len(wanted), sum(wanted), max(wanted))
    except ChannelFull as full:
        count = admission.fitting(wanted)
        if not count:
            raise
        return usable[:count], full
    return usable, None


def _returnable(
    channel: Channel, found: list[DeadLetter], *, edited: bytes | None, now: int
) -> tuple[list[DeadLetter], Counter[str]]:
    """Return the letters that a channel can take back, and how many others stay, by reason. Raises `ReadFailed`.

    A letter stays when its message would be lost: the channel drops what is so old, or the log does not have this
    message (it was lost in a crash after it was copied, and another one may have its sequence).
    """
    topic, ttl = channel.topic, channel.effective.message_ttl
    oldest = now + topic.skew - ttl if ttl else 0
    usable: list[DeadLetter] = []
    kept: Counter[str] = Counter()
    for letter in found:
        sequence = _sequence(topic, letter)
        if _published(letter) < oldest:
            kept[
                f"older than message_ttl {durations.show(ttl)} of channel {topic.name}/{channel.name}: "
                "raise message_ttl, or publish to the topic instead"
            ] += 1
        elif not 0 <= sequence < topic.log.end or not _same_message(topic, sequence, letter):
            kept[f"the log of topic {topic.name} lost the message in a crash: publish to the topic instead"] += 1
        elif edited is not None and len(edited) > topic.effective.max_msg_size:
            kept[
                f"its new body is larger than max_msg_size {topic.effective.max_msg_size} of topic {topic.name}: "
                "shorten it, or raise max_msg_size"
            ] += 1
        elif edited is not None and (_is_ahead(channel, sequence) or sequence in channel.ledger.sequences()):
            kept[
                f"its message is in channel {topic.name}/{channel.name} again: finish it there, or redrive it unchanged"
            ] += 1
        else:
            usable.append(letter)
    return usable, kept


def _saved_as_finished(channel: Channel, dead: Channel, letters: list[int]) -> bool:
    """Return whether the journal of a channel has the messages of these letters as finished, below its cursor."""
    mark = channel.dead_link().mark
    known = mark is not None and (mark.topic, mark.log) == (dead.topic.name, dead.topic.log.identity)
    return known and mark is not None and max(letters) < mark.next and not channel.saved_ahead


def _sequence(topic: Topic, letter: DeadLetter) -> int:
    return topic.sequence_of(letter.headers.get("dead-id", "").encode())


def _is_ahead(channel: Channel, sequence: int) -> bool:
    """Return whether a message waits for its first delivery since the channel was created or moved."""
    if sequence in channel.topic.deleted:
        return False
    finished = sequence in channel.finished_ahead or channel.ahead.has_passed(sequence)
    return sequence >= channel.cursor and not finished


def _same_message(topic: Topic, sequence: int, letter: DeadLetter) -> bool:
    """Return whether the log has no other message at that sequence. Raises `ReadFailed`."""
    try:
        published = time_of(topic.log.frame(sequence))
    except (OutOfRange, CorruptChunk):
        return True  # the letter has all that is left of it
    return published == _published(letter)


def _in_log(topic: Topic, sequence: int, body: bytes) -> bool:
    """Return whether the log has the message with that body, and delivers it."""
    if sequence in topic.deleted:
        return False
    try:
        return topic.log.frame(sequence)[kernel.HEAD :] == body
    except (OutOfRange, CorruptChunk):
        return False


def _frame(topic: Topic, sequence: int, letter: DeadLetter, edited: bytes | None) -> bytes:
    body = letter.body if edited is None else edited
    frame = kernel.frame_one(body, topic.id_base + sequence, _published(letter))
    headers = dead_letters.original(letter.headers)
    return kernel.with_headers(frame, Rows.of([Extra(sequence, headers=headers)]).text) if headers else frame


def _published(letter: DeadLetter) -> int:
    """Return when the message of a letter was published, Unix ns; 0: nobody knows."""
    try:
        return times.parse(letter.headers.get("dead-published", ""))
    except ValueError:
        return 0


def _number(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def finish(channel: Channel, sequences: list[int], *, now: int) -> None:
    """Finish messages of a channel, also those that wait for their first delivery."""
    channel.finish(sequences, now=now)
    fresh = [each for each in sequences if channel.cursor <= each < channel.topic.fanned_out]
    channel.finish_ahead(runs_of(fresh))
    channel.pass_over()
