"""`Admin` and `SyncAdmin` on two real nsqds, by their addresses and through nsqlookupd."""

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from daemons import Daemon, nsqd, start_nsqlookupd, until
from lapwing import Admin, Producer, SyncAdmin
from lapwing.client.admin import LetterFilter, _Nodes, target
from lapwing.client.admin_results import Cancelled, Claimed, NodesFailed, Redrive, Results, Seek, SeveralNodes
from lapwing.client.cluster import Node
from lapwing.client.cluster_client import NoSuchNode, NothingThere, UpstreamFailed
from lapwing.client.http import DaemonHttp
from lapwing.errors import ConfigError

NUMBERS = count()


@dataclass
class Cluster:
    lookupd: Daemon
    nodes: tuple[Daemon, Daemon]

    @property
    def names(self) -> list[str]:
        return [node.http for node in self.nodes]

    async def topic(self, *bodies: bytes, **settings: object) -> str:
        """A new topic on both nodes with a channel c; the messages are on each of them."""
        name = f"t{next(NUMBERS)}"
        async with Admin(self.names) as admin:
            await admin.create(name, "c")
            if settings:
                await admin.change_settings(name, "c", **settings)
        for node in self.nodes:
            async with Producer(node.tcp) as producer:
                for body in bodies:
                    await producer.publish(name, body, defer=3600.0)
        return name

    async def dead(self, *bodies: bytes) -> str:
        """A new topic whose channel c has given up the messages, on each node."""
        name = await self.topic(*bodies)
        async with Admin(self.names) as admin:
            await admin.claim(name, "c", "reject", state="deferred", reason="KeyError: id")
            for _ in range(6000):  # a letter is there when the turn after the claim has ended
                topics = [topic for each in (await admin.dead_topics()).answers.values() for topic in each.topics]
                if [topic.letters for topic in topics if topic.topic == f"{name}.c.dead"] == [len(bodies)] * 2:
                    return name
                await asyncio.sleep(0.01)
        raise AssertionError(topics)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp}", "--broadcast-address=127.0.0.1")
        with nsqd(*flags, "--node-id=1") as one, nsqd(*flags, "--node-id=2") as two:
            with SyncAdmin(lookupd=lookupd.http) as admin:

                def both() -> bool:
                    try:
                        return len(admin.drain_status()) == 2
                    except NothingThere:
                        return False

                until(both, what="both nodes in discovery")
            yield Cluster(lookupd, (one, two))


async def test_a_topic_is_created_changed_looked_at_and_deleted_on_every_node(cluster: Cluster) -> None:
    name = await cluster.topic(b"one", max_attempts=3)
    async with Admin(cluster.names) as admin:
        await admin.pause(name, "c")
        stats = (await admin.stats()).topics[name]
        settings = await admin.settings(name, "c")
        pending = await admin.pending(name, "c", bodies=True)
        await admin.unpause(name, "c")
        counts = await admin.counts(name)
        seen: list[object] = []
        kept = await admin.delete(name, confirm=lambda plan: bool(seen.append(plan)))
        await admin.empty(name, "c")
        emptied = await admin.counts(name, "c")
        gone = await admin.delete(name)
        with pytest.raises(NothingThere, match=f"no nsqd has a topic '{name}'"):
            await admin.pause(name)

    assert list(settings.answers) == cluster.names
    assert [each.settings["max_attempts"].value for each in settings.answers.values()] == [3, 3]
    assert (stats.channels[0].paused, stats.channels[0].deferred) == (True, 2)
    assert sorted(stats.nodes) == sorted(cluster.names)
    assert [entry.document["body"] for each in pending.answers.values() for entry in each.entries] == ["one", "one"]
    assert all(each.there and (each.channels, each.waiting) == (1, 1) for each in counts.answers.values())
    assert (len(kept), seen) == (0, [counts])
    assert [each.waiting for each in emptied.answers.values()] == [0, 0]
    assert len(gone) == 2


