"""Apply the settings that a program names to its channels, on each nsqd before it is consumed."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypedDict

from lapwing import durations
from lapwing.client.address import Address, listed, parse
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

_GIVEN: Final = frozenset({"default", "flag"})  # a value from there is nobody's choice for this channel


class ChannelSettings(TypedDict, total=False):
    """The settings of a channel that a consumer may name; times are seconds, or texts such as "1m30s"."""

    max_attempts: int
    retry_first: float | str
    retry_factor: float
    retry_max: float | str
    retry_jitter: float
    dead_topic: str
    msg_timeout: float | str
    rate: str
    burst: int
    message_ttl: float | str
    expired_to_dead: bool
    max_depth: int
    max_bytes: int
    overflow: Literal["reject", "drop-oldest", "dead"]


_TIMES: Final = frozenset({"retry_first", "retry_max", "msg_timeout", "message_ttl"})


def as_sent(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as nsqd takes them. Raises `ConfigError` for one that is unknown or no time."""
    for name in settings:
        if name not in ChannelSettings.__annotations__:
            raise ConfigError(f"no setting of a channel is called {name}: {', '.join(ChannelSettings.__annotations__)}")
    found = {
        name: f"{value * 1000:.0f}ms" if name in _TIMES and isinstance(value, (int, float)) else value
        for name, value in settings.items()
    }
    for name in _TIMES & found.keys():
        try:
            durations.parse(found[name])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name} is {found[name]!r}, expected seconds or a text such as '1m30s'") from error
    return found


class SettingsKeeper:
    """Creates channels and applies their settings, once for each channel and nsqd.

    A value that an operator has set for the channel, or by a policy, stays and is reported, unless `overwrite`.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        nsqd: str | Iterable[str],
        nsqd_http: str | Iterable[str],
        lookupd: str | Iterable[str],
        overwrite: bool,
    ) -> None:
        self._options = options
        self._overwrite = overwrite
        self._lookupds = listed(lookupd)
        given, named = [str(parse(text)) for text in listed(nsqd)], listed(nsqd_http)
        if named and len(named) != len(given):
            raise ConfigError(f"nsqd_http has {len(named)} addresses for {len(given)} of nsqd: give one for each")
        self._http_of = dict(zip(given, named, strict=False))
        self._http: DaemonHttp | None = None
        self._applied: set[tuple[str, str, str]] = set()

    async def apply(self, address: Address, topic: str, channel: str, settings: dict[str, Any]) -> None:
        """Apply settings on the nsqd at this TCP address. Raises `Unreachable` or `Refused`."""
        key = (str(address), topic, channel)
        if not settings or key in self._applied:
            return
        if self._http is None:
            tls = self._options.tls_context() if self._options.tls else None
            self._http = DaemonHttp(tls=tls, auth_secret=self._options.auth_secret or "")
        where = await self._http_address(address)
        try:
            await self._apply(self._http, where, topic, channel, settings)
        except CallFailed as error:
            if error.status == 404:
                log.warning(
                    "[%s/%s] (%s) this server keeps no settings of channels: %s have no effect, or hold in the client",
                    topic, channel, where, ", ".join(settings),
                )  # fmt: skip
            elif error.status:
                raise Refused(where, f"settings of {topic}/{channel}: {error.code or error}") from error
            else:
                raise Unreachable(where, f"{error}; is this nsqd's HTTP address? nsqd_http= names another") from error
        self._applied.add(key)

    async def _apply(self, http: DaemonHttp, where: str, topic: str, channel: str, settings: dict[str, Any]) -> None:
        place = {"topic": topic, "channel": channel}
        await http.post(where, "/topic/create", {"topic": topic})
        await http.post(where, "/channel/create", place)
        present = (await http.get(where, "/channel/settings", place))["settings"]
        new: dict[str, Any] = {}
        for name, wanted in settings.items():
            value, source = present[name]["value"], present[name]["from"]
            if _same(name, value, wanted):
                continue
            if source in _GIVEN or self._overwrite:
                new[name] = wanted
                continue
            log.warning(
                "[%s/%s] (%s) %s is %s (set by: %s), and this program asks for %s: left as it is; "
                "overwrite_settings=True or `lapwing settings %s/%s %s=%s` changes it",
                topic, channel, where, name, value, source, wanted, topic, channel, name, wanted,
            )  # fmt: skip
        if new:
            await http.call("PATCH", where, "/channel/settings", place, document=new)
            log.info("[%s/%s] (%s) set %s", topic, channel, where, ", ".join(f"{n}={v}" for n, v in new.items()))

    async def _http_address(self, address: Address) -> str:
        """Return the HTTP address of an nsqd: as given, as nsqlookupd has it, or the next port, as usual."""
        if str(address) in self._http_of:
            return self._http_of[str(address)]
        if self._lookupds:
            assert self._http is not None
            asked = await self._http.ask_all(self._lookupds, self._nodes)
            for nodes in asked.answers.values():
                for node in nodes:
                    if (node.get("broadcast_address"), node.get("tcp_port")) == (address.host, address.port):
                        return f"{address.host}:{node['http_port']}"
        if address.unix:
            raise Refused(str(address), "settings of channels need nsqd's HTTP address: nsqd_http=")
        return f"{address.host}:{address.port + 1}"

    async def _nodes(self, lookupd: str) -> list[dict[str, Any]]:
        assert self._http is not None
        answer = await self._http.get(lookupd, "/nodes")
        found: list[dict[str, Any]] = answer.get("data", answer)["producers"]
        return found

    async def close(self) -> None:
        """Close the connections; settings are checked again after the next start."""
        self._applied.clear()
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()


def _same(name: str, value: Any, wanted: Any) -> bool:
    if name in _TIMES:
        return durations.parse(value) == durations.parse(wanted)
    return json.dumps(value) == json.dumps(wanted) or (isinstance(wanted, (int, float)) and value == wanted)
