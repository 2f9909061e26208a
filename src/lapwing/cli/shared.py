"""Options that several commands have, and how commands reach the cluster."""

import errno
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from lapwing.cli import contexts
from lapwing.cli.commands import Argument, Option
from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster_client import ClusterClient
    from lapwing.client.http import DaemonHttp

T = TypeVar("T")

NSQD_HTTP: Final = "127.0.0.1:4151"
NSQD_TCP: Final = "127.0.0.1:4150"

Addresses = list[str] | None
NsqdHttp = Annotated[
    Addresses,
    Option("--nsqd-http-address", "--nsqd", env="LAPWING_NSQD_HTTP", metavar="HOST:PORT",
           help=f"HTTP address of an nsqd; {NSQD_HTTP} if no address is given."),
]  # fmt: skip
NsqdTcp = Annotated[
    Addresses,
    Option("--nsqd-tcp-address", env="LAPWING_NSQD_TCP", metavar="HOST:PORT",
           help=f"TCP address of an nsqd; {NSQD_TCP} if no address is given."),
]  # fmt: skip
LookupdHttp = Annotated[
    Addresses,
    Option("--lookupd-http-address", "--lookupd", env="LAPWING_LOOKUPD_HTTP", metavar="HOST:PORT",
           help="HTTP address of an nsqlookupd that knows the nsqds, instead of naming them."),
]  # fmt: skip
AuthSecret = Annotated[
    str, Option("--auth-secret", env="LAPWING_AUTH_SECRET", help="Secret for servers that require AUTH.")
]
ContextName = Annotated[
    str,
    Option("--context", env="LAPWING_CONTEXT", metavar="NAME", complete=lambda text: list(contexts.load().known),
           help="Use the addresses and the secret of this context; see `lapwing context --help`."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The cluster, for commands that use HTTP."""

    nsqd_http: NsqdHttp = None
    lookupd_http: LookupdHttp = None
    auth_secret: AuthSecret = ""
    context: ContextName = ""


@dataclass(frozen=True, slots=True)
class ClientFlags:
    """The cluster, for commands that use NSQ's TCP protocol."""

    nsqd_tcp: NsqdTcp = None
    lookupd_http: LookupdHttp = None
    auth_secret: AuthSecret = ""
    context: ContextName = ""


@dataclass(frozen=True, slots=True)
class PublishFlags:
    """The cluster, for a command that uses both."""

    nsqd_tcp: NsqdTcp = None
    nsqd_http: NsqdHttp = None
    lookupd_http: LookupdHttp = None
    auth_secret: AuthSecret = ""
    context: ContextName = ""


def addresses(flags: ClusterFlags | ClientFlags | PublishFlags) -> contexts.Context:
    """Return the value of the flags, the context, the environment or the current context, in this order.

    Raises `ConfigError` if both nsqds and nsqlookupds are given.
    """
    http: list[str] = getattr(flags, "nsqd_http", None) or []
    tcp: list[str] = getattr(flags, "nsqd_tcp", None) or []
    lookupd = flags.lookupd_http or []
    if (http or tcp) and lookupd:
        raise ConfigError("give nsqd addresses or nsqlookupd addresses, not both")
    secret = flags.auth_secret or os.environ.get("LAPWING_AUTH_SECRET", "")
    if http or tcp or lookupd:
        return contexts.Context(http, tcp, lookupd, secret)
    if flags.context:
        found = contexts.load().named(flags.context)
    elif (given := _from_environment()) is not None:
        found = given
    else:
        found = _current()
    return contexts.Context(found.nsqd_http, found.nsqd_tcp, found.lookupd_http, secret or found.auth_secret)


def _from_environment() -> contexts.Context | None:
    http, tcp, lookupd = (
        os.environ.get(name, "").split() for name in ("LAPWING_NSQD_HTTP", "LAPWING_NSQD_TCP", "LAPWING_LOOKUPD_HTTP")
    )
    return contexts.Context(http, tcp, [] if http or tcp else lookupd) if http or tcp or lookupd else None


def _current() -> contexts.Context:
    known = contexts.load()
    name = os.environ.get("LAPWING_CONTEXT") or known.current
    return known.named(name) if name else contexts.Context()


def tcp_addresses(where: contexts.Context) -> tuple[list[str], list[str]]:
    """Return the TCP addresses of nsqds and the HTTP addresses of nsqlookupds, one of them empty."""
    if where.lookupd_http and not where.nsqd_tcp:
        return [], where.lookupd_http
    if where.nsqd_http and not where.nsqd_tcp:
        raise ConfigError("this command uses NSQ's TCP protocol: give --nsqd-tcp-address or --lookupd-http-address")
    return where.nsqd_tcp or [NSQD_TCP], []


def client_options(where: contexts.Context) -> dict[str, Any]:
    """Return the options that `Producer` and `Consumer` need to reach the cluster."""
    return {"auth_secret": where.auth_secret} if where.auth_secret else {}


# ---- completion ----


def known_topics(incomplete: str) -> list[str]:
    """Return the topics of the cluster that the environment or the current context names, if it answers soon."""
    return sorted(_known_stats())


def known_channels(incomplete: str) -> list[str]:
    """Return the channels of all topics."""
    return sorted({channel for channels in _known_stats().values() for channel in channels})


def known_places(incomplete: str) -> list[str]:
    """Return each channel as `topic/channel`."""
    return [f"{topic}/{channel}" for topic, channels in sorted(_known_stats().items()) for channel in sorted(channels)]


def _known_stats() -> dict[str, list[str]]:
    """Channels by topic; nothing where anything is wrong, as nobody reads complaints while completing."""
    from lapwing.client.http import DaemonHttp

    async def look(client: "ClusterClient") -> dict[str, list[str]]:
        view = await client.look()
        return {name: [each["channel_name"] for each in topic["channels"]] for name, topic in view.topics.items()}

    try:
        where = addresses(ClusterFlags())
        http = DaemonHttp(connect_timeout=0.5, request_timeout=1.0, auth_secret=where.auth_secret)
        return _asked(where, http, look)
    except (LapwingError, ValueError):
        return {}


Topic = Annotated[str, Argument(help="The topic.", complete=known_topics)]
Channel = Annotated[str, Argument(help="The channel.", complete=known_channels)]
All = Annotated[bool, Option("--all", help="Include lapwing's own topics (_lapwing...).")]
Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]


# ---- running ----


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work; Ctrl-C and SIGTERM end it in order."""
    import asyncio
    import signal

    from lapwing.client.change_origin import change_by, user_of_this_machine

    async def cancelled_by_signal() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with change_by(user_of_this_machine()):
            return await work()

    try:
        return asyncio.run(cancelled_by_signal())
    except asyncio.CancelledError:
        sys.exit(143)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def ends_with_reader() -> Iterator[None]:
    """Raise `BrokenPipeError` when the program that reads our output through a pipe ends, though nothing is written.

    What it did not read lies in the pipe, so a write shows this only if there is another one.
    """
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        fd = sys.stdout.fileno()
    except OSError:  # it is no file
        fd = -1
    if fd < 0 or not stat.S_ISFIFO(os.fstat(fd).st_mode):
        yield
        return
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        loop.remove_reader(fd)
        task.cancel()

    loop.add_reader(fd, leave)  # nothing can be read from this end, so only its error shows
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        loop.remove_reader(fd)


def warn(text: str) -> None:
    """Write a sentence to stderr."""
    print(text, file=sys.stderr)


def log_client_warnings() -> None:
    """Write the warnings of the client library to stderr, for commands that wait in silence."""
    import logging

    lines = logging.StreamHandler()
    lines.setLevel(logging.WARNING)
    logging.getLogger("lapwing.client").handlers = [lines]


def asked(flags: ClusterFlags, question: Callable[["ClusterClient"], Awaitable[T]]) -> T:
    """Return what `question` finds out from the cluster."""
    where = addresses(flags)
    return _asked(where, daemon_http(where), question)


def _asked(
    where: contexts.Context, http: "DaemonHttp", question: Callable[["ClusterClient"], Awaitable[T]]
) -> T:
    async def ask() -> T:
        from lapwing.client.cluster_client import ClusterClient

        try:
            nsqds = where.nsqd_http or ([] if where.lookupd_http else [NSQD_HTTP])
            with explained():
                return await question(ClusterClient(http, nsqds=nsqds, lookupds=where.lookupd_http))
        finally:
            await http.aclose()

    return run(ask)


def daemon_http(where: contexts.Context) -> "DaemonHttp":
    """Return the HTTP client for a cluster."""
    from lapwing.client.http import DaemonHttp

    try:
        return DaemonHttp(auth_secret=where.auth_secret)
    except ValueError as error:
        raise ConfigError(f"--auth-secret: {error}") from error


@contextmanager
def explained() -> Iterator[None]:
    """Add what to do to the error that no daemon answers, or that it wants a secret."""
    from lapwing.client.cluster_client import UpstreamFailed
    from lapwing.client.http import CallFailed

    try:
        yield
    except UpstreamFailed as error:
        advice = "is it running? `lapwing up` starts everything; --nsqd-http-address names another"
        if any('AUTH_REQUIRED' in each for each in error.errors):
            advice = "give the secret with --auth-secret or LAPWING_AUTH_SECRET"
        raise LapwingError("\n  ".join(["no daemon answered:", *error.errors, advice])) from error
    except CallFailed as error:
        if error.status == 401:
            raise LapwingError(f"{error}; give the secret with --auth-secret or LAPWING_AUTH_SECRET") from error
        raise
