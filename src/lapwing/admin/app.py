"""The daemon: builds everything from options, listens, polls, and stops when told."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from lapwing.admin.access import Access, Logins, parse_networks, read_passwords
from lapwing.admin.actions import Actions
from lapwing.admin.alarms import Limits
from lapwing.admin.api import Api
from lapwing.admin.audit import Audit
from lapwing.admin.changes import Changes
from lapwing.admin.firewall import Firewall
from lapwing.admin.flow import FlowHistory
from lapwing.admin.graphite import Graphite
from lapwing.admin.login import login_routes
from lapwing.admin.notify import Notifier
from lapwing.admin.options import Options
from lapwing.admin.poller import Poller
from lapwing.admin.running_options import RunningOptions
from lapwing.admin.static import static_routes
from lapwing.admin.web import AsgiApp, Route, Routes
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import DaemonHttp, tls_context
from lapwing.errors import ConfigError
from lapwing.net.listen import CannotListen, Listener, bind, split
from lapwing.net.logs import Level, Log

PAGES: Final = (
    "/",
    "/topics",
    "/topics/<topic>",
    "/topics/<topic>/<channel>",
    "/nodes",
    "/nodes/<node>",
    "/counter",
    "/lookup",
    "/messages",
    "/clients",
    "/pipelines",
    "/audit",
)
SECOND: Final = 1_000_000_000


@dataclass(slots=True)
class Admin:
    """What the pages and the API stand on."""

    options: Options
    queries: ClusterClient
    poller: Poller
    flow: FlowHistory
    actions: Actions
    access: Access
    graphite: Graphite
    running_options: RunningOptions
    notifier: Notifier | None

    @property
    def base(self) -> str:
        """The prefix of all paths, empty for the root."""
        return self.options.base


def build(options: Options, log: Log) -> Admin:
    """Everything but the listener; raises `ConfigError` for what cannot work."""
    _check(options)
    try:
        tls = tls_context(
            root_ca_file=options.http_client_tls_root_ca_file,
            cert=options.http_client_tls_cert,
            key=options.http_client_tls_key,
            insecure=options.http_client_tls_insecure_skip_verify,
        )
    except OSError as error:
        raise ConfigError(f"failed to read the TLS files: {error}") from error
    http = DaemonHttp(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        tls=tls,
        user_agent="nsqadmin/v1.3.0",
    )
    queries = ClusterClient(http, lookupds=options.lookupd_http_addresses, nsqds=options.nsqd_http_addresses)
    access = Access(
        acl_header=options.acl_http_header,
        admin_users=options.admin_users,
        trusted_proxies=parse_networks(options.trusted_proxies),
        read_only=options.read_only,
        require_user=options.require_user,
        logins=Logins(read_passwords(options.password_file)) if options.password_file else None,
    )
    graphite = Graphite(
        options.graphite_url,
        options.proxy_graphite,
        options.statsd_interval / SECOND,
        options.statsd_prefix,
        options.statsd_counter_format,
        options.statsd_gauge_format,
    )
    graphite.check()
    notifier = Notifier(options.notification_http_endpoint) if options.notification_http_endpoint else None

    def set_level(level: int) -> None:
        log.level = Level(level)

    poller = Poller(queries, limits=Limits(age=options.alarm_age / SECOND, depth=options.alarm_depth))
    return Admin(
        options,
        queries,
        poller,
        FlowHistory(http, lambda: [state.node.contact for state in poller.picture.nodes if state.lapwing]),
        Actions(Changes(queries), Audit(options.audit_file), notifier),
        access,
        graphite,
        RunningOptions(options, queries, on_level=set_level),
        notifier,
    )


def _check(options: Options) -> None:
    if bool(options.lookupd_http_addresses) == bool(options.nsqd_http_addresses):
        given = (
            "use --nsqd-http-address or --lookupd-http-address, not both"
            if options.nsqd_http_addresses
            else "--nsqd-http-address or --lookupd-http-address required"
        )
        raise ConfigError(given)
    if bool(options.http_client_tls_cert) != bool(options.http_client_tls_key):
        raise ConfigError(
            "--http-client-tls-key must be specified with --http-client-tls-cert, and the other way round"
        )
    for address in (*options.lookupd_http_addresses, *options.nsqd_http_addresses):
        _check_address(address)
    parse_networks([options.allow_config_from_cidr])
    if options.require_user and not _can_name_users(options):
        raise ConfigError(
            "--require-user needs a way to name users: --password-file for the built-in login, or --trusted-proxy "
            f"for the proxy that sets {options.acl_http_header}"
        )


def _can_name_users(options: Options) -> bool:
    return bool(options.password_file or options.trusted_proxies)


def _check_address(address: str) -> None:
    parts = split(address)
    if parts is None:
        raise ConfigError(f"failed to resolve address ({address}) - expected host:port, missing port in address")
    try:
        socket.getaddrinfo(*parts)
    except OSError as error:
        raise ConfigError(f"failed to resolve address ({address}) - {error.strerror or error}") from error


def doorway(admin: Admin, ui: AsgiApp) -> Firewall:
    """The ASGI application: API, login, static files, and the pages of `ui`."""
    options = admin.options
    config_from = parse_networks([options.allow_config_from_cidr]) if options.allow_config_from_cidr else None
    api = Api(
        admin.queries, admin.actions, admin.poller, admin.flow, admin.graphite, admin.running_options, config_from
    )
    routes = [
        *api.routes(),
        *login_routes(admin.access, admin.base),
        *static_routes(options.dev_static_dir),
        *(Route("GET", path) for path in PAGES),
    ]
    return Firewall(ui, Routes(routes), admin.access, base=admin.base, allowed_hosts=options.allowed_hosts)


# ---- running ----


class _Bridge(logging.Handler):
    """Lines of libraries into the daemon's own log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        say = (
            self._log.error
            if record.levelno >= logging.ERROR
            else self._log.warn
            if record.levelno >= logging.WARNING
            else self._log.info
            if record.levelno >= logging.INFO
            else self._log.debug
        )
        say(self.format(record))


