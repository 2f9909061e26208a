"""OpenTelemetry for producers and consumers: spans, context through `traceparent`, and metrics.

It is used when `opentelemetry-api` is installed (the extra `otel`) and the program has set up a provider before it
creates a producer or consumer. Names and attributes follow OpenTelemetry's conventions for messaging.
"""

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from lapwing.client.message import Hold, Message

_SYSTEM: Final = "nsq"


class _LowerCase(Setter[dict[str, str]], Getter[Mapping[str, str]]):
    """Writes and reads headers under names in lower case, whatever those of the propagator are (`X-B3-TraceId`)."""

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key.lower()] = value

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _LowerCase()


class Telemetry:
    """The spans and metrics of one producer or consumer."""

    def __init__(self, *, child: bool = False) -> None:
        self._child = child  # a process span is a child of the publisher's span, not linked to it
        self._tracer = trace.get_tracer("lapwing")
        meter = metrics.get_meter("lapwing")
        self._operation = meter.create_histogram("messaging.client.operation.duration", "s", "Time of a publish.")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages published.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages consumed.")
        self._process = meter.create_histogram("messaging.process.duration", "s", "Time of a handler.")

    @contextlib.contextmanager
    def publish(self, topic: str, count: int, servers: Sequence[str], message_id: str = "") -> Iterator[dict[str, str]]:
        """Trace a publish of `count` messages; yield the headers that carry its context."""
        common: dict[str, Any] = {"messaging.system": _SYSTEM, "messaging.destination.name": topic}
        if len(servers) == 1:
            common["server.address"] = _host(servers[0])
        attributes = common | {"messaging.operation.type": "send", "messaging.operation.name": "publish"}
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        if message_id:
            attributes["messaging.message.id"] = message_id
        labels = common | {"messaging.operation.name": "publish"}
        began = time.perf_counter()
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
        ) as span:
            headers: dict[str, str] = {}
            propagate.inject(headers, setter=_HEADERS)
            try:
                yield headers
            except BaseException as error:
                labels["error.type"] = _failed(span, error)
                raise
            finally:
                self._operation.record(time.perf_counter() - began, labels)
                self._sent.add(count, labels)

    @contextlib.contextmanager
    def process(self, message: Message, channel: str) -> Iterator[None]:
        """Trace the handling of a message, linked to its publisher or as its child."""
        topic, address = message.topic, message.address
        labels: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": topic,
            "messaging.destination.subscription.name": channel,
            "messaging.operation.name": "process",
        }
        if address:
            labels["server.address"] = _host(address)
        attributes = labels | {
            "messaging.operation.type": "process",
            "messaging.message.id": message.id,
            "messaging.message.body.size": len(message.body),
        }
        sender = propagate.extract(message.headers, getter=_HEADERS)
        context = trace.get_current_span(sender).get_span_context()
        links = [Link(context)] if context.is_valid and not self._child else []
        began = time.perf_counter()
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=sender if self._child else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
        ) as span:
            self._consumed.add(1, labels)
            try:
                yield
            except Hold:
                raise
            except BaseException as error:
                labels["error.type"] = _failed(span, error)
                raise
            finally:
                self._process.record(time.perf_counter() - began, labels)

    def traced(self, handler: Callable[[Message], Any], channel: str) -> Callable[[Message], Any]:
        """Return a handler that does the same and is traced."""
        own = inspect.unwrap(handler)
        if inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(type(own).__call__):

            @functools.wraps(handler, updated=())
            async def handle(message: Message) -> None:
                with self.process(message, channel):
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result

            return handle

        @functools.wraps(handler, updated=())
        def run(message: Message) -> Any:
            with self.process(message, channel):
                return handler(message)

        return run


def _failed(span: Any, error: BaseException) -> str:
    kind = type(error).__name__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
    span.record_exception(error)
    return kind


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def configured(*, child: bool = False) -> Telemetry | None:
    """Return what traces a producer or consumer; None where the program has not set up a provider."""
    traced = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    measured = type(metrics.get_meter_provider()).__name__ not in ("_ProxyMeterProvider", "NoOpMeterProvider")
    return Telemetry(child=child) if traced or measured else None
