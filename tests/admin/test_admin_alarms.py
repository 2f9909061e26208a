"""What is worth a look, in words, and what to do about it."""

import pytest

from lapwing.admin.history import History
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.channel import blocked_keys
from lapwing.client.alarms import AlarmLimits, alarms
from lapwing.client.cluster import Node, dead_topics, topics_of_stats
from lapwing.client.cluster_view import ClusterView, NodeState

NODE = Node("a", "10.0.0.1", 4150, 4151, "1.3.0")
NOW = 1_000_000.0


def channel(name="c", depth=0, *, clients=1, in_flight=0, paused=False, messages=None):
    return {
        "channel_name": name,
        "depth": depth,
        "in_flight_count": in_flight,
        "deferred_count": 0,
        "paused": paused,
        "message_count": depth if messages is None else messages,
        "client_count": clients,
    }


def topics(*channels, name="orders", depth=0, paused=False):
    raw = {"topic_name": name, "depth": depth, "message_count": depth, "channels": list(channels), "paused": paused}
    return topics_of_stats([(NODE, {"topics": [raw]})], now=NOW)


def found(cluster_view, history=None, limits=None):
    return alarms(cluster_view, history or History(), limits or AlarmLimits())


def only(cluster_view, history=None):
    [alarm] = found(cluster_view, history)
    return alarm


def test_a_healthy_cluster_has_none():
    cluster_view = ClusterView(
        at=NOW, nodes=(NodeState(NODE),), lookupds=(("l:4161", ""),), topics=topics(channel(depth=5))
    )

    assert found(cluster_view) == []


@pytest.mark.parametrize(
    ("state", "severity", "text", "advice"),
    [
        (NodeState(NODE, health="NOK - the remote log takes nothing: s3://b/n: timeout"), "error",
         "is unhealthy: NOK - the remote log takes nothing: s3://b/n: timeout", "consumers get what is replicated"),
        (NodeState(NODE, health="NOK - s3://b/n: taken over by b:4150 (process 7)"), "error",
         "is unhealthy: NOK - s3://b/n: taken over by b:4150", "Another process has its remote log, and this one ends"),
        (NodeState(NODE, remote_lag=12.3), "warning", "its remote log is 12 s behind", "Publishers wait for that long"),
    ],
)  # fmt: skip
def test_a_remote_log_that_is_away_taken_over_or_behind_is_one(state, severity, text, advice):
    alarm = only(ClusterView(at=NOW, nodes=(state,), lookupds=(("l:4161", ""),)))

    assert (alarm.severity, alarm.about) == (severity, NODE.name)
    assert text in alarm.text
    assert advice in alarm.advice


def test_a_remote_log_that_is_a_moment_behind_is_none():
    assert found(ClusterView(at=NOW, nodes=(NodeState(NODE, remote_lag=0.2),), lookupds=(("l:4161", ""),))) == []


def test_a_topic_without_a_channel_buffers():
    alarm = only(ClusterView(at=NOW, topics=topics(depth=12430)))

    assert alarm.text == "Topic orders has no channel: 12,430 messages are buffering."
    assert "Create a channel" in alarm.advice
    assert (alarm.severity, PageLinks().alarm(alarm)) == ("warning", "/topics/orders")


def test_a_topic_without_a_channel_and_without_messages_is_fine():
    assert found(ClusterView(at=NOW, topics=topics())) == []


def test_lapwings_own_topics_need_no_channel_and_no_consumer():
    for own in (topics(name="_lapwing_flow", depth=9), topics(channel(depth=9, clients=0), name="_lapwing_stats")):
        assert found(ClusterView(at=NOW, topics=own)) == []


def test_a_channel_without_consumers_waits():
    alarm = only(ClusterView(at=NOW, topics=topics(channel(depth=1, clients=0))))

    assert alarm.text == "Channel orders/c has no consumers: 1 message is waiting."
    assert PageLinks().alarm(alarm) == "/topics/orders/c"


