"""Random histories of channels that deliver by key: order of deliveries and of effects, limits, and nobody starves."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from test_broker_machine import CHANNELS, MS, RECEIPT, BrokerMachine, Model, Waits

from appending import append
from example_counts import examples
from lapwing.broker.channel import keys
from lapwing.broker.channel.ledger import State
from lapwing.broker.settings.policies import Policy

KEYS = (None, "a", "b", "c")
SETTINGS = (
    {"order": "key"},
    {"order": "key", "fair": True, "key_weights": "a=2"},
    {"fair": True},
    {"fair": True, "max_in_flight_per_key": 2, "key_weights": "a=3"},
    {"max_in_flight_per_key": 1},
    {},
)


class KeyedMachine(BrokerMachine):
    """The channels deliver by key, in a way that changes; a message has one of few keys, or none."""

    by_key = True

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str | None] = []
        self.set: dict[str, dict[str, object]] = {}

    @initialize(
        first=st.sampled_from(SETTINGS[:2]),
        second=st.sampled_from(SETTINGS),
        sizes=st.lists(st.integers(1, 4), max_size=3),
    )
    def begin(self, first: dict[str, object], second: dict[str, object], sizes: list[int]) -> None:
        super().begin()
        keys.KEPT_PAGES = 3  # so that some are dropped and read again
        for channel, changes in zip(CHANNELS, (first, second), strict=True):
            self.choose(channel, changes)
            for at, size in enumerate(sizes):
                self.subscribe(channel, size, heartbeats=bool(at % 2))

    def choose(self, channel: str, changes: dict[str, object]) -> None:
        self.set[channel] = changes
        if changes:
            self.broker.settings.put_policy(Policy(f"keys-{channel}", "t", channel, 5, changes), now=self.now)
        else:
            self.broker.settings.remove_policy(f"keys-{channel}", now=self.now)

    # --- what the model knows --------------------------------------------------------------------------------------

    def name_of(self, model: Model) -> str:
        return next(name for name, each in self.models.items() if each is model)

    def settled(self, model: Model) -> dict[str, object]:
        return self.set[self.name_of(model)]

    def is_ready(self, model: Model, sequence: int) -> bool:
        """Whether nothing but its key keeps a message. After a restart some are deferred until time passes."""
        waits = model.unfinished[sequence]
        if waits.owner is not None or waits.due is not None:
            return False
        return self.channel(self.name_of(model)).state_of(sequence) is not State.DEFERRED

    def of_key(self, model: Model, sequence: int) -> list[tuple[int, Waits]]:
        """The other unfinished messages of its key; none where it has no key."""
        key = self.keys[sequence]
        if key is None:
            return []
        return [(at, waits) for at, waits in model.unfinished.items() if at != sequence and self.keys[at] == key]

    def is_out(self, model: Model, sequence: int, waits: Waits) -> bool:
        """Whether a message keeps its key from delivering another, where the key is ordered."""
        rests = not self.is_ready(model, sequence) and sequence not in model.revived
        return waits.owner is not None or (rests and waits.attempts > 0)

    def check_turn(self, model: Model, sequence: int) -> None:
        chosen, others = self.settled(model), self.of_key(model, sequence)
        limit = 1 if chosen.get("order") else int(str(chosen.get("max_in_flight_per_key", 0)))
        if chosen.get("order"):
            assert not [at for at, waits in others if self.is_out(model, at, waits)], f"{sequence}: its key is blocked"
        if limit:
            assert sum(waits.owner is not None for _, waits in others) < limit, f"{sequence}: too many of its key"
        if limit == 1:  # else the lower one may have gone to another consumer in the same turn
            before = [
                at for at, _ in others
                if at < sequence and at not in model.revived and self.is_ready(model, at)
            ]  # fmt: skip
            assert not before, f"{sequence} came before {before} of the same key"

    def may_be_claimed(self, model: Model, sequence: int) -> bool:
        chosen, others = self.settled(model), self.of_key(model, sequence)
        if chosen.get("order"):
            return not any(self.is_out(model, at, waits) for at, waits in others)
        limit = int(str(chosen.get("max_in_flight_per_key", 0)))
        return not limit or sum(waits.owner is not None for _, waits in others) < limit

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6), size=st.integers(1, 200))
    def publish_batch(self, keys: list[str | None], size: int) -> None:
        for key in keys:
            body, message_id = b"%d-" % len(self.bodies) + b"x" * size, f"of {len(self.bodies)}"
            headers = {"message-id": message_id} | ({"key": key} if key else {})
            append(self.topic, body, RECEIPT, now=self.now, headers=headers)
            self.bodies.append(body)
            self.message_ids.append(message_id)
            self.keys.append(key)
        self.settle()

    @rule(delay=st.integers(0, 3000), key=st.sampled_from(KEYS))
    def publish_deferred(self, delay: int, key: str | None) -> None:
        body, message_id = b"deferred-%d" % len(self.bodies), f"of {len(self.bodies)}"
        if delay:
            self.delays[len(self.bodies)] = delay * MS
        headers = {"message-id": message_id} | ({"key": key} if key else {})
        append(self.topic, body, RECEIPT, now=self.now, defer=delay * MS, headers=headers)
        self.bodies.append(body)
        self.message_ids.append(message_id)
        self.keys.append(key)
        self.settle()

    @rule(channel=st.sampled_from(CHANNELS), changes=st.sampled_from(SETTINGS))
    def change_settings(self, channel: str, changes: dict[str, object]) -> None:
        self.choose(channel, changes)
        self.settle()

    @precondition(lambda self: self.held())
    @rule(data=st.data(), verb=st.sampled_from(["finish", "finish", "finish", "requeue", "leave"]))
    def answer(self, data: st.DataObject, verb: str) -> None:
        """Have a consumer answer, so that many messages pass."""
        channel, sequence = data.draw(st.sampled_from(self.held()))
        model = self.models[channel]
        owner = model.unfinished[sequence].owner
        assert owner is not None
        holder = self.holder(channel, owner)
        if verb == "finish":
            chosen = model.held_by(owner)
            assert sorted(self.channel(channel).finish(chosen, now=self.now, holder=holder)) == chosen
            for each in chosen:
                model.finish(each)
        elif verb == "requeue":
            self.channel(channel).requeue(sequence, holder, delay=0, now=self.now)
            model.unfinished[sequence].owner = None
        elif isinstance(owner, int):
            client = self.clients.pop(owner)
            self.broker.leave(self.channel(channel), client.subscription, now=self.now)
            for waits in model.unfinished.values():
                waits.owner = None if waits.owner == owner else waits.owner
        self.settle()

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def no_key_that_may_deliver_waits(self) -> None:
        if not hasattr(self, "broker"):
            return
        for name, model in self.models.items():
            room = [each for each in self.clients.values() if each.channel == name and each.subscription.room > 0]
            if not room or model.paused or model.revived:
                continue
            for sequence in model.unfinished:
                if not self.is_ready(model, sequence) or not self.may_be_claimed(model, sequence):
                    continue
                behind = any(
                    waits.owner is None and waits.due is None and not self.is_ready(model, at)
                    for at, waits in self.of_key(model, sequence)
                )
                assert behind, f"{name}: {sequence} waits for nothing"

    @invariant()
    def what_is_derived_is_right(self) -> None:
        if not hasattr(self, "broker"):
            return
        for channel in self.topic.channels.values():
            keys = channel.keys
            if keys is None or keys._stale or keys._unread:
                continue
            ledger = channel.ledger
            out: dict[str | None, int] = {}
            for sequence in ledger.sequences():
                state = ledger.state_of(sequence)
                rests = state is State.DEFERRED and not (keys.ordered and ledger.deliveries(sequence))
                comes_again = channel.cursor <= sequence < channel.overlap and sequence not in channel.ahead
                if state is not State.READY and not rests and not comes_again:
                    out[self.keys[sequence]] = out.get(self.keys[sequence], 0) + 1
            known = {key.name.decode(): key.out for key in keys._keys.values() if key.out and key.name is not None}
            if keys._keyless.out:
                known[None] = keys._keyless.out
            assert known == out
            assert all(key.waits() and not keys.may_deliver(key) for key in keys.blocked)


KeyedMachine.TestCase.settings = settings(
    BrokerMachine.TestCase.settings, max_examples=examples(60, soak=4000), stateful_step_count=50
)
TestKeyed = KeyedMachine.TestCase


def test_a_ripe_message_comes_behind_lower_ones_of_its_key_also_if_nobody_consumed_meanwhile() -> None:
    machine = KeyedMachine()
    machine.begin(first={"order": "key"}, second={"order": "key"}, sizes=[1])
    machine.kill()
    machine.publish_batch(keys=["a"], size=1)
    machine.publish_deferred(delay=1, key="a")
    machine.time_passes(step=1)
    machine.teardown()