async def test_a_topic_that_only_nsqlookupd_knows_is_registered_and_deleted(cluster: Cluster) -> None:
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        await admin.register("ahead", "c")
        known = (await admin.cluster.inactive_topics()).value
        with pytest.raises(NothingThere, match="no nsqd has a topic 'ahead'"):
            await admin.pause("ahead")
        gone = await admin.delete("ahead")
        after = (await admin.cluster.inactive_topics()).value
        with pytest.raises(NothingThere, match="no nsqlookupd knows a topic 'ahead'"):
            await admin.delete("ahead")

    assert (known["ahead"], len(gone)) == (["c"], 0)
    assert "ahead" not in after


async def test_a_topic_is_deleted_in_nsqlookupds_that_answer_and_the_others_are_named(cluster: Cluster) -> None:
    async with Admin(lookupd=[cluster.lookupd.http, "127.0.0.1:1"]) as admin:
        with pytest.raises(NodesFailed, match=r"127\.0\.0\.1:1"):
            await admin.register("half")
        with pytest.raises(NodesFailed, match=r"127\.0\.0\.1:1"):
            await admin.delete("half")
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        known = (await admin.cluster.inactive_topics()).value

    assert "half" not in known


async def test_a_tombstoned_topic_is_gone_from_one_node(cluster: Cluster) -> None:
    name = await cluster.topic()
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        await admin.tombstone(name, cluster.names[1])
        holders = await admin.counts(name)
        with pytest.raises(NoSuchNode, match="nowhere:1: expected one of"):
            await admin.tombstone(name, "nowhere:1")

    assert [each.there for each in holders.answers.values()] == [True]


async def test_pages_begin_behind_another_place_on_each_node(cluster: Cluster) -> None:
    name = await cluster.topic(b"one", b"two", b"three")
    first, second = cluster.names
    async with Admin(cluster.names) as admin:
        page = (await admin.pending(name, "c", count=2)).answers
        rest = (await admin.pending(name, "c", after={first: page[first].next or 0})).answers
        some = (await admin.claim(name, "c", "reject", state="deferred", limit=2)).answers
        all_ = (await admin.claim(name, "c", "reject", state="deferred")).answers

    assert [each.next is not None for each in page.values()] == [True, True]
    assert (len(rest[first].entries), len(rest[second].entries)) == (1, 3)
    assert ([each.more for each in some.values()], [each.more for each in all_.values()]) == ([True] * 2, [False] * 2)


async def test_settings_are_described_by_the_first_node_that_knows_them(cluster: Cluster) -> None:
    async with Admin(["127.0.0.1:1", *cluster.names]) as admin:
        described = await admin.describe_settings()

    assert "max_attempts" in [each["name"] for each in described["channel"]]


async def test_a_schedule_is_put_on_one_node_and_found_there(cluster: Cluster) -> None:
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        with pytest.raises(ConfigError, match="a schedule is named like a topic"):
            await admin.put_schedule("no/schedule", "t", "b", every="1h")
        with pytest.raises(NothingThere, match="no nsqd has a schedule 'nightly'"):
            await admin.run_schedule("nightly")
        (put,) = await admin.put_schedule("nightly", "reports", b"\xff", cron="0 9 * * *", zone="Europe/Berlin")
        (again,) = await admin.put_schedule("nightly", "reports", "new", cron="0 9 * * *", zone="Europe/Berlin")
        listed = (await admin.schedules()).answers
        (run,) = await admin.run_schedule("nightly")
        async with Admin(run.node) as there:  # nsqlookupd may not know the topic yet
            (counted,) = await there.counts("reports")
        (paused,) = await admin.pause_schedule("nightly")
        (resumed,) = await admin.resume_schedule("nightly")
        ((shown),) = (await admin.schedule("nightly", count=3)).answers.values()
        await admin.remove_schedule("nightly")
        after = (await admin.schedules()).answers

    assert put.node == again.node == run.node
    assert sum(len(found.schedules) for found in listed.values()) == 1
    assert counted.answer is not None
    assert counted.answer.waiting == 1
    assert paused.answer is not None
    assert resumed.answer is not None
    assert (paused.answer.state, resumed.answer.state) == ("paused", "active")
    assert (shown.when, len(shown.next), shown.document["body"]) == ("cron 0 9 * * * Europe/Berlin", 3, "new")
    assert not any(found.schedules for found in after.values())


