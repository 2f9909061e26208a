"""Feature negotiation: the wishes of a client in IDENTIFY, the settings it gets, and the answer."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

from lapwing.errors import ProtocolError
from lapwing.records import dataclass
from lapwing.wire.nsq.json import JsonKind, MemberReader, compact_json

_MILLISECOND: Final = 1_000_000  # ns
_SECOND: Final = 1_000 * _MILLISECOND
_DEFAULT_LEVEL: Final = 6  # of deflate


@dataclass(slots=True, kw_only=True)
class Identity:
    """The identity and the wishes of a client; times in ms, as they are sent. A number of 0 asks for nothing."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval: int = 0  # -1: none
    output_buffer_timeout: int = 0  # -1: none
    output_buffer_size: int = 0  # -1: unbuffered
    sample_rate: int = 0  # per cent
    msg_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    reject: bool = False  # the client wants to send REJ
    headers: bool = False  # the client wants headers of messages, and to send HPUB and HMPUB
    topic: str = ""  # of the channel that it will subscribe to, so that the answer can hold what is set there
    channel: str = ""

    def encode(self) -> bytes:
        """Return the body of an IDENTIFY; members that ask for nothing are left out."""
        return compact_json({name: value for name, value in asdict(self).items() if value})


_KIND_OF: Final[dict[Any, JsonKind]] = {str: JsonKind.TEXT, bool: JsonKind.FLAG, int: JsonKind.INT64}
# members that are not NSQ's: a client that means something else by them is not refused
_OWN: Final = frozenset({"reject", "headers", "topic", "channel"})
_MEMBERS: Final = {field.name: _KIND_OF[field.type] for field in fields(Identity)} | {"sample_rate": JsonKind.INT32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The features that this broker grants, and their bounds; times in ns. The defaults are NSQ's."""

    version: str
    max_rdy: int = 2500
    msg_timeout: int = 60 * _SECOND
    max_msg_timeout: int = 900 * _SECOND
    heartbeat_interval: int = 30 * _SECOND
    max_heartbeat_interval: int = 60 * _SECOND
    output_buffer_size: int = 16 * 1024
    max_output_buffer_size: int = 64 * 1024
    output_buffer_timeout: int = 250 * _MILLISECOND
    min_output_buffer_timeout: int = 25 * _MILLISECOND
    max_output_buffer_timeout: int = 30 * _SECOND
    tls: bool = False  # there is a certificate
    snappy: bool = True
    deflate: bool = True
    max_deflate_level: int = 6
    auth_required: bool = False
    topology_region: str = ""
    topology_zone: str = ""

    def settings(self, address: str = "") -> "ClientSettings":
        """Return the settings of a client at `address` (its host alone) before its IDENTIFY."""
        return ClientSettings(
            client_id=address,
            hostname=address,
            heartbeat_interval=self.heartbeat_interval,
            output_buffer_size=self.output_buffer_size,
            output_buffer_timeout=self.output_buffer_timeout,
            msg_timeout=self.msg_timeout,
            deflate_level=min(_DEFAULT_LEVEL, self.max_deflate_level),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of one client; times in ns."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval: int  # 0: none, and no deadlines
    output_buffer_size: int  # 1: unbuffered
    output_buffer_timeout: int  # 0: none
    sample_rate: int = 0
    msg_timeout: int
    tls: bool = False  # granted in the latest IDENTIFY, like the next two
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFAULT_LEVEL
    reject: bool = False
    headers: bool = False


class IdentityReader:
    """Reads the body of an IDENTIFY, a slice at a time: a large one takes longer than others should wait."""

    __slots__ = ("_reader",)

    def __init__(self, body: bytes) -> None:
        self._reader = MemberReader(body, _MEMBERS, lenient=_OWN)

    def advance(self) -> Identity | None:
        """Read for a few milliseconds at most; return the identity when all is read, else None.

        Raises `ProtocolError` when the body is not the JSON it should be.
        """
        try:
            return Identity(**self._reader.found) if self._reader.advance() else None
        except ValueError as error:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error


def parse(body: bytes) -> Identity:
    """Return the identity in the body of an IDENTIFY. Raises `ProtocolError` when it is not the JSON it should be."""
    reader = IdentityReader(body)
    while (identity := reader.advance()) is None:
        pass
    return identity


def negotiate(
    identity: Identity,
    terms: Terms,
    current: ClientSettings | None = None,
    *,
    max_attempts: int | None = None,
    retries: bool = False,
    message_ids: Sequence[str] = (),
) -> tuple[ClientSettings, bytes]:
    """Return what holds from now on, and the payload of the answer: `OK`, or JSON when features were negotiated.

    `current` is what held before, and still does where nothing is asked for. `max_attempts` is the setting of the
    channel that the client has named, if it has named one, and `retries` is whether that channel chooses the delays of
    failed messages. `message_ids` are names and patterns of topics that recognise a repeated message-id. Raises
    `ProtocolError` at the first value out of bounds, and when both compressions would have to be granted. Upgrades are
    only granted here, not made.
    """
    if current is None:
        current = terms.settings()
    heartbeat = _interval(
        "heartbeat interval", identity.heartbeat_interval,
        current.heartbeat_interval, _SECOND, terms.max_heartbeat_interval,
    )  # fmt: skip
    buffer_timeout = _interval(
        "output buffer timeout", identity.output_buffer_timeout,
        current.output_buffer_timeout, terms.min_output_buffer_timeout, terms.max_output_buffer_timeout,
    )  # fmt: skip
    buffer_size = current.output_buffer_size
    if identity.output_buffer_size == -1:
        buffer_size, buffer_timeout = 1, 0
    elif identity.output_buffer_size:
        buffer_size = identity.output_buffer_size
        _check("output buffer size", buffer_size, 64, terms.max_output_buffer_size)
    _check("sample rate", identity.sample_rate, 0, 99)
    msg_timeout = current.msg_timeout
    if identity.msg_timeout:
        _check("msg timeout", identity.msg_timeout, 1000, terms.max_msg_timeout // _MILLISECOND)
        msg_timeout = identity.msg_timeout * _MILLISECOND

    negotiated = identity.feature_negotiation
    deflate = negotiated and identity.deflate and terms.deflate
    level = identity.deflate_level if deflate and identity.deflate_level > 0 else _DEFAULT_LEVEL
    settings = replace(
        current,
        client_id=identity.client_id,
        hostname=identity.hostname,
        user_agent=identity.user_agent,
        topology_region=identity.topology_region,
        topology_zone=identity.topology_zone,
        heartbeat_interval=heartbeat,
        output_buffer_size=buffer_size,
        output_buffer_timeout=buffer_timeout,
        sample_rate=identity.sample_rate,
        msg_timeout=msg_timeout,
        tls=negotiated and identity.tls_v1 and terms.tls,
        snappy=negotiated and identity.snappy and terms.snappy,
        deflate=deflate,
        deflate_level=min(level, terms.max_deflate_level),
        reject=negotiated and identity.reject,
        headers=negotiated and identity.headers,
    )
    if not negotiated:
        return settings, b"OK"
    if settings.deflate and settings.snappy:
        raise ProtocolError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    return settings, _answer(settings, terms, max_attempts, retries, message_ids)


def _interval(what: str, asked: int, current: int, shortest: int, longest: int) -> int:
    """Return the interval in ns for `asked` ms: 0 keeps the current one, -1 means none."""
    if asked == 0:
        return current
    if asked == -1:
        return 0
    _check(what, asked, shortest // _MILLISECOND, longest // _MILLISECOND)
    return asked * _MILLISECOND


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ProtocolError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _answer(
    settings: ClientSettings, terms: Terms, max_attempts: int | None, retries: bool, message_ids: Sequence[str]
) -> bytes:
    answer: dict[str, Any] = {
        "max_rdy_count": terms.max_rdy,
        "version": terms.version,
        "max_msg_timeout": terms.max_msg_timeout // _MILLISECOND,
        "msg_timeout": settings.msg_timeout // _MILLISECOND,
        "tls_v1": settings.tls,
        "deflate": settings.deflate,
        "deflate_level": settings.deflate_level,
        "max_deflate_level": terms.max_deflate_level,
        "snappy": settings.snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": terms.auth_required,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": settings.output_buffer_timeout // _MILLISECOND,
        "topology_region": terms.topology_region,
        "topology_zone": terms.topology_zone,
    }
    if settings.reject:
        answer["reject"] = True
    if settings.headers:
        answer["headers"] = True
        if message_ids:
            answer["message_ids"] = list(message_ids)
    if max_attempts is not None:
        answer["max_attempts"] = max_attempts
    if retries:
        answer["retries"] = True
    return compact_json(answer)
