"""The library against a real nsqd (ours, or the one that LAPWING_TEST_NSQD names): sockets, TLS, crashes."""

import asyncio
import datetime
import ipaddress
import itertools
import os
import signal
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest
import uvloop

from daemons import nsqd as running_nsqd
from daemons import start_nsqd, start_nsqlookupd
from lapwing import Consumer, Producer
from lapwing.client.errors import PublishTimeout, Refused
from lapwing.client.message import Requeue
from lapwing.client.sync import SyncConsumer, SyncProducer
from measuring import about_short_times

numbers = itertools.count()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1: paths of certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.fixture(scope="module")
def daemon(certificate):
    with running_nsqd(f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}", "--max-msg-timeout=20s") as nsqd:
        yield nsqd


async def true(claim, seconds=60):
    """Wait until `claim()` is true, looking every 10 ms."""
    async with asyncio.timeout(seconds):
        while True:
            if claim():
                return
            await asyncio.sleep(0.01)


class Gathering:
    """A handler that keeps bodies, and a way to wait for so many."""

    def __init__(self):
        self.bodies = []
        self._changed = asyncio.Event()

    async def __call__(self, message):
        self.bodies.append(message.body)
        self._changed.set()

    async def until(self, claim, seconds=60):
        async with asyncio.timeout(seconds):
            while not claim(self.bodies):
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.parametrize(
    "settings",
    [{}, {"tls_v1": True}, {"snappy": True}, {"deflate": True}, {"tls_v1": True, "snappy": True},
     {"tls_v1": True, "deflate": True, "deflate_level": 9}],
    ids=lambda settings: "+".join(key for key, value in settings.items() if value is True) or "plain",
)  # fmt: skip
async def test_every_message_arrives_once_through_every_layer(daemon, certificate, settings):
    topic = "layers-" + "-".join(settings)
    if "tls_v1" in settings:
        settings = {**settings, "tls_root_ca_file": certificate[0]}
    sent = [b"%d " % number + os.urandom(20) * (number % 50 + 1) for number in range(1500)]
    sent += [bytes(300_000), os.urandom(1 << 20)]
    got = Gathering()
    async with (
        Producer(daemon.tcp, **settings) as producer,
        Consumer(topic, "c", got, nsqd=daemon.tcp, max_in_flight=200, **settings) as consumer,
    ):
        await asyncio.gather(*(producer.publish(topic, body) for body in sent[:1000]))
        await producer.publish_many(topic, sent[1000:])
        await got.until(lambda bodies: len(bodies) == len(sent))

        assert sorted(got.bodies) == sorted(sent)
        assert consumer.stats.received == len(sent)


def test_the_same_on_uvloop(daemon, certificate):
    settings = {"tls_v1": True, "snappy": True, "tls_root_ca_file": certificate[0]}
    sent = [b"%d" % number for number in range(2000)]

    async def through():
        got = Gathering()
        async with (
            Producer(daemon.tcp, **settings) as producer,
            Consumer("on-uvloop", "c", got, nsqd=daemon.tcp, max_in_flight=200, **settings),
        ):
            await asyncio.gather(*(producer.publish("on-uvloop", body) for body in sent))
            await got.until(lambda bodies: len(bodies) == len(sent))
        return got.bodies

    assert uvloop.run(through()) == sent


async def test_first_deliveries_keep_the_order_of_publishing(daemon):
    sent = [b"%d" % number for number in range(3000)]
    got = Gathering()
    async with Producer(daemon.tcp) as producer:
        await asyncio.gather(*(producer.publish("order", body) for body in sent))
        async with Consumer("order", "c", got, nsqd=daemon.tcp, max_in_flight=500):
            await got.until(lambda bodies: len(bodies) == len(sent))

    assert got.bodies == sent


async def test_over_a_unix_socket(tmp_path):
    path = str(tmp_path / "nsqd.sock")
    with running_nsqd(tcp_address=path):
        got = Gathering()
        async with Producer(path) as producer, Consumer("t", "c", got, nsqd=path):
            await producer.publish("t", b"by path")
            await got.until(lambda bodies: bodies == [b"by path"])


