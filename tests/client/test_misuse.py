"""What a user may get wrong: told at once, in words that say what was expected."""

import asyncio
import re

import pytest
from nsqd_double import NsqdDouble

from lapwing import Consumer, Producer
from lapwing.client.errors import ClientError
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        ((None, "c"), {}, "invalid topic name None"),
        (("t", b"c"), {}, "invalid channel name b'c'"),
        (("t", "c"), {"nsqd": None}, "addresses are None"),
        (("t", "c"), {"nsqd": b"127.0.0.1:4150"}, "expected host:port"),
        (("t", "c"), {"nsqd": [("127.0.0.1", 4150)]}, "expected host:port"),
        (("t", "c"), {"nsqd": "http://127.0.0.1:4151"}, "a URL, expected host:port"),
        (("t", "c"), {"nsqd": (), "lookupd": "127.0.0.1"}, "missing port"),
        (("t", "c"), {"max_in_flight": "5"}, "max_in_flight is '5', expected int, not str"),
        (("t", "c"), {"max_in_flight": 2.5}, "expected int, not float"),
        (("t", "c"), {"snappy": "yes"}, "snappy is 'yes', expected bool"),
        (("t", "c"), {"user_agent": None}, "user_agent is None, expected str"),
        (("t", "c"), {"max_inflight": 5}, "no setting is called max_inflight; is it max_in_flight?"),
        (("t", "c"), {"options": ClientOptions(), "max_inflight": 5}, "no setting is called max_inflight"),
        (("t", "c", 5), {}, "handler is 5, expected a function"),
        (("t", "c", print), {"run": "nowhere"}, "run is 'nowhere', expected one of auto, loop, threads, processes"),
        (("t", "c", asyncio.sleep), {"run": "processes"}, "a plain one is needed"),
        (("t", "c", print), {"concurrency": "3"}, "concurrency is '3'"),
    ],
)
def test_a_consumer_that_cannot_work_is_refused_when_it_is_made(arguments, settings, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        Consumer(*arguments, **{"nsqd": NOBODY, **settings})


async def test_a_consumer_that_is_not_started_cannot_be_waited_for():
    with pytest.raises(ClientError, match="not started"):
        await Consumer("t", "c", nsqd=NOBODY).wait()
    with pytest.raises(ConfigError, match=r"max_in_flight is 2\.5"):
        Consumer("t", "c", nsqd=NOBODY).max_in_flight = 2.5
    with pytest.raises(ConfigError, match="expected one, every or none"):
        await Consumer("t", "c", nsqd=NOBODY).start(need="two")


@pytest.mark.parametrize(
    ("body", "text"),
    [(5, "model, not int"), (None, "model, not NoneType"), ([b"x"], "model, not list"), ({"a": object()}, "object")],
)
async def test_a_value_that_is_no_body_is_not_published(body, text):
    async with NsqdDouble() as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(TypeError, match=text):
            await producer.publish("t", body)
        with pytest.raises(TypeError, match="takes a list of bodies"):
            await producer.publish_many("t", b"one message, not a list of numbers")


async def test_another_event_loop_is_told_so():
    async with (
        NsqdDouble() as nsqd,
        Producer(nsqd.address) as producer,
        Consumer("t", "c", nsqd=nsqd.address) as consumer,
    ):
        for misuse in (lambda: producer.publish("t", b"x"), producer.stop, consumer.stop, consumer.wait):
            with pytest.raises(ClientError, match="another event loop"):
                await asyncio.to_thread(lambda misuse=misuse: asyncio.run(misuse()))
        with pytest.raises(ClientError, match="another event loop"):
            await asyncio.to_thread(producer.submit, "t", b"x")
