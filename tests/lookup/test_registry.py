"""The registry, without sockets or a clock."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from example_counts import examples
from lapwing import names
from lapwing.lookup.registry import NEVER, PeerFull, Registry, RegistryFull
from lapwing.wire.nsq.lookup import PeerInfo

SECOND = 1_000_000_000
INACTIVE = 300 * SECOND
LIFETIME = 45 * SECOND
DAY = 86_400 * SECOND


def registry(**more):
    return Registry(inactive_after=INACTIVE, tombstone_lifetime=LIFETIME, departed_lifetime=DAY, **more)


def peer(address="10.0.0.7", port=4151):
    return PeerInfo(broadcast_address=address, hostname="a", tcp_port=4150, http_port=port, version="1.3.0")


def test_a_channel_brings_its_topic():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t", "c")

    assert (known.topics, known.channels("t")) == (["t"], ["c"])
    assert known.lookup("t", now=0) == [producer]


def test_two_connections_with_one_address_are_two_producers():
    known = registry()
    both = [known.join(f"1:{port}", peer(), now=0) for port in (1, 2)]
    for producer in both:
        known.register(producer, "t")

    assert set(known.lookup("t", now=0)) == set(both)


def test_a_producer_is_active_up_to_its_timeout_and_then_only_hidden():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t")

    assert known.lookup("t", now=INACTIVE) == [producer]
    assert known.lookup("t", now=INACTIVE + 1) == []
    assert known.active(now=INACTIVE + 1) == []
    producer.last_update = INACTIVE
    assert known.lookup("t", now=INACTIVE + 1) == [producer]


def test_what_was_registered_outlives_who_registered_it():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t#ephemeral", "c#ephemeral")
    known.leave(producer)

    assert known.topics == ["t#ephemeral"]
    assert known.channels("t#ephemeral") == ["c#ephemeral"]
    assert known.lookup("t#ephemeral", now=0) == []
    assert known.active(now=0) == []


def test_unregister_takes_off_a_channel_and_nothing_else():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t", "c")
    known.unregister(producer, "t", "c")

    assert known.channels("t") == ["c"]
    assert known.lookup("t", now=0) == [producer]


def test_an_ephemeral_channel_goes_with_its_last_producer():
    known = registry()
    first, second = (known.join(f"1:{port}", peer(), now=0) for port in (1, 2))
    for producer in (first, second):
        known.register(producer, "t", "c#ephemeral")
    known.unregister(first, "t", "c#ephemeral")
    assert known.channels("t") == ["c#ephemeral"]
    known.unregister(second, "t", "c#ephemeral")

    assert known.channels("t") == []


def test_an_ephemeral_topic_goes_and_leaves_its_channels():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t#ephemeral", "c")
    known.unregister(producer, "t#ephemeral")

    assert known.topics == []
    assert known.channels("t#ephemeral") == ["c"]
    assert not producer.channels


def test_a_tombstone_hides_a_producer_of_one_topic_for_a_while():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    for topic in ("t", "u"):
        known.register(producer, topic)
    assert known.tombstone("t", "10.0.0.7:4151", now=0) == 1
    known.register(producer, "t")

    assert known.lookup("t", now=LIFETIME - 1) == []
    assert known.tombstoned(producer, "t", now=LIFETIME - 1)
    assert known.lookup("u", now=0) == [producer]
    assert known.lookup("t", now=LIFETIME) == [producer]
    assert [at for name, _, at in known.places() if name == "topic:t:"] == [0]


def test_unregistering_and_registering_again_lifts_a_tombstone():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t")
    known.tombstone("t", "10.0.0.7:4151", now=0)
    known.unregister(producer, "t")
    known.register(producer, "t")

    assert known.lookup("t", now=0) == [producer]


def test_a_tombstone_for_nobody_is_no_error():
    known = registry()

    assert known.tombstone("t", "10.0.0.7:4151", now=0) == 0


def test_a_deleted_topic_is_gone_until_it_is_registered_anew():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t", "c")
    known.delete_topic("t")
    assert (known.topics, known.channels("t"), len(known)) == ([], [], 0)
    known.register(producer, "t", "c")

    assert known.lookup("t", now=0) == [producer]
    known.leave(producer)


def test_a_star_is_no_wildcard():
    known = registry()
    known.create("t", "c")
    known.delete_topic("*")

    assert known.topics == ["t"]
    assert known.channels("*") == []


def test_a_full_registry_refuses_what_is_new_and_takes_what_is_known():
    known = registry(max_registrations=2)
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t", "c")
    with pytest.raises(RegistryFull):
        known.register(producer, "u")
    with pytest.raises(RegistryFull):
        known.create("t", "d")
    known.register(producer, "t", "c")
    known.delete_channel("t", "c")
    known.create("t", "d")

    assert len(known) == 2


def test_time_in_which_nobody_was_heard_does_not_make_producers_inactive():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t")
    later = known.inactive_after + 10
    assert known.lookup("t", now=later) == []
    known.allow(later)

    assert known.lookup("t", now=later) == [producer]


def test_one_producer_registers_no_more_than_it_may_and_others_are_free_to():
    known = registry(max_per_producer=3)
    producer, other = known.join("1:1", peer(), now=0), known.join("1:2", peer(), now=0)
    known.register(producer, "t", "c")
    known.register(producer, "u")
    known.register(producer, "t", "c")
    for topic, channel in (("v", ""), ("t", "d")):
        with pytest.raises(PeerFull):
            known.register(producer, topic, channel)
    known.register(other, "v", "c")
    known.unregister(producer, "u")
    known.register(producer, "v")

    assert known.topics == ["t", "u", "v"]
    assert known.lookup("v", now=0) == [other, producer]


TOPICS = st.sampled_from(["t", "u", "e#ephemeral", "*"])
CHANNELS = st.sampled_from(["", "c", "d", "x#ephemeral"])
WHO = st.integers(0, 3)


class AgainstNaiveModel(RuleBasedStateMachine):
    """The registry beside the same thing as one set of tuples, as the specification words it."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.real = registry()
        self.connected = {}  # who -> the real producer
        self.heard = {}  # who -> time
        self.known = set()  # (category, topic, channel)
        self.places = set()  # (category, topic, channel, who)
        self.tombstones = {}  # (topic, who) -> time

    @rule(who=WHO, port=st.sampled_from([1, 2]))
    def connect(self, who, port):
        self.disconnect(who)
        self.connected[who] = self.real.join(f"1:{who}", peer(port=port), now=self.now)
        self.heard[who] = self.now

    @rule(who=WHO)
    def disconnect(self, who):
        if who in self.connected:
            self.real.leave(self.connected.pop(who))
            self.places = {place for place in self.places if place[3] != who}
            self.tombstones = {key: at for key, at in self.tombstones.items() if key[1] != who}

    @rule(who=WHO)
    def ping(self, who):
        if who in self.connected:
            self.connected[who].last_update = self.heard[who] = self.now

    @rule(seconds=st.integers(0, 200))
    def wait(self, seconds):
        self.now += seconds * SECOND

    @rule(who=WHO, topic=TOPICS, channel=CHANNELS)
    def register(self, who, topic, channel):
        if who in self.connected:
            self.real.register(self.connected[who], topic, channel)
            self.create_in_model(topic, channel)
            self.places.add(("topic", topic, "", who))
            if channel:
                self.places.add(("channel", topic, channel, who))

    @rule(who=WHO, topic=TOPICS, channel=CHANNELS)
    def unregister(self, who, topic, channel):
        if who not in self.connected:
            return
        self.real.unregister(self.connected[who], topic, channel)
        if channel:
            self.places.discard(("channel", topic, channel, who))
            gone = ("channel", topic, channel)
        else:
            self.places = {place for place in self.places if (place[1], place[3]) != (topic, who)}
            self.tombstones.pop((topic, who), None)
            gone = ("topic", topic, "")
        if names.ephemeral(gone[2] or gone[1]) and not any(place[:3] == gone for place in self.places):
            self.known.discard(gone)

    def create_in_model(self, topic, channel):
        self.known.add(("topic", topic, ""))
        if channel:
            self.known.add(("channel", topic, channel))

    @rule(topic=TOPICS, channel=CHANNELS)
    def create(self, topic, channel):
        self.real.create(topic, channel)
        self.create_in_model(topic, channel)

    @rule(topic=TOPICS)
    def delete_topic(self, topic):
        self.real.delete_topic(topic)
        self.known = {one for one in self.known if one[1] != topic}
        self.places = {place for place in self.places if place[1] != topic}
        self.tombstones = {key: at for key, at in self.tombstones.items() if key[0] != topic}

    @rule(topic=TOPICS, channel=CHANNELS.filter(bool))
    def delete_channel(self, topic, channel):
        assert self.real.delete_channel(topic, channel) is (("channel", topic, channel) in self.known)
        self.known.discard(("channel", topic, channel))
        self.places = {place for place in self.places if place[:3] != ("channel", topic, channel)}

    @rule(topic=TOPICS, port=st.sampled_from([1, 2]))
    def tombstone(self, topic, port):
        self.real.tombstone(topic, f"10.0.0.7:{port}", now=self.now)
        for category, place_topic, _, who in self.places:
            if (category, place_topic) == ("topic", topic) and self.connected[who].peer.http_port == port:
                self.tombstones[topic, who] = self.now

    @invariant()
    def they_know_the_same(self):
        channels = {
            ("channel", topic, one) for topic in ("t", "u", "e#ephemeral", "*") for one in self.real.channels(topic)
        }
        assert {("topic", topic, "") for topic in self.real.topics} | channels == self.known
        assert len(self.real) == len(self.known)

    @invariant()
    def they_answer_the_same(self):
        for topic in ("t", "u", "e#ephemeral", "*"):
            expected = {
                who
                for category, place_topic, _, who in self.places
                if (category, place_topic) == ("topic", topic)
                and self.now - self.heard[who] <= INACTIVE
                and self.now - self.tombstones.get((topic, who), NEVER) >= LIFETIME
            }
            assert {producer.id for producer in self.real.lookup(topic, now=self.now)} == {
                f"1:{who}" for who in expected
            }

    @invariant()
    def they_place_the_same(self):
        clients = {("client", "", "", f"1:{who}") for who in self.connected}
        expected = clients | {(*place[:3], f"1:{place[3]}") for place in self.places}
        found = [(*name.split(":"), producer.id) for name, producer, _ in self.real.places()]
        assert sorted(found) == sorted(expected)


