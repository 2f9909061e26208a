"""Schedules: each tick is published once, whatever happens on the way."""

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapwing.broker.schedules.definition import LONGEST_BODY, parse
from lapwing.broker.schedules.schedules import LARGEST, LATE, MOST, SAVE, Schedule
from lapwing.broker.schedules.timing import next_ticks, read_cron
from lapwing.broker.topic import batch
from lapwing.broker.topic.receipt import CallReceipt
from lapwing.errors import LapwingError, LogError, SettingRefused
from play import MINUTE, SECOND, Stage

HOUR = 60 * MINUTE
DAY = 24 * HOUR
DOCUMENT = {"topic": "t", "body": "tick", "every": "1m"}


def put(stage: Stage, name: str = "s", **changes: Any) -> Schedule:
    """Put a schedule each minute, or with these changes."""
    document = {key: each for key, each in (DOCUMENT | changes).items() if each is not None}
    return stage.broker.schedules.put(name, document, now=stage.now)


def cron(stage: Stage, expression: str, zone: str = "UTC", **changes: Any) -> Schedule:
    """Put a schedule with a cron expression."""
    return put(stage, **({"every": None, "cron": expression, "zone": zone} | changes))


def step(stage: Stage) -> int | None:
    """Work like the runner until nothing is due now; return when something is."""
    due = stage.broker.schedules.step(now=stage.now)
    stage.commit()
    for _ in range(10_000):
        settle(stage)
        due = stage.broker.schedules.step(now=stage.now)
        if not stage.broker.work:
            return due
        stage.commit()
    raise AssertionError("there is no end")


def settle(stage: Stage) -> None:
    """Do what the syncer does, with `fsync`."""
    for topic, receipts in stage.broker.work.take_unsynced():
        job = topic.store.begin_sync()
        if job is not None:
            job()
        topic.store.finish_sync(None)
        for receipt, sequence in receipts:
            receipt.settle(sequence, None)


def pass_time(stage: Stage, span: int) -> None:
    """Let time pass as the runner sees it: from one due time to the next."""
    end = stage.now + span
    while True:
        due = step(stage)
        if due is None or due > end:
            break
        stage.now = max(due, stage.now)
    stage.now = end
    step(stage)


def ticks(stage: Stage, topic: str = "t") -> list[str]:
    """The times of all ticks in the log of a topic."""
    found = stage.broker.find(topic)
    if found is None:
        return []
    extras = found.log.extras(found.log.first, found.log.end)
    return [each.headers["schedule-time"] for each in extras if "schedule-name" in each.headers]


def at(*parts: int, zone: str = "UTC") -> int:
    """A time of the calendar, Unix ns."""
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND  # type: ignore[arg-type, misc]


def hours(found: list[str], zone: str) -> list[str]:
    """Times as people in a zone read them."""
    return [datetime.fromisoformat(each).astimezone(ZoneInfo(zone)).strftime("%d %H:%M") for each in found]


# --- ticks -------------------------------------------------------------------------------------------------------


def test_a_period_publishes_one_message_each_time(stage: Stage):
    consumer = stage.consumer()
    schedule = put(stage, headers={"kind": "report"})
    pass_time(stage, 3 * MINUTE)

    assert ticks(stage) == ["1970-01-01T00:17:40Z", "1970-01-01T00:18:40Z", "1970-01-01T00:19:40Z"]
    assert [body for _, _, body in consumer.take()[0]] == [b"tick"] * 3
    log = stage.broker.existing("t").log
    assert log.extras(0, 1)[0].headers == {
        "kind": "report", "schedule-name": "s", "schedule-time": "1970-01-01T00:17:40Z",
        "message-id": "s@1970-01-01T00:17:40Z",
    }  # fmt: skip
    assert (schedule.published, schedule.missed, schedule.state) == (3, 0, "active")


def test_one_time_publishes_once_and_is_done(stage: Stage):
    schedule = put(stage, every=None, at="90s")
    pass_time(stage, DAY)
    assert ticks(stage) == ["1970-01-01T00:18:10Z"]
    assert (schedule.state, schedule.upcoming(stage.now, 10)) == ("done", [])


def test_a_cron_expression_follows_its_zone():
    stage = Stage(now=at(2026, 3, 2, 7, 0))
    cron(stage, "30 8 * * MON-FRI", "Europe/Berlin")
    pass_time(stage, 7 * DAY)
    assert hours(ticks(stage), "Europe/Berlin") == [f"0{day} 08:30" for day in (2, 3, 4, 5, 6, 9)][: len(ticks(stage))]
    assert len(ticks(stage)) == 5 + (stage.now >= at(2026, 3, 9, 7, 30))


