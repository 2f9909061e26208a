"""Brokers behind TLS: reading, writing and subscribing, and certificates that are not believed."""

import datetime
import ipaddress
import struct
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from daemons import nsqd, until
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.options import BrokerAccess, source_options
from lapwing.spark.source.offsets import LogRange
from lapwing.spark.source.ranges import stream
from lapwing.spark.source.subscribe import SpoolSubscription
from lapwing.spark.source.survey import survey


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1: paths of certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ).sign(key, hashes.SHA256())
    folder = tmp_path_factory.mktemp("tls")
    private = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def broker(certificate):
    """An nsqd that wants TLS everywhere; three messages in the topic orders."""
    flags = [f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}", "--https-address=127.0.0.1:0"]
    with nsqd(*flags, "--tls-required=true") as daemon:
        batch = struct.pack(">i", 3) + b"".join(struct.pack(">i", 1) + body for body in (b"a", b"b", b"c"))
        access = BrokerAccess(tls=True, ca_file=str(certificate[0]))
        call(https(daemon), access, "POST", "/mpub", {"topic": "orders", "binary": "true"}, batch)
        yield daemon


def https(daemon):
    until(lambda: "HTTPS" in daemon.addresses, what="HTTPS")
    return daemon.https


def options(broker, certificate, **more):
    raw = {"nsqd": https(broker), "topic": "orders", "tls": "true", "tlsRootCaFile": str(certificate[0])}
    return source_options({**raw, **more}, streaming=True)


def test_ranges_are_read_through_tls(broker, certificate):
    wanted = options(broker, certificate)
    ((node, held),) = survey(wanted).holdings["orders"].items()
    blocks = stream(LogRange("orders", node, held.log_id, 0, held.next, held.address), wanted)

    assert sum(block.count for block in blocks) == 3


def test_a_channel_is_consumed_through_tls(broker, certificate, tmp_path):
    wanted = options(broker, certificate, mode="subscribe", channel="c", spoolDirectory=str(tmp_path))
    with SpoolSubscription(https(broker), wanted) as subscription:
        rows = subscription.gather(3, time.monotonic() + 20)
        subscription.finish(rows)

    assert [body for *_, body in rows] == [b"a", b"b", b"c"]


def test_a_certificate_of_somebody_else_is_not_believed(broker):
    with pytest.raises(BrokerAway, match="certificate verify failed"):
        call(https(broker), BrokerAccess(tls=True), "GET", "/ping")
    call(https(broker), BrokerAccess(tls=True, verify=False), "GET", "/ping")


def test_a_plain_connection_to_a_broker_that_wants_tls_is_told_so(broker):
    with pytest.raises(Exception, match="TLS_REQUIRED"):
        call(broker.http, BrokerAccess(), "GET", "/stats", {"format": "json"})
