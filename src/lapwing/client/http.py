"""The daemons' HTTP APIs, called."""

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from lapwing.errors import LapwingError
from lapwing.net.listen import split

if TYPE_CHECKING:
    import httpx

ACCEPT: Final = "application/vnd.nsq; version=1.0"
Params = Mapping[str, str] | Sequence[tuple[str, str]]
T = TypeVar("T")


class CallFailed(LapwingError):
    """A daemon could not be asked, or refused; the text is for an operator. `status` is None when nobody answered.

    `reason` is the text without the question: `connection refused`.
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


@dataclass(slots=True)
class Asked(Generic[T]):
    """What a group of daemons said to the same question: answers and failures, by address."""

    answers: dict[str, T]
    failures: dict[str, CallFailed]

    @property
    def errors(self) -> list[str]:
        """The failures, in words."""
        return [str(failure) for failure in self.failures.values()]

    @property
    def nobody(self) -> bool:
        """Whether not one answer came back."""
        return not self.answers


class DaemonHttp:
    """Calls nsqd and nsqlookupd by `host:port`, over kept-alive connections, never through a redirect.

    A daemon that answers `403 TLS_REQUIRED` is asked again over https at the port it names, and is
    remembered, so that only the first request is made twice.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        user_agent: str = "lapwing",
    ) -> None:
        import httpx  # costs 100 ms: only programs that call pay for it

        self._errors = (httpx.HTTPError, httpx.InvalidURL)
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            timeout=httpx.Timeout(request_timeout, connect=connect_timeout),
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=60),
            verify=tls if tls is not None else ssl.create_default_context(),
            headers={"Accept": ACCEPT, "User-Agent": user_agent},
            trust_env=False,  # a proxy variable of the shell must not see, or break, the cluster's own traffic
        )
        self._https: dict[str, str] = {}

    async def get(self, address: str, path: str, params: Params = (), *, timeout: float | None = None) -> Any:
        """The JSON that `GET path` answers; raises `CallFailed`."""
        response = await self._call("GET", address, path, params, timeout=timeout)
        try:
            return json.loads(response.content)
        except ValueError as error:
            raise CallFailed(f'Get "{response.request.url}": not JSON: {error}') from error

    async def text(self, address: str, path: str) -> str:
        """The text that `GET path` answers; raises `CallFailed`."""
        return (await self._call("GET", address, path, ())).text

    async def post(
        self,
        address: str,
        path: str,
        params: Params = (),
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body that `POST path` answers; raises `CallFailed`."""
        return (await self._call("POST", address, path, params, body=body, headers=headers)).content

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
    ) -> "httpx.Response":
        base = self._https.get(address, f"http://{address}")
        response = await self._send(method, base, path, params, body, headers, timeout)
        if response.status_code == 403 and base.startswith("http:") and (port := _https_port(response.content)):
            self._https[address] = base = f"https://{address.rpartition(':')[0]}:{port}"
            response = await self._send(method, base, path, params, body, headers, timeout)
        if response.status_code != 200:
            raise _refused(response)
        return response

    async def _send(
        self,
        method: str,
        base: str,
        path: str,
        params: Params,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> "httpx.Response":
        query = urlencode(params)
        url = f"{base}{path}?{query}" if query else f"{base}{path}"
        if split(base.partition("//")[2]) is None:  # discovery passes on whatever an nsqd says of itself
            raise CallFailed(f'{method.capitalize()} "{url}": not a host:port', reason="not a host:port")
        extra: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        try:
            return await self._client.request(method, url, content=body, headers=headers, **extra)
        except self._errors as error:
            self._https = {known: at for known, at in self._https.items() if at != base}
            reason = _reason(error)
            raise CallFailed(f'{method.capitalize()} "{url}": {reason}', reason=reason) from error

    async def ask_all(self, addresses: Iterable[str], question: Callable[[str], Awaitable[T]]) -> Asked[T]:
        """Put `question` to every address at the same time; what fails is told, not raised."""
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


def _reason(error: BaseException) -> str:
    """What went wrong, as the operating system says it: the library has only "all connection attempts failed"."""
    import httpx

    if isinstance(error, httpx.ConnectTimeout):
        return "timed out while connecting"
    if isinstance(error, httpx.TimeoutException):
        return "timed out while waiting for the answer"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionError) and cause.errno is not None:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _https_port(body: bytes) -> int:
    try:
        answer = json.loads(body)
    except ValueError:
        return 0
    port = answer.get("https_port") if isinstance(answer, dict) else None
    return port if isinstance(port, int) and 0 < port < 65536 else 0


def _refused(response: "httpx.Response") -> CallFailed:
    text = response.content[:4096].decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    status = f"{response.status_code} {response.reason_phrase}"
    return CallFailed(
        f"got response {status} {json.dumps(text, ensure_ascii=False)}", status=response.status_code, answer=answer
    )


def tls_context(*, root_ca_file: str = "", cert: str = "", key: str = "", insecure: bool = False) -> ssl.SSLContext:
    """What a caller accepts and shows over TLS; raises `OSError` when a file cannot be read."""
    context = ssl.create_default_context(cafile=root_ca_file or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        context.load_cert_chain(cert, key)
    return context
