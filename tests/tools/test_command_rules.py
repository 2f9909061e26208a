"""The rules behind the commands, without a socket: times, rates, verdicts."""

import io
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapwing.admin.history import History
from lapwing.client.alarms import AlarmLimits, Bounds, alarms
from lapwing.client.cluster import Node
from lapwing.client.cluster_view import ClusterView, NodeState, Rate, ages_in, rates_between
from lapwing.client.format import SECOND, ago, duration, moment, ordinal, parse_span, parse_time, printable, short
from lapwing.client.http import DaemonHttp
from lapwing.client.log_reader import LogMessage, LogRange, Start
from lapwing.errors import ConfigError
from lapwing.tools import checks, doctor, processes, screens, supervisor
from lapwing.tools.checks import Verdict, check_limits, judge
from lapwing.tools.message_format import MessagePrinter
from lapwing.tools.terminal import Screen, Terminal, bar


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), ("250ms", 0.25), ("1.5s", 1.5)],
)
def test_a_span_is_what_people_write(text: str, seconds: float) -> None:
    assert parse_span(text) == int(seconds * SECOND)


@pytest.mark.parametrize("text", ["", "soon", "10", "-5m", "1h 30", "10 m", "2026-13-01"])
def test_a_moment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not understood"):
        parse_time(text, now=0)


@pytest.mark.parametrize("text", ["7", "-5m", "soon", "200000d"])
def test_a_span_that_is_none_is_refused_with_the_flag_it_was_given_to(text: str) -> None:
    with pytest.raises(ConfigError, match=f'--defer: invalid duration "{text}": '):
        parse_span(text, "--defer")


def test_a_moment_is_ago_or_a_date() -> None:
    now = time.time_ns()

    assert parse_time("10m", now=now) == now - 600 * SECOND
    assert parse_time("90000d", now=now) == 0
    assert parse_time("earliest", now=now) == 0
    assert parse_time("1970-01-02T00:00:00+00:00", now=now) == 86_400 * SECOND


def test_numbers_and_times_fit_their_columns() -> None:
    assert [short(value) for value in (0, 0.94, 9, 812, 9999, 45_210, 3_100_000, 2.5e9)] == [
        "0", "0.9", "9", "812", "9,999", "45.2k", "3.1M", "2.5G"]
    assert [duration(value) for value in (0.34, 12, 250, 11_100, 187_200)] == [
        "340ms", "12s", "4m 10s", "3h 5m", "2d 4h"]


def test_ordinals_and_moments_read_as_people_write_them() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 113)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "113th"]
    assert moment("1970-01-01T00:01:40.123456789Z", now=160.0) == "1970-01-01 00:01:40 UTC, 1m ago"
    assert moment("1970-01-01T00:01:40Z", now=99.5) == "1970-01-01 00:01:40 UTC, in 1s"
    assert (moment("", now=0.0), ago("", now=0.0)) == ("", "")
    assert ago("1970-01-01T00:01:40.5Z", now=300.0) == "3m 20s ago"


def channel(name: str = "c", **counts: Any) -> dict[str, Any]:
    return {"topic_name": "t", "channel_name": name, "depth": 0, "in_flight_count": 0, "deferred_count": 0,
            "requeue_count": 0, "timeout_count": 0,
            "message_count": 0, "client_count": 1, "paused": False, **counts}


NODE = Node("n", "n", 1, 2, "1.3.0")


def picture(
    at: float, *channels: dict[str, Any], messages: int = 0, depth: int = 0, health: str = "OK", lapwing: bool = True,
    **more: Any,
) -> ClusterView:
    topic = {"topic_name": "t", "depth": depth, "message_count": messages, "paused": False, "channels": list(channels),
             "nodes": [{}]}
    return ClusterView(at, at, topics={"t": topic}, nodes=(NodeState(NODE, health=health, lapwing=lapwing),), **more)


