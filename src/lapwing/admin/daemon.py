"""The daemon: listen, serve the API and the pages, poll the cluster, and end at a signal."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec

from lapwing.admin.api import Api
from lapwing.admin.asgi import WebRoute, WebRoutes
from lapwing.admin.firewall import Firewall
from lapwing.admin.lazy_pages import LazyPages
from lapwing.admin.login import login_routes
from lapwing.admin.options import AdminOptions
from lapwing.admin.page_table import PAGES
from lapwing.admin.services import Services, auth_secret, build, can_name_users
from lapwing.admin.static import static_routes
from lapwing.errors import ConfigError
from lapwing.names import NSQ_VERSION
from lapwing.net.event_loop import new_event_loop
from lapwing.net.logs import Level, Log
from lapwing.net.sockets.listen import CannotListen, Listener, bind, split


def application(admin: Services, pages: LazyPages) -> Firewall:
    """Return the ASGI application: API, login, static files, and pages."""
    options = admin.options
    routes = [
        *Api(admin).routes(),
        *login_routes(admin.access, admin.base),
        *static_routes(options.dev_static_dir),
        *(WebRoute("GET", page.path, partial(pages.draw, page)) for page in PAGES),
    ]
    return Firewall(pages, WebRoutes(routes), admin.access, base=admin.base, allowed_hosts=options.allowed_hosts)


# ---- running ----


class _Bridge(logging.Handler):
    """Writes the log lines of libraries to the daemon's own log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            write = self._log.error
        elif record.levelno >= logging.WARNING:
            write = self._log.warn
        else:
            write = self._log.info if record.levelno >= logging.INFO else self._log.debug
        write(self.format(record))


def _bridge(log: Log) -> None:
    root = logging.getLogger()
    root.handlers = [_Bridge(log)]
    root.setLevel(logging.WARNING)
    logging.getLogger("nsqadmin").setLevel(logging.DEBUG)


def run(options: AdminOptions) -> None:
    """Serve until SIGINT or SIGTERM. Raises `ConfigError` when it cannot start."""
    if find_spec("nicegui") is None:
        raise ConfigError("the web pages need more packages: pip install 'lapwing[admin]'")
    log = Log(options.log_prefix, Level(options.log_level))
    _bridge(log)
    # NiceGUI creates a folder for state of users, which we do not use: not in the working directory
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.path.join(tempfile.gettempdir(), "lapwing-nsqadmin"))
    admin = build(options, log)
    for text in warnings(options):
        log.warn(text)
    listener = _listen(options.http_address)
    log.info(f"nsqadmin v{NSQ_VERSION} (lapwing)")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(admin, listener, log))
        log.info("HTTP: closing")
        log.drain()
        os._exit(0)  # the end of the runner would wait for the thread that imports the pages


def warnings(options: AdminOptions) -> Iterator[str]:
    """Yield what the operator should know about these options at the start."""
    if options.admin_users and not can_name_users(options):
        yield (
            f"nobody can change anything: --admin-user is given, but {options.acl_http_header} is ignored until "
            "--trusted-proxy names the proxy that sets it, and there is no built-in login (--password-file)"
        )
    if auth_secret(options) and not (options.password_file or options.require_user):
        yield (
            f"everybody who reaches nsqadmin on {options.http_address} uses its secret, without a login: "
            "add --password-file, or --trusted-proxy with --require-user"
        )


def _listen(address: str) -> Listener:
    if split(address) is None:
        raise ConfigError(f"listen ({address}) failed - not a host:port")
    try:
        return bind(address)
    except CannotListen as error:
        raise ConfigError(error.strerror) from error


async def _serve(admin: Services, listener: Listener, log: Log) -> None:
    import uvicorn

    stopping = asyncio.Event()

    class Server(uvicorn.Server):
        """Leaves signals to us: the library would raise them again after a clean stop."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def main_loop(self) -> None:
            """Wait for the stop, and keep the `Date` of answers; the library looks ten times a second."""
            while not await self.on_tick(0):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await stopping.wait()

    server = Server(
        uvicorn.Config(
            application(admin, LazyPages(admin)),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `AccessRules` decides which of them count
            timeout_graceful_shutdown=1,
            ws="websockets-sansio",
        )
    )

    def stop() -> None:
        server.should_exit = True
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    log.info(f"HTTP: listening on {listener.address}")
    gc.enable()
    async with _background(admin):
        await server.serve(sockets=listener.sockets)


@asynccontextmanager
async def _background(admin: Services) -> AsyncIterator[None]:
    """Run the poller, the recorder of samples and the notifier while the daemon serves."""
    tasks = [asyncio.create_task(admin.poller.run()), asyncio.create_task(admin.recorder.run())]
    if admin.notifier is not None:
        tasks.append(asyncio.create_task(admin.notifier.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admin.cluster_client.http.aclose()