def test_clocks_put_forward_and_back_publish_each_tick_once():
    """Berlin: 29 March 2026, 02:00 becomes 03:00; 25 October 2026, 03:00 becomes 02:00."""
    spring = Stage(now=at(2026, 3, 28, 12, 0))
    cron(spring, "30 2 * * *", "Europe/Berlin")
    pass_time(spring, 3 * DAY)
    assert hours(ticks(spring), "Europe/Berlin") == ["29 03:00", "30 02:30", "31 02:30"]

    autumn = Stage(now=at(2026, 10, 24, 12, 0))
    cron(autumn, "30 2 * * *", "Europe/Berlin")
    pass_time(autumn, 3 * DAY)
    assert hours(ticks(autumn), "Europe/Berlin") == ["25 02:30", "26 02:30", "27 02:30"]

    hourly = Stage(now=at(2026, 10, 24, 22, 0))
    cron(hourly, "0 * * * *", "Europe/Berlin")
    pass_time(hourly, 5 * HOUR)
    found = [datetime.fromisoformat(each) for each in ticks(hourly)]
    assert [each.hour for each in found] == [23, 0, 1, 2, 3]  # an hour passes between them, whatever clocks show


def test_a_day_of_minutes_with_a_kill_at_every_tick(tmp_path: Path):
    stage = Stage(tmp_path, now=at(2026, 10, 24, 22, 0))
    cron(stage, "*/10 * * * *", "Europe/Berlin")
    for _ in range(6 * 24):
        pass_time(stage, 10 * MINUTE)
        stage.kill()
    found = ticks(stage)
    assert len(found) == len(set(found)) == 6 * 24
    times = [datetime.fromisoformat(each) for each in found]
    assert {(b - a).total_seconds() for a, b in itertools.pairwise(times)} == {600}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "15 3 * * *", "0 0 1 * *", "*/20 * * * * *", "5 4 * * SUN"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(at(2026, 1, 1) // SECOND, at(2027, 1, 1) // SECOND),
)
def test_before_and_after_are_the_same_ticks(expression: str, zone: str, moment: int):
    timing = read_cron(expression, zone)
    first = timing.after(moment * SECOND)
    assert first is not None
    assert first > moment * SECOND
    second = timing.after(first)
    assert second is not None
    assert second > first
    assert timing.until(first) == first
    assert next_ticks(timing, moment * SECOND, 2) == [first, second]
    before = timing.until(moment * SECOND)
    assert before is not None
    assert before <= moment * SECOND
    assert timing.after(before) == first


# --- misfires ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "expected"), [("once", 1), ("skip", 0), ("all", 60)])
def test_ticks_of_an_outage(tmp_path: Path, misfire: str, expected: int):
    stage = Stage(tmp_path)
    put(stage, misfire=misfire)
    step(stage)
    stage.kill()
    stage.now += 60 * MINUTE + 30 * SECOND
    step(stage)
    found = ticks(stage)
    assert len(found) == expected
    if misfire == "once":
        assert found == ["1970-01-01T01:16:40Z"]  # the newest
    schedule = stage.broker.schedules.get("s")
    assert schedule is not None
    assert schedule.published + schedule.missed == 60
    pass_time(stage, 30 * SECOND)
    assert len(ticks(stage)) == expected + 1


def test_an_outage_of_many_schedules_is_worked_off_in_pieces(stage: Stage):
    for number in range(40):
        cron(stage, "* * * * *", name=f"s{number}")
    step(stage)
    stage.now += 3 * HOUR
    schedules = stage.broker.schedules
    steps = 0
    while sum(each.missed for each in schedules.all()) < 40 * 179:
        before = sum(each.missed for each in schedules.all())
        assert schedules.step(now=stage.now) == stage.now
        stage.commit()
        assert sum(each.missed for each in schedules.all()) - before < 300  # then others get their turn
        steps += 1
    assert steps == 40
    assert len(ticks(stage)) == 40


def test_a_tick_that_comes_now_does_not_wait_for_those_that_were_missed(stage: Stage):
    for number in range(40):
        cron(stage, "* * * * *", name=f"s{number}")
    put(stage, "now", topic="now", every="3h")
    step(stage)
    stage.now += 3 * HOUR
    stage.broker.schedules.step(now=stage.now)
    stage.commit()
    assert len(ticks(stage, "now")) == 1