async def test_a_schedule_is_not_put_while_a_node_that_may_have_it_is_gone(cluster: Cluster) -> None:
    gone, there = cluster.nodes
    os.kill(gone.pid, signal.SIGSTOP)
    try:
        http = DaemonHttp(request_timeout=0.5)
        admin = Admin([node.http for node in cluster.nodes], http=http)
        with pytest.raises(NodesFailed, match="nothing was changed"):
            await admin.put_schedule("s", "t", "b", every="1h")
        await http.aclose()
    finally:
        os.kill(gone.pid, signal.SIGCONT)
    async with Admin(there.http) as admin:
        assert not any(found.schedules for found in (await admin.schedules()).answers.values())


async def test_policies_are_set_listed_and_removed(cluster: Cluster) -> None:
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        with pytest.raises(ConfigError, match="a policy is named like a topic"):
            await admin.set_policy("no/policy", {})
        await admin.set_policy("odd#ephemeral", {"max_attempts": 7}, topics="none.*")
        await admin.remove_policy("odd#ephemeral")
        await admin.set_policy("retries", {"max_attempts": 7}, topics="none.*", priority=3)
        listed = await admin.policies()
        await admin.remove_policy("retries")
        with pytest.raises(NodesFailed, match=r"0 of 2 nodes did it; .*POLICY_NOT_FOUND"):
            await admin.remove_policy("retries")

    for found in listed.answers.values():
        (policy,) = found.policies
        assert (policy.name, policy.topics, policy.priority, policy.settings) == (
            "retries", "none.*", 3, {"max_attempts": 7})  # fmt: skip


async def test_a_seek_is_planned_confirmed_and_undone(cluster: Cluster) -> None:
    name = await cluster.topic()
    for node in cluster.nodes:
        async with Producer(node.tcp) as producer:
            await producer.publish_many(name, [b"x"] * 3)
    plans: list[Results[Seek]] = []
    async with Admin(cluster.names) as admin:
        dry = await admin.seek(name, "c", "latest", dry_run=True)
        refused = await admin.seek(name, "c", "latest", confirm=lambda plan: bool(plans.append(plan)))
        before = await admin.counts(name, "c")
        moved = await admin.seek(name, "c", "latest", confirm=lambda plan: True)
        after = await admin.counts(name, "c")
        await admin.seek(name, "c", "bookmark")
        undone = await admin.counts(name, "c")

    assert dry.answers == plans[0].answers == refused.answers
    assert [(each.skipped, each.dry_run) for each in moved.answers.values()] == [(3, False)] * 2
    assert [[each.waiting for each in found.answers.values()] for found in (before, after, undone)] == [
        [3, 3], [0, 0], [3, 3]]  # fmt: skip


async def test_pending_messages_are_claimed_by_id_and_by_state(cluster: Cluster) -> None:
    name = await cluster.topic(b"one", b"two")
    plans: list[Results[Claimed]] = []
    async with Admin(cluster.names) as admin:
        dry = await admin.claim(name, "c", "finish", state="deferred", limit=1, dry_run=True)
        first = (await admin.pending(name, "c", count=1)).answers[cluster.names[0]].entries[0]
        by_id = await admin.claim(name, "c", "finish", ids=[first.id])
        rest = await admin.claim(name, "c", "finish", state="deferred", confirm=lambda plan: not plans.append(plan))
        with pytest.raises(ConfigError, match="which messages: give ids, state, holder or min_idle"):
            await admin.claim(name, "c")

    assert [each.claimed for each in dry.answers.values()] == [1, 1]
    assert [each.ids for each in by_id.answers.values()] == [[first.id], []]
    assert first.id in by_id.answers[cluster.names[1]].refused
    assert [each.claimed for each in plans[0].answers.values()] == [1, 2]
    assert [each.claimed for each in rest.answers.values()] == [1, 2]


