"""The broker that users test their handlers with."""

import asyncio
import inspect
import json
from typing import Any

import pytest

from lapwing import Hold, Message, Producer, RequestTimeout, Requeue
from lapwing.errors import ConfigError
from lapwing.testing import Broker, TestProducer


async def finish(message: Message) -> None:
    """Any handler that works."""


def bodies(outcomes: list[Any]) -> list[bytes]:
    return [outcome.body for outcome in outcomes]


async def test_messages_are_handled_in_order_and_finished() -> None:
    broker = Broker()
    broker.channel("orders", "billing")
    broker.publish("orders", b"1", b"2", b"3")
    outcomes = await broker.handle("orders", "billing", finish)

    assert bodies(outcomes) == [b"1", b"2", b"3"]
    assert {outcome.answer for outcome in outcomes} == {"finished"}
    assert broker.depth("orders", "billing") == 0
    assert broker.messages("orders") == [b"1", b"2", b"3"]


async def test_a_failed_message_waits_as_long_as_the_handler_says() -> None:
    broker = Broker()
    broker.publish("orders", b"1")

    async def fail(message: Message) -> None:
        raise Requeue(60, error="closed")

    (first,) = await broker.handle("orders", "billing", fail)
    waiting = await broker.handle("orders", "billing", finish)
    broker.advance(59)
    early = await broker.handle("orders", "billing", finish)
    broker.advance(1)
    (second,) = await broker.handle("orders", "billing", finish)

    assert (first.answer, first.error, first.delay) == ("failed", "closed", 60)
    assert (waiting, early) == ([], [])
    assert (second.attempts, second.answer) == (2, "finished")


async def test_exceptions_and_plain_functions_are_answers_as_in_a_consumer() -> None:
    broker = Broker()
    broker.publish("orders", b"1")

    def broken(message: Message) -> None:
        json.loads(b"no JSON")

    def hold(message: Message) -> None:
        raise Hold(5)

    (failed,) = await broker.handle("orders", "billing", broken, limit=1)
    (held,) = await broker.handle("orders", "billing", hold, limit=1)

    assert failed.answer == "failed"
    assert failed.error.startswith("JSONDecodeError: ")
    assert (held.answer, held.delay) == ("released", 5)
    assert broker.deferred("orders", "billing") == 1


async def test_a_deferred_message_comes_when_its_time_has_come() -> None:
    broker = Broker()
    broker.channel("orders", "billing")
    broker.publish("orders", b"later", defer=30)
    early = await broker.handle("orders", "billing", finish)
    broker.advance(30)

    assert early == []
    assert bodies(await broker.handle("orders", "billing", finish)) == [b"later"]


async def test_a_message_that_is_not_answered_times_out_and_a_crash_gives_it_back() -> None:
    broker = Broker()
    broker.publish("orders", b"1")
    held = broker.deliver("orders", "billing")
    assert held is not None
    in_flight, none = broker.in_flight("orders", "billing"), broker.deliver("orders", "billing")
    broker.advance(61)
    second = broker.deliver("orders", "billing")
    broker.disconnect("orders", "billing")
    third = broker.deliver("orders", "billing")

    assert (in_flight, none) == (1, None)
    assert second is not None
    assert third is not None
    assert (held.attempts, second.attempts, third.attempts) == (1, 2, 3)


async def test_what_a_handler_publishes_can_be_looked_at() -> None:
    broker = Broker()
    producer = broker.producer()
    broker.publish("orders", b"1", b"2")

    async def forward(message: Message) -> None:
        await producer.publish("payments", b"paid " + message.body)
        await producer.publish_many("mails", [b"a", b"b"], defer=5)
        await producer.submit("log", b"x")

    await broker.handle("orders", "billing", forward)

    assert broker.messages("payments") == [b"paid 1", b"paid 2"]
    assert broker.messages("mails") == [b"a", b"b", b"a", b"b"]
    assert broker.messages("nowhere") == []


async def test_every_channel_gets_every_message() -> None:
    broker = Broker()
    broker.channel("orders", "billing")
    broker.channel("orders", "shipping")
    broker.publish("orders", b"1")

    assert bodies(await broker.handle("orders", "billing", finish)) == [b"1"]
    assert bodies(await broker.handle("orders", "shipping", finish)) == [b"1"]