def test_an_outage_that_ends_at_a_tick_publishes_that_one(stage: Stage):
    for misfire in ("once", "skip"):
        put(stage, misfire, misfire=misfire, topic=misfire)
    step(stage)
    stage.now += 10 * MINUTE + LATE // 2
    step(stage)
    assert ticks(stage, "once") == ticks(stage, "skip") == ["1970-01-01T00:26:40Z"]


def test_the_machine_clock_jumps(stage: Stage):
    put(stage)
    pass_time(stage, MINUTE)
    stage.broker.skew = DAY
    pass_time(stage, MINUTE)
    assert len(ticks(stage)) == 2 + 1
    stage.broker.skew = 0
    pass_time(stage, 2 * MINUTE)
    assert len(ticks(stage)) == 3 + 2


def test_a_period_follows_a_clock_that_was_far_ahead_when_it_was_put(tmp_path: Path):
    stage = Stage(tmp_path)
    stage.broker.skew = 365 * DAY
    put(stage)
    step(stage)
    stage.broker.skew = 0
    pass_time(stage, 3 * MINUTE)
    assert len(ticks(stage)) == 3
    stage.kill()
    pass_time(stage, 2 * MINUTE)
    assert len(ticks(stage)) == 5


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_after_each_tick_repeats_none(tmp_path: Path, durability: str):
    stage = Stage(tmp_path, durability=durability)
    put(stage)
    for _ in range(20):
        pass_time(stage, MINUTE)
        stage.kill()
    assert len(ticks(stage)) == len(set(ticks(stage))) == 20


def test_a_kill_before_the_tick_is_settled_repeats_none(tmp_path: Path):
    stage = Stage(tmp_path, durability="fsync")
    stage.broker.topic("t")
    put(stage)
    step(stage)
    stage.now += MINUTE
    stage.broker.schedules.step(now=stage.now)
    stage.commit()  # written, and not synced: nobody was told
    stage.kill()
    step(stage)
    assert len(ticks(stage)) == 1
    pass_time(stage, MINUTE)
    assert len(ticks(stage)) == 2


def test_progress_is_found_in_the_log_where_the_file_is_old(tmp_path: Path):
    stage = Stage(tmp_path)
    put(stage)
    step(stage)
    old = (tmp_path / "schedules.progress").read_bytes()
    pass_time(stage, 5 * MINUTE)
    stage.kill()
    (tmp_path / "schedules.progress").write_bytes(old)
    stage.kill()
    step(stage)
    assert len(ticks(stage)) == 5


def test_the_log_keeps_ticks_that_the_file_does_not_know(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=4096)
    consumer = stage.consumer()
    put(stage)
    step(stage)
    schedules = stage.broker.schedules
    for number in range(30):
        stage.now += MINUTE
        schedules._next_save = stage.now + DAY  # as if the process died between two saves
        step(stage)
        stage.client().publish(b"x" * 1000)
        consumer.finish(*consumer.received())
        stage.checkpoint(trim=True)
        assert len(ticks(stage)) == number + 1
    stage.kill()
    step(stage)
    assert len(ticks(stage)) == 30
    stage.broker.schedules._next_save = 0
    step(stage)
    stage.checkpoint(trim=True)
    assert len(ticks(stage)) < 30  # they are known now


def test_progress_that_is_lost_is_said_and_time_counts_from_now(tmp_path: Path):
    stage = Stage(tmp_path)
    put(stage)
    pass_time(stage, 5 * MINUTE)
    stage.kill()
    (tmp_path / "schedules.progress").write_bytes(b"rubbish")
    stage.now += HOUR
    stage.kill()
    assert any("schedules.progress" in each and "from now on" in each for each in stage.reports)
    pass_time(stage, MINUTE)
    assert len(ticks(stage)) == 6


def test_a_damaged_file_stops_changes_and_is_left_alone(tmp_path: Path):
    stage = Stage(tmp_path)
    put(stage)
    (tmp_path / "schedules").write_bytes(b"rubbish")
    stage.kill()
    assert any("No schedule runs" in each for each in stage.reports)
    assert stage.broker.schedules.all() == []
    with pytest.raises(LogError, match="restore the file"):
        put(stage, "other")
    assert (tmp_path / "schedules").read_bytes() == b"rubbish"


def test_a_schedule_that_is_not_understood_stays_in_the_file(tmp_path: Path):
    stage = Stage(tmp_path)
    put(stage, "old")
    path = tmp_path / "schedules"
    stage.broker.schedules._files.save(  # type: ignore[union-attr]
        {"new": {"topic": "t", "body": "b", "moon": "full", "since": 1, "last": 1}}
    )
    stage.kill()
    assert any("schedule new does not run: moon" in each for each in stage.reports)
    put(stage, "other")
    assert b'"moon": "full"' in path.read_bytes()