def test_a_channel_without_consumers_is_no_alarm_while_the_cluster_starts():
    history = History()
    waiting = topics(channel(depth=1, clients=0))
    history.sample(NOW, waiting)

    assert found(ClusterView(at=NOW + 29, topics=waiting), history) == []
    [alarm] = found(ClusterView(at=NOW + 30, topics=waiting), history)
    assert alarm.text == "Channel orders/c has no consumers: 1 message is waiting."


def test_a_channel_that_a_query_moves_needs_no_consumer_until_it_stands_still():
    history = History()
    for second in range(0, 60, 10):  # ten come and ten go, and 50 always wait
        history.sample(NOW + second, topics(channel("lake", depth=50, clients=0, messages=100 + second)))
    last = topics(channel("lake", depth=50, clients=0, messages=150))

    assert found(ClusterView(at=NOW + 60, topics=last), history) == []
    [alarm] = found(ClusterView(at=NOW + 180, topics=last), history)
    assert alarm.text == "Channel orders/lake has no consumers: 50 messages are waiting."


def test_names_in_links_are_escaped():
    alarm = only(ClusterView(at=NOW, topics=topics(channel("x#ephemeral", depth=1, clients=0))))

    assert PageLinks().alarm(alarm) == "/topics/orders/x%23ephemeral"


def test_paused_is_worth_knowing_and_hides_what_follows_from_it():
    alarm = only(ClusterView(at=NOW, topics=topics(channel(depth=9, clients=0, paused=True))))

    assert (alarm.severity, alarm.text) == ("info", "Channel orders/c is paused, 9 messages waiting.")


def test_a_paused_topic_is_told():
    assert only(ClusterView(at=NOW, topics=topics(channel(), paused=True))).text == "Topic orders is paused."


def test_an_unreachable_node_comes_before_everything():
    cluster_view = ClusterView(at=NOW, nodes=(NodeState(NODE, error="connection refused"),), topics=topics(depth=1))

    first, second = found(cluster_view)
    assert (first.severity, first.text) == ("error", "nsqd 10.0.0.1:4151 does not answer: connection refused")
    assert second.severity == "warning"


def test_an_unreachable_node_is_told_with_how_long_and_why():
    state = NodeState(NODE, error="connection refused", lost_since=NOW - 125)

    assert only(ClusterView(at=NOW, nodes=(state,))).text == (
        "nsqd 10.0.0.1:4151 does not answer for 2m 5s: connection refused"
    )


def test_a_cluster_without_a_node_is_not_well():
    alarm = only(ClusterView(at=NOW, lookupds=(("l:4161", ""),)))

    assert (alarm.severity, alarm.text) == ("error", "No nsqd is known: nsqlookupd names none.")


def test_a_node_that_left_is_told_with_how_long_ago():
    alarm = only(ClusterView(at=NOW, nodes=(NodeState(NODE, gone_since=NOW - 125),)))

    assert alarm.text == "nsqd 10.0.0.1:4151 left nsqlookupd 2m 5s ago."


def test_a_disk_that_refuses_is_told_in_the_nodes_own_words():
    alarm = only(ClusterView(at=NOW, nodes=(NodeState(NODE, health="NOK - no space left on device"),)))

    assert "NOK - no space left on device" in alarm.text
    assert "Free space" in alarm.advice


def test_an_nsqlookupd_that_does_not_answer():
    assert "l:4161" in only(ClusterView(at=NOW, lookupds=(("l:4161", "timed out"),))).text


def grown(depths, *, step=30.0, in_flight=0, messages=None, each=60):
    history = History()
    begin = NOW - step * (len(depths) - 1)
    for index, depth in enumerate(depths):
        count = each * index if messages is None else messages
        history.sample(begin + step * index, topics(channel(depth=depth, messages=count, in_flight=in_flight)))
    return history, topics(channel(depth=depths[-1], messages=0, in_flight=in_flight))


