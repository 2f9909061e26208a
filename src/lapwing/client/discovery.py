"""Ask nsqlookupd for the nsqds of a topic."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from lapwing.client.address import Address
from lapwing.client.errors import Unreachable
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError
from lapwing.net.client.asynchronous import NSQ_ACCEPT, HttpClient
from lapwing.net.client.message import HttpFailed

log: Final = logging.getLogger("lapwing.client")

FIRST_ANSWERS: Final = 2.0  # s that a start waits for nsqlookupd
SOON: Final = 0.05  # s; several losses at once cause one question


def lookup_url(text: str, *, topic: str | None) -> str:
    """Return the URL to ask the nsqlookupd at `text` (`host:port` or URL); a port is required. Raises `ConfigError`.

    With a topic it is `/lookup` unless the URL has a path; without one, `/nodes`.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text}: {error}") from error
    if port is None:
        raise ConfigError(f"{text}: missing port")
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"{text}: scheme {parts.scheme!r}, expected http or https")
    if topic is None:
        return urlunsplit((parts.scheme, parts.netloc, "/nodes", "", ""))
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("topic", topic)])
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def addresses_in(answer: Any) -> set[Address]:
    """Return the nsqds of one answer, without entries that have no address."""
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        answer = answer["data"]  # the form of servers before 1.0
    producers = answer.get("producers") if isinstance(answer, dict) else None
    found: set[Address] = set()
    for producer in producers or ():
        host, port = producer.get("broadcast_address"), producer.get("tcp_port")
        if isinstance(host, str) and host and isinstance(port, int) and 0 < port < 65536:
            found.add(Address(host, port))
    return found


class Discovery:
    """Ask every nsqlookupd at the start, at intervals, and when poked.

    `found` is called after each answer with the union of all: an nsqlookupd that is down changes nothing, and a slow
    one delays no other.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        options: ClientOptions,
        found: Callable[[set[Address]], None],
        *,
        topic: str | None = None,
    ) -> None:
        self._urls = [lookup_url(text, topic=topic) for text in dict.fromkeys(lookupds)]
        self._options = options
        self._found = found
        headers = {"Accept": NSQ_ACCEPT, "User-Agent": options.user_agent}
        if options.auth_secret and options.lookupd_auth:
            headers["Authorization"] = f"Bearer {options.auth_secret}"
        timeout = options.lookupd_poll_timeout
        self._client = HttpClient(
            connect_timeout=timeout, request_timeout=timeout, headers=headers, follow_redirects=True
        )
        self._poked = asyncio.Event()
        self._stopped = False
        self._first: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._answers: dict[str, set[Address]] = {}  # the last of each nsqlookupd
        self.errors: list[str] = []  # of the last poll, in words

    def poke(self) -> None:
        """Ask again soon: a connection was lost."""
        self._poked.set()

    async def start(self) -> None:
        """Return after the first answers, or after 2 s; later answers come in the background."""
        first = self._first = asyncio.create_task(self.poll(), name="lapwing-discovery-first")
        await asyncio.wait([first], timeout=FIRST_ANSWERS)
        if not self._stopped:
            self._task = asyncio.create_task(self._keep_polling(first), name="lapwing-discovery")

    async def stop(self) -> None:
        self._stopped = True
        for task in (self._task, self._first):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._client.aclose()

    async def poll(self) -> None:
        """Ask every nsqlookupd once."""
        results = await asyncio.gather(*(self._ask_and_report(url) for url in self._urls), return_exceptions=True)
        failed: dict[str, Unreachable] = {}
        for url, result in zip(self._urls, results, strict=True):
            if isinstance(result, Unreachable):
                failed[url] = result
                log.warning("nsqlookupd %s", result)
            elif isinstance(result, BaseException):
                raise result
        self.errors = [str(error) for error in failed.values()]
        if len(failed) < len(self._urls):
            for url in failed:
                self._answers.pop(url, None)  # the answers of the others are newer

    async def _ask_and_report(self, url: str) -> None:
        self._answers[url] = await self._ask(url)
        self._found(set().union(*self._answers.values()))

    async def _keep_polling(self, first: asyncio.Task[None]) -> None:
        await first
        interval = self._options.lookupd_poll_interval
        # jitter: consumers that start together must not ask together for ever
        wait = random.random() * self._options.lookupd_poll_jitter * interval + interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._poked.wait()
                    await asyncio.sleep(SOON)
            self._poked.clear()
            await self.poll()
            wait = interval if not self.errors else min(interval, self._options.max_reconnect_delay)

    async def _ask(self, url: str) -> set[Address]:
        try:
            answer = await self._client.request("GET", url)
            if answer.status == 404:
                return set()  # a topic nobody has yet
            if answer.status != 200:
                raise Unreachable(url, f"answered {answer.status} {answer.text[:200]!r}")
        except HttpFailed as error:
            raise Unreachable(url, f"{error}: is nsqlookupd running there?") from error
        try:
            return addresses_in(answer.json())
        except (HttpFailed, AttributeError, TypeError) as error:
            raise Unreachable(url, f"the answer is not the JSON that was expected: {error}") from error
