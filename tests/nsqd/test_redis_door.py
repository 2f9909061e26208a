"""The door for Redis clients over real sockets: TLS, floods, clients that do not read, and flags that cannot work."""

import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rawtalk import Raw, pub

import certificates
import daemons
from lapwing.wire.resp.reply_reader import ReplyReader, encode


class RedisWire:
    """One connection."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=60)
        if context is not None:
            self.socket = context.wrap_socket(self.socket)
        self.reader = ReplyReader()
        self.found: list[object] = []

    def send(self, *commands: str) -> None:
        self.socket.sendall(b"".join(encode(*command.split()) for command in commands))

    def reply(self) -> object:
        while not self.found:
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError
            self.reader.receive(data)
            self.found += self.reader.replies()
        return self.found.pop(0)

    def ask(self, command: str) -> object:
        self.send(command)
        return self.reply()

    def __enter__(self) -> "RedisWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd("--redis-address=127.0.0.1:0") as daemon:
        yield daemon


def wire(nsqd: daemons.Daemon) -> RedisWire:
    return RedisWire(nsqd.addresses["Redis"])


def resident(nsqd: daemons.Daemon) -> int:
    return int(Path(f"/proc/{nsqd.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_read_that_waits_holds_back_what_comes_behind_it(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as client, wire(nsqd) as other:
        client.ask("XGROUP CREATE waits g $ MKSTREAM")
        for _ in range(2):  # the second time nothing about the connection is special
            client.send("XREADGROUP GROUP g c BLOCK 20 STREAMS waits >")
            assert client.reply() is None
        client.send("XREADGROUP GROUP g c BLOCK 0 STREAMS waits >")
        while "flags=b" not in str(other.ask("CLIENT LIST")):
            pass
        client.send("PING", "XACK waits g 1-1")
        entry = other.ask("XADD waits * data m")

        assert client.reply() == [[b"waits", [[entry, [b"data", b"m"]]]]]
        assert client.reply() == "PONG"
        assert client.reply() == 0


def test_a_read_that_waits_is_woken_though_another_begins_to_wait_in_the_same_round(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as reader, wire(nsqd) as writer, wire(nsqd) as other:
        for _ in range(3):
            for _ in range(3):  # from now on its entries are written where they are received
                writer.ask("XADD woken * data m")
            reader.send("XREAD BLOCK 20000 STREAMS woken $")
            while "cmd=xread" not in str(other.ask("CLIENT LIST")):
                pass
            os.kill(nsqd.pid, signal.SIGSTOP)
            try:
                writer.send("XADD woken * data news")
                other.send("XREAD BLOCK 1 STREAMS silent $")
            finally:
                os.kill(nsqd.pid, signal.SIGCONT)
            entry = writer.reply()

            assert reader.reply() == [[b"woken", [[entry, [b"data", b"news"]]]]]
            other.reply()


def test_both_transports_serve_redis_clients() -> None:
    for transport in ("auto", "asyncio"):
        with (
            daemons.nsqd("--redis-address=127.0.0.1:0", f"--tcp-transport={transport}") as daemon,
            wire(daemon) as client,
            wire(daemon) as other,
        ):
            assert client.ask("XGROUP CREATE s g $ MKSTREAM") == "OK"
            client.send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
            other.send(*["XADD s * data x"] * 300)
            assert len([other.reply() for _ in range(300)]) == 300
            ((key, entries),) = client.reply()  # type: ignore[misc]
            assert (key, bool(entries)) == (b"s", True)


def test_redis_clients_come_over_tls(tmp_path: Path) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required", "--redis-tls-address=127.0.0.1:0")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    context.check_hostname = False
    with daemons.nsqd(*flags) as daemon, RedisWire(daemon.addresses["Redis over TLS"], context) as client:
        assert client.ask("XADD s * data x")
        assert client.ask("XLEN s") == 1
        client.send("XRANGE s - +", "QUIT")
        assert len(client.reply()) == 1  # type: ignore[arg-type]
        assert client.reply() == "OK"
        with pytest.raises(EOFError):
            client.reply()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--redis-tls-address=127.0.0.1:0"], "--redis-tls-address needs a certificate: give --tls-cert and --tls-key"),
        (["--redis-address=127.0.0.1:0", "--tls-required"], "use --redis-tls-address"),
    ],
)
def test_flags_that_cannot_work_are_refused(tmp_path: Path, flags: list[str], said: str) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    more = [f"--tls-cert={certificate}", f"--tls-key={key}"] if "--tls-required" in flags else []
    command = [*daemons.program("nsqd"), "--tcp-address=127.0.0.1:0", "--http-address=", f"--data-path={tmp_path}"]
    done = subprocess.run([*command, *flags, *more], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0
    assert said in done.stderr


def test_a_client_that_never_reads_takes_little_memory_and_stops_nobody(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as deaf, wire(nsqd) as other:
        body = "x" * 1000
        for _ in range(100):
            other.send(*[f"XADD big * data {body}"] * 100)
            assert len([other.reply() for _ in range(100)]) == 100
        before = resident(nsqd)
        deaf.socket.setblocking(False)
        asked = encode("XRANGE", "big", "-", "+") * 10_000
        sent = 0
        try:
            while sent < len(asked):
                sent += deaf.socket.send(asked[sent : sent + 65536])
        except BlockingIOError:
            assert sent > 0

        assert other.ask("PING") == "PONG"
        assert resident(nsqd) - before < 60 << 20
        assert other.ask("DEL big") == 1


def test_what_is_sent_behind_a_waiting_command_is_not_gathered_without_end(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as client, wire(nsqd) as other:
        client.send("XREAD BLOCK 0 STREAMS nothing $")
        before = resident(nsqd)
        client.socket.setblocking(False)
        sent = 0
        try:
            while sent < 200 << 20:
                sent += client.socket.send(b"x" * 65536)
        except BlockingIOError:
            assert sent > 0

        assert other.ask("PING") == "PONG"
        assert resident(nsqd) - before < 40 << 20
        client.socket.close()
        assert other.ask("PING") == "PONG"


def test_a_request_beyond_the_limit_is_drained_and_refused(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as client:
        before = resident(nsqd)
        client.socket.sendall(b"*5\r\n$4\r\nXADD\r\n$1\r\nk\r\n$1\r\n*\r\n$1\r\nf\r\n$100000000\r\n")
        for _ in range(100):
            client.socket.sendall(b"x" * 1_000_000)
        client.socket.sendall(b"\r\n")

        assert str(client.reply()) == "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
        assert client.ask("PING") == "PONG"
        assert resident(nsqd) - before < 30 << 20


def test_more_clients_than_permitted_are_refused_with_the_reason() -> None:
    with (
        daemons.nsqd("--redis-address=127.0.0.1:0", "--max-connections=2") as daemon,
        wire(daemon) as first,
        wire(daemon) as second,
    ):
        assert [first.ask("PING"), second.ask("PING")] == ["PONG", "PONG"]
        with wire(daemon) as third:
            assert str(third.reply()) == "ERR max number of clients reached"
            with pytest.raises(EOFError):
                third.reply()
        assert first.ask("PING") == "PONG"


def test_a_flood_of_commands_lets_others_have_their_turn(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as flood, wire(nsqd) as other:
        flood.socket.setblocking(False)
        data = encode("PING") * 200_000
        sent = 0
        while sent < len(data):
            try:
                sent += flood.socket.send(data[sent : sent + 1_000_000])
            except BlockingIOError:
                break
        assert other.ask("PING") == "PONG"


def test_the_door_is_closed_by_default() -> None:
    with daemons.nsqd() as daemon:
        assert "Redis" not in daemon.stderr


def test_operators_see_groups_and_named_consumers(nsqd: daemons.Daemon) -> None:
    with wire(nsqd) as client:
        client.send(
            "XGROUP CREATE watched g $ MKSTREAM", "XADD watched * data x", "XREADGROUP GROUP g w STREAMS watched >"
        )
        created, *_ = [client.reply() for _ in range(3)]
        assert created == "OK"

        with urllib.request.urlopen(f"{nsqd.url}/stats?format=json&topic=watched") as answer:
            (topic,) = json.load(answer)["topics"]
        (channel,) = topic["channels"]
        (consumer,) = channel["consumers"]
        assert (consumer["name"], consumer["in_flight_count"]) == ("w", 1)
        assert topic["settings"] == {"keep": "trimmed"}
        with urllib.request.urlopen(f"{nsqd.url}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'lapwing_consumer_pending{topic="watched",channel="g",consumer="w"} 1' in metrics
        assert client.ask("DEL watched") == 1


def test_entries_that_are_added_one_at_a_time_keep_their_order_beside_nsq_clients(nsqd: daemons.Daemon) -> None:
    ids: list[object] = []
    with wire(nsqd) as one, wire(nsqd) as two, Raw(nsqd) as nsq:
        nsq.ok(pub("mixed", b"first"))
        nsq.ok(pub("mixed", b"second"))
        for number in range(60):
            ids += [client.ask(f"XADD mixed * data {number}") for client in (one, two)]
            if number % 7 == 0:
                nsq.ok(pub("mixed", b"nsq"))
                assert two.ask("XLEN mixed") == len(ids) + 2 + number // 7 + 1
        one.send("MULTI", "XADD mixed * data queued")
        assert [one.reply(), one.reply()] == ["OK", "QUEUED"]
        assert len(one.ask("EXEC")) == 1  # type: ignore[arg-type]
        ids.append(one.ask("XADD mixed * data last"))
        entries = one.ask("XRANGE mixed - +")

    assert isinstance(entries, list)
    assert len(entries) == 2 + 120 + 9 + 2
    found = [entry[0] for entry in entries]
    assert found == sorted(found, key=lambda text: tuple(map(int, text.split(b"-"))))
    assert [each for each in found if each in set(ids)] == ids
