"""Where a query stands, what it reads next, and when that is called a loss."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.spark.source import offsets as o
from lapwing.spark.source.offsets import EARLIEST, LATEST, HeldLog, LogPosition, LogRange, OffsetError

A, B = "a" * 16, "b" * 16


def held(first=0, next=10, log_id=A, **more):
    return HeldLog(log_id, first, next, **more)


# JSON


def test_equal_offsets_give_equal_text_whatever_order_they_were_made_in():
    one = {"t": {2: LogPosition(A, 1), 10: LogPosition(B, 2)}, "s": {}}
    other = {"s": {}, "t": {10: LogPosition(B, 2), 2: LogPosition(A, 1)}}

    assert json.dumps(o.to_json(one)) == json.dumps(o.to_json(other))


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z]{1,5}\Z"),
        st.dictionaries(st.integers(0, 1023), st.builds(LogPosition, st.just(A), st.integers(0, 2**54))),
    )
)
def test_offsets_survive_the_checkpoint(offsets):
    text = json.dumps(o.to_json(offsets))

    assert o.from_json(json.loads(text)) == offsets
    assert json.dumps(o.to_json(o.from_json(json.loads(text)))) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "object of topics"),
        ('{"t": 5}', "topic t: an object of nodes"),
        ('{"t": {"x": 5}}', "topic t: a node is a number, not 'x'"),
        ('{"t": {"7": -3}}', "topic t, node 7"),
        ('{"t": {"7": true}}', "topic t, node 7"),
        ('{"t": {"7": 1.5}}', "topic t, node 7"),
        ('{"t": {"7": {"log_id": "x"}}}', "topic t, node 7"),
        ('{"t": {"7": {"log_id": "x", "sequence": -1}}}', "topic t, node 7"),
    ],
)
def test_what_is_no_offset_is_refused_by_name(text, said):
    with pytest.raises(OffsetError, match=said):
        o.parse_requested(text)


def test_a_checkpoint_never_holds_relative_offsets():
    with pytest.raises(OffsetError, match="needs log_id and sequence"):
        o.from_json({"t": {"7": -1}})


# starting places


HOLDINGS = {"t": {7: held(3, 10, cursor=5, at=8), 9: held(0, 4, B)}}


def test_earliest_latest_and_the_cursor_of_a_channel():
    assert o.everywhere(HOLDINGS, EARLIEST) == {"t": {7: LogPosition(A, 3), 9: LogPosition(B, 0)}}
    assert o.everywhere(HOLDINGS, LATEST) == {"t": {7: LogPosition(A, 10), 9: LogPosition(B, 4)}}
    assert o.at_cursors(HOLDINGS) == {"t": {7: LogPosition(A, 5), 9: LogPosition(B, 0)}}


def test_a_time_after_the_last_message_is_an_error_unless_told_otherwise():
    with pytest.raises(OffsetError, match="topic t, node 9"):
        o.at_times(HOLDINGS, none_is_latest=False)
    assert o.at_times(HOLDINGS, none_is_latest=True) == {"t": {7: LogPosition(A, 8), 9: LogPosition(B, 4)}}


def test_offsets_by_hand_name_what_they_mean_and_the_rest_is_earliest():
    requested = o.parse_requested('{"t": {"7": -1}}')

    assert o.as_requested(requested, HOLDINGS) == {"t": {7: LogPosition(A, 10), 9: LogPosition(B, 0)}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"s": {"7": 1}}', "no offsets given for topic t"),
        ('{"t": {}, "s": {}}', "topic s, which is not read"),
        ('{"t": {"8": 1}}', "node 8 of topic t"),
        ('{"t": {"7": 11}}', "11 lies behind the end, 10"),
    ],
)
def test_offsets_by_hand_that_do_not_fit_are_refused(text, said):
    with pytest.raises(OffsetError, match=said):
        o.as_requested(o.parse_requested(text), HOLDINGS)


def test_a_position_with_its_log_is_kept_while_the_node_is_away():
    requested = o.parse_requested(f'{{"t": {{"3": {{"log_id": "{A}", "sequence": 5}}}}, "s": {{"3": 4}}}}')
    only_t = {"t": requested["t"]}

    kept = o.as_requested(only_t, HOLDINGS, keep_absent=True)
    assert kept["t"][3] == LogPosition(A, 5)
    assert set(kept["t"]) == {3, *HOLDINGS["t"]}
    with pytest.raises(o.OffsetError, match="node 3 of topic t, which does not have it"):
        o.as_requested(only_t, HOLDINGS)
    with pytest.raises(o.OffsetError, match="node 3 of topic s, which does not have it"):
        o.as_requested(requested, HOLDINGS, keep_absent=True)


def test_two_nodes_with_one_number_are_refused():
    with pytest.raises(OffsetError, match="h1:1 and h2:2 both call themselves node 7"):
        o.merge([("t", 7, "h1:1", held()), ("t", 7, "h2:2", held(log_id=B))])


def test_one_node_known_under_two_addresses_is_one_node():
    assert o.merge([("t", 7, "h1:1", held()), ("t", 7, "h2:1", held())]) == {"t": {7: held(address="h2:1")}}


# limits


@given(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 20)), st.integers(1, 10_000)), st.integers(1, 20_000))
def test_a_limit_is_used_up_and_never_exceeded(waiting, limit):
    shares = o.share(waiting, limit)

    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= shares[key] <= waiting[key] for key in waiting)
    if limit >= len(waiting):
        assert all(shares[key] >= 1 for key in waiting)


def test_a_limit_is_shared_in_proportion_to_the_backlog():
    assert o.share({("t", 1): 900, ("t", 2): 100}, 100) == {("t", 1): 90, ("t", 2): 10}


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7))
def test_a_limit_in_bytes_lets_through_at_least_one_message_and_no_more_than_fit(count, size, limit):
    holdings = {"t": {7: held(0, count, bytes=count * size)}}
    end = o.advance({"t": {7: LogPosition(A, 0)}}, holdings, max_bytes=limit)

    read = end["t"][7].sequence
    assert read == max(1, min(count, limit // size))


# advancing


def test_a_node_that_is_away_keeps_its_place():
    start = {"t": {7: LogPosition(A, 3), 9: LogPosition(B, 1)}}

    assert o.advance(start, {"t": {7: held()}}) == {"t": {7: LogPosition(A, 10), 9: LogPosition(B, 1)}}


def test_a_new_node_enters_at_its_earliest_message_and_is_read_from_the_next_batch_on():
    start = {"t": {7: LogPosition(A, 10)}}
    holdings = {"t": {7: held(), 9: held(2, 5, B)}}

    entered = o.advance(start, holdings)
    assert entered == {"t": {7: LogPosition(A, 10), 9: LogPosition(B, 2)}}
    assert o.plan(start, entered, holdings) == ([], [], [])

    read = o.advance(entered, holdings)
    assert o.plan(entered, read, holdings)[0] == [LogRange("t", 9, B, 2, 5)]


def test_nothing_new_gives_back_the_same_offsets():
    start = {"t": {7: LogPosition(A, 10)}}
    assert o.to_json(o.advance(start, {"t": {7: held()}})) == o.to_json(start)


def test_available_now_never_goes_past_its_target_nor_takes_in_new_nodes():
    target = {"t": {7: LogPosition(A, 6)}}
    end = o.advance({"t": {7: LogPosition(A, 2)}}, {"t": {7: held(), 9: held(0, 5, B)}}, target=target)

    assert end == target
    assert o.advance(end, {"t": {7: held(0, 99), 9: held(0, 5, B)}}, target=target) == target


# losses


def test_messages_deleted_by_retention_are_a_loss_and_the_rest_is_read():
    ranges, losses, away = o.plan({"t": {7: LogPosition(A, 1)}}, {"t": {7: LogPosition(A, 9)}}, {"t": {7: held(4, 10)}})

    assert ranges == [LogRange("t", 7, A, 4, 9)]
    assert "topic t, node 7" in losses[0].text
    assert "begins at 4" in losses[0].text
    assert away == []


def test_a_limit_counts_from_the_first_message_still_there():
    assert o.advance({"t": {7: LogPosition(A, 1)}}, {"t": {7: held(100, 200)}}, max_messages=5) == {
        "t": {7: LogPosition(A, 105)}
    }


def test_a_log_made_anew_is_a_loss_and_is_read_from_its_beginning():
    start = {"t": {7: LogPosition(A, 50)}}
    holdings = {"t": {7: held(0, 3, B)}}
    end = o.advance(start, holdings)

    assert end == {"t": {7: LogPosition(B, 3)}}
    ranges, losses, _ = o.plan(start, end, holdings)
    assert ranges == [LogRange("t", 7, B, 0, 3)]
    assert "new log" in losses[0].text


def test_a_log_made_anew_and_still_empty_is_noticed_at_once():
    start = {"t": {7: LogPosition(A, 50)}}
    holdings = {"t": {7: held(0, 0, B)}}
    end = o.advance(start, holdings)

    assert o.to_json(end) != o.to_json(start)
    assert len(o.plan(start, end, holdings)[1]) == 1


def test_a_log_that_lost_its_tail_is_noticed():
    start = {"t": {7: LogPosition(A, 50)}}
    holdings = {"t": {7: held(0, 40)}}
    end = o.advance(start, holdings)

    assert end == {"t": {7: LogPosition(A, 40)}}
    ranges, losses, _ = o.plan(start, end, holdings)
    assert (ranges, len(losses)) == ([], 1)


def test_a_replayed_batch_whose_log_is_gone_is_a_loss():
    ranges, losses, _ = o.plan({"t": {7: LogPosition(A, 1)}}, {"t": {7: LogPosition(A, 9)}}, {"t": {7: held(0, 20, B)}})

    assert ranges == []
    assert "the log is gone" in losses[0].text


def test_a_range_on_a_node_that_is_away_is_out_of_reach_not_lost():
    start, end = {"t": {7: LogPosition(A, 1)}}, {"t": {7: LogPosition(A, 9)}}

    assert o.plan(start, end, {}) == ([], [], [LogRange("t", 7, A, 1, 9)])


# tasks


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    st.integers(1, 40),
    st.none() | st.integers(1, 3000),
    st.none() | st.integers(100, 100_000),
)
def test_tasks_cover_every_message_once(counts, min_partitions, max_messages, max_bytes):
    ranges = [LogRange("t", node, A, 7, 7 + count) for node, count in enumerate(counts)]
    tasks = o.split(
        ranges, {("t", n): 100 for n in range(5)}, min_partitions=min_partitions, max_messages=max_messages,
        max_bytes=max_bytes,
    )

    for part in ranges:
        mine = [task for task in tasks if task.node == part.node]
        assert [mine[0].start, *(task.stop for task in mine)] == [*(task.start for task in mine), part.stop]
        sizes = {task.stop - task.start for task in mine}
        assert max(sizes) - min(sizes) <= 1
        if max_messages is not None:
            assert max(sizes) <= max_messages
        if max_bytes is not None:
            assert max(sizes) * 100 <= max_bytes or max(sizes) == 1
    assert len(tasks) >= min(min_partitions, sum(counts))


# whole histories


@st.composite
def histories(draw):
    step = st.sampled_from(["append", "append", "batch", "batch", "join", "leave", "back", "retain"])
    return draw(st.lists(st.tuples(step, st.integers(0, 2), st.integers(1, 9)), max_size=40))


@given(histories(), st.none() | st.integers(1, 10))
def test_every_message_is_read_once_and_in_order_while_nothing_is_lost(history, limit):
    """Nodes join, leave and come back; retention only deletes what was read, as the query's channel sees to."""
    logs = {0: held(0, 0, "log0")}
    here = {0}
    position = o.everywhere({"t": logs}, EARLIEST)
    read = dict.fromkeys(range(3), 0)

    def batch():
        nonlocal position
        present = {"t": {node: logs[node] for node in here}}
        end = o.advance(position, present, max_messages=limit)
        ranges, losses, away = o.plan(position, end, present)
        assert losses == []
        assert away == []
        assert limit is None or sum(part.stop - part.start for part in ranges) <= limit
        for part in ranges:
            assert part.start == read[part.node]
            read[part.node] = part.stop
        moved = o.to_json(end) != o.to_json(position)
        position = o.from_json(json.loads(json.dumps(o.to_json(end))))
        return moved

    for step, node, number in history:
        if step == "append" and node in here:
            logs[node] = replace(logs[node], next=logs[node].next + number)
        elif step == "join" and node not in logs:
            logs[node] = held(0, number, f"log{node}")
            here.add(node)
        elif step == "leave":
            here.discard(node)
        elif step == "back" and node in logs:
            here.add(node)
        elif step == "retain" and node in here:
            logs[node] = replace(logs[node], first=max(logs[node].first, read[node]))
        elif step == "batch":
            batch()
    here = set(logs)
    while batch():
        continue

    assert {node: read[node] for node in logs} == {node: log.next for node, log in logs.items()}


