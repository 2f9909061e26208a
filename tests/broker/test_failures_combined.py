"""Failures together with what else moves messages: claims, seeks, deletions, limits, trimming and topics unopened."""

from pathlib import Path

import pytest

from bad_sectors import BadSectors
from failing import configure, fail, letters, reject
from lapwing.broker.failures import dead_filter, dead_letter_view
from lapwing.broker.operations import claims, seek
from lapwing.broker.operations.redrive_task import CANCELLED, DONE, RUNNING
from lapwing.errors import WriteFailed
from lapwing.wire.nsq.commands import Rdy
from overriding import overriding
from play import SECOND, Client, Stage, numbered
from redriving import DEAD, buried, run, start, waiting

HOUR = 3600 * SECOND


# --- messages that are dealt with before the cursor reaches them ---------------------------------------------------


def ready_ahead(stage: Stage, **settings: object) -> Client:
    """Have a consumer get a deferred message, the last of six, ahead of the others, which wait."""
    consumer = stage.consumer(ready=1)
    if settings:
        configure(stage, **settings)
    stage.client().publish(*numbered(5)).publish(b"late", delay=HOUR)
    claims.claim(stage.channel(), [5], "ready", now=stage.now)
    consumer.finish(0)
    assert consumer.received() == [0, 5]
    return consumer


def all_that_comes(stage: Stage) -> list[int]:
    stage.pass_time(2 * HOUR)
    return sorted(stage.consumer().received())


def test_a_deferred_message_that_was_made_ready_and_finished_stays_finished(tmp_path: Path):
    stage = Stage(tmp_path)
    ready_ahead(stage).finish(5)
    stage.restart()

    assert all_that_comes(stage) == [1, 2, 3, 4]


def test_a_deferred_message_that_was_made_ready_and_dropped_stays_dropped(tmp_path: Path):
    stage = Stage(tmp_path)
    reject(ready_ahead(stage, dead_topic=""), 5)
    stage.restart()

    assert all_that_comes(stage) == [1, 2, 3, 4]


