"""Random histories of one channel with NSQ and Redis consumers, against a model of what each message goes through."""

import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from example_counts import examples

sys.path.insert(0, str(Path(__file__).parent.parent / "sessions"))  # for `redis_stage`

from redis_stage import RedisClient, RedisStage

from lapwing.wire.nsq.commands import Cls, Rdy, Sub
from play import MINUTE, MS, SECOND, Client

NAMES = ("a", "b")
COUNT = st.integers(1, 4)
FATAL = 2**63 - 1


@dataclass
class Message:
    """One message of the model. Unless it is finished, it is ahead, held, given back, or deferred."""

    body: bytes
    entry: bytes = b""  # its id
    deliveries: int = 0
    owner: str | None = None  # the name of a Redis consumer, or of an NSQ client
    deadline: int | None = None
    due: int | None = None
    parked: bool = False  # given back by XNACK to nobody
    finished: bool = False
    deleted: bool = False
    unsaved: bool = True  # changed since the last checkpoint

    @property
    def pending(self) -> bool:
        return not self.finished and (self.owner is not None or self.deliveries > 0 or self.parked)

    @property
    def ready(self) -> bool:
        """Whether it may be delivered now."""
        return not (self.finished or self.deleted or self.parked) and self.owner is None and self.due is None


class MixedMachine(RuleBasedStateMachine):
    """One topic, one channel, consumers of both kinds; time moves by a rule only."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="lapwing-mixed-"))
        self.messages: list[Message] = []
        self.nsq: dict[str, Client] = {}  # by the name of their holder
        self.blocked: list[tuple[str, RedisClient]] = []
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.stage = RedisStage(self.path, max_bytes_per_file=2000)
        self.ask("XGROUP CREATE t c $ MKSTREAM")
        self.saved()

    # --- the model -----------------------------------------------------------------------------------------------

    def ask(self, command: str | list[bytes]) -> Any:
        """Have a new Redis client ask something; then look at what everybody has received."""
        client = self.stage.redis()
        reply = client.ask(command)
        client.leave()
        return reply

    def settle(self) -> None:
        """Check everything that NSQ clients and waiting Redis clients have received."""
        self.stage.commit()
        for name, client in self.nsq.items():
            messages, answers = client.take()
            assert not [answer for answer in answers if answer.startswith(b"E_")]
            for sequence, attempts, body in messages:
                self.give(sequence, name, body, deadline=self.stage.now + MINUTE)
                assert attempts == min(self.messages[sequence].deliveries, 65535)
        for place in list(self.blocked):
            name, client = place
            for reply in client.replies():
                self.blocked.remove(place)
                self.read(name, reply)
                client.leave()

    def give(self, sequence: int, owner: str, body: bytes, *, deadline: int | None = None) -> None:
        message = self.messages[sequence]
        assert body == message.body
        assert message.ready, f"{sequence} was delivered to {owner} although it is {message}"
        message.deliveries = min(message.deliveries + 1, FATAL)
        message.owner, message.deadline, message.unsaved = owner, deadline, True

    def read(self, name: str, reply: Any) -> None:
        for entry, pairs in reply[0][1] if reply else ():
            self.give(self.sequence(entry), name, pairs[1])

    def sequence(self, entry: bytes) -> int:
        return int(entry.partition(b"-")[2])

    def finish(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            message = self.messages[sequence]
            message.finished = message.unsaved = True
            message.parked = False
            message.owner = message.due = message.deadline = None

    def back(self, message: Message, *, due: int | None = None) -> None:
        """Have a message given back by its holder."""
        message.owner = message.deadline = None
        message.due, message.unsaved = due, True

    def claimed(self, sequence: int, name: str, *, counted: bool = True) -> None:
        message = self.messages[sequence]
        message.owner, message.deadline, message.due = name, None, None
        message.parked, message.unsaved = False, True
        message.deliveries = min(message.deliveries + counted, FATAL)

    def some(self, data: st.DataObject) -> list[int]:
        """Some sequences, known or not."""
        return data.draw(st.lists(st.integers(0, len(self.messages) - 1), unique=True, min_size=1, max_size=4))

    def ids(self, sequences: Iterable[int]) -> list[bytes]:
        return [self.messages[sequence].entry for sequence in sequences]

    # --- producers -----------------------------------------------------------------------------------------------

    def added(self, body: bytes, entry: bytes, *, due: int | None = None) -> None:
        self.messages.append(Message(body, entry, due=due))

    def time(self) -> bytes:
        return b"%d-%d" % (self.stage.now // MS, len(self.messages))

    @rule(count=COUNT)
    def publish(self, count: int) -> None:
        bodies = [b"nsq-%d-%d" % (len(self.messages), index) + b"x" * 100 for index in range(count)]
        self.stage.client().publish(*bodies)
        for body in bodies:
            self.added(body, self.time())
        self.settle()

    @rule(delay=st.integers(1, 30))
    def publish_deferred(self, delay: int) -> None:
        body = b"deferred-%d" % len(self.messages)
        self.stage.client().publish(body, delay=delay * SECOND)
        self.added(body, self.time(), due=self.stage.now + delay * SECOND)
        self.settle()

    @rule(count=COUNT)
    def add(self, count: int) -> None:
        bodies = [b"redis-%d-%d" % (len(self.messages), index) for index in range(count)]
        client = self.stage.redis()
        replies = client.send(*[[b"XADD", b"t", b"*", b"data", body] for body in bodies]).replies()
        client.leave()
        for body, entry in zip(bodies, replies, strict=True):
            assert entry == self.time()
            self.added(body, entry)
        self.settle()

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chosen = self.some(data)
        there = [each for each in chosen if not self.messages[each].deleted]
        assert self.ask([b"XDEL", b"t", *self.ids(chosen)]) == len(there)
        for each in there:
            self.messages[each].deleted = self.messages[each].unsaved = True
        self.settle()

    # --- NSQ consumers -------------------------------------------------------------------------------------------

    @rule(ready=st.integers(0, 4))
    def subscribe(self, ready: int) -> None:
        if len(self.nsq) == 3:
            return
        self.number += 1
        client = self.stage.client()
        client.session.about.client_id = f"client-{self.number}"
        client.session.about.remote_address = f"127.0.0.1:{self.number}"
        client.say(Sub("t", "c"))
        assert client.answers() == [b"OK"]
        for message in self.messages:
            if message.parked and message.deliveries != FATAL:
                message.parked = False
                message.unsaved = True
        self.nsq[client.holder.name] = client
        client.say(Rdy(ready))
        self.settle()

    def pick(self, data: st.DataObject) -> tuple[str, Client]:
        name = data.draw(st.sampled_from(sorted(self.nsq)))
        return name, self.nsq[name]

    @precondition(lambda self: self.nsq)
    @rule(data=st.data(), ready=st.integers(0, 5))
    def change_ready(self, data: st.DataObject, ready: int) -> None:
        self.pick(data)[1].say(Rdy(ready))
        self.settle()

    @precondition(lambda self: self.nsq)
    @rule(data=st.data(), polite=st.booleans())
    def disconnect(self, data: st.DataObject, polite: bool) -> None:
        name, client = self.pick(data)
        del self.nsq[name]
        if polite:
            client.say(Cls())
        client.leave()
        for message in self.messages:
            if message.owner == name:
                self.back(message)
        self.settle()

    def held(self) -> list[int]:
        """What NSQ consumers hold."""
        return [sequence for sequence, message in enumerate(self.messages) if message.owner in self.nsq]

    @precondition(lambda self: self.held())
    @rule(data=st.data(), verb=st.sampled_from(["finish", "requeue", "defer", "touch"]))
    def answer(self, data: st.DataObject, verb: str) -> None:
        sequence = data.draw(st.sampled_from(self.held()))
        message = self.messages[sequence]
        client = self.nsq[message.owner or ""]
        if verb == "finish":
            self.finish([sequence])
            client.finish(sequence)
        elif verb == "touch":
            message.deadline = self.stage.now + MINUTE
            client.touch(sequence)
        else:
            delay = 10 * SECOND if verb == "defer" else 0
            self.back(message, due=self.stage.now + delay if delay else None)
            client.requeue(sequence, delay=delay)
        self.settle()

    @precondition(lambda self: self.nsq and self.messages)
    @rule(data=st.data())
    def finish_what_another_holds(self, data: st.DataObject) -> None:
        name, client = self.pick(data)
        sequence = data.draw(st.integers(0, len(self.messages) - 1))
        if self.messages[sequence].owner == name:
            return
        client.finish(sequence)
        assert [answer.split()[0] for answer in client.answers()] == [b"E_FIN_FAILED"]
        self.settle()

    # --- Redis consumers -----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), count=COUNT)
    def read_group(self, name: str, count: int) -> None:
        waiting = [sequence for sequence, message in enumerate(self.messages) if message.ready]
        reply = self.ask(f"XREADGROUP GROUP c {name} COUNT {count} STREAMS t >")
        assert len(reply[0][1] if reply else ()) == min(count, len(waiting))
        self.read(name, reply)
        self.settle()

    @rule(name=st.sampled_from(NAMES), count=COUNT)
    def wait_for_some(self, name: str, count: int) -> None:
        if len(self.blocked) == 2:
            return
        client = self.stage.redis()
        self.blocked.append((name, client))
        client.send(f"XREADGROUP GROUP c {name} COUNT {count} BLOCK 0 STREAMS t >")
        self.settle()

    @precondition(lambda self: self.blocked)
    @rule()
    def hang_up_while_waiting(self) -> None:
        self.blocked.pop()[1].leave()
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def read_history(self, name: str) -> None:
        reply = self.ask(f"XREADGROUP GROUP c {name} STREAMS t 0")
        mine = [sequence for sequence, message in enumerate(self.messages) if message.owner == name]
        assert [self.sequence(entry) for entry, _ in reply[0][1]] == mine
        for sequence, (_, pairs) in zip(mine, reply[0][1], strict=True):
            message = self.messages[sequence]
            assert (pairs is None) == message.deleted
            if not message.deleted:
                self.claimed(sequence, name)
        self.settle()

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        chosen = self.some(data)
        pending = [each for each in chosen if self.messages[each].pending]
        assert self.ask([b"XACK", b"t", b"c", *self.ids(chosen)]) == len(pending)
        self.finish(pending)
        self.settle()

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), name=st.sampled_from(NAMES), counted=st.booleans())
    def claim(self, data: st.DataObject, name: str, counted: bool) -> None:
        chosen = self.some(data)
        words = [b"XCLAIM", b"t", b"c", name.encode(), b"0", *self.ids(chosen)]
        reply = self.ask(words if counted else [*words, b"JUSTID"])
        expected = []
        for sequence in chosen:
            message = self.messages[sequence]
            if message.pending and message.deleted:
                self.finish([sequence])
            elif message.pending:
                self.claimed(sequence, name, counted=counted)
                expected.append(sequence)
        assert [self.sequence(each[0] if counted else each) for each in reply] == expected
        self.settle()

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), mode=st.sampled_from(["SILENT", "FAIL", "FATAL"]))
    def give_back(self, data: st.DataObject, mode: str) -> None:
        chosen = self.some(data)
        known = [each for each in chosen if self.messages[each].owner is not None or self.messages[each].parked]
        words = [b"XNACK", b"t", b"c", mode.encode(), b"IDS", b"%d" % len(chosen), *self.ids(chosen)]
        mixed = bool(self.nsq) and mode != "FATAL"
        for each in known:
            message = self.messages[each]
            self.back(message)
            message.parked = not mixed
            if mode == "FATAL":
                message.deliveries = FATAL
            elif mode == "SILENT":
                message.deliveries = max(message.deliveries - 1, 0)
        assert self.ask(words) == len(known)
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def delete_consumer(self, name: str) -> None:
        for place in list(self.blocked):
            if place[0] == name:
                self.blocked.remove(place)
                place[1].leave()
        mine = [sequence for sequence, message in enumerate(self.messages) if message.owner == name]
        assert self.ask(f"XGROUP DELCONSUMER t c {name}") == len(mine)
        self.finish(mine)
        self.settle()

    # --- time, and what survives ---------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 7, 20, 61]))
    def time_passes(self, seconds: int) -> None:
        now = self.stage.now + seconds * SECOND
        for message in self.messages:
            if message.deadline is not None and message.deadline <= now:
                self.back(message)
            if message.due is not None and message.due <= now:
                message.due, message.unsaved = None, True
        self.stage.pass_time(seconds * SECOND)
        self.settle()

    def saved(self) -> None:
        self.stage.now += 50 * MS  # a busy channel is not saved more often
        self.stage.checkpoint(trim=True)
        for message in self.messages:
            message.unsaved = False

    @rule()
    def checkpoint(self) -> None:
        self.saved()

    @rule()
    def pack(self) -> None:
        """Have the topic packed, as one is that nobody uses; the next command unpacks it."""
        self.saved()
        for topic in self.stage.broker.topics_in_use():
            self.stage.broker.keeper.pack(topic, now=self.stage.now)

    def drop_connections(self) -> None:
        self.blocked.clear()
        for message in self.messages:
            if message.owner in self.nsq:
                message.owner = message.deadline = None
        self.nsq.clear()

    @rule()
    def restart(self) -> None:
        self.drop_connections()
        self.stage.restart()
        self.stage.pass_time(0)  # deferred messages may be due
        self.saved()

    @rule()
    def kill(self) -> None:
        """Whatever has not changed since the last checkpoint is as it was; the rest may be as it was then."""
        self.drop_connections()
        self.stage.kill()
        self.stage.pass_time(0)
        there = {self.sequence(entry) for entry, _ in self.ask("XRANGE t - +")}
        pending = {self.sequence(line[0]): line for line in self.ask("XPENDING t c - + 1000")}
        channel = self.stage.channel()
        for sequence, message in enumerate(self.messages):
            if not message.unsaved:
                continue
            line = pending.get(sequence)
            waits = sequence in channel.ledger.deferred.sequences()
            ahead = line is not None or waits or sequence in channel.ledger.ready or sequence >= channel.cursor
            gone = sequence not in there
            assert ahead or gone or message.finished, f"{sequence} is lost: {message}"
            message.finished, message.deleted = not ahead, gone
            message.owner = line[1].decode() or None if line else None
            message.deliveries = line[3] if line else 0
            message.parked = line is not None and sequence in channel.ledger.named.get("", _NOBODY).in_flight
            message.due = channel.ledger.deferred.due(sequence) if waits else None  # a delay may begin again
        self.saved()

    # --- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def pending_entries_are_shown(self) -> None:
        if not hasattr(self, "stage"):
            return
        expected = []
        shown = self.ask("XPENDING t c - + 1000")
        ids = {line[0] for line in shown}
        for message in self.messages:
            if message.deleted and message.owner is None and not message.parked and message.entry not in ids:
                message.finished = message.unsaved = True  # the channel drops it when it would deliver it again
            if message.pending:
                expected.append([message.entry, (message.owner or "").encode(), message.deliveries])
        assert [[line[0], line[1], line[3]] for line in shown] == expected
        assert self.ask("XPENDING t c")[0] == len(expected)

    @invariant()
    def nobody_starves(self) -> None:
        if not hasattr(self, "stage"):
            return
        room = [name for name, client in self.nsq.items() if client.subscription.room > 0]
        if room or self.blocked:
            assert not [sequence for sequence, message in enumerate(self.messages) if message.ready]

    @invariant()
    def entries_are_there(self) -> None:
        if not hasattr(self, "stage"):
            return
        expected = [(message.entry, message.body) for message in self.messages if not message.deleted]
        assert [(entry, pairs[1]) for entry, pairs in self.ask("XRANGE t - +")] == expected

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.broker.close(now=self.stage.now)
        shutil.rmtree(self.path, ignore_errors=True)


class _Nobody:
    in_flight: dict[int, object] = {}  # noqa: RUF012 - nobody changes it


_NOBODY: Any = _Nobody()

MixedMachine.TestCase.settings = settings(
    max_examples=examples(40, soak=2000),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestMixed = MixedMachine.TestCase
