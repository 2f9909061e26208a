"""OpenTelemetry in the client, seen by the SDK's exporters in memory."""

import importlib.util
from pathlib import Path

import pytest
from nsqd_double import NsqdDouble
from opentelemetry import metrics, trace
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
    assert {span.attributes["messaging.message.id"] for span in processed} == {each.id.decode() for each in done}
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


async def test_without_a_provider_nothing_is_traced():
    assert telemetry() is None
    async with NsqdDouble(headers=True) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")

        assert nsqd.said(c.Pub) == [c.Pub("t", b"x")]
    assert Consumer("t", "c", lambda message: None, nsqd="127.0.0.1:1")._telemetry is None
