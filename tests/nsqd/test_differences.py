"""What docs/reference/differences.md says of where lapwing does something else than NSQ, and no other test shows."""

import http.client
import itertools
import json
import ssl
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from rawtalk import Raw, dpub, get, mpub, post, pub, topics

import certificates
import daemons
from measuring import shortest


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd("--msg-timeout=2m") as daemon:
        yield daemon


names = (f"topic_{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    return next(names)


def publish(daemon: daemons.Daemon, *commands: bytes) -> None:
    with Raw(daemon) as raw:
        for command in commands:
            raw.ok(command)


def test_a_batch_goes_by_its_count_though_its_declared_size_is_too_small(nsqd: daemons.Daemon, topic: str) -> None:
    bodies = [b"one", b"two", b"three"]
    line, _, content = mpub(topic, bodies).partition(b"\n")
    declared = sum(map(len, bodies))  # as if the count and the sizes did not count
    with Raw(nsqd) as raw:
        raw.ok(line + b"\n" + struct.pack(">I", declared) + content[4:])
        raw.ok(pub(topic, b"four"))
        raw.ok(f"SUB {topic} c\n".encode())
        raw.send(b"RDY 10\n")

        assert [raw.message()[2] for _ in range(4)] == [*bodies, b"four"]


def test_what_a_consumer_held_is_ready_as_soon_as_it_is_gone_before_what_waits(
    nsqd: daemons.Daemon, topic: str
) -> None:
    publish(nsqd, mpub(topic, [b"first", b"second", b"third"]))
    with Raw(nsqd) as leaving:
        leaving.subscribe(topic, "c", ready=2)
        assert [leaving.message()[2] for _ in range(2)] == [b"first", b"second"]
    with Raw(nsqd) as staying:
        staying.subscribe(topic, "c", ready=10)

        assert [staying.message()[::2] for _ in range(3)] == [(2, b"first"), (2, b"second"), (1, b"third")]


def test_or_at_its_timeout_where_the_operator_wants_it_so() -> None:
    with daemons.nsqd("--requeue-on-disconnect=false", "--msg-timeout=1s") as nsqd:
        publish(nsqd, pub("t", b"x"))
        with Raw(nsqd) as leaving:
            delivered = time.monotonic()
            leaving.subscribe("t", "c", ready=1)
            leaving.message()
        with Raw(nsqd) as staying:
            staying.subscribe("t", "c", ready=1)

            assert staying.message()[0] == 2
            assert time.monotonic() - delivered > 0.9


def test_the_first_delay_in_a_new_channel_is_exact(nsqd: daemons.Daemon) -> None:
    def delay() -> float:
        topic = next(names)
        with Raw(nsqd) as raw:
            raw.subscribe(topic, "c")
            asked = time.monotonic()
            raw.ok(dpub(topic, 200, b"x"))
            raw.send(b"RDY 1\n")
            raw.message()
            waited = time.monotonic() - asked
        assert waited > 0.19
        return waited

    assert shortest(delay, limit=2) < 2


def test_a_message_waits_for_no_buffer(nsqd: daemons.Daemon, topic: str) -> None:
    with Raw(nsqd, seconds=20) as raw, Raw(nsqd) as publisher:
        told = json.loads(raw.identify(feature_negotiation=True, output_buffer_timeout=-1))
        raw.subscribe(topic, "c", ready=2500)
        publisher.ok(pub(topic, b"x"))

        assert raw.message()[2] == b"x"  # NSQ sends it with the heartbeat, after 30 seconds
        assert told["output_buffer_timeout"] == 0


def test_order_is_kept_beyond_the_memory_limit_and_overflow_costs_delays_only_where_it_was_asked_for(
    nsqd: daemons.Daemon, topic: str
) -> None:
    bodies = [b"%d" % number for number in range(200)]
    with daemons.nsqd("--mem-queue-size=2") as limited:
        for daemon in (limited, nsqd):
            publish(daemon, *(pub(topic, body) for body in bodies))
            publish(daemon, *(dpub(f"{topic}_later", 60_000, body) for body in bodies[:5]))
            post(daemon, f"/channel/create?topic={topic}_later&channel=c")
            with Raw(daemon) as raw:
                raw.subscribe(topic, "c", ready=2500)
                assert [raw.message()[2] for _ in bodies] == bodies
        deferred = [topics(daemon)[f"{topic}_later"]["channels"]["c"]["deferred_count"] for daemon in (limited, nsqd)]

    assert deferred == [2, 5]


def test_backend_depth_is_what_nsq_would_have_on_disk(nsqd: daemons.Daemon, topic: str) -> None:
    publish(nsqd, mpub(topic, [b"x"] * 10_003))
    alone = topics(nsqd)[topic]
    post(nsqd, f"/channel/create?topic={topic}&channel=c")
    channel = topics(nsqd)[topic]["channels"]["c"]

    assert (alone["depth"], alone["backend_depth"]) == (10_003, 3)
    assert (channel["depth"], channel["backend_depth"]) == (10_003, 3)


def test_a_regular_channel_of_an_ephemeral_topic_holds_more_than_the_memory_limit(nsqd: daemons.Daemon) -> None:
    post(nsqd, "/topic/create?topic=brief%23ephemeral")
    post(nsqd, "/channel/create?topic=brief%23ephemeral&channel=c")
    publish(nsqd, mpub("brief#ephemeral", [b"x"] * 10_003))

    assert topics(nsqd)["brief#ephemeral"]["channels"]["c"]["depth"] == 10_003
    post(nsqd, "/topic/delete?topic=brief%23ephemeral")


def test_what_comes_right_behind_identify_is_not_lost(nsqd: daemons.Daemon, topic: str) -> None:
    wishes = json.dumps({"feature_negotiation": True, "deflate": True}).encode()
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
    early = squeeze.compress(pub(topic, b"x")) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    with Raw(nsqd) as raw:
        raw.send(b"IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes + early)
        daemons.until(lambda: topic in topics(nsqd), what="the early publish")


def test_a_connection_is_upgraded_once(nsqd: daemons.Daemon) -> None:
    wishes = json.dumps({"feature_negotiation": True, "deflate": True}).encode()
    identify = b"IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes
    squeeze, expand = zlib.compressobj(6, zlib.DEFLATED, -15), zlib.decompressobj(-15)
    with Raw(nsqd) as raw:
        raw.send(identify)
        raw.frame()
        raw.send(squeeze.compress(identify) + squeeze.flush(zlib.Z_SYNC_FLUSH))
        answers = b""
        while piece := raw.socket.recv(65536):
            answers += expand.decompress(piece)

    assert answers.endswith(b"E_IDENTIFY_FAILED IDENTIFY failed the connection is upgraded already")


def test_a_batch_in_chunks_may_be_no_larger_than_any_other(nsqd: daemons.Daemon, topic: str) -> None:
    piece = struct.pack(">I", 100_000) + bytes(100_000)
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=60)
    parts = [struct.pack(">I", 60), *([piece] * 60)]
    connection.request(
        "POST", f"/mpub?topic={topic}&binary=true", iter(parts), {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    answer = connection.getresponse()

    assert (answer.status, answer.read()) == (413, b'{"message":"BODY_TOO_BIG"}')
    connection.close()


def test_the_clients_own_certificate_may_stand_for_its_authority(tmp_path: Path) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    client, client_key = certificates.self_signed(tmp_path, "client")
    stranger, stranger_key = certificates.self_signed(tmp_path, "stranger")
    flags = (
        f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-client-auth-policy=require",
        f"--tls-root-ca-file={client}", "--https-address=127.0.0.1:0",
    )  # fmt: skip
    data_path = tmp_path / "data"
    data_path.mkdir()
    command = [*daemons.program("nsqd"), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    doors = ("TCP", "HTTP", "HTTPS")
    with daemons.Daemon([*command, f"--data-path={data_path}", *flags], doors=doors) as nsqd:
        pings = []
        for shown, its_key in ((client, client_key), (stranger, stranger_key)):
            context = ssl.create_default_context(cafile=str(certificate))
            context.load_cert_chain(shown, its_key)
            connection = http.client.HTTPSConnection(*nsqd.https.split(":"), context=context, timeout=60)
            try:
                connection.request("GET", "/ping")
                pings.append(connection.getresponse().read())
            except OSError:
                pings.append(b"refused")
            finally:
                connection.close()
        with pytest.raises(OSError, match="403"):
            get(nsqd, "/ping")

    assert pings == [b"OK", b"refused"]


@pytest.mark.parametrize(
    ("experiments", "counted"), [((), "global_msg_count"), (("topology-aware-consumption",), "zone_local_msg_count")]
)
def test_where_a_consumer_is_counts_only_in_the_experiment(experiments: tuple[str, ...], counted: str) -> None:
    flags = (f"--enable-experiment={name}" for name in experiments)
    with daemons.nsqd("--topology-zone=z", *flags) as nsqd, Raw(nsqd) as raw:
        raw.identify(feature_negotiation=True, topology_zone="z")
        raw.ok(pub("t", b"x"))
        raw.subscribe("t", "c", ready=1)
        raw.message()

        counts = {key for key in topics(nsqd)["t"]["channels"]["c"] if key.endswith("_msg_count")}
        assert counts == {counted}
