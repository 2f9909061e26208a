"""Whoever talks to nsqd, and however badly: others are served, and memory stays bounded."""

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rawtalk import Raw, get, identify, memory, mpub, post, pub, topics

import certificates
import daemons
from lapwing.wire.nsq.compression import SnappyCodec
from measuring import shortest

MIB = 1 << 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Daemon]:
    certificate, key = certificates.self_signed(tmp_path_factory.mktemp("hostile"))
    with daemons.nsqd("--magic-timeout=3s", f"--tls-cert={certificate}", f"--tls-key={key}") as daemon:
        yield daemon


@pytest.fixture
def nsqd(shared: daemons.Daemon) -> Iterator[daemons.Daemon]:
    """A daemon that must serve a well-behaved client before and after, whatever the test does to it."""
    assert shared.process.poll() is None, shared.stderr
    with Raw(shared) as witness:
        witness.subscribe("witness", "c", ready=10)
        yield shared

        assert get(shared, "/ping") == b"OK"
        with Raw(shared) as publisher:
            publisher.ok(pub("witness", b"still there?"))
        attempts, message_id, body = witness.message()
        assert (attempts, body) == (1, b"still there?")
        witness.send(b"FIN %s\n" % message_id)


# --- those who introduce themselves at length ----------------------------------------------------------------------


