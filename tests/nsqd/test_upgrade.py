"""What a connection knows of its own TLS."""

import contextlib
import ssl
import warnings
from pathlib import Path

import pytest

import certificates
from lapwing.net.tls import server_context
from lapwing.nsqd.upgrade import Encrypted


@pytest.mark.parametrize("minor", [0, 1, 2, 3])
def test_versions_are_shown_as_nsq_does(tmp_path: Path, minor: int) -> None:
    certificate, key = certificates.self_signed(tmp_path)
    server = Encrypted(server_context(str(certificate), str(key)))
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
