"""Whole publishes like the last one skip the parser; nobody can tell, however the bytes arrive."""

import json
import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rawtalk import Raw, get, hmpub, hpub, mpub, post, pub

import daemons
from daemons import Daemon

CHANNELS = ("all", "headers")  # that `bodies_of` and `headers_of` consume


@pytest.fixture(scope="module", params=["auto", "asyncio"])
def nsqd(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with daemons.nsqd(f"--tcp-transport={request.param}") as daemon:
        yield daemon


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """Have the daemon do nothing for a while."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def bodies_of(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    with Raw(daemon) as raw:
        raw.ok(b"SUB %b all\n" % topic.encode())
        raw.send(b"RDY 2500\n")
        return [raw.message()[2] for _ in range(count)]


def headers_of(daemon: Daemon, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """The headers and the body of each message."""
    with Raw(daemon) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        raw.ok(b"SUB %b headers\n" % topic.encode())
        raw.send(b"RDY 2500\n")
        return [raw.headed() for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_publishes_in_any_pieces_is_stored_in_order_and_answered(nsqd: Daemon, seed: int) -> None:
    chance = random.Random(seed)
    topics = [f"runs{seed}_{letter}" for letter in "ab"]
    expected: dict[str, list[bytes]] = {topic: [] for topic in topics}
    commands = []
    headed = seed % 2 == 1
    for number in range(120):
        topic = chance.choice(topics[:1] * 6 + topics)
        bodies = [b"%d-%d" % (number, each) for each in range(chance.choice([1, 1, 1, 3]))]
        expected[topic] += bodies
        if headed and chance.random() < 0.8:
            pairs = [(b'{"n":"%b"}' % body, body) for body in bodies]
            commands.append(hpub(topic, *pairs[0]) if len(pairs) == 1 else hmpub(topic, pairs))
        else:
            commands.append(pub(topic, bodies[0]) if len(bodies) == 1 else mpub(topic, bodies))
        if chance.random() < 0.1:
            commands.append(b"NOP\n")
    stream = b"".join(commands)
    if chance.random() < 0.5:  # cut anywhere, else between commands
        cuts = sorted(chance.sample(range(1, len(stream)), 60))
        pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    else:
        pieces = commands
    with Raw(nsqd) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        for topic in topics:
            post(nsqd, f"/topic/create?topic={topic}")
            for channel in CHANNELS:
                post(nsqd, f"/channel/create?topic={topic}&channel={channel}")
        for piece in pieces:
            raw.send(piece)
        answers = [raw.frame() for command in commands if command != b"NOP\n"]

    assert set(answers) == {(0, b"OK")}
    for topic, bodies in expected.items():
        assert bodies_of(nsqd, topic, len(bodies)) == bodies
        for headers, body in headers_of(nsqd, topic, len(bodies)):
            assert headers in ((b"", b'{"n":"%b"}' % body) if headed else (b"",))


def test_a_publish_that_is_refused_is_refused_behind_a_run_too(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("refused", b"one"))
        raw.ok(pub("refused", b"two"))
        raw.send(pub("refused", b"three") + pub("refused", b""))

        assert raw.frame() == (0, b"OK")
        assert raw.error() == "E_BAD_MESSAGE PUB invalid message body size 0"
    assert bodies_of(nsqd, "refused", 3) == [b"one", b"two", b"three"]


def test_a_topic_that_was_deleted_is_created_again(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("again", b"one"))
        raw.ok(pub("again", b"two"))
        post(nsqd, "/topic/delete?topic=again")
        raw.ok(pub("again", b"three"))

    assert bodies_of(nsqd, "again", 1) == [b"three"]


def test_a_limit_holds_for_a_client_that_has_published_before(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(b"PUB limited\n\0\0\0\3one")
        post(nsqd, "/channel/create?topic=limited&channel=all")
        raw.ok(pub("limited", b"two"))
        post(nsqd, "/channel/settings?topic=limited&channel=all", b'{"max_depth": 3}', method="PATCH")
        raw.ok(pub("limited", b"three"))
        raw.send(pub("limited", b"four"))

        assert "channel all of topic limited is full: 3 messages wait, max_depth is 3" in raw.error()


def test_publishes_of_many_clients_are_answered_and_counted_each(nsqd: Daemon) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(nsqd)) for _ in range(20)]
        for client in clients:
            client.ok(pub("many", b"first"))
        with stopped(nsqd):  # so that all of them are read in one round
            for client in clients:
                client.send(b"".join(pub("many", b"%d" % number) for number in range(5)))
        for client in clients:
            assert [client.frame() for _ in range(5)] == [(0, b"OK")] * 5
        producers = json.loads(get(nsqd, "/stats?format=json&topic=many"))["producers"]

    counts = [topic["count"] for producer in producers for topic in producer["pub_counts"] if topic["topic"] == "many"]
    assert counts == [6] * 20
    expected = [b"first"] * 20 + [b"%d" % number for number in range(5)] * 20
    assert sorted(bodies_of(nsqd, "many", 120)) == sorted(expected)


def test_every_client_gets_the_error_when_the_disk_refuses_their_batch(nsqd: Daemon) -> None:
    unlimited = resource.RLIM_INFINITY
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(nsqd)) for _ in range(5)]
        for number, client in enumerate(clients):
            client.ok(pub("refusing", b"before %d" % number))
        with stopped(nsqd):
            resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (1, unlimited))
            for client in clients:
                client.send(pub("refusing", b"lost"))
        errors = [client.error() for client in clients]
        resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    assert all(error.startswith("E_PUB_FAILED PUB failed") for error in errors)
    with Raw(nsqd) as raw:
        raw.ok(pub("refusing", b"after"))
    assert bodies_of(nsqd, "refusing", 6) == [b"before %d" % number for number in range(5)] + [b"after"]


def test_clients_of_a_topic_that_is_deleted_in_between_publish_to_a_new_one(nsqd: Daemon) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(nsqd)) for _ in range(3)]
        for client in clients:
            client.ok(pub("gone", b"before"))
            client.ok(pub("gone", b"before"))
        post(nsqd, "/topic/delete?topic=gone")
        with stopped(nsqd):
            for client in clients:
                client.send(pub("gone", b"after"))
        for client in clients:
            assert client.frame() == (0, b"OK")

    assert bodies_of(nsqd, "gone", 3) == [b"after"] * 3


def test_what_is_no_whole_publish_in_a_round_of_publishes_is_parsed(nsqd: Daemon) -> None:
    with Raw(nsqd) as whole, Raw(nsqd) as half, Raw(nsqd) as other:
        for client in (whole, half, other):
            client.ok(pub("parts", b"before"))
        with stopped(nsqd):
            whole.send(pub("parts", b"whole"))
            half.send(pub("parts", b"half")[:-1])
            other.send(b"NOP\n" + mpub("parts", [b"one", b"two"]))
        assert whole.frame() == (0, b"OK")
        assert other.frame() == (0, b"OK")
        half.ok(b"f")

    assert sorted(bodies_of(nsqd, "parts", 7)) == sorted([b"before"] * 3 + [b"whole", b"half", b"one", b"two"])


def test_publishes_that_wait_for_each_answer_are_refused_and_taken_again_with_the_disk(nsqd: Daemon) -> None:
    unlimited = resource.RLIM_INFINITY
    with Raw(nsqd) as raw, Raw(nsqd) as other:
        for number in range(20):
            raw.ok(pub("waiting", b"%d" % number))
        resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (1, unlimited))
        raw.send(pub("waiting", b"lost"))
        assert raw.error().startswith("E_PUB_FAILED PUB failed")
        resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        for number in range(20, 40):
            other.ok(pub("waiting", b"%d" % number))

    assert bodies_of(nsqd, "waiting", 40) == [b"%d" % number for number in range(40)]


def test_a_consumer_gets_each_publish_of_a_client_that_waits_for_answers(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw, Raw(nsqd) as consumer:
        raw.ok(pub("watched", b"first"))
        consumer.ok(b"SUB watched all\n")
        consumer.send(b"RDY 100\n")
        assert consumer.message()[2] == b"first"
        for number in range(50):
            raw.ok(pub("watched", b"%d" % number))
            assert consumer.message()[2] == b"%d" % number
        producers = json.loads(get(nsqd, "/stats?format=json&topic=watched"))["producers"]

    assert [topic["count"] for producer in producers for topic in producer["pub_counts"]] == [51]


def test_publishes_that_wait_for_answers_survive_a_kill_in_order(tmp_path: Path) -> None:
    with daemons.nsqd(f"--data-path={tmp_path}") as daemon, Raw(daemon) as one, Raw(daemon) as two:
        for number in range(300):
            (two if number % 3 else one).ok(pub("kept", b"%d" % number))
        depth = json.loads(get(daemon, "/stats?format=json&topic=kept"))["topics"][0]["depth"]
        os.kill(daemon.pid, signal.SIGKILL)

    assert depth == 300
    with daemons.nsqd(f"--data-path={tmp_path}") as daemon:
        assert bodies_of(daemon, "kept", 300) == [b"%d" % number for number in range(300)]


def test_runs_of_messages_with_headers_keep_the_headers_of_each(nsqd: Daemon) -> None:
    topic = "headed"
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(nsqd)) for _ in range(4)]
        for client in clients:
            client.identify(headers=True, feature_negotiation=True)
            client.ok(hmpub(topic, [(b"{}", b"first")]))
        with stopped(nsqd):
            for number, client in enumerate(clients):
                batch = [(b'{"by":"%d","n":"%d"}' % (number, each), b"%d-%d" % (number, each)) for each in range(3)]
                client.send(hmpub(topic, batch) + hmpub(topic, [(b"", b"%d-none" % number)]))
        for client in clients:
            assert [client.frame(), client.frame()] == [(0, b"OK")] * 2

    found = headers_of(nsqd, topic, 4 + 4 * 4)
    assert found[:4] == [(b"", b"first")] * 4
    expected = [(b'{"by":"%d","n":"%d"}' % (by, each), b"%d-%d" % (by, each)) for by in range(4) for each in range(3)]
    assert sorted(found[4:]) == sorted([*expected, *((b"", b"%d-none" % by) for by in range(4))])


def test_publishes_with_headers_that_wait_for_each_answer_keep_their_headers(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        for number in range(20):
            raw.ok(pub("patient", b"plain %d" % number))
        for number in range(20):
            raw.ok(hpub("patient", b'{"n":"%d"}' % number, b"%d" % number))

    found = headers_of(nsqd, "patient", 40)
    assert found[:20] == [(b"", b"plain %d" % number) for number in range(20)]
    assert found[20:] == [(b'{"n":"%d"}' % number, b"%d" % number) for number in range(20)]


def test_headers_that_are_refused_are_refused_behind_a_run_too(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw, Raw(nsqd) as other:
        for client in (raw, other):
            client.identify(headers=True, feature_negotiation=True)
            client.ok(hpub("unlawful", b'{"a":"1"}', b"one"))
        with stopped(nsqd):
            raw.send(hpub("unlawful", b'{"a":"1"}', b"two") + hpub("unlawful", b'{"A":"1"}', b"never"))
            other.send(hpub("unlawful", b'{"a":"1"}', b"three"))

        assert other.frame() == (0, b"OK")
        assert raw.frame() == (0, b"OK")
        assert raw.error().startswith("E_BAD_MESSAGE HPUB message headers are not a JSON object of strings")
    assert sorted(bodies_of(nsqd, "unlawful", 4)) == [b"one", b"one", b"three", b"two"]


def test_headers_end_with_the_identify_that_gives_them_up(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        raw.ok(hpub("given_up", b'{"a":"1"}', b"one"))
        raw.send(hpub("given_up", b'{"a":"1"}', b"two") + b"IDENTIFY\n\0\0\0\2{}")
        assert [raw.frame(), raw.frame()] == [(0, b"OK")] * 2
        raw.send(hpub("given_up", b'{"a":"1"}', b"three"))

        assert raw.error() == "E_INVALID invalid command HPUB"


def test_a_window_is_announced_to_clients_that_publish_in_runs(nsqd: Daemon) -> None:
    with Raw(nsqd) as headed, Raw(nsqd) as plain:
        headed.identify(headers=True, feature_negotiation=True)
        for client in (headed, plain):
            client.ok(pub("window", b"one"))
            client.ok(pub("window", b"two"))
        post(nsqd, "/topic/settings?topic=window", b'{"dedup_window": "1h"}', method="PATCH")
        with stopped(nsqd):
            headed.send(pub("window", b"three") * 2)
            plain.send(pub("window", b"four"))

        assert [headed.frame(), headed.frame()] == [(0, b"OK message-id")] * 2
        assert plain.frame() == (0, b"OK")


def test_headers_of_dead_letters_are_left_out_behind_a_run_too(nsqd: Daemon) -> None:
    """Only the broker sets them: a redrive believes them."""
    forged = b'{"a":"1","dead-id":"0000000000000000","dead-topic":"orders"}'
    with Raw(nsqd) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        for _ in range(3):
            raw.ok(hpub("forged", b'{"a":"1"}', b"honest"))
            raw.ok(hpub("forged", forged, b"single"))
            raw.ok(hmpub("forged", [(forged, b"many"), (b'{"dead-at":"x"}', b"only")]))

    found = headers_of(nsqd, "forged", 12)
    assert sorted(set(found)) == [(b"", b"only"), *((b'{"a":"1"}', body) for body in (b"honest", b"many", b"single"))]


def test_repeated_ids_are_found_behind_a_run(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.identify(headers=True, feature_negotiation=True)
        raw.ok(hpub("repeats", b'{"message-id":"1"}', b"one"))
        raw.ok(hpub("repeats", b'{"message-id":"1"}', b"two"))
        post(nsqd, "/topic/settings?topic=repeats", b'{"dedup_window": "1h"}', method="PATCH")
        for _ in range(3):
            raw.send(hpub("repeats", b'{"message-id":"2"}', b"three"))
            assert raw.frame() == (0, b"OK message-id")

    assert bodies_of(nsqd, "repeats", 3) == [b"one", b"two", b"three"]
    assert json.loads(get(nsqd, "/stats?format=json&topic=repeats"))["topics"][0]["message_count"] == 3


@pytest.mark.parametrize("command", [pub("halves", b"half"), mpub("halves", [b"half"]), b"DPUB halves 0\n\0\0\0\4half"])
def test_half_a_publish_leaves_nothing_behind_in_its_round(nsqd: Daemon, command: bytes) -> None:
    with Raw(nsqd) as half, Raw(nsqd) as other:
        other.ok(pub("halves", b"one"))
        half.ok(pub("halves", b"two"))
        before = json.loads(get(nsqd, "/stats?format=json&topic=halves"))["topics"][0]["message_count"]
        half.send(command[:-1])
        other.ok(b"NOP\n" + mpub("halves", [b"three", b"four"]))
        half.ok(command[-1:])
        other.ok(pub("halves", b"five"))
        counted = json.loads(get(nsqd, "/stats?format=json&topic=halves"))["topics"][0]["message_count"]
        assert counted - before == 4

        half.send(command[:-1])
        other.ok(b"NOP\n" + pub("elsewhere", b"received after the half"))
        post(nsqd, "/topic/delete?topic=halves")
        for number in range(3):
            other.ok(pub("elsewhere", b"%d" % number))
        half.ok(command[-1:])


@pytest.mark.parametrize("seed", range(4))
def test_large_bodies_in_any_pieces_are_stored_as_they_came(nsqd: Daemon, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"large{seed}"
    bodies = [chance.randbytes(chance.choice([16_384, 16_385, 70_000, 300_000, 1_000_000])) for _ in range(12)]
    stream = b"".join(pub(topic, body) + chance.choice([b"", b"NOP\n", pub(topic, b"small")]) for body in bodies)
    count = len(bodies) + stream.count(pub(topic, b"small"))
    with Raw(nsqd) as raw:
        raw.ok(pub(topic, b"first"))
        at = 0
        while at < len(stream):
            size = chance.choice([1, 4000, 50_000, 600_000, 2_000_000])
            raw.send(stream[at : at + size])
            at += size
        assert {raw.frame() for _ in range(count)} == {(0, b"OK")}

    assert [body for body in bodies_of(nsqd, topic, count + 1) if len(body) > 5] == bodies


def test_a_large_body_whose_topic_is_deleted_meanwhile_creates_it_again(nsqd: Daemon) -> None:
    body = bytes(200_000)
    with Raw(nsqd) as raw:
        raw.ok(pub("gone", b"before"))
        raw.send(pub("gone", body)[:100_000])
        post(nsqd, "/topic/delete?topic=gone")
        raw.send(pub("gone", body)[100_000:])
        assert raw.frame() == (0, b"OK")

    assert bodies_of(nsqd, "gone", 1) == [body]


def test_a_client_that_leaves_amid_a_large_body_publishes_nothing(nsqd: Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("amid", b"before"))
        raw.send(pub("amid", bytes(200_000))[:-1])
        raw.socket.shutdown(1)
        assert raw.error().startswith("E_BAD_MESSAGE PUB failed to read message body")
    with Raw(nsqd) as raw:
        raw.ok(pub("amid", b"after"))

    assert bodies_of(nsqd, "amid", 2) == [b"before", b"after"]
