"""Call the HTTP APIs of nsqd and nsqlookupd."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from lapwing.client.change_origin import headers_of_change
from lapwing.errors import LapwingError
from lapwing.net.client import bearer
from lapwing.net.client.asynchronous import NSQ_ACCEPT, HttpClient
from lapwing.net.client.message import HttpAnswer, HttpFailed
from lapwing.net.sockets.listen import split

MAX_ANSWER: Final = 256 << 20  # bytes; `/stats` of 100,000 topics has some 100 MB
Params = Mapping[str, str] | Sequence[tuple[str, str]]
T = TypeVar("T")
U = TypeVar("U")
NONSENSE: Final = (AttributeError, LookupError, TypeError, ValueError)  # what answers of another shape raise


class CallFailed(LapwingError):
    """A daemon could not be reached, or refused. The text is for an operator; `status` is None without an answer.

    `reason` is the text without the request: `connection refused`.
    """

    def __init__(self, text: str, *, status: int | None = None, answer: Any = None, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text
        self.status = status
        self.answer = answer

    @property
    def code(self) -> str:
        """The daemon's own word for what went wrong (`TOPIC_NOT_FOUND`), or empty."""
        return str(self.answer.get("message", "")) if isinstance(self.answer, dict) else ""

    @property
    def unsupported(self) -> bool:
        """Whether the daemon does not know such a request, as a plain NSQ server does not know those of lapwing."""
        return self.status == 404 and self.code == "NOT_FOUND"


@dataclass(slots=True)
class Asked(Generic[T]):
    """The answers of several daemons to one question, and the failures, by address."""

    answers: dict[str, T]
    failures: dict[str, CallFailed]

    @property
    def errors(self) -> list[str]:
        """The failures as texts."""
        return [str(failure) for failure in self.failures.values()]

    @property
    def named_errors(self) -> list[str]:
        """The failures as texts, each with its address: a refusal by itself does not have it."""
        return [
            str(failure) if failure.status is None else f"{address}: {failure}"
            for address, failure in self.failures.items()
        ]

    @property
    def nobody(self) -> bool:
        """Whether no answer came at all."""
        return not self.answers

    def combined(self, combine: Callable[[dict[str, T]], U]) -> U:
        """Return what `combine` makes of the answers. One that it cannot understand becomes a failure of its daemon."""
        try:
            return combine(self.answers)
        except NONSENSE:
            self._drop_nonsense(lambda address, answer: combine({address: answer}))
        try:
            return combine(self.answers)
        except NONSENSE:  # each makes sense alone, but not beside the others
            known: dict[str, T] = {}

            def add(address: str, answer: T) -> None:
                combine({**known, address: answer})
                known[address] = answer

            self._drop_nonsense(add)
            return combine(self.answers)

    def _drop_nonsense(self, use: Callable[[str, T], object]) -> None:
        """Make a failure of each answer that cannot be used."""
        for address, answer in list(self.answers.items()):
            try:
                use(address, answer)
            except NONSENSE as error:
                reason = f"its answer could not be understood ({error!r})"
                self.failures[address] = CallFailed(f"{address}: {reason}", reason=reason)
                del self.answers[address]


class DaemonHttp:
    """Call nsqd and nsqlookupd by `host:port`, over kept-alive connections, without following redirects.

    A daemon that answers `403 TLS_REQUIRED` is called again over https at the port it names; later calls go there at
    once. With `auth_secret`, every call carries `Authorization: Bearer`; a secret that no header can carry is a
    `ValueError`.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        user_agent: str = "lapwing",
        auth_secret: str = "",
    ) -> None:
        headers = {"Accept": NSQ_ACCEPT, "User-Agent": user_agent}
        if auth_secret:
            headers[bearer.HEADER] = bearer.credentials(auth_secret).decode()
        self._client = HttpClient(
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            headers=headers,
            tls=tls,
            max_answer=MAX_ANSWER,
            upgrade_to_tls=True,
        )

    async def get(self, address: str, path: str, params: Params = (), *, timeout: float | None = None) -> Any:
        """Return the JSON of `GET path`. Raises `CallFailed`."""
        return await self.call("GET", address, path, params, timeout=timeout)

    async def text(self, address: str, path: str, params: Params = ()) -> str:
        """Return the text of `GET path`. Raises `CallFailed`."""
        return (await self._call("GET", address, path, params)).text

    async def post(
        self,
        address: str,
        path: str,
        params: Params = (),
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body that `POST path` is answered with. Raises `CallFailed`."""
        return (await self._call("POST", address, path, params, body=body, headers=headers)).body

    async def call(
        self,
        method: str,
        address: str,
        path: str,
        params: Params = (),
        *,
        document: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Send `document` as JSON, if there is one, and return the JSON of the answer. Raises `CallFailed`."""
        body, headers = None, None
        if document is not None:
            body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
        answer = await self._call(method, address, path, params, body=body, headers=headers, timeout=timeout)
        try:
            return answer.json() if answer.body or method == "GET" else None
        except HttpFailed as error:
            raise CallFailed(f'{method.capitalize()} "{answer.url}": {error}') from error

    async def _call(
        self,
        method: str,
        address: str,
        path: str,
        params: Params,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> HttpAnswer:
        query = urlencode(params)
        url = f"http://{address}{path}?{query}" if query else f"http://{address}{path}"
        if split(address) is None:  # nsqlookupd passes on any address that an nsqd gives
            raise CallFailed(f'{method.capitalize()} "{url}": not a host:port', reason="not a host:port")
        try:
            sent = {**(headers or {}), **headers_of_change(method)}
            answer = await self._client.request(method, url, headers=sent, body=body, timeout=timeout)
        except HttpFailed as error:
            raise CallFailed(f'{method.capitalize()} "{error.url or url}": {error}', reason=str(error)) from error
        if answer.status != 200:
            raise _refused(answer)
        return answer

    async def ask_all(self, addresses: Iterable[str], question: Callable[[str], Awaitable[T]]) -> Asked[T]:
        """Put `question` to every address at the same time. A failure is returned, not raised."""
        order = list(dict.fromkeys(addresses))
        results = await asyncio.gather(*(question(address) for address in order), return_exceptions=True)
        asked: Asked[T] = Asked({}, {})
        for address, result in zip(order, results, strict=True):
            if isinstance(result, CallFailed):
                asked.failures[address] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                asked.answers[address] = result
        return asked

    async def aclose(self) -> None:
        """Close every kept connection."""
        await self._client.aclose()


def _refused(answer: HttpAnswer) -> CallFailed:
    text = answer.body[:4096].decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    status = f"{answer.status} {answer.reason}"
    return CallFailed(
        f"got response {status} {json.dumps(text, ensure_ascii=False)}", status=answer.status, answer=document
    )
