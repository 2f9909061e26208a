"""Options that several commands of `lapwing` have, each said once."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster_client import ClusterClient

T = TypeVar("T")

NSQD_HTTP: Final = "127.0.0.1:4151"
NSQD_TCP: Final = "127.0.0.1:4150"

NsqdHttp = Annotated[
    list[str] | None,
    typer.Option("--nsqd-http-address", envvar="LAPWING_NSQD_HTTP", metavar="HOST:PORT", show_default=False,
                 help=f"An nsqd's HTTP address; may be repeated. Default: {NSQD_HTTP}."),
]
NsqdTcp = Annotated[
    list[str] | None,
    typer.Option("--nsqd-tcp-address", envvar="LAPWING_NSQD_TCP", metavar="HOST:PORT", show_default=False,
                 help=f"An nsqd's TCP address; may be repeated. Default: {NSQD_TCP}."),
]
LookupdHttp = Annotated[
    list[str] | None,
    typer.Option("--lookupd-http-address", envvar="LAPWING_LOOKUPD_HTTP", metavar="HOST:PORT", show_default=False,
                 help="An nsqlookupd to ask for all nsqds, instead of naming them; may be repeated."),
]
All = Annotated[bool, typer.Option("--all", help="Show lapwing's own topics (_lapwing...) too.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def known_topics(incomplete: str) -> list[str]:
    """Names that the shell may complete a topic to: those of the nsqd that the environment names, if it answers."""
    import json
    from urllib.request import urlopen

    address = (os.environ.get("LAPWING_NSQD_HTTP", "").split() or [NSQD_HTTP])[0]
    try:
        url = f"http://{address}/stats?format=json&include_clients=false&include_mem=false"
        with urlopen(url, timeout=0.5) as answer:
            names = [str(topic["topic_name"]) for topic in json.load(answer)["topics"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []  # a shell that completes is no place for complaints
    return [name for name in names if name.startswith(incomplete)]


Topic = Annotated[str, typer.Argument(help="The topic.", autocompletion=known_topics)]


def app() -> typer.Typer:
    """A command's own application."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def chosen(nsqds: list[str] | None, lookupds: list[str] | None, default: str) -> tuple[list[str], list[str]]:
    """Which addresses are meant: those of nsqds, or those of nsqlookupds. Raises `ConfigError`.

    What the environment says gives way to what the command line says.
    """
    if nsqds and lookupds:
        if _from_environment(lookupds, "LAPWING_LOOKUPD_HTTP"):
            return nsqds, []
        if _from_environment(nsqds, "LAPWING_NSQD_HTTP") or _from_environment(nsqds, "LAPWING_NSQD_TCP"):
            return [], lookupds
        raise ConfigError("give nsqd addresses or nsqlookupd addresses, not both")
    return (nsqds or ([] if lookupds else [default])), (lookupds or [])


def _from_environment(addresses: list[str], name: str) -> bool:
    return addresses == os.environ.get(name, "").split()


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work; Ctrl-C and SIGTERM end it in order."""
    import signal

    async def told() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(told())
    except asyncio.CancelledError:
        raise typer.Exit(143) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def tell_of_trouble() -> None:
    """Have the client library say on stderr what keeps it from its work, for commands that wait in silence."""
    import logging

    lines = logging.StreamHandler()
    lines.setLevel(logging.WARNING)
    logging.getLogger("lapwing.client").handlers = [lines]


def warn(text: str) -> None:
    """Write a sentence to stderr."""
    typer.echo(text, err=True)


def asked(
    nsqds: list[str] | None, lookupds: list[str] | None, question: Callable[["ClusterClient"], Awaitable[T]]
) -> T:
    """What `question` finds out from the chosen cluster."""
    from lapwing.client.cluster_client import ClusterClient, UpstreamFailed
    from lapwing.client.http import DaemonHttp

    direct, discovered = chosen(nsqds, lookupds, NSQD_HTTP)

    async def ask() -> T:
        http = DaemonHttp()
        try:
            return await question(ClusterClient(http, nsqds=direct, lookupds=discovered))
        except UpstreamFailed as error:
            advice = "is it running? `lapwing up` starts everything; --nsqd-http-address names another"
            raise LapwingError("\n  ".join(["no daemon answered:", *error.errors, advice])) from error
        finally:
            await http.aclose()

    return run(ask)
