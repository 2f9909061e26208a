"""The daemons' HTTP, called and waited for: connections are kept, brokers that are away are tried again for a while.

Only what Python brings along, as every executor imports this. One thread at a time per address.
"""

import http.client
import json
import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from lapwing.errors import LapwingError
from lapwing.spark.options import Access

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0

Result = TypeVar("Result")
Parameters = Mapping[str, str | int | list[str]]


class BrokerAway(LapwingError):
    """A daemon did not answer, or not in full, or was not able to do anything (5xx): later it may be."""

    def __init__(self, address: str, seen: object) -> None:
        super().__init__(f"{address}: {seen or type(seen).__name__}")
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokerAway, (self.address, str(self).removeprefix(f"{self.address}: "))


class BrokerRefused(LapwingError):
    """A daemon said no; `code` is its word for it, `details` the rest of its answer."""

    def __init__(self, address: str, request: str, status: int, code: str, details: dict[str, Any]) -> None:
        super().__init__(f"{address}: {request}: {status} {code}")
        self.status = status
        self.code = code
        self.details = details


class _Connections:
    """Idle connections of this process, one per address and manner of speaking."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, Access], http.client.HTTPConnection] = {}

    def take(self, address: str, access: Access) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it has been used before (it may have been closed meanwhile)."""
        if (kept := self._idle.pop((address, access), None)) is not None:
            return kept, True
        return connect(address, access), False

    def give_back(self, address: str, access: Access, connection: http.client.HTTPConnection) -> None:
        self._idle[address, access] = connection


_connections = _Connections()


def connect(address: str, access: Access) -> http.client.HTTPConnection:
    """A new connection to `host:port`, open."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection: http.client.HTTPConnection
    if access.tls:
        context = ssl.create_default_context(cafile=access.ca_file)
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file)
        connection = http.client.HTTPSConnection(host, int(port), timeout=CONNECT_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=CONNECT_SECONDS)
    connection.connect()
    connection.sock.settimeout(ANSWER_SECONDS)
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def target(path: str, parameters: Parameters) -> str:
    """Path and query string; a parameter with several values is repeated."""
    query = urlencode({key: value for key, value in parameters.items() if value != ""}, doseq=True)
    return f"{path}?{query}" if query else path


class Exchange:
    """One request whose answer is being read; the connection is kept if all of it was."""

    def __init__(self, address: str, access: Access, method: str, path: str, body: bytes | None = None) -> None:
        """Send the request and read the head of the answer; raises `BrokerAway`, `BrokerRefused`."""
        self._address = address
        self._access = access
        self._request = f"{method} {path}"
        for attempt in (1, 2):
            try:
                self._connection, used = _connections.take(address, access)
            except (OSError, http.client.HTTPException) as error:
                raise BrokerAway(address, error) from error
            try:
                self._connection.request(method, path, body)
                self._response = self._connection.getresponse()
                break
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if not used or attempt == 2:
                    raise BrokerAway(address, error) from error
        if self._response.status >= 300:
            self._refuse()

    def _refuse(self) -> None:
        status, text = self._response.status, self.read()
        self.finish()
        try:
            details = json.loads(text)
        except ValueError:
            details = {}
        if not isinstance(details, dict):
            details = {}
        if status >= 500:
            raise BrokerAway(self._address, f"{self._request}: {status} {text[:200].decode('latin-1')}")
        code = str(details.get("message") or text[:200].decode("latin-1"))
        raise BrokerRefused(self._address, self._request, status, code, details)

    def read(self, size: int | None = None) -> bytes:
        """Exactly `size` bytes (all that is left for None), or none at all at the end of the answer."""
        try:
            if size is None:
                return self._response.read()
            data = self._response.read(size)
            while 0 < len(data) < size:
                more = self._response.read(size - len(data))
                if not more:
                    raise http.client.IncompleteRead(data, size - len(data))
                data += more
            return data
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise BrokerAway(self._address, error) from error

    def fill(self, view: memoryview) -> None:
        """Read as much as `view` holds into it: large pieces need no memory of their own, and no copy."""
        filled = 0
        try:
            while filled < len(view):
                count = self._response.readinto(view[filled:])
                if not count:
                    raise http.client.IncompleteRead(b"", len(view) - filled)
                filled += count
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise BrokerAway(self._address, error) from error

    def finish(self) -> None:
        """Keep the connection for the next request, or close it when the answer was not read to its end."""
        if self._response.isclosed() and not self._response.will_close:
            _connections.give_back(self._address, self._access, self._connection)
        else:
            self._connection.close()


def call(
    address: str,
    access: Access,
    method: str,
    path: str,
    parameters: Parameters | None = None,
    body: bytes | None = None,
) -> Any:
    """Ask once; the JSON of the answer, None for one without."""
    exchange = Exchange(address, access, method, target(path, parameters or {}), body)
    text = exchange.read()
    exchange.finish()
    if not text or text == b"OK":
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise BrokerAway(address, f"{method} {path} was answered with {text[:80]!r}") from error


class Pauses:
    """Patience with a broker that is away: growing pauses, each with a line in the log, until it is enough."""

    def __init__(self, access: Access) -> None:
        self._limit = access.retry_seconds
        self.restart()

    def restart(self) -> None:
        """Things go well: what is spent of the patience is given back."""
        self._pause = _FIRST_PAUSE
        self._deadline: float | None = None

    def wait(self, what: str, error: Exception) -> None:
        """Pause before the next attempt; raises `BrokerAway` when there shall be none."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._limit
        if now + self._pause > self._deadline:
            raise BrokerAway(what, f"{error} (tried for {self._limit:g} s)") from error
        logger.warning("%s: %s; trying again in %.1f s", what, error, self._pause)
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


def patiently(what: str, ask: Callable[[], Result], access: Access) -> Result:
    """What `ask` gives; while it raises `BrokerAway` it is tried again, for `retry_seconds` and then no more."""
    pauses = Pauses(access)
    while True:
        try:
            return ask()
        except BrokerAway as error:
            pauses.wait(what, error)


def wait_for_any(questions: Mapping[str, str], access: Access, seconds: float) -> None:
    """Ask several daemons the same kind of long question, and return as soon as one has answered, or in `seconds`.

    `questions` are paths by address. The answers are not looked at, and who does not answer is not missed: whoever
    calls asks everybody again anyway.
    """
    asked: list[http.client.HTTPConnection] = []
    try:
        for address, path in questions.items():
            try:
                connection = connect(address, access)
                connection.request("GET", path)
            except (OSError, http.client.HTTPException):
                continue
            asked.append(connection)
        if asked:
            select.select([connection.sock for connection in asked], [], [], seconds)
        else:
            time.sleep(seconds)
    finally:
        for connection in asked:
            connection.close()
