"""Moving a channel's cursor: where to, what a preview promises, and what a bookmark brings back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.broker.operations import claims, seek
from lapwing.broker.settings import times
from lapwing.errors import OutOfRange, SettingRefused
from play import SECOND, Stage, numbered


def move(stage: Stage, to: Any) -> seek.SeekPlan:
    channel = stage.channel()
    if to == "bookmark":
        found = seek.seek_bookmark(channel, now=stage.now)
    else:
        found = seek.seek(channel, seek.target_of(channel, to, now=stage.now), now=stage.now)
    stage.commit()
    return found


def preview(stage: Stage, to: Any) -> seek.SeekPlan:
    return seek.preview(stage.channel(), to, now=stage.now)


@pytest.mark.parametrize(
    ("to", "sequence"),
    [
        ("earliest", 0),
        ("latest", 5),
        ({"sequence": 3}, 3),
        ({"back": "25s"}, 3),
        ({"back": "1000h"}, 0),
        ({"back": "0s"}, 5),
        ({"time": times.show(1_020 * SECOND)}, 2),
        ({"time": 1_021}, 3),
    ],
)
def test_where_to(stage: Stage, to: Any, sequence: int):
    stage.consumer(ready=0)
    for body in numbered(5):
        stage.client().publish(body)
        stage.pass_time(10 * SECOND)

    assert seek.target_of(stage.channel(), to, now=stage.now) == sequence


@pytest.mark.parametrize("to", ["first", 5, None, [], {}, {"sequence": "5"}, {"sequence": True}, {"back": 5}, {"a": 1}])
def test_what_is_no_place_is_refused(stage: Stage, to: Any):
    stage.consumer()
    with pytest.raises(SettingRefused) as caught:
        seek.target_of(stage.channel(), to, now=stage.now)

    assert str(caught.value) == seek.EXPECTED


def test_refusals_name_what_is_wrong(stage: Stage):
    stage.consumer()
    for to, sentence in (
        ({"time": "noon"}, 'to: time: a time such as "2030-01-31T12:00:00Z" or Unix seconds expected; or use'),
        ({"back": "-2h"}, 'to: back: a duration such as "2h" expected, not "-2h"'),
        ({"back": "long"}, 'to: back: a duration such as "2h" expected, not "long"'),
        ("bookmark", "to: the channel has no bookmark: it was never moved by a seek"),
    ):
        with pytest.raises(SettingRefused) as caught:
            seek.target_of(stage.channel(), to, now=stage.now)
        assert str(caught.value).startswith(sentence)
    with pytest.raises(OutOfRange, match="sequence 7 is not in the log, which holds 0 to 0"):
        seek.target_of(stage.channel(), {"sequence": 7}, now=stage.now)


def test_a_preview_counts_what_comes_again_and_what_is_skipped(stage: Stage):
    consumer = stage.consumer(ready=4)
    stage.client().publish(*numbered(10))
    consumer.finish(0, 1)
    assert sorted(consumer.received()) == [0, 1, 2, 3, 4, 5]

    assert preview(stage, {"sequence": 8}) == seek.SeekPlan(cursor=6, sequence=8, again=0, skipped=6)
    assert preview(stage, {"sequence": 1}) == seek.SeekPlan(cursor=6, sequence=1, again=1, skipped=0)
    assert preview(stage, {"sequence": 3}) == seek.SeekPlan(cursor=6, sequence=3, again=0, skipped=1)
    assert consumer.received() == []
    assert stage.channel().cursor == 6


def test_a_seek_back_delivers_again_and_the_bookmark_undoes_it(stage: Stage):
    consumer = stage.consumer(ready=5)
    stage.client().publish(*numbered(10))
    consumer.finish(0, 1, 2, 3, 4)
    assert consumer.received() == list(range(10))
    consumer.finish(5, 6, 8, 9)

    assert move(stage, "earliest").again == 9
    assert consumer.received() == [0, 1, 2, 3, 4]
    consumer.finish(0, 1, 2, 3, 4)
    assert consumer.received() == [5, 6, 7, 8, 9]
    move(stage, "bookmark")
    assert consumer.received() == [7]
    assert stage.channel().depth == 0


def test_a_seek_forward_skips_and_the_bookmark_undoes_it(stage: Stage):
    consumer = stage.consumer(ready=2)
    stage.client().publish(*numbered(10))
    assert consumer.received() == [0, 1]
    assert move(stage, {"sequence": 8}).skipped == 8
    assert consumer.received() == [8, 9]
    consumer.finish(8)

    move(stage, "bookmark")
    others = stage.consumer(ready=100)
    assert sorted(consumer.received() + others.received()) == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def test_the_bookmark_keeps_what_is_deferred_deferred(stage: Stage):
    stage.consumer().leave()
    stage.client().publish(*numbered(1), delay=5_000)
    stage.client().publish(*numbered(2))
    move(stage, "earliest")
    move(stage, "bookmark")
    consumer = stage.consumer(ready=10)
    early = consumer.received()
    stage.pass_time(6 * SECOND)

    assert early == [1, 2]
    assert consumer.received() == [0]


def test_the_bookmark_brings_nothing_back_that_was_finished_before_its_turn(stage: Stage):
    stage.consumer().leave()
    stage.client().publish(*numbered(2))
    stage.client().publish(*numbered(1), delay=5_000)
    move(stage, {"sequence": 1})
    claims.claim(stage.channel(), [2], "finish", now=stage.now)
    move(stage, "bookmark")
    stage.pass_time(6 * SECOND)

    assert stage.consumer(ready=10).received() == [0, 1]


def test_the_bookmark_brings_nothing_back_that_was_finished_ahead_before_the_seek(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.consumer().leave()
    stage.client().publish(*numbered(3))
    stage.client().publish(*numbered(1), delay=5_000)
    move(stage, {"sequence": 1})
    claims.claim(stage.channel(), [3], "finish", now=stage.now)
    move(stage, "earliest")
    stage.broker.checkpoint_topic(stage.channel().topic, now=stage.now)
    stage.kill()
    promised = preview(stage, "bookmark")
    move(stage, "bookmark")
    stage.pass_time(6 * SECOND)

    assert (promised.again, promised.skipped) == (0, 2)
    assert stage.consumer(ready=10).received() == [1, 2]


def test_the_bookmark_brings_back_what_only_the_side_log_has(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=300)
    consumer = stage.consumer(ready=3)
    for _ in range(6):
        stage.client().publish(b"x" * 200)
    assert consumer.received() == [0, 1, 2]
    move(stage, {"sequence": 1})
    assert consumer.received() == [1, 2, 3]
    consumer.finish(3)
    for _ in range(2):
        stage.broker.checkpoint(now=stage.now)
        stage.broker.trim(now=stage.now, everywhere=True)
    first = stage.channel().topic.log.first
    assert consumer.received() == [4]
    move(stage, "bookmark")

    assert first > 2
    assert sorted(stage.consumer(ready=10).received() + consumer.received()) == [1, 2, 4, 5]


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_a_seek_survives(tmp_path: Path, way: str):
    stage = Stage(tmp_path)
    consumer = stage.consumer()
    stage.client().publish(*numbered(10))
    consumer.finish(*range(10))
    move(stage, {"sequence": 4})
    stage.broker.checkpoint_topic(stage.channel().topic, now=stage.now)
    getattr(stage, way)()

    assert stage.channel().depth == 6


histories = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("requeue"), st.integers(0, 9)),
        st.tuples(st.just("seek"), st.integers(0, 12)),
        st.tuples(st.just("bookmark"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=examples(300))
@example([("publish", 4), ("publish", 1), ("seek", 2), ("finish", 2), ("bookmark", None), ("seek", 0)])
@given(histories)
def test_previews_are_right_and_nothing_that_was_not_finished_is_lost(history):
    stage = Stage()
    consumer = stage.consumer(ready=3)
    published, finished, held, marks = 0, set(), set(), []
    for verb, number in history:
        if verb == "publish":
            stage.client().publish(*numbered(number))
            published += number
        elif verb in ("finish", "requeue") and held:
            sequence = sorted(held)[number % len(held)]
            held.discard(sequence)
            if verb == "finish":
                finished.add(sequence)
                consumer.finish(sequence)
            else:
                consumer.requeue(sequence)
        elif verb == "seek" and published:
            to = min(number, published)
            plan = preview(stage, {"sequence": to})
            marks.append((finished.copy(), to, plan.cursor))
            again = [each for each in finished if each >= to] if to < plan.cursor else []
            assert plan.again == len(again)
            assert plan.skipped == len([each for each in range(to) if each not in finished])
            assert move(stage, {"sequence": to}) == plan
            finished = {each for each in range(published) if each < to} | (
                {each for each in finished if each >= to} - set(again)
            )
            held.clear()
            consumer.take()
            stage.pass_time(0)
        elif verb == "bookmark" and marks:
            before, to, _ = marks.pop()
            after = before | {each for each in finished if each >= to}
            plan = preview(stage, "bookmark")
            assert (plan.again, plan.skipped) == (len(finished - after), len(after - finished))
            assert move(stage, "bookmark") == plan
            held.clear()
            marks = []
            finished = after
            stage.channel().bookmark = None
        ledger = stage.channel().ledger
        held = {each for each in ledger.sequences() if ledger.holder_of(each)}
        consumer.take()
        waiting = stage.channel().depth + stage.channel().in_flight_count
        assert waiting == published - len(finished), (verb, number)


@pytest.mark.parametrize("killed", [False, True])
def test_a_message_that_was_finished_ahead_of_the_cursor_comes_again_when_the_cursor_is_moved_back(
    tmp_path: Path, killed: bool
) -> None:
    stage = Stage(tmp_path)
    stage.consumer(ready=0).leave()
    stage.client().publish(b"0").publish(b"1", delay=SECOND).publish(b"2")
    assert claims.claim(stage.channel(), [1], "finish", now=stage.now) == [1]
    stage.checkpoint()
    consumer = stage.consumer()
    assert consumer.received() == [0, 2]
    consumer.finish(0, 2).leave()
    stage.channel().move(0)
    stage.checkpoint()
    if killed:
        stage.kill()
    again = stage.consumer()
    stage.pass_time(2 * SECOND)  # after a kill its delay begins again

    assert sorted(again.received()) == [0, 1, 2]
