"""The options of the running daemon: `/config` reads them, and may change two of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from lapwing.admin.options import AdminOptions
from lapwing.client.cluster_client import ClusterClient
from lapwing.net.options import LEVEL, value_of
from lapwing.net.sockets.listen import split

_LOOKUPDS: Final = "nsqlookupd_http_addresses"
_URLS: Final = ("graphite_url", "notification_http_endpoint")


class RunningOptions:
    """Read and change options. An unknown or fixed key is a `KeyError`, a bad value a `ValueError`."""

    def __init__(
        self, options: AdminOptions, cluster_client: ClusterClient, *, on_level: Callable[[int], None]
    ) -> None:
        self._options = options
        self._queries = cluster_client
        self._on_level = on_level

    def get(self, key: str) -> Any:
        """Return the value: text for a text option, else something for JSON. Passwords in URLs are masked."""
        value = value_of(self._options, key)
        return _masked(value) if key in _URLS else value

    def put(self, key: str, text: str) -> Any:
        """Change an option until the daemon ends, and return its new value as `get` does."""
        if key == "log_level":
            level = LEVEL.from_flag(text)
            self._on_level(level)
            self._options = replace(self._options, log_level=level)
        elif key == _LOOKUPDS:
            self._set_lookupds(text)
        else:
            raise KeyError(key)
        return self.get(key)

    def _set_lookupds(self, text: str) -> None:
        try:
            addresses = json.loads(text) or []
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(addresses, list) or not all(isinstance(each, str) and split(each) for each in addresses):
            raise ValueError("expected a list of host:port")
        if not addresses and not self._queries.nsqds:
            raise ValueError("expected at least one address, as no nsqd is configured")
        self._queries.lookupds = list(addresses)
        self._options = replace(self._options, lookupd_http_addresses=tuple(addresses))


def _masked(url: str) -> str:
    """Return the URL without its password and its query, where a token may be."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit(
        (parts.scheme, f"{name}{colon and ':***'}{at}{host}", parts.path, parts.query and "***", parts.fragment)
    )