def test_rates_are_differences_over_time() -> None:
    before = picture(10.0, channel(message_count=100, depth=40), messages=100)
    after = picture(12.0, channel(message_count=300, depth=20, in_flight_count=10), messages=300)

    assert rates_between(before, after) == {("t", "c"): Rate(100.0, 105.0), ("t", ""): Rate(100.0, 105.0)}
    assert rates_between(None, after) == {}


def test_a_restarted_node_has_no_negative_rates() -> None:
    before, after = picture(1.0, channel(message_count=500), messages=500), picture(2.0, channel(), messages=3)

    assert rates_between(before, after)["t", ""] == Rate(0.0, 0.0)


def test_ages_are_read_from_metrics() -> None:
    text = 'lapwing_channel_oldest_message_age_seconds{topic="a",channel="b#ephemeral"} 1.5\nother{topic="a"} 2\n'

    assert list(ages_in(text)) == [(("a", "b#ephemeral"), 1.5)]


def test_all_is_well_when_nothing_is_said_against_it() -> None:
    report = judge(picture(0.0, channel(depth=5)), check_limits())

    assert (report.verdict, report.lag, report.channels) == (Verdict.OK, 5, 1)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        (check_limits(lag=Bounds(8)), Verdict.OK),
        (check_limits(lag=Bounds(7)), Verdict.WARNING),
        (check_limits(lag=Bounds(1, 7)), Verdict.CRITICAL),
        (check_limits(oldest=Bounds(60.0)), Verdict.WARNING),
        (check_limits(oldest=Bounds(error=61.0)), Verdict.OK),
    ],
)
def test_lag_and_age_have_limits(limits: AlarmLimits, verdict: Verdict) -> None:
    seen = picture(0.0, channel(depth=4, in_flight_count=2, deferred_count=1), ages={("t", "c"): 60.0})

    assert judge(seen, limits).verdict is verdict


def test_a_named_consumer_that_holds_a_message_for_long_is_a_finding() -> None:
    holders = [
        {"node": "n", "name": "busy", "in_flight_count": 1, "idle_seconds": 2.0, "oldest_seconds": 2.0},
        {"node": "n", "name": "gone", "in_flight_count": 3, "idle_seconds": 950.0, "oldest_seconds": 1000.0},
    ]
    seen = picture(0.0, channel(in_flight_count=4, consumers=holders))

    assert judge(seen, check_limits()).verdict is Verdict.OK
    report = judge(seen, check_limits(held=Bounds(900.0)))
    text = "Consumer gone of t/c holds 3 messages, the oldest for 16m 40s."
    assert [(finding.verdict, finding.text) for finding in report.findings] == [(Verdict.WARNING, text)]
    assert judge(seen, check_limits(held=Bounds(900.0, 1000.0))).verdict is Verdict.CRITICAL
    lines = screens.consumers_table(seen, Terminal.of(io.StringIO()))
    assert [line.split()[2] for line in lines[-2:]] == ["gone", "busy"]


def test_what_cannot_be_asked_is_critical_and_what_is_not_there_unknown() -> None:
    silent = ClusterView(nodes=(NodeState(NODE, error="connection refused"),), errors=("no daemon answers",))
    sick = picture(0.0, health="NOK - disk full")

    assert judge(silent, check_limits()).verdict is Verdict.CRITICAL
    assert judge(silent, check_limits(), topic="x").verdict is Verdict.CRITICAL
    assert judge(sick, check_limits()).verdict is Verdict.CRITICAL
    assert judge(picture(0.0), check_limits(), topic="x").verdict is Verdict.UNKNOWN
    assert judge(picture(0.0, channel()), check_limits(), channel="x").verdict is Verdict.UNKNOWN


