"""OpenTelemetry in the client, seen by the SDK's exporters in memory."""

import importlib.util
import inspect
import json
from pathlib import Path

import pytest
from nsqd_double import NsqdDouble
from opentelemetry import baggage, metrics, propagate, trace
from opentelemetry.context import attach, detach
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from daemons import nsqd as running_nsqd
from lapwing import Consumer, Producer
from lapwing.client.errors import PublishFailed
from lapwing.client.message import Message
from lapwing.client.telemetry import Telemetry
from lapwing.client.tracing import telemetry
from lapwing.wire.nsq import commands as c
from lapwing.wire.nsq import frames

EXAMPLE = Path(__file__).parents[2] / "examples" / "traced_services.py"


class Exporters:
    """What was traced and measured since the test began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        tracers, meters = TracerProvider(), MeterProvider([self._metrics])
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
        monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
        monkeypatch.setattr(metrics, "get_meter", meters.get_meter)

    def spans(self, name):
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def metric(self, name):
        """Points of a metric, as (attributes, sum)."""
        found = self._metrics.get_metrics_data()
        return [
            (dict(point.attributes), point.value if hasattr(point, "value") else point.count)
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == name
            for point in each.data.data_points
        ]


@pytest.fixture
def exporters(monkeypatch):
    return Exporters(monkeypatch)


async def test_the_example_with_two_services_is_one_story(exporters):
    spec = importlib.util.spec_from_file_location("traced_services", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with running_nsqd() as daemon:
        done = await example.main(daemon.tcp)

    published, processed = exporters.spans("publish orders"), exporters.spans("process orders")
    assert len(done) == len(published) == len(processed) == 3
    assert {span.kind for span in published} == {SpanKind.PRODUCER}
    assert {span.kind for span in processed} == {SpanKind.CONSUMER}
    linked = {link.context.span_id for span in processed for link in span.links}
    assert linked == {span.context.span_id for span in published}
    first = processed[0].attributes
    assert first["messaging.system"] == "nsq"
    assert first["messaging.destination.name"] == "orders"
    assert first["messaging.destination.subscription.name"] == "billing"
    assert first["server.address"] == published[0].attributes["server.address"] == "127.0.0.1"
    assert {span.attributes["messaging.message.id"] for span in processed} == {each.id for each in done}
    assert sum(value for _, value in exporters.metric("messaging.client.sent.messages")) == 3
    assert sum(value for _, value in exporters.metric("messaging.client.consumed.messages")) == 3
    assert sum(value for _, value in exporters.metric("messaging.client.operation.duration")) == 3
    assert sum(value for _, value in exporters.metric("messaging.process.duration")) == 3


async def test_a_batch_is_one_span_whose_context_every_message_has(exporters):
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish_many("t", [b"x", b"y"], headers=[{"a": "1"}, {}])
        [command] = nsqd.said(c.Hmpub)

    [span] = exporters.spans("publish t")
    assert span.attributes["messaging.batch.message_count"] == 2
    assert command.body.count(b'"traceparent":"00-%032x-%016x-' % (span.context.trace_id, span.context.span_id)) == 2


async def test_a_plain_server_gets_no_context_and_no_error_either(exporters):
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")
        await producer.publish_many("t", [b"x", b"y"])

        assert nsqd.said(c.Pub | c.Mpub) == [c.Pub("t", b"x"), c.Mpub.of("t", [b"x", b"y"])]


async def test_a_failed_publish_is_an_error(exporters):
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        nsqd.on_publish = lambda command: frames.error(b"E_BAD_TOPIC no")
        with pytest.raises(PublishFailed):
            await producer.publish("t", b"x", headers={"message-id": "own"})

    [span] = exporters.spans("publish t")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes["error.type"], span.attributes["messaging.message.id"]) == ("PublishFailed", "own")
    [(labels, _)] = exporters.metric("messaging.client.operation.duration")
    assert labels["error.type"] == "PublishFailed"


@pytest.mark.parametrize("child", [False, True])
def test_a_handler_runs_in_a_span_of_its_own_or_in_the_publishers_trace(exporters, child):
    traceparent = b'{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    message = Message((1, 2, b"0123456789abcdef", b"body", traceparent), None, 0.0)

    def handle(message):
        raise KeyError("card")

    with pytest.raises(KeyError):
        Telemetry(child=child).traced(handle, "billing")(message)

    [span] = exporters.spans("process ")
    publisher = 0xB7AD6B7169203331
    assert [link.context.span_id for link in span.links] == ([] if child else [publisher])
    assert (span.parent.span_id if span.parent else None) == (publisher if child else None)
    assert span.attributes["error.type"] == "KeyError"


class OtherPropagator(TextMapPropagator):
    """Carries the trace under a name of its own, as those of some vendors do."""

    def inject(self, carrier, context=None, setter=None):
        span = trace.get_current_span(context).get_span_context()
        setter.set(carrier, "X-Trace-Id", f"{span.trace_id:x} {span.span_id:x}")

    def extract(self, carrier, context=None, getter=None):
        [text] = getter.get(carrier, "X-Trace-Id")
        trace_id, span_id = (int(part, 16) for part in text.split())
        sender = trace.SpanContext(trace_id, span_id, is_remote=True)
        return trace.set_span_in_context(trace.NonRecordingSpan(sender), context)

    @property
    def fields(self):
        return {"X-Trace-Id"}


async def test_propagators_may_use_names_in_upper_case(exporters, monkeypatch):
    monkeypatch.setattr(propagate, "propagator", OtherPropagator())
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")
        [command] = nsqd.said(c.Hpub)
    length = int.from_bytes(command.body[:4], "big")
    row = (1, 1, b"0123456789abcdef", b"x", command.body[4 : 4 + length])
    Telemetry().traced(lambda message: None, "c")(Message(row, None, 0.0))

    [sent], [processed] = exporters.spans("publish t"), exporters.spans("process ")
    assert processed.links[0].context.span_id == sent.context.span_id


async def test_a_context_that_has_no_room_makes_no_publish_fail(exporters):
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        context = baggage.set_baggage("key", "x" * 4000)
        token = attach(context)
        await producer.publish("t", b"x", headers={"a": "x" * 14_000})
        await producer.publish_many("t", [b"x"], headers={"a": "x" * 16_370})
        detach(token)
        first, second = nsqd.said(c.Hpub)

    assert b"traceparent" in first.body
    assert b"baggage" not in first.body
    assert second.body.startswith((16_378).to_bytes(4, "big") + b'{"a":"xxx')


async def test_an_object_with_an_async_call_is_traced_until_it_is_done(exporters):
    class Handler:
        async def __call__(self, message):
            raise KeyError("card")

    handler = Telemetry().traced(Handler(), "c")
    assert inspect.iscoroutinefunction(handler)
    with pytest.raises(KeyError):
        await handler(Message((1, 1, b"0123456789abcdef", b"x", b"{}"), None, 0.0))

    assert exporters.spans("process ")[0].attributes["error.type"] == "KeyError"


@pytest.mark.parametrize("broken", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 10_000, "?"])
def test_a_broken_traceparent_is_no_link(exporters, broken):
    headers = json.dumps({"traceparent": broken, "tracestate": "=,;", "baggage": "%%%"}).encode()
    Telemetry().traced(lambda message: None, "c")(Message((1, 1, b"0123456789abcdef", b"x", headers), None, 0.0))

    assert not exporters.spans("process ")[0].links


async def test_without_a_provider_nothing_is_traced():
    assert telemetry() is None
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")

        assert nsqd.said(c.Pub) == [c.Pub("t", b"x")]
    assert Consumer("t", "c", lambda message: None, nsqd="127.0.0.1:1")._telemetry is None