async def test_a_wrong_certificate_is_refused_before_anything_is_said(daemon):
    with pytest.raises(Refused, match="TLS handshake failed"):
        await Producer(daemon.tcp, tls_v1=True).start()
    async with Producer(daemon.tcp, tls_v1=True, tls_insecure_skip_verify=True) as producer:
        await producer.publish("tls-insecure", b"x")


async def test_a_requeued_message_comes_again_with_one_more_attempt(daemon):
    attempts = []

    async def handler(message):
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise Requeue(0, backoff=False)

    async with Producer(daemon.tcp) as producer, Consumer("again", "c", handler, nsqd=daemon.tcp) as consumer:
        await producer.publish("again", b"x")
        await true(lambda: consumer.stats.finished == 1)

    assert attempts == [1, 2, 3]


async def test_a_deferred_message_takes_its_time(daemon):
    got = Gathering()
    async with Producer(daemon.tcp) as producer, Consumer("later", "c", got, nsqd=daemon.tcp):
        began = time.monotonic()
        await producer.publish("later", b"x", defer=0.4)
        await got.until(lambda bodies: bodies)

    assert time.monotonic() - began >= 0.39


@about_short_times
async def test_a_handler_slower_than_the_timeout_gets_its_message_only_once(daemon):
    seen, topic = [], f"slow{next(numbers)}"

    async def handler(message):
        seen.append(message.attempts)
        await asyncio.sleep(2.5)

    async with (
        Producer(daemon.tcp) as producer,
        Consumer(topic, "c", handler, nsqd=daemon.tcp, msg_timeout=1.0, max_in_flight=2) as consumer,
    ):
        await producer.publish(topic, b"x")
        await true(lambda: consumer.stats.finished == 1)

    assert seen == [1]


@about_short_times
async def test_a_blocking_handler_does_not_cost_the_connection(daemon):
    topic = f"block{next(numbers)}"

    def handler(message):
        time.sleep(2.5)  # more than the two heartbeats after which nsqd hangs up

    async with (
        Producer(daemon.tcp) as producer,
        Consumer(topic, "c", handler, nsqd=daemon.tcp, heartbeat_interval=1.0, msg_timeout=1.0) as consumer,
    ):
        await producer.publish(topic, b"x")
        await true(lambda: consumer.stats.finished == 1)

        assert consumer.stats.received == 1


async def test_nothing_is_left_behind_by_a_stop(daemon):
    async with Producer(daemon.tcp) as producer:
        await producer.publish_many("behind", [b"%d" % number for number in range(100)])
        async with Consumer("behind", "c", nsqd=daemon.tcp, max_in_flight=50) as consumer:
            for _ in range(3):
                (await anext(consumer)).finish()
        got = Gathering()
        async with Consumer("behind", "c", got, nsqd=daemon.tcp, max_in_flight=50):
            await got.until(lambda bodies: len(bodies) == 97)