def test_a_check_finds_what_nsqadmin_shows_with_the_same_sentence() -> None:
    lake = {"name": "lake", "topics": ["t"], "channel": "c", "updated_ms": 1_000_000, "state": "failed"}
    seen = picture(1000.0, channel(depth=7, client_count=0), health="NOK - disk full",
                   pipelines=(lake | {"error": "checkpoint is gone"},))  # fmt: skip
    report = judge(seen, check_limits(lag=Bounds(5)))
    shown = alarms(seen, History(), AlarmLimits(lag=Bounds(5)))

    assert {finding.text for finding in report.findings} == {
        "nsqd n:2 is unhealthy: NOK - disk full", "Pipeline lake failed: checkpoint is gone",
        "Channel t/c is 7 messages behind, and it has no consumer.",
    }  # fmt: skip
    assert {finding.text for finding in report.findings} <= {alarm.text for alarm in shown}
    assert "; Channel t/c is 7 messages behind, and it has no consumer | " in report.text(check_limits())


def test_a_paused_channel_is_within_the_bounds_of_a_check_or_not() -> None:
    seen = picture(0.0, channel(depth=7, paused=True), ages={("t", "c"): 60.0})
    report = judge(seen, check_limits(lag=Bounds(5), oldest=Bounds(error=60.0)))

    assert [finding.text for finding in report.findings] == [
        "The oldest message of t/c has waited 1m.", "Channel t/c is 7 messages behind, and it is paused.",
    ]  # fmt: skip
    assert judge(seen, check_limits()).findings == ()


def test_a_server_that_reports_no_ages_is_unknown_where_ages_have_limits() -> None:
    plain = picture(0.0, channel(depth=5), lapwing=False)

    report = judge(plain, check_limits(oldest=Bounds(error=600.0)))
    assert report.verdict is Verdict.UNKNOWN
    assert "n:2 does not report the age of messages" in report.text(check_limits(oldest=Bounds(error=600.0)))
    assert "oldest=" not in report.text(check_limits())
    assert judge(plain, check_limits()).verdict is Verdict.OK
    assert "age of the oldest message unknown" in judge(plain, check_limits()).text(check_limits())
    both = check_limits(lag=Bounds(error=5), oldest=Bounds(error=600.0))
    assert judge(plain, both).verdict is Verdict.CRITICAL


def test_a_topic_without_a_channel_keeps_everything_and_is_told_of() -> None:
    report = judge(picture(0.0, depth=10), check_limits(lag=Bounds(10)))
    text = "Topic t has no channel: 10 messages are buffering."

    assert report.findings == (checks.Finding(Verdict.WARNING, text),)
    assert judge(picture(0.0, depth=9), check_limits(lag=Bounds(10))).findings == ()


def test_reading_starts_where_it_is_told_to() -> None:
    found = LogRange(NODE, "log", 10, 30, 0, 0, 0, at=17)
    starts = (Start(sequence=5), Start(time=1), Start(last=4), Start(last=99), Start())

    assert [start.in_log(found) for start in starts] == [5, 17, 26, 10, 30]


NARROW = Terminal(width=80)


def printed(message: LogMessage, **how: Any) -> bytes:
    terminal = how.pop("terminal", Terminal())
    return MessagePrinter("t", io.BytesIO(), terminal, **{"is_terminal": False, **how}).format(message)


def test_control_characters_are_written_out_on_a_terminal_only() -> None:
    body = b"caf\xc3\xa9 \x1b[31m\tred\x07\xff"
    message = LogMessage(0, "n", 3, "id", 1, body, {})

    assert printable(body) == b"caf\xc3\xa9 \\x1b[31m\tred\\x07\\xff"
    assert printed(message) == body + b"\n"
    assert printed(message, is_terminal=True) == printable(body) + b"\n"
    assert b"body_base64" in printed(message, as_json=True)


def test_a_terminal_gets_headings_and_indented_json() -> None:
    message = LogMessage(1_700_000_000_000_000_000, "n:4151", 3, "id", 1, b'{"a": [1, "\\u001b"]}', {"key": "v"})
    whole = printed(message, is_terminal=True, details=True, pretty=True).decode()
    coloured = printed(message, is_terminal=True, pretty=True, terminal=Terminal(colour=True)).decode()
    line = printed(message, is_terminal=True, details=True).decode()

    assert whole.splitlines()[0].startswith("3  2023-11-1")
    assert whole.splitlines()[0].endswith("  n:4151  key: v")
    assert whole.splitlines()[1:] == ["{", '  "a": [', "    1,", '    "\\u001b"', "  ]", "}"]
    assert '\x1b[36m"a"\x1b[0m: [' in coloured
    assert len(line.splitlines()) == 1


