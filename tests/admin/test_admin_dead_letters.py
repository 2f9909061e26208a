"""Dead letters and pending messages of several nodes as one list: pure."""

import pytest

from lapwing.admin.dead_letters import letter_filter, merge_groups, merge_letters, parse_field
from lapwing.admin.pages.dead_actions import parse_limit
from lapwing.admin.pages.dead_rows import TASK_COLUMNS, letter_message
from lapwing.admin.pages.pending import claim_members, claimed, entry_row
from lapwing.admin.pages.table_rows import row_of
from lapwing.client.admin_results import (
    Claimed,
    DeadGroups,
    DeadLetter,
    DeadLetters,
    NodeResult,
    PendingMessage,
    Results,
)
from lapwing.client.cluster import dead_topics
from lapwing.errors import ConfigError


def letter(sequence: int, at: str = "2026-11-15T09:30:00Z", **more: object) -> dict[str, object]:
    known = {"topic": "orders", "channel": "billing", "reason": "attempts", "error": "KeyError", "failures": 3}
    times = {"at": at, "published": at, "first_failed": None, "consumer": "nsq:a:1", "id": "1f", "deliveries": 3}
    rest = {"count": 1, "headers": {}, "held": False, "size": 2, "body": "{}"}
    return {"sequence": sequence, **known, **times, **rest, **more}


def task(**more: object) -> dict[str, object]:
    about = {"to": "channel", "filter": {}, "rate": "", "started": "2026-11-15T09:30:00Z", "state": "running"}
    return {**about, "redriven": 5, "left": 7, "skipped": {}, "error": "", **more}


def test_dead_topics_are_summed_over_nodes_with_their_redrives():
    found = dead_topics(
        {
            "a": {"topics": [{"topic": "t.dead", "letters": 3, "redrive": None}]},
            "b": {"topics": [{"topic": "t.dead", "letters": 2, "redrive": task()}]},
        }
    )

    assert found["t.dead"].letters == 5
    assert found["t.dead"].by_node == {"a": 3, "b": 2}
    assert list(found["t.dead"].running) == ["b"]


def test_groups_of_nodes_are_joined_and_the_largest_comes_first():
    same = {"topic": "orders", "channel": "billing", "reason": "attempts"}
    one = [
        {**same, "error": "x", "letters": 2, "first": "2", "last": "4", "sample": 1},
        {**same, "error": "y", "letters": 3, "first": "1", "last": "1", "sample": 0},
    ]
    two = [{**same, "error": "x", "letters": 5, "first": "3", "last": "9", "sample": 8}]
    groups, others = merge_groups(
        {"a": DeadGroups.of({"groups": one, "others": 4}), "b": DeadGroups.of({"groups": two, "others": 0})}
    )

    assert [(each["error"], each["letters"], each["first"], each["last"], each["sample"]) for each in groups] == [
        ("x", 7, "2", "9", "a|1"),
        ("y", 3, "1", "1", "a|0"),
    ]
    assert others == 4


def test_a_page_of_letters_ends_where_the_next_begins_on_each_node():
    given = {
        "a": [letter(4, "2026-11-15T09:30:01Z"), letter(5, "2026-11-15T09:30:04Z")],
        "b": [letter(9, "2026-11-15T09:30:02Z")],
    }
    answers = {node: DeadLetters(tuple(map(DeadLetter.of, each)), document=each) for node, each in given.items()}
    page = merge_letters(answers, after={"b": 7}, limit=2)

    assert [(each["in"], each["sequence"]) for each in page.letters] == [("a", 4), ("b", 9)]
    assert page.edges == {"a": 4, "b": 9}
    assert not page.complete
    assert merge_letters(answers, after={}, limit=3).complete


def test_a_filter_is_written_as_nsqd_expects_it():
    given = {"source": "orders", "reason": "attempts", "field": "/customer/id=17", "since": "2h"}
    wanted = letter_filter(given)

    assert wanted.document() == {
        "topic": "orders",
        "reason": "attempts",
        "fields": {"/customer/id": 17},
        "since": "2h",
    }
    assert wanted.params() == {
        "source": "orders",
        "reason": "attempts",
        "fields": '{"/customer/id": 17}',
        "since": "2h",
    }
    assert parse_field("/name= ann ") == {"/name": "ann"}


@pytest.mark.parametrize("text", ["customer=17", "/customer", ""])
def test_a_field_that_is_none_is_answered_with_an_example(text):
    with pytest.raises(ValueError, match="/customer/id=17"):
        parse_field(text)


def test_a_letter_is_shown_with_what_is_known_of_it():
    shown = letter_message({**letter(4, count=2), "in": "a"})

    assert ["Died here", "2 times"] in shown["facts"]
    assert "First failed" not in [name for name, _ in shown["facts"]]
    assert (shown["error"], shown["body"]) == ("KeyError", "{}")


def test_a_redrive_is_shown_with_what_it_skipped():
    shown = {**task(skipped={"the channel is gone": 2}, state="done", rate="5/s"), "node": "a"}
    row = row_of(TASK_COLUMNS, "a", shown)

    assert row[2:8] == ["redrive to the channel", [["done", "good", "5 done, 7 left"]], 5, 2, None, "5/s"]
    assert row[-1] == "2 skipped: the channel is gone"


def test_a_claim_names_its_messages_or_is_refused():
    assert claim_members("in_flight", " worker ", "5m", "10") == {
        "state": "in_flight",
        "limit": 10,
        "holder": "worker",
        "min_idle": 300.0,
    }
    assert claim_members("deferred", "", "", "100") == {"state": "deferred", "limit": 100}
    for limit, idle in (("0", ""), ("many", ""), ("10001", ""), ("1", "soon")):
        with pytest.raises((ValueError, ConfigError), match=r"1 to 10,000|write numbers with units"):
            claim_members("in_flight", "", idle, limit)
    with pytest.raises(ValueError, match="whole number"):
        parse_limit("some")


def test_a_claim_reports_how_many_it_took_and_whether_there_are_more():
    took = NodeResult("a", Claimed(100, more=True, document={}))
    none = NodeResult("b", Claimed(0, document={}))

    assert claimed(Results((took, none)), "Finished") == "Finished 100 messages; there are more"
    assert claimed(Results((none,)), "Finished") == "Nothing was changed: no message fits"


def test_a_pending_message_offers_what_fits_its_state():
    about = {"sequence": 4, "id": "1f", "state": "deferred", "holder": None, "idle": None}
    about |= {"deadline": "2026-11-15T09:30:00Z", "deliveries": 0, "failures": 0, "error": None, "size": 5}
    entry = PendingMessage.of(about)

    deferred = entry_row(entry, "a", "/nodes/a", "deferred", may_change=True)
    assert [label for _, label, _ in deferred[-1]] == ["Deliver now …", "Cancel the message …", "Reject …", "Defer …"]
    ready = entry_row(entry, "a", "/nodes/a", "ready", may_change=True)
    assert [name for name, _, _ in ready[-1]] == ["finish", "reject", "defer"]
    assert entry_row(entry, "a", "/nodes/a", "ready", may_change=False)[-1] == []
