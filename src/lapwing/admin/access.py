"""The users of nsqadmin and their permissions: the ACL header, the built-in login, read-only mode."""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lapwing.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

COOKIE: Final = "lapwing_session"
SESSION_SECONDS: Final = 12 * 3600
_TRIES: Final = 5  # wrong passwords from one address before it has to wait
_WAIT_SECONDS: Final = 30.0
_SCRYPT: Final = {"n": 2**14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request."""

    user: str  # empty: unknown
    address: str
    may_read: bool
    may_change: bool
    user_agent: str = ""
    peer: str = ""  # the other end of the connection: the client or a proxy
    port: int = 0
    basic_user: str = ""  # from HTTP Basic authorization; goes into notifications, and gives no permission


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks given in CIDR form (`127.0.0.1/8` too). Raises `ConfigError`."""
    try:
        return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts if text.strip())
    except ValueError as error:
        raise ConfigError(f"invalid CIDR: {error}") from error


def inside(networks: Iterable[Network], address: str) -> bool:
    """Return whether the IP address is in one of the networks. The empty address of a Unix socket is in none."""
    try:
        peer = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return any(peer in network for network in networks)


# ---- passwords ----


def hash_password(password: str) -> str:
    """Return the hash that follows the user's name in a password file."""
    salt = secrets.token_bytes(16)
    key = hashlib.scrypt(password.encode(), salt=salt, **_SCRYPT)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


def _matches(password: str, stored: str) -> bool:
    kind, _, rest = stored.partition("$")
    salt, _, key = rest.partition("$")
    if kind != "scrypt":
        return False
    made = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), **_SCRYPT)
    return hmac.compare_digest(made, base64.b64decode(key))


def read_passwords(path: str) -> dict[str, str]:
    """Return the users of a password file, one `name:hash` a line. Raises `ConfigError`."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the password file {path}: {error.strerror}") from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, stored = line.strip().partition(":")
        if not (name and colon and stored.startswith("scrypt$") and stored.count("$") == 2):
            raise ConfigError(f"{path}, line {number}: expected name:scrypt$salt$key, as --hash-password prints it")
        users[name] = stored
    return users


@dataclass(slots=True)
class Logins:
    """Passwords, the sessions opened with them, and wrong guesses by address. A restart ends all sessions."""

    passwords: dict[str, str]
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, tuple[str, float]] = field(default_factory=dict)
    _failures: dict[str, list[float]] = field(default_factory=dict)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def must_wait(self, address: str) -> bool:
        """Return whether the address has sent too many wrong passwords in the last seconds."""
        since = self.clock() - _WAIT_SECONDS
        recent = [at for at in self._failures.get(address, ()) if at > since]
        if recent:
            self._failures[address] = recent
        else:
            self._failures.pop(address, None)
        return len(recent) >= _TRIES

    async def open(self, user: str, password: str, address: str) -> str | None:
        """Return the token of a new session, or None for a wrong name or password, or after too many tries."""
        for other in list(self._failures):
            self.must_wait(other)  # drops old failures, so that strangers cannot fill the memory
        async with self._one_at_a_time:  # a try costs 16 MiB and 50 ms
            if self.must_wait(address):
                return None
            # an unknown name takes the same time, so that timing does not reveal names
            stored = self.passwords.get(user, "scrypt$AAAAAAAAAAAAAAAAAAAAAA==$AAAA")
            if not await asyncio.to_thread(_matches, password, stored):
                self._failures.setdefault(address, []).append(self.clock())
                return None
        self._failures.pop(address, None)
        now = self.clock()
        self._sessions = {token: held for token, held in self._sessions.items() if held[1] > now}
        token = secrets.token_urlsafe(32)
        self._sessions[token] = (user, now + SESSION_SECONDS)
        return token

    def user(self, token: str) -> str:
        """Return the user of a session, or the empty string if there is no such session."""
        user, until = self._sessions.get(token, ("", 0.0))
        return user if until > self.clock() else ""

    def close(self, token: str) -> None:
        """End a session."""
        self._sessions.pop(token, None)


# ---- the rule ----


@dataclass(slots=True)
class AccessRules:
    """The rules that name the user of a request and what that user may do."""

    acl_header: str = "X-Forwarded-User"
    admin_users: tuple[str, ...] = ()
    trusted_proxies: tuple[Network, ...] = ()
    read_only: bool = False
    require_user: bool = False
    logins: Logins | None = None

    def believed(self, headers: Mapping[str, str], peer: str) -> dict[str, str]:
        """Return the headers without those that only a proxy may set, unless `peer` is a trusted proxy.

        Names are in lower case.
        """
        if inside(self.trusted_proxies, peer):
            return dict(headers)
        acl = self.acl_header.lower()
        return {
            name: value
            for name, value in headers.items()
            if name not in (acl, "x-scheme", "forwarded") and not name.startswith("x-forwarded-")
        }

    def visitor(self, headers: Mapping[str, str], peer: str, cookies: Mapping[str, str], *, port: int = 0) -> Visitor:
        """Return the visitor behind a request; `headers` have lower-case names."""
        headers = self.believed(headers, peer)
        user = headers.get(self.acl_header.lower(), "")
        if not user and self.logins is not None:
            user = self.logins.user(cookies.get(COOKIE, ""))
        may_read = bool(user) or not (self.require_user or self.logins is not None)
        may_change = may_read and not self.read_only and (not self.admin_users or user in self.admin_users)
        return Visitor(
            user,
            self._client_address(headers.get("x-forwarded-for", ""), peer),
            may_read,
            may_change,
            headers.get("user-agent", ""),
            peer,
            port,
            _basic_user(headers.get("authorization", "")),
        )

    def _client_address(self, hops: str, peer: str) -> str:
        """Return the last hop that is no trusted proxy: the client may have written everything before it."""
        address = peer
        for hop in reversed([each.strip() for each in hops.split(",") if each.strip()]):
            address = hop
            if not inside(self.trusted_proxies, hop):
                break
        return address


def _basic_user(authorization: str) -> str:
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(coded, validate=True).decode("utf-8").partition(":")[0]
    except ValueError:
        return ""