def columns_of(text: str) -> list[str]:
    return text.replace("in flight", "in_flight").replace("timed out", "timed_out").split()


def test_eighty_columns_show_every_figure() -> None:
    one = channel("a-channel-with-a-long-name", depth=12_345, requeue_count=6, timeout_count=7, client_count=0,
                  in_flight_count=2500, deferred_count=99_999)  # fmt: skip
    there = replace(picture(1.0, one, messages=67_890_123), ages={("t", "a-channel-with-a-long-name"): 11_100.0})
    rates = {("t", ""): Rate(10_000.0, 10_000.0), ("t", "a-channel-with-a-long-name"): Rate(10_000.0, 0.0)}
    topics = screens.topics_table(there, rates, NARROW)
    channels = screens.channels_table(there, rates, NARROW)

    assert max(len(line) for line in topics + channels) <= 80
    assert "67.9M" in topics[1]
    for figure in ("10.0k", "12.3k", "2,500", "100.0k", "6", "7", "3h 5m"):
        assert figure in channels[1].replace("  ", " ")
    assert channels[2] == "  no consumer"
    assert columns_of(channels[0]) == ["topic", "channel", "in/s", "out/s", "wait", "fly", "defer", "req", "t/o",
                                       "oldest", "cons"]  # fmt: skip


def test_a_pipe_gets_whole_names_and_headings() -> None:
    one = channel("c" * 64, depth=1, requeue_count=0, timeout_count=0)
    lines = screens.channels_table(picture(1.0, one), None, Terminal())

    assert "c" * 64 in lines[1]
    assert "timed out" in lines[0]


def test_a_channel_that_a_pipeline_moves_has_a_consumer() -> None:
    one = channel(depth=5, client_count=0, requeue_count=0, timeout_count=0)
    moving = {"name": "lake", "channel": "c", "topics": ["t"], "state": "running", "updated_ms": 100_000}
    seen = picture(110.0, one, pipelines=(moving,))
    stale = replace(seen, at=10_000.0)

    assert "moved by Spark" in screens.channels_table(seen, None, Terminal())[1]
    assert "no consumer" in screens.channels_table(stale, None, Terminal())[1]
    assert "no consumer" not in judge(seen, check_limits(lag=Bounds(1))).findings[0].text
    assert "no consumer" in judge(stale, check_limits(lag=Bounds(1))).findings[-1].text


def test_a_pipeline_that_starts_moves_its_channel_already() -> None:
    one = channel(depth=5, client_count=0, requeue_count=0, timeout_count=0)
    starting = {"name": "lake", "channel": "c", "topics": [".*"], "state": "running", "updated_ms": 100_000,
                "batch_id": -1, "lag": None, "input_rate": 0.0}  # fmt: skip
    seen = picture(110.0, one, pipelines=(starting,))

    assert "moved by Spark" in screens.channels_table(seen, None, Terminal())[1]
    assert screens.pipelines_table(seen, Terminal())[1].split() == ["lake", "starting"]


def test_the_rows_of_topics_keep_their_places_while_all_fit() -> None:
    seen = picture(1.0, channel())
    seen = replace(seen, topics=dict.fromkeys(("a", "b", "c"), seen.topics["t"]))
    rates = {("a", ""): Rate(1.0, 0.0), ("b", ""): Rate(3.0, 0.0), ("c", ""): Rate(2.0, 0.0)}

    assert [line[0] for line in screens.topics_table(seen, rates, Terminal())[1:]] == ["a", "b", "c"]
    assert [line[0] for line in screens.topics_table(seen, rates, Terminal(), most=2)[1:]] == ["b", "c"]


