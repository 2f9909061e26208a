"""The `Authorization: Bearer` header: how clients send an AUTH secret over HTTP, and how nsqd reads it."""

from __future__ import annotations

from typing import Final

HEADER: Final = "Authorization"
CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="nsqd"')  # header of every 401 answer

_SCHEME: Final = b"bearer"


def credentials(secret: str | bytes) -> bytes:
    """Return the value of the `Authorization` header that carries `secret`.

    Raises `ValueError` for a secret that no header can carry: an empty one, one with control characters, or one
    that begins or ends with a space. The error does not contain the secret.
    """
    raw = secret.encode() if isinstance(secret, str) else secret
    if not raw or raw != raw.strip(b" ") or any(byte < 0x20 or byte == 0x7F for byte in raw):
        raise ValueError("the secret cannot be sent over HTTP: it is empty or has control characters or outer spaces")
    return b"Bearer " + raw


def secret_of(value: bytes | None) -> bytes | None:
    """Return the secret in the value of an `Authorization` header, or None if it holds no bearer secret."""
    if value is None:
        return None
    scheme, _, secret = value.partition(b" ")
    return secret.strip(b" \t") or None if scheme.lower() == _SCHEME else None
