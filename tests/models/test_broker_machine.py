"""Random histories of a broker on a real disk, against a model that anybody can believe."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapwing import ids, kernel
from lapwing.broker.broker import Broker
from lapwing.broker.options import Options
from lapwing.broker.storage import DiskStorage
from lapwing.sessions.nsq import CLOSING, Session, limits_of
from lapwing.wire.nsq.commands import Cls, Dpub, Fins, Mpub, Pub, Rdy, Req, Sub, Touch

MS = 1_000_000
TIMEOUT = 1000 * MS
CHANNELS = ("a", "b")


@dataclass
class Waits:
    """A message in the model of a channel: ready, in flight with a client, or deferred."""

    attempts: int = 0
    client: int | None = None
    deadline: int = 0
    due: int | None = None


@dataclass
class Model:
    """A channel: what is unfinished, by sequence; what a crash may bring back; and whether it is paused."""

    unfinished: dict[int, Waits] = field(default_factory=dict)
    revived: set[int] = field(default_factory=set)
    done_since_checkpoint: set[int] = field(default_factory=set)
    paused: bool = False


@dataclass
class Client:
    """A consumer: its session, and what it was sent and has not answered for."""

    session: Session
    channel: str
    ready: int
    held: dict[int, bytes] = field(default_factory=dict)


class BrokerMachine(RuleBasedStateMachine):
    """One topic, two channels, any number of consumers; time moves only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp(prefix="lapwing-machine-")
        self.now = 1_000_000 * MS
        self.bodies: list[bytes] = []
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
            data_path=self.path, max_bytes_per_file=700, msg_timeout=TIMEOUT, min_free_bytes=0, node_id=5
        )
        self.open()

    def open(self) -> None:
        storage = DiskStorage(self.path, 5, self.options.log_options, now=lambda: self.now, report=lambda text: None)
        self.broker = Broker(self.options, storage)
        self.broker.restore(now=self.now)
        self.producer = self.session()
        self.broker.topic("t")
        self.settle()

    def session(self) -> Session:
        return Session(self.broker, limits_of(self.options), on_ready=lambda: None, hang_up=lambda: None)

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
            frames = b"".join(client.session.replies.ready)
            client.session.replies.ready.clear()
            if client.session.subscription is not None:
                client.session.subscription.unsent = 0
            self.delivered(number, client, frames)

    def delivered(self, number: int, client: Client, data: bytes) -> None:
        at = 0
        model = self.models[client.channel]
        while at < len(data):
            size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 7]
            if kind != 2:
                at += 4 + size
                continue
            assert not model.paused, "a paused channel delivers nothing"
            messages, at = kernel.decode_messages(data, at, len(data))
            for _, attempts, message_id, body in messages:
                sequence = int(message_id, 16) - (5 << 54)
                assert body == self.bodies[sequence]
                if sequence in model.revived and sequence not in model.unfinished:
                    model.unfinished[sequence] = Waits(attempts=attempts - 1)
                    model.revived.discard(sequence)
                assert sequence in model.unfinished, f"{sequence} was delivered again after it was finished"
                waits = model.unfinished[sequence]
                assert waits.client is None, f"{sequence} is in flight twice"
                early = waits.due is not None and waits.due > self.now and sequence not in model.revived
                assert not early, f"{sequence} came before its time"
                if sequence not in model.revived:
                    assert attempts == waits.attempts + 1, f"{sequence}: {attempts} attempts, {waits.attempts} before"
                if waits.attempts == 0 and sequence not in self.delays:
                    assert sequence > self.highest.get(number, -1), "first deliveries are in order"
                    self.highest[number] = sequence
                waits.attempts = attempts
                waits.client, waits.due = number, None
                waits.deadline = self.now + TIMEOUT
                client.held[sequence] = message_id
            assert len(client.held) <= client.ready, "no more than it is ready for"

    # --- rules -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), size=st.integers(1, 400))
    def publish_batch(self, count: int, size: int) -> None:
        bodies = [b"%d-%d-" % (len(self.bodies), index) + b"x" * size for index in range(count)]
        self.producer.handle(Mpub.of("t", bodies), now=self.now)
        self.bodies += bodies
        self.settle()

    @rule(delay=st.integers(0, 3000))
    def publish_deferred(self, delay: int) -> None:
        body = b"deferred-%d" % len(self.bodies)
        if delay:
            self.delays[len(self.bodies)] = delay * MS
            self.producer.handle(Dpub("t", delay * MS, body), now=self.now)
        else:
            self.producer.handle(Pub("t", body), now=self.now)
        self.bodies.append(body)
        self.settle()

    @rule(channel=st.sampled_from(CHANNELS), ready=st.integers(0, 6))
    def subscribe(self, channel: str, ready: int) -> None:
        session = self.session()
        session.handle(Sub("t", channel), now=self.now)
        session.handle(Rdy(ready), now=self.now)
        if channel not in self.models:
            self.models[channel] = Model()
            self.fan_out()
        self.number += 1
        self.clients[self.number] = Client(session, channel, ready)
        self.settle()

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.clients)), label="client")

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), ready=st.integers(0, 8))
    def change_ready(self, data: st.DataObject, ready: int) -> None:
        client = self.clients[self.pick(data)]
        client.ready = ready if client.session.state != CLOSING else 0
        client.session.handle(Rdy(ready), now=self.now)
        self.settle()

    @precondition(lambda self: any(client.held for client in self.clients.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(n for n, client in self.clients.items() if client.held)))
        client = self.clients[number]
        chosen = data.draw(st.lists(st.sampled_from(sorted(client.held)), unique=True, min_size=1))
        ids = [client.held.pop(sequence) for sequence in chosen]
        client.session.handle(Fins.of(ids), now=self.now)
        assert not any(frame[7] == 1 for frame in client.session.replies.ready if len(frame) > 7)
        model = self.models[client.channel]
        for sequence in chosen:
            del model.unfinished[sequence]
            model.revived.discard(sequence)
            model.done_since_checkpoint.add(sequence)
        self.settle()

    @precondition(lambda self: any(client.held for client in self.clients.values()))
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 500, 2000]))
    def requeue(self, data: st.DataObject, delay: int) -> None:
        number = data.draw(st.sampled_from(sorted(n for n, client in self.clients.items() if client.held)))
        client = self.clients[number]
        sequence = data.draw(st.sampled_from(sorted(client.held)))
        client.session.handle(Req(client.held.pop(sequence), delay * MS), now=self.now)
        waits = self.models[client.channel].unfinished[sequence]
        waits.client = None
        waits.due = self.now + delay * MS if delay else None
        self.settle()

    @precondition(lambda self: any(client.held for client in self.clients.values()))
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(n for n, client in self.clients.items() if client.held)))
        client = self.clients[number]
        sequence = data.draw(st.sampled_from(sorted(client.held)))
        client.session.handle(Touch(client.held[sequence]), now=self.now)
        self.models[client.channel].unfinished[sequence].deadline = self.now + TIMEOUT
        self.settle()

    @precondition(lambda self: self.clients and self.bodies)
    @rule(data=st.data(), wanted=st.sampled_from(["FIN", "REQ", "TOUCH"]))
    def answer_for_what_it_does_not_hold(self, data: st.DataObject, wanted: str) -> None:
        client = self.clients[self.pick(data)]
        sequence = data.draw(st.integers(0, len(self.bodies)))
        if sequence in client.held:
            return
        message_id = ids.encode(5, sequence)
        command = {"FIN": Fins.of([message_id]), "REQ": Req(message_id, 0), "TOUCH": Touch(message_id)}[wanted]
        client.session.handle(command, now=self.now)
        waits = self.models[client.channel].unfinished.get(sequence)
        reason = b"client does not own message" if waits and waits.client is not None else b"ID not in flight"
        refusal = b"E_%b_FAILED %b %b failed %b" % (wanted.encode(), wanted.encode(), message_id, reason)
        assert client.session.replies.ready[-1].endswith(refusal)
        self.settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def begin_to_close(self, data: st.DataObject) -> None:
        client = self.clients[self.pick(data)]
        client.session.handle(Cls(), now=self.now)
        client.ready = 0
        self.settle()

    @rule(step=st.integers(1, 1500))
    def time_passes(self, step: int) -> None:
        self.now += step * MS
        while self.broker.scan(self.now):
            pass
        for model in self.models.values():
            for sequence, waits in model.unfinished.items():
                if waits.client is not None and waits.deadline + 5 * MS <= self.now:
                    self.clients[waits.client].held.pop(sequence)
                    waits.client = None
                if waits.due is not None and waits.due <= self.now:
                    waits.due = None
        self.reconcile()
        self.settle()

    def reconcile(self) -> None:
        """A deadline within the few ms that a lease may be late is whatever the broker says it is."""
        topic = self.broker.topics["t"]
        for name, model in self.models.items():
            for sequence, waits in model.unfinished.items():
                if waits.client is not None and waits.deadline <= self.now:
                    held = topic.channels[name].pending.holder_of(sequence)
                    if held is None:
                        self.clients[waits.client].held.pop(sequence)
                        waits.client = None

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        number = self.pick(data)
        client = self.clients.pop(number)
        client.session.leave(now=self.now)
        for waits in self.models[client.channel].unfinished.values():
            if waits.client == number:
                waits.client = None
        self.settle()

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
        self.broker.existing_channel("t", name).empty()
        model = self.models[name]
        model.done_since_checkpoint |= set(model.unfinished) | model.revived
        model.unfinished.clear()
        model.revived.clear()
        for client in self.clients.values():
            if client.channel == name:
                client.held.clear()
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
        topic, model = self.broker.topics["t"], self.models[name]
        channel = topic.channels[name]
        sequence = data.draw(st.integers(topic.log.first, self.fanned))
        back = sequence < channel.cursor
        dropped = {each for run in topic.emptied.runs for each in range(*run)}
        channel.seek(sequence, back=True)
        self.broker.tell(topic, now=self.now)
        for number, client in self.clients.items():
            if client.channel == name:
                client.held = {} if back else {each: text for each, text in client.held.items() if each >= sequence}
                self.highest.pop(number, None)
        if back:
            again = [each for each in range(sequence, self.fanned) if each not in dropped]
            dues = {each: self.times[each] + self.delays[each] for each in again if each in self.delays}
            model.unfinished = {each: Waits(due=dues.get(each)) for each in again}
            model.revived.clear()
        else:
            model.unfinished = {each: waits for each, waits in model.unfinished.items() if each >= sequence}
            model.revived = {each for each in model.revived if each >= sequence}
        model.done_since_checkpoint.clear()
        self.settle()

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def delete_channel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.broker.delete_channel("t", name)
        self.broker.save_catalog()
        del self.models[name]
        for number, client in list(self.clients.items()):
            if client.channel == name:
                del self.clients[number]
                client.session.leave(now=self.now)
        self.settle()

    @rule()
    def checkpoint(self) -> None:
        self.now += 10 * MS  # a busy channel is not told of more often than that
        self.broker.checkpoint(now=self.now)
        for model in self.models.values():
            model.done_since_checkpoint.clear()

    @rule()
    def trim(self) -> None:
        self.now += 10 * MS
        self.broker.checkpoint(now=self.now)
        self.broker.trim(now=self.now, everywhere=True)
        for model in self.models.values():
            model.done_since_checkpoint.clear()

    @rule()
    def trim_although_the_journal_is_behind(self) -> None:
        self.broker.trim(now=self.now, everywhere=True)

    @rule()
    def restart(self) -> None:
        self.broker.close(now=self.now)
        self.reopen()
        for model in self.models.values():
            model.done_since_checkpoint.clear()

    @rule()
    def kill(self) -> None:
        self.broker.storage.close()
        self.reopen()
        for model in self.models.values():
            # finished after the last checkpoint: may come again; deferred or counted after it: may have been forgotten
            model.revived |= model.done_since_checkpoint | set(model.unfinished)
            model.done_since_checkpoint.clear()

    def reopen(self) -> None:
        self.clients.clear()
        self.highest.clear()
        for model in self.models.values():
            for waits in model.unfinished.values():
                waits.client = None
        before, self.models_before = self.now, self.models
        self.open()
        assert before == self.now
        topic = self.broker.topics["t"]
        assert set(topic.channels) == set(self.models)
        for name, model in self.models.items():
            assert topic.channels[name].paused == model.paused
        assert topic.paused == self.paused

    # --- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def nobody_starves(self) -> None:
        topic = self.broker.topics.get("t") if hasattr(self, "broker") else None
        if topic is None:
            return
        for name, model in self.models.items():
            channel = topic.channels[name]
            assert topic.log.first <= channel.cursor, f"{name}: the log has let go of what was never delivered"
            room = [
                client for client in self.clients.values() if client.channel == name and client.ready > len(client.held)
            ]
            if room and not model.paused:
                assert channel.depth == 0, f"{name}: {channel.depth} ready although somebody has room"
            if not model.revived:
                flying = sum(waits.client is not None for waits in model.unfinished.values())
                assert channel.in_flight_count == flying
                assert channel.depth + len(channel.pending.deferred) + flying == len(model.unfinished)

    def teardown(self) -> None:
        """Whatever happened, everything that is not finished can still be had."""
        if hasattr(self, "broker"):
            self.drain()
            self.broker.close(now=self.now)
        shutil.rmtree(self.path, ignore_errors=True)

    def drain(self) -> None:
        self.pause_topic(False)
        for client in list(self.clients):
            session = self.clients.pop(client).session
            session.leave(now=self.now)
        for model in self.models.values():
            for waits in model.unfinished.values():
                waits.client = None
        for name in self.models:
            self.pause_channel_now(name)
            self.subscribe(name, 2500)
        for _ in range(3):
            self.time_passes(10_000)
            for client in self.clients.values():
                ids = list(client.held.values())
                if ids:
                    client.session.handle(Fins.of(ids), now=self.now)
                for sequence in list(client.held):
                    del self.models[client.channel].unfinished[sequence]
                client.held.clear()
            self.settle()
        for name, model in self.models.items():
            channel = self.broker.existing_channel("t", name)
            pending = channel.pending
            waiting = f"requeued {list(pending.requeued)}, deferred {pending.deferred.sequences()}"
            facts = f"cursor {channel.cursor}, {waiting}"
            assert not model.unfinished, f"{name}: never came again: {sorted(model.unfinished)}; {facts}"

    def pause_channel_now(self, name: str) -> None:
        self.broker.pause_channel("t", name, False)
        self.models[name].paused = False


BrokerMachine.TestCase.settings = settings(
    max_examples=2000 if os.environ.get("LAPWING_SOAK") else 80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestBroker = BrokerMachine.TestCase
