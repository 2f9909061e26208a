"""The permissions of one TCP client: asked of the auth servers, kept, and asked again when they expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing.broker.client_stats import ClientInfo
from lapwing.errors import ProtocolError
from lapwing.net.logs import Log
from lapwing.wire.nsq.commands import Dpub, Hmpub, Hpub, Mpub, Pub, Sub
from lapwing.wire.nsq.json import compact_json

if TYPE_CHECKING:
    from lapwing.nsqd.doors.auth import Authenticator, Authorizations

Guarded = Pub | Dpub | Mpub | Hpub | Hmpub | Sub

WORDS: Final[dict[type, str]] = {  # the commands that need a permission
    Pub: "PUB", Dpub: "DPUB", Mpub: "MPUB", Hpub: "HPUB", Hmpub: "HMPUB", Sub: "SUB",
}  # fmt: skip


class Gate:
    """Checks the commands of one client. Without an authenticator everything is allowed."""

    def __init__(
        self, authenticator: Authenticator | None, about: ClientInfo, now: Callable[[], int], log: Log
    ) -> None:
        self.common_name = ""  # of the client's certificate
        self._authenticator = authenticator
        self._about = about
        self._now = now
        self._log = log
        self._grants: Authorizations | None = None

    @property
    def closed(self) -> bool:
        """Whether clients need permissions."""
        return self._authenticator is not None

    @property
    def expired(self) -> bool:
        """Whether the permissions of the client have to be asked for again."""
        return self._grants is not None and self._grants.expired(self._now())

    def check_auth(self) -> None:
        """Raise `ProtocolError` unless an AUTH is legal now."""
        if self._grants is not None:
            raise ProtocolError("E_INVALID", "AUTH already set")
        if self._authenticator is None:
            raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    async def admit(self, secret: bytes) -> bytes:
        """Ask for the client's permissions; return the answer to its AUTH. Raises `ProtocolError`."""
        grants = await self._ask(secret)
        if not grants.authorizations:
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        self._grants = grants
        about = self._about
        about.authed, about.auth_identity, about.auth_identity_url = True, grants.identity, grants.identity_url
        answer = {
            "identity": grants.identity,
            "identity_url": grants.identity_url,
            "permission_count": len(grants.authorizations),
        }
        return compact_json(answer)

    async def renew(self) -> None:
        """Ask again, with the same secret. Raises `ProtocolError`."""
        assert self._grants is not None
        self._grants = await self._ask(self._grants.secret)

    def check(self, command: Guarded) -> None:
        """Raise `ProtocolError` unless the client has the permission for a command."""
        self.authorize(WORDS[type(command)], command.topic, command.channel if isinstance(command, Sub) else "")

    def authorize(self, word: str, topic: str, channel: str) -> None:
        """Raise `ProtocolError` unless the client has the permission; called before the body of an MPUB is read."""
        if self._grants is None:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {word}")
        if self.expired:
            return  # asked again when the command is whole
        permission = "subscribe" if word == "SUB" else "publish"
        if not self._grants.allows(permission, topic, channel):
            raise ProtocolError("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')

    async def _ask(self, secret: bytes) -> Authorizations:
        assert self._authenticator is not None
        about = self._about
        host = about.remote_address.rpartition(":")[0].strip("[]")
        try:
            return await self._authenticator.query(
                secret=secret, remote_ip=host, tls=about.tls, common_name=self.common_name
            )
        except Exception as error:
            self._log.warn(f"{about.remote_address}: auth server: {error}")
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed") from error
