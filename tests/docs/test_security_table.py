"""docs/reference/security.md names every command and endpoint of every daemon, and who may call it."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from documents import security_table
from lapwing.admin.access import hash_password
from lapwing.admin.daemon import application
from lapwing.admin.lazy_pages import LazyPages
from lapwing.admin.options import AdminOptions
from lapwing.admin.services import build
from lapwing.broker.settings.options import Options
from lapwing.lookup.http import LookupRoutes
from lapwing.lookup.metrics import LookupCounts
from lapwing.lookup.registry import Registry
from lapwing.net.logs import Level, Log
from lapwing.net.server.routes import Route
from lapwing.nsqd.daemon import Daemon
from lapwing.sessions.redis.authorization import access_of
from lapwing.sessions.redis.handlers import HANDLERS
from lapwing.wire.nsq import commands, lookup
from lapwing.wire.resp.commands import all_specs


def endpoints(section: str) -> dict[tuple[str, str], list[str]]:
    found = {(method, path): rest for method, path, *rest in security_table(section)}
    assert len(found) == len(security_table(section)), "an endpoint stands there twice"
    return found


def compare(section: str, programs: Iterable[tuple[str, str]]) -> None:
    there, listed = set(programs), set(endpoints(section))

    assert not there - listed, f"add to the table '{section}' of docs/reference/security.md: {sorted(there - listed)}"
    assert not listed - there, f"these are gone, delete them from '{section}': {sorted(listed - there)}"


def quiet() -> Log:
    return Log("", Level.FATAL, 2)


async def nsqd_routes(data_path: Path) -> list[Route]:
    options = Options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=str(data_path), node_id=1)
    daemon = Daemon(options, quiet())
    await daemon.start()
    try:
        return daemon.routes
    finally:
        await daemon.stop()


def test_every_endpoint_of_nsqd_is_listed_with_the_permission_it_needs(tmp_path: Path) -> None:
    routes = asyncio.run(nsqd_routes(tmp_path))
    compare("nsqd, HTTP", [(route.method, route.path) for route in routes])

    listed = endpoints("nsqd, HTTP")
    for route in routes:
        permission, scope = listed[route.method, route.path]
        allowed = " or ".join(route.access.permissions) or "everybody"
        assert re.split(r"[;(]", permission)[0].strip() == allowed, route.path
        assert scope == (route.access.scope if route.access.permissions else ""), route.path


def test_every_endpoint_of_nsqlookupd_is_listed() -> None:
    registry = Registry(inactive_after=1, tombstone_lifetime=1)
    routes = LookupRoutes(registry, lambda: 0, LookupCounts(0.0), lambda: 0).routes()

    compare("nsqlookupd, HTTP", [(route.method, route.path) for route in routes])


def test_every_endpoint_of_nsqadmin_is_listed(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text(f"ann:{hash_password('secret')}\n")
    options = AdminOptions(
        lookupd_http_addresses=("127.0.0.1:1",),
        graphite_url="http://127.0.0.1:1",
        proxy_graphite=True,
        password_file=str(tmp_path / "passwords"),
    )

    admin = build(options, quiet())
    door = application(admin, LazyPages(admin))

    compare("nsqadmin, HTTP", [(route.method, route.path) for route in door._routes._routes])


def words(union: object) -> set[str]:
    return {kind.__name__.upper() for kind in get_args(union)}


def test_every_command_is_listed() -> None:
    listed = {row[0] for row in security_table("nsqd, TCP")}
    assert listed == words(commands.Command) - {"FINS", "REQS"}  # runs of FIN and REQ
    assert listed >= {word.decode() for word in commands.WORDS}
    assert {row[0] for row in security_table("nsqlookupd, TCP")} == words(lookup.Command)


def test_every_redis_command_is_listed_with_the_permission_it_needs() -> None:
    specs = {spec.name: spec for spec in all_specs()}
    listed = {row[0].lower().replace(" ", "|"): row[1:] for row in security_table("nsqd, Redis")}
    there = set(HANDLERS)

    assert there >= {name for name, spec in specs.items() if not spec.subcommands}, "a command is never carried out"
    assert not there - set(listed), f"add these to the table 'nsqd, Redis': {sorted(there - set(listed))}"
    assert not set(listed) - there, f"these are gone, delete them from 'nsqd, Redis': {sorted(set(listed) - there)}"
    for name, (permission, scope) in listed.items():
        needed, what_for = access_of(specs[name])
        if "no_auth" in specs[name].flags:
            needed, what_for = "everybody", ""
        elif not needed:
            needed, what_for = "publish or subscribe or admin", "any"
        assert (permission.split(";")[0], scope) == (needed, what_for), name
