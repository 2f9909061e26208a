"""`/config/<option>`: read settings, and change two of them while nsqd runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.settings.options import Options
from lapwing.net.logs import Log, parse_level
from lapwing.net.options import value_of
from lapwing.net.server.answers import Answer, Refused, failure, text, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.stats import statsd

if TYPE_CHECKING:
    from lapwing.nsqd.lookupd.peer import Peers

_INVALID_VALUE: Final = failure(413, "INVALID_VALUE")


class Config:
    """The settings as they are now."""

    def __init__(self, options: Options, log: Log, peers: Peers) -> None:
        self._options = options
        self._log = log
        self._peers = peers
        self._running: dict[str, Callable[[], Any]] = {
            "log_level": lambda: int(log.level),
            "nsqlookupd_tcp_addresses": lambda: list(peers.addresses),
            "statsd_prefix": lambda: statsd.prefix(options),
        }
        self._writable: dict[str, Callable[[bytes], None]] = {
            "log_level": self._set_level,
            "nsqlookupd_tcp_addresses": self._set_lookupds,
        }

    def routes(self) -> list[Route]:
        largest = self._options.max_msg_size
        return [
            Route("GET", "/config/<option>", self.read),
            Route("PUT", "/config/<option>", self.write, max_body=largest, too_big=_INVALID_VALUE),
        ]

    def read(self, request: Request) -> Answer:
        """Return one setting: bare text for a string, JSON for all else, durations in ns."""
        return self._show(request.parameter)

    def write(self, request: Request) -> Answer:
        """Change the log level or the nsqlookupds."""
        if not request.body:
            return _INVALID_VALUE
        change = self._writable.get(request.parameter)
        if change is None:
            raise Refused(400, "INVALID_OPTION")
        try:
            change(request.body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "INVALID_VALUE") from error
        return self._show(request.parameter)

    def _show(self, key: str) -> Answer:
        running = self._running.get(key)
        try:
            found = value_of(self._options, key) if running is None else running()
        except KeyError as error:
            raise Refused(400, "INVALID_OPTION") from error
        return text(found) if isinstance(found, str) else value(found)

    def _set_level(self, body: bytes) -> None:
        self._log.level = parse_level(body.decode("ascii"))

    def _set_lookupds(self, body: bytes) -> None:
        found = json.loads(body)
        if found is None:
            found = []
        if not isinstance(found, list) or not all(isinstance(address, str) for address in found):
            raise ValueError("a list of addresses expected")
        self._peers.use(found)