async def test_waiting_messages_are_cancelled_by_their_message_id(cluster: Cluster) -> None:
    name = await cluster.topic(b"one")
    plans: list[Results[Cancelled]] = []
    for number, node in enumerate(cluster.nodes):
        async with Producer(node.tcp) as producer:
            await producer.publish(name, b"job", headers={"message-id": f"job-{number}"})
    async with Admin(cluster.names) as admin:
        dry = await admin.cancel(name, "c", ["job-0", "job-1"], dry_run=True)
        kept = await admin.cancel(name, "c", ["job-0"], confirm=lambda plan: bool(plans.append(plan)))
        done = await admin.cancel(name, "c", ["job-0", "job-1"])
        with pytest.raises(ConfigError, match="which messages: give message_ids"):
            await admin.cancel(name, "c", [])

    assert [each.cancelled for each in dry.answers.values()] == [1, 1]
    assert [each.cancelled for each in plans[0].answers.values()] == [1, 0]
    assert kept is plans[0]
    assert [each.message_ids for each in done.answers.values()] == [["job-0"], ["job-1"]]


async def test_dead_letters_are_counted_read_redriven_within_a_limit_and_purged(cluster: Cluster) -> None:
    name = await cluster.dead(b'{"id": 1}', b'{"id": 2}')
    place, plans = f"{name}/c", list[Results[Redrive]]()
    async with Admin(cluster.names) as admin:
        groups = await admin.dead_groups(place)
        letters = await admin.dead_letters(place, LetterFilter(fields={"/id": 2}))
        topics = await admin.dead_topics()
        dry = await admin.redrive(place, limit=3, dry_run=True)
        done = await admin.redrive(f"{name}.c.dead", limit=3, confirm=lambda plan: not plans.append(plan))
        status = await admin.redrive_status(place)
        purged = await admin.purge(place)
        with pytest.raises(SeveralNodes) as several:
            await admin.dead_letters(f"{name}.c.dead", LetterFilter(sequences=[0]))
        only = await admin.only(cluster.names[1]).dead_letters(f"{name}.c.dead", LetterFilter(sequences=[0]))

    assert [(each.groups[0].letters, each.groups[0].error) for each in groups.answers.values()] == [
        (2, "KeyError: id")] * 2  # fmt: skip
    assert [[letter.document["body"] for letter in each.letters] for each in letters.answers.values()] == [
        ['{"id": 2}']] * 2  # fmt: skip
    assert all(f"{name}.c.dead" in [topic.topic for topic in each.topics] for each in topics.answers.values())
    assert [each.letters for each in dry.answers.values()] == [2, 1]
    assert [each.sample[0].error for each in plans[0].answers.values()] == ["KeyError: id"] * 2
    assert [(each.state, each.redriven) for each in done.answers.values()] == [("done", 2), ("done", 1)]
    assert [each.redriven for each in status.answers.values()] == [2, 1]
    assert [each.redriven for each in purged.answers.values()] == [0, 1]
    assert several.value.nodes == tuple(cluster.names)
    assert list(only.answers) == [cluster.names[1]]


async def test_a_slow_redrive_reports_its_progress_goes_on_without_us_and_is_cancelled(cluster: Cluster) -> None:
    name = await cluster.dead(b"one", b"two", b"three")
    seen: dict[str, set[str]] = {}
    async with Admin(cluster.names) as admin:
        running = await admin.redrive(
            f"{name}/c", rate="1/m", wait=0.1, progress=lambda node, task: seen.setdefault(node, set()).add(task.state)
        )
        cancelled = await admin.cancel_redrive(f"{name}/c")

    assert [each.state for each in running.answers.values()] == ["running", "running"]
    assert seen == {node: {"running"} for node in cluster.names}
    assert [each.state for each in cancelled.answers.values()] == ["cancelled", "cancelled"]


async def test_a_node_is_drained_and_taken_back(cluster: Cluster) -> None:
    async with Admin(lookupd=cluster.lookupd.http) as admin:
        drained = await admin.only(cluster.names[0]).drain("10m")
        status = await admin.drain_status()
        back = await admin.undrain()

    assert drained.answers[cluster.names[0]].state != "none"
    assert [status.answers[name].state == "none" for name in cluster.names] == [False, True]
    assert [each.state for each in back.answers.values()] == ["none", "none"]


