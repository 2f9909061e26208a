"""Brokers behind TLS: reading, writing and subscribing, and certificates that are not believed."""

import struct

import pytest

from certificates import self_signed
from daemons import nsqd, until
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.data_source import columns
from lapwing.spark.options import BrokerAccess, source_options
from lapwing.spark.source.offsets import LogRange
from lapwing.spark.source.ranges import stream
from lapwing.spark.source.subscribe import SubscribeStreamReader
from lapwing.spark.source.survey import survey


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1: paths of certificate and key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


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


def raw(broker, certificate, **more):
    return {"nsqd": https(broker), "topic": "orders", "tls": "true", "tlsRootCaFile": str(certificate[0]), **more}


def test_ranges_are_read_through_tls(broker, certificate):
    wanted = source_options(raw(broker, certificate), streaming=True)
    ((node, held),) = survey(wanted).holdings["orders"].items()
    blocks = stream(LogRange("orders", node, held.log_id, 0, held.next, held.address), wanted)

    assert sum(block.count for block in blocks) == 3


def test_a_channel_is_consumed_through_tls(broker, certificate, tmp_path):
    given = raw(broker, certificate, mode="subscribe", channel="c", spoolDirectory=str(tmp_path), pollTimeout="20s")
    source = SubscribeStreamReader(source_options(given, streaming=True), columns(given))
    start = source.initialOffset()
    limit = source.getDefaultReadLimit()
    assert source.latestOffset(start, limit) == start  # the first batch of a query is empty
    tasks = source.partitions(start, start) + source.partitions(start, source.latestOffset(start, limit))
    rows = [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]

    assert [row["body"] for row in rows] == [b"a", b"b", b"c"]


def test_a_certificate_of_somebody_else_is_not_believed(broker):
    with pytest.raises(BrokerAway, match="certificate verify failed"):
        call(https(broker), BrokerAccess(tls=True), "GET", "/ping")
    call(https(broker), BrokerAccess(tls=True, verify=False), "GET", "/ping")


def test_a_plain_connection_to_a_broker_that_wants_tls_is_told_so(broker):
    with pytest.raises(Exception, match="TLS_REQUIRED"):
        call(broker.http, BrokerAccess(), "GET", "/stats", {"format": "json"})