def test_others_are_served_while_the_largest_identify_is_read(nsqd: daemons.Daemon) -> None:
    body = b'{"client_id":"%b","x":[%b1]}' % (b"long" * 1000, b"1," * 2_500_000)

    def longest_wait() -> float:
        longest = 0.0
        with Raw(nsqd) as talker, Raw(nsqd) as other:
            talker.send(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
            talker.socket.settimeout(0.001)
            answered = False
            while not answered:
                began = time.monotonic()
                other.ok(pub("meanwhile", b"x"))
                longest = max(longest, time.monotonic() - began)
                with contextlib.suppress(TimeoutError):
                    answered = talker.socket.recv(100) == b"\0\0\0\6\0\0\0\0OK"
            talker.socket.settimeout(60)
            talker.subscribe("meanwhile", "c")
            clients = topics(nsqd)["meanwhile"]["channels"]["c"]["clients"]

        assert [client["client_id"] for client in clients] == [("long" * 1000)[:1024]]
        return longest

    assert shortest(longest_wait, limit=1) < 1  # all at once it takes 3 s


# --- those who take their time -------------------------------------------------------------------------------------


def test_a_slow_sender_is_given_up_at_every_phase(nsqd: daemons.Daemon) -> None:
    with contextlib.ExitStack() as stack:
        silent, half_magic = (stack.enter_context(Raw(nsqd, magic=False)) for _ in range(2))
        half_magic.send(b"  V")
        in_line, in_size, in_body, in_batch, shaking = (stack.enter_context(Raw(nsqd)) for _ in range(5))
        beginnings = {
            in_line: b"PUB slow",
            in_size: b"PUB slow\n\0\0",
            in_body: b"PUB slow\n\0\0\0\x09half",
            in_batch: b"MPUB slow\n\0\0\0\x20\0\0\0\2\0\0\0\5half",
        }
        for raw, beginning in beginnings.items():
            assert raw.identify(beginning, heartbeat_interval=1000) == b"OK"  # two seconds for a command
        assert json.loads(shaking.identify(feature_negotiation=True, tls_v1=True))["tls_v1"]
        shaking.send(b"\x16\x03\x01")  # the beginning of a handshake

        assert silent.ended()
        assert half_magic.ended()
        assert in_line.ended()
        assert in_size.error() == "E_BAD_MESSAGE PUB failed to read message body size"
        assert in_body.error() == "E_BAD_MESSAGE PUB failed to read message body"
        assert in_batch.error() == "E_BAD_MESSAGE MPUB failed to read message body"
        assert shaking.error() == "E_IDENTIFY_FAILED IDENTIFY failed i/o timeout"
        assert "slow" not in topics(nsqd)


def test_who_ends_in_a_line_without_end_still_hears_of_what_it_published(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as raw:
        raw.ok(pub("endless", b"x") + b"a" * 16384)

        assert raw.ended()


def test_bytes_that_drip_do_not_prolong_a_command(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as raw:
        began = time.monotonic()
        assert raw.identify(b"PUB drip\n\0\0\0\xff", heartbeat_interval=1000) == b"OK"
        raw.socket.settimeout(0.2)
        while time.monotonic() - began < 10:
            try:
                raw.send(b".")
                if raw.socket.recv(100).endswith(b"E_BAD_MESSAGE PUB failed to read message body"):
                    break
            except TimeoutError:
                continue

        assert time.monotonic() - began < 8


# --- those who are too many ----------------------------------------------------------------------------------------


def test_more_connections_than_allowed_are_refused_and_told_so() -> None:
    with daemons.nsqd("--max-connections=2") as daemon, Raw(daemon) as first, Raw(daemon) as second:
        first.ok(pub("t", b"x"))
        second.ok(pub("t", b"x"))
        with Raw(daemon) as third:
            assert third.error() == "E_TOO_MANY_CONNECTIONS this broker takes 2 connections at a time"
        first.ok(pub("t", b"x"))
        second.socket.close()

        def let_in() -> bool:
            try:
                with Raw(daemon) as fourth:
                    fourth.ok(pub("t", b"x"))
            except (AssertionError, ConnectionError, EOFError):
                return False
            return True

        daemons.until(let_in, what="a place that became free")


def test_a_limit_below_zero_is_none() -> None:
    limits = ("connections", "topics", "channels", "channel-consumers")
    flags = ("--magic-timeout=0", *(f"--max-{what}=-1" for what in limits))
    with daemons.nsqd(*flags) as daemon, Raw(daemon, magic=False) as late, Raw(daemon) as raw:
        raw.ok(pub("t", b"x"))
        raw.ok(b"SUB t c\n")
        late.send(b"  V2")
        late.ok(b"SUB u c\n")


def test_more_topics_and_channels_than_allowed_are_refused() -> None:
    with daemons.nsqd("--max-topics=1", "--max-channels=1") as daemon:
        with Raw(daemon) as raw:
            raw.ok(pub("t", b"x"))
            raw.ok(b"SUB t c\n")
        for command, code in (
            (pub("u", b"x"), "E_PUB_FAILED"),
            (mpub("u", [b"x"]), "E_MPUB_FAILED"),
            (b"SUB u c\n", "E_SUB_FAILED"),
            (b"SUB t d\n", "E_SUB_FAILED"),
        ):
            with Raw(daemon) as raw:
                raw.send(command)
                assert raw.error().startswith(code)

        assert {name: list(topic["channels"]) for name, topic in topics(daemon).items()} == {"t": ["c"]}


def test_thousands_of_connections_that_end_in_every_way_leave_nothing_behind(nsqd: daemons.Daemon) -> None:
    endings = [b"", b"  V", b"  V1", b"  V2", b"  V2NOP\n", b"  V2PUB t\n\0\0", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n"]

    def come_and_go(count: int, *, reset: bool) -> None:
        for number in range(count):
            one = socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=60)
            if reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.send(endings[number % len(endings)])
            one.close()

    def memory_at_rest() -> int:
        held = Path(f"/proc/{nsqd.pid}/fd")
        daemons.until(lambda: len(list(held.iterdir())) < 60, what="all descriptors given back")
        return memory(nsqd)

    come_and_go(500, reset=True)
    before = memory_at_rest()
    come_and_go(1500, reset=False)
    come_and_go(1000, reset=True)

    assert memory_at_rest() - before < 10 * MIB


# --- those who say it wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["+5", "-5", "1_0", "0x10", "1e3", "5.0", "\u0663", "\uff11\uff12", "5\t", "NaN"])
def test_what_is_no_plain_number_is_refused(nsqd: daemons.Daemon, number: str) -> None:
    told = {}
    for line in (f"RDY {number}\n", f"REQ 0123456789abcdef {number}\n"):
        with Raw(nsqd) as raw:
            raw.subscribe("numbers", "c")
            raw.send(line.encode())
            told[line.split()[0]] = raw.error()
    with Raw(nsqd) as raw:
        raw.send(f"DPUB numbers {number}\n".encode() + b"\0\0\0\1x")
        told["DPUB"] = raw.error()

    assert told == {
        "RDY": f"E_INVALID RDY could not parse count {number}",
        "REQ": f"E_INVALID REQ could not parse timeout {number}",
        "DPUB": f"E_INVALID DPUB could not parse timeout {number}",
    }


BATCHES = {
    "a byte too many": struct.pack(">III", 10, 1, 1) + b"xy",
    "fewer messages than counted": struct.pack(">III", 9, 2, 1) + b"x" + b"NOP\nNOP\n",
    "more messages than counted": struct.pack(">IIII", 14, 1, 1, 0x78000000)[:13] + struct.pack(">I", 1) + b"x",
    "a count of none": struct.pack(">II", 4, 0),
    "a count below none": struct.pack(">Ii", 4, -1),
    "a count of millions": struct.pack(">II", 4, 50_000_000),
    "a message of nothing": struct.pack(">III", 8, 1, 0),
    "a message below nothing": struct.pack(">IIi", 8, 1, -2),
    "a message beyond the limit": struct.pack(">III", 9, 1, 2_000_000) + b"x",
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_a_batch_that_disagrees_with_itself_is_refused_whole(nsqd: daemons.Daemon, batch: bytes) -> None:
    with Raw(nsqd) as raw:
        raw.send(b"MPUB mismatched\n" + batch)
        raw.socket.shutdown(socket.SHUT_WR)

        assert raw.error().startswith(("E_BAD_BODY MPUB ", "E_BAD_MESSAGE MPUB "))
    assert "mismatched" not in topics(nsqd)


@pytest.mark.parametrize("layer", ["tls_v1", "snappy", "deflate"])
def test_garbage_after_an_upgrade_ends_the_conversation(nsqd: daemons.Daemon, layer: str) -> None:
    with Raw(nsqd) as raw:
        assert json.loads(raw.identify(feature_negotiation=True, **{layer: True}))[layer]
        raw.send(b"\x07garbage that is in no layer at all\n" * 10)
        raw.socket.shutdown(socket.SHUT_WR)

        while raw.socket.recv(65536):
            pass


# --- those who send much in little ---------------------------------------------------------------------------------


def deflate_bomb(content: bytes, times: int) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(squeeze.compress(content) for _ in range(times)) + squeeze.flush(zlib.Z_SYNC_FLUSH)


def test_a_bomb_of_commands_keeps_nobody_waiting(nsqd: daemons.Daemon) -> None:
    bomb = deflate_bomb(b"NOP\n" * (MIB // 4), 8)
    before = memory(nsqd)

    def slowest_ping() -> float:
        slowest = 0.0
        with Raw(nsqd) as raw:
            raw.identify(feature_negotiation=True, deflate=True)
            raw.send(bomb)
            for _ in range(10):
                asked = time.monotonic()
                get(nsqd, "/ping")
                slowest = max(slowest, time.monotonic() - asked)
        return slowest

    assert len(bomb) < 16_384
    assert shortest(slowest_ping, limit=2) < 2
    assert memory(nsqd) - before < 30 * MIB


@pytest.mark.parametrize("layer", ["snappy", "deflate"])
def test_a_bomb_of_one_line_is_cut_off_at_its_beginning(nsqd: daemons.Daemon, layer: str) -> None:
    content = b"x" * MIB
    bomb = SnappyCodec().encode(content * 64) if layer == "snappy" else deflate_bomb(content, 64)
    before = memory(nsqd)
    with Raw(nsqd) as raw:
        raw.identify(feature_negotiation=True, **{layer: True})
        threading.Thread(target=lambda: _try(raw, bomb), daemon=True).start()
        while _received(raw):
            pass

    assert memory(nsqd) - before < 30 * MIB


def _try(raw: Raw, data: bytes) -> None:
    try:
        raw.send(data)
    except OSError:
        return  # it was cut off, as it should be


def _received(raw: Raw) -> bytes:
    try:
        return raw.socket.recv(65536)
    except ConnectionError:
        return b""


# --- those who do not read -----------------------------------------------------------------------------------------


def test_a_consumer_that_never_reads_is_cut_and_others_get_its_messages(nsqd: daemons.Daemon) -> None:
    body = bytes(100_000)
    with Raw(nsqd) as publisher:
        for _ in range(10):
            publisher.ok(mpub("unread", [body] * 40))
    before = memory(nsqd)
    with Raw(nsqd) as deaf, Raw(nsqd) as consumer:
        assert deaf.identify(b"SUB unread c\nRDY 2500\n", heartbeat_interval=1000) == b"OK"
        assert deaf.frame() == (0, b"OK")

        def channel() -> dict[str, int]:
            return topics(nsqd)["unread"]["channels"]["c"]

        def on_its_way() -> bool:
            found = channel()
            return found["in_flight_count"] > 5 or not found["client_count"]  # it may have been cut off by now

        daemons.until(on_its_way, what="something on its way")
        most = 0

        def cut() -> bool:
            nonlocal most
            most = max(most, memory(nsqd))
            return channel()["client_count"] == 0

        daemons.until(cut, seconds=60, what="the deaf one cut off")
        assert channel()["depth"] == 400
        assert most - before < 32 * MIB

        consumer.subscribe("unread", "c", ready=2500)
        for _ in range(400):
            _, message_id, got = consumer.message()
            assert got == body
            consumer.send(b"FIN %s\n" % message_id)
    post(nsqd, "/topic/delete?topic=unread")


def test_a_consumer_that_reads_slowly_is_served_all_the_same(nsqd: daemons.Daemon) -> None:
    with Raw(nsqd) as publisher:
        for _ in range(10):
            publisher.ok(mpub("slowly", [bytes(100_000)] * 40))

    def longest_pause() -> float:
        """Read for three times as long as one who reads nothing is put up with."""
        with Raw(nsqd) as slow:
            began = last = time.monotonic()
            slow.send(identify(heartbeat_interval=1000) + b"SUB slowly c\nRDY 2500\n")
            pause = 0.0
            try:
                while last - began < 3:
                    assert slow.socket.recv(100_000)
                    slow.send(b"NOP\n")
                    time.sleep(0.05)
                    now = time.monotonic()
                    pause, last = max(pause, now - last), now
            except (AssertionError, ConnectionError):
                pause = max(pause, time.monotonic() - last)
                assert pause > 1, "cut off although it read"  # else it did not read: this process was held up
            return pause

    assert shortest(longest_pause, limit=1) < 1
    post(nsqd, "/topic/delete?topic=slowly")


@pytest.mark.parametrize("subscribed", [False, True])
def test_one_who_asks_without_reading_the_answers_is_not_heard_for_long(
    nsqd: daemons.Daemon, subscribed: bool
) -> None:
    wishes = b'{"feature_negotiation":true}'
    question = b"FIN 0123456789abcdef\n" if subscribed else b"IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes
    before = memory(nsqd)
    with Raw(nsqd) as raw:
        if subscribed:
            raw.subscribe("asked", "c")
        raw.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            raw.send(question * 2_000_000)

        assert memory(nsqd) - before < 128 * MIB  # the answers to all of it would take more
        assert get(nsqd, "/ping") == b"OK"


def test_a_huge_window_over_large_messages_costs_one_slice_at_a_time(nsqd: daemons.Daemon) -> None:
    body = bytes(1_000_000)
    with Raw(nsqd) as publisher:
        for _ in range(20):
            publisher.ok(mpub("large", [body] * 3))
    before = memory(nsqd)
    with Raw(nsqd) as consumer:
        consumer.subscribe("large", "c", ready=2500)
        most = 0
        held = []
        for _ in range(60):
            _, message_id, got = consumer.message()
            assert len(got) == len(body)
            held.append(message_id)
            most = max(most, memory(nsqd))
        consumer.send(b"".join(b"FIN %s\n" % message_id for message_id in held))
    post(nsqd, "/topic/delete?topic=large")

    assert most - before < 32 * MIB


def test_one_http_connection_too_many_is_refused() -> None:
    with daemons.nsqd("--max-http-connections=1") as daemon:
        with socket.create_connection(("127.0.0.1", daemon.http_port)):
            daemons.until(lambda: status_of(daemon, "/ping") == 503)
        daemons.until(lambda: status_of(daemon, "/ping") == 200)


@pytest.mark.parametrize("start", [daemons.start_nsqd, daemons.start_nsqlookupd])
def test_a_page_of_another_site_cannot_use_a_browser_against_a_daemon(start: Callable[[], daemons.Daemon]) -> None:
    with start() as daemon:
        posted = status_of(daemon, "/topic/create?topic=t", "POST", Origin="http://evil.example")
        rebound = status_of(daemon, "/ping", Host="evil.example", **{"Accept-Language": "en"})
        by_curl = status_of(daemon, "/topic/create?topic=u", "POST", Host="node-7.example")

    assert (posted, rebound, by_curl) == (403, 403, 200)


def status_of(daemon: daemons.Daemon, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
