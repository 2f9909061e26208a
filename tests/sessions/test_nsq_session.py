"""One command, one call; domain errors become answers."""

import pytest

from lapwing.errors import LapwingError, ProtocolError
from lapwing.sessions.nsq import CLOSING, INIT, SUBSCRIBED
from lapwing.wire.nsq.commands import Cls, Dpub, Fins, Mpub, Nop, Pub, Rdy, Req, Reqs, Sub, Touch
from play import MINUTE, SECOND, Stage, identity, numbered


def refusal(stage: Stage, command: object) -> bytes:
    """The error that a command of a new client ends the conversation with."""
    with pytest.raises(ProtocolError) as refused:
        stage.client().session.handle(command, now=stage.now)  # type: ignore[arg-type]
    return refused.value.payload


def test_every_publish_gets_its_ok_at_the_end_of_the_turn(stage: Stage) -> None:
    client = stage.client().say(Pub("t", b"a"), Mpub.of("t", [b"b", b"c"]), Dpub("u", SECOND, b"d"), Nop())

    assert client.answers() == [b"OK"] * 3
    assert client.session.publish_counts == {"t": 3, "u": 1}


def test_a_conversation_goes_from_subscribed_to_closing(stage: Stage) -> None:
    client = stage.client()
    assert client.session.state == INIT
    client.say(Sub("t", "c"))
    assert client.session.state == SUBSCRIBED
    client.say(Cls())

    assert client.session.state == CLOSING
    assert client.answers() == [b"OK", b"CLOSE_WAIT"]


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (Fins.of([identity(0)]), b"FIN"),
        (Req(identity(0), 0), b"REQ"),
        (Touch(identity(0)), b"TOUCH"),
    ],
)
def test_what_is_not_in_flight_is_a_soft_error(stage: Stage, command: object, word: bytes) -> None:
    consumer = stage.consumer()
    consumer.say(command)  # type: ignore[arg-type]

    assert consumer.answers() == [b"E_%b_FAILED %b %b failed ID not in flight" % (word, word, identity(0))]
    stage.client().publish(b"a")
    assert consumer.received() == [0]


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (Fins.of([identity(0)]), b"FIN"),
        (Req(identity(0), 0), b"REQ"),
        (Touch(identity(0)), b"TOUCH"),
    ],
)
def test_what_another_holds_stays_with_it(stage: Stage, command: object, word: bytes) -> None:
    owner = stage.consumer()
    stage.client().publish(b"a")
    other = stage.consumer()
    other.say(command)  # type: ignore[arg-type]

    assert other.answers() == [b"E_%b_FAILED %b %b failed client does not own message" % (word, word, identity(0))]
    assert 0 in owner.holder.in_flight


@pytest.mark.parametrize("text", [b"0000000000000000", b"zzzzzzzzzzzzzzzz", b"ffffffffffffffff"])
def test_an_id_that_is_not_ours_is_not_in_flight(stage: Stage, text: bytes) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    consumer.received()
    consumer.say(Fins(b"FIN " + text + b"\n"), Req(text, 0), Touch(text))

    assert [answer.partition(b" ")[0] for answer in consumer.answers()] == [
        b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED",
    ]  # fmt: skip
    assert stage.channel().in_flight_count == 1


