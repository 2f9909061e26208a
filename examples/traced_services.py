"""Two services and one trace: a shop publishes orders, billing handles them, and both use OpenTelemetry.

    pip install "lapwing[otel]" opentelemetry-sdk
    nsqd &
    python examples/traced_services.py 127.0.0.1:4150

Prints the spans: `publish orders` of the shop, `process orders` of billing, linked to it.
"""

import asyncio
import sys

from lapwing import Consumer, Message, Producer


async def shop(nsqd: str, orders: int) -> None:
    """Publish orders; the context of the span travels in the header `traceparent`."""
    async with Producer(nsqd) as producer:
        for number in range(orders):
            await producer.publish("orders", b'{"order": %d}' % number, headers={"key": f"customer-{number}"})


async def billing(nsqd: str, orders: int) -> list[Message]:
    """Handle so many orders; each runs in a span of its own, linked to the one that published it."""
    done: list[Message] = []
    enough = asyncio.Event()

    async def bill(message: Message) -> None:
        done.append(message)
        if len(done) == orders:
            enough.set()

    async with Consumer("orders", "billing", bill, nsqd=nsqd):
        await asyncio.wait_for(enough.wait(), 60)
    return done


async def main(nsqd: str, orders: int = 3) -> list[Message]:
    """Run both services until every order is billed."""
    _, done = await asyncio.gather(shop(nsqd, orders), billing(nsqd, orders))
    return done


if __name__ == "__main__":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(provider)
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"))
