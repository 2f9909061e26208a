"""Random histories of messages that fail, against a naive model: no message is lost or doubled.

The model knows of each message only whether somebody has still to deal with it. Such a message must be unfinished in
the channel or a letter in the dead-letter topic, and not both; any other must be neither.
"""

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appending import append
from example_counts import examples
from lapwing import ids, kernel
from lapwing.broker.broker import Broker
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.ledger import Holder, Reason
from lapwing.broker.channel.subscription import Window
from lapwing.broker.failures import dead_filter, dead_letter_view
from lapwing.broker.failures.dead_filter import DeadFilter
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.operations import claims, redrive_task, seek
from lapwing.broker.settings import policies
from lapwing.broker.settings.definitions import UNLIMITED, Rate
from lapwing.broker.settings.options import Options
from lapwing.broker.topic import batch
from lapwing.errors import ChannelFull, LapwingError, SettingRefused

MS = 1_000_000
SECOND = 1000 * MS
TIMEOUT = 1 * SECOND
NODE = 5
MEMORY = "/dev/shm"  # the catalog is synced at every change, which a disk would make slow
DEAD = "t.c.dead"
EVERYTHING = DeadFilter()

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.sampled_from([0, 1, 2, 3]),
        "retry_first": st.sampled_from(["0s", "100ms", "2s"]),
        "retry_max": st.just("3s"),
        "max_in_flight": st.sampled_from([0, 1, 3]),
        "rate": st.sampled_from(["", "2/s", "100/s"]),
        "message_ttl": st.sampled_from(["0s", "0s", "3s"]),
        "expired_to_dead": st.booleans(),
        "max_depth": st.sampled_from([0, 0, 4]),
        "overflow": st.sampled_from(["drop-oldest", "dead"]),
    },
)


class Receipt:
    """Every publish succeeds."""

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        assert error is None


RECEIPT = Receipt()


@dataclass
class Consumer:
    """A consumer, and what it was sent and the model has not seen yet."""

    window: Window
    frames: list[bytes] = field(default_factory=list)


