"""Calls of the daemons' HTTP API from Spark's processes, repeated for a while when a daemon is away."""

import atexit
import json
import logging
import select
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from lapwing.errors import LapwingError
from lapwing.net.client import bearer
from lapwing.net.client.blocking import BlockingHttpClient
from lapwing.net.client.blocking import Exchange as HttpExchange
from lapwing.net.client.message import HttpFailed, HttpUrl, Origin
from lapwing.net.sockets.tls import client_context
from lapwing.spark.options import BrokerAccess

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
PLANNING_SECONDS: Final = 2.0  # for answers that the plan of the next batch waits for
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0

Result = TypeVar("Result")
Parameters = Mapping[str, str | int | list[str]]


class BrokerAway(LapwingError):
    """A daemon did not answer, or not in full, or could not do anything (5xx): it may later."""

    def __init__(self, address: str, seen: object) -> None:
        super().__init__(f"{address}: {seen or type(seen).__name__}")
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokerAway, (self.address, str(self).removeprefix(f"{self.address}: "))


class BrokerRefused(LapwingError):
    """A daemon refused a request; `code` is its word for the reason, `details` the rest of its answer."""

    def __init__(self, address: str, request: str, status: int, code: str, details: dict[str, Any]) -> None:
        super().__init__(f"{address}: {request}: {status} {code}")
        self.status = status
        self.code = code
        self.details = details


class NotAuthorized(LapwingError):
    """A broker refuses the secret, or wants one; to repeat the request would not help."""

    def __init__(self, address: str, request: str, code: str, details: dict[str, Any]) -> None:
        if code == "AUTH_REQUIRED":
            text = "it requires a secret: set the option authSecret"
        elif code == "AUTH_FAILED":
            text = "it does not accept the secret of the option authSecret"
        else:
            place = "".join(f" on {kind} {details[kind]}" for kind in ("topic", "channel") if details.get(kind))
            text = f"the secret lacks the permission {details.get('permission', '')}{place}"
        super().__init__(f"{address}: {request.partition('?')[0]}: {text}")


class WrongPort(LapwingError):
    """An address that is not that of an HTTP API; to repeat the request would not help."""


@lru_cache(32)
def _client(access: BrokerAccess) -> BlockingHttpClient:
    """Return the client of this process for such brokers; it keeps idle connections."""
    headers = {bearer.HEADER: bearer.credentials(access.secret).decode()} if access.secret else {}
    client = BlockingHttpClient(
        connect_timeout=CONNECT_SECONDS,
        request_timeout=ANSWER_SECONDS,
        headers=headers,
        tls=tls_context(access) if access.tls else None,
    )
    atexit.register(client.close)
    return client


def tls_context(access: BrokerAccess) -> ssl.SSLContext:
    """Return the TLS settings that the options describe."""
    return client_context(
        root_ca_file=access.ca_file, cert=access.cert_file, key=access.key_file, insecure=not access.verify
    )


def _url(address: str, access: BrokerAccess, path: str) -> HttpUrl:
    host, _, port = address.rpartition(":")
    return HttpUrl(Origin("https" if access.tls else "http", host.strip("[]"), int(port)), path)


def target(path: str, parameters: Parameters) -> str:
    """Return path and query string; a parameter with several values is repeated."""
    query = urlencode({key: value for key, value in parameters.items() if value != ""}, doseq=True)
    return f"{path}?{query}" if query else path


