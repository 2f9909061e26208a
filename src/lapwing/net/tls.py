"""TLS contexts for the daemons' doors."""

import ssl
import warnings
from collections.abc import Callable
from typing import Any, Final

from lapwing.errors import ConfigError

VERSIONS: Final = {
    769: ssl.TLSVersion.TLSv1,
    770: ssl.TLSVersion.TLSv1_1,
    771: ssl.TLSVersion.TLSv1_2,
    772: ssl.TLSVersion.TLSv1_3,
}


def server_context(
    certificate: str, key: str, *, least: int = 769, client_auth: str = "", root_ca: str = ""
) -> ssl.SSLContext:
    """The context of a listener; raises `ConfigError` if a file cannot be used.

    `least` is a version number as TLS writes it (769 is 1.0). `client_auth` is `require`, `require-verify`, or
    anything else for no client certificates. Both of the former want a certificate that `root_ca` vouches for:
    OpenSSL, as Python offers it, cannot ask for a certificate and then not look at it. The file may also
    name the clients' own certificates, self-signed ones too, instead of their issuers.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not certificate or not key:
        raise ConfigError("failed to build TLS config - a certificate and its key belong together")
    _load(lambda: context.load_cert_chain(certificate, key), certificate, key)
    if root_ca:
        _load(lambda: context.load_verify_locations(cafile=root_ca), root_ca)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the operator's choice, not ours
        context.minimum_version = VERSIONS[least]
    if least < 771:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL 3 allows the old versions at no other level
    if client_auth in ("require", "require-verify"):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if not root_ca:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def common_name(certificate: Any) -> str:
    """Return the common name in a certificate as `getpeercert` describes it; empty without one."""
    for group in (certificate or {}).get("subject", ()):
        for key, value in group:
            if key == "commonName":
                return str(value)
    return ""


def _load(load: Callable[[], None], *paths: str) -> None:
    """Have OpenSSL read these files; raises `ConfigError` that, unlike OpenSSL, names the one that is at fault."""
    try:
        for path in paths:
            with open(path, "rb"):
                pass
        load()
    except ssl.SSLError as error:
        text = f"{' and '.join(paths)}: {error.reason or 'nothing usable in there'}"
        raise ConfigError(f"failed to build TLS config - {text}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"failed to build TLS config - {error}") from error