def test_wrong_use_names_the_fix() -> None:
    broker = Broker()

    with pytest.raises(LookupError, match="`channel` creates it"):
        broker.depth("orders", "billing")
    with pytest.raises(TypeError, match="model, not int"):
        broker.publish("orders", 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        broker.publish("orders", b"")
    with pytest.raises(ConfigError, match="topic"):
        broker.publish("no such name", b"x")
    with pytest.raises(ConfigError, match="channel"):
        broker.channel("orders", "no such name")
    with pytest.raises(ConfigError, match="topic"):
        broker.deliver("no such name", "billing")
    with pytest.raises(ValueError, match="back"):
        broker.advance(-1)


def test_a_message_expires_by_the_clock_of_the_test() -> None:
    broker = Broker()
    broker.publish("orders", b"slow")
    message = broker.deliver("orders", "billing")
    assert message is not None
    assert message.time_left == pytest.approx(60, abs=0.1)
    broker.advance(50)
    message.touch()
    broker.advance(59)
    assert not message.expired
    broker.advance(2)

    assert message.expired


async def test_dead_letters_are_those_of_the_channel() -> None:
    broker = Broker()
    for channel in ("billing", "shipping"):
        broker.channel("orders", channel, dead_topic="bin")
    broker.publish("orders", b"a")
    broker.publish("bin", b"other")

    await broker.handle("orders", "billing", lambda message: message.reject("no"))
    assert broker.dead_letters("orders", "billing") == [b"a"]
    assert broker.dead_letters("orders", "shipping") == []


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(Exception, match="max_atempts"):
        Broker().channel("orders", "billing", max_atempts=3)


async def test_a_message_becomes_a_dead_letter_when_it_is_rejected_or_fails_too_often() -> None:
    broker = Broker()
    broker.channel("orders", "billing", max_attempts=2, retry_first="1m")
    broker.publish("orders", b"bad", b"worse")

    def bill(message: Message) -> None:
        if message.body == b"worse":
            message.reject("not JSON")
        else:
            message.fail("declined")

    outcomes = await broker.handle("orders", "billing", bill)
    before = broker.dead_letters("orders", "billing")
    broker.advance(120)
    again = await broker.handle("orders", "billing", bill)

    assert [outcome.answer for outcome in outcomes] == ["failed", "rejected"]
    assert outcomes[1].reason == "not JSON"
    assert before == [b"worse"]
    assert [outcome.attempts for outcome in again] == [2]
    assert broker.dead_letters("orders", "billing") == [b"worse", b"bad"]


def test_the_producer_for_tests_has_every_method_of_a_producer() -> None:
    for name, own in inspect.getmembers(Producer, lambda member: inspect.isfunction(member) or hasattr(member, "fget")):
        if not name.startswith("_"):
            twin = getattr(TestProducer, name)
            if inspect.isfunction(own):
                assert inspect.signature(twin).parameters == inspect.signature(own).parameters, name
    assert Broker().producer().connections == ["lapwing.testing"]


async def test_a_request_is_answered_by_a_handler_that_replies_and_fails_when_the_clock_says_so() -> None:
    broker = Broker()
    producer = broker.producer()

    async def price(message: Message) -> None:
        await producer.reply(message, {"price": 12}, headers={"a": "1"})

    asked = asyncio.create_task(producer.request("prices", "article 7", timeout=5))
    await asyncio.sleep(0)
    (outcome,) = await broker.handle("prices", "shop", price)
    reply = await asked
    late = asyncio.create_task(producer.request("prices", "article 8", timeout=5))
    await asyncio.sleep(0)
    broker.advance(4.9)
    assert not late.done()
    broker.advance(0.1)

    assert (outcome.body, outcome.answer) == (b"article 7", "finished")
    assert json.loads(reply.body) == {"price": 12}
    assert (reply.headers["content-type"], reply.headers["a"]) == ("application/json", "1")
    with pytest.raises(RequestTimeout):
        await late
    with pytest.raises(ValueError, match="is no request"):
        await producer.reply(reply, b"x")


def test_times_of_options_are_seconds_or_texts() -> None:
    broker = Broker(msg_timeout=30, max_msg_timeout="1m")
    broker.publish("orders", b"1")
    message = broker.deliver("orders", "billing")

    assert message is not None
    assert round(message.time_left, 1) == 30
    broker.advance(25)
    message.touch()
    broker.advance(25)
    assert round(message.time_left, 1) == 5
    broker.advance(20)
    assert message.expired
