"""Listening on TCP, Unix sockets and TLS."""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import re
import socket
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from certificates import self_signed
from lapwing.errors import ConfigError
from lapwing.net.server import answers
from lapwing.net.server.http import HttpServer
from lapwing.net.server.routes import Route, Router
from lapwing.net.sockets.listen import CannotListen, bind, join, split
from lapwing.net.sockets.tls import server_context

PING = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def site():
    return HttpServer(Router([Route("GET", "/ping", lambda request: answers.plain(request.caller.address))]))


@contextlib.asynccontextmanager
async def listening(address, **how):
    listener = bind(address)
    server = site()
    await listener.serve(server.protocol, **how)
    try:
        yield listener
    finally:
        listener.close()
        await server.shutdown(0)


async def ask(reader, writer, request=PING):
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


def certificate(folder, name, issuer=None):
    """Paths of a new certificate and its key; signed by `issuer`'s, or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    issuer_name, issuer_key = issuer or (subject, key)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        # Python 3.13 verifies no certificate without these three
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(x509.KeyUsage(True, *[False] * 4, issuer is None, *[False] * 3), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(paths[0]), str(paths[1]), (subject, key)


def trusting(path, identity=None):
    context = ssl.create_default_context(cafile=path)
    if identity:
        context.load_cert_chain(*identity[:2])
    return context


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        (":0", ("", 0)),
        ("[::1]:4150", ("::1", 4150)),
        ("host.example:80", ("host.example", 80)),
        ("/run/nsqd.sock", None),
        ("nsqd.sock", None),
        ("host:port", None),
        ("host:99999", None),
        ("./dir:80/sock", None),
    ],
)
def test_an_address_is_host_and_port_or_a_path(address, parts):
    assert split(address) == parts


def test_join_is_the_way_back():
    assert (join("::1", 1), join("127.0.0.1", 1)) == ("[::1]:1", "127.0.0.1:1")


async def test_tcp_on_a_port_of_the_systems_choice():
    async with listening("127.0.0.1:0") as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port))

    assert listener.port > 0
    assert b"\r\n\r\n127.0.0.1:" in answer


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0"])
async def test_all_interfaces_means_both_families(address):
    async with listening(address) as listener:
        four = await ask(*await asyncio.open_connection("127.0.0.1", listener.port))
        six = await ask(*await asyncio.open_connection("::1", listener.port))

    assert four.startswith(b"HTTP/1.1 200")
    assert b"\r\n\r\n[::1]:" in six


async def test_a_port_in_use_is_named():
    async with listening("127.0.0.1:0") as listener:
        with pytest.raises(CannotListen, match=r"listen \(127\.0\.0\.1:\d+\) failed - .*address already in use"):
            bind(f"127.0.0.1:{listener.port}")


async def test_a_host_that_is_not_ours_cannot_be_listened_on():
    with pytest.raises(CannotListen, match="listen"):
        bind("192.0.2.1:0")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:http"])
def test_a_port_that_is_none_is_no_path_either(address):
    with pytest.raises(CannotListen, match="no such port"):
        bind(address)


async def test_a_unix_socket_has_the_umasks_mode_and_goes_with_its_listener(tmp_path):
    path = str(tmp_path / "http.sock")
    before = os.umask(0o027)
    try:
        async with listening(path) as listener:
            mode = stat.S_IMODE(os.stat(path).st_mode)
            answer = await ask(*await asyncio.open_unix_connection(path))
            assert (listener.port, listener.address) == (-1, path)
    finally:
        os.umask(before)

    assert mode == 0o750
    assert answer.endswith(b"\r\n\r\n@")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_who_comes_over_ipv4_is_shown_so_on_a_socket_for_both_families():
    async with listening(":0") as listener:
        four = await ask(*await asyncio.open_connection("127.0.0.1", listener.port))
        six = await ask(*await asyncio.open_connection("::1", listener.port))

    assert re.search(rb"\r\n\r\n127\.0\.0\.1:\d+$", four)
    assert re.search(rb"\r\n\r\n\[::1\]:\d+$", six)


async def test_a_stale_socket_file_is_an_address_in_use(tmp_path):
    path = tmp_path / "http.sock"
    path.touch()
    with pytest.raises(CannotListen, match=r"address already in use; .* remove the file"):
        bind(str(path))

    assert path.exists()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls(tmp_path, version):
    own = certificate(tmp_path, "server")
    client = trusting(own[0])
    client.minimum_version = client.maximum_version = version
    async with listening("127.0.0.1:0", tls=server_context(own[0], own[1])) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=client))

    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_old_tls_is_refused_by_default_and_allowed_when_asked(tmp_path):
    own = certificate(tmp_path, "server")
    client = trusting(own[0])
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1
    async with listening("127.0.0.1:0", tls=server_context(own[0], own[1], least=769)) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=client))
    async with listening("127.0.0.1:0", tls=server_context(own[0], own[1])) as listener:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=client)

    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
async def test_client_certificates(tmp_path, policy):
    authority = certificate(tmp_path, "authority")
    own = certificate(tmp_path, "server", authority[2])
    good = certificate(tmp_path, "client", authority[2])
    stranger = certificate(tmp_path, "stranger")
    tls = server_context(own[0], own[1], client_auth=policy, root_ca=authority[0])
    async with listening("127.0.0.1:0", tls=tls) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusting(authority[0], good)))
        for identity in (None, stranger):
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                context = trusting(authority[0], identity)
                refused = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=context))
                assert refused == b""

    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_the_ca_file_may_name_a_clients_own_certificate(tmp_path):
    own = certificate(tmp_path, "server")
    client = certificate(tmp_path, "client")
    tls = server_context(own[0], own[1], client_auth="require", root_ca=client[0])
    async with listening("127.0.0.1:0", tls=tls) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusting(own[0], client)))

    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_certificate_that_cannot_be_read_is_the_operators_mistake(tmp_path):
    with pytest.raises(ConfigError, match="failed to build TLS config"):
        server_context(str(tmp_path / "none"), str(tmp_path / "none"))


async def test_a_short_key_works_with_a_warning(tmp_path):
    weak, key = self_signed(tmp_path, bits=1024)
    warnings = []
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with listening("127.0.0.1:0", tls=server_context(str(weak), str(key), warn=warnings.append)) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port, ssl=client))

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert [str(weak) in warning and "ee key too small" in warning for warning in warnings] == [True]


async def test_plain_http_on_a_tls_port_is_told_so(tmp_path):
    own = certificate(tmp_path, "server")
    async with listening("127.0.0.1:0", tls=server_context(own[0], own[1])) as listener:
        answer = await ask(*await asyncio.open_connection("127.0.0.1", listener.port))

    assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert answer.endswith(b"Client sent an HTTP request to an HTTPS server.\n")