class BrokerExchange:
    """One request whose answer is being read. The connection is kept if all of the answer was read."""

    def __init__(
        self, address: str, access: BrokerAccess, method: str, path: str, body: bytes | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> None:  # fmt: skip
        """Send the request and read the head of the answer; raises `BrokerAway`, `BrokerRefused`, `NotAuthorized`."""
        self._address = address
        self._request = f"{method} {path}"
        try:
            self._exchange: HttpExchange = _client(access).open(
                method, _url(address, access, path), body=body, timeout=seconds
            )
        except (HttpFailed, OSError) as error:  # OSError: a certificate that cannot be read
            if "E_BAD_PROTOCOL" in str(error):
                hint = "this is the TCP port of an nsqd; the HTTP port is needed (4151 by default, not 4150)"
                raise WrongPort(f"{address}: {hint}") from error
            raise BrokerAway(address, error) from error
        if self._exchange.status >= 300:
            self._refuse()

    def _refuse(self) -> None:
        status, text = self._exchange.status, self.read()
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
        if code in ("AUTH_REQUIRED", "AUTH_FAILED", "UNAUTHORIZED"):
            raise NotAuthorized(self._address, self._request, code, details)
        raise BrokerRefused(self._address, self._request, status, code, details)

    def read(self, size: int | None = None) -> bytes:
        """Return exactly `size` bytes (None: the rest of the answer), or none at the end of the answer."""
        try:
            return self._exchange.read(size)
        except HttpFailed as error:
            raise BrokerAway(self._address, error) from error

    def fill(self, view: memoryview) -> None:
        """Read as many bytes as `view` holds into it, large pieces without a copy."""
        try:
            self._exchange.fill(view)
        except HttpFailed as error:
            raise BrokerAway(self._address, error) from error

    def finish(self) -> None:
        """Keep the connection for the next request, or close it when the answer was not read to its end."""
        self._exchange.finish()


def call(
    address: str,
    access: BrokerAccess,
    method: str,
    path: str,
    parameters: Parameters | None = None,
    body: bytes | None = None,
    *,
    seconds: float = ANSWER_SECONDS,
) -> Any:
    """Send one request; return the JSON of the answer, None for an answer without one."""
    exchange = BrokerExchange(address, access, method, target(path, parameters or {}), body, seconds)
    text = exchange.read()
    exchange.finish()
    if not text or text == b"OK":
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise BrokerAway(address, f"{method} {path} was answered with {text[:80]!r}") from error


class RetryPauses:
    """Growing pauses between attempts to reach a broker, each with a line in the log, up to the retry time."""

    def __init__(self, access: BrokerAccess) -> None:
        self._limit = access.retry_seconds
        self.restart()

    def restart(self) -> None:
        """Start over: the broker has answered."""
        self._pause = _FIRST_PAUSE
        self._deadline: float | None = None

    def wait(self, what: str, error: Exception) -> None:
        """Pause before the next attempt; raises `BrokerAway` when the retry time is over."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._limit
        if now + self._pause > self._deadline:
            raise BrokerAway(what, f"{error} (tried for {self._limit:g} s)") from error
        logger.warning("%s: %s; trying again in %.1f s", what, error, self._pause)
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


def patiently(what: str, ask: Callable[[], Result], access: BrokerAccess) -> Result:
    """Return the result of `ask`; repeat it while it raises `BrokerAway`, for at most `retry_seconds`."""
    pauses = RetryPauses(access)
    while True:
        try:
            return ask()
        except BrokerAway as error:
            pauses.wait(what, error)


def wait_for_any(questions: Mapping[str, str], access: BrokerAccess, seconds: float) -> None:
    """Send the same kind of long question to several daemons; return when one has answered, or after `seconds`.

    `questions` are paths by address. The answers are not used, and a daemon that is away or refuses is ignored: the
    caller asks all of them again anyway.
    """
    deadline = time.monotonic() + seconds
    asked: list[HttpExchange] = []
    try:
        for address, path in questions.items():
            with suppress(HttpFailed, OSError):
                asked.append(_client(access).start("GET", _url(address, access, path)))
        while asked and (left := deadline - time.monotonic()) > 0:
            for exchange in select.select(asked, [], [], left)[0]:
                if _succeeds(exchange):
                    return
                asked.remove(exchange)
                exchange.finish()
        time.sleep(max(deadline - time.monotonic(), 0))
    finally:
        for exchange in asked:
            exchange.finish()


def _succeeds(exchange: HttpExchange) -> bool:
    try:
        exchange.read(1)
        return exchange.status == 200
    except HttpFailed:
        return False