class FailureMachine(RuleBasedStateMachine):
    """One topic with one channel and its dead-letter topic; time moves by a rule only."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp(prefix="lapwing-failures-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        self.now = 1_000_000 * MS
        self.bodies: list[bytes] = []
        self.edited: dict[int, bytes] = {}
        self.open_: set[int] = set()  # somebody has still to deal with these
        self.may_be_both: set[int] = set()  # a seek brought back what is a letter, too
        self.may_be_twice: set[int] = set()  # it can die once more then
        self.done_lately: set[int] = set()  # since the last checkpoint: a kill may bring them back
        self.failures: Counter[int] = Counter()
        self.certain = True  # no kill so far: every number is exact
        self.consumers: dict[int, Consumer] = {}
        self.number = 0
        self.published: list[int] = []  # when
        self.not_before: dict[int, int] = {}  # when a message that failed may come again
        self.due_first: dict[int, int] = {}  # messages that were published deferred
        self.counted = 0  # messages that the broker has counted as dropped
        self.rated = (0, 0)  # since when the rate holds, and the deliveries since
        self.bookmark: tuple[set[int], int] | None = None  # what was unfinished before a seek, and how much there was
        self.dealt: set[int] = set()  # since that seek
        self.returned: set[int] = set()  # by redrives since that seek
        self.letters_then: set[int] = set()  # that waited before that seek
        self.read_again: set[int] = set()  # finished ones, or letters, that a seek has brought back as published

    @initialize()
    def begin(self) -> None:
        self.options = Options(
            data_path=self.path, max_bytes_per_file=700, msg_timeout=TIMEOUT, min_free_bytes=0, node_id=NODE
        )
        self.start()
        self.broker.topic("t").create_channel("c", now=self.now)
        self.settle()

    def start(self) -> None:
        storage = DiskStorage(
            self.path, NODE, self.options.log_options, now=lambda: self.now, report=lambda text: None, boot_id="a boot"
        )
        self.broker = Broker(self.options, storage)
        self.broker.restore(now=self.now)
        self.counted = 0
        self.rated = (self.now, 0)
        self.settle()

    @property
    def channel(self) -> Channel:
        return self.broker.existing_channel("t", "c")

    @property
    def dead(self) -> Channel | None:
        topic = self.broker.find(DEAD)
        return topic.channels.get("dead") if topic is not None else None

    # --- what is where -----------------------------------------------------------------------------------------

    def unfinished(self) -> set[int]:
        return {each for run in dead_letter_view.waiting_runs(self.channel) for each in range(*run)}

    def waiting_letters(self) -> list[dead_letter_view.DeadLetter]:
        dead = self.dead
        if dead is None:
            return []
        runs = dead_letter_view.waiting_runs(dead)
        found, _, looked = dead_letter_view.letters(dead, runs, most=1 << 30, wanted=EVERYTHING)
        assert len(found) == looked, "a letter cannot be read"
        return found

    def letters(self) -> Counter[int]:
        """The messages that are waiting letters, and how often."""
        found = self.waiting_letters()
        for letter in found:
            sequence = int(letter.headers["dead-sequence"])
            assert letter.body in (self.bodies[sequence], self.edited.get(sequence))
        return Counter(int(letter.headers["dead-sequence"]) for letter in found)

    def settle(self) -> None:
        """End the turn, take what was delivered, and check that it may be delivered now."""
        self.broker.commit(self.now)
        delivered = 0
        for consumer in self.consumers.values():
            messages, _ = kernel.decode_messages(b"".join(consumer.frames), 0, 1 << 30)
            consumer.frames.clear()
            consumer.window.unsent = 0
            delivered += len(messages)
            for _, _, message_id, body in messages:
                sequence = ids.decode(message_id)[1]
                edited = self.edited.get(sequence, self.bodies[sequence])
                assert body == edited or (sequence in self.read_again and body == self.bodies[sequence])
                self.check_delivery(sequence)
        if delivered:
            self.check_limits(delivered)

    def check_delivery(self, sequence: int) -> None:
        assert sequence in self.open_, f"{sequence} was delivered although nobody has to deal with it"
        ttl = self.channel.effective.message_ttl
        assert not ttl or self.now - self.published[sequence] < ttl, f"{sequence} was delivered although it is expired"
        assert self.now >= self.not_before.pop(sequence, 0), f"{sequence} came again before its delay was over"

    def check_limits(self, delivered: int) -> None:
        effective = self.channel.effective
        held = sum(len(consumer.window.holder.in_flight) for consumer in self.consumers.values())
        assert not effective.max_in_flight or held <= effective.max_in_flight
        since, before = self.rated
        self.rated = since, before + delivered
        rate = effective.rate
        if rate.count:
            burst = max(rate.count * SECOND // rate.per, 1)
            assert before + delivered <= burst + rate.count * (self.now - since) // rate.per + 1

    @invariant()
    def every_message_is_accounted_for(self) -> None:
        if not hasattr(self, "broker") or "t" not in self.broker.topics:
            return
        unfinished, letters = self.unfinished(), self.letters()
        twice = {sequence for sequence, count in letters.items() if count > 1}
        assert twice <= self.may_be_twice, f"letters twice: {twice - self.may_be_twice}"
        both = unfinished & letters.keys()
        assert both <= self.may_be_both, f"in the channel and a letter: {both - self.may_be_both}"
        self.may_be_both &= both
        there = unfinished | letters.keys()
        back = there - self.open_
        assert not back, f"came back: {back}"
        gone = self.open_ - there
        counts = self.channel.counts
        counted = counts.expired + counts.overflowed
        assert len(gone) <= counted - self.counted, f"lost: {gone}"
        self.counted = counted
        self.finish(gone)

    @invariant()
    def failures_are_counted(self) -> None:
        if not hasattr(self, "broker") or not self.certain:
            return
        found = {each: record.failures for each, record in self.channel.ledger.failures.records.items()}
        assert {each: count for each, count in found.items() if count} == {
            each: count for each, count in self.failures.items() if count and each in self.unfinished()
        }

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "broker"):
            return
        for consumer in self.consumers.values():
            held = consumer.window.holder.in_flight
            alone = [each for each in held if self.channel.ledger.failures.get(each).only_alone]
            if alone and self.channel.effective.max_attempts:
                lonely = [each for each in alone if self.channel.reserved.get(consumer.window) == each]
                assert not lonely or len(held) == 1, "a message that is delivered alone has company"

    def finish(self, sequences: set[int] | list[int]) -> None:
        letters = self.letters()  # of a message that a seek brought back, the letter stays
        for sequence in sequences:
            if sequence not in letters:
                self.open_.discard(sequence)
            self.not_before.pop(sequence, None)
            self.dealt.add(sequence)
            self.done_lately.add(sequence)
            self.failures.pop(sequence, None)

    # --- messages and consumers --------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), size=st.integers(1, 300))
    def publish(self, count: int, size: int) -> None:
        bodies = [b"%d-" % (len(self.bodies) + index) + b"x" * size for index in range(count)]
        topic = self.broker.topic("t")
        topic.append(batch.of_broker(topic, bodies, now=self.now), RECEIPT, now=self.now)
        self.note_published(bodies)
        self.settle()

    @rule(delay=st.integers(1, 5000))
    def publish_deferred(self, delay: int) -> None:
        body, effective = b"deferred-%d" % len(self.bodies), self.channel.effective
        try:
            append(self.broker.topic("t"), body, RECEIPT, now=self.now, defer=delay * MS)
        except ChannelFull:
            assert effective.overflow == "reject"
            assert self.channel.depth >= effective.max_depth > 0
            return
        self.due_first[len(self.bodies)] = self.not_before[len(self.bodies)] = self.now + delay * MS
        self.note_published([body])
        self.settle()

    def note_published(self, bodies: list[bytes]) -> None:
        self.open_ |= set(range(len(self.bodies), len(self.bodies) + len(bodies)))
        self.bodies += bodies
        self.published += [self.now] * len(bodies)

    @rule(size=st.integers(0, 5))
    def subscribe(self, size: int) -> None:
        self.number += 1
        frames: list[bytes] = []
        window = Window(Holder(f"consumer-{self.number}"), frames.append, lambda: None, timeout=TIMEOUT)
        window.size = size
        self.channel.subscribe(window)
        self.consumers[self.number] = Consumer(window, frames)
        self.broker.mark_ready(self.channel)
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), size=st.integers(0, 5))
    def change_demand(self, data: st.DataObject, size: int) -> None:
        self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))].window.size = size
        self.broker.mark_ready(self.channel)
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), reason=st.sampled_from([Reason.DISCONNECTED, Reason.DISCONNECTED, Reason.CLOSED]))
    def disconnect(self, data: st.DataObject, reason: Reason) -> None:
        consumer = self.consumers.pop(data.draw(st.sampled_from(sorted(self.consumers))))
        if reason is Reason.DISCONNECTED:
            self.failures.update(consumer.window.holder.in_flight.keys())
        self.broker.leave(self.channel, consumer.window, now=self.now, reason=reason)
        self.settle()

    def held(self) -> list[tuple[int, int]]:
        return [
            (number, sequence)
            for number, consumer in sorted(self.consumers.items())
            for sequence in sorted(consumer.window.holder.in_flight)
        ]

    @precondition(lambda self: self.held())
    @rule(data=st.data(), verb=st.sampled_from(["finish", "fail", "fail", "release", "reject"]), delay=st.booleans())
    def answer(self, data: st.DataObject, verb: str, delay: bool) -> None:
        number, sequence = data.draw(st.sampled_from(self.held()))
        holder, channel = self.consumers[number].window.holder, self.channel
        if verb == "finish":
            assert channel.finish_run(b"FIN %b\n" % ids.encode(NODE, sequence), holder, now=self.now) == []
            self.finish([sequence])
        elif verb == "reject":
            channel.reject(sequence, holder, now=self.now, error="no")
        else:
            reason = Reason.REQUEUED if verb == "fail" else Reason.RELEASED
            self.failures[sequence] += verb == "fail"
            wait = 700 * MS if delay else 0
            given_up = verb == "fail" and 0 < channel.effective.max_attempts <= self.count_failures(sequence) + 1
            if not given_up:
                self.not_before[sequence] = self.now + (wait or self.shortest_retry(sequence, verb))
            channel.requeue(sequence, holder, delay=wait, now=self.now, reason=reason)
            self.settle()
            assert given_up == (sequence in self.letters()) or sequence in self.may_be_both
        self.settle()

    def count_failures(self, sequence: int) -> int:
        return self.channel.ledger.failures.get(sequence).failures

    def shortest_retry(self, sequence: int, verb: str) -> int:
        """The least time that a message waits which failed once more."""
        effective = self.channel.effective
        if verb != "fail" or not effective.retry_first:
            return 0
        delay = effective.retry_first * effective.retry_factor ** self.count_failures(sequence)
        return int(min(delay, effective.retry_max) * (1 - effective.retry_jitter))

    @rule(step=st.integers(1, 2500))
    def time_passes(self, step: int) -> None:
        self.now += step * MS
        before = {each for consumer in self.consumers.values() for each in consumer.window.holder.in_flight}
        counted = Counter(before)
        while self.broker.scan(self.now):
            pass
        after = {each for consumer in self.consumers.values() for each in consumer.window.holder.in_flight}
        self.failures.update(counted - Counter(after))
        self.settle()

    # --- operators ---------------------------------------------------------------------------------------------

    @rule(own=SETTINGS)
    def configure(self, own: dict[str, Any]) -> None:
        everything = dict.fromkeys(
            ("max_attempts", "retry_first", "retry_max", "max_in_flight", "rate", "message_ttl", "expired_to_dead",
             "max_depth", "overflow"),
        )  # fmt: skip
        self.broker.settings.change_channel(self.channel, everything | own, now=self.now)
        self.rated = (self.now, 0)
        self.settle()

    @rule(own=SETTINGS, topics=st.sampled_from(["t", "t*", "other"]))
    def put_policy(self, own: dict[str, Any], topics: str) -> None:
        policy = policies.parse("p", {"topics": topics, "channels": "c", "settings": own or {"max_attempts": 2}})
        self.broker.settings.put_policy(policy, now=self.now)
        self.rated = (self.now, 0)
        self.settle()

    @rule()
    def remove_policy(self) -> None:
        self.broker.settings.remove_policy("p", now=self.now)
        self.rated = (self.now, 0)
        self.settle()

    @precondition(lambda self: self.dead is not None)
    @rule(
        data=st.data(),
        to=st.sampled_from([redrive_task.CHANNEL, redrive_task.CHANNEL, redrive_task.NOWHERE]),
        limit=st.integers(0, 3),
        slow=st.booleans(),
        edit=st.booleans(),
    )
    def start_redrive(self, data: st.DataObject, to: str, limit: int, slow: bool, edit: bool) -> None:
        dead = self.dead
        assert dead is not None
        found = self.waiting_letters()
        wanted, body = EVERYTHING, None
        if found and data.draw(st.booleans()):
            letter = data.draw(st.sampled_from(found))
            wanted = dead_filter.parse({"sequences": [letter.sequence]})
            if edit and to == redrive_task.CHANNEL:
                sequence = int(letter.headers["dead-sequence"])
                if sequence in self.unfinished():
                    return  # it would not be taken back, as it is there
                body = b"edited-%d" % sequence
        rate = Rate(1, SECOND) if slow and body is None else UNLIMITED
        try:
            self.broker.redrives.start(
                dead.topic, to=to, wanted=wanted, rate=rate, limit=limit, edited=body, now=self.now
            )
        except SettingRefused:
            return  # one runs already
        if body is not None:
            self.edited[int(found[0].headers["dead-sequence"]) if wanted is EVERYTHING else sequence] = body
        self.step_redrive()

    @rule()
    def step_redrive(self) -> None:
        before = set(self.letters())
        channel_before = self.unfinished()
        for _ in range(20):
            due = self.broker.redrives.step(now=self.now)
            self.broker.commit(self.now)
            if due is None or due > self.now:
                break
        gone = before - set(self.letters()) - self.unfinished() - channel_before
        link = self.dead.dead if self.dead is not None else None
        purged = link is not None and link.redrive is not None and link.redrive.to == redrive_task.NOWHERE
        if gone:
            counts = self.channel.counts
            assert purged or counts.expired or counts.overflowed, f"a redrive lost {gone}"
            self.finish(gone)
        for sequence in before - set(self.letters()) - channel_before:
            self.failures.pop(sequence, None)
            self.not_before.pop(sequence, None)
        if not purged:
            self.returned |= before - set(self.letters())
        self.settle()

    @precondition(lambda self: self.dead is not None)
    @rule()
    def cancel_redrive(self) -> None:
        assert self.dead is not None
        self.broker.redrives.cancel(self.dead.topic, now=self.now)
        for letter in self.waiting_letters():
            sequence = int(letter.headers["dead-sequence"])
            if letter.body == self.bodies[sequence]:
                self.edited.pop(sequence, None)  # what was cancelled may not have edited it yet
        self.settle()

    @precondition(lambda self: self.bodies)
    @rule(data=st.data(), action=st.sampled_from(claims.ACTIONS))
    def claim(self, data: st.DataObject, action: str) -> None:
        wanted = data.draw(st.lists(st.integers(0, len(self.bodies)), max_size=4))
        done = claims.claim(self.channel, wanted, action, now=self.now, delay=SECOND if action == "defer" else 0)
        if action == "finish":
            self.finish(done)
        for sequence in done:
            self.not_before[sequence] = self.now + (SECOND if action == "defer" else 0)
        self.settle()

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        channel = self.channel
        to = data.draw(st.integers(channel.topic.log.first, channel.topic.fanned_out))
        plan = seek.plan(channel, to)
        before, letters = self.unfinished(), set(self.letters())
        found = seek.seek(channel, to, now=self.now)
        assert found == plan
        self.broker.checkpoint_topic(channel.topic, now=self.now)
        after = self.unfinished()
        assert len(after - before) == plan.again
        assert len(before - after) == plan.skipped
        self.note_seek(before, after)
        self.bookmark = before, len(self.bodies)
        self.letters_then = letters
        self.dealt.clear()
        self.returned.clear()
        self.settle()

    @precondition(lambda self: self.bookmark is not None)
    @rule()
    def seek_bookmark(self) -> None:
        assert self.bookmark is not None
        unfinished, count = self.bookmark
        before = self.unfinished()
        first = self.channel.topic.log.first  # what was skipped may have been trimmed
        expected = {each for each in unfinished - self.dealt if each >= first or each in before}
        expected |= {each for each in before if each >= count or each in self.returned}
        seek.seek_bookmark(self.channel, now=self.now)
        self.broker.checkpoint_topic(self.channel.topic, now=self.now)
        after = self.unfinished()
        assert after == expected - (set(self.letters()) - self.letters_then), (after, expected)
        self.note_seek(before, after)
        self.bookmark = None
        self.settle()

    def note_seek(self, before: set[int], after: set[int]) -> None:
        """Note what came back and what was skipped."""
        channel, letters = self.channel, set(self.letters())
        self.finish(before - after - letters)
        for sequence in before - after:
            self.not_before.pop(sequence, None)
        self.open_ |= after
        self.read_again |= after - before
        self.may_be_both |= after & letters
        self.may_be_twice |= after & letters
        for sequence in after & self.not_before.keys():  # a seek forgets retries, not how a message was published
            self.not_before[sequence] = min(self.not_before[sequence], self.due_first.get(sequence, 0))
        for sequence in after | before:
            self.failures.pop(sequence, None)
        for sequence, record in channel.ledger.failures.records.items():
            self.failures[sequence] = record.failures
        self.edited = {each: body for each, body in self.edited.items() if each in letters or each in before & after}

    # --- what survives -----------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        self.now += 10 * MS
        self.broker.checkpoint(now=self.now)
        self.settle()
        self.broker.checkpoint(now=self.now)
        self.done_lately.clear()

    @rule()
    def pack(self) -> None:
        """Have the topics packed, as those are that nobody uses; what looks at them next unpacks them."""
        self.checkpoint()
        for topic in self.broker.topics_in_use():
            self.broker.keeper.pack(topic, now=self.now)

    @rule()
    def trim(self) -> None:
        self.checkpoint()
        self.broker.trim(now=self.now, everywhere=True)

    @rule()
    def restart(self) -> None:
        self.every_message_is_accounted_for()
        self.broker.close(now=self.now)
        self.consumers.clear()
        self.done_lately.clear()
        self.start()

    @rule()
    def kill(self) -> None:
        self.every_message_is_accounted_for()
        self.broker.storage.close()
        self.consumers.clear()
        self.not_before.clear()
        self.bookmark = None
        self.certain = False
        self.open_ |= self.done_lately  # until it is known which of them came back
        self.start()
        letters = set(self.letters())
        there = self.unfinished() | letters
        self.may_be_both |= self.done_lately & letters
        self.open_ -= self.done_lately - there
        counts = self.channel.counts
        if counts.expired or counts.overflowed:  # dropped once more, and not yet journaled
            self.done_lately -= there
        else:
            self.done_lately.clear()

    def teardown(self) -> None:
        """Whatever happened, every message that is not done with can still be had."""
        if hasattr(self, "broker"):
            self.drain()
            self.broker.close(now=self.now)
        shutil.rmtree(self.path, ignore_errors=True)

    def drain(self) -> None:
        self.remove_policy()
        self.configure({"max_attempts": 0})
        for number in list(self.consumers):
            self.broker.leave(self.channel, self.consumers.pop(number).window, now=self.now, reason=Reason.CLOSED)
        if self.dead is not None:
            self.cancel_redrive()
            self.broker.redrives.start(self.dead.topic, to=redrive_task.CHANNEL, wanted=EVERYTHING, now=self.now)
            self.step_redrive()
        self.subscribe(2500)
        for _ in range(8):
            self.time_passes(5_000)
            for _, sequence in self.held():
                self.channel.finish([sequence], now=self.now)
                self.finish([sequence])
            self.settle()
            self.step_redrive()
        self.every_message_is_accounted_for()
        assert not self.open_, f"never came again: {self.open_}; letters {self.letters()}"


FailureMachine.TestCase.settings = settings(
    max_examples=examples(30, soak=3000),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestFailures = FailureMachine.TestCase