TestAgainstNaiveModel = AgainstNaiveModel.TestCase
TestAgainstNaiveModel.settings = settings(max_examples=examples(200), stateful_step_count=40)


def departed(known, topic=None, now=0):
    return [(one.description["http_port"], sorted(one.topics)) for one in known.departed.listed(topic, now=now)]


def test_a_producer_that_left_is_remembered_until_it_is_back_or_a_day_is_over():
    known = registry()
    producer = known.join("1:1", peer(), now=5)
    for topic in ("t", "s", "e#ephemeral"):
        known.register(producer, topic)
    known.leave(producer)

    assert departed(known) == [(4151, ["s", "t"])]
    assert departed(known, "t") == departed(known)
    assert departed(known, "e#ephemeral") == []
    again = known.join("1:2", peer(), now=6)
    known.register(again, "t")
    assert departed(known) == [(4151, ["s"])]
    known.leave(again)
    assert departed(known) == [(4151, ["s", "t"])]
    known.delete_topic("s")
    assert departed(known) == [(4151, ["t"])]
    assert departed(known, now=6 + DAY) == [(4151, ["t"])]
    assert departed(known, now=7 + DAY) == []


def test_a_producer_that_comes_back_under_another_address_is_not_departed():
    known = registry()
    producer = known.join("1:1", peer(), now=0)
    known.register(producer, "t")
    known.leave(producer)
    known.register(known.join("1:2", peer("10.0.0.8", port=4999), now=1), "t")
    assert departed(known) == [(4151, ["t"])]
    known.register(known.join("1:3", peer("10.0.0.8"), now=1), "t")

    assert departed(known) == []


def test_departed_producers_are_forgotten_by_name_and_when_there_are_too_many():
    known = registry()
    for port in range(300):
        producer = known.join(f"1:{port}", peer(port=port), now=port)
        known.register(producer, "t")
        known.leave(producer)

    assert [port for port, _ in departed(known)] == list(range(44, 300))
    assert known.departed.forget("10.0.0.7:99")
    assert not known.departed.forget("10.0.0.7:99")
    assert len(departed(known)) == 255
