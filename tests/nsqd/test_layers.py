"""TLS, snappy and deflate on a live connection."""

import contextlib
import json
import ssl
import struct
import warnings
from pathlib import Path

import pytest
from rawtalk import Raw, pub

import certificates
import daemons
from lapwing.net.sockets.tls import server_context
from lapwing.nsqd.doors.layers import Encrypted


@pytest.mark.parametrize("minor", [0, 1, 2, 3])
def test_versions_are_shown_as_nsq_does(tmp_path: Path, minor: int) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    server = Encrypted(server_context(str(certificate), str(key), least=769))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion(769 + minor)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    done = False
    while not done:
        with contextlib.suppress(ssl.SSLWantReadError):  # it has said its part
            client.do_handshake()
        done, answer = server.handshake(outgoing.read())
        incoming.write(answer)

    assert server.version == f"TLS1.{minor}"


@pytest.mark.parametrize("layer", ["tls_v1", "snappy", "deflate"])
def test_a_publish_that_fails_before_an_upgrade_in_the_same_breath_is_told_so(tmp_path: Path, layer: str) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    wishes = json.dumps({"feature_negotiation": True, layer: True}).encode()
    more_than_there_is = "--min-free-bytes=1000000000000000000"
    with daemons.nsqd(f"--tls-cert={certificate}", f"--tls-key={key}", more_than_there_is) as nsqd, Raw(nsqd) as raw:
        raw.send(pub("t", b"x") + b"IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes)

        assert raw.error().startswith("E_PUB_FAILED PUB failed ")


def test_a_failed_handshake_is_answered_with_an_alert_and_then_in_the_clear(tmp_path: Path) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    wishes = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    with daemons.nsqd(f"--tls-cert={certificate}", f"--tls-key={key}") as nsqd, Raw(nsqd) as raw:
        raw.send(b"IDENTIFY\n" + struct.pack(">I", len(wishes)) + wishes)
        assert json.loads(raw.frame()[1])["tls_v1"] is True
        raw.send(b"\x16\x03\x01\x00\x05" + b"wrong")
        alert = raw.exactly(7)

        assert (alert[0], alert[5]) == (21, 2)  # a fatal alert
        assert raw.error().startswith("E_IDENTIFY_FAILED IDENTIFY failed ")
