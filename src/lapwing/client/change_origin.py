"""Name the person behind changes of the cluster, for the audits of the nodes."""

import getpass
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

HEADER: Final = "X-Lapwing-Change"
_current: ContextVar[str] = ContextVar("lapwing_change", default="")


@contextmanager
def change_by(user: str) -> Iterator[str]:
    """Send a name with every change that is made inside, and yield the identifier that they have in common."""
    identifier = secrets.token_hex(6)
    printable = "".join(sign if sign.isprintable() and sign.isascii() else "?" for sign in user)
    token = _current.set(f"{identifier} {printable}".strip())
    try:
        yield identifier
    finally:
        _current.reset(token)


def headers_of_change(method: str) -> dict[str, str]:
    """Return the header that names who makes the change at hand; none for a request that only reads."""
    origin = _current.get()
    return {HEADER: origin} if origin and method != "GET" else {}


def user_of_this_machine() -> str:
    """Return the user who runs this program, and on which machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run under a number that has no name
        user = "somebody"
    return f"{user}@{platform.node() or 'localhost'}"
