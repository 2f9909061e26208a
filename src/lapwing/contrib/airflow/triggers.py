"""The provider of the scheme `lapwing`, and its trigger."""

import base64
import contextlib
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lapwing.client.consumer import Consumer
from lapwing.client.message import Message

try:
    from airflow.triggers.shared_stream import SharedStreamProducer
except ImportError:  # Airflow before 3.3
    SharedStreamProducer = object


class LapwingProvider(BaseMessageQueueProvider):
    """Has `MessageQueueTrigger(scheme="lapwing", ..)` wait for messages of lapwing."""

    scheme = "lapwing"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger."""
        return LapwingTrigger


class LapwingTrigger(BaseEventTrigger):
    """Waits for messages of a channel; each one is an event, and is finished once Airflow has stored that.

    Before Airflow 3.3, which reports that, a message is finished when the trigger is asked for the next one.
    Triggers of one channel share a consumer. `nsqd` are TCP addresses, `lookupd` HTTP addresses, with commas between
    several; `client` are client options.
    """

    def __init__(
        self,
        topic: str,
        channel: str = "airflow",
        nsqd: str = "",
        lookupd: str = "",
        max_in_flight: int = 10,
        client: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = {
            "topic": topic,
            "channel": channel,
            "nsqd": nsqd or ("" if lookupd else "127.0.0.1:4150"),
            "lookupd": lookupd,
            "max_in_flight": max_in_flight,
            "client": client or {},
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where the class is, and its arguments."""
        return "lapwing.contrib.airflow.triggers.LapwingTrigger", dict(self.arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each message."""
        async with consumer_of(self.arguments) as consumer:
            async for message in consumer:
                with message:
                    yield TriggerEvent(payload_of(message))

    def shared_stream_key(self) -> Hashable | None:
        """Return what triggers with one consumer have in common."""
        return tuple(str(value) for value in self.arguments.values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> "MessageStream":
        """Return the messages that triggers share."""
        return MessageStream(cls(**kwargs).arguments)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each message."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)


class MessageStream(SharedStreamProducer):
    """The messages of a channel, each finished once its events are stored."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._consumer: Consumer | None = None

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Message]]:
        """Yield each message."""
        self._consumer = consumer_of(self._arguments)
        await self._consumer.start()
        async for message in self._consumer:
            yield payload_of(message), message

    async def advance(self, batch: Sequence[Any]) -> None:
        """Finish messages, reject what every trigger has rejected, and have others delivered again."""
        for item in batch:
            message: Message = item.broker_payload
            if item.outcome.failed:
                message.fail("Airflow has not stored the event")
            elif item.outcome.rejected and not item.outcome.acked:
                message.reject("rejected by the trigger")
            else:
                message.finish()

    def get_advance_lane(self, broker_payload: Message) -> Hashable:
        """Return a lane for each message: they are finished in any order."""
        return id(broker_payload)

    async def aclose(self) -> None:
        """Disconnect; messages that are not finished are delivered again."""
        if self._consumer is not None:
            await self._consumer.stop()


def consumer_of(arguments: dict[str, Any]) -> Consumer:
    """Return the consumer of a trigger."""
    given = dict(arguments)
    client = {"stop_timeout": 0.0, **given.pop("client")}
    nsqd, lookupd = ([each for each in given.pop(name).split(",") if each] for name in ("nsqd", "lookupd"))
    return Consumer(**given, nsqd=nsqd, lookupd=lookupd, **client)


def payload_of(message: Message) -> dict[str, Any]:
    """Return a message as the payload of an event; a body that is no text is in base64."""
    payload: dict[str, Any] = {
        "topic": message.topic,
        "id": message.id,
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "headers": message.headers,
    }
    with contextlib.suppress(UnicodeDecodeError):
        return payload | {"body": message.body.decode()}
    return payload | {"body_base64": base64.b64encode(message.body).decode()}
