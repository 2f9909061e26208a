"""The options of a running daemon: what `/config` may read, and the two it may change."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from lapwing.admin.options import Options
from lapwing.client.cluster_client import ClusterClient
from lapwing.net.options import LEVEL, value_of

_LOOKUPDS: Final = "nsqlookupd_http_addresses"


class Settings:
    """`get` and `put` raise `KeyError` for what is no option or is fixed, `put` `ValueError` for a bad value."""

    def __init__(self, options: Options, queries: ClusterClient, *, on_level: Callable[[int], None]) -> None:
        self._options = options
        self._queries = queries
        self._on_level = on_level

    def get(self, key: str) -> Any:
        """Text for a text option, else something for JSON."""
        return value_of(self._options, key)

    def put(self, key: str, text: str) -> Any:
        """Change an option of the running daemon; nothing is written to disk. The new value, as `get` gives it."""
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
        addresses = json.loads(text)
        if addresses is None:
            addresses = []
        if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
            raise ValueError("a list of addresses expected")
        self._queries.lookupds = list(addresses)
        self._options = replace(self._options, lookupd_http_addresses=tuple(addresses))