def test_a_run_of_fins_names_each_id_that_was_not_there(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    consumer.received()
    consumer.finish(0, 7, 2, 0)

    assert len(consumer.answers()) == 2
    assert consumer.holder.finished_count == 2
    assert list(consumer.holder.in_flight) == [1]


def test_a_run_of_reqs_names_each_id_that_was_not_there(stage: Stage) -> None:
    consumer = stage.consumer(ready=3)
    stage.client().publish(*numbered(3))
    consumer.received()
    consumer.say(Rdy(0), Reqs([identity(0), b"zzzzzzzzzzzzzzzz", identity(7), identity(2), identity(0)], 0))

    assert consumer.answers() == [
        b"E_REQ_FAILED REQ %b failed ID not in flight" % text
        for text in (b"zzzzzzzzzzzzzzzz", identity(7), identity(0))
    ]
    assert consumer.holder.requeued_count == 2
    assert list(consumer.holder.in_flight) == [1]
    assert consumer.say(Rdy(3)).received() == [0, 2]


def test_what_another_holds_stays_with_it_in_a_run_of_reqs(stage: Stage) -> None:
    owner = stage.consumer(ready=1)
    stage.client().publish(*numbered(2))
    other = stage.consumer(ready=1)
    other.say(Reqs([identity(0), identity(1)], MINUTE))

    assert other.answers() == [b"E_REQ_FAILED REQ %b failed client does not own message" % identity(0)]
    assert list(owner.holder.in_flight) == [0]
    assert len(stage.channel().ledger.deferred) == 1


def test_a_refused_batch_makes_no_topic(stage: Stage) -> None:
    assert refusal(stage, Mpub("t", b"\0\0\0\0")).startswith(b"E_BAD_BODY")
    assert stage.broker.topics == {}


def test_a_refused_batch_for_a_topic_that_is_there_says_the_same(stage: Stage) -> None:
    fresh = refusal(stage, Mpub("t", b"\0\0\0\2\0\0\0\1a\0\0\0\0"))
    stage.broker.topic("t")

    assert refusal(stage, Mpub("t", b"\0\0\0\2\0\0\0\1a\0\0\0\0")) == fresh


def test_one_consumer_too_many_is_refused() -> None:
    stage = Stage(max_channel_consumers=1)
    first = stage.consumer()
    assert refusal(stage, Sub("t", "c")) == b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"
    first.leave()

    assert stage.consumer().session.state == SUBSCRIBED


def test_a_broker_that_closes_refuses_new_topics(stage: Stage) -> None:
    stage.broker.exiting = True

    assert refusal(stage, Pub("t", b"a")) == b"E_PUB_FAILED PUB failed exiting"
    assert refusal(stage, Dpub("t", 1, b"a")) == b"E_DPUB_FAILED DPUB failed exiting"
    assert refusal(stage, Mpub.of("t", [b"a"])) == b"E_MPUB_FAILED MPUB failed exiting"
    assert refusal(stage, Sub("t", "c")) == b"E_SUB_FAILED SUB failed exiting"


def test_a_topic_that_is_deleted_refuses_what_comes(stage: Stage) -> None:
    stage.client().publish(b"a")
    topic = stage.broker.existing("t")
    topic.close()

    assert refusal(stage, Pub("t", b"a")) == b"E_PUB_FAILED PUB failed exiting"


def test_more_topics_than_allowed_are_refused_by_name() -> None:
    stage = Stage(max_topics=1)
    stage.client().publish(b"a")

    assert refusal(stage, Pub("u", b"a")).startswith(b"E_PUB_FAILED PUB failed this node has 1 topics")


def test_answering_for_messages_asks_for_a_subscription(stage: Stage) -> None:
    assert refusal(stage, Fins.of([identity(0)])).startswith(b"E_INVALID")


def test_a_session_stirs_once_for_what_nobody_asked_for_in_this_turn(stage: Stage) -> None:
    consumer = stage.consumer()
    before = consumer.noticed
    stage.client().publish(*numbered(3))

    assert consumer.noticed == before + 1


def test_who_is_gone_is_forgotten(stage: Stage) -> None:
    client = stage.consumer()
    client.leave()
    client.leave()

    assert stage.broker.clients == {}
    assert not stage.channel().subscriptions


def test_a_clients_own_timeout_counts(stage: Stage) -> None:
    hasty = stage.consumer(msg_timeout=SECOND)
    stage.client().publish(b"a")
    hasty.received()
    stage.pass_time(2 * SECOND)

    assert hasty.take()[0] == [(0, 2, b"a")]
    assert stage.now < 1000 * SECOND + MINUTE


def test_a_publisher_hears_of_a_failure_once(stage: Stage) -> None:
    client = stage.client()
    client.session.handle(Pub("t", b"a"), now=stage.now)
    client.session.handle(Pub("t", b"b"), now=stage.now)
    for receipt, sequence in stage.broker.existing("t").waiting:
        receipt.settle(sequence, LapwingError("no"))

    assert client.answers() == [b"E_PUB_FAILED PUB failed no"]


def test_a_consumer_that_wants_nothing_holds_nothing(stage: Stage) -> None:
    consumer = stage.consumer(ready=5).say(Rdy(0))
    stage.client().publish(b"a")

    assert consumer.received() == []
    assert consumer.subscription.room == 0
