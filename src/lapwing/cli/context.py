"""lapwing context: give clusters names."""

import json
from dataclasses import asdict, replace
from typing import Annotated

from lapwing.cli import contexts
from lapwing.cli.commands import Argument, Group, Option
from lapwing.cli.contexts import Context, Contexts
from lapwing.cli.shared import Json
from lapwing.errors import ConfigError

app = Group(
    "context",
    """Give clusters names, so that addresses need not be repeated.

    Commands use the current context unless a flag, --context or the environment names another cluster. Contexts are
    kept in ~/.config/lapwing/contexts.json, which only you can read.""",
    example="lapwing context add prod --lookupd-http-address lookup1:4161",
)

Name = Annotated[str, Argument(help="The name of the context.", complete=lambda text: list(contexts.load().known))]
Repeated = list[str] | None


@app.command(example="lapwing context add prod --lookupd-http-address lookup1:4161 --lookupd-http-address lookup2:4161")
def add(
    name: Name,
    nsqd_http: Annotated[Repeated, Option("--nsqd-http-address", metavar="HOST:PORT", help="HTTP of an nsqd.")] = None,
    nsqd_tcp: Annotated[Repeated, Option("--nsqd-tcp-address", metavar="HOST:PORT", help="TCP of an nsqd.")] = None,
    lookupd: Annotated[
        Repeated, Option("--lookupd-http-address", metavar="HOST:PORT", help="HTTP of an nsqlookupd.")
    ] = None,
    secret: Annotated[str, Option("--auth-secret", help="Secret for servers that require AUTH.")] = "",
    use: Annotated[bool, Option("--use", help="Make it the current context.")] = False,
) -> None:
    """Add a context, or replace it. The first one becomes the current context."""
    made = Context(nsqd_http or [], nsqd_tcp or [], lookupd or [], secret)
    if (made.nsqd_http or made.nsqd_tcp) and made.lookupd_http:
        raise ConfigError("give nsqd addresses or nsqlookupd addresses, not both")
    if not (made.nsqd_http or made.nsqd_tcp or made.lookupd_http):
        raise ConfigError("give --lookupd-http-address, or --nsqd-http-address and --nsqd-tcp-address")
    known = contexts.load()
    current = name if use or not known.known else known.current
    contexts.save(Contexts(current, {**known.known, name: made}))
    print(f"context {name} added" + (", and used from now on" if current == name else ""))


@app.command(example="lapwing context use prod")
def use(name: Name) -> None:
    """Make a context the current one."""
    known = contexts.load()
    known.named(name)
    contexts.save(replace(known, current=name))
    print(f"context {name} is used from now on")


@app.command("list", example="lapwing context list")
def list_(as_json: Json = False) -> None:
    """List the contexts; a star marks the current one. Secrets are not shown."""
    known = contexts.load()
    if as_json:
        shown = {name: {**asdict(each), "auth_secret": bool(each.auth_secret)} for name, each in known.known.items()}
        print(json.dumps({"current": known.current, "contexts": shown}, indent=2))
        return
    for name, each in known.known.items():
        where = ", ".join([*each.lookupd_http, *each.nsqd_http, *each.nsqd_tcp])
        secret = "  (with a secret)" if each.auth_secret else ""
        print(f"{'*' if name == known.current else ' '} {name:<16} {where}{secret}")
    if not known.known:
        print("there is no context yet; `lapwing context add NAME ...` adds one")


@app.command(example="lapwing context remove prod")
def remove(name: Name) -> None:
    """Remove a context. The cluster itself is not touched."""
    known = contexts.load()
    known.named(name)
    left = {other: each for other, each in known.known.items() if other != name}
    contexts.save(Contexts("" if known.current == name else known.current, left))
    print(f"context {name} removed")