def _bridge(log: Log) -> None:
    root = logging.getLogger()
    root.handlers = [_Bridge(log)]
    root.setLevel(logging.WARNING)
    logging.getLogger("nsqadmin").setLevel(logging.DEBUG)


def run(options: Options) -> None:
    """Serve until SIGINT or SIGTERM; raises `ConfigError` when it cannot even begin."""
    log = Log(options.log_prefix, Level(options.log_level))
    _bridge(log)
    # the library keeps per-user state in the working directory unless told otherwise; we use none of it
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.path.join(tempfile.gettempdir(), "lapwing-nsqadmin"))
    admin = build(options, log)
    if options.admin_users and not _can_name_users(options):
        log.warn(
            f"nobody can change anything: --admin-user is given, but {options.acl_http_header} is ignored until "
            "--trusted-proxy names the proxy that sets it, and there is no built-in login (--password-file)"
        )
    listener = _listen(options.http_address)
    log.info("nsqadmin v1.3.0 (lapwing)")
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(_serve(admin, listener, log))
    log.info("HTTP: closing")
    log.drain()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _listen(address: str) -> Listener:
    if split(address) is None:
        raise ConfigError(f"listen ({address}) failed - not a host:port")
    try:
        return bind(address)
    except CannotListen as error:
        raise ConfigError(error.strerror) from error


async def _serve(admin: Admin, listener: Listener, log: Log) -> None:
    import uvicorn
    from starlette.middleware.gzip import GZipMiddleware

    from lapwing.admin.pages.site import mount

    class Server(uvicorn.Server):
        """Signals are ours: the library would raise them again after a clean stop."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    door = doorway(admin, mount(admin))
    server = Server(
        uvicorn.Config(
            GZipMiddleware(door, minimum_size=1024, compresslevel=5),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whom to believe is the door's to say
            timeout_graceful_shutdown=1,
            ws="websockets-sansio",
        )
    )

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    log.info(f"HTTP: listening on {listener.address}")
    async with _background(admin):
        await server.serve(sockets=listener.sockets)


@asynccontextmanager
async def _background(admin: Admin) -> AsyncIterator[None]:
    """The poller, the reader of flow windows and the notifier, as long as the daemon serves."""
    tasks = [asyncio.create_task(admin.poller.run()), asyncio.create_task(admin.flow.run())]
    if admin.notifier is not None:
        tasks.append(asyncio.create_task(admin.notifier.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admin.queries.http.aclose()