async def test_nsqd_shows_who_we_are(daemon):
    async with (
        Consumer("who", "c", Gathering(), nsqd=daemon.tcp, user_agent="me/7", client_id="myself"),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        stats = (await http.get(f"{daemon.url}/stats?format=json&topic=who")).json()

    [client] = stats["topics"][0]["channels"][0]["clients"]
    assert (client["user_agent"], client["client_id"]) == ("me/7", "myself")


async def test_sampling_lets_only_a_share_through(daemon):
    got = Gathering()
    async with Producer(daemon.tcp) as producer:
        await producer.publish_many("sample", [b"x"] * 2000)
        async with (
            Consumer("sample", "c", got, nsqd=daemon.tcp, sample_rate=10, max_in_flight=100),
            httpx.AsyncClient(trust_env=False) as http,
        ):
            async with asyncio.timeout(60):
                while True:
                    stats = (await http.get(f"{daemon.url}/stats?format=json&topic=sample")).json()
                    channel = stats["topics"][0]["channels"][0]
                    if channel["depth"] == 0 and channel["in_flight_count"] == 0:
                        break
                    await asyncio.sleep(0.05)

    assert 100 < len(got.bodies) < 500


async def test_the_facades_for_scripts(daemon):
    def script():
        with SyncProducer(daemon.tcp) as producer:
            producer.publish_many("script", [b"1", b"2", b"3"])
        with SyncConsumer("script", "c", nsqd=daemon.tcp, max_in_flight=10) as consumer:
            seen = []
            for message in consumer:
                with message:
                    seen.append(message.body)
                if len(seen) == 3:
                    return seen

    assert await asyncio.to_thread(script) == [b"1", b"2", b"3"]


async def test_discovery_through_a_real_nsqlookupd(tmp_path):
    with start_nsqlookupd() as lookupd:
        paths = [tmp_path / "a", tmp_path / "b"]
        for path in paths:
            path.mkdir()
        with (
            start_nsqd(paths[0], lookupd_tcp_addresses=(lookupd.tcp,)) as first,
            start_nsqd(paths[1], lookupd_tcp_addresses=(lookupd.tcp,)) as second,
        ):
            async with Producer([first.tcp, second.tcp]) as producer:
                for number in range(10):
                    await producer.publish("found", b"%d" % number)
            got = Gathering()
            async with Consumer(
                "found", "c", got, lookupd=lookupd.http, max_in_flight=10, lookupd_poll_interval=0.2
            ) as consumer:
                await got.until(lambda bodies: len(bodies) == 10)
                assert len(consumer.connections) == 2
            async with Producer(lookupd=lookupd.http) as producer:
                await producer.publish("found", b"last")


class AuthServer(BaseHTTPRequestHandler):
    """Knows one secret."""

    def do_GET(self):
        known = "secret=sesame" in self.path
        body = b'{"ttl":3600,"identity":"i","identity_url":"u","authorizations":[{"topic":".*","channels":[".*"],"permissions":["subscribe","publish"]}]}'  # noqa: E501
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


async def test_auth_with_and_without_the_secret():
    server = ThreadingHTTPServer(("127.0.0.1", 0), AuthServer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with running_nsqd(f"--auth-http-address=127.0.0.1:{server.server_port}") as nsqd:
            got = Gathering()
            async with (
                Producer(nsqd.tcp, auth_secret="sesame") as producer,
                Consumer("t", "c", got, nsqd=nsqd.tcp, auth_secret="sesame"),
            ):
                await producer.publish("t", b"x")
                await got.until(lambda bodies: bodies == [b"x"])
            with pytest.raises(Refused, match="E_AUTH_FAILED"):
                await Producer(nsqd.tcp, auth_secret="wrong").start()
            with pytest.raises(Refused, match="auth_secret"):
                await Producer(nsqd.tcp).start()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif("LAPWING_TEST_NSQD" in os.environ, reason="NSQ's nsqd loses what is in memory, and says so")
async def test_every_acknowledged_message_survives_kill_and_restart(tmp_path):
    """nsqd is killed twice under a running producer and consumer; what was confirmed arrives."""
    nsqd = start_nsqd(tmp_path, "--msg-timeout=2s")
    got = Gathering()
    confirmed = []
    stop = asyncio.Event()

    async def keep_publishing(producer, worker):
        number = 0
        while not stop.is_set():
            body = b"%d-%d" % (worker, number)
            await producer.publish("crash", body, timeout=60)
            confirmed.append(body)
            number += 1

    try:
        async with (
            Producer(nsqd.tcp) as producer,
            Consumer("crash", "c", got, nsqd=nsqd.tcp, max_in_flight=100, max_attempts=0),
        ):
            publishers = [asyncio.create_task(keep_publishing(producer, worker)) for worker in range(8)]
            for _ in range(2):
                before = len(confirmed)
                await got.until(lambda bodies: len(bodies) > 200 and len(confirmed) > before + 200)  # noqa: B023
                await asyncio.to_thread(nsqd.kill)
                await asyncio.to_thread(nsqd.restart)
            before = len(confirmed)
            await true(lambda: len(confirmed) >= before + 100, seconds=60)
            stop.set()
            await asyncio.gather(*publishers)
            wanted = set(confirmed)
            await got.until(lambda bodies: wanted <= set(bodies), seconds=60)
    finally:
        nsqd.kill()

    assert len(confirmed) > 500


async def test_a_frozen_nsqd_costs_a_deadline_and_nothing_else(daemon):
    async with Producer(daemon.tcp) as producer:
        await producer.publish("frozen", b"before")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(PublishTimeout):
                await producer.publish("frozen", b"during", timeout=0.5)
            assert time.monotonic() - began < 20
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        await producer.publish("frozen", b"after", timeout=30)
