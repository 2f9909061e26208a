"""The answers to a delivered message, as nsqd gets them: finish, fail, release, reject."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from nsqd_double import NsqdDouble

from lapwing import Consumer, Hold, Message, Reject, Requeue
from lapwing.client.message import describe
from lapwing.wire.nsq.commands import Fin, Rej, Req

SECOND = 1_000_000_000
LAPWING = {"reject": True, "max_attempts": 3}


async def answer_of(handler: Callable[[Message], Any], *, attempts: int = 1, run: str = "auto", **granted: Any) -> Any:
    """The command that nsqd gets for a message that `handler` handled."""
    async with (
        NsqdDouble(**granted) as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, run=run, max_backoff_duration=0.0),
    ):
        peer = await nsqd.subscriber()
        peer.deliver(b"body", attempts=attempts)
        return (await nsqd.until(lambda: nsqd.said(Fin) + nsqd.said(Req) + nsqd.said(Rej)))[0]


async def test_a_consumer_names_its_channel_and_asks_for_reject() -> None:
    async with NsqdDouble() as nsqd, Consumer("t", "c", lambda message: None, nsqd=nsqd.address):
        peer = await nsqd.subscriber()

    assert (peer.identity["topic"], peer.identity["channel"], peer.identity["reject"]) == ("t", "c", True)


def test_a_message_has_the_pairs_of_a_redis_entry() -> None:
    entry = Message((0, 1, b"", b"*2\r\n$4\r\nname\r\n$4\r\nSara\r\n"), None, 0.0)

    assert entry.pairs == [(b"name", b"Sara")]
    assert Message((0, 1, b"", b"plain"), None, 0.0).pairs == []


async def test_an_exception_is_a_failure_with_type_text_and_place() -> None:
    async def handler(message: Message) -> None:
        raise ValueError("no such card")

    command = await answer_of(handler)

    assert command.error.startswith("ValueError: no such card (test_answers.py:")
    assert command.error.endswith(" in handler)")
    assert not command.free


class Unreadable(Exception):
    """An exception whose text cannot be had, as some libraries make them."""

    def __str__(self) -> str:
        return self.missing  # type: ignore[attr-defined,no-any-return]


class Odd(BaseException):
    """An exception that is no `Exception`, as those of test frameworks."""


@pytest.mark.parametrize(
    ("run", "error"),
    [
        ("loop", Odd("x")), ("threads", Odd("x")), ("loop", asyncio.CancelledError()),
        ("threads", asyncio.CancelledError()), ("threads", SystemExit(3)), ("threads", KeyboardInterrupt()),
    ],
)  # fmt: skip
async def test_whatever_a_handler_raises_is_a_failure_and_costs_no_worker(run: str, error: BaseException) -> None:
    def handler(message: Message) -> None:
        raise error

    async with (
        NsqdDouble(**LAPWING) as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, run=run, max_backoff_duration=0.0, max_in_flight=1),
    ):
        peer = await nsqd.subscriber()
        for count in (1, 2):
            peer.deliver(b"body")
            await nsqd.until(lambda count=count: len(nsqd.said(Req)) == count)  # type: ignore[misc]

    assert [(command.free, command.error.split(" (")[0].split(":")[0]) for command in nsqd.said(Req)] == [
        (False, type(error).__name__)
    ] * 2


def exits(message: Message) -> None:
    raise SystemExit(3)


@pytest.mark.slow
async def test_a_worker_process_that_exits_is_a_failure() -> None:
    command = await answer_of(exits, run="processes", **LAPWING)

    assert not command.free
    assert command.error.startswith("ChildProcessError: the handler ended with SystemExit: 3 (")


@pytest.mark.parametrize("run", ["loop", "threads"])
@pytest.mark.parametrize("error", [Unreadable(), Reject(Unreadable()), Requeue(error=Unreadable())])  # type: ignore[arg-type]
async def test_an_exception_without_a_text_stops_no_worker(run: str, error: Exception) -> None:
    def handler(message: Message) -> None:
        raise error

    async with (
        NsqdDouble(**LAPWING) as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, run=run, max_backoff_duration=0.0, max_in_flight=1),
    ):
        peer = await nsqd.subscriber()
        for count in (1, 2):
            peer.deliver(b"body")
            await nsqd.until(lambda count=count: len(nsqd.said(Req) + nsqd.said(Rej)) == count)  # type: ignore[misc]

    if error.args == ():
        assert nsqd.said(Req)[0].error.startswith("Unreadable (test_answers.py:")


async def test_what_is_rejected_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(message: Message) -> None:
        raise Reject("no order", "JSONDecodeError: line 1")

    await answer_of(handler, **LAPWING)

    assert "[t/c] (127.0.0.1:" in caplog.text
    assert "rejected message 0000000000000001: no order: JSONDecodeError: line 1" in caplog.text


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), "5"])
def test_a_delay_that_is_none_is_refused_where_it_is_given(seconds: Any) -> None:
    message = Message((0, 1, b"", b""), None, 0.0)
    for use in (Hold, Requeue, message.release, message.requeue):
        with pytest.raises((TypeError, ValueError)):
            use(seconds)


@pytest.mark.parametrize("run", ["loop", "threads"])
async def test_the_verbs_are_the_commands_of_nsqd(run: str) -> None:
    failed = await answer_of(lambda message: message.fail("card declined", delay=5), run=run)
    requeued = await answer_of(lambda message: message.requeue(2), run=run)
    released = await answer_of(lambda message: message.release(1.5), run=run)
    rejected = await answer_of(lambda message: message.reject("not JSON", ValueError("x")), run=run, **LAPWING)

    assert (failed.delay, failed.error, failed.free) == (5 * SECOND, "card declined", False)
    assert (requeued.delay, requeued.error) == (2 * SECOND, "")
    assert (released.delay, released.free) == (1.5 * SECOND, True)
    assert rejected.body == b'{"reason":"not JSON","error":"ValueError: x"}'


async def test_exceptions_that_mean_answers() -> None:
    async def hold(message: Message) -> None:
        raise Hold(30)

    async def reject(message: Message) -> None:
        raise Reject("too old")

    async def requeue(message: Message) -> None:
        message.error = "the shop is closed"
        raise Requeue(7, backoff=False)

    held, rejected, requeued = await answer_of(hold), await answer_of(reject, **LAPWING), await answer_of(requeue)

    assert (held.delay, held.free) == (30 * SECOND, True)
    assert rejected.body == b'{"reason":"too old"}'
    assert (requeued.delay, requeued.error) == (7 * SECOND, "the shop is closed")


async def test_a_server_without_dead_letters_finishes_what_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    command = await answer_of(lambda message: message.reject("not JSON"))

    assert isinstance(command, Fin)
    assert "rejected and dropped, as this server keeps no dead letters: not JSON" in caplog.text


async def test_the_client_gives_up_only_where_the_broker_does_not() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        message.fail()

    alone = await answer_of(handler, attempts=9)
    with_broker = await answer_of(handler, attempts=9, **LAPWING)
    in_thread = await answer_of(handler, attempts=9, run="threads", **LAPWING)

    assert isinstance(alone, Fin)  # max_attempts of the client is 5
    assert isinstance(with_broker, Req)
    assert isinstance(in_thread, Req)
    assert seen == [9, 9]


async def test_iteration_leaves_giving_up_to_the_broker_too() -> None:
    async with NsqdDouble(**LAPWING) as nsqd, Consumer("t", "c", nsqd=nsqd.address) as consumer:
        (await nsqd.subscriber()).deliver(b"x", attempts=9)
        async with asyncio.timeout(60):
            message = await anext(consumer)
        message.finish()

    assert message.attempts == 9


async def test_the_broker_chooses_the_delay_where_it_counts() -> None:
    """An explicit delay beats the retry settings of a channel, so none is sent where none is given."""
    with_broker = await answer_of(lambda message: message.fail(), **LAPWING)
    alone = await answer_of(lambda message: message.fail())

    assert (with_broker.delay, alone.delay) == (0, 90 * SECOND)


async def test_what_a_stopping_consumer_gives_back_is_no_failure() -> None:
    async with NsqdDouble() as nsqd:
        async with Consumer("t", "c", nsqd=nsqd.address, max_in_flight=3) as consumer:
            (await nsqd.subscriber(3)).deliver(b"1", b"2", b"3")
            async with asyncio.timeout(60):
                await anext(consumer)
        commands = await nsqd.until(lambda: len(nsqd.said(Req)) == 3 and nsqd.said(Req))

    assert [(command.delay, command.free) for command in commands] == [(0, True)] * 3


async def test_the_first_answer_counts() -> None:
    async def handler(message: Message) -> None:
        message.release(3)
        message.fail("later")
        message.reject("later still")
        message.finish()

    command = await answer_of(handler, **LAPWING)

    assert (command.delay, command.free) == (3 * SECOND, True)


def reject_in_process(message: Message) -> None:
    message.reject("bad", "from another process")


def fail_in_process(message: Message) -> None:
    raise ValueError("from another process")


@pytest.mark.slow
async def test_answers_leave_a_worker_process() -> None:
    rejected = await answer_of(reject_in_process, run="processes", **LAPWING)
    failed = await answer_of(fail_in_process, run="processes")

    assert rejected.body == b'{"reason":"bad","error":"from another process"}'
    assert failed.error.startswith("ValueError: from another process (test_answers.py:")
    assert failed.error.endswith(" in fail_in_process)")


@pytest.mark.parametrize("error", [Requeue(2.0, backoff=False, error="e"), Hold(3.0), Reject("r", "e")])
def test_the_exceptions_can_be_pickled(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), vars(copy)) == (type(error), vars(error))


def test_a_long_error_keeps_its_place() -> None:
    try:
        raise ValueError("x" * 10_000)
    except ValueError as error:
        text = describe(error)

    assert len(text) <= 4096
    assert text.endswith("in test_a_long_error_keeps_its_place)")
