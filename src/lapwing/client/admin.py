"""Administer a cluster: one nsqd, several, or those that nsqlookupd names. All nodes are asked at the same time."""

import asyncio
import base64
import copy
import dataclasses
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from lapwing import durations, names
from lapwing.client.admin_results import (
    Cancelled,
    Claimed,
    ClusterStats,
    Counts,
    DeadGroups,
    DeadLetter,
    DeadLetters,
    DeadTopics,
    Drain,
    NodeResult,
    NodesFailed,
    Pending,
    Policies,
    Policy,
    Redrive,
    Results,
    Schedule,
    Schedules,
    Seek,
    Settings,
    SeveralNodes,
    TopicStats,
)
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_client import ClusterClient, Found, NoSuchNode, NothingThere, UpstreamFailed
from lapwing.client.http import NONSENSE, CallFailed, DaemonHttp
from lapwing.errors import ConfigError

T = TypeVar("T")
Place = str | int | Mapping[str, Any]
After = int | Mapping[str, int]
Confirm = Callable[[Results[T]], bool]
Progress = Callable[[str, Redrive], None]

_NSQD: Final = "127.0.0.1:4151"
_WORDS: Final = ("earliest", "latest", "bookmark")
_PAGE: Final = 10_000  # pending messages of one request
_LETTERS: Final = 1000  # dead letters of one request
_PATIENCE: Final = 120.0  # s
_EVERY: Final = 0.25  # s between two looks at a redrive
_STATS: Final = {"format": "json", "include_clients": "false", "include_mem": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """A condition for dead letters; all of them if nothing is given."""

    topic: str = ""  # that they come from
    channel: str = ""  # that gave them up
    reason: str = ""  # attempts, rejected, expired or overflow
    error: str = ""  # contained in the error
    text: str = ""  # contained in the body
    pattern: str = ""  # found in the body: a regular expression as RE2 knows them
    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON pointer -> value in the body
    since: str = ""  # given up since then: a time, or a duration (ago)
    until: str = ""
    sequences: Sequence[int] = ()  # in the dead-letter topic of one node

    def document(self) -> Json:
        """Return the filter as nsqd takes it."""
        found = {name: getattr(self, name) for name in LetterFilter.__slots__ if getattr(self, name)}
        return {name: list(each) if name == "sequences" else each for name, each in found.items()}

    def params(self) -> dict[str, str]:
        """Return the filter as parameters of `/dead/letters`, where `topic` is the dead-letter topic."""
        found = {key: each if isinstance(each, str) else json.dumps(each) for key, each in self.document().items()}
        return {"source" if key == "topic" else key: each for key, each in found.items()}


_EVERYTHING: Final = LetterFilter()


@dataclass(slots=True)
class _Nodes:
    """The nodes that a request is for."""

    nodes: list[Node]
    missing: list[str] = field(default_factory=list)
    failed: list[NodeResult[Any]] = field(default_factory=list)  # that may be meant, and refused the question
    dead_topics: dict[str, str] = field(default_factory=dict)  # by node


class Admin:
    """The administration of a cluster.

        async with Admin("127.0.0.1:4151") as admin:           # HTTP addresses of nsqds
            await admin.pause("orders", "billing")

    Methods that concern several nodes return `Results`, with the answer of each. If a node refuses or does not answer
    they raise `NodesFailed`, which names it and has the results of the others.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        auth_secret: str = "",
        http: DaemonHttp | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        """`nsqd` and `lookupd` are HTTP addresses, one kind of them; `http` is a client to share.

        `patience` is for answers for which a node may have to read all its dead letters or pending messages, seconds.
        """
        nsqds, lookupds = _addresses(nsqd), _addresses(lookupd)
        if nsqds and lookupds:
            raise ConfigError("give nsqd addresses or nsqlookupd addresses, not both")
        self._own = http is None
        try:
            self._http = http or DaemonHttp(auth_secret=auth_secret)
        except ValueError as error:
            raise ConfigError(f"auth_secret: {error}") from error
        self.cluster = ClusterClient(self._http, nsqds=nsqds or ([] if lookupds else [_NSQD]), lookupds=lookupds)
        self._patience = patience
        self._node = ""
        self._known: list[Node] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._own:
            await self._http.aclose()

    def only(self, node: str) -> Self:
        """Return the administration of one node, named by its HTTP address; an empty name means all.

        It shares the connections, and ends with this object.
        """
        limited = copy.copy(self)
        limited._node, limited._own = node, False
        return limited

    def at(self, nodes: Iterable[Node]) -> Self:
        """Return the administration of these nodes alone, whoever has a topic; nobody is asked which they are.

        It shares the connections, and ends with this object.
        """
        limited = copy.copy(self)
        limited._known, limited._own = list(nodes), False
        return limited

    # ---- looking ----

    async def stats(self) -> ClusterStats:
        """Return all topics with their channels. A daemon that does not answer is one of the `errors`."""
        view = await self.cluster.look()
        if not view.reachable:
            raise UpstreamFailed("no nsqd answered: ", view.errors or ["nsqlookupd knows no nsqd"])
        nodes = {state.node.name: state.error for state in view.nodes}
        return ClusterStats({name: TopicStats.of(topic) for name, topic in view.topics.items()}, nodes, view.errors)

    async def counts(self, topic: str, channel: str = "") -> Results[Counts]:
        """Return what waits in a topic, or in a channel of it, on each node that has the topic."""
        nodes = await self._holders(topic)
        return self._checked(await self._each(nodes, lambda node: self._count(node, topic, channel)))

    async def _count(self, node: Node, topic: str, channel: str) -> Counts:
        return _counted(await self._get(node, "/stats", {**_STATS, "topic": topic}), topic, channel)

    # ---- topics and channels ----

    async def create(self, topic: str, *channels: str) -> Results[None]:
        """Create a topic, and channels of it, on every node. What exists is left as it is."""
        return await self._make(await self._all(), topic, channels, with_topic=True)

    async def register(self, topic: str, *channels: str) -> Results[None]:
        """Have nsqlookupd name a topic and its channels ahead of use; nodes that have the topic create the channels.

        Without nsqlookupd a topic is left to its first message.
        """
        missing = await self._tell_lookupds("/topic/create", {"topic": topic})
        nodes = _Nodes([], missing)
        for channel in channels:
            missing += await self._tell_lookupds("/channel/create", {"topic": topic, "channel": channel})
        if channels:
            if self.cluster.direct:
                raise UpstreamFailed("failed to query any nsqlookupd: no nsqlookupd is configured")
            found = await self.cluster.holders(topic)
            nodes = _Nodes(found.value, [*missing, *found.errors])
        return await self._make(nodes, topic, channels)

    async def _make(
        self, nodes: _Nodes, topic: str, channels: Sequence[str], *, with_topic: bool = False
    ) -> Results[None]:
        async def make(node: Node) -> None:
            if with_topic:
                await self._http.post(node.contact, "/topic/create", {"topic": topic})
            for channel in channels:
                await self._http.post(node.contact, "/channel/create", {"topic": topic, "channel": channel})

        return self._checked(await self._each(nodes, make))

    async def create_channel(self, topic: str, channel: str) -> Results[None]:
        """Create a channel on every node that has the topic."""
        return await self._act("create", topic, channel)

    async def pause(self, topic: str, channel: str = "") -> Results[None]:
        """Have a topic hand no messages to its channels, or a channel deliver none."""
        return await self._act("pause", topic, channel)

    async def unpause(self, topic: str, channel: str = "") -> Results[None]:
        """End the pause of a topic or channel."""
        return await self._act("unpause", topic, channel)

    async def empty(self, topic: str, channel: str = "", *, confirm: Confirm[Counts] | None = None) -> Results[None]:
        """Drop the messages of a channel, or those of a topic that are in no channel yet.

        `confirm` gets what waits on each node; nothing is changed unless it returns true.
        """
        return await self._destroy("empty", topic, channel, confirm)

    async def delete(self, topic: str, channel: str = "", *, confirm: Confirm[Counts] | None = None) -> Results[None]:
        """Delete a topic or channel with its messages, in nsqlookupd as well; `confirm` as for `empty`."""
        return await self._destroy("delete", topic, channel, confirm)

    async def _act(self, action: str, topic: str, channel: str) -> Results[None]:
        return self._checked(await self._post(await self._holders(topic), action, topic, channel))

    async def tombstone(self, topic: str, node: str) -> Results[None]:
        """Delete the topic of one node; nsqlookupd stops naming it there first, so that no consumer comes back."""
        nodes = await self.only(node)._all()
        for each in nodes.nodes:
            # nsqlookupd compares with the two joined by a bare colon, without the brackets of IPv6
            name = f"{each.broadcast_address}:{each.http_port}"
            nodes.missing += await self._tell_lookupds("/topic/tombstone", {"topic": topic, "node": name})
        return self._checked(await self._post(nodes, "delete", topic, ""))

    async def _destroy(
        self, action: str, topic: str, channel: str, confirm: Confirm[Counts] | None
    ) -> Results[None]:
        everywhere = action == "delete" and not self._node and not self.cluster.direct
        nodes = await self._holders(topic, only_known=everywhere)
        if confirm is not None and not confirm(
            await self._plan(nodes, lambda node: self._count(node, topic, channel))
        ):
            return Results(())
        if everywhere:  # first there, so that no consumer is sent to a topic that goes
            nodes.missing += await self._tell_lookupds(*_action("delete", topic, channel))
        return self._checked(await self._post(nodes, action, topic, channel))

    async def _tell_lookupds(self, path: str, params: dict[str, str]) -> list[str]:
        """Post to every nsqlookupd, and return the failures. One that does not know the topic has nothing to do."""
        asked = await self._http.ask_all(self.cluster.lookupds, lambda at: self._http.post(at, path, params))
        return [f"nsqlookupd {at}: {error.reason}" for at, error in asked.failures.items() if error.status != 404]

    async def _post(self, nodes: _Nodes, action: str, topic: str, channel: str) -> Results[None]:
        path, params = _action(action, topic, channel)

        async def post(node: Node) -> None:
            await self._http.post(node.contact, path, params)

        return await self._each(nodes, post)

    # ---- settings and policies ----

    async def describe_settings(self) -> dict[str, list[Json]]:
        """Return all settings that there are, of a `topic` and of a `channel`, as the first node that knows has them.

        Each has `name`, `kind`, `default` and `help`. Nothing if no node knows settings.
        """
        for result in await self._each(await self._all(), lambda node: self._get(node, "/settings")):
            if result.answer is not None:
                return dict(result.answer)
        return {}

    async def settings(self, topic: str, channel: str = "") -> Results[Settings]:
        """Return the settings of a topic or channel that hold on each node, and where each comes from."""
        return await self._settings("GET", topic, channel, None)

    async def change_settings(self, topic: str, channel: str = "", /, **changes: Any) -> Results[Settings]:
        """Change settings of a topic or channel on every node; None removes one, so that its default holds."""
        return await self._settings("PATCH", topic, channel, changes)

    async def _settings(self, method: str, topic: str, channel: str, document: Json | None) -> Results[Settings]:
        path = "/channel/settings" if channel else "/topic/settings"
        params = {"topic": topic, **({"channel": channel} if channel else {})}
        return await self._ask(await self._holders(topic), Settings.of, method, path, params, document)

    async def policies(self) -> Results[Policies]:
        """Return the policies of each node."""
        return await self._ask(await self._all(), Policies.of, "GET", "/policies")

    async def set_policy(
        self, name: str, settings: Mapping[str, Any], *, topics: str = "*", channels: str = "*", priority: int = 0
    ) -> Results[Policy]:
        """Add a policy, or replace the one of that name, on every node; without `channels` its settings are of topics.
        """
        document = {"topics": topics, "priority": priority, "settings": dict(settings)}
        document |= {"channels": channels} if channels else {}
        return await self._ask(await self._all(), Policy.of, "PUT", _policy_path(name), document=document)

    async def remove_policy(self, name: str) -> Results[None]:
        """Remove a policy from every node."""
        return await self._ask(await self._all(), _nothing, "DELETE", _policy_path(name))

    # ---- schedules ----

    async def schedules(self, *, count: int = 1) -> Results[Schedules]:
        """Return the schedules of each node, with so many of the times to come."""
        return await self._ask(await self._all(), Schedules.of, "GET", "/schedules", {"next": str(count)})

    async def schedule(self, name: str, *, count: int = 10) -> Results[Schedule]:
        """Return a schedule, of the node that has it, with so many of the times to come."""
        ask = self._asking(Schedule.of, "GET", _schedule_path(name), {"next": str(count)})
        return await self._where_scheduled(name, ask)

    async def put_schedule(
        self, name: str, topic: str, body: str | bytes, *, every: str = "", cron: str = "", at: str = "",
        zone: str = "UTC", misfire: str = "once", headers: Mapping[str, str] | None = None, paused: bool = False,
    ) -> Results[Schedule]:
        """Have a message published `every` so often (`5m`), by a `cron` expression in a time `zone`, or `at` one time.

        The schedule of that name is changed on the node that has it, and continues if its times are the same. A new
        one is put on one node: the same one each time, as long as the cluster has the same nodes. `misfire` is for
        times at which that node did not run: one message for all of them (`once`), none (`skip`), or `all`.
        """  # fmt: skip
        document: Json = {"topic": topic, "zone": zone, "misfire": misfire, "paused": paused}
        document |= {key: each for key, each in (("every", every), ("cron", cron), ("at", at)) if each}
        document |= {"headers": dict(headers)} if headers else {}
        document |= {"body": body} if isinstance(body, str) else {"body_base64": base64.b64encode(body).decode()}
        nodes, having = await self._schedule_nodes(name)
        if nodes.failed or nodes.missing:  # which may have it, and it must not be on two
            raise NodesFailed(Results(tuple(nodes.failed), tuple(nodes.missing)), planned=True)
        chosen = having or [max(nodes.nodes, key=lambda node: _weight(name, node))]
        return await self._ask(_Nodes(chosen), Schedule.of, "PUT", _schedule_path(name), document=document)

    async def remove_schedule(self, name: str) -> Results[None]:
        """Remove a schedule."""
        return await self._where_scheduled(name, self._asking(_nothing, "DELETE", _schedule_path(name)))

    async def run_schedule(self, name: str) -> Results[None]:
        """Publish the message of a schedule now, beside its times."""

        async def run(node: Node) -> None:
            await self._http.post(node.contact, _schedule_path(name, "run"), {})

        return await self._where_scheduled(name, run)

    async def pause_schedule(self, name: str) -> Results[Schedule]:
        """Leave out the times of a schedule from now on."""
        return await self._where_scheduled(name, self._asking(Schedule.of, "POST", _schedule_path(name, "pause")))

    async def resume_schedule(self, name: str) -> Results[Schedule]:
        """End the pause of a schedule; times that came meanwhile are left out."""
        return await self._where_scheduled(name, self._asking(Schedule.of, "POST", _schedule_path(name, "resume")))

    async def _where_scheduled(self, name: str, work: Callable[[Node], Awaitable[T]]) -> Results[T]:
        """Return the result of the node that has a schedule. Raises `NothingThere`."""
        nodes, having = await self._schedule_nodes(name)
        if not having and not nodes.failed:
            raise NothingThere(f"no nsqd has a schedule {name!r}", nodes.missing)
        nodes.nodes = having
        return self._checked(await self._each(nodes, work))

    async def _schedule_nodes(self, name: str) -> tuple[_Nodes, list[Node]]:
        """Return the nodes, and those of them that have a schedule; nodes that do not answer are `failed`."""
        path = _schedule_path(name)

        async def has(node: Node) -> bool:
            try:
                await self._get(node, path)
            except CallFailed as error:
                if error.code != "SCHEDULE_NOT_FOUND":
                    raise
                return False
            return True

        nodes = await self._all()
        found = await self._each(nodes, has)
        nodes.failed = [result for result in found if not result.done]
        having = found.answers
        return nodes, [node for node in nodes.nodes if having.get(node.name)]

    # ---- pending messages ----

    async def pending(
        self, topic: str, channel: str, *, state: str = "", holder: str | None = None, min_idle: float = 0.0,
        count: int = 100, after: After = -1, bodies: bool = False,
    ) -> Results[Pending]:  # fmt: skip
        """Return up to `count` messages of each node that are in flight or wait to be delivered again.

        `state` is `in_flight`, `ready` or `deferred`; `min_idle` is in seconds; `after` is a sequence, or one by node.
        """
        members = _members(state, holder, min_idle)
        params = _strings({"topic": topic, "channel": channel, **members})
        params |= {"body": "true"} if bodies else {}

        async def read(node: Node) -> Pending:
            found: Json = {}
            left, behind = count, _after(after, node)
            while True:
                page = await self._pending_page(node, params, min(left, _PAGE), behind)
                found = {**page, "entries": [*found.get("entries", ()), *page["entries"]],
                         "counts": found.get("counts", page["counts"])}  # fmt: skip
                left -= len(page["entries"])
                if page["next"] is None or left <= 0:
                    return Pending.of(found)
                behind = page["next"]

        return self._checked(await self._each(await self._holders(topic), read))

    async def claim(
        self, topic: str, channel: str, action: str = "ready", *, ids: Iterable[str] = (), state: str = "",
        holder: str | None = None, min_idle: float = 0.0, limit: int = 0, to: str = "", reason: str = "",
        delay: float = 0.0, dry_run: bool = False, confirm: Confirm[Claimed] | None = None,
    ) -> Results[Claimed]:  # fmt: skip
        """Take pending messages, whoever holds them, and make them `ready`, `finish`, `reject` or `defer` them.

        They are those of `ids`, or that `state`, `holder` and `min_idle` (seconds) describe, at most `limit` of each
        node. `to` hands what is made ready to a consumer, `reason` is the error of a dead letter, `delay` in seconds.
        `confirm` gets the counts of each node; nothing is changed unless it returns true.
        """
        wanted = set(ids)
        members = _members(state, holder, min_idle)
        if not wanted and not members:
            raise ConfigError("which messages: give ids, state, holder or min_idle")
        where = {"topic": topic, "channel": channel}  # permissions are checked by these
        nodes = await self._holders(topic)
        planned, over = await self._planned(
            nodes, lambda node: self._count_pending(node, where, members, wanted, limit), confirm, dry_run=dry_run
        )
        if over:
            return planned
        nothing = bool(planned) and not any(answer.claimed for answer in planned.answers.values())
        document = {"action": action, "to": to, "reason": reason, "delay": round(delay * 1000)}
        document = {key: each for key, each in document.items() if each} | members | where

        async def take(node: Node) -> Claimed:
            if nothing and not wanted:  # a message that matches by now was not asked about
                return _claimed([], {}, more=False)
            return await self._take(node, where, document, sorted(wanted), limit)

        return self._checked(await self._each(nodes, take))

    async def cancel(
        self, topic: str, channel: str, message_ids: Iterable[str], *, dry_run: bool = False,
        confirm: Confirm[Cancelled] | None = None,
    ) -> Results[Cancelled]:  # fmt: skip
        """Cancel messages that wait, deferred or not, by the `message-id` that their publisher gave them.

        At most 10,000 ids. Messages in flight are left alone. `confirm` gets what each node would cancel; nothing is
        changed unless it returns true.
        """
        wanted = sorted(set(message_ids))
        if not wanted:
            raise ConfigError("which messages: give message_ids")
        nodes, params = await self._holders(topic), {"topic": topic, "channel": channel}

        def asking(*, dry_run: bool) -> Callable[[Node], Awaitable[Cancelled]]:
            document = {"message_ids": wanted, "dry_run": dry_run}
            return self._asking(Cancelled.of, "POST", "/channel/cancel", params, document, timeout=self._patience)

        planned, over = await self._planned(nodes, asking(dry_run=True), confirm, dry_run=dry_run)
        return planned if over else self._checked(await self._each(nodes, asking(dry_run=False)))

    async def _pending_page(self, node: Node, params: Mapping[str, str], limit: int, after: int) -> Json:
        page = {**params, **_behind(after), "limit": str(limit)}
        answer: Json = await self._get(node, "/channel/pending", page, timeout=self._patience)
        return answer

    async def _count_pending(
        self, node: Node, where: Json, members: Json, wanted: set[str], limit: int
    ) -> Claimed:
        """Return how many messages of a node a claim means."""
        count, after = 0, -1
        while True:
            page = await self._pending_page(node, _strings({**where, **members}), _PAGE, after)
            if not wanted and members.keys() == {"state"}:
                count = int(page["counts"][members["state"]])
                break
            count += sum(1 for entry in page["entries"] if not wanted or entry["id"] in wanted)
            if page["next"] is None or (limit and count >= limit) or (wanted and count == len(wanted)):
                break
            after = page["next"]
        count = min(count, limit) if limit else count
        return Claimed(count, dry_run=True, document={"messages": count})

    async def _take(self, node: Node, where: dict[str, str], document: Json, ids: list[str], limit: int) -> Claimed:
        """Claim what there is on a node, a page at a time."""
        claimed: list[str] = []
        refused: dict[str, str] = {}
        # a message that was deferred or made ready matches again: only the pages behind the last one are looked at
        after, pages, more = -1, [ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE)] or [[]], False
        for page in pages:
            while True:
                most = min(_PAGE, limit - len(claimed)) if limit else _PAGE
                if most <= 0:
                    more = True
                    break
                some = {**document, **({"ids": page} if page else {"after": after}), "limit": most}
                answer = await self._send(node, "/channel/claim", where, some, timeout=self._patience)
                claimed += answer["ids"]
                refused |= answer.get("refused", {})
                if page or answer["next"] is None:
                    break
                after = answer["next"]
        return _claimed(claimed, refused, more)

    # ---- dead letters ----

    async def dead_topics(self) -> Results[DeadTopics]:
        """Return the dead-letter topics of each node."""
        return await self._ask(await self._all(), DeadTopics.of, "GET", "/dead")

    async def dead_groups(self, dead: str, letters: LetterFilter = _EVERYTHING) -> Results[DeadGroups]:
        """Count dead letters by channel, reason and error.

        `dead` is a dead-letter topic, or `topic/channel` for the letters of this channel, wherever they are.
        """
        nodes, letters = await self._dead(dead, letters)

        async def ask(node: Node) -> DeadGroups:
            params = {"topic": nodes.dead_topics[node.name], **letters.params()}
            return DeadGroups.of(await self._get(node, "/dead/groups", params, timeout=self._patience))

        return self._checked(await self._each(nodes, ask))

    async def dead_letters(
        self, dead: str, letters: LetterFilter = _EVERYTHING, *, count: int = 100, after: After = -1,
        bodies: bool = True,
    ) -> Results[DeadLetters]:  # fmt: skip
        """Return up to `count` dead letters of each node, the oldest first; `after` is a sequence, or one by node."""
        nodes, letters = await self._dead(dead, letters)

        async def read(node: Node) -> DeadLetters:
            params = {"topic": nodes.dead_topics[node.name], **letters.params(), "body": "true" if bodies else "false"}
            found: list[Json] = []
            place: int | None = _after(after, node)
            while place is not None and len(found) < count:
                page = {**params, **_behind(place), "limit": str(min(count - len(found), _LETTERS))}
                answer = await self._get(node, "/dead/letters", page, timeout=self._patience)
                found += answer["letters"]
                place = answer["next"]
            return DeadLetters(tuple(map(DeadLetter.of, found)), place, document=found)

        return self._checked(await self._each(nodes, read))

    async def redrive(
        self, dead: str, letters: LetterFilter = _EVERYTHING, *, to: str = "channel", rate: str = "", limit: int = 0,
        body: str = "", dry_run: bool = False, confirm: Confirm[Redrive] | None = None, wait: float | None = None,
        progress: Progress | None = None,
    ) -> Results[Redrive]:  # fmt: skip
        """Return dead letters to the channels that gave them up, or with `to="topic"` to every channel.

        `rate` limits each node (`100/s`), `limit` holds over all nodes, `body` replaces that of the one letter that
        `letters.sequences` names. `confirm` gets what is planned on each node; nothing is changed unless it returns
        true. Returns when it has ended everywhere, or after `wait` seconds: it continues on the nodes. `progress` is
        called with a node's name and state meanwhile.
        """
        document = {"to": to, **({"rate": rate} if rate else {}), **({"body": body} if body else {})}
        return await self._deal("/dead/redrive", document, dead, letters, limit, dry_run, confirm, wait, progress)

    async def purge(
        self, dead: str, letters: LetterFilter = _EVERYTHING, *, limit: int = 0, dry_run: bool = False,
        confirm: Confirm[Redrive] | None = None, wait: float | None = None, progress: Progress | None = None,
    ) -> Results[Redrive]:  # fmt: skip
        """Drop dead letters for good; see `redrive`."""
        return await self._deal("/dead/purge", {}, dead, letters, limit, dry_run, confirm, wait, progress)

    async def redrive_status(
        self, dead: str, *, wait: float | None = 0.0, progress: Progress | None = None
    ) -> Results[Redrive]:
        """Return the redrive of each node: the one that runs, or the last one. Wait for its end up to `wait` seconds.

        A `wait` of None has no end.
        """
        nodes, _ = await self._dead(dead, _EVERYTHING)
        return self._checked(await self._ended(nodes, wait, progress))

    async def cancel_redrive(self, dead: str) -> Results[Redrive]:
        """End a redrive or purge where it is. Letters that it has not dealt with stay dead letters."""
        nodes, _ = await self._dead(dead, _EVERYTHING)

        async def cancel(node: Node) -> Redrive:
            params = {"topic": nodes.dead_topics[node.name]}
            return Redrive.of(await self._send(node, "/dead/cancel", params, None, timeout=self._patience))

        return self._checked(await self._each(nodes, cancel))

    async def _deal(
        self, path: str, document: Json, dead: str, letters: LetterFilter, limit: int, dry_run: bool,
        confirm: Confirm[Redrive] | None, wait: float | None, progress: Progress | None,
    ) -> Results[Redrive]:  # fmt: skip
        nodes, letters = await self._dead(dead, letters)
        document = {**document, "filter": letters.document()}

        async def begin(node: Node, more: Json) -> Json:
            params = {"topic": nodes.dead_topics[node.name]}
            answer: Json = await self._send(node, path, params, {**document, **more}, timeout=self._patience)
            return answer

        async def preview(node: Node) -> Redrive:
            answer = await begin(node, {"limit": limit, "dry_run": True})
            sample = tuple(map(DeadLetter.of, answer["sample"]))
            return Redrive("planned", answer["letters"], sample, to=answer["to"], document=answer)

        planned = _shared_out(await self._plan(nodes, preview), limit)
        if dry_run:
            return self._checked(planned)
        shares = {name: plan.letters for name, plan in planned.answers.items()}
        if confirm is not None and not confirm(planned):
            return planned

        async def start(node: Node) -> Redrive:
            if not shares.get(node.name):
                nothing: Json = {"state": "done", "redriven": 0, "skipped": {}, "left": 0, "error": ""}
                return Redrive.of(nothing)
            return Redrive.of(await begin(node, {"limit": shares[node.name] if limit else 0}))

        started = await self._each(nodes, start)
        running = {name for name, task in started.answers.items() if task.state == "running"}
        nodes.nodes, nodes.failed = [node for node in nodes.nodes if node.name in running], []
        ended = {result.node: result for result in await self._ended(nodes, wait, progress)} if running else {}
        results = tuple(ended.get(result.node, result) for result in started)
        return self._checked(Results(results, started.missing))

    async def _ended(self, nodes: _Nodes, wait: float | None, progress: Progress | None) -> Results[Redrive]:
        """Return the task of each node once it does not run any more, or after `wait` seconds."""
        until = None if wait is None else time.monotonic() + wait

        async def ask(node: Node) -> Redrive:
            params = {"topic": nodes.dead_topics[node.name]}
            while True:
                task = Redrive.of(await self._get(node, "/dead/redrive", params, timeout=self._patience))
                if task.state != "running" or (until is not None and time.monotonic() >= until):
                    return task
                if progress is not None:
                    progress(node.name, task)
                await asyncio.sleep(_EVERY)

        return await self._each(nodes, ask)

    async def _dead(self, dead: str, letters: LetterFilter) -> tuple[_Nodes, LetterFilter]:
        """Return the nodes that have the dead letters with their dead-letter topics, and the filter for them.

        A node that has the channel, but no letters of it, is left out.
        """
        topic, slash, channel = dead.partition("/")
        if not slash:
            nodes = await self._holders(dead)
            nodes.dead_topics = {node.name: dead for node in nodes.nodes}
        else:
            letters = _of_channel(letters, topic, channel)
            nodes = await self._holders(topic)
            topics = await self._each(nodes, lambda node: self._dead_topic(node, topic, channel))
            nodes.failed = [result for result in topics if not result.done]
            nodes.dead_topics = {name: found for name, found in topics.answers.items() if found}
            nodes.nodes = [node for node in nodes.nodes if node.name in nodes.dead_topics]
        if letters.sequences and len(nodes.nodes) > 1:
            raise SeveralNodes(dead, [node.name for node in nodes.nodes])
        return nodes, letters

    async def _dead_topic(self, node: Node, topic: str, channel: str) -> str:
        """Return the dead-letter topic of a channel on a node; empty if the node has none."""
        settings = await self._get(node, "/channel/settings", {"topic": topic, "channel": channel})
        there = await self._get(node, "/dead")
        name = str(settings["settings"]["dead_topic"]["value"] or f"{topic}.{channel}.{names.DEAD}")
        return name if any(each["topic"] == name for each in there["topics"]) else ""

    # ---- seek and drain ----

    async def seek(
        self, topic: str, channel: str, to: Place, *, dry_run: bool = False, confirm: Confirm[Seek] | None = None
    ) -> Results[Seek]:
        """Move a channel to another place of the topic's log, on every node.

        `to` is `earliest`, `latest`, `bookmark` (undoes a seek), a sequence, a time (RFC 3339), or a duration (ago).
        Messages behind the place are delivered again, those before it are skipped. `confirm` gets the counts of each
        node; nothing is changed unless it returns true.
        """
        place = target(to)
        nodes = await self._holders(topic)
        params = {"topic": topic, "channel": channel}

        def moving(**more: bool) -> Callable[[Node], Awaitable[Seek]]:
            return self._asking(Seek.of, "POST", "/channel/seek", params, {"to": place, **more})

        planned, over = await self._planned(nodes, moving(dry_run=True), confirm, dry_run=dry_run)
        return planned if over else self._checked(await self._each(nodes, moving()))

    async def drain(self, deadline: str = "") -> Results[Drain]:
        """Have each node take no new messages; deliveries end when it is empty, or after the deadline (`10m`)."""
        return await self._drain("POST", "/drain", {"deadline": deadline} if deadline else {})

    async def undrain(self) -> Results[Drain]:
        """Have each node take messages again."""
        return await self._drain("POST", "/undrain", None)

    async def drain_status(self) -> Results[Drain]:
        """Return how far the drain of each node is."""
        return await self._drain("GET", "/drain", None)

    async def _drain(self, method: str, path: str, document: Json | None) -> Results[Drain]:
        return await self._ask(await self._all(), Drain.of, method, path, document=document)

    # ---- what they share ----

    async def _get(
        self, node: Node, path: str, params: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> Any:
        return await self._http.get(node.contact, path, params or {}, timeout=timeout)

    async def _send(
        self, node: Node, path: str, params: Mapping[str, str], document: Any, *, timeout: float | None = None
    ) -> Any:
        return await self._http.call("POST", node.contact, path, params, document=document, timeout=timeout)

    async def _all(self) -> _Nodes:
        """Return every node, or the one that was chosen. Raises `UpstreamFailed`, `NothingThere`, `NoSuchNode`."""
        if self._known is not None:
            return _Nodes(list(self._known))
        return self._chosen(await self.cluster.nodes(topics=False), "nsqlookupd knows no nsqd")

    async def _holders(self, topic: str, *, only_known: bool = False) -> _Nodes:
        """Return the nodes that have the topic, or the one that was chosen.

        Raises `NothingThere` if there are none; with `only_known` nsqlookupd may know a topic that no node has.
        """
        if self._known is not None:
            return _Nodes(list(self._known))
        try:
            found = await self.cluster.holders(topic)
        except UpstreamFailed as error:
            if error.errors and all("TOPIC_NOT_FOUND" in each for each in error.errors):
                raise NothingThere(f"no nsqlookupd knows a topic {topic!r}") from error
            raise
        if only_known and not found.value:
            return _Nodes([], found.errors)
        return self._chosen(found, f"no nsqd has a topic {topic!r}")

    def _chosen(self, found: Found[list[Node]], nothing: str) -> _Nodes:
        missing = [] if self._node and found.value else found.errors
        if not found.value:
            raise NothingThere(nothing, found.errors)
        chosen = [node for node in found.value if self._node in ("", node.name, node.contact)]
        if not chosen:
            raise NoSuchNode(self._node, [node.name for node in found.value])
        return _Nodes(chosen, missing)

    async def _each(self, nodes: _Nodes, work: Callable[[Node], Awaitable[T]]) -> Results[T]:
        """Return the result of every node, all asked at the same time, and of those that failed before."""
        results = await asyncio.gather(*(_result_of(node, work) for node in nodes.nodes))
        return Results((*results, *nodes.failed), tuple(nodes.missing))

    def _checked(self, results: Results[T]) -> Results[T]:
        """Return the results. Raises `NodesFailed` unless every node did it."""
        if not results.complete:
            raise NodesFailed(results)
        return results

    def _asking(
        self,
        read: Callable[[Any], T],
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        document: Any = None,
        *,
        timeout: float | None = None,
    ) -> Callable[[Node], Awaitable[T]]:
        """Return a function that sends a request to a node, and reads the answer."""

        async def ask(node: Node) -> T:
            call = self._http.call(method, node.contact, path, params or {}, document=document, timeout=timeout)
            return read(await call)

        return ask

    async def _ask(
        self,
        nodes: _Nodes,
        read: Callable[[Any], T],
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        document: Any = None,
    ) -> Results[T]:
        """Send a request to every node, and return what `read` makes of the answers."""
        return self._checked(await self._each(nodes, self._asking(read, method, path, params, document)))

    async def _plan(self, nodes: _Nodes, work: Callable[[Node], Awaitable[T]]) -> Results[T]:
        """Return what every node would do. Raises `NodesFailed` if one refuses, so that nothing is changed."""
        planned = await self._each(nodes, work)
        if not all(result.done for result in planned.nodes[: len(nodes.nodes)]):
            raise NodesFailed(planned, planned=True)
        return planned

    async def _planned(
        self, nodes: _Nodes, preview: Callable[[Node], Awaitable[T]], confirm: Confirm[T] | None, *, dry_run: bool
    ) -> tuple[Results[T], bool]:
        """Return what every node would do, if anybody wants to know that, and whether nothing more is to be done."""
        if not dry_run and confirm is None:
            return Results(()), False
        planned = await self._plan(nodes, preview)
        if dry_run:
            return self._checked(planned), True
        return planned, confirm is not None and not confirm(planned)


def _nothing(answer: object) -> None:
    """Read an answer that has nothing to read."""


async def _result_of(node: Node, work: Callable[[Node], Awaitable[T]]) -> NodeResult[T]:
    try:
        return NodeResult(node.name, await work(node))
    except CallFailed as error:
        text = "a plain NSQ server cannot do this" if error.unsupported else error.code or error.reason
        return NodeResult(node.name, None, text, error)
    except NONSENSE as error:
        return NodeResult(node.name, None, f"its answer could not be understood ({error!r})")


def target(to: Place) -> Any:
    """Return where to seek to, as nsqd takes it. Raises `ConfigError`."""
    if isinstance(to, int):
        return {"sequence": to}
    if not isinstance(to, str):
        return dict(to)
    if to in _WORDS:
        return to
    if to.isascii() and to.isdigit():
        return {"sequence": int(to)}
    if len(to) >= 10 and to[:4].isdigit() and to[4] == "-":
        return {"time": to}
    try:
        if durations.parse(to) < 0:
            raise ValueError(to)
    except ValueError as error:
        wanted = f"expected {', '.join(_WORDS)}, a sequence, 2026-11-15T09:30:00Z, or 2h (ago)"
        raise ConfigError(f"{to}: {wanted}") from error
    return {"back": to}


def _policy_path(name: str) -> str:
    if not names.valid_policy(name):
        raise ConfigError(names.POLICY)
    return f"/policies/{quote(name, safe='')}"


def _schedule_path(name: str, order: str = "") -> str:
    if not names.valid_policy(name) or names.ephemeral(name):
        raise ConfigError(names.POLICY.replace("a policy", "a schedule"))
    return f"/schedules/{order}{'/' if order else ''}{quote(name, safe='')}"


def _weight(name: str, node: Node) -> bytes:
    """Return a number by which each name chooses one of the nodes, the same as long as that node is there."""
    return hashlib.sha256(f"{name} {node.name}".encode()).digest()


def _addresses(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _action(action: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{action}", {"topic": topic, "channel": channel}
    return f"/topic/{action}", {"topic": topic}


def _counted(answer: Json, name: str, channel: str) -> Counts:
    topic = next((each for each in answer["topics"] if each["topic_name"] == name), None)
    if topic is None:
        return Counts(False)
    if not channel:
        waiting = topic["depth"] + sum(each["depth"] + each.get("deferred_count", 0) for each in topic["channels"])
        consumers = sum(each["client_count"] for each in topic["channels"])
        in_flight = sum(each["in_flight_count"] for each in topic["channels"])
        return Counts(True, waiting, topic["depth"], in_flight, len(topic["channels"]), consumers)
    found = next((each for each in topic["channels"] if each["channel_name"] == channel), None)
    if found is None:
        return Counts(False)
    waiting = found["depth"] + found.get("deferred_count", 0)
    return Counts(True, waiting, found["depth"], found["in_flight_count"], 0, found["client_count"])


def _members(state: str, holder: str | None, min_idle: float) -> Json:
    found = {"state": state, "holder": holder, "min_idle": round(min_idle * 1000)}
    return {key: each for key, each in found.items() if each}


def _strings(members: Json) -> dict[str, str]:
    return {key: str(each) for key, each in members.items()}


def _claimed(ids: list[str], refused: dict[str, str], more: bool) -> Claimed:
    document = {"claimed": len(ids), "ids": ids, "refused": refused}
    return Claimed(len(ids), False, ids, refused, more, document=document)


def _after(after: After, node: Node) -> int:
    return after if isinstance(after, int) else after.get(node.name, -1)


def _behind(after: int) -> dict[str, str]:
    return {"after": str(after)} if after >= 0 else {}


def _shared_out(planned: Results[Redrive], limit: int) -> Results[Redrive]:
    """Return the plan of each node, with so many letters that `limit` holds over all of them."""
    if not limit:
        return planned
    results: list[NodeResult[Redrive]] = []
    for result in planned:
        if result.answer is not None:
            share = min(result.answer.letters, limit)
            limit -= share
            document = {**result.answer.document, "letters": share}
            result = NodeResult(result.node, dataclasses.replace(result.answer, letters=share, document=document))
        results.append(result)
    return Results(tuple(results), planned.missing)


def _of_channel(letters: LetterFilter, topic: str, channel: str) -> LetterFilter:
    if letters.topic not in ("", topic) or letters.channel not in ("", channel):
        raise ConfigError(f"{topic}/{channel} names topic and channel: leave them out of the filter")
    return dataclasses.replace(letters, topic=topic, channel=channel)