def test_a_channel_that_grows_steadily_is_told_with_by_how_much():
    history, now = grown([0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500])
    alarm = only(ClusterView(at=NOW, topics=now), history)

    assert alarm.text == "Channel orders/c grows: 500 more than 5m ago, 500 messages waiting."


def test_a_channel_that_grows_and_keeps_up_is_no_alarm():
    """500 messages are a second and a half of what comes: nobody waits."""
    history, now = grown([0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500], each=10_000)

    assert found(ClusterView(at=NOW, topics=now), history) == []


def test_a_small_channel_may_grow():
    history, now = grown([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])

    assert found(ClusterView(at=NOW, topics=now), history) == []


def test_an_old_message_is_told_with_its_age():
    history, now = grown([90] * 41, messages=90)
    alarm = only(ClusterView(at=NOW, topics=now), history)

    assert alarm.text == "The oldest message of orders/c has waited more than 20m."


def test_consumers_that_hold_and_finish_nothing_are_stuck():
    history, now = grown([10] * 12, messages=100, in_flight=7)
    alarm = only(ClusterView(at=NOW, topics=now), history)

    assert alarm.text == "Consumers of orders/c hold 7 messages and have finished none for 2m."


# ---- pipelines ----


def pipeline(**more):
    return {
        "name": "lake",
        "kind": "archive",
        "topics": ["orders"],
        "channel": "lake",
        "state": "running",
        "updated_ms": int(NOW * 1000),
        **more,
    }


def test_the_channel_of_a_living_query_needs_no_consumer():
    cluster_view = ClusterView(at=NOW, topics=topics(channel("lake", depth=50, clients=0)), pipelines=(pipeline(),))

    assert found(cluster_view) == []


def test_a_silent_query_is_named_with_the_channel_it_leaves():
    silent = pipeline(updated_ms=int((NOW - 300) * 1000))
    cluster_view = ClusterView(at=NOW, topics=topics(channel("lake", depth=50, clients=0)), pipelines=(silent,))

    texts = [alarm.text for alarm in found(cluster_view)]
    assert (
        "Pipeline lake has not reported for 5m. It leaves channel orders/lake behind, which keeps messages on disk."
        in texts
    )
    assert "Channel orders/lake has no consumers: 50 messages are waiting." in texts


def test_a_failed_query_is_told_by_the_first_line_of_its_error():
    failed = pipeline(state="failed", error="checkpoint is gone\n  at line 3\n  at line 4")
    alarm = only(ClusterView(at=NOW, pipelines=(failed,)))

    assert (alarm.severity, alarm.text) == ("error", "Pipeline lake failed: checkpoint is gone")


def test_a_query_that_was_stopped_on_purpose_is_no_alarm():
    stopped = pipeline(state="stopped", updated_ms=0)

    assert found(ClusterView(at=NOW, pipelines=(stopped,))) == []


def test_a_named_consumer_that_holds_messages_for_long_is_an_alarm():
    held = {"name": "worker-1", "in_flight_count": 3, "idle_seconds": 2000.0, "oldest_seconds": 1900.0}
    young = {"name": "worker-2", "in_flight_count": 9, "idle_seconds": 1.0, "oldest_seconds": 10.0}
    alarm = only(ClusterView(at=NOW, topics=topics(channel(in_flight=12, clients=0) | {"consumers": [held, young]})))

    assert alarm.text == "Consumer worker-1 of orders/c holds 3 messages, the oldest for 31m 40s."
    assert "XAUTOCLAIM" in alarm.advice


def test_a_channel_whose_named_consumers_ask_has_consumers():
    asking = {"name": "worker-1", "in_flight_count": 0, "idle_seconds": 1.0, "oldest_seconds": 0.0}
    busy = topics(channel(depth=7, clients=0) | {"consumers": [asking]})

    assert found(ClusterView(at=NOW, topics=busy)) == []