def test_a_topic_that_was_deleted_is_created_again(stage: Stage):
    put(stage)
    pass_time(stage, 2 * MINUTE)
    stage.broker.delete_topic("t")
    pass_time(stage, MINUTE)
    assert len(ticks(stage)) == 1


# --- what refuses ------------------------------------------------------------------------------------------------


def test_a_publish_that_is_refused_is_tried_again(stage: Stage):
    schedule = put(stage)
    step(stage)
    stage.broker.begin_drain(now=stage.now)
    pass_time(stage, MINUTE + 3 * SECOND)
    assert (schedule.state, ticks(stage)) == ("failing", [])
    assert "draining" in schedule.problem
    stage.broker.end_drain()
    pass_time(stage, 2 * SECOND)
    assert (schedule.state, len(ticks(stage)), schedule.missed) == ("active", 1, 0)


def test_an_error_of_one_schedule_leaves_the_others_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    broken = put(stage, "broken")
    put(stage, "whole")
    step(stage)
    reports: list[str] = []
    monkeypatch.setattr(stage.broker, "report", reports.append)
    monkeypatch.setattr(broken, "next_tick", lambda now: 1 // 0)
    pass_time(stage, MINUTE + 2 * SECOND)
    assert len(ticks(stage)) == 1
    assert (broken.state, broken.problem[:17]) == ("failing", "ZeroDivisionError")
    assert len(reports) == 1
    monkeypatch.undo()
    pass_time(stage, 2 * SECOND)
    assert (len(ticks(stage)), broken.state) == (2, "active")


def test_a_pause_leaves_ticks_out(tmp_path: Path):
    stage = Stage(tmp_path)
    schedule = put(stage)
    pass_time(stage, MINUTE)
    schedule = stage.broker.schedules.set_paused(schedule, True, now=stage.now)
    ran = schedule.ran
    assert (schedule.state, ran) == ("paused", stage.now)
    pass_time(stage, 5 * MINUTE)
    stage.kill()
    pass_time(stage, 5 * MINUTE)
    assert len(ticks(stage)) == 1
    found = stage.broker.schedules.get("s")
    assert found is not None
    found = stage.broker.schedules.set_paused(found, False, now=stage.now)
    assert (found.state, found.ran) == ("active", ran)
    stage.kill()
    pass_time(stage, 2 * MINUTE)
    assert len(ticks(stage)) == 3


def test_a_log_is_trimmed_beside_a_paused_schedule_after_a_restart(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=4096)
    consumer = stage.consumer()
    schedule = put(stage)
    step(stage)
    stage.broker.schedules.set_paused(schedule, True, now=stage.now)
    stage.kill()
    consumer = stage.consumer()
    for _ in range(30):
        stage.client().publish(b"x" * 1000)
        consumer.finish(*consumer.received())
        pass_time(stage, MINUTE)
        stage.checkpoint(trim=True)
    topic = stage.broker.find("t")
    assert topic is not None
    assert topic.log.first > 0


def test_put_again_carries_on(stage: Stage):
    put(stage)
    pass_time(stage, MINUTE + 20 * SECOND)
    put(stage, body="changed")
    pass_time(stage, 40 * SECOND)
    assert len(ticks(stage)) == 2
    put(stage, every="10m")
    pass_time(stage, 9 * MINUTE)
    assert len(ticks(stage)) == 2
    pass_time(stage, MINUTE)
    assert len(ticks(stage)) == 3


def test_run_now_is_beside_the_ticks(tmp_path: Path):
    stage = Stage(tmp_path)
    schedule = put(stage)
    pass_time(stage, 30 * SECOND)
    settled: list[LapwingError | None] = []
    receipt = CallReceipt(lambda sequence, error: settled.append(error))
    stage.broker.schedules.run(schedule, receipt, now=stage.now)
    stage.commit()
    assert settled == [None]
    stage.kill()
    pass_time(stage, 30 * SECOND)
    assert ticks(stage) == ["1970-01-01T00:17:10Z", "1970-01-01T00:17:40Z"]


def test_clients_cannot_say_that_they_are_a_schedule(stage: Stage):
    topic = stage.broker.topic("t")
    forged = {"schedule-name": "s", "schedule-time": "2100-01-01T00:00:00Z", "kind": "x"}
    receipt = CallReceipt(lambda sequence, error: None)
    topic.append(batch.single(topic, b"b", now=stage.now, headers=forged), receipt, now=stage.now)
    topic.append(batch.sharing(topic, [b"b", b"c"], forged, now=stage.now), receipt, now=stage.now)
    stage.commit()
    assert [each.headers for each in topic.log.extras(0, 3)] == [{"kind": "x"}] * 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"every": "10"}, "the unit is missing"),
        ({"every": "1ms"}, "a second is the shortest"),
        ({"every": None}, "one of at, every, cron expected"),
        ({"at": "1h"}, "one of at, every, cron expected"),
        ({"every": None, "at": "1970-01-01T00:00:01Z"}, "has passed"),
        ({"every": None, "at": "tomorrow"}, "at: a time such as"),
        ({"every": None, "cron": "61 * * * *"}, "Bad minute"),
        ({"every": None, "cron": "0 0 31 2 *"}, "no cron expression"),
        ({"every": None, "cron": "0 0 * * *", "zone": "Mars/Base"}, "is no time zone"),
        ({"zone": "Europe/Berlin"}, "it belongs to cron"),
        ({"topic": "a b"}, "the name of a topic"),
        ({"body": None}, "body or body_base64"),
        ({"body": ""}, "1 to 65536 bytes"),
        ({"body": "x" * 70_000}, "1 to 65536 bytes"),
        ({"body": None, "body_base64": "%"}, "bytes as base64"),
        ({"headers": {"dead-topic": "x"}}, "set by the broker alone"),
        ({"headers": {"schedule-name": "x"}}, "set by the broker alone"),
        ({"headers": {"message-id": "x"}}, "set by the broker alone"),
        ({"headers": {"Upper": "x"}}, "names in lower case"),
        ({"headers": {"a": 1}}, "an object of strings"),
        ({"misfire": "twice"}, "one of once, skip, all"),
        ({"paused": "yes"}, "true or false"),
        ({"colour": "red"}, "no part of a schedule"),
    ],
)
def test_what_is_refused(stage: Stage, changes: dict[str, Any], reason: str):
    with pytest.raises(SettingRefused, match=reason):
        put(stage, **changes)
    assert len(stage.broker.schedules) == 0