async def test_a_node_that_hangs_or_refuses_is_named_and_the_others_do_it(cluster: Cluster) -> None:
    name = await cluster.topic()
    http = DaemonHttp(connect_timeout=0.5, request_timeout=0.5)
    admin = Admin(lookupd=cluster.lookupd.http, http=http)
    try:
        await admin.only(cluster.names[1]).delete(name, "c")
        with pytest.raises(NodesFailed) as refused:
            await admin.pause(name, "c")
        os.kill(cluster.nodes[1].pid, signal.SIGSTOP)
        try:
            with pytest.raises(NodesFailed) as hung:
                await admin.pause(name)
            with pytest.raises(NodesFailed, match="nothing was changed; "):
                await admin.seek(name, "c", "earliest", confirm=lambda plan: pytest.fail("asked, though a node hangs"))
            stats = await admin.stats()
        finally:
            os.kill(cluster.nodes[1].pid, signal.SIGCONT)
    finally:
        await http.aclose()

    assert str(refused.value) == f"1 of 2 nodes did it; {cluster.names[1]}: CHANNEL_NOT_FOUND"
    assert {result.node: result.done for result in refused.value.results} == dict(
        zip(cluster.names, (True, False), strict=True)
    )
    assert f"1 of 2 nodes did it; {cluster.names[1]}: no answer within 0.5 s" in str(hung.value)
    assert stats.nodes[cluster.names[0]] == ""
    assert "no answer" in stats.nodes[cluster.names[1]]


async def test_a_daemon_that_is_not_there_is_named(cluster: Cluster) -> None:
    name = await cluster.topic()
    async with Admin([cluster.names[0], "127.0.0.1:1"]) as admin:
        with pytest.raises(NodesFailed, match=r"it|127\.0\.0\.1:1") as partly:
            await admin.pause(name)
        with pytest.raises(NoSuchNode, match="nowhere:1: expected one of"):
            await admin.only("nowhere:1").pause(name)
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(UpstreamFailed, match="failed to query any nsqd"):
            await admin.pause(name)
    with pytest.raises(ConfigError, match="not both"):
        Admin("a:1", lookupd="b:2")

    assert partly.value.results.answers == {}
    assert [result.done for result in partly.value.results] == [True]
    assert "127.0.0.1:1" in partly.value.results.missing[0]


async def test_all_nodes_are_asked_at_the_same_time() -> None:
    nodes = [Node("", "n", 0, number, "") for number in range(1, 4)]
    begun = asyncio.Event()
    waiting: list[Node] = []

    async def change(node: Node) -> str:
        waiting.append(node)
        if len(waiting) == len(nodes):
            begun.set()
        async with asyncio.timeout(30):
            await begun.wait()
        return node.name

    async with Admin() as admin:
        results = await admin._each(_Nodes(nodes), change)
    assert [result.answer for result in results] == ["n:1", "n:2", "n:3"]


def test_the_blocking_twin_has_every_method_with_the_same_parameters() -> None:
    methods = {name for name, each in vars(Admin).items() if inspect.iscoroutinefunction(each) and name[0] != "_"}

    assert methods - {"close"} == {name for name, each in vars(SyncAdmin).items() if hasattr(each, "__wrapped__")}
    for name in methods - {"close"}:
        assert inspect.signature(getattr(SyncAdmin, name)) == inspect.signature(getattr(Admin, name))


@pytest.mark.parametrize(
    ("to", "meant"),
    [
        ("earliest", "earliest"), ("17", {"sequence": 17}), (17, {"sequence": 17}), ("2h", {"back": "2h"}),
        ("2026-11-15T09:30:00Z", {"time": "2026-11-15T09:30:00Z"}), ({"back": "1d"}, {"back": "1d"}),
    ],
)  # fmt: skip
def test_places_to_seek_to(to: str, meant: object) -> None:
    assert target(to) == meant


@pytest.mark.parametrize("to", ["soon", "30x", "-5m"])
def test_a_place_that_is_none_is_refused(to: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest, bookmark, a sequence"):
        target(to)
