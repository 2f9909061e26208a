"""Shared parts of the commands that change a cluster: the nodes concerned, questions, and a line for each node."""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, UsageError
from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster import Node
    from lapwing.client.cluster_changes import NodeResult
    from lapwing.client.cluster_client import ClusterClient
    from lapwing.client.http import DaemonHttp

T = TypeVar("T")
Change = Callable[["DaemonHttp", str], Awaitable[T]]  # a request to one node, whose HTTP address is given

Place = Annotated[
    str, Argument(metavar="TOPIC/CHANNEL", help="The channel, such as orders/billing.", complete=shared.known_places)
]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask before messages are lost or delivered again.")]


@dataclass(frozen=True, slots=True)
class NodeFlags(shared.ClusterFlags):
    """The nodes that a command is for, and how it reports on them."""

    node: Annotated[
        str, Option("--node", metavar="HOST:PORT", help="Only on this nsqd, named by its HTTP address.")
    ] = ""
    as_json: shared.Json = False


@dataclass(frozen=True, slots=True)
class ChangeFlags(NodeFlags):
    """The same for a command that asks before messages are lost or delivered again."""

    yes: Yes = False
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be done.")] = False


_TOPICS: Final = "`lapwing topics` lists them"
NODES: Final = NodeFlags()
CHANGE: Final = ChangeFlags()
_ADVICE: Final = {
    "CHANNEL_NOT_FOUND": "there is no such channel; `lapwing channels` lists them, `lapwing channel create` makes one",
    "TOPIC_NOT_FOUND": "there is no such topic; `lapwing topics` lists them",
}  # by error of nsqd


def split_place(place: str) -> tuple[str, str]:
    """Return topic and channel of `topic/channel`. Raises `UsageError`."""
    topic, slash, channel = place.partition("/")
    if not topic or not slash or not channel or "/" in channel:
        raise UsageError(f"{place}: expected TOPIC/CHANNEL, such as orders/billing")
    return topic, channel


class PerNode(list[Any]):
    """An item for each node that a command is for: the node itself, or its result."""

    def __init__(self, items: Sequence[Any], *, complete: bool) -> None:
        super().__init__(items)
        self.complete = complete  # false: a node that may be one of them did not answer


async def topic_nodes(client: "ClusterClient", topic: str, node: str = "", *, advice: str = _TOPICS) -> PerNode:
    """Return the nodes that have the topic, or the one that is named. Raises `LapwingError` if there is none."""
    from lapwing.client.cluster_client import UpstreamFailed

    try:
        found = await client.holders(topic)
    except UpstreamFailed as error:
        if error.errors and all("TOPIC_NOT_FOUND" in each for each in error.errors):
            raise LapwingError(f"no nsqlookupd knows a topic {topic!r}; {advice}") from error
        raise
    return _chosen(found.value, found.errors, node, f"no nsqd has a topic {topic!r}; {advice}")


def _chosen(nodes: "list[Node]", errors: Sequence[str], wanted: str, nothing: str) -> PerNode:
    for error in errors:
        shared.warn(error)
    if not nodes:
        raise LapwingError(nothing)
    chosen = [node for node in nodes if wanted in ("", node.name, node.contact)]
    if not chosen:
        raise ConfigError(f"--node {wanted}: expected one of {', '.join(node.name for node in nodes)}")
    return PerNode(chosen, complete=bool(wanted) or not errors)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost, and end the program unless the answer is yes.

    Raises `ConfigError` if there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Give --yes to do it: there is no terminal to ask on")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("nothing was changed", file=sys.stderr)
        sys.exit(1)


def report(
    results: "Sequence[NodeResult[Any]]", done: str | Callable[[Any], str], *, as_json: bool
) -> None:
    """Print a line for each node, and end with 1 if one refused. `done` is the text for a node that did it."""
    if as_json:
        print(json.dumps([{"node": result.node, "ok": result.done, "error": result.error,
                           "answer": result.answer if isinstance(result.answer, (dict, list)) else None}
                          for result in results], indent=2))  # fmt: skip
    else:
        width = max((len(result.node) for result in results), default=0)
        for result in results:
            text = f"refused: {explained(result.error)}"
            if result.done:
                text = done if isinstance(done, str) else done(result.answer)
            print(f"{result.node:<{width}}  {text}")
    end_with(results)


def explained(error: str) -> str:
    """Return the error of a node, with what to do about it."""
    return f"{error}: {_ADVICE[error]}" if error in _ADVICE else error


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under their headings, and nothing without rows. The columns `numbers` are aligned to the right."""
    from lapwing.tools.terminal import Column, Terminal, table

    if rows:
        columns = [Column(name, left=name not in numbers) for name in names]
        print("\n".join(table(columns, rows, Terminal.of(sys.stdout))))


def end_quietly(results: "Sequence[NodeResult[Any]]", nothing: str = "") -> None:
    """Name the nodes that refused, or write that there is nothing; end the program with 1 if a node refused."""
    for result in results:
        if not result.done:
            shared.warn(f"{result.node}: refused: {explained(result.error)}")
    if nothing and all(result.done for result in results):
        shared.warn(nothing)
    end_with(results)


def end_with(results: "Sequence[NodeResult[Any]]") -> None:
    """End the program with 1 if a node refused, or did not answer."""
    if not all(result.done for result in results) or not getattr(results, "complete", True):
        sys.exit(1)


def on_all(flags: NodeFlags, change: Change[T]) -> "list[NodeResult[T]]":
    """Carry a change out on every node, or on the one that is named. Raises `LapwingError` if there is none."""

    async def nodes(client: "ClusterClient") -> PerNode:
        found = await client.nodes(topics=False)
        return _chosen(found.value, found.errors, flags.node, "nsqlookupd knows no nsqd")

    return on_each(flags, nodes, change)


def on_topic(flags: NodeFlags, topic: str, change: Change[T], *, advice: str = _TOPICS) -> "list[NodeResult[T]]":
    """Carry a change out on the nodes that have the topic, or on the one that is named."""
    return on_each(flags, lambda client: topic_nodes(client, topic, flags.node, advice=advice), change)


def on_each(
    flags: NodeFlags, nodes: "Callable[[ClusterClient], Awaitable[PerNode]]", change: Change[T]
) -> "list[NodeResult[T]]":
    """Carry a change out on the nodes that `nodes` finds."""

    async def carry_out(client: "ClusterClient") -> "list[NodeResult[T]]":
        from lapwing.client import cluster_changes

        found = await nodes(client)
        results = await cluster_changes.on_each(found, lambda node: change(client.http, node.contact))
        return PerNode(results, complete=found.complete)

    return shared.asked(flags, carry_out)