def test_eighty_columns_show_pending_messages_with_whole_ids() -> None:
    entry = {"sequence": 4010, "id": "9a400000000004a0", "state": "in_flight", "holder": "nsq:demo-billing:59014",
             "idle": 893.7, "deadline": "2026-11-16T10:12:32.922618317Z", "deliveries": 12, "failures": 11, "size": 226,
             "error": "CardLocked: the card of c2137 is locked for a minute (demo.py:164 in bill)"}  # fmt: skip
    one = screens.pending_table([("127.0.0.1:4151", entry)], NARROW, now=1_794_823_949.0)
    two = screens.pending_table([("127.0.0.1:4151", entry), ("127.0.0.1:4251", entry)], Terminal(), now=0.0)

    assert max(len(line) for line in one) <= 80
    for text in ("9a400000000004a0", "in flight", "in 3.9s", "12", "11"):
        assert text in one[1]
    assert one[2].startswith("  CardLocked: the card of c2137 is locked")
    assert two[1].startswith("127.0.0.1:4151 ")


def test_dead_letters_and_the_groups_of_redis_clients_do_not_lack_a_consumer() -> None:
    ann = {"name": "ann", "oldest_seconds": 0.0, "in_flight_count": 0}
    group = channel(depth=5, client_count=0, requeue_count=0, timeout_count=0, consumers=[ann])
    letters = {**channel("dead", depth=5, client_count=0, requeue_count=0, timeout_count=0), "topic_name": "t.c.dead"}
    seen = picture(110.0, group)
    dead = replace(seen, topics={"t.c.dead": {**seen.topics["t"], "topic_name": "t.c.dead", "channels": [letters]}})

    assert "no consumer" not in screens.channels_table(seen, None, Terminal())[1]
    assert judge(seen, check_limits(lag=Bounds(1))).findings[0].text == "Channel t/c is 5 messages behind."
    assert "dead letters" in screens.channels_table(dead, None, Terminal())[1]
    assert judge(dead, check_limits(lag=Bounds(1))).findings[0].text == (
        "Channel t.c.dead/dead is 5 messages behind: dead letters that nobody has dealt with."
    )


def test_the_active_consumer_of_a_channel_is_named() -> None:
    def noted(**more: object) -> str:
        consumed = channel(client_count=2, requeue_count=0, timeout_count=0, **more)
        return "\n".join(screens.channels_table(picture(110.0, consumed), None, Terminal()))

    assert "active: nsq:a:1, nsq:b:2" in noted(active_consumers=["nsq:a:1", "nsq:b:2"])
    assert "active: nobody" in noted(active_consumers=[])
    assert "active" not in noted()


def test_a_pipeline_that_failed_or_fell_silent_is_critical_and_shown() -> None:
    def told(name: str, state: str, at: int, **more: object) -> dict[str, object]:
        return {"name": name, "channel": name, "topics": ["t"], "state": state, "updated_ms": at, "lag": 0, **more}

    pipelines = (told("bad", "failed", 99_000, error="no room"), told("dead", "running", 10_000),
                 told("good", "running", 99_000), told("over", "stopped", 10_000))  # fmt: skip
    seen = picture(100.0, channel(), pipelines=pipelines)
    report = judge(seen, check_limits())

    assert report.verdict.name == "CRITICAL"
    texts = [finding.text for finding in report.findings]
    assert texts == ["Pipeline bad failed: no room", "Pipeline dead has not reported for 1m 30s."]
    assert judge(seen, check_limits(), channel="bad", topic="t").findings[0].text == "Pipeline bad failed: no room"
    assert "Pipeline dead" not in judge(seen, check_limits(), channel="bad").text(check_limits())
    assert "bad: failed  dead: no report for 1m 30s  good: lag 0" in screens.one_line(seen, {})
    shown = "\n".join(screens.pipelines_table(seen, Terminal()))
    assert "no room" in shown
    assert "no report for" in shown


