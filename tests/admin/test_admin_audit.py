"""The audits of the nodes, merged with that of nsqadmin."""

from typing import Any

from lapwing.admin.audit import AuditEntry, in_words, merged


def change(**about: Any) -> dict[str, Any]:
    entry = {
        "at_ms": 5000, "method": "POST", "path": "/topic/pause", "topic": "t", "channel": "", "detail": "",
        "user": "bob@laptop", "address": "10.0.0.2:77", "program": "lapwing", "change": "c1", "error": "",
    }  # fmt: skip
    return entry | about


def test_a_change_of_one_command_on_several_nodes_is_one_entry():
    (entry,) = merged((), {"a": {"changes": [change()]}, "b": {"changes": [change(at_ms=4000)]}})

    assert (entry.at, entry.node, entry.user, entry.address) == (4.0, "a, b", "bob@laptop", "10.0.0.2")
    assert (entry.action, entry.topic, entry.program, entry.outcome) == ("pause topic", "t", "lapwing", "")


def test_a_node_that_failed_is_named():
    (entry,) = merged((), {"a": {"changes": [change()]}, "b": {"changes": [change(error="503 DISK_FULL")]}})

    assert entry.outcome == "WARNING: b: 503 DISK_FULL"


def test_changes_of_this_nsqadmin_are_not_shown_twice_and_all_are_in_order():
    own = AuditEntry(6.0, "ann", "10.0.0.1", "pause_topic", "t", change="c1")
    entries = merged([own], {"a": {"changes": [change(at_ms=7000, change=""), change(), change(at_ms=1, change="")]}})

    assert [(entry.at, entry.user) for entry in entries] == [(7.0, "bob@laptop"), (6.0, "ann"), (0.001, "bob@laptop")]


def test_settings_policies_and_options_are_named_in_words():
    changes = [
        change(method="PATCH", path="/channel/settings", detail='{"max_attempts": 3, "keep": null}', change="1"),
        change(method="PUT", path="/policies/slow", detail='{"topics": "a.*"}', change="2"),
        change(method="PUT", path="/config/log_level", detail="debug", change="3"),
        change(method="POST", path="/schedules/run/nightly", detail="", change="5"),
        change(path="/channel/seek", detail='{"topic": "t", "channel": "c", "to": {"back": "2h"}}', change="4"),
    ]

    assert [(entry.action, entry.detail) for entry in merged((), {"a": {"changes": changes}})] == [
        ("change settings", "max_attempts 3, keep none"),
        ("put policy", "slow topics a.*"),
        ("set option", "log_level debug"),
        ("run schedule", "nightly"),
        ("seek channel", "to back 2h"),
    ]
    assert in_words([True, 1.5, {"a": [1, 2]}]) == "yes 1.5 a 1 2"
