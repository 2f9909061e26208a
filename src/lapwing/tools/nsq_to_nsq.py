"""nsq_to_nsq: republish topics to other nsqds."""

import asyncio
import time
from dataclasses import dataclass

from lapwing import names
from lapwing.client.errors import ClientError
from lapwing.client.message import Message, Requeue
from lapwing.client.producer import Producer
from lapwing.net.options import option
from lapwing.tools.consuming import ConsumingOptions, consume
from lapwing.tools.hostpool import RoundRobin, pool_of
from lapwing.tools.program import (
    CLIENT_OPTIONS,
    Signals,
    check,
    check_addresses,
    client_options,
    log_to_stderr,
    run,
    write_line,
)
from lapwing.tools.selection import Fate, Selection
from lapwing.tools.status import Status


@dataclass(frozen=True, slots=True)
class NsqToNsqOptions(ConsumingOptions):
    """The flags of nsq_to_nsq."""

    channel: str = option("nsq_to_nsq", "consume through this channel")
    destination_nsqd_tcp_address: tuple[str, ...] = option((), "publish to this nsqd (TCP address)")
    destination_topic: str = option("", "publish to this topic (default: the topic consumed)")
    max_in_flight: int = option(200, "take at most this many messages of a topic at a time")
    mode: str = option("hostpool", "choose by round-robin, hostpool or epsilon-greedy; else round-robin")
    producer_opt: tuple[str, ...] = option((), "set an option of the producer: `name,value`", kind=CLIENT_OPTIONS)
    require_json_field: str = option("", "pass only JSON messages that contain this field")
    require_json_value: str = option("", "pass only JSON messages whose required field has this value")
    status_every: int = option(250, "log the state after this many requests; 0: never")
    topic: tuple[str, ...] = option((), "consume this topic")
    whitelist_json_field: tuple[str, ...] = option((), "pass this field of JSON messages")


def republish(options: NsqToNsqOptions) -> int:
    """Republish until a signal; return the exit status."""
    check(options.topic and options.channel, "--topic and --channel are required")
    check(all(names.valid(topic) for topic in options.topic), "--topic is invalid")
    check(not options.destination_topic or names.valid(options.destination_topic), "--destination-topic is invalid")
    check(names.valid(options.channel), "--channel is invalid")
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address)
    check(options.destination_nsqd_tcp_address, "--destination-nsqd-tcp-address required")
    log_to_stderr()
    return run(lambda signals: _republish(options, signals))


class Republisher:
    """Publish a message to the destination that the mode chooses."""

    def __init__(self, options: NsqToNsqOptions, producers: dict[str, Producer]) -> None:
        self._destination = options.destination_topic
        self._selection = Selection(
            field=options.require_json_field, value=options.require_json_value, whitelist=options.whitelist_json_field
        )
        self._producers = producers
        self._pool = pool_of(options.mode, list(producers)) or RoundRobin(list(producers))
        self._status = Status(options.status_every, "aggregate", write_line)
        every = options.status_every if len(producers) > 1 else 0
        self._each = {address: Status(every, address, write_line) for address in producers}

    async def __call__(self, message: Message) -> None:
        topic, body = self._destination or message.topic, message.body
        if self._selection.active:
            try:
                selected = self._selection.apply(body)
            except ValueError as error:
                write_line(f"ERROR: Unable to decode json: {error}")
                return
            if selected is Fate.RETRY:
                raise Requeue()
            if isinstance(selected, Fate):
                return
            body = selected
        began = time.monotonic()
        address = self._pool.choose(began)
        producer = self._producers[address]
        try:
            if len(self._producers) > 1 and not producer.connections:
                await producer.start()  # fails at once if it cannot be reached: there are others
            await producer.publish(topic, body)
        except ClientError as error:
            self._pool.failed(address, time.monotonic())
            write_line(f"ERROR: failed to publish message {message.id}: {error}")
            raise Requeue() from error
        now = time.monotonic()
        self._pool.succeeded(address, now - began, now)
        self._status.done(now - began)
        self._each[address].done(now - began)


async def _republish(options: NsqToNsqOptions, signals: Signals) -> int:
    consuming = client_options(options.consumer_opt, tool="nsq_to_nsq", max_in_flight=options.max_in_flight)
    # an unreachable destination is the pool's business: it must fail soon, so that another can be tried
    producing = client_options(options.producer_opt, tool="nsq_to_nsq", publish_timeout=10.0)
    producers = {
        address: Producer(address, options=producing) for address in dict.fromkeys(options.destination_nsqd_tcp_address)
    }
    republisher = Republisher(options, producers)
    at_once = max(1, options.max_in_flight)  # concurrent publishes go as one batch
    consumers = [
        options.consumer(topic, republisher, consuming, concurrency=at_once) for topic in dict.fromkeys(options.topic)
    ]
    try:
        await consume(consumers, signals.stop)
    finally:
        await asyncio.gather(*(producer.stop(timeout=5.0) for producer in producers.values()))
    return 0
