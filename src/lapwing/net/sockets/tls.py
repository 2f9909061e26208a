"""TLS contexts for listeners and for callers."""

import ssl
import warnings
from collections.abc import Callable
from typing import Any, Final

from lapwing.errors import ConfigError

_LOWEST_LEVEL: Final = "DEFAULT:@SECLEVEL=0"  # OpenSSL allows short keys and versions before 1.2 at no other level
_WEAK: Final = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "MD_TOO_WEAK"})

VERSIONS: Final = {
    769: ssl.TLSVersion.TLSv1,
    770: ssl.TLSVersion.TLSv1_1,
    771: ssl.TLSVersion.TLSv1_2,
    772: ssl.TLSVersion.TLSv1_3,
}


def server_context(
    certificate: str,
    key: str,
    *,
    least: int = 771,
    client_auth: str = "",
    root_ca: str = "",
    warn: Callable[[str], None] = lambda text: None,
) -> ssl.SSLContext:
    """Return the context of a listener; raise `ConfigError` if a file cannot be used.

    `least` is a version number as TLS writes it (771 is 1.2). `client_auth` is `require`, `require-verify`, or
    anything else for no client certificates. Both of the former need a certificate that `root_ca` vouches for:
    OpenSSL, as Python offers it, cannot ask for a certificate and then not check it. The file may also
    name the clients' own certificates, self-signed ones too, instead of their issuers. `warn` is called with a line for
    the log if a key is too short to be safe.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not certificate or not key:
        raise ConfigError("failed to build TLS config - a certificate and its key belong together")
    if least < 771:
        context.set_ciphers(_LOWEST_LEVEL)
    try:
        _load(lambda: context.load_cert_chain(certificate, key), certificate, key)
    except ConfigError as error:
        cause = error.__cause__
        if not isinstance(cause, ssl.SSLError) or cause.reason not in _WEAK:
            raise
        reason = cause.reason.replace("_", " ").lower()
        warn(f"{certificate} is not safe ({reason}) and is used all the same: replace it by one with 2048 bits or more")
        context.set_ciphers(_LOWEST_LEVEL)
        _load(lambda: context.load_cert_chain(certificate, key), certificate, key)
    if root_ca:
        _load(lambda: context.load_verify_locations(cafile=root_ca), root_ca)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the operator's choice, not ours
        context.minimum_version = VERSIONS[least]
    if client_auth in ("require", "require-verify"):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if not root_ca:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(
    *, root_ca_file: str | None = None, cert: str | None = None, key: str | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """Return the TLS settings of a caller. Raises `OSError` when a file cannot be read."""
    context = ssl.create_default_context(cafile=root_ca_file or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        context.load_cert_chain(cert, key)
    return context


def common_name(certificate: Any) -> str:
    """Return the common name in a certificate as `getpeercert` describes it; empty without one."""
    for group in (certificate or {}).get("subject", ()):
        for key, value in group:
            if key == "commonName":
                return str(value)
    return ""


def _load(load: Callable[[], None], *paths: str) -> None:
    """Make OpenSSL read these files. Raises `ConfigError` that, unlike OpenSSL, names the file at fault."""
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