def test_what_a_dropped_holder_had_ahead_of_the_cursor_stays_finished(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer(ready=0)
    stage.client().publish(*numbered(2)).publish(b"late", delay=HOUR)
    channel = stage.channel()
    assert channel.claim([2], channel.named_holder("worker"), now=stage.now) == [2]
    assert channel.drop_holder("worker", now=stage.now) == 1
    stage.restart()

    assert all_that_comes(stage) == [0, 1]


def test_an_edited_message_that_is_finished_before_the_cursor_reaches_it_stays_finished(tmp_path: Path):
    stage = Stage(tmp_path)
    consumer = buried(stage, 3).finish(3).say(Rdy(0))
    start(stage, sequences=[2], edited=b"new")
    assert run(stage).redriven == 1
    seek.seek(stage.channel(), 0, now=stage.now)
    consumer.say(Rdy(1))
    assert [each[0::2] for each in consumer.take()[0]] == [(2, b"new")]
    consumer.say(Rdy(0)).finish(2)
    stage.restart()

    assert all_that_comes(stage) == [0, 1, 3]


# --- a cursor that is moved alone, as Redis does -------------------------------------------------------------------


@pytest.mark.parametrize("ready", [0, 1], ids=["ready", "in flight"])
@pytest.mark.parametrize("edited", [b"new", None], ids=["edited", "deleted"])
def test_what_only_the_side_log_has_stays_when_the_cursor_is_moved_back(stage: Stage, ready: int, edited: bytes | None):
    consumer = buried(stage, 3).finish(3).say(Rdy(ready))
    if edited is None:
        stage.broker.existing("t").delete(2, 3)
    start(stage, sequences=[2], edited=edited)
    assert run(stage).redriven == 1
    stage.channel().move(0)
    consumer.say(Rdy(10))
    body = numbered(3)[2] if edited is None else edited
    got = {sequence: body for sequence, _, body in consumer.take()[0]}

    assert got.pop(2) == body
    assert got.keys() == {0, 1, 3}
    consumer.finish(0, 1, 2, 3)
    assert (stage.channel().depth, stage.channel().in_flight_count) == (0, 0)


# --- messages that were deleted ------------------------------------------------------------------------------------


def test_previews_of_seeks_leave_deleted_messages_out(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(*numbered(6))
    consumer.finish(*range(6)).take()
    topic, channel = stage.broker.existing("t"), stage.channel()
    topic.delete(1, 3)
    plan = seek.preview(channel, "earliest", now=stage.now)
    assert (plan.again, plan.skipped) == (4, 0)
    consumer.say(Rdy(0))
    assert seek.seek(channel, 0, now=stage.now) == plan
    assert channel.depth == 4

    plan = seek.preview(channel, "latest", now=stage.now)
    assert (plan.again, plan.skipped) == (0, 4)
    plan = seek.preview(channel, "bookmark", now=stage.now)
    assert (plan.again, plan.skipped) == (0, 4)


def test_the_preview_of_the_bookmark_leaves_out_what_the_log_has_no_more(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=300)
    stage.consumer(ready=0)
    for body in numbered(20):
        stage.client().publish(body)
    channel = stage.channel()
    seek.seek(channel, 15, now=stage.now)
    stage.commit()
    stage.checkpoint(trim=True)
    first = stage.broker.existing("t").log.first
    assert 0 < first <= 15
    plan = seek.preview(channel, "bookmark", now=stage.now)
    assert (plan.again, plan.skipped) == (15 - first, 0)
    seek.seek_bookmark(channel, now=stage.now)

    assert channel.depth == 20 - first


def test_a_message_that_was_deleted_becomes_no_dead_letter(stage: Stage):
    consumer = stage.consumer()
    stage.client().publish(b"secret", b"fine")
    stage.broker.existing("t").delete(0, 1)
    reject(consumer, 0)
    reject(consumer, 1)

    assert [body for body, _ in letters(stage)] == [b"fine"]
    assert stage.channel().in_flight_count == 0


def test_an_overflow_passes_deleted_messages_over(stage: Stage):
    stage.consumer(ready=0)
    stage.client().publish(*numbered(6))
    stage.broker.existing("t").delete(1, 3)
    configure(stage, max_depth=2, overflow="dead")

    assert [headers["dead-sequence"] for _, headers in letters(stage)] == ["0", "3"]
    assert (stage.channel().depth, stage.channel().counts.overflowed) == (2, 2)


# --- limits --------------------------------------------------------------------------------------------------------


def test_too_many_bytes_cost_no_message_that_was_delivered_before(stage: Stage):
    consumer = stage.consumer(ready=10)
    stage.client().publish(*numbered(10))
    configure(stage, max_bytes=600, overflow="drop-oldest")
    consumer.say(Rdy(0))
    for sequence in range(10):
        fail(consumer, sequence)
    for _ in range(30):
        stage.client().publish(b"x" * 20)

    channel = stage.channel()
    assert len(channel.ledger.ready) == 10
    assert channel.waiting_bytes() <= 600
    assert channel.counts.overflowed == 40 - channel.depth


def test_a_delivery_alone_keeps_to_the_messages_in_flight_that_are_allowed(stage: Stage):
    first, second = stage.consumer(ready=1), stage.consumer(ready=1)
    stage.client().publish(*numbered(3))
    configure(stage, max_attempts=1, max_in_flight=1)
    held = second.received()
    first.leave()
    third = stage.consumer(ready=1)
    assert third.received() == []
    second.finish(*held)

    assert len(third.received() + second.received()) == 1
    assert stage.channel().in_flight_count == 1


def test_a_delivery_alone_counts_for_the_rate(stage: Stage):
    consumer = stage.consumer(ready=1)
    stage.client().publish(*numbered(2))
    configure(stage, max_attempts=1, rate="1/m", burst=1)
    consumer.leave()
    consumer = stage.consumer(ready=1)
    assert consumer.received() == [0]
    consumer.finish(0)
    assert consumer.received() == []
    stage.pass_time(60 * SECOND)

    assert consumer.received() == [1]


# --- letters that the log of their topic does not have any more, or holds back -------------------------------------


def test_a_letter_that_is_in_the_side_log_is_listed_and_redriven(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=400)
    consumer = buried(stage, 20)
    reader = stage.consumer("dead", topic=DEAD)
    assert reader.received() == [*range(20)]
    reader.requeue(0, delay=HOUR)
    reader.finish(*range(1, 20)).leave()
    stage.checkpoint(trim=True)
    assert stage.broker.existing(DEAD).log.first > 0
    channel = stage.channel("dead", DEAD)
    runs = dead_letter_view.waiting_runs(channel)
    found, _, _ = dead_letter_view.letters(channel, runs, most=100, wanted=dead_filter.parse({"error": "reason 0"}))
    assert [(letter.sequence, letter.body) for letter in found] == [(0, numbered(1)[0])]
    start(stage)
    task = run(stage)

    assert (task.state, task.redriven, waiting(stage)) == (DONE, 1, 0)
    assert consumer.received() == [0]


def test_a_redrive_waits_while_its_topic_is_paused(stage: Stage):
    consumer = buried(stage, 1)
    stage.broker.pause_topic(DEAD, True, now=stage.now)
    stage.client().publish(b"more")
    reject(consumer, 2)
    start(stage)
    task = run(stage)
    assert (task.state, task.redriven) == (RUNNING, 1)
    assert task.error == f"topic {DEAD} is paused: the redrive waits until somebody unpauses it"
    stage.broker.pause_topic(DEAD, False, now=stage.now)
    stage.pass_time(SECOND)
    task = run(stage)

    assert (task.state, task.redriven, task.error) == (DONE, 2, "")


def test_a_redrive_that_is_cancelled_waits_for_nothing(stage: Stage):
    buried(stage).say(Rdy(0))
    configure(stage, max_depth=1, overflow="dead")
    start(stage)
    assert run(stage).error
    task = stage.broker.redrives.cancel(stage.broker.existing(DEAD), now=stage.now)

    assert task is not None
    assert (task.state, task.error) == (CANCELLED, "")


# --- topics that could not be opened at the start ------------------------------------------------------------------


def refuse(**_: object) -> bool:
    raise WriteFailed("journal", 0, OSError(28, "No space left on device"))


def open_at_last(stage: Stage, sectors: BadSectors) -> None:
    assert len(stage.broker.unopened) == 1
    sectors.heal()
    stage.pass_time(20 * SECOND)
    stage.checkpoint()
    stage.commit()
    assert not stage.broker.unopened


@pytest.mark.parametrize("topic", ["t", DEAD])
def test_copies_are_recognised_when_a_topic_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(3))
    reject(consumer, 0)
    stage.checkpoint()
    reject(consumer, 1)
    sectors = BadSectors(monkeypatch, f"t-{topic}/identity")
    stage.kill()  # the journal does not know that 1 is finished
    open_at_last(stage, sectors)

    assert len(letters(stage)) == 2
    assert stage.consumer().received() == [2]


def redrive_unsaved(stage: Stage) -> None:
    """Redrive letters and finish their messages, while the dead-letter topic cannot save that it has them no more."""
    consumer = buried(stage)
    stage.checkpoint()
    start(stage)
    dead = stage.broker.existing(DEAD)
    dead.__class__ = overriding(dead, checkpoint=refuse)
    stage.broker.redrives.step(now=stage.now)
    stage.commit()
    consumer.finish(*consumer.received())
    stage.broker.checkpoint_topic(stage.broker.existing("t"))


@pytest.mark.parametrize("topic", ["t", DEAD])
def test_letters_that_came_back_are_finished_when_a_topic_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
):
    stage = Stage(tmp_path)
    redrive_unsaved(stage)
    sectors = BadSectors(monkeypatch, f"t-{topic}/identity")
    stage.kill()
    stage.checkpoint()
    open_at_last(stage, sectors)
    run(stage)

    assert waiting(stage) == 0
    assert stage.consumer().received() == [3]


def test_a_second_kill_before_letters_are_saved_as_finished_doubles_nothing(tmp_path: Path):
    stage = Stage(tmp_path)
    redrive_unsaved(stage)
    stage.kill()
    stage.broker.checkpoint_topic(stage.broker.existing("t"))
    stage.kill()
    run(stage)

    assert waiting(stage) == 0
    assert stage.consumer().received() == [3]
