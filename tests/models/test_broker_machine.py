"""Random histories of a broker on a real disk, against a model that anybody can believe. It speaks no protocol."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appending import append
from example_counts import examples
from lapwing import ids, kernel
from lapwing.broker.broker import Broker
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.entries import entries
from lapwing.broker.channel.ledger import Holder, Reason, State
from lapwing.broker.channel.subscription import Credit, Subscription, Window
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.operations.cancel import Cancellation
from lapwing.broker.settings.options import Options
from lapwing.broker.settings.policies import Policy
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, NotInFlight, NotOwner

MS = 1_000_000
TIMEOUT = 1000 * MS
CHANNELS = ("a", "b")
NAMES = ("worker-1", "worker-2")
NODE = 5
MEMORY = "/dev/shm"  # the catalog is synced at every change, which a disk would make slow
HELD = Policy("held", "t", "b", 0, {"hold": "connection"})
SINGLE = Policy("single", "t", "*", 0, {"active": "single"})

Owner = int | str  # a connection, or the name of a holder that has one


@dataclass
class Waits:
    """A message in the model of a channel: ready, in flight with an owner, or deferred."""

    attempts: int = 0
    owner: Owner | None = None
    delivered: int = 0
    deadline: int | None = None
    due: int | None = None


@dataclass
class Model:
    """A channel: what is unfinished, by sequence; what a crash may bring back; its named holders."""

    unfinished: dict[int, Waits] = field(default_factory=dict)
    revived: set[int] = field(default_factory=set)
    done_since_checkpoint: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    unsaved_names: set[str] = field(default_factory=set)  # created or dropped since the last checkpoint
    paused: bool = False

    @property
    def owners(self) -> set[Owner]:
        """Who holds messages."""
        return {waits.owner for waits in self.unfinished.values() if waits.owner is not None}

    def held_by(self, owner: Owner) -> list[int]:
        return sorted(sequence for sequence, waits in self.unfinished.items() if waits.owner == owner)

    def finish(self, sequence: int) -> None:
        del self.unfinished[sequence]
        self.revived.discard(sequence)
        self.done_since_checkpoint.add(sequence)


@dataclass
class Client:
    """A subscription, and what it was sent and the model has not seen yet."""

    owner: Owner
    channel: str
    subscription: Subscription
    frames: list[bytes]

    @property
    def keeps(self) -> bool:
        """Whether its messages stay with it while it is connected."""
        return self.channel == "b" and self.subscription.heartbeats


class Receipt:
    """Every publish succeeds."""

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        assert error is None


RECEIPT = Receipt()


class BrokerMachine(RuleBasedStateMachine):
    """One topic, two channels, consumers with windows and named readers with credits; time moves by a rule only."""

    single = False  # whether each channel has one active consumer
    by_key = False  # whether the channels deliver by key

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp(prefix="lapwing-machine-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        self.now = 1_000_000 * MS
        self.bodies: list[bytes] = []
        self.message_ids: list[str] = []  # one for all messages of a batch
        self.delays: dict[int, int] = {}
        self.times: list[int] = []  # when each was published
        self.fanned = 0
        self.paused = False
        self.models: dict[str, Model] = {}
        self.clients: dict[int, Client] = {}
        self.number = 0
        self.highest: dict[int, int] = {}  # of first deliveries, by client

    @initialize()
    def begin(self) -> None:
        self.options = Options(
            data_path=self.path, max_bytes_per_file=700, msg_timeout=TIMEOUT, min_free_bytes=0, node_id=NODE
        )
        self.open()
        self.broker.settings.put_policy(HELD, now=self.now)
        if self.single:
            self.broker.settings.put_policy(SINGLE, now=self.now)

    def open(self) -> None:
        storage = DiskStorage(
            self.path, NODE, self.options.log_options, now=lambda: self.now, report=lambda text: None, boot_id="a boot"
        )
        self.broker = Broker(self.options, storage)
        self.broker.restore(now=self.now)
        self.broker.topic("t")
        self.settle()

    @property
    def topic(self) -> Topic:
        return self.broker.existing("t")

    # --- what the model knows ----------------------------------------------------------------------------------

    def fan_out(self) -> None:
        if self.paused or not self.models:
            return
        for sequence in range(self.fanned, len(self.bodies)):
            for model in self.models.values():
                delay = self.delays.get(sequence, 0)
                model.unfinished[sequence] = Waits(due=self.now + delay if delay else None)
        self.fanned = len(self.bodies)

    def settle(self) -> None:
        """End the turn in both worlds, and check what was delivered."""
        self.times += [self.now] * (len(self.bodies) - len(self.times))
        self.broker.commit(self.now)
        self.fan_out()
        for number, client in self.clients.items():
            data = b"".join(client.frames)
            client.frames.clear()
            if isinstance(client.subscription, Window):
                client.subscription.unsent = 0
            self.delivered(number, client, data)

    def delivered(self, number: int, client: Client, data: bytes) -> None:
        model = self.models[client.channel]
        messages, end = kernel.decode_messages(data, 0, len(data))
        assert end == len(data)
        assert not (messages and model.paused), "a paused channel delivers nothing"
        for _, attempts, message_id, body in messages:
            sequence = ids.decode(message_id)[1]
            assert body == self.bodies[sequence]
            if sequence in model.revived and sequence not in model.unfinished:
                model.unfinished[sequence] = Waits(attempts=attempts - 1)
                model.revived.discard(sequence)
            assert sequence in model.unfinished, f"{sequence} was delivered again after it was finished"
            waits = model.unfinished[sequence]
            assert waits.owner is None, f"{sequence} is in flight twice"
            early = waits.due is not None and waits.due > self.now and sequence not in model.revived
            assert not early, f"{sequence} came before its time"
            if sequence not in model.revived:
                assert attempts == waits.attempts + 1, f"{sequence}: {attempts} attempts, {waits.attempts} before"
            self.check_turn(model, sequence)
            if waits.attempts == 0 and sequence not in self.delays and not self.by_key:
                assert sequence > self.highest.get(number, -1), "first deliveries are in order"
                self.highest[number] = sequence
            timeout = client.subscription.timeout
            waits.attempts, waits.owner, waits.due = attempts, client.owner, None
            waits.delivered = self.now
            waits.deadline = None if timeout is None or client.keeps else self.now + timeout
            model.revived.discard(sequence)
        if messages and self.single:
            assert model.owners == {client.owner}, "somebody got messages while another held some"
        if isinstance(client.subscription, Window):
            assert len(model.held_by(client.owner)) <= client.subscription.size or not messages

    def check_turn(self, model: Model, sequence: int) -> None:
        """Check that it is the turn of a message that is delivered now."""

    def may_be_claimed(self, model: Model, sequence: int) -> bool:
        """Whether a message that nobody holds may be claimed."""
        return True

    def held(self) -> list[tuple[str, int]]:
        """Every message in flight, with its channel."""
        return [
            (name, sequence)
            for name, model in sorted(self.models.items())
            for sequence, waits in sorted(model.unfinished.items())
            if waits.owner is not None
        ]

    def holder(self, channel: str, owner: Owner) -> Holder:
        if isinstance(owner, str):
            return self.channel(channel).ledger.named[owner]
        return self.clients[owner].subscription.holder

    def channel(self, name: str) -> Channel:
        return self.broker.existing_channel("t", name)

    # --- publishing --------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), size=st.integers(1, 400))
    def publish_batch(self, count: int, size: int) -> None:
        bodies = [b"%d-%d-" % (len(self.bodies), index) + b"x" * size for index in range(count)]
        message_id = f"of {len(self.bodies)}"
        append(self.topic, bodies, RECEIPT, now=self.now, headers={"message-id": message_id})
        self.bodies += bodies
        self.message_ids += [message_id] * count
        self.settle()

    @rule(delay=st.integers(0, 3000))
    def publish_deferred(self, delay: int) -> None:
        body = b"deferred-%d" % len(self.bodies)
        if delay:
            self.delays[len(self.bodies)] = delay * MS
        message_id = f"of {len(self.bodies)}"
        append(self.topic, body, RECEIPT, now=self.now, defer=delay * MS, headers={"message-id": message_id})
        self.bodies.append(body)
        self.message_ids.append(message_id)
        self.settle()

    # --- consumers come and go ---------------------------------------------------------------------------------

    def add(self, channel: str, owner: Owner, subscription: Subscription, frames: list[bytes]) -> None:
        self.channel(channel).subscribe(subscription)
        self.clients[self.number] = Client(owner, channel, subscription, frames)
        if channel not in self.models:
            self.models[channel] = Model()
            self.fan_out()

    @rule(channel=st.sampled_from(CHANNELS), size=st.integers(0, 6), heartbeats=st.booleans())
    def subscribe(self, channel: str, size: int, heartbeats: bool) -> None:
        self.topic.create_channel(channel, now=self.now)
        self.number += 1
        frames: list[bytes] = []
        window = Window(
            Holder(f"client-{self.number}"), frames.append, lambda: None, timeout=TIMEOUT, heartbeats=heartbeats
        )
        window.size = size
        self.add(channel, self.number, window, frames)
        self.settle()

    @rule(channel=st.sampled_from(CHANNELS), name=st.sampled_from(NAMES), count=st.integers(1, 6))
    def read_as(self, channel: str, name: str, count: int) -> None:
        made = self.topic.create_channel(channel, now=self.now)
        self.number += 1
        frames: list[bytes] = []
        self.add(channel, name, Credit(made.named_holder(name), frames.append, lambda: None, count=count), frames)
        model = self.models[channel]
        if name not in model.names:
            model.names.add(name)
            model.unsaved_names.add(name)
        self.settle()

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.clients)), label="client")

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), size=st.integers(0, 8))
    def change_demand(self, data: st.DataObject, size: int) -> None:
        client = self.clients[self.pick(data)]
        if isinstance(client.subscription, Window):
            client.subscription.size = size
        elif isinstance(client.subscription, Credit):
            client.subscription.left = size
        self.broker.mark_ready(self.channel(client.channel))
        self.settle()

    @precondition(lambda self: any(model.names for model in self.models.values()))
    @rule(data=st.data(), count=st.integers(1, 4))
    def read_at_once(self, data: st.DataObject, count: int) -> None:
        """A read that does not wait, of a named consumer."""
        named = [(channel, name) for channel, model in sorted(self.models.items()) for name in sorted(model.names)]
        channel, name = data.draw(st.sampled_from(named))
        frames: list[bytes] = []
        credit = Credit(self.holder(channel, name), frames.append, lambda: None, count=count)
        self.channel(channel).deliver_to(credit, now=self.now)
        self.number += 1
        self.delivered(self.number, Client(name, channel, credit, frames), b"".join(frames))
        self.settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), reason=st.sampled_from([Reason.DISCONNECTED, Reason.CLOSED]))
    def disconnect(self, data: st.DataObject, reason: Reason) -> None:
        number = self.pick(data)
        client = self.clients.pop(number)
        self.broker.leave(self.channel(client.channel), client.subscription, now=self.now, reason=reason)
        for waits in self.models[client.channel].unfinished.values():
            if waits.owner == number:
                waits.owner = None
        self.settle()

    @precondition(lambda self: any(model.names for model in self.models.values()))
    @rule(data=st.data())
    def drop_holder(self, data: st.DataObject) -> None:
        named = [(channel, name) for channel, model in sorted(self.models.items()) for name in sorted(model.names)]
        channel, name = data.draw(st.sampled_from(named))
        for number, client in list(self.clients.items()):
            if (client.channel, client.owner) == (channel, name):
                del self.clients[number]
                self.broker.leave(self.channel(channel), client.subscription, now=self.now)
        model = self.models[channel]
        gone = model.held_by(name)
        assert self.channel(channel).drop_holder(name, now=self.now) == len(gone)
        for sequence in gone:
            model.finish(sequence)
        model.names.discard(name)
        model.unsaved_names.add(name)
        self.settle()

    # --- consumers answer --------------------------------------------------------------------------------------

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        channel, sequence = data.draw(st.sampled_from(self.held()))
        model = self.models[channel]
        owner = model.unfinished[sequence].owner
        assert owner is not None
        chosen = data.draw(st.lists(st.sampled_from(model.held_by(owner)), unique=True, min_size=1))
        block = b"".join(b"FIN %b\n" % ids.encode(NODE, each) for each in chosen)
        assert self.channel(channel).finish_run(block, self.holder(channel, owner), now=self.now) == []
        for each in chosen:
            model.finish(each)
        self.settle()

    @precondition(lambda self: self.models and self.bodies)
    @rule(data=st.data())
    def finish_for_anybody(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[channel]
        if model.revived:
            return  # what is pending of those is known to the broker alone
        chosen = data.draw(st.lists(st.integers(0, len(self.bodies)), unique=True, min_size=1, max_size=4))
        finished = self.channel(channel).finish(chosen, now=self.now)
        pending = {each for each in chosen if each in model.unfinished and self.is_pending(channel, each)}
        assert set(finished) == pending
        for each in pending:
            model.finish(each)
        self.settle()

    def is_pending(self, channel: str, sequence: int) -> bool:
        """Whether the message is not merely ahead of the cursor."""
        waits = self.models[channel].unfinished[sequence]
        return waits.owner is not None or waits.attempts > 0 or sequence in self.delays

    @precondition(lambda self: self.held())
    @rule(
        data=st.data(),
        delay=st.sampled_from([0, 0, 500, 2000]),
        reason=st.sampled_from([Reason.REQUEUED, Reason.RELEASED]),
    )
    def requeue(self, data: st.DataObject, delay: int, reason: Reason) -> None:
        channel, sequence = data.draw(st.sampled_from(self.held()))
        waits = self.models[channel].unfinished[sequence]
        assert waits.owner is not None
        holder = self.holder(channel, waits.owner)
        self.channel(channel).requeue(sequence, holder, delay=delay * MS, now=self.now, reason=reason)
        waits.owner = None
        waits.due = self.now + delay * MS if delay else None
        self.settle()

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        channel, sequence = data.draw(st.sampled_from(self.held()))
        waits = self.models[channel].unfinished[sequence]
        assert waits.owner is not None
        self.channel(channel).touch(sequence, self.holder(channel, waits.owner), timeout=TIMEOUT, now=self.now)
        here = [each for each in self.clients.values() if (each.channel, each.owner) == (channel, waits.owner)]
        if not any(client.keeps for client in here):
            waits.deadline = self.now + TIMEOUT  # also with a named holder, which would keep it for ever
        self.settle()

    @precondition(lambda self: self.models and self.bodies)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[channel]
        if model.revived:
            return  # what is pending of those is known to the broker alone
        chosen = data.draw(st.sets(st.sampled_from([*self.message_ids, "nobody's"]), min_size=1, max_size=4))
        cancellation = Cancellation(self.channel(channel), chosen)
        while not cancellation.step(now=self.now):
            pass
        waiting: dict[str, list[int]] = {}
        for sequence, waits in sorted(model.unfinished.items()):
            if waits.owner is None and self.message_ids[sequence] in chosen:
                waiting.setdefault(self.message_ids[sequence], []).append(sequence)
        assert {each: sorted(found) for each, found in cancellation.cancelled.items()} == waiting
        assert cancellation.refused.keys() == chosen - waiting.keys()
        for sequences in waiting.values():
            for sequence in sequences:
                model.finish(sequence)
        self.settle()

    @precondition(lambda self: self.held() and any(model.names for model in self.models.values()))
    @rule(data=st.data(), min_idle=st.sampled_from([0, 300]), timed=st.booleans(), counted=st.booleans())
    def claim(self, data: st.DataObject, min_idle: int, timed: bool, counted: bool) -> None:
        channel = data.draw(st.sampled_from(sorted(name for name, model in self.models.items() if model.names)))
        model = self.models[channel]
        if model.revived:
            return
        name = data.draw(st.sampled_from(sorted(model.names)))
        wanted = data.draw(st.lists(st.integers(0, len(self.bodies)), unique=True, max_size=6))
        timeout = TIMEOUT if timed else None
        claimed = self.channel(channel).claim(
            wanted, self.channel(channel).named_holder(name), now=self.now, min_idle=min_idle * MS, timeout=timeout,
            counted=counted,
        )  # fmt: skip
        expected = []
        for sequence in wanted:
            waits = model.unfinished.get(sequence)
            if waits is None or not self.is_pending(channel, sequence):
                continue
            idle = self.now - waits.delivered
            if waits.owner is not None and idle < min_idle * MS:
                continue
            if waits.owner is None and not self.may_be_claimed(model, sequence):
                continue
            expected.append(sequence)
            waits.owner, waits.due, waits.delivered = name, None, self.now
            waits.deadline = None if timeout is None else self.now + timeout
            waits.attempts += counted
        assert claimed == expected
        self.settle()

    @precondition(lambda self: self.clients and self.bodies)
    @rule(data=st.data(), verb=st.sampled_from(["finish", "requeue", "touch"]))
    def answer_for_what_it_does_not_hold(self, data: st.DataObject, verb: str) -> None:
        client = self.clients[self.pick(data)]
        channel, model = self.channel(client.channel), self.models[client.channel]
        sequence = data.draw(st.integers(0, len(self.bodies)))
        holder = client.subscription.holder
        if sequence in model.held_by(client.owner):
            return
        waits = model.unfinished.get(sequence)
        expected = NotOwner if waits and waits.owner is not None else NotInFlight
        refused: type[LapwingError] | None = None
        try:
            if verb == "finish":
                message_id = ids.encode(NODE, sequence)
                assert channel.finish_run(b"FIN %b\n" % message_id, holder, now=self.now) == [message_id]
                channel.ledger.check(sequence, holder)
            elif verb == "requeue":
                channel.requeue(sequence, holder, delay=0, now=self.now)
            else:
                channel.touch(sequence, holder, timeout=TIMEOUT, now=self.now)
        except (NotOwner, NotInFlight) as error:
            refused = type(error)
        assert refused is expected
        self.settle()

    # --- time --------------------------------------------------------------------------------------------------

    @rule(step=st.integers(1, 1500))
    def time_passes(self, step: int) -> None:
        self.now += step * MS
        while self.broker.scan(self.now):
            pass
        for name, model in self.models.items():
            ledger = self.topic.channels[name].ledger
            for sequence, waits in model.unfinished.items():
                if waits.owner is not None and waits.deadline is not None and waits.deadline <= self.now:
                    late = waits.deadline + 5 * MS <= self.now
                    # within the few ms that a lease may be late, a deadline is whatever the broker says it is
                    if late or ledger.holder_of(sequence) is None:
                        waits.owner = None
                if waits.due is not None and waits.due <= self.now:
                    waits.due = None
        self.settle()

    # --- orders from above -------------------------------------------------------------------------------------

    @precondition(lambda self: self.models)
    @rule(data=st.data(), paused=st.booleans())
    def pause_channel(self, data: st.DataObject, paused: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.broker.pause_channel("t", name, paused)
        self.models[name].paused = paused
        self.settle()

    @rule(paused=st.booleans())
    def pause_topic(self, paused: bool) -> None:
        self.broker.pause_topic("t", paused, now=self.now)
        self.paused = paused
        self.settle()

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def empty_channel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.channel(name).empty()
        model = self.models[name]
        model.done_since_checkpoint |= set(model.unfinished) | model.revived
        model.unfinished.clear()
        model.revived.clear()
        self.settle()

    @rule()
    def empty_topic(self) -> None:
        self.broker.existing("t").empty()
        self.fanned = len(self.bodies)
        self.settle()

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        model, channel = self.models[name], self.channel(name)
        sequence = data.draw(st.integers(self.topic.log.first, self.fanned))
        back = sequence < channel.cursor and not passed_over(channel, sequence)
        dropped = {each for run in self.topic.emptied.runs for each in range(*run)}
        channel.seek(sequence, back=True)
        self.broker.checkpoint_topic(self.topic, now=self.now)
        for number, client in self.clients.items():
            if client.channel == name:
                self.highest.pop(number, None)
        if back:
            again = [each for each in range(sequence, self.fanned) if each not in dropped]
            dues = {each: self.times[each] + self.delays[each] for each in again if each in self.delays}
            counted = channel.ledger.attempts  # of what comes from the side log again, one delivery stays counted
            model.unfinished = {each: Waits(counted.get(each, 0), due=dues.get(each)) for each in again}
            model.revived.clear()
        else:
            model.unfinished = {each: waits for each, waits in model.unfinished.items() if each >= sequence}
            model.revived = {each for each in model.revived if each >= sequence}
        model.done_since_checkpoint.clear()
        model.unsaved_names.clear()
        self.settle()

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def delete_channel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        channel = self.channel(name)
        self.broker.delete_channel("t", name)
        self.broker.keeper.save_catalog()
        del self.models[name]
        for number, client in list(self.clients.items()):
            if client.channel == name:
                del self.clients[number]
                self.broker.leave(channel, client.subscription, now=self.now)
        self.settle()

    # --- what survives -----------------------------------------------------------------------------------------

    def saved(self) -> None:
        for model in self.models.values():
            model.done_since_checkpoint.clear()
            model.unsaved_names.clear()

    @rule()
    def checkpoint(self) -> None:
        self.now += 10 * MS  # a busy channel is not saved more often than that
        self.broker.checkpoint(now=self.now)
        self.saved()

    @rule()
    def pack(self) -> None:
        """Have the topic packed, as one is that nobody uses; what looks at it next unpacks it."""
        self.checkpoint()
        self.broker.keeper.pack(self.topic, now=self.now)

    @rule()
    def trim(self) -> None:
        self.now += 10 * MS
        self.broker.checkpoint(now=self.now)
        self.broker.trim(now=self.now, everywhere=True)
        self.saved()

    @rule()
    def trim_although_the_journal_is_behind(self) -> None:
        self.broker.trim(now=self.now, everywhere=True)

    @rule()
    def restart(self) -> None:
        self.broker.close(now=self.now)
        for model in self.models.values():
            for waits in model.unfinished.values():
                if isinstance(waits.owner, str):
                    waits.deadline = None  # what a named holder has stays with it
        self.reopen()
        for name, model in self.models.items():
            assert set(self.channel(name).ledger.named) == model.names
        self.saved()

    @rule()
    def kill(self) -> None:
        self.broker.storage.close()
        self.reopen()
        for name, model in self.models.items():
            # finished after the last checkpoint: may come again; deferred or counted after it: may have been forgotten
            model.revived |= model.done_since_checkpoint | set(model.unfinished)
            ledger = self.channel(name).ledger
            assert set(ledger.named) ^ model.names <= model.unsaved_names
            model.names = set(ledger.named)
            for waits in model.unfinished.values():
                waits.owner = None
            for holder in ledger.named.values():
                for sequence, lease in holder.in_flight.items():
                    assert sequence in model.revived
                    waits = model.unfinished.setdefault(sequence, Waits())
                    waits.owner, waits.deadline, waits.due, waits.delivered = holder.name, None, None, lease.delivered
                    waits.attempts = ledger.attempts.get(sequence, 1)
        self.saved()

    def reopen(self) -> None:
        self.clients.clear()
        self.highest.clear()
        for model in self.models.values():
            for waits in model.unfinished.values():
                if not isinstance(waits.owner, str):
                    waits.owner = None
        self.open()
        assert set(self.topic.channels) == set(self.models)
        for name, model in self.models.items():
            assert self.topic.channels[name].paused == model.paused
        assert self.topic.paused == self.paused

    # --- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def nobody_starves(self) -> None:
        if not hasattr(self, "broker"):
            return
        for name, model in self.models.items():
            channel = self.channel(name)
            assert self.topic.log.first <= channel.cursor, f"{name}: the log dropped what was never delivered"
            room = [each for each in self.clients.values() if each.channel == name and each.subscription.room > 0]
            if room and not model.paused and not self.by_key:
                assert channel.depth == 0, f"{name}: {channel.depth} ready although somebody has room"
            if self.single and not model.paused and not model.revived and len(model.owners) < 2:
                wanting = [each for each in self.clients.values() if each.channel == name and each.subscription.wants]
                chosen = [each for each in wanting if {each.owner} >= model.owners]
                assert not wanting or model.owners or not channel.depth, "nobody took over"
                assert channel.depth == 0 or not any(self.has_room(each) for each in chosen), "the active one starves"
            if not model.revived:
                flying = sum(waits.owner is not None for waits in model.unfinished.values())
                assert channel.in_flight_count == flying
                assert channel.depth + len(channel.ledger.deferred) + flying == len(model.unfinished)

    def has_room(self, client: Client) -> bool:
        """Whether it asks for more than it holds, whoever is the active one."""
        if isinstance(client.subscription, Credit):
            return client.subscription.left > 0
        return client.subscription.size > len(client.subscription.holder.in_flight)

    @invariant()
    def each_message_is_in_one_state(self) -> None:
        if not hasattr(self, "broker"):
            return
        for name, model in self.models.items():
            channel = self.channel(name)
            for sequence in range(self.fanned):
                state = channel.state_of(sequence)
                waits = model.unfinished.get(sequence)
                if waits is None:
                    assert state is State.FINISHED or sequence in model.revived
                elif waits.owner is not None:
                    assert state is State.IN_FLIGHT
                elif sequence not in model.revived:
                    assert state in (State.AHEAD, State.READY, State.DEFERRED)
                    assert state is State.DEFERRED or waits.due is None or waits.due <= self.now

    @invariant()
    def holders_are_shown_with_what_they_hold(self) -> None:
        if not hasattr(self, "broker"):
            return
        for name, model in self.models.items():
            pending = entries(self.channel(name).ledger, now=self.now, limit=10_000)
            shown = [entry for entry in pending if entry.state is State.IN_FLIGHT]
            owners = {
                sequence: f"client-{waits.owner}" if isinstance(waits.owner, int) else waits.owner
                for sequence, waits in model.unfinished.items()
                if waits.owner is not None
            }
            assert {entry.sequence: entry.holder for entry in shown} == owners
            if not model.revived:
                assert all(entry.deliveries == model.unfinished[entry.sequence].attempts for entry in shown)

    def teardown(self) -> None:
        """Whatever happened, everything that is not finished can still be had."""
        if hasattr(self, "broker"):
            self.drain()
            self.broker.close(now=self.now)
        shutil.rmtree(self.path, ignore_errors=True)

    def drain(self) -> None:
        self.pause_topic(False)
        for number in list(self.clients):
            client = self.clients.pop(number)
            self.broker.leave(self.channel(client.channel), client.subscription, now=self.now)
            for waits in self.models[client.channel].unfinished.values():
                if waits.owner == number:
                    waits.owner = None
        for name, model in self.models.items():
            self.broker.pause_channel("t", name, False)
            model.paused = False
            self.subscribe(name, 2500, heartbeats=True)
        for _ in range(3 + len(self.bodies) * self.by_key):  # of each key one message at a time
            if self.by_key and not any(model.unfinished for model in self.models.values()):
                break
            self.time_passes(10_000)
            for name, model in self.models.items():
                held = [each for each, waits in model.unfinished.items() if waits.owner is not None]
                assert sorted(self.channel(name).finish(held, now=self.now)) == sorted(held)
                for sequence in held:
                    del model.unfinished[sequence]
            self.settle()
        for name, model in self.models.items():
            channel = self.channel(name)
            waiting = f"requeued {list(channel.ledger.ready)}, deferred {channel.ledger.deferred.sequences()}"
            facts = f"cursor {channel.cursor}, {waiting}"
            assert not model.unfinished, f"{name}: never came again: {sorted(model.unfinished)}; {facts}"


def passed_over(channel: Channel, sequence: int) -> bool:
    """Whether the cursor has skipped all from `sequence` on, as it was deferred and never delivered."""
    return all(channel.ledger.deliveries(each) == 0 for each in range(sequence, channel.cursor))


BrokerMachine.TestCase.settings = settings(
    max_examples=examples(80, soak=2000),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestBroker = BrokerMachine.TestCase


class SingleMachine(BrokerMachine):
    """The same, where only one consumer of a channel gets messages; several wait for them from the beginning."""

    single = True

    @initialize(sizes=st.lists(st.integers(0, 4), min_size=2, max_size=4), named=st.integers(0, 3))
    def begin(self, sizes: list[int], named: int) -> None:
        super().begin()
        for channel in CHANNELS:
            for at, size in enumerate(sizes):
                self.subscribe(channel, size, heartbeats=bool(at % 2))
            for at in range(named):
                self.read_as(channel, NAMES[at % 2], 2)
        for _ in range(4):
            self.publish_batch(5, 10)

    @precondition(lambda self: len(self.bodies) < 100)
    @rule()
    def publish_more(self) -> None:
        self.publish_batch(3, 10)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), verb=st.sampled_from(["finish", "finish", "requeue", "stop", "leave"]))
    def be_active(self, data: st.DataObject, verb: str) -> None:
        """Have whoever holds messages answer some, ask for nothing, or leave."""
        channel, sequence = data.draw(st.sampled_from(self.held()))
        model = self.models[channel]
        owner = model.unfinished[sequence].owner
        assert owner is not None
        holder = self.holder(channel, owner)
        if verb == "finish":
            assert self.channel(channel).finish([sequence], now=self.now, holder=holder) == [sequence]
            model.finish(sequence)
        elif verb == "requeue":
            self.channel(channel).requeue(sequence, holder, delay=0, now=self.now)
            model.unfinished[sequence].owner = None
        elif isinstance(owner, int):
            client = self.clients[owner]
            if verb == "leave":
                del self.clients[owner]
                self.broker.leave(self.channel(channel), client.subscription, now=self.now)
                for waits in model.unfinished.values():
                    waits.owner = None if waits.owner == owner else waits.owner
            else:
                client.subscription.size = 0
                self.broker.mark_ready(self.channel(channel))
        self.settle()


SingleMachine.TestCase.settings = settings(
    BrokerMachine.TestCase.settings, max_examples=examples(60, soak=2000), stateful_step_count=50
)
TestSingle = SingleMachine.TestCase