def test_a_line_is_cut_at_the_width_of_the_terminal_but_colours_are_not_counted() -> None:
    coloured = Terminal(width=6, colour=True)
    text = coloured.paint("abcd", "red") + coloured.paint("efgh", "bold")

    assert coloured.cut(text) == "\x1b[31mabcd\x1b[0m\x1b[1me…\x1b[0m"
    assert coloured.cut(coloured.paint("abcdef", "red")) == coloured.paint("abcdef", "red")


def test_lines_are_cleared_from_the_left_edge_as_the_echo_of_ctrl_c_moves_the_cursor() -> None:
    out = io.StringIO()
    screen = Screen(out, whole=False)
    screen.draw(["lapwing up", "nsqd"])
    screen.print("stopping")

    assert out.getvalue().endswith("nsqd\x1b[K\n\r\x1b[2A\x1b[Jstopping\n")


def test_a_cluster_without_topics_is_told_how_to_get_one() -> None:
    assert screens.whole_view(replace(picture(1.0), topics={}), {}, Terminal()) == [
        "no topics yet; `lapwing pub greetings hello` publishes a message"
    ]
    assert screens.whole_view(replace(picture(1.0), topics={}, failure="nobody answers"), {}, Terminal())[0] == "topics"


def test_a_bar_shows_how_far_it_is() -> None:
    assert bar("reading", 50, 100, 10.0, Terminal()).split() == [
        "reading", "━" * 24, "50%", "50", "of", "100,", "10s", "left"]  # fmt: skip
    assert bar("reading", 50, None, 10.0, Terminal()) == "reading  50"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal.of(Tty()).redraws
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal.of(Tty()).redraws
    assert not Terminal.of(io.StringIO()).redraws


@pytest.mark.parametrize("height", [23, 30, 60])
def test_a_screen_shows_as_many_channels_as_fit_and_the_urgent_ones_first(height: int) -> None:
    idle = [channel(f"a{number:02}") for number in range(30)]
    busy = [channel(f"b{number:02}", message_count=100) for number in range(3)]
    lost = [channel("z-lost", depth=7, client_count=0), channel("z-paused", depth=1, paused=True)]
    before = picture(1.0, *idle, *[{**each, "message_count": 0} for each in busy], *lost)
    seen = picture(2.0, *idle, *busy, *lost)
    lines = screens.whole_view(seen, rates_between(before, seen), NARROW, height=height, rows=100)
    head = next(number for number, line in enumerate(lines) if line.startswith("channels"))
    names = [line.split()[1] for line in lines[head + 2 :] if line.startswith("t ")]

    assert len(lines) <= height
    assert names[:5] == ["z-lost", "z-paused", "b00", "b01", "b02"]
    assert names[5:] == [f"a{number:02}" for number in range(len(names) - 5)]
    assert lines[head] == ("channels" if len(names) == 35 else f"channels: {len(names)} of 35")
    assert len(lines) >= height - 1 or len(names) == 35


def test_processes_of_a_session_count_together() -> None:
    groups = processes.by_session()
    seconds, size = processes.usage(groups[os.getsid(0)])

    assert os.getpid() in groups[os.getsid(0)]
    assert seconds >= processes.cpu_seconds(os.getpid()) * 0.9
    assert size >= processes.resident_bytes(os.getpid()) * 0.9
    assert processes.usage([2**22 + 1]) == (0.0, 0)


def test_a_system_without_proc_has_no_figures_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setattr(doctor, "_MEMORY", tmp_path / "proc" / "meminfo")

    assert processes.by_session() == {}
    assert processes.usage([os.getpid()]) == (0.0, 0)
    assert doctor.memory().level == "fine"


async def test_a_system_without_prctl_runs_programs_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervisor, "_prctl", None)
    http = DaemonHttp()
    programs = supervisor.Supervisor([[supervisor.Service("sleep", ("sleep", "60"))]], tmp_path, print, http)
    await programs.start(1, 20.0)
    states = [child.state for child in programs.children]
    await programs.stop()
    await http.aclose()

    assert states == [supervisor.State.RUNNING]
    assert [child.state for child in programs.children] == [supervisor.State.STOPPED]
