"""The settings of connections, consumers and producers, with defaults and ranges.

Times are seconds. As text (`-consumer-opt name,value`) a time is `1.5s` or `2m`, `-` and `_` are the same in names.
"""

import dataclasses
import difflib
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

from lapwing import __version__, durations, names
from lapwing.errors import ConfigError

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE

TLS_VERSIONS: Final = {
    "ssl3.0": ssl.TLSVersion.TLSv1,  # Python speaks no SSL 3.0; nobody should
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


class ClientSettings(TypedDict, total=False):
    """The keyword arguments of `Consumer` and `Producer`; see `ClientOptions`."""

    dial_timeout: float
    read_timeout: float
    write_timeout: float
    local_addr: str | None
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_poll_timeout: float
    max_requeue_delay: float
    default_requeue_delay: float
    backoff_strategy: Literal["exponential", "full_jitter"]
    max_backoff_duration: float
    backoff_multiplier: float
    max_attempts: int
    low_rdy_idle_timeout: float
    low_rdy_timeout: float
    rdy_redistribute_interval: float
    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval: float
    sample_rate: int
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify: bool
    tls_min_version: Literal["ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3"]
    deflate: bool
    deflate_level: int
    snappy: bool
    output_buffer_size: int
    output_buffer_timeout: float
    max_in_flight: int
    msg_timeout: float
    auth_secret: str | None
    lookupd_auth: bool
    topology_region: str
    topology_zone: str
    max_msg_size: int
    max_body_size: int
    max_reconnect_delay: float
    publish_timeout: float
    confirm_timeout: float
    stop_timeout: float
    auto_touch: bool
    headers: bool
    trace_as_child: bool
    # NSQ's names
    tls_v1: bool
    tls_root_ca_file: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_insecure_skip_verify: bool
    skip_lookupd_authorization: bool


def _not(value: Any) -> Any:
    return not value if isinstance(value, bool) else value


def _same(value: Any) -> Any:
    return value


NSQ_NAMES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {  # NSQ's name: ours, and our value of theirs
    "tls_v1": ("tls", _same),
    "tls_root_ca_file": ("tls_ca_file", _same),
    "tls_cert": ("tls_cert_file", _same),
    "tls_key": ("tls_key_file", _same),
    "tls_insecure_skip_verify": ("tls_verify", _not),
    "skip_lookupd_authorization": ("lookupd_auth", _same),  # despite its name, True sends the secret
}


def _setting(default: Any, low: float | None = None, high: float | None = None, *, time: bool = False) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "time": time})


