"""Request and reply: a message that names an inbox of its own, and the answer that comes there."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from lapwing.client.consumer import Consumer
from lapwing.client.errors import ClientError
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions

REPLY_TO: Final = "reply-to"
CORRELATION_ID: Final = "correlation-id"

_PROCESS: Final = secrets.token_hex(8)
_IN_FLIGHT: Final = 1000  # replies at once; each is finished as it comes


class RequestTimeout(ClientError, TimeoutError):
    """No reply came in time; the request may or may not have been carried out."""


class Inbox:
    """The replies to the requests of one producer, on every nsqd that it publishes to.

    Its topic is that of the process, and ephemeral: it is gone with the process.
    """

    topic: Final = f"inbox.{_PROCESS}#ephemeral"

    def __init__(self, options: ClientOptions) -> None:
        self._options = options.but(max_in_flight=_IN_FLIGHT, headers=True)
        self._channel = f"{secrets.token_hex(4)}#ephemeral"
        self._consumers: dict[str, Consumer] = {}
        self._starting = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    async def listen(self, addresses: Sequence[str]) -> None:
        """Subscribe at those of the nsqds where it has not yet. Raises `Unreachable`."""
        async with self._starting:
            for address in addresses:
                if address not in self._consumers:
                    consumer = Consumer(
                        self.topic, self._channel, self._take, nsqd=address, run="loop", options=self._options
                    )
                    await consumer.start()
                    self._consumers[address] = consumer

    def expect(self) -> tuple[str, "asyncio.Future[Message]"]:
        """Return a new correlation id, and the future of the reply that carries it."""
        name = secrets.token_hex(12)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        future.add_done_callback(lambda _: self._waiting.pop(name, None))
        return name, future

    def _take(self, message: Message) -> None:
        """Hand a reply to the request that waits for it; one that nobody waits for any more is finished."""
        future = self._waiting.get(message.headers.get(CORRELATION_ID, ""))
        if future is not None and not future.done():
            future.set_result(message)

    async def stop(self) -> None:
        """Unsubscribe, and fail requests that wait."""
        for name, future in list(self._waiting.items()):
            if not future.done():
                future.set_exception(RequestTimeout(f"the producer was stopped before the reply to {name}"))
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers.values()))
        self._consumers.clear()


def reply_headers(message: Message, headers: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
    """Return the topic and the headers of the reply to a request. Raises `ValueError` for another message."""
    request = message.headers
    if REPLY_TO not in request:
        raise ValueError(f"message {message.id} is no request: it has no {REPLY_TO} header")
    found = dict(headers or {})
    if CORRELATION_ID in request:
        found[CORRELATION_ID] = request[CORRELATION_ID]
    return request[REPLY_TO], found