def test_times_are_whole_seconds(tmp_path: Path):
    stage = Stage(tmp_path, now=1_000 * SECOND + 123_456_789)
    put(stage, "often")
    put(stage, "once", every=None, at="90s")
    stage.kill()
    assert [each.upcoming(stage.now, 1) for each in stage.broker.schedules.all()] == [[1060 * SECOND], [1090 * SECOND]]


def test_there_are_not_too_many(stage: Stage):
    for number in range(MOST):
        put(stage, f"s{number}")
    with pytest.raises(SettingRefused, match="the most that it may have"):
        put(stage, "one-more")
    put(stage, "s0", body="changed")


def test_they_are_not_too_large_together(stage: Stage):
    most = LARGEST // (LONGEST_BODY + 200)
    for number in range(most):
        put(stage, f"s{number}", body="x" * LONGEST_BODY)
    with pytest.raises(SettingRefused, match="bytes together"):
        put(stage, "one-more", body="x" * LONGEST_BODY)
    assert len(stage.broker.schedules) == most
    put(stage, "s0", body="shorter")
    found = put(stage, "s1", body="x" * LONGEST_BODY)
    stage.broker.schedules.set_paused(found, False, now=stage.now)


def test_a_document_is_what_was_put():
    document = {
        "topic": "t", "body_base64": "/w==", "headers": {"a": "b"}, "cron": "*/5 * * * *", "zone": "UTC",
        "misfire": "all", "paused": True,
    }  # fmt: skip
    assert parse("s", document, now=0).document() == document


def test_progress_is_not_written_where_nothing_moves(tmp_path: Path):
    stage = Stage(tmp_path)
    put(stage, every="1d")
    pass_time(stage, SAVE)
    before = (tmp_path / "schedules.progress").stat().st_mtime_ns
    pass_time(stage, 10 * SAVE)
    assert (tmp_path / "schedules.progress").stat().st_mtime_ns == before


def test_utc_is_the_default():
    assert hours(["2026-01-01T00:00:00Z"], "UTC") == ["01 00:00"]
    assert (
        read_cron("0 9 * * *", "UTC").after(at(2026, 1, 1))
        == int(datetime(2026, 1, 1, 9, tzinfo=UTC).timestamp()) * SECOND
    )
