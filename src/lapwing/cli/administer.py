"""Shared parts of the commands that change a cluster: the nodes concerned, questions, and a line for each node."""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, UsageError
from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.admin import Admin
    from lapwing.client.admin_results import Results

T = TypeVar("T")

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
    "NOT_FOUND": "this nsqd knows no such request, as a plain NSQ server",
    "POLICY_NOT_FOUND": "there is no such policy; `lapwing policy list` lists them",
    "REDRIVE_NOT_FOUND": "no letters were returned from there yet; `lapwing dead redrive` returns them",
    "SCHEDULE_NOT_FOUND": "there is no such schedule; `lapwing schedule list` lists them",
    "TOPIC_NOT_FOUND": "there is no such topic; `lapwing topics` lists them",
}  # by error of nsqd


def split_place(place: str) -> tuple[str, str]:
    """Return topic and channel of `topic/channel`. Raises `UsageError`."""
    topic, slash, channel = place.partition("/")
    if not topic or not slash or not channel or "/" in channel:
        raise UsageError(f"{place}: expected TOPIC/CHANNEL, such as orders/billing")
    return topic, channel


def carry_out(
    flags: NodeFlags, work: "Callable[[Admin], Awaitable[Results[T]]]", *, advice: str = _TOPICS
) -> "Results[T]":
    """Return the results of each node. Raises `LapwingError` if none has what is meant, with the advice."""
    where = shared.addresses(flags)

    async def ask() -> "Results[T]":
        from lapwing.client.admin import Admin
        from lapwing.client.admin_results import NodesFailed, SeveralNodes
        from lapwing.client.cluster_client import NoSuchNode, NothingThere

        http = shared.daemon_http(where)
        try:
            with shared.explained():
                return await work(Admin(where.nsqd_http, lookupd=where.lookupd_http, http=http).only(flags.node))
        except NodesFailed as error:
            if error.planned:
                shared.warn("nothing was changed, as a node refused or did not answer:")
            return error.results
        except SeveralNodes as error:
            raise LapwingError(
                f"--sequence names a letter of one node, and several have it: give --node ({', '.join(error.nodes)})"
            ) from error
        except NoSuchNode as error:
            raise ConfigError(f"--node {error}") from error
        except NothingThere as error:
            raise LapwingError(f"{error}; {advice}") from error
        finally:
            await http.aclose()

    results = shared.run(ask)
    for text in results.missing:
        shared.warn(text)
    return results


def plan_lines(results: "Results[T]", shown: Callable[[T], str]) -> str:
    """Return a line for each node, below a question."""
    return "\n".join(f"  {node}: {shown(answer)}" for node, answer in results.answers.items())


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


def report(results: "Results[T]", done: str | Callable[[T], str], *, as_json: bool) -> None:
    """Print a line for each node, and end with 1 if one refused. `done` is the text for a node that did it."""
    if as_json:
        print(json.dumps([{"node": result.node, "ok": result.done, "error": result.error,
                           "answer": _document(result.answer)} for result in results], indent=2))  # fmt: skip
    else:
        width = max((len(result.node) for result in results), default=0)
        for result in results:
            text = f"refused: {explained(result.error)}"
            if result.done:
                text = done if isinstance(done, str) else done(cast(T, result.answer))
            print(f"{result.node:<{width}}  {text}")
    end_with(results)


def _document(answer: Any) -> Any:
    if answer is None:
        return None
    return answer.document if hasattr(answer, "document") else asdict(answer)


def explained(error: str) -> str:
    """Return the error of a node, with what to do about it."""
    return f"{error}: {_ADVICE[error]}" if error in _ADVICE else error


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under their headings, and nothing without rows. The columns `numbers` are aligned to the right."""
    from lapwing.tools.terminal import Column, Terminal, table

    if rows:
        columns = [Column(name, left=name not in numbers) for name in names]
        print("\n".join(table(columns, rows, Terminal.of(sys.stdout))))


def end_quietly(results: "Results[Any]", nothing: str = "") -> None:
    """Name the nodes that refused, or write that there is nothing; end the program with 1 if a node refused."""
    for result in results:
        if not result.done:
            shared.warn(f"{result.node}: refused: {explained(result.error)}")
    if nothing and all(result.done for result in results):
        shared.warn(nothing)
    end_with(results)


def end_with(results: "Results[Any]") -> None:
    """End the program with 1 if a node refused, or did not answer."""
    if not results.complete:
        sys.exit(1)