def _seconds(default: float, low: float | None = 0, high: float | None = None) -> Any:
    return _setting(default, low, high, time=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Checked settings. Raises `ConfigError` for a value that is out of range."""

    dial_timeout: float = _seconds(5.0, 0.001)  # a busy machine needs more than NSQ's one
    read_timeout: float = _seconds(60.0, 0.1, 5 * MINUTE)  # silence after which a connection is given up
    write_timeout: float = _seconds(5.0, 0.1, 5 * MINUTE)  # the same for bytes the peer does not take
    local_addr: str | None = _setting(None)
    lookupd_poll_interval: float = _seconds(60.0, 0.01, 5 * MINUTE)
    lookupd_poll_jitter: float = _setting(0.3, 0, 1)  # share of the interval
    lookupd_poll_timeout: float = _seconds(60.0, 0.001)
    max_requeue_delay: float = _seconds(15 * MINUTE, 0, HOUR)
    default_requeue_delay: float = _seconds(90.0, 0, HOUR)  # times the attempts
    backoff_strategy: Literal["exponential", "full_jitter"] = _setting("exponential")
    max_backoff_duration: float = _seconds(2 * MINUTE, 0, HOUR)  # 0: no backoff
    backoff_multiplier: float = _seconds(1.0, 0, HOUR)
    max_attempts: int = _setting(5, 0, 65535)  # 0: no limit
    low_rdy_idle_timeout: float = _seconds(10.0, 1, 5 * MINUTE)
    low_rdy_timeout: float = _seconds(30.0, 1, 5 * MINUTE)
    rdy_redistribute_interval: float = _seconds(5.0, 0.001, 5)
    client_id: str = _setting("")  # empty: the short host name
    hostname: str = _setting("")  # empty: the host name
    user_agent: str = _setting(f"lapwing/{__version__}")
    heartbeat_interval: float = _seconds(30.0, None)  # -1: off
    sample_rate: int = _setting(0, 0, 99)  # percent; 0: all
    tls: bool = _setting(False)
    tls_ca_file: str | None = _setting(None)
    tls_cert_file: str | None = _setting(None)
    tls_key_file: str | None = _setting(None)
    tls_verify: bool = _setting(True)
    tls_min_version: Literal["ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3"] = _setting("tls1.2")
    deflate: bool = _setting(False)
    deflate_level: int = _setting(6, 1, 9)
    snappy: bool = _setting(False)
    output_buffer_size: int = _setting(16384, -1)  # at the server
    output_buffer_timeout: float = _seconds(0.25, None)  # at the server; -1: off
    max_in_flight: int = _setting(1, 0)
    msg_timeout: float = _seconds(0.0, 0)  # 0: the server's
    auth_secret: str | None = _setting(None)
    lookupd_auth: bool = _setting(True)  # send the secret to nsqlookupd too
    topology_region: str = _setting("")
    topology_zone: str = _setting("")
    max_msg_size: int = _setting(1 << 20, 0)  # bytes that nsqd takes in one message, until it names its own limit
    max_body_size: int = _setting(5 << 20, 0)  # bytes that nsqd takes in one MPUB, until it names its own limit
    max_reconnect_delay: float = _seconds(15.0, 0.01)
    publish_timeout: float = _seconds(30.0, 0.001)  # failover included
    confirm_timeout: float = _seconds(5.0, 0.001)  # then, if there is another nsqd, the publish goes there
    stop_timeout: float = _seconds(30.0, 0)  # how long a stop waits for handlers
    auto_touch: bool = _setting(True)
    headers: bool = _setting(True)  # ask for headers and send them; off: plain NSQ
    trace_as_child: bool = _setting(False)  # a process span is the publisher's child; off: linked to it

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            low, high = spec.metadata["low"], spec.metadata["high"]
            if not _of_kind(value, spec.default):
                kind = "str" if spec.default is None else type(spec.default).__name__
                raise ConfigError(f"{spec.name} is {value!r}, expected {kind}, not {type(value).__name__}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{spec.name} is {value}, expected a finite number")
            if (low is not None and value < low) or (high is not None and value > high):
                shown = f"{low} to {high}" if high is not None else f"at least {low}"
                raise ConfigError(f"{spec.name} is {value}, expected {shown}")
        if self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                f"heartbeat_interval {self.heartbeat_interval} s is over read_timeout {self.read_timeout} s"
            )
        if self.backoff_strategy not in ("exponential", "full_jitter"):
            raise ConfigError(f"backoff_strategy is {self.backoff_strategy!r}, expected exponential or full_jitter")
        if self.tls_min_version not in TLS_VERSIONS:
            raise ConfigError(f"tls_min_version is {self.tls_min_version!r}, expected one of {', '.join(TLS_VERSIONS)}")
        if self.snappy and self.deflate:
            raise ConfigError("snappy and deflate are both on, choose one")
        if self.snappy and find_spec("cramjam") is None:
            raise ConfigError("snappy is on, and cramjam is not installed: pip install 'lapwing[snappy]'")

    def but(self, **settings: Unpack[ClientSettings]) -> "ClientOptions":
        """Return a copy with some settings changed. Raises `ConfigError` for an unknown one."""
        known = [*(spec.name for spec in dataclasses.fields(self)), *NSQ_NAMES]
        found: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                alike = difflib.get_close_matches(name, known, 1)
                raise ConfigError(f"no setting is called {name}" + (f"; is it {alike[0]}?" if alike else ""))
            name, convert = NSQ_NAMES.get(name, (name, _same))
            if name in found:
                raise ConfigError(f"{name} is given twice, by its name and by NSQ's")
            found[name] = convert(value)
        return dataclasses.replace(self, **found)

    def identity(self) -> dict[str, Any]:
        """Return the body of IDENTIFY."""
        hostname = self.hostname or socket.gethostname()
        client_id = self.client_id or hostname.partition(".")[0]
        identity: dict[str, Any] = {
            "client_id": client_id,
            "hostname": hostname,
            "short_id": client_id,
            "long_id": hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "tls_v1": self.tls,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "snappy": self.snappy,
            "heartbeat_interval": _milliseconds(self.heartbeat_interval),
            "sample_rate": self.sample_rate,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _milliseconds(self.output_buffer_timeout),
            "msg_timeout": _milliseconds(self.msg_timeout),
        }
        if self.headers:
            identity["headers"] = True
        if self.topology_region or self.topology_zone:
            identity |= {"topology_region": self.topology_region, "topology_zone": self.topology_zone}
        return identity

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings for nsqd. Raises `ConfigError` for files that cannot be used."""
        context = ssl.create_default_context()
        context.minimum_version = TLS_VERSIONS[self.tls_min_version]
        try:
            if self.tls_ca_file:
                context.load_verify_locations(self.tls_ca_file)
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
        except OSError as error:  # ssl.SSLError is one
            files = [name for name in (self.tls_ca_file, self.tls_cert_file, self.tls_key_file) if name]
            missing = [name for name in files if not Path(name).exists()]
            raise ConfigError(f"TLS files: {', '.join(missing) or ', '.join(files)}: {error}") from error
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _of_kind(value: Any, default: Any) -> bool:
    """Return whether `value` has the type of `default`; None means a text that may be missing."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, type(default))) and not isinstance(value, bool)
    return isinstance(value, str) or (default is None and value is None)


def check_name(kind: str, name: str) -> None:
    """Raise `ConfigError` unless `name` may name a topic or a channel."""
    if not isinstance(name, str) or not names.valid(name):
        raise ConfigError(f"invalid {kind} name {name!r}: 1 to 64 of A-Z a-z 0-9 . _ -, then maybe #ephemeral")


def _milliseconds(seconds: float) -> int:
    return -1 if seconds < 0 else round(seconds * 1000)


_TRUE: Final = frozenset({"", "1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def duration(text: str) -> float:
    """Return the seconds of `1m30s`, `250ms` or a bare number of milliseconds. Raises `ValueError`."""
    if text.removeprefix("-").isdecimal():
        return int(text) / 1000
    return durations.parse(text) / 1e9


def parse_option(text: str) -> tuple[str, Any]:
    """Return the setting and value of `name,value` (`name` alone is true). Raises `ConfigError`."""
    name, _, value = text.partition(",")
    name = name.strip().replace("-", "_")
    specs = {spec.name: spec for spec in dataclasses.fields(ClientOptions)}
    ours = NSQ_NAMES.get(name, (name, _same))[0]
    if ours not in specs:
        raise ConfigError(f"invalid option {name}")
    spec = specs[ours]
    try:
        return name, _value(value.strip(), spec.default, time=spec.metadata["time"])
    except ValueError as error:
        raise ConfigError(f"failed to set option {name}: {error}") from error


def _value(text: str, default: Any, *, time: bool) -> Any:
    if isinstance(default, bool):
        if text not in _TRUE | _FALSE:
            raise ValueError(f"{text!r} is not true or false")
        return text in _TRUE
    if time:
        return duration(text)
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float):
        return float(text)
    return text
