"""Addresses of nsqds: `host:port`, or the path of a Unix socket."""

from collections.abc import Iterable
from dataclasses import dataclass

from lapwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address of an nsqd; `port` is 0 for a Unix socket, whose path is `host`."""

    host: str
    port: int

    @property
    def unix(self) -> bool:
        return self.port == 0

    def __str__(self) -> str:
        if self.unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """Return the address in `text`; a text with a slash is a Unix socket. Raises `ConfigError`."""
    if text.startswith(("http:", "https:", "tcp:")):
        raise ConfigError(f"{text}: a URL, expected host:port of nsqd's TCP address (port 4150 by default)")
    if text.startswith("unix:"):
        text = text.removeprefix("unix:").removeprefix("//")
        return Address(text, 0)
    if "/" in text:
        return Address(text, 0)
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{text}: missing port in address, expected host:port")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text}: port {port!r} is not a number from 1 to 65535")
    return Address(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))


def listed(addresses: str | Iterable[str]) -> list[str]:
    """Return a list of addresses, from a list or from one text with commas. Raises `ConfigError`."""
    if isinstance(addresses, str):
        return [part.strip() for part in addresses.split(",") if part.strip()]
    if isinstance(addresses, bytes) or not isinstance(addresses, Iterable):
        raise ConfigError(f"addresses are {addresses!r}, expected host:port or a list of such")
    found = list(addresses)
    for each in found:
        if not isinstance(each, str):
            raise ConfigError(f"address {each!r} is no text, expected host:port")
    return found