def by_key(seconds: float) -> dict[str, object]:
    return {
        "keys_blocked": 3, "waiting_for_key": 40, "oldest_blocked_key": {"key": "customer-7", "seconds": seconds},
    }  # fmt: skip


def test_a_key_that_is_blocked_for_long_is_an_alarm():
    alarm = only(ClusterView(at=NOW, topics=topics(channel(depth=40) | by_key(400.0))))

    assert alarm.text == (
        "Key customer-7 of orders/c is blocked for 6m 40s on 10.0.0.1:4151, and 2 other keys; 40 messages wait for "
        "their keys."
    )
    assert PageLinks().alarm(alarm) == "/topics/orders/c"
    assert found(ClusterView(at=NOW, topics=topics(channel(depth=40) | by_key(10.0)))) == []


def test_the_page_of_a_channel_names_the_key_that_is_blocked_for_longest():
    shown = topics(channel(depth=40) | by_key(10.0))["orders"]["channels"][0]

    assert blocked_keys(shown) == (
        "3 keys blocked: 40 messages wait for their keys. customer-7 is blocked for longest, 10s."
    )
    assert blocked_keys(topics(channel(depth=40))["orders"]["channels"][0]) == ""


def dead(letters: int, redrive: dict[str, object] | None = None):
    return dead_topics({NODE.name: {"topics": [{"topic": "orders.c.dead", "letters": letters, "redrive": redrive}]}})


def test_dead_letters_wait_for_somebody_and_need_no_consumer():
    cluster_view = ClusterView(at=NOW, topics=topics(channel("dead", depth=3, clients=0), name="orders.c.dead"))

    [alarm] = alarms(cluster_view, History(), AlarmLimits(), dead(3))
    assert alarm.text == "3 dead letters wait in orders.c.dead."
    assert (alarm.severity, PageLinks().alarm(alarm)) == ("info", "/dead?topic=orders.c.dead")
    assert alarms(cluster_view, History(), AlarmLimits(), dead(0)) == []
    assert alarms(cluster_view, History(), AlarmLimits(), {}) == []  # a new topic, before its letters are known


def test_dead_letters_that_nobody_deals_with_become_a_warning():
    history, letters = History(), topics(channel("dead", depth=3, clients=0), name="orders.c.dead")
    for at in range(0, 301, 10):
        history.sample(NOW + at, letters)

    [fresh] = alarms(ClusterView(at=NOW + 290, topics=letters), history, AlarmLimits(), dead(3))
    [late] = alarms(ClusterView(at=NOW + 300, topics=letters), history, AlarmLimits(), dead(3))

    assert (fresh.severity, late.severity) == ("info", "warning")


def test_dead_letters_that_are_dealt_with_in_time_stay_a_note():
    history = History()
    for at in range(0, 1800, 10):  # a letter every minute, and none is left for more than 3
        waiting = topics(
            channel("dead", depth=min(3, 1 + at // 60), clients=0, messages=1 + at // 60), name="orders.c.dead"
        )
        history.sample(NOW + at, waiting)

    [alarm] = alarms(ClusterView(at=NOW + 1790, topics=waiting), history, AlarmLimits(), dead(3))

    assert alarm.severity == "info"


def test_a_redrive_that_failed_is_an_alarm_and_one_that_runs_is_none():
    cluster_view = ClusterView(at=NOW, topics=topics(channel("dead", depth=3, clients=0), name="orders.c.dead"))
    task = {"state": "failed", "error": "the disk is full"}

    texts = [alarm.text for alarm in alarms(cluster_view, History(), AlarmLimits(), dead(3, task))]
    assert "The redrive of orders.c.dead on 10.0.0.1:4151 failed: the disk is full" in texts
    assert alarms(cluster_view, History(), AlarmLimits(), dead(3, {"state": "running", "error": ""})) == []