def test_logs_that_lack_what_was_asked_for_are_named():
    by_time = {7: replace(held(5, 6), at=5), 9: replace(held(5, 9), at=6)}
    holdings = {"t": {7: held(0, 10), 9: held(4, 10)}, "s": by_time}
    everything = ["topic s, node 7 begins at 5 (1 messages left)", "topic s, node 9 begins at 5 (4 messages left)",
                  "topic t, node 9 begins at 4 (6 messages left)"]  # fmt: skip

    assert o.cut_by_retention(holdings, "earliest", by_time=False) == everything
    assert o.cut_by_retention(holdings, "latest", by_time=False) == []
    assert o.cut_by_retention(holdings, "earliest", by_time=True) == everything[:1]
    requested = o.parse_requested('{"t": {"7": -2, "9": 5}, "s": {"9": -2, "7": 5}}')
    assert o.cut_by_retention(holdings, requested, by_time=False) == everything[1:2]


def ranges(*counts, address="a:1"):
    return [LogRange(f"t{number}", 1, A, 0, count, address) for number, count in enumerate(counts)]


def counts(groups):
    return sorted(sorted(part.stop - part.start for part in group) for group in groups)


def test_small_ranges_share_a_task_and_large_ones_do_not():
    sizes = {(f"t{number}", 1): 10 for number in range(300)}

    assert counts(o.pack(ranges(*[10] * 200), sizes, max_bytes=100_000)) == [[10] * 200]
    assert counts(o.pack(ranges(5, 20_000, 6), sizes, max_bytes=100_000)) == [[5, 6], [20_000]]
    assert counts(o.pack(ranges(6_000, 6_000, 4_000), sizes, max_bytes=100_000)) == [[4_000, 6_000], [6_000]]
    assert o.pack([], sizes, max_bytes=100) == []


def test_a_task_of_small_ranges_asks_one_broker():
    parts = ranges(1, 2, address="a:1") + ranges(3, 4, address="b:1")
    groups = o.pack(parts, {}, max_bytes=1000)

    assert sorted({part.address for part in group} for group in groups) == [{"a:1"}, {"b:1"}]


@given(
    st.lists(st.integers(1, 500), max_size=40),
    st.integers(1, 10),
    st.none() | st.integers(1, 600),
    st.integers(1, 2000),
)
def test_packing_keeps_every_range_and_every_limit(sizes, least, most, max_bytes):
    parts = o.split(ranges(*sizes), {}, max_messages=most)
    groups = o.pack(parts, {}, min_partitions=least, max_messages=most, max_bytes=max_bytes)

    assert sorted((part for group in groups for part in group), key=str) == sorted(parts, key=str)
    for group in groups:
        total = sum(part.stop - part.start for part in group)
        assert len(group) == 1 or (total <= max_bytes and (most is None or total <= most))
